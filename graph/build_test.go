package graph_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/nodes"
)

// TestBuild_FirstMistakeIsKept makes one mistake after the other; Compile returns the first, with the node's name,
// the operand, what was given and what is allowed.
func TestBuild_FirstMistakeIsKept(t *testing.T) {
	g := graph.New("g")
	x := g.Input("x", dtype.Float32, 4, 8)
	w := g.Input("w", dtype.Float32, 3, 7)
	defer g.Scope("layer0")()
	g.NameNext("up")
	bad := nodes.Linear(x, w)
	worse := nodes.Linear(bad, w)
	g.Output("y", worse)
	nodes.Add(x, w)
	_, err := g.Compile(host(t), graph.Options{})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"matmul", `"layer0/up"`, "b:", "K = 7", "K = 8"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %s", err, want)
		}
	}
	if !errors.Is(err, graph.ErrShape) || !errors.Is(bad.Err(), graph.ErrShape) || !errors.Is(worse.Err(), graph.ErrShape) {
		t.Errorf("%v is no ErrShape", err)
	}
}

// TestBuild_Refuses goes through mistakes of building; each names what it is about.
func TestBuild_Refuses(t *testing.T) {
	vars := graph.NewVars(1)
	other := graph.New("other")
	foreign := other.Input("x", dtype.Float32, 2, 2)
	for _, tc := range []struct {
		name  string
		build func(g *graph.Graph, x *graph.Value)
		kind  error
		want  string
	}{
		{"two inputs of one name", func(g *graph.Graph, x *graph.Value) { g.Input("x", dtype.Float32, 1) }, graph.ErrUsage, `"x"`},
		{"capacity of nothing", func(g *graph.Graph, x *graph.Value) { g.Input("y", dtype.Float32, graph.UpTo(0)) }, graph.ErrShape, "capacity"},
		{"capacity inside", func(g *graph.Graph, x *graph.Value) { g.Input("y", dtype.Float32, 2, graph.UpTo(3)) }, graph.ErrShape, "dimension 1"},
		{"negative dimension", func(g *graph.Graph, x *graph.Value) { g.Input("y", dtype.Float32, -3) }, graph.ErrShape, "-3"},
		{"too many bytes", func(g *graph.Graph, x *graph.Value) { g.Input("y", dtype.Float32, 1<<40, 1<<40) }, graph.ErrShape, "2^46"},
		{"no format", func(g *graph.Graph, x *graph.Value) { g.Input("y", dtype.Invalid, 1) }, graph.ErrDType, "dims"},
		{"operand of another graph", func(g *graph.Graph, x *graph.Value) { nodes.Add(x, foreign) }, graph.ErrUsage, "other"},
		{"missing operand", func(g *graph.Graph, x *graph.Value) { nodes.Linear(x, nil) }, graph.ErrUsage, "b"},
		{"output of another graph", func(g *graph.Graph, x *graph.Value) { g.Output("y", foreign) }, graph.ErrUsage, "other"},
		{"no output", func(g *graph.Graph, x *graph.Value) { g.Output("y", nil) }, graph.ErrUsage, `"y"`},
		{"output name taken", func(g *graph.Graph, x *graph.Value) { g.Output("y", x); g.Output("y", x.Scale(2)) }, graph.ErrUsage, `"y"`},
		{"parameter of two shapes", func(g *graph.Graph, x *graph.Value) {
			vars.Param("w", 2, 2)
			g.Output("y", nodes.Linear(x, vars.Param("w", 3, 2)))
		}, graph.ErrShape, `"w"`},
		{"update of an input", func(g *graph.Graph, x *graph.Value) { graph.Apply(bumpOp{}, x) }, graph.ErrUsage, "v"},
		{"loss of many elements", func(g *graph.Graph, x *graph.Value) { g.Gradients(x.Scale(2), x) }, graph.ErrShape, "loss"},
		{"loss in integers", func(g *graph.Graph, x *graph.Value) { i := g.Input("i", dtype.Int32, 1); g.Gradients(i, x) }, graph.ErrDType, "loss"},
		{"no path", func(g *graph.Graph, x *graph.Value) {
			l := g.Input("l", dtype.Float32, 1)
			g.Gradients(l.Scale(2), x)
		}, graph.ErrUnsupported, `"x"`},
		{"operator without a gradient", func(g *graph.Graph, x *graph.Value) {
			s := g.Input("s", dtype.Float32, 1)
			g.Gradients(graph.Apply(copyOp{}, s)[0], s)
		}, graph.ErrUnsupported, "test_copy"},
		{"rows of different counts", func(g *graph.Graph, x *graph.Value) {
			nodes.Add(g.Input("a", dtype.Float32, graph.UpTo(2), 2), x)
		}, graph.ErrShape, "x2"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := graph.New("g")
			x := g.Input("x", dtype.Float32, 2, 2)
			tc.build(g, x)
			if err := g.Err(); !errors.Is(err, tc.kind) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want a %v error that says %s", err, tc.kind, tc.want)
			}
			if _, err := g.Compile(host(t), graph.Options{}); !errors.Is(err, tc.kind) {
				t.Errorf("Compile: %v", err)
			}
		})
	}
}

