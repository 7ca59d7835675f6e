package nodes

import (
	"fmt"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

func init() {
	opts := []string{"top_k", "order = softmax_topk", "normalize = 0, 1 for sigmoid", "scale = 1"}
	graph.Register(graph.Info{Example: topK{K: 2, Scale: 1}, Doc: "the k experts of each token and their probabilities, from logits", Options: opts})
	graph.Register(graph.Info{Example: topKGrad{Of: topK{K: 2, Scale: 1}}, Doc: "the gradient of logits from that of the chosen probabilities", NoGrad: "it makes gradients only"})
}

// Order is how a router turns logits into choices and probabilities.
type Order uint8

// The orders.
const (
	SoftmaxTopK Order = iota // softmax over all experts, then the k largest
	TopKSoftmax              // the k largest logits, then softmax over them
	Sigmoid                  // a score for each expert on its own
)

// ParseOrder returns the order of a name.
func ParseOrder(name string) (Order, error) {
	for o := SoftmaxTopK; o <= Sigmoid; o++ {
		if o.String() == name {
			return o, nil
		}
	}
	return 0, graph.Unsupported("order", name, "softmax_topk, topk_softmax or sigmoid")
}

// String returns the order's name.
func (o Order) String() string {
	if o > Sigmoid {
		return fmt.Sprintf("order %d", uint8(o))
	}
	return [...]string{"softmax_topk", "topk_softmax", "sigmoid"}[o]
}

// TopK are the operands and options of the choice of experts (contracts, section 9).
//
//	softmax_topk:  p = softmax(logits), chosen the k largest
//	topk_softmax:  chosen the k largest logits, p = softmax over them
//	sigmoid:       p = sigmoid(logits), chosen the k largest
//	normalize:     p / (sum over the chosen + 1e-20) ;  then p * Scale
//
// Slots are in falling order of the selecting value, the lower expert first among equals, NaN below -Inf.
// SelectBias is added to the selecting value alone. Gradients flow from the probabilities to the logits.
type TopK struct {
	Logits     *graph.Value // f32 (T,E)
	SelectBias *graph.Value // f32 (E,), optional
	K          int
	Order      Order
	Normalize  *bool   // default false, true for Sigmoid
	Scale      float64 // default 1
}

// Apply appends the node and returns topk_idx int32 (T,k) and topk_prob f32 (T,k).
func (o TopK) Apply() (idx, prob *graph.Value) {
	op := topK{K: o.K, Order: o.Order, Normalize: o.Order == Sigmoid, Scale: o.Scale}
	if o.Normalize != nil {
		op.Normalize = *o.Normalize
	}
	if o.Scale == 0 {
		op.Scale = 1
	}
	out := graph.Apply(op, o.Logits, o.SelectBias)
	return out[0], out[1]
}

type topK struct {
	K         int
	Order     Order
	Normalize bool
	Scale     float64
}

// normEps keeps a normalization from dividing by zero.
const normEps = 1e-20

func (o topK) Kind() string { return "topk" }

func (o topK) Operands() []graph.Operand {
	return []graph.Operand{{Name: "logits"}, {Name: "bias", Optional: true}}
}

func (o topK) Outputs() []string { return []string{"topk_idx", "topk_prob"} }

func (o topK) Infer(in []*graph.Value) ([]graph.Spec, error) {
	l := in[0]
	if l.Rank() != 2 || l.Dim(1) < 1 || l.Dim(1) > MaxExperts {
		return nil, graph.BadShape("logits", l.Text(), "(T,E) with E from 1 to %d", MaxExperts)
	}
	if l.DType() != statType(l.DType()) {
		return nil, graph.BadDType("logits", l.DType(), "f32 (f64 with everything f64)")
	}
	if o.K < 1 || o.K > l.Dim(1) {
		return nil, graph.BadShape("top_k", o.K, "from 1 to the %d experts", l.Dim(1))
	}
	if o.Order > Sigmoid {
		return nil, graph.Unsupported("order", o.Order, "softmax_topk, topk_softmax or sigmoid")
	}
	if err := checkStat("bias", in[1], l.Dim(1), l.DType()); err != nil {
		return nil, err
	}
	shape := []int{l.Dim(0), o.K}
	return []graph.Spec{{DType: dtype.Int32, Shape: shape, Rows: l.Rows()}, {DType: l.DType(), Shape: shape, Rows: l.Rows()}}, nil
}

func (o topK) Gradient(n *graph.Node, grads []*graph.Value) []*graph.Value {
	if grads[1] == nil {
		return []*graph.Value{nil, nil}
	}
	return []*graph.Value{graph.Apply(topKGrad{Of: o}, n.In(0), n.Out(0), grads[1])[0], nil}
}

type topKGrad struct{ Of topK }

func (o topKGrad) Kind() string { return "topk_grad" }

func (o topKGrad) Operands() []graph.Operand {
	return []graph.Operand{{Name: "logits"}, {Name: "topk_idx"}, {Name: "dprob"}}
}

func (o topKGrad) Outputs() []string { return []string{"dlogits"} }

func (o topKGrad) Infer(in []*graph.Value) ([]graph.Spec, error) {
	return []graph.Spec{in[0].Spec()}, sameShape("dprob", in[1], in[2])
}

func (o topK) Host(c *graph.Call) func() error {
	if isWide(c.In[0].DType) {
		return topKHost[float64](o, c)
	}
	return topKHost[float32](o, c)
}

func topKHost[F float](o topK, c *graph.Call) func() error {
	logits, bias, idx, prob := c.In[0], c.In[1], c.Out[0], c.Out[1]
	e := logits.Shape[1]
	loop := c.NewLoop(func(w *graph.Worker, lo, hi int) {
		score, sel := w.Float64(0, e), w.Float64(1, e)
		for t := lo; t < hi; t++ {
			l := load[F](w, 2, logits, t*e, e)
			scores(o.Order, score, l)
			for i := range sel {
				sel[i] = float64(l[i]) // softmax and sigmoid rise with the logit, and the logit has no ties of its own
				if score[i] != score[i] {
					sel[i] = score[i]
				}
				if bias != nil {
					sel[i] = score[i] + float64(scalar[F](bias, i))
					if o.Order == TopKSoftmax {
						sel[i] = float64(l[i]) + float64(scalar[F](bias, i))
					}
				}
			}
			p := buffer[F](w, 3, o.K)
			var chosen [MaxExperts]int32
			largest(chosen[:o.K], sel)
			probabilities(o, p, score, chosen[:o.K])
			if idx != nil {
				copy(ints(idx)[t*o.K:], chosen[:o.K])
			}
			if prob != nil {
				store(prob, t*o.K, p)
			}
		}
	})
	return func() error {
		loop.Run(logits.Rows(), rowGrain(8*e))
		return nil
	}
}

// scores computes what the order calls a score for every expert: softmax, the logit, sigmoid.
func scores[F float](o Order, score []float64, l []F) {
	switch o {
	case SoftmaxTopK:
		softmax(score, l)
	case TopKSoftmax:
		for i, x := range l {
			score[i] = float64(x)
		}
	default:
		for i, x := range l {
			score[i] = sigmoid(float64(x))
		}
	}
}

// softmax computes e^x / sum e^x in float64. It returns the logarithm of the sum of exponentials.
func softmax[F float](p []float64, x []F) (lse float64) {
	top := float64(x[0])
	for _, v := range x {
		top = max(top, float64(v))
	}
	var total float64
	for i, v := range x {
		p[i] = exp(float64(v) - top)
		total += p[i]
	}
	for i := range p {
		p[i] /= total
	}
	return top + log(total)
}

// largest fills chosen with the indices of the largest values, in falling order, the lower index first among
// equals; NaNs come last, in order.
func largest(chosen []int32, sel []float64) {
	n := 0
	for i, v := range sel {
		if n == len(chosen) && !above(v, sel[chosen[n-1]]) {
			continue
		}
		if n < len(chosen) {
			n++
		}
		j := n - 1
		for ; j > 0 && above(v, sel[chosen[j-1]]); j-- {
			chosen[j] = chosen[j-1]
		}
		chosen[j] = int32(i)
	}
}

// above says whether a ranks strictly before b.
func above(a, b float64) bool { return a > b || (b != b && a == a) }

// probabilities fills p from the scores of the chosen experts.
func probabilities[F float](o topK, p []F, score []float64, chosen []int32) {
	var buf [MaxExperts]float64
	raw := buf[:len(chosen)]
	o.raw(raw, score, chosen)
	f := o.factor(raw)
	for s := range p {
		p[s] = F(raw[s] * f)
	}
}

// raw gathers the scores of the chosen, with the softmax over them for topk_softmax.
func (o topK) raw(raw, score []float64, chosen []int32) {
	for s, e := range chosen {
		raw[s] = score[e]
	}
	if o.Order == TopKSoftmax {
		softmax(raw, raw)
	}
}

// factor is what normalization and scale multiply the raw scores by.
func (o topK) factor(raw []float64) float64 {
	if !o.Normalize {
		return o.Scale
	}
	var total float64
	for _, r := range raw {
		total += r
	}
	return o.Scale / (total + normEps)
}

func (o topKGrad) Host(c *graph.Call) func() error {
	if isWide(c.In[0].DType) {
		return topKGradHost[float64](o.Of, c)
	}
	return topKGradHost[float32](o.Of, c)
}

func topKGradHost[F float](o topK, c *graph.Call) func() error {
	logits, idx, dprob, out := c.In[0], c.In[1], c.In[2], c.Out[0]
	e := logits.Shape[1]
	loop := c.NewLoop(func(w *graph.Worker, lo, hi int) {
		score, grad := w.Float64(0, e), w.Float64(1, e)
		raw, draw := w.Float64(3, o.K), w.Float64(4, o.K)
		for t := lo; t < hi; t++ {
			scores(o.Order, score, load[F](w, 2, logits, t*e, e))
			chosen := ints(idx)[t*o.K : (t+1)*o.K]
			o.raw(raw, score, chosen)
			dp := load[F](w, 5, dprob, t*o.K, o.K)
			f, inner := o.factor(raw), 0.0
			if o.Normalize { // p = s * f, f = scale/(sum s + eps): df/ds = -f^2/scale
				for s := range raw {
					inner += float64(dp[s]) * raw[s]
				}
				inner *= f * f / o.Scale
			}
			for s := range raw {
				draw[s] = float64(dp[s])*f - inner
			}
			o.throughScores(grad, score, raw, draw, chosen)
			dl := target[F](w, 6, out, t*e, e)
			for i := range dl {
				dl[i] = F(grad[i])
			}
			store(out, t*e, dl)
		}
	})
	return func() error {
		loop.Run(logits.Rows(), rowGrain(8*e))
		return nil
	}
}

// throughScores turns gradients of the chosen raw scores into gradients of the logits.
func (o topK) throughScores(grad, score, raw, draw []float64, chosen []int32) {
	clear(grad)
	switch o.Order {
	case Sigmoid:
		for s, e := range chosen {
			grad[e] += draw[s] * raw[s] * (1 - raw[s])
		}
	case TopKSoftmax:
		var inner float64
		for s := range raw {
			inner += draw[s] * raw[s]
		}
		for s, e := range chosen {
			grad[e] += raw[s] * (draw[s] - inner)
		}
	default:
		var inner float64
		for s, e := range chosen {
			inner += draw[s] * raw[s]
			grad[e] += draw[s]
		}
		for i := range grad {
			grad[i] = score[i] * (grad[i] - inner)
		}
	}
}
