package nodes

import "github.com/moegraph/moegraph/graph"

// Router are the operands and options of a router (contracts, section 9): a linear layer and the choice of experts.
//
//	logits = X Weight^T (+ LogitBias), in float32 ; then TopK
//
// X is (T,H), Weight (E,H), both bf16 or f32; a float32 variable is cast to the format of X. Gradients flow
// from the probabilities and the logits to X, Weight and LogitBias.
type Router struct {
	X, Weight  *graph.Value
	LogitBias  *graph.Value // f32 (E,), optional: inside the logits
	SelectBias *graph.Value // f32 (E,), optional: for the choice alone
	K          int
	Order      Order
	Normalize  *bool   // default false, true for Sigmoid
	Scale      float64 // default 1
	Groups     int     // with TopKGroups: the choice is limited to some groups of experts, as TopK says; default 0: not
	TopKGroups int
}

// Apply appends the nodes and returns logits f32 (T,E), topk_idx int32 (T,k) and topk_prob f32 (T,k).
func (o Router) Apply() (logits, idx, prob *graph.Value) {
	logits = Linear(o.X, o.Weight, LinearConfig{Bias: o.LogitBias, DType: statType(o.X.DType())})
	idx, prob = TopK{Logits: logits, SelectBias: o.SelectBias, K: o.K, Order: o.Order, Normalize: o.Normalize, Scale: o.Scale,
		Groups: o.Groups, TopKGroups: o.TopKGroups}.Apply()
	return logits, idx, prob
}
