package nodes

import (
	"cmp"
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
	// Precision quantizes the operands of every grouped GEMM, forward and backward: MXFP8, MXFP8E5M2, MXFP4, MXFP4Vec16
	// or NVFP4; default none. Each operand is quantized along the axis that its product sums over. The weights are
	// quantized from the parameters once a step, inside the graph. Compute, bf16 by default, is then the format
	// between the products, and Alignment is 128 or 256. Router, combine and a shared expert stay in Compute.
	Precision BlockFormat
	// StochasticRounding rounds the gradients that Precision quantizes at random to one of their neighbours, so that
	// the mean is the gradient, by numbers of Draw.
	StochasticRounding bool
	// UnitFactors is for experiments: Precision with every factor 1, as Quantize has it.
	UnitFactors bool
	// FrozenExperts says that fc1 and fc2 are no parameters but state in this format: codes fc1 and fc2, factors fc1_sf and
	// fc2_sf. Their products decode them inside, exactly, without a decoded copy; A stays in Compute. They are not
	// trained; gradients flow to everything else. LoadMoE sets it for checkpoints with MXFP4 experts. Default none.
	FrozenExperts BlockFormat
	// Params is the format that the parameters are kept in: f32, bf16, f16 (f64 with f64 inputs). Their
	// gradients have it too. Default f32, f64 with f64 inputs.
	Params dtype.DType

	Order      Order   // of softmax and choice; default SoftmaxTopK
	Normalize  *bool   // the chosen probabilities sum to one; default false, true for Sigmoid
	Scale      float64 // of the probabilities; default 1
	LogitBias  bool    // parameter router_bias (E,), inside the logits
	SelectBias bool    // state select_bias (E,), for the choice alone; whoever trains sets it
	Groups     int     // with TopKGroups: the choice is limited to some groups of experts, as TopK says; default 0: not
	TopKGroups int
	Activation Activation // of the experts; default swiglu
	Bias       bool       // parameters fc1_bias (E,2I) and fc2_bias (E,H)
	Shared     int        // width Is of a shared expert, a multiple of 32; default 0: none
	Layout     Layout     // of fc1 and fc1_bias; default LayoutInterleaved32
	Alignment  int        // of the experts' rows; default 256
	Capacity   int        // rows for all experts; 0: enough for any routing
	Launch     Launch     // of the matrix products

	// RouterJitter multiplies what the router sees of x, and only that, by numbers drawn from [1-eps, 1+eps), eps in
	// [0,1); see Jitter. Dropout is the probability, in [0,1), with which an element of the layer's output, what
	// is added of a shared expert included, becomes zero, as a transformer block applies it before it adds its
	// input; see Dropout. Both are for training: a graph that evaluates leaves them 0.
	RouterJitter, Dropout float64
	// Draw is where the random numbers come from: uint64 (2,), by Random.Draw. Default: the layer has a generator
	// of its own, state random (2,), whose key is made of Seed and the state's name.
	Draw *graph.Value
	Seed uint64
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
	var aux Aux
	y, err := cfg.build("moe_layer", x, vars, func(in *graph.Value) (Routing, *graph.Value) {
		aux = cfg.route(in, vars)
		return aux.Routing, aux.TopKProb
	}, cfg.checkRouter)
	if err != nil {
		return failLayer(x.Graph().Fail(err))
	}
	return y, aux
}

