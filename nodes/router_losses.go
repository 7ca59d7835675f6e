package nodes

import (
	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

func init() {
	opts := []string{"top_k", "order = softmax_topk"}
	graph.Register(graph.Info{Example: routerLosses{K: 2}, Doc: "load balance E sum_e f_e P_e and z-loss mean logsumexp(logits)^2", Options: opts})
	graph.Register(graph.Info{Example: routerLossesGrad{Of: routerLosses{K: 2}}, Doc: "the gradient of logits from those of the router losses", NoGrad: "it makes gradients only"})
}

// RouterLosses are the operands and options of a router's auxiliary losses (contracts, section 9).
//
//	load_balance = E * sum_e f_e P_e ;  f_e = counts_e / (T k), without a gradient
//	P_e = mean over tokens of softmax(logits)_e ; for Sigmoid of sigmoid(logits)_e / sum over experts
//	z_loss = mean over tokens of logsumexp(logits)^2
//
// Logits is f32 (T,E); Counts is int32 (E,), the slots of each expert before any was dropped. Without tokens both
// losses are 0.
type RouterLosses struct {
	Logits, Counts *graph.Value
	K              int
	Order          Order
}

// Apply appends the node and returns both losses, f32 (1,).
func (o RouterLosses) Apply() (balance, z *graph.Value) {
	out := graph.Apply(routerLosses{K: o.K, Order: o.Order}, o.Logits, o.Counts)
	return out[0], out[1]
}

type routerLosses struct {
	K     int
	Order Order
}

func (o routerLosses) Kind() string { return "router_losses" }
func (o routerLosses) Operands() []graph.Operand {
	return []graph.Operand{{Name: "logits"}, {Name: "counts"}}
}
func (o routerLosses) Outputs() []string { return []string{"load_balance", "z_loss"} }

func (o routerLosses) Infer(in []*graph.Value) ([]graph.Spec, error) {
	l, counts := in[0], in[1]
	if l.Rank() != 2 || l.DType() != statType(l.DType()) || l.Dim(1) < 1 || l.Dim(1) > MaxExperts {
		return nil, graph.BadShape("logits", l.Text(), "f32 (T,E) with E from 1 to %d", MaxExperts)
	}
	if counts.DType() != dtype.Int32 || counts.Rank() != 1 || counts.Dim(0) != l.Dim(1) || counts.Rows() != nil {
		return nil, graph.BadShape("counts", counts.Text(), "int32 (%d,)", l.Dim(1))
	}
	if o.K < 1 || o.K > l.Dim(1) {
		return nil, graph.BadShape("top_k", o.K, "from 1 to the %d experts", l.Dim(1))
	}
	if o.Order > Sigmoid {
		return nil, graph.Unsupported("order", o.Order, "softmax_topk, topk_softmax or sigmoid")
	}
	one := graph.Spec{DType: l.DType(), Shape: []int{1}}
	return []graph.Spec{one, one}, nil
}

func (o routerLosses) Gradient(n *graph.Node, grads []*graph.Value) []*graph.Value {
	return []*graph.Value{graph.Apply(routerLossesGrad{Of: o}, n.In(0), n.In(1), grads[0], grads[1])[0], nil}
}

// lossBlock is how many tokens are added up at a time; the blocks' sums are added in order.
const lossBlock = 64

// Scratch implements graph.Scratcher: a sum for each expert and one for the z-loss, for each block of tokens.
func (o routerLosses) Scratch(n *graph.Node) int64 {
	l := n.In(0)
	return int64(tiles(l.Dim(0), lossBlock)) * int64(l.Dim(1)+1) * 8
}

func (o routerLosses) Host(c *graph.Call) func() error {
	if isWide(c.In[0].DType) {
		return routerLossesHost[float64](o, c)
	}
	return routerLossesHost[float32](o, c)
}

func routerLossesHost[F float](o routerLosses, c *graph.Call) func() error {
	logits, counts := c.In[0], c.In[1]
	e := logits.Shape[1]
	loop := c.NewLoop(func(w *graph.Worker, lo, hi int) {
		b := lo / lossBlock
		sums := graph.View[float64](c.Scratch)[b*(e+1) : (b+1)*(e+1)]
		clear(sums)
		p := w.Float64(0, e)
		for t := lo; t < hi; t++ {
			lse := shares(o.Order, p, load[F](w, 1, logits, t*e, e))
			for i, v := range p {
				sums[i] += v
			}
			sums[e] += lse * lse
		}
	})
	w := new(graph.Worker)
	return func() error {
		t := logits.Rows()
		loop.Run(t, lossBlock)
		sums := graph.View[float64](c.Scratch)
		total := w.Float64(0, e+1)
		clear(total)
		for b := range tiles(t, lossBlock) {
			for i := range total {
				total[i] += sums[b*(e+1)+i]
			}
		}
		var balance, z float64
		if t > 0 {
			for i, n := range ints(counts) {
				balance += float64(n) * total[i]
			}
			balance *= float64(e) / (float64(t) * float64(o.K) * float64(t))
			z = total[e] / float64(t)
		}
		for i, loss := range [2]float64{balance, z} {
			if c.Out[i] != nil {
				put(w, c.Out[i], 0, F(loss))
			}
		}
		return nil
	}
}

// shares fills p with a token's shares P and returns the logsumexp of its logits.
func shares[F float](o Order, p []float64, l []F) (lse float64) {
	lse = softmax(p, l)
	if o != Sigmoid {
		return lse
	}
	total := normEps
	for i, x := range l {
		p[i] = sigmoid(float64(x))
		total += p[i]
	}
	for i := range p {
		p[i] /= total
	}
	return lse
}

type routerLossesGrad struct{ Of routerLosses }

func (o routerLossesGrad) Kind() string { return "router_losses_grad" }

func (o routerLossesGrad) Operands() []graph.Operand {
	return []graph.Operand{{Name: "logits"}, {Name: "counts"}, {Name: "dbalance", Optional: true}, {Name: "dz", Optional: true}}
}

func (o routerLossesGrad) Outputs() []string { return []string{"dlogits"} }

func (o routerLossesGrad) Infer(in []*graph.Value) ([]graph.Spec, error) {
	return []graph.Spec{in[0].Spec()}, nil
}

func (o routerLossesGrad) Host(c *graph.Call) func() error {
	if isWide(c.In[0].DType) {
		return routerLossesGradHost[float64](o.Of, c)
	}
	return routerLossesGradHost[float32](o.Of, c)
}

func routerLossesGradHost[F float](o routerLosses, c *graph.Call) func() error {
	logits, counts, out := c.In[0], c.In[1], c.Out[0]
	e := logits.Shape[1]
	loop := c.NewLoop(func(w *graph.Worker, lo, hi int) {
		n := float64(logits.Rows())
		var gb, gz float64
		if c.In[2] != nil {
			gb = float64(scalar[F](c.In[2], 0)) * float64(e) / (n * float64(o.K) * n)
		}
		if c.In[3] != nil {
			gz = float64(scalar[F](c.In[3], 0)) / n
		}
		f, p, soft := ints(counts), w.Float64(0, e), w.Float64(1, e)
		for t := lo; t < hi; t++ {
			l := load[F](w, 2, logits, t*e, e)
			lse := softmax(soft, l)
			shares(o.Order, p, l)
			var inner float64
			for i := range p {
				inner += float64(f[i]) * p[i]
			}
			dl := target[F](w, 3, out, t*e, e)
			for i := range dl {
				g := gb * p[i] * (float64(f[i]) - inner)
				if o.Order == Sigmoid { // p = s/sum s, ds = s(1-s)
					g *= 1 - sigmoid(float64(l[i]))
				}
				dl[i] = F(g + gz*2*lse*soft[i])
			}
			store(out, t*e, dl)
		}
	})
	return func() error {
		loop.Run(logits.Rows(), rowGrain(8*e))
		return nil
	}
}
