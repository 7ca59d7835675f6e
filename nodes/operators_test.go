package nodes

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// gradientTests names, for each output of each differentiable operator, the test that compares its gradients with
// differences in float64; "none: ..." says why an output has no gradient.
var gradientTests = map[string]map[string]string{
	"cast":             {"y": "TestElementwise_CastGrad"},
	"combine":          {"y": "TestRouting_Grad"},
	"concat":           {"y": "TestConcat_Grad"},
	"cross_entropy":    {"loss": "TestCrossEntropy_Grad", "stats": "none: it is there for the backward node, and its gradient is refused"},
	"dropout":          {"y": "TestRandom_Grad"},
	"embedding":        {"y": "TestEmbedding_Grad"},
	"glu":              {"d": "TestGLU_Grad"},
	"grouped_gemm":     {"d": "TestGroupedGEMM_Grad", "c": "TestGroupedGEMM_GradOfC"},
	"grouped_gemm_glu": {"d": "TestGroupedGEMMGLU_Grad", "c": "TestGroupedGEMM_GradOfC"},
	"grouped_gemm_quant": {"d": "none: straight through to what Quantize rounded; TestScaled_Gradients", "d_col": throughCodes, "sfd_row": throughCodes,
		"sfd_col": throughCodes, "amax": "none: it is a statistic, and its gradient is refused"},
	"grouped_gemm_glu_quant": {"d": "none: straight through to what Quantize rounded; TestScaled_Gradients", "d_col": throughCodes, "sfd_row": throughCodes,
		"sfd_col": throughCodes, "amax": "none: it is a statistic, and its gradient is refused", "c": "none: straight through, as d; TestScaled_Gradients"},
	"jitter":       {"y": "TestRandom_Grad"},
	"matmul":       {"y": "TestLinear_Grad"},
	"pad_cols":     {"y": "TestConcat_Grad"},
	"permute":      {"a": "TestRouting_Grad"},
	"permute_prob": {"prob": "TestRouting_Grad"},
	"quantize": {"x_row": "none: straight through, since rounding has no derivative; TestQuantize_StraightThrough", "sfx_row": throughCodes,
		"x_col": throughCodes, "sfx_col": throughCodes, "global_scale": throughCodes},
	"rmsnorm":       {"y": "TestRMSNorm_Grad", "rstd": "none: it is there for the backward node, and its gradient is refused"},
	"router_losses": {"load_balance": "TestRouterLosses_GradAlone", "z_loss": "TestRouterLosses_GradAlone"},
	"scale":         {"y": "TestElementwise_Grad"},
	"slice_cols":    {"y": "TestConcat_Grad"},
	"slot_gather":   {"y": "TestRouting_Grad"},
	"sum":           {"y": "TestElementwise_Grad"},
	"topk":          {"topk_idx": "none: it holds integers", "topk_prob": "TestTopK_Grad"},
}

// throughCodes is why parts of a block-scaled matrix have no gradient of their own.
const throughCodes = "none: the gradient flows through the row codes, which stand for the whole number"

// TestOperators walks the table of operators: each has host code, a sentence, and a gradient that a test checks or
// a reason for having none.
func TestOperators(t *testing.T) {
	bodies := testBodies(t)
	seen := map[string]bool{}
	for _, info := range graph.Operators() {
		kind := info.Example.Kind()
		seen[kind] = true
		if _, ok := info.Example.(graph.HostOp); !ok {
			t.Errorf("%s has no host code", kind)
		}
		if !strings.Contains(info.Doc, " ") {
			t.Errorf("%s: Doc %q is no sentence", kind, info.Doc)
		}
		_, differentiable := info.Example.(graph.Differentiable)
		tests, listed := gradientTests[kind]
		switch {
		case !differentiable && info.NoGrad == "":
			t.Errorf("%s has no gradient and no reason for that", kind)
		case differentiable && info.NoGrad != "":
			t.Errorf("%s has a gradient and a reason for having none", kind)
		case differentiable != listed:
			t.Errorf("%s: differentiable: %v, in gradientTests: %v", kind, differentiable, listed)
		}
		if !differentiable {
			continue
		}
		for _, out := range info.Example.Outputs() {
			if tests[out] == "" {
				t.Errorf("%s: gradientTests says nothing of output %s", kind, out)
			}
		}
		if len(tests) > len(info.Example.Outputs()) {
			t.Errorf("%s: gradientTests lists outputs that it does not have", kind)
		}
		for out, name := range tests {
			if strings.HasPrefix(name, "none: ") {
				continue
			}
			if body, ok := bodies[name]; !ok || !strings.Contains(body, " checkGrads ") {
				t.Errorf("%s, output %s: want a test %s that calls checkGrads", kind, out, name)
			}
		}
	}
	for kind := range gradientTests {
		if !seen[kind] {
			t.Errorf("gradientTests has %q, which is no operator", kind)
		}
	}
}

// testBodies returns, for each test function of the package, the names that its body uses, between spaces.
func testBodies(t *testing.T) map[string]string {
	files, err := filepath.Glob("*_test.go")
	must(t, err)
	bodies := map[string]string{}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		must(t, err)
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || !strings.HasPrefix(f.Name.Name, "Test") {
				continue
			}
			var b strings.Builder
			ast.Inspect(f.Body, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok {
					b.WriteString(" " + id.Name + " ")
				}
				return true
			})
			bodies[f.Name.Name] = b.String()
		}
	}
	return bodies
}

