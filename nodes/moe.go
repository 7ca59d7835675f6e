package nodes

import (
	"fmt"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// MoE describes a mixture-of-experts layer. Experts, TopK and Intermediate must be given.
type MoE struct {
	Experts      int // E
	TopK         int // k, at most E
	Hidden       int // H; 0: the width of the layer's input, which it must equal
	Intermediate int // I, a multiple of 32

	// Compute is the format of the matrix products and of the activations between them: bf16, f16, f32
	// (f64 with f64 inputs). Default: that of the layer's input. Weights in another format are cast once a
	// step.
	Compute dtype.DType
	// Params is the format that the parameters are kept in: f32, bf16, f16 (f64 with f64 inputs). Their
	// gradients have it too. Default f32, f64 with f64 inputs.
	Params dtype.DType

	Order      Order      // of softmax and choice; default SoftmaxTopK
	Normalize  *bool      // the chosen probabilities sum to one; default false, true for Sigmoid
	Scale      float64    // of the probabilities; default 1
	LogitBias  bool       // parameter router_bias (E,), inside the logits
	SelectBias bool       // state select_bias (E,), for the choice alone; whoever trains sets it
	Activation Activation // of the experts; default swiglu
	Bias       bool       // parameters fc1_bias (E,2I) and fc2_bias (E,H)
	Shared     int        // width Is of a shared expert, a multiple of 32; default 0: none
	Layout     Layout     // of fc1 and fc1_bias; default LayoutInterleaved32
	Alignment  int        // of the experts' rows; default 256
	Capacity   int        // rows for all experts; 0: enough for any routing
	Launch     Launch     // of the matrix products
}

// Aux is what a MoELayer's routing gives beside its output. What nobody uses is not computed.
type Aux struct {
	Routing
	Logits   *graph.Value // f32 (T,E)
	TopKProb *graph.Value // f32 (T,k)
	Balance  *graph.Value // f32 (1,): the load-balancing loss
	ZLoss    *graph.Value // f32 (1,): the router z-loss
}

// MoELayer builds a whole mixture-of-experts layer on x, (T,H), with parameters of vars:
//
//	router (E,H)   logits = x router^T, k experts and probabilities a token
//	fc1 (E,2I,H)   h = prob * act(fc1 x) on the rows of each expert
//	fc2 (E,H,I)    y[t] = sum over the token's slots of fc2 h, in slot order
//	shared_fc1 (2Is,H), shared_fc2 (H,Is), with Shared: what SharedExpert(x) gives is added to y
//
// The result has the shape and format of x. Its nodes are named below the prefix of vars. Gradients flow to x
// and to every parameter.
func MoELayer(x *graph.Value, vars *graph.Vars, cfg MoE) (*graph.Value, Aux) {
	g := x.Graph()
	if g == nil || x.Err() != nil || g.Err() != nil {
		return failLayer(g.Fail(x.Err()))
	}
	if err := cfg.check(x); err != nil {
		return failLayer(g.Fail(fmt.Errorf("moe_layer %q: %w", vars.Prefix(), err)))
	}
	defer g.Scope(vars.Prefix())()
	if cfg.Compute == dtype.Invalid {
		cfg.Compute = x.DType()
	}
	if cfg.Hidden == 0 {
		cfg.Hidden = x.Dim(1)
	}
	in := as(g, x, cfg.Compute)
	aux, prob := cfg.route(in, vars)
	y := cfg.experts(in, prob, aux.Routing, vars, x.DType())
	if cfg.Shared != 0 {
		shared := cfg.sharedExpert(in, vars, x.DType())
		g.NameNext("add_shared")
		y = Add(y, shared)
	}
	return y, aux
}

func failLayer(v *graph.Value) (*graph.Value, Aux) {
	r := Routing{v, v, v, v, v, v, v, v, 0}
	return v, Aux{r, v, v, v, v}
}

func (cfg MoE) check(x *graph.Value) error {
	switch {
	case x.Rank() != 2 || !plain(x.DType()):
		return graph.BadShape("x", x.Text(), "(T,H) in %s", floats)
	case cfg.Hidden != 0 && cfg.Hidden != x.Dim(1):
		return graph.BadShape("Hidden", cfg.Hidden, "%d, the width of x", x.Dim(1))
	case cfg.Experts < 1 || cfg.Experts > MaxExperts:
		return graph.BadShape("Experts", cfg.Experts, "from 1 to %d", MaxExperts)
	case cfg.TopK < 1 || cfg.TopK > cfg.Experts:
		return graph.BadShape("TopK", cfg.TopK, "from 1 to the %d experts", cfg.Experts)
	case cfg.Intermediate < gluBlock || cfg.Intermediate%gluBlock != 0:
		return graph.BadShape("Intermediate", cfg.Intermediate, "a multiple of %d of at least %d", gluBlock, gluBlock)
	case cfg.Shared < 0 || cfg.Shared%gluBlock != 0:
		return graph.BadShape("Shared", cfg.Shared, "0, or a multiple of %d", gluBlock)
	case cfg.Compute != dtype.Invalid && (!plain(cfg.Compute) || isWide(cfg.Compute) != isWide(x.DType())):
		return graph.BadDType("Compute", cfg.Compute, "bf16, f16 or f32 (f64 with an input in f64)")
	case cfg.Params != dtype.Invalid && (!plain(cfg.Params) || isWide(cfg.Params) && !isWide(x.DType())):
		return graph.BadDType("Params", cfg.Params, "bf16, f16 or f32 (f64 with an input in f64)")
	}
	return nil
}

// route builds router and dispatch. It returns the probabilities in the order of rows.
func (cfg MoE) route(x *graph.Value, vars *graph.Vars) (aux Aux, prob *graph.Value) {
	r := Router{X: x, Weight: cfg.weight(vars, "router", x, cfg.Experts, cfg.Hidden),
		K: cfg.TopK, Order: cfg.Order, Normalize: cfg.Normalize, Scale: cfg.Scale}
	if cfg.LogitBias {
		r.LogitBias = cfg.bias(vars, "router_bias", x, cfg.Experts)
	}
	g := x.Graph()
	if cfg.SelectBias {
		// Statistics are float32 beside parameters of any format but float64.
		dt := statType(cfg.paramType(x))
		r.SelectBias = as(g, vars.State("select_bias", dt, graph.Const(0), cfg.Experts), statType(x.DType()))
	}
	g.NameNext("router")
	var idx *graph.Value
	aux.Logits, idx, aux.TopKProb = r.Apply()
	aux.Routing = Dispatch{TopKIdx: idx, Experts: cfg.Experts, Alignment: cfg.Alignment, Capacity: cfg.Capacity}.Apply()
	aux.Balance, aux.ZLoss = RouterLosses{Logits: aux.Logits, Counts: aux.Assigned, K: cfg.TopK, Order: cfg.Order}.Apply()
	return aux, aux.PermuteProb(aux.TopKProb)
}

// experts builds permute, FC1 with its activation, FC2 and combine.
func (cfg MoE) experts(x, prob *graph.Value, r Routing, vars *graph.Vars, dt dtype.DType) *graph.Value {
	g := x.Graph()
	e, h, i := cfg.Experts, cfg.Hidden, cfg.Intermediate
	fc1 := GroupedGEMMGLU{
		A: r.Permute(x), B: Dense(cfg.weight(vars, "fc1", x, e, 2*i, h)),
		PaddedOffsets: r.PaddedOffsets, Counts: r.Counts, Prob: prob,
		Activation: cfg.Activation, Layout: cfg.Layout, Alignment: r.Alignment, Launch: cfg.Launch,
	}
	fc2 := GroupedGEMM{
		B:             Dense(cfg.weight(vars, "fc2", x, e, h, i)),
		PaddedOffsets: r.PaddedOffsets, Counts: r.Counts, Alignment: r.Alignment, Launch: cfg.Launch,
	}
	if cfg.Bias {
		fc1.Bias = cfg.bias(vars, "fc1_bias", x, e, 2*i)
		fc2.Bias, fc2.Prob = cfg.bias(vars, "fc2_bias", x, e, h), prob
	}
	g.NameNext("fc1")
	fc2.A, _ = fc1.Apply()
	g.NameNext("fc2")
	d, _ := fc2.Apply()
	return r.Combine(d, nil, dt)
}

// paramType is the format of the parameters of a layer that computes on x.
func (cfg MoE) paramType(x *graph.Value) dtype.DType {
	if cfg.Params != dtype.Invalid {
		return cfg.Params
	}
	return statType(x.DType())
}

// weight returns a matrix of the layer in the format of x, which it is multiplied with.
func (cfg MoE) weight(vars *graph.Vars, name string, x *graph.Value, shape ...int) *graph.Value {
	return as(x.Graph(), vars.ParamOf(name, cfg.paramType(x), graph.Init{}, shape...), x.DType())
}

// bias returns a bias of the layer, zero at first. What adds it takes any float format, but float64 with float64
// alone.
func (cfg MoE) bias(vars *graph.Vars, name string, x *graph.Value, shape ...int) *graph.Value {
	b := vars.ParamOf(name, cfg.paramType(x), graph.Const(0), shape...)
	if isWide(x.DType()) {
		return as(x.Graph(), b, x.DType())
	}
	return b
}
