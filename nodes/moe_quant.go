package nodes

import (
	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// The recipe of MoE.Precision. What is quantized, and along which axis:
//
//	product      sums over  first operand            second operand
//	fc1          H          rows of x, along H       fc1, along H
//	fc2          I          rows of h, along I       fc2, along I
//	dgrad of fc2 H          rows of dy, along H      fc2, along H (transposed)
//	dgrad of fc1 2I         rows of dC, along 2I     fc1, along 2I (transposed)
//	wgrad of fc2 tokens     dy, along tokens         h, along tokens
//	wgrad of fc1 tokens     dC, along tokens         x, along tokens
//
// Each tensor is quantized in one pass along both axes, from its 16-bit form or, of weights, from the parameters. In
// NVFP4 each expert's share of a tensor has a global scale of its own, from its largest element.

// quantizeRows quantizes the rows of the experts along both axes.
func (cfg MoE) quantizeRows(name string, x *graph.Value, r Routing) Quantized {
	nv := cfg.Precision == NVFP4
	x.Graph().NameNext(name)
	return Quantize{X: x, PaddedOffsets: r.PaddedOffsets, Counts: r.Counts, Format: cfg.Precision, Axis: AlongBoth, Alignment: r.Alignment,
		DiscreteColSF: true, TransposeCol: cfg.Precision.Values() == dtype.E2M1, AutoNorm: nv, PerExpert: nv, UnitFactors: cfg.UnitFactors}.Apply()
}

type quantizedKey struct {
	w       *graph.Value
	version int
	op      quantize
}

// quantizeWeight quantizes a stack of weights along both axes, once for all uses until the variable is updated, and
// so anew at each replay.
func (cfg MoE) quantizeWeight(g *graph.Graph, name string, w *graph.Value) Quantized {
	w = g.Use(w)
	nv := cfg.Precision == NVFP4
	op := quantize{Format: cfg.Precision, Axis: AlongBoth, Align: DefaultAlignment, Transpose: true, Auto: nv, PerExpert: nv, Unit: cfg.UnitFactors}
	row := g.Memo(quantizedKey{w, g.Version(w), op}, func() *graph.Value {
		return graph.ApplyAs(name, op, w)[quantRow]
	})
	n := row.Producer()
	if n == nil {
		return Quantized{Row: row, RowSF: row}
	}
	return Quantized{n.Out(quantRow), n.Out(quantRowSF), n.Out(quantCol), n.Out(quantColSF), n.Out(quantScale)}
}

// scaledExperts is experts with quantized operands.
func (cfg MoE) scaledExperts(x, prob *graph.Value, r Routing, vars *graph.Vars, dt dtype.DType) *graph.Value {
	g := x.Graph()
	e, h, i := cfg.Experts, cfg.Hidden, cfg.Intermediate
	var draw *graph.Value
	if cfg.StochasticRounding {
		draw = cfg.draw(g, vars)
	}
	scales := func(a, b Quantized) Scales {
		return Scales{SFA: a.RowSF, SFVec: cfg.Precision.Vec(), GlobalScaleA: a.GlobalScale, GlobalScaleB: b.GlobalScale, GradDraw: draw}
	}
	param := func(name string, shape ...int) Quantized {
		return cfg.quantizeWeight(g, "quantize_"+name, vars.ParamOf(name, cfg.paramType(x), graph.Init{}, shape...))
	}
	w1, w2 := param("fc1", e, 2*i, h), param("fc2", e, h, i)
	a := cfg.quantizeRows("quantize_x", r.Permute(x), r)
	fc1 := GroupedGEMMGLU{
		A: a.Row, B: Weights{Dense: w1.Row, SF: w1.RowSF}, Scales: scales(a, w1),
		PaddedOffsets: r.PaddedOffsets, Counts: r.Counts, Prob: prob, DType: cfg.Compute, CType: cfg.Compute,
		Activation: cfg.Activation, Layout: cfg.Layout, Alignment: r.Alignment, Launch: cfg.Launch,
	}
	if cfg.Bias {
		fc1.Bias = cfg.bias(vars, "fc1_bias", x, e, 2*i)
	}
	g.NameNext("fc1")
	act := fc1.ApplyScaled().D
	b := cfg.quantizeRows("quantize_h", act, r)
	fc2 := GroupedGEMM{
		A: b.Row, B: Weights{Dense: w2.Row, SF: w2.RowSF}, Scales: scales(b, w2),
		PaddedOffsets: r.PaddedOffsets, Counts: r.Counts, DType: cfg.Compute, Alignment: r.Alignment, Launch: cfg.Launch,
	}
	if cfg.Bias {
		fc2.Bias, fc2.Prob = cfg.bias(vars, "fc2_bias", x, e, h), prob
	}
	g.NameNext("fc2")
	return r.Combine(fc2.ApplyScaled().D, nil, dt)
}
