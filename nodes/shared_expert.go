package nodes

import (
	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// SharedExpert are the operands and options of an expert that every token visits: a dense gated MLP.
//
//	C = X FC1^T ;  y = act(gate, up) FC2^T, gate and up from C
//
// X is (T,H). FC1 is (2Is,H), its rows always in blocks of 32 gate and 32 up, Is a multiple of 32; FC2 is
// (H,Is). Both have the format of X, or are float32 variables, which are cast once a step. C and the
// activation are in the format of X; sums are in float32. Saved for backward: C and the activation.
// Gradients flow to X, FC1 and FC2.
type SharedExpert struct {
	X, FC1, FC2 *graph.Value
	Activation  Activation
	DType       dtype.DType // of the result; default that of X
}

// Apply appends the nodes and returns y, (T,H).
func (o SharedExpert) Apply() *graph.Value {
	g := o.X.Graph()
	g.NameNext("shared_fc1")
	c := Linear(o.X, o.FC1)
	g.NameNext("shared_glu")
	d := GLU{C: c, Activation: o.Activation}.Apply()
	g.NameNext("shared_fc2")
	return Linear(d, o.FC2, LinearConfig{DType: o.DType})
}

// sharedExpert builds the shared expert of a layer.
func (cfg MoE) sharedExpert(x *graph.Value, vars *graph.Vars, dt dtype.DType) *graph.Value {
	return SharedExpert{X: x, Activation: cfg.Activation, DType: dt,
		FC1: cfg.weight(vars, "shared_fc1", x, 2*cfg.Shared, cfg.Hidden),
		FC2: cfg.weight(vars, "shared_fc2", x, cfg.Hidden, cfg.Shared)}.Apply()
}