// Experts builds a mixture-of-experts layer without a router on x, (T,H): dispatch, experts and combine for the
// caller's own routing.
//
//	y[t] = sum over slots s of topKProb[t,s] * expert topKIdx[t,s] of x[t] (+ SharedExpert(x)), in slot order
//
// topKIdx is int32 (T,k), -1 for a slot that is dropped; ids that name no expert are treated as -1 and counted in
// Invalid. topKProb is (T,k) in f32 (f64 with f64 inputs). Both have the rows of x. The parameters are those of
// MoELayer but for the router's. What cfg says of the router, RouterJitter among it, is not looked at; TopK may be
// 0 and is k otherwise. Gradients flow to x, topKProb and every parameter.
func Experts(x, topKIdx, topKProb *graph.Value, vars *graph.Vars, cfg MoE) (*graph.Value, Routing) {
	var routing Routing
	y, err := cfg.build("experts", x, vars, func(*graph.Value) (Routing, *graph.Value) {
		routing = Dispatch{TopKIdx: topKIdx, Experts: cfg.Experts, Alignment: cfg.Alignment, Capacity: cfg.Capacity}.Apply()
		return routing, topKProb
	}, func() error { return cfg.checkRouting(x, topKIdx, topKProb) })
	if err != nil {
		v := x.Graph().Fail(err)
		return v, failRouting(v)
	}
	return y, routing
}

// build builds a layer on x. route returns where the slots go and their probabilities; check checks what it needs.
func (cfg MoE) build(op string, x *graph.Value, vars *graph.Vars, route func(x *graph.Value) (Routing, *graph.Value), check func() error) (*graph.Value, error) {
	g := x.Graph()
	switch {
	case x.Err() != nil:
		return nil, x.Err()
	case g == nil:
		return nil, fmt.Errorf("%s: %w", op, graph.Misuse("x", x.Name(), "a value of a graph: pass a variable through Graph.Use"))
	case g.Err() != nil:
		return nil, g.Err()
	case vars == nil:
		return nil, fmt.Errorf("%s: %w", op, graph.Misuse("vars", "none", "the Vars that holds the layer's parameters"))
	}
	err := cfg.check(x)
	if err == nil {
		err = check()
	}
	if err != nil {
		return nil, fmt.Errorf("%s %q: %w", op, vars.Prefix(), err)
	}
	defer g.Scope(vars.Prefix())()
	if cfg.Precision != NoBlockFormat && x.DType() == dtype.Float32 {
		cfg.Compute = cmp.Or(cfg.Compute, dtype.BFloat16)
	}
	cfg.Compute = cmp.Or(cfg.Compute, x.DType())
	if cfg.Hidden == 0 {
		cfg.Hidden = x.Dim(1)
	}
	in := as(g, x, cfg.Compute)
	routing, prob := route(in)
	y := cfg.experts(in, routing.PermuteProb(prob), routing, vars, x.DType())
	if cfg.Shared != 0 {
		shared := cfg.sharedExpert(in, vars, x.DType())
		g.NameNext("add_shared")
		y = Add(y, shared)
	}
	if cfg.Dropout != 0 {
		y = Dropout(y, cfg.draw(g, vars), cfg.Dropout)
	}
	return y, g.Err()
}

// draw returns the random numbers of this replay.
func (cfg MoE) draw(g *graph.Graph, vars *graph.Vars) *graph.Value {
	if cfg.Draw != nil {
		return cfg.Draw
	}
	return NewRandom(vars, "random", cfg.Seed).Draw(g)
}

func failLayer(v *graph.Value) (*graph.Value, Aux) {
	return v, Aux{failRouting(v), v, v, v, v}
}

func failRouting(v *graph.Value) Routing { return Routing{v, v, v, v, v, v, v, v, 0} }

