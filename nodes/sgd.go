package nodes

import (
	"fmt"
	"math"

	"github.com/moegraph/moegraph/graph"
)

func init() {
	graph.Register(graph.Info{Example: sgd{}, Doc: "one step of SGD on one parameter, in place",
		Options: []string{"momentum = 0", "dampening = 0", "weight_decay = 0", "nesterov = false", "maximize = false"},
		NoGrad:  "it updates variables"})
}

// SGDConfig are the options of SGD: those of torch.optim.SGD, with its defaults.
type SGDConfig struct {
	Rate        float64  // learning rate, or the highest one of the schedule; default 1e-3
	Schedule    Schedule // default constant
	Momentum    float64  // default 0: no momentum and no state but the step
	Dampening   float64  // of the momentum; default 0
	WeightDecay float64  // added to the gradient as WeightDecay*w; default 0
	Nesterov    bool     // needs Momentum above 0 and Dampening 0
	Maximize    bool     // go up the gradient, not down
	Name        string   // of the state; default "sgd"
}

// SGD updates the parameters that grads belongs to and returns the number of the step, int32 (1,).
//
//	g = g + WeightDecay*w
//	b = g in the first step, then Momentum*b + (1-Dampening)*g
//	w = w - rate * b        nesterov: w - rate * (g + Momentum*b)        without momentum: w - rate * g
//
// State, master copies of 16-bit parameters and grads.Ready are as with AdamW, under the names "sgd/step",
// "<param>/sgd.momentum" and "<param>/sgd.master".
func SGD(grads *graph.Grads, cfg ...SGDConfig) (step *graph.Value) {
	var c SGDConfig
	if len(cfg) > 0 {
		c = cfg[0]
	}
	op := sgd{Momentum: c.Momentum, Dampening: c.Dampening, WeightDecay: c.WeightDecay, Nesterov: c.Nesterov, Maximize: c.Maximize}
	o := newOptimizer("sgd", c.Name, grads, c.Rate, c.Schedule)
	return o.update(op, func(p, grad, rate *graph.Value) []*graph.Value {
		var momentum *graph.Value
		if c.Momentum != 0 {
			momentum = o.state(p, "momentum")
		}
		return []*graph.Value{p, momentum, o.master(p), grad, o.step, rate, grads.Ready}
	})
}

type sgd struct {
	Momentum, Dampening, WeightDecay float64
	Nesterov, Maximize               bool
}

func (o sgd) Kind() string { return "sgd" }

func (o sgd) Operands() []graph.Operand {
	return []graph.Operand{
		{Name: "param", Update: true}, {Name: "momentum_buffer", Optional: true, Update: true},
		{Name: "master", Optional: true, Update: true}, {Name: "grad"}, {Name: "step"}, {Name: "rate"}, {Name: "ready", Optional: true},
	}
}

func (o sgd) Outputs() []string { return nil }

func (o sgd) Infer(in []*graph.Value) ([]graph.Spec, error) {
	switch {
	case !(o.Momentum >= 0 && o.Momentum <= math.MaxFloat32):
		return nil, graph.BadShape("momentum", o.Momentum, "a number of at least 0")
	case math.IsNaN(o.Dampening) || math.IsInf(o.Dampening, 0):
		return nil, graph.BadShape("dampening", o.Dampening, "a number")
	case !(o.WeightDecay >= 0 && o.WeightDecay <= math.MaxFloat32):
		return nil, graph.BadShape("weight_decay", o.WeightDecay, "a number of at least 0")
	case o.Nesterov && (o.Momentum == 0 || o.Dampening != 0):
		return nil, graph.Unsupported("nesterov", fmt.Sprintf("momentum %g and dampening %g", o.Momentum, o.Dampening),
			"momentum above 0 and no dampening")
	case (o.Momentum != 0) != (in[1] != nil):
		return nil, graph.Misuse("momentum_buffer", in[1].Name(), "the state where momentum is above 0, none elsewhere")
	}
	return nil, checkOptimizer(o.Operands(), in, 1, 2)
}

// Flops implements graph.Coster.
func (o sgd) Flops(n *graph.Node) int64 { return 6 * int64(n.In(0).Elems()) }

func (o sgd) Host(c *graph.Call) func() error {
	if isWide(c.In[0].DType) {
		return sgdHost[float64](o, c)
	}
	return sgdHost[float32](o, c)
}

func sgdHost[F float](o sgd, c *graph.Call) func() error {
	param, buffer, grad, step, rate, ready := c.In[0], c.In[1], c.In[3], c.In[4], c.In[5], c.In[6]
	master := masterOf(param, c.In[2])
	var lr F
	var first bool // the step that starts the momentum with the gradient
	decay, momentum, rest := F(o.WeightDecay), F(o.Momentum), F(1-o.Dampening)
	loop := c.NewLoop(func(w *graph.Worker, lo, hi int) {
		ws := graph.View[F](master.Data)[lo:hi]
		var bs []F
		if buffer != nil {
			bs = graph.View[F](buffer.Data)[lo:hi]
		}
		for i, g := range load[F](w, 0, grad, lo, hi-lo) {
			if o.Maximize {
				g = -g
			}
			if decay != 0 {
				g += decay * ws[i]
			}
			if bs != nil {
				if first {
					bs[i] = g
				} else {
					bs[i] = momentum*bs[i] + rest*g
				}
				if o.Nesterov {
					g += momentum * bs[i]
				} else {
					g = bs[i]
				}
			}
			ws[i] -= lr * g
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
		lr, first = scalar[F](rate, 0), ints(step)[0] == 1
		loop.Run(n, elemGrain)
		return nil
	}
}
