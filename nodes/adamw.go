package nodes

import (
	"math"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

func init() {
	graph.Register(graph.Info{Example: adamW{Beta1: adamBeta1, Beta2: adamBeta2, Eps: adamEps, WeightDecay: adamDecay},
		Doc:     "one step of AdamW on one parameter, in place",
		Options: []string{"beta1 = 0.9", "beta2 = 0.999", "eps = 1e-8", "weight_decay = 0.01", "maximize = false"},
		NoGrad:  "it updates variables"})
}

// AdamWConfig are the options of AdamW: those of torch.optim.AdamW, with its defaults. An option for which 0
// is not the default but means something is a pointer: WeightDecay: new(0.0).
type AdamWConfig struct {
	Rate        float64  // learning rate, or the highest one of the schedule; default 1e-3
	Schedule    Schedule // default constant
	Beta1       *float64 // of the first moment, in [0,1); default 0.9
	Beta2       *float64 // of the second moment, in [0,1); default 0.999
	Eps         float64  // added to the denominator; default 1e-8
	WeightDecay *float64 // decoupled: a fraction Rate*WeightDecay is lost each step; default 0.01
	Maximize    bool     // go up the gradient, not down
	Name        string   // of the state; default "adamw"
}

const (
	adamBeta1 = 0.9
	adamBeta2 = 0.999
	adamEps   = 1e-8
	adamDecay = 0.01
)

// AdamW updates the parameters that grads belongs to and returns the number of the step, int32 (1,).
//
//	w = w * (1 - rate*WeightDecay)
//	m = Beta1*m + (1-Beta1)*g        v = Beta2*v + (1-Beta2)*g^2
//	w = w - rate/(1-Beta1^step) * m / (sqrt(v)/sqrt(1-Beta2^step) + Eps)
//
// Moments, in float32 (f64 for f64 parameters), and the step are state of the parameters' Vars:
// "<param>/adamw.m", "<param>/adamw.v", "adamw/step". A 16-bit parameter keeps a float32 master copy,
// "<param>/adamw.master", which is what the formula updates; the parameter is its rounding.
// Where grads.Ready is 0, as in all but the last of accumulated micro-batches, nothing changes.
// Two optimizers for one Vars in one graph need two Names. Nodes built afterwards see the updated parameters.
func AdamW(grads *graph.Grads, cfg ...AdamWConfig) (step *graph.Value) {
	var c AdamWConfig
	if len(cfg) > 0 {
		c = cfg[0]
	}
	op := adamW{
		Beta1: orDefault(c.Beta1, adamBeta1), Beta2: orDefault(c.Beta2, adamBeta2), Eps: c.Eps,
		WeightDecay: orDefault(c.WeightDecay, adamDecay), Maximize: c.Maximize,
	}
	if op.Eps == 0 {
		op.Eps = adamEps
	}
	o := newOptimizer("adamw", c.Name, grads, c.Rate, c.Schedule)
	return o.update(op, func(p, grad, rate *graph.Value) []*graph.Value {
		return []*graph.Value{p, o.state(p, "m"), o.state(p, "v"), o.master(p), grad, o.step, rate, grads.Ready}
	})
}

func orDefault[T any](p *T, def T) T {
	if p == nil {
		return def
	}
	return *p
}

type adamW struct {
	Beta1, Beta2, Eps, WeightDecay float64
	Maximize                       bool
}

func (o adamW) Kind() string { return "adamw" }

func (o adamW) Operands() []graph.Operand {
	return []graph.Operand{
		{Name: "param", Update: true}, {Name: "m", Update: true}, {Name: "v", Update: true},
		{Name: "master", Optional: true, Update: true}, {Name: "grad"}, {Name: "step"}, {Name: "rate"}, {Name: "ready", Optional: true},
	}
}

func (o adamW) Outputs() []string { return nil }

func (o adamW) Infer(in []*graph.Value) ([]graph.Spec, error) {
	switch {
	case !(o.Beta1 >= 0 && o.Beta1 < 1):
		return nil, graph.BadShape("beta1", o.Beta1, "a number in [0,1)")
	case !(o.Beta2 >= 0 && o.Beta2 < 1):
		return nil, graph.BadShape("beta2", o.Beta2, "a number in [0,1)")
	case !(o.Eps > 0 && o.Eps <= math.MaxFloat32):
		return nil, graph.BadShape("eps", o.Eps, "a number above 0")
	case !(o.WeightDecay >= 0 && o.WeightDecay <= math.MaxFloat32):
		return nil, graph.BadShape("weight_decay", o.WeightDecay, "a number of at least 0")
	}
	return nil, checkOptimizer(o.Operands(), in, 1, 3)
}

// checkOptimizer checks the operands of an update: the parameter, state in [first,master), the master copy, then
// gradient, step, rate and ready.
func checkOptimizer(operands []graph.Operand, in []*graph.Value, first, master int) error {
	p := in[0]
	stat := statType(p.DType())
	if !plain(p.DType()) {
		return graph.BadDType("param", p.DType(), floats)
	}
	if (p.DType().Bits() == 16) != (in[master] != nil) {
		return graph.Misuse("master", in[master].Name(), "a float32 copy for a 16-bit parameter, none for others (param is %s)", p.DType())
	}
	for i := first; i <= master; i++ {
		if in[i] != nil && in[i].DType() != stat {
			return graph.BadDType(operands[i].Name, in[i].DType(), "%s", stat)
		}
	}
	grad, step, rate, ready := in[master+1], in[master+2], in[master+3], in[master+4]
	if !plain(grad.DType()) || isWide(grad.DType()) != isWide(p.DType()) {
		return graph.BadDType("grad", grad.DType(), floats+", f64 only with f64")
	}
	if err := checkState(p, operands[first:master+2], in[first:master+2]); err != nil {
		return err
	}
	if err := checkOne("step", step, dtype.Int32); err != nil {
		return err
	}
	if err := checkOne("rate", rate, stat); err != nil {
		return err
	}
	return checkOne("ready", ready, dtype.Int32)
}

// Flops implements graph.Coster.
func (o adamW) Flops(n *graph.Node) int64 { return 12 * int64(n.In(0).Elems()) }

func (o adamW) Host(c *graph.Call) func() error {
	if isWide(c.In[0].DType) {
		return adamWHost[float64](o, c)
	}
	return adamWHost[float32](o, c)
}

func adamWHost[F float](o adamW, c *graph.Call) func() error {
	param, m, v, grad, step, rate, ready := c.In[0], c.In[1], c.In[2], c.In[4], c.In[5], c.In[6], c.In[7]
	master := masterOf(param, c.In[3])
	var keep, size, root F // 1 - rate*decay, rate/(1-beta1^t), sqrt(1-beta2^t) of this step
	beta1, beta2, eps := F(o.Beta1), F(o.Beta2), F(o.Eps)
	rest1, rest2 := F(1-o.Beta1), F(1-o.Beta2)
	loop := c.NewLoop(func(w *graph.Worker, lo, hi int) {
		ws, ms, vs := graph.View[F](master.Data)[lo:hi], graph.View[F](m.Data)[lo:hi], graph.View[F](v.Data)[lo:hi]
		for i, g := range load[F](w, 0, grad, lo, hi-lo) {
			if o.Maximize {
				g = -g
			}
			ms[i] = beta1*ms[i] + rest1*g
			vs[i] = beta2*vs[i] + rest2*g*g
			ws[i] = ws[i]*keep - size*(ms[i]/(F(math.Sqrt(float64(vs[i])))/root+eps))
		}
		if master != param {
			store(param, lo, ws)
		}
	})
	n := capacity(param)
	return func() error {
		if !isReady(ready) {
			return nil
		}
		t, lr := float64(ints(step)[0]), float64(scalar[F](rate, 0))
		keep = F(1 - lr*o.WeightDecay)
		size = F(lr / (1 - math.Pow(o.Beta1, t)))
		root = F(math.Sqrt(1 - math.Pow(o.Beta2, t)))
		loop.Run(n, elemGrain)
		return nil
	}
}