func (cfg MoE) check(x *graph.Value) error {
	switch {
	case !(cfg.Dropout >= 0 && cfg.Dropout < 1):
		return graph.BadShape("Dropout", cfg.Dropout, "from 0 to below 1")
	case x.Rank() != 2 || !plain(x.DType()):
		return graph.BadShape("x", x.Text(), "(T,H) in %s", floats)
	case cfg.Hidden != 0 && cfg.Hidden != x.Dim(1):
		return graph.BadShape("Hidden", cfg.Hidden, "%d, the width of x", x.Dim(1))
	case cfg.Experts < 1 || cfg.Experts > MaxExperts:
		return graph.BadShape("Experts", cfg.Experts, "from 1 to %d", MaxExperts)
	case cfg.Intermediate < gluBlock || cfg.Intermediate%gluBlock != 0:
		return graph.BadShape("Intermediate", cfg.Intermediate, "a multiple of %d of at least %d", gluBlock, gluBlock)
	case cfg.Shared < 0 || cfg.Shared%gluBlock != 0:
		return graph.BadShape("Shared", cfg.Shared, "0, or a multiple of %d", gluBlock)
	case cfg.Compute != dtype.Invalid && (!plain(cfg.Compute) || isWide(cfg.Compute) != isWide(x.DType())):
		return graph.BadDType("Compute", cfg.Compute, "bf16, f16 or f32 (f64 with an input in f64)")
	case cfg.Params != dtype.Invalid && (!plain(cfg.Params) || isWide(cfg.Params) && !isWide(x.DType())):
		return graph.BadDType("Params", cfg.Params, "bf16, f16 or f32 (f64 with an input in f64)")
	case cfg.FrozenExperts != NoBlockFormat && cfg.Precision != NoBlockFormat:
		return graph.Misuse("FrozenExperts", cfg.FrozenExperts, "none with Precision, which quantizes parameters")
	case cfg.FrozenExperts != NoBlockFormat && (!cfg.FrozenExperts.known() || cfg.FrozenExperts == NVFP4):
		return graph.Unsupported("FrozenExperts", cfg.FrozenExperts, "mxfp8, mxfp8_e5m2, mxfp4 or mxfp4_vec16")
	case cfg.Precision != NoBlockFormat:
		return cfg.checkPrecision(x)
	case cfg.StochasticRounding:
		return graph.Misuse("StochasticRounding", true, "false without Precision: what is not quantized is not rounded so")
	}
	return nil
}

// checkPrecision checks what block-scaled products ask for.
func (cfg MoE) checkPrecision(x *graph.Value) error {
	unit := 128 / max(1, cfg.Precision.Values().Bits())
	switch align := alignment(cfg.Alignment); {
	case !cfg.Precision.known():
		return graph.Unsupported("Precision", cfg.Precision, "mxfp8, mxfp8_e5m2, mxfp4, mxfp4_vec16 or nvfp4")
	case isWide(x.DType()):
		return graph.BadDType("x", x.DType(), "bf16, f16 or f32 with Precision %s", cfg.Precision)
	case align != 128 && align != 256:
		return graph.BadShape("Alignment", align, "128 or 256 with Precision %s", cfg.Precision)
	case x.Dim(1)%unit != 0 || cfg.Intermediate%unit != 0:
		return graph.BadShape("Hidden and Intermediate", fmt.Sprintf("%d and %d", x.Dim(1), cfg.Intermediate), "multiples of %d (16-byte rows of %s)", unit, cfg.Precision.Values())
	case cfg.Compute == dtype.Float32 && cfg.Precision.Values() != dtype.E2M1:
		return graph.BadDType("Compute", cfg.Compute, "bf16 or f16: products of %s operands have no f32 output", cfg.Precision)
	}
	return nil
}

// checkRouter checks what describes the router.
func (cfg MoE) checkRouter() error {
	switch {
	case cfg.TopK < 1 || cfg.TopK > cfg.Experts:
		return graph.BadShape("TopK", cfg.TopK, "from 1 to the %d experts", cfg.Experts)
	case !(cfg.RouterJitter >= 0 && cfg.RouterJitter < 1):
		return graph.BadShape("RouterJitter", cfg.RouterJitter, "from 0 to below 1")
	}
	return checkLimit("Groups", "TopKGroups", cfg.Experts, cfg.TopK, cfg.Groups, cfg.TopKGroups)
}