// TestBuild_AfterAFailureNothingPanics calls everything on the results of a failed call and on nil.
func TestBuild_AfterAFailureNothingPanics(t *testing.T) {
	g := graph.New("g")
	x := g.Input("x", dtype.Float32, 2, 2)
	bad := nodes.Add(x, g.Input("y", dtype.Float32, 3))
	for _, v := range []*graph.Value{bad, nil} {
		_, _, _, _, _, _, _ = v.Name(), v.Text(), v.Dim(0), v.Rank(), v.Bytes(), v.Rows(), v.Spec()
		nodes.Add(v, v)
		nodes.Linear(v, v)
		nodes.MoELayer(v, graph.NewVars(1), nodes.MoE{Experts: 2, TopK: 1, Intermediate: 32})
		nodes.GroupedGEMM{A: v, B: nodes.Dense(v), PaddedOffsets: v}.Apply()
		nodes.GroupedGEMMGLU{A: v}.Apply()
		nodes.WGrad{A: v, B: v, Offsets: v, Discrete: true}.Apply()
		nodes.Router{X: v, Weight: v, K: 1}.Apply()
		nodes.Dispatch{TopKIdx: v, Experts: -1, Alignment: 3}.Apply()
		v.Named("z")
		v.Plus(v).Scale(2)
		g.Output("o", v)
		g.Gradients(v, v)
	}
	if g.Err() == nil {
		t.Error("no error")
	}
}

// TestGradients_FanOut sums the gradients of a value that is used twice, of a parameter that two layers share,
// and of one value used as both operands.
func TestGradients_FanOut(t *testing.T) {
	g := graph.New("fan")
	vars := graph.NewVars(1)
	w := vars.ParamOf("w", dtype.Float32, graph.Const(2), 1, 1)
	x := g.Input("x", dtype.Float32, 1, 1)
	h := nodes.Linear(nodes.Linear(x, w), w)               // w^2 x
	y := g.Output("y", h.Plus(h).Plus(nodes.Linear(x, w))) // 2 w^2 x + w x
	gr := g.Gradients(y, w, x)
	g.Output("dw", gr.Value[0])
	g.Output("dx", gr.Value[1])
	if gr.Get(w) != gr.Value[0] || gr.Get(x) != gr.Value[1] || gr.Get(y) != nil {
		t.Error("Get finds the wrong gradient")
	}
	e := open(t, compile(t, g, graph.Options{}), vars)
	check(t, e.Write(x, []float32{3}))
	replay(t, e)
	if got := read(t, e, y)[0]; got != 2*4*3+2*3 {
		t.Errorf("y = %v", got)
	}
	if got := read(t, e, gr.Value[0])[0]; got != 4*2*3+3 {
		t.Errorf("dw = %v, want 27", got)
	}
	if got := read(t, e, gr.Value[1])[0]; got != 2*4+2 {
		t.Errorf("dx = %v, want 10", got)
	}
}

// TestGradients_UpdatedVariable refuses gradients that would read a variable after its update.
func TestGradients_UpdatedVariable(t *testing.T) {
	g := graph.New("stale")
	vars := graph.NewVars(1)
	w := vars.Param("w", 1, 1)
	x := g.Input("x", dtype.Float32, 1, 1)
	y := nodes.Linear(x, w)
	graph.Apply(bumpOp{By: 1}, g.Use(w))
	g.Gradients(y, x)
	if err := g.Err(); !errors.Is(err, graph.ErrUsage) || !strings.Contains(err.Error(), `"w"`) {
		t.Errorf("got %v", err)
	}
}

// TestCompile_PrunesAndDrops keeps what an output or an update needs, and no activation without gradients.
func TestCompile_PrunesAndDrops(t *testing.T) {
	l := newLayer(16, dtype.Float32)
	has := func(p *graph.Program, op, output string) bool {
		for _, s := range p.Steps() {
			for i, v := range s.Out {
				if s.Op.Kind() == op && v != nil && s.Op.Outputs()[i] == output {
					return true
				}
			}
		}
		return false
	}
	if p := compile(t, l.g, graph.Options{}); !has(p, "grouped_gemm_glu", "c") || !has(p, "grouped_gemm_dglu", "dc") || has(p, "grouped_gemm_dglu", "act") {
		t.Errorf("with gradients FC1 keeps C and the backward is fused:\n%s", p)
	}
	g := graph.New("forward")
	x := g.Input("x", dtype.Float32, graph.UpTo(16), layerWidth)
	y, _ := nodes.MoELayer(x, l.vars.Scope("moe"), nodes.MoE{Experts: 6, TopK: 2, Intermediate: 64, Alignment: 8})
	g.Output("y", y)
	x.Scale(3) // nobody needs it
	p := compile(t, g, graph.Options{})
	if has(p, "grouped_gemm_glu", "c") || has(p, "scale", "y") || has(p, "router_losses", "load_balance") {
		t.Errorf("without gradients:\n%s", p)
	}
	if err := p.Verify(); err != nil {
		t.Error(err)
	}
}

// TestBuild_UpdatedTwice: a node that updates a variable may not have it as another operand.
func TestBuild_UpdatedTwice(t *testing.T) {
	g, vars := graph.New("g"), graph.NewVars(1)
	v := vars.Param("v", 2)
	graph.Apply(bumpOp{By: 1}, g.Use(v), v)
	if err := g.Err(); !errors.Is(err, graph.ErrUsage) || !strings.Contains(err.Error(), `after: got "v" once more`) {
		t.Errorf("got %v", err)
	}
}

// TestCompile_FusingSkipsARoundingOnly compares fused and unfused plans in float32, where nothing is rounded between.
func TestCompile_FusingSkipsARoundingOnly(t *testing.T) {
	l := newLayer(24, dtype.Float32)
	fused, plain := compile(t, l.g, graph.Options{}), compile(t, l.g, graph.Options{NoFuse: true})
	if len(fused.Fused()) == 0 || len(plain.Fused()) != 0 {
		t.Fatalf("fused %v and %v", fused.Fused(), plain.Fused())
	}
	a, b := l.run(t, open(t, fused, l.vars), 9, 20), l.run(t, open(t, plain, l.vars), 9, 20)
	for i := range a {
		if d := relative(a[i], b[i]); d > 1e-6 {
			t.Errorf("output %d: relative difference %g", i, d)
		}
	}
}
