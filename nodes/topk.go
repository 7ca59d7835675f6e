package nodes

import (
	"fmt"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

func init() {
	opts := []string{"top_k", "order = softmax_topk", "normalize = 0, 1 for sigmoid", "scale = 1", "groups = 0", "top_k_groups = 0"}
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
//
// With Groups the choice is limited, as in DeepSeek-V3 (https://arxiv.org/abs/2412.19437, section 2.1.2): the
// experts form Groups groups of equally many neighbours; a group counts as much as the sum of its two largest
// selecting values (softmax, logit or sigmoid, plus SelectBias); outside the TopKGroups largest groups, the lower
// first among equals, every selecting value becomes 0. As in the model's code (DeepseekV3MoE of
// https://github.com/huggingface/transformers) that is 0 and not -Inf: an expert of another group comes before one
// of the chosen groups whose selecting value, by a negative bias, is below 0. Probabilities and gradients are
// those of the experts chosen, whatever chose them.
type TopK struct {
	Logits     *graph.Value // f32 (T,E)
	SelectBias *graph.Value // f32 (E,), optional
	K          int
	Order      Order
	Normalize  *bool   // default false, true for Sigmoid
	Scale      float64 // default 1
	Groups     int     // of at least two experts each, a divisor of E; default 0: no groups
	TopKGroups int     // with Groups: how many of them are chosen from; together they hold at least K experts
}

// Apply appends the node and returns topk_idx int32 (T,k) and topk_prob f32 (T,k).
func (o TopK) Apply() (idx, prob *graph.Value) {
	op := topK{K: o.K, Order: o.Order, Normalize: o.Order == Sigmoid, Scale: o.Scale, Groups: o.Groups, TopKGroups: o.TopKGroups}
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
	K                  int
	Order              Order
	Normalize          bool
	Scale              float64
	Groups, TopKGroups int
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
	if err := checkLimit("groups", "top_k_groups", l.Dim(1), o.K, o.Groups, o.TopKGroups); err != nil {
		return nil, err
	}
	if err := checkStat("bias", in[1], l.Dim(1), l.DType()); err != nil {
		return nil, err
	}
	shape := []int{l.Dim(0), o.K}
	return []graph.Spec{{DType: dtype.Int32, Shape: shape, Rows: l.Rows()}, {DType: l.DType(), Shape: shape, Rows: l.Rows()}}, nil
}

// checkLimit checks a choice that is limited to some groups of the experts. The names are those of the options.
func checkLimit(groupsName, chosenName string, experts, k, groups, chosen int) error {
	switch {
	case groups == 0 && chosen == 0:
		return nil
	case groups < 1 || experts%groups != 0:
		return graph.BadShape(groupsName, groups, "a divisor of the %d experts", experts)
	case chosen < 1 || chosen > groups:
		return graph.BadShape(chosenName, chosen, "from 1 to the %d groups", groups)
	case chosen < groups && experts/groups < 2:
		return graph.BadShape(groupsName, groups, "at most %d, so that each holds two experts", experts/2)
	case chosen*(experts/groups) < k:
		return graph.BadShape(chosenName, fmt.Sprintf("%d groups of %d experts", chosen, experts/groups), "at least the %d experts that a token chooses", k)
	}
	return nil
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