// checkRouting checks the routing that Experts is given.
func (cfg MoE) checkRouting(x, idx, prob *graph.Value) error {
	switch {
	case idx.Err() != nil:
		return idx.Err()
	case prob.Err() != nil:
		return prob.Err()
	case idx.DType() != dtype.Int32:
		return graph.BadDType("topk_idx", idx.DType(), "int32")
	case idx.Rank() != 2 || idx.Dim(1) < 1:
		return graph.BadShape("topk_idx", idx.Text(), "(T,k)")
	case cfg.TopK != 0 && cfg.TopK != idx.Dim(1):
		return graph.BadShape("TopK", cfg.TopK, "0, or %d as in topk_idx", idx.Dim(1))
	case prob.DType() != statType(x.DType()):
		return graph.BadDType("topk_prob", prob.DType(), "%s beside x in %s", statType(x.DType()), x.DType())
	}
	if err := graph.SameRows("topk_idx", x, idx); err != nil {
		return err
	}
	return sameShape("topk_prob", idx, prob)
}

// route builds router and dispatch.
func (cfg MoE) route(x *graph.Value, vars *graph.Vars) (aux Aux) {
	r := Router{X: x, Weight: cfg.weight(vars, "router", x, cfg.Experts, x.Dim(1)),
		K: cfg.TopK, Order: cfg.Order, Normalize: cfg.Normalize, Scale: cfg.Scale, Groups: cfg.Groups, TopKGroups: cfg.TopKGroups}
	if cfg.LogitBias {
		r.LogitBias = cfg.bias(vars, "router_bias", x, cfg.Experts)
	}
	g := x.Graph()
	if cfg.SelectBias {
		// Statistics are float32 beside parameters of any format but float64.
		dt := statType(cfg.paramType(x))
		r.SelectBias = as(g, vars.State("select_bias", dt, graph.Const(0), cfg.Experts), statType(x.DType()))
	}
	if cfg.RouterJitter != 0 {
		r.X = Jitter(x, cfg.draw(g, vars), cfg.RouterJitter)
	}
	g.NameNext("router")
	var idx *graph.Value
	aux.Logits, idx, aux.TopKProb = r.Apply()
	aux.Routing = Dispatch{TopKIdx: idx, Experts: cfg.Experts, Alignment: cfg.Alignment, Capacity: cfg.Capacity}.Apply()
	aux.Balance, aux.ZLoss = RouterLosses{Logits: aux.Logits, Counts: aux.Assigned, K: cfg.TopK, Order: cfg.Order}.Apply()
	return aux
}

// experts builds permute, FC1 with its activation, FC2 and combine.
func (cfg MoE) experts(x, prob *graph.Value, r Routing, vars *graph.Vars, dt dtype.DType) *graph.Value {
	if cfg.Precision != NoBlockFormat {
		return cfg.scaledExperts(x, prob, r, vars, dt)
	}
	g := x.Graph()
	e, h, i := cfg.Experts, cfg.Hidden, cfg.Intermediate
	fc1 := GroupedGEMMGLU{
		A: r.Permute(x), B: cfg.expertWeights(vars, "fc1", x, e, 2*i, h),
		PaddedOffsets: r.PaddedOffsets, Counts: r.Counts, Prob: prob,
		Activation: cfg.Activation, Layout: cfg.Layout, Alignment: r.Alignment, Launch: cfg.Launch,
	}
	fc2 := GroupedGEMM{
		B:             cfg.expertWeights(vars, "fc2", x, e, h, i),
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

// expertWeights returns the weights (E,N,K) of all experts.
func (cfg MoE) expertWeights(vars *graph.Vars, name string, x *graph.Value, e, n, k int) Weights {
	f := cfg.FrozenExperts
	if f == NoBlockFormat {
		return Dense(cfg.weight(vars, name, x, e, n, k))
	}
	g := x.Graph()
	layout := dtype.FactorLayout{Rows: n, Cols: dtype.FactorCols(k, f.Vec()), Batches: e}
	return Weights{WeightOnly: f, Dense: g.Use(vars.State(name, f.Values(), graph.Const(0), e, n, k)),
		SF: g.Use(vars.State(name+"_sf", f.Factor(), graph.Const(0), layout.Bytes()))}
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