// TestOperators_StatsHaveNoGradient: the outputs that gradientTests calls refused are.
func TestOperators_StatsHaveNoGradient(t *testing.T) {
	for name, build := range map[string]func(x *graph.Value) *graph.Value{
		"rstd":  func(x *graph.Value) *graph.Value { return RMSNorm(x, x.Graph().Input("w", dtype.Float64, 4)) },
		"stats": func(x *graph.Value) *graph.Value { return CrossEntropy(x, x.Graph().Input("labels", dtype.Int32, 3)) },
	} {
		g := graph.New("g")
		x := g.Input("x", dtype.Float64, 3, 4)
		n := build(x).Producer()
		g.GradientsFrom([]*graph.Value{n.Out(1)}, nil, x)
		if err := g.Err(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("a gradient of %s: got error %v", name, err)
		}
	}
}

func TestElementwise_CastGrad(t *testing.T) {
	vars := graph.NewVars(1)
	checkGrads(t, vars, func(g *graph.Graph) []*graph.Value {
		x := g.Use(wide(vars, "x", 4, 3))
		cut := graph.Apply(firstRows{}, x, g.Input("n", dtype.Int32, 1))[0]
		return []*graph.Value{
			graph.Apply(cast{To: dtype.Float64}, x)[0],
			graph.Apply(square{Factor: 2}, graph.Apply(cast{To: dtype.Float64}, cut)[0])[0],
		}
	}, map[string]any{"n": []int32{3}})
}

// TestGroupedGEMM_GradOfC checks the gradients where only C is used, of the plain node and of that with an
// activation, in every layout.
func TestGroupedGEMM_GradOfC(t *testing.T) {
	for _, c := range []gemmCase{{}, {alpha: true, bias: true, counts: true}, {prob: true, bias: true}, {nMajor: true, discrete: true}} {
		vars := graph.NewVars(1)
		checkGrads(t, vars, func(g *graph.Graph) []*graph.Value {
			_, cc := c.operands(g, vars, 6, 10).Apply()
			return []*graph.Value{cc}
		}, gemmInputs())
		if c.prob {
			continue // an activation's C does not depend on prob
		}
		for _, layout := range []Layout{LayoutInterleaved32, LayoutConcat, LayoutPairs} {
			vars := graph.NewVars(2)
			checkGrads(t, vars, func(g *graph.Graph) []*graph.Value {
				p := c.operands(g, vars, 64, 4)
				_, cc := GroupedGEMMGLU{A: p.A, B: p.B, PaddedOffsets: p.PaddedOffsets, Counts: p.Counts, Alpha: p.Alpha,
					Bias: p.Bias, Alignment: p.Alignment, Layout: layout}.Apply()
				return []*graph.Value{cc}
			}, gemmInputs())
		}
	}
}

// TestGroupedGEMM_GradThroughPtrs: weights given by addresses have no gradient, what they multiply has.
func TestGroupedGEMM_GradThroughPtrs(t *testing.T) {
	const e, n, k = 4, 64, 4
	weights, ptrs := make([][]float64, e), make([]uint64, e)
	for i := range weights {
		b := make([]float64, n*k+2)
		for uintptr(unsafe.Pointer(&b[0]))%16 != 0 {
			b = b[1:]
		}
		weights[i] = b[:n*k]
		for j := range weights[i] {
			weights[i][j] = float64((i+3*j)%7) / 4
		}
		ptrs[i] = uint64(uintptr(unsafe.Pointer(&weights[i][0])))
	}
	for _, nMajor := range []bool{false, true} {
		vars := graph.NewVars(2)
		checkGrads(t, vars, func(g *graph.Graph) []*graph.Value {
			p := gemmCase{prob: true, counts: true}.operands(g, graph.NewVars(1), n, k)
			p.A, p.Prob = g.Use(wide(vars, "a", groupShape.m, k)), wide(vars, "prob", groupShape.m)
			p.B = Weights{Ptrs: g.Input("ptrs", dtype.Uint64, e), N: n, DType: dtype.Float64, NMajor: nMajor}
			d, _ := p.Apply()
			h, _ := GroupedGEMMGLU{A: p.A, B: p.B, PaddedOffsets: p.PaddedOffsets, Counts: p.Counts, Prob: p.Prob, Alignment: p.Alignment}.Apply()
			return []*graph.Value{d, h}
		}, gemmInputs(), map[string]any{"ptrs": ptrs})
	}
	runtime.KeepAlive(weights)
}

// TestRouterLosses_GradAlone checks each loss where the other is not used, and a graph without rows to spare.
func TestRouterLosses_GradAlone(t *testing.T) {
	for _, order := range []Order{SoftmaxTopK, Sigmoid} {
		for which := range 2 {
			vars := graph.NewVars(6)
			checkGrads(t, vars, func(g *graph.Graph) []*graph.Value {
				x := graph.Apply(firstRows{}, g.Use(wide(vars, "logits", 9, 5)), g.Input("n", dtype.Int32, 1))[0]
				b, z := RouterLosses{Logits: x, Counts: g.Input("assigned", dtype.Int32, 5), K: 2, Order: order}.Apply()
				return []*graph.Value{[]*graph.Value{b, z}[which]}
			}, map[string]any{"assigned": []int32{5, 6, 0, 2, 1}, "n": []int32{7}})
		}
	}
}
