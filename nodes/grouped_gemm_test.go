package nodes

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// wide returns a float64 parameter with random contents.
func wide(vars *graph.Vars, name string, shape ...int) *graph.Value {
	return vars.ParamOf(name, dtype.Float64, graph.Normal(1), shape...)
}

// groupShape is the row layout that the gradient tests share: 4 experts, one empty, one that fills its rows, spare
// capacity at the end; counts leave padding.
var groupShape = struct {
	m, align        int
	offsets, counts []int32
}{24, 4, []int32{8, 8, 12, 20}, []int32{5, 0, 4, 6}}

func groupInputs() map[string]any {
	return map[string]any{"offsets": groupShape.offsets, "counts": groupShape.counts}
}

// gemmCase is a combination of the options of a grouped GEMM.
type gemmCase struct {
	alpha, prob, bias, counts, nMajor, discrete, useC bool
}

func gemmCases() []gemmCase {
	cases := []gemmCase{{}, {alpha: true, prob: true, bias: true, counts: true, nMajor: true, discrete: true, useC: true}}
	for i := range 7 {
		c := gemmCase{}
		*[]*bool{&c.alpha, &c.prob, &c.bias, &c.counts, &c.nMajor, &c.discrete, &c.useC}[i] = true
		cases = append(cases, c)
	}
	return append(cases, gemmCase{prob: true, bias: true}, gemmCase{prob: true, useC: true, counts: true}, gemmCase{bias: true, useC: true})
}

func (c gemmCase) String() string {
	type fields gemmCase // without this method
	return strings.ReplaceAll(strings.Trim(fmt.Sprintf("%+v", fields(c)), "{}"), ":", "=")
}

// operands makes the operands of a grouped GEMM as parameters.
func (c gemmCase) operands(g *graph.Graph, vars *graph.Vars, n, k int) GroupedGEMM {
	e := len(groupShape.offsets)
	shape := []int{n, k}
	if c.nMajor {
		shape = []int{k, n}
	}
	op := GroupedGEMM{A: g.Use(wide(vars, "a", groupShape.m, k)), PaddedOffsets: g.Input("offsets", dtype.Int32, e), Alignment: groupShape.align}
	if c.discrete {
		for i := range e {
			op.B.Discrete = append(op.B.Discrete, wide(vars, fmt.Sprintf("b%d", i), shape...))
		}
	} else {
		op.B.Dense = wide(vars, "b", append([]int{e}, shape...)...)
	}
	op.B.NMajor = c.nMajor
	if c.alpha { // no gradient: an input
		op.Alpha = g.Input("alpha", dtype.Float64, e)
	}
	if c.prob {
		op.Prob = wide(vars, "prob", groupShape.m)
	}
	if c.bias {
		op.Bias = wide(vars, "bias", e, n)
	}
	if c.counts {
		op.Counts = g.Input("counts", dtype.Int32, e)
	}
	return op
}

func gemmInputs() map[string]any {
	in := groupInputs()
	in["alpha"] = []float64{0.5, -1, 2, 1.5}
	return in
}

func TestGroupedGEMM_Grad(t *testing.T) {
	for _, c := range gemmCases() {
		t.Run(c.String(), func(t *testing.T) {
			vars := graph.NewVars(1)
			checkGrads(t, vars, func(g *graph.Graph) []*graph.Value {
				d, cc := c.operands(g, vars, 6, 10).Apply()
				if c.useC {
					return []*graph.Value{d, cc}
				}
				return []*graph.Value{d}
			}, gemmInputs())
		})
	}
}

func TestGroupedGEMMGLU_Grad(t *testing.T) {
	half, low := 1.25, -1.25
	for _, c := range []gemmCase{{bias: true, counts: true}, {prob: true, useC: true}, {alpha: true, prob: true, bias: true, counts: true, nMajor: true, discrete: true, useC: true}} {
		for _, layout := range []Layout{LayoutInterleaved32, LayoutConcat, LayoutPairs} {
			for _, act := range []Activation{{}, {Func: "geglu", ClampMax: &half, ClampMin: &low, LinearOffset: &half}} {
				t.Run(fmt.Sprint(c, layout, act.Func), func(t *testing.T) {
					vars := graph.NewVars(2)
					checkGrads(t, vars, func(g *graph.Graph) []*graph.Value {
						p := c.operands(g, vars, 64, 4)
						d, cc := GroupedGEMMGLU{A: p.A, B: p.B, PaddedOffsets: p.PaddedOffsets, Counts: p.Counts, Alpha: p.Alpha,
							Prob: p.Prob, Bias: p.Bias, Alignment: p.Alignment, Activation: act, Layout: layout}.Apply()
						if c.useC {
							return []*graph.Value{d, cc}
						}
						return []*graph.Value{d}
					}, gemmInputs())
				})
			}
		}
	}
}

// TestGLU_Grad checks the node of its own, with and without groups, and behind a GEMM, where the forward and the
// backward are fused.
func TestGLU_Grad(t *testing.T) {
	for _, groups := range []bool{false, true} {
		vars := graph.NewVars(3)
		checkGrads(t, vars, func(g *graph.Graph) []*graph.Value {
			o := GLU{C: g.Use(wide(vars, "c", groupShape.m, 128)), Prob: wide(vars, "prob", groupShape.m), Alignment: groupShape.align}
			if groups {
				o.PaddedOffsets, o.Counts = g.Input("offsets", dtype.Int32, 4), g.Input("counts", dtype.Int32, 4)
			}
			return []*graph.Value{o.Apply()}
		}, groupInputs())
	}
	vars := graph.NewVars(4)
	checkGrads(t, vars, func(g *graph.Graph) []*graph.Value {
		p := gemmCase{counts: true, bias: true}.operands(g, vars, 64, 4)
		c, _ := p.Apply()
		d := GLU{C: c, PaddedOffsets: p.PaddedOffsets, Counts: p.Counts, Alignment: p.Alignment}.Apply()
		y, _ := GroupedGEMM{A: d, B: Dense(wide(vars, "fc2", 4, 6, 32)), PaddedOffsets: p.PaddedOffsets, Counts: p.Counts, Alignment: p.Alignment}.Apply()
		return []*graph.Value{y}
	}, gemmInputs())
}

func TestTopK_Grad(t *testing.T) {
	yes, no := true, false
	for _, order := range []Order{SoftmaxTopK, TopKSoftmax, Sigmoid} {
		for _, norm := range []*bool{nil, &yes, &no} {
			for _, bias := range []bool{false, true} {
				vars := graph.NewVars(5)
				checkGrads(t, vars, func(g *graph.Graph) []*graph.Value {
					o := TopK{Logits: g.Use(wide(vars, "logits", 9, 7)), K: 3, Order: order, Normalize: norm, Scale: 2.5}
					if bias {
						o.SelectBias = g.Input("select", dtype.Float64, 7)
					}
					_, prob := o.Apply()
					return []*graph.Value{prob}
				}, map[string]any{"select": []float64{1, -1, 0.5, 0, 2, -2, 0}})
			}
		}
	}
}

func TestRouterLosses_Grad(t *testing.T) {
	for _, order := range []Order{SoftmaxTopK, TopKSoftmax, Sigmoid} {
		vars := graph.NewVars(6)
		checkGrads(t, vars, func(g *graph.Graph) []*graph.Value {
			b, z := RouterLosses{Logits: g.Use(wide(vars, "logits", 130, 5)), Counts: g.Input("assigned", dtype.Int32, 5), K: 2, Order: order}.Apply()
			return []*graph.Value{b, z}
		}, map[string]any{"assigned": []int32{100, 60, 0, 70, 30}})
	}
}

// TestRouting_Grad checks permute, permute_prob and combine over ids with dropped slots and a capacity that is too
// small for some.
func TestRouting_Grad(t *testing.T) {
	ids := []int32{0, 1, 2, 0, -1, 1, 3, 3, 1, 0, 2, 9}
	for _, capacity := range []int{0, 8} {
		vars := graph.NewVars(7)
		checkGrads(t, vars, func(g *graph.Graph) []*graph.Value {
			r := Dispatch{TopKIdx: g.Input("ids", dtype.Int32, 6, 2), Experts: 4, Alignment: 2, Capacity: capacity}.Apply()
			x, p := g.Use(wide(vars, "x", 6, 4)), g.Use(wide(vars, "p", 6, 2))
			a := r.Permute(x)
			prob := r.PermuteProb(p)
			y := r.Combine(a, p, dtype.Float64)
			return []*graph.Value{a, prob, y, r.permute(x, p), graph.Apply(slotGather{}, prob, r.SlotMap, r.RowMap, r.PaddedOffsets)[0]}
		}, map[string]any{"ids": ids})
	}
}

// TestGroupedGEMM_Refuses goes through what shapes, formats and options forbid.
func TestGroupedGEMM_Refuses(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(g *graph.Graph, o *GroupedGEMM)
		kind   error
		want   string
	}{
		{"K of a and b", func(g *graph.Graph, o *GroupedGEMM) { o.B.Dense = g.Input("w", dtype.BFloat16, 4, 16, 24) }, graph.ErrShape, "K: got 24"},
		{"formats", func(g *graph.Graph, o *GroupedGEMM) { o.B.Dense = g.Input("w", dtype.Float16, 4, 16, 16) }, graph.ErrDType, "b: got f16"},
		{"integers", func(g *graph.Graph, o *GroupedGEMM) { o.A = g.Input("ia", dtype.Int32, 32, 16) }, graph.ErrDType, "a:"},
		{"row of K", func(g *graph.Graph, o *GroupedGEMM) {
			o.A, o.B.Dense = g.Input("oa", dtype.BFloat16, 32, 12), g.Input("ob", dtype.BFloat16, 4, 16, 12)
		}, graph.ErrShape, "such as 16"},
		{"row of N", func(g *graph.Graph, o *GroupedGEMM) { o.B.Dense = g.Input("w", dtype.BFloat16, 4, 12, 16) }, graph.ErrShape, "N: got 12"},
		{"M off the alignment", func(g *graph.Graph, o *GroupedGEMM) { o.A = g.Input("oa", dtype.BFloat16, 30, 16) }, graph.ErrShape, "M: got 30"},
		{"alignment", func(g *graph.Graph, o *GroupedGEMM) { o.Alignment = 3 }, graph.ErrShape, "alignment: got 3"},
		{"offsets of 64 bits", func(g *graph.Graph, o *GroupedGEMM) { o.PaddedOffsets = g.Input("o", dtype.Int64, 4) }, graph.ErrDType, "padded_offsets"},
		{"experts", func(g *graph.Graph, o *GroupedGEMM) { o.PaddedOffsets = g.Input("o", dtype.Int32, 3) }, graph.ErrShape, "b:"},
		{"counts", func(g *graph.Graph, o *GroupedGEMM) { o.Counts = g.Input("c", dtype.Int32, 5) }, graph.ErrShape, "counts"},
		{"alpha", func(g *graph.Graph, o *GroupedGEMM) { o.Alpha = g.Input("al", dtype.Float32, 3) }, graph.ErrShape, "alpha"},
		{"alpha in bf16", func(g *graph.Graph, o *GroupedGEMM) { o.Alpha = g.Input("al", dtype.BFloat16, 4) }, graph.ErrDType, "alpha"},
		{"prob", func(g *graph.Graph, o *GroupedGEMM) { o.Prob = g.Input("p", dtype.Float32, 31) }, graph.ErrShape, "prob"},
		{"bias", func(g *graph.Graph, o *GroupedGEMM) { o.Bias = g.Input("bi", dtype.Float32, 4, 15) }, graph.ErrShape, "bias"},
		{"no weights", func(g *graph.Graph, o *GroupedGEMM) { o.B = Weights{} }, graph.ErrUsage, "b:"},
		{"two weights", func(g *graph.Graph, o *GroupedGEMM) { o.B.Discrete = []*graph.Value{o.B.Dense} }, graph.ErrUsage, "b:"},
		{"an expert is missing", func(g *graph.Graph, o *GroupedGEMM) {
			o.B = Weights{Discrete: []*graph.Value{g.Input("w0", dtype.BFloat16, 16, 16)}}
		}, graph.ErrUsage, "4 experts"},
		{"output in 8 bits", func(g *graph.Graph, o *GroupedGEMM) { o.DType = dtype.E4M3 }, graph.ErrDType, "d_dtype"},
		{"output in f64", func(g *graph.Graph, o *GroupedGEMM) { o.CType = dtype.Float64 }, graph.ErrDType, "c_dtype"},
		{"tile", func(g *graph.Graph, o *GroupedGEMM) { o.Launch.Tile = [2]int{96, 96} }, graph.ErrUnsupported, "tile: got 96x96"},
		{"cluster", func(g *graph.Graph, o *GroupedGEMM) { o.Launch.Cluster = [2]int{3, 1} }, graph.ErrUnsupported, "cluster"},
		{"scheduler", func(g *graph.Graph, o *GroupedGEMM) { o.Launch.Scheduler = "lucky" }, graph.ErrUnsupported, "scheduler"},
		{"family", func(g *graph.Graph, o *GroupedGEMM) { o.Launch.Family = "volta" }, graph.ErrUnsupported, "family"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := graph.New("g")
			defer g.Scope("layer0")()
			o := GroupedGEMM{A: g.Input("a", dtype.BFloat16, 32, 16), B: Dense(g.Input("b", dtype.BFloat16, 4, 16, 16)),
				PaddedOffsets: g.Input("offsets", dtype.Int32, 4), Alignment: 8}
			tc.change(g, &o)
			g.NameNext("fc2")
			o.Apply()
			err := g.Err()
			if !errors.Is(err, tc.kind) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want a %v error that says %q", err, tc.kind, tc.want)
			}
		})
	}
}
