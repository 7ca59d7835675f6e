package graph_test

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/nodes"
)

// TestOutput_Anything: inputs, variables and values under several names are outputs too.
func TestOutput_Anything(t *testing.T) {
	g, vars := graph.New("g"), graph.NewVars(1)
	x, unused := g.Input("x", dtype.Float32, graph.UpTo(4), 1), g.Input("unused", dtype.Int32, 3)
	w := vars.ParamOf("w", dtype.Float32, graph.Const(2), 3)
	y := nodes.Scale(x, 2)
	g.Output("x", x)
	g.Output("x again", x)
	g.Output("w", w)
	g.Output("y", y)
	g.Output("y", y)
	g.Output("z", y)
	p := compile(t, g, graph.Options{})
	if p.Output("y") != y || p.Output("z") != y || p.Output("x again") != x {
		t.Error("a name does not give its value")
	}
	e, err := p.Exec(vars)
	check(t, err)
	defer e.Close()
	for _, data := range [][]float32{{1, 2, 3}, {}, {5}} {
		check(t, e.Write(x, data))
		check(t, e.Replay(t.Context()))
		doubled := []float32{}
		for _, v := range data {
			doubled = append(doubled, 2*v)
		}
		if !slices.Equal(read(t, e, x), data) || !slices.Equal(read(t, e, y), doubled) || !slices.Equal(read(t, e, w), []float32{2, 2, 2}) {
			t.Errorf("%v: got x %v, y %v, w %v", data, read(t, e, x), read(t, e, y), read(t, e, w))
		}
	}
	check(t, e.Write(unused, []int32{1, 2, 3}))
}

// TestOutput_NoNodes: a graph of inputs and variables alone compiles and replays.
func TestOutput_NoNodes(t *testing.T) {
	g, vars := graph.New("g"), graph.NewVars(1)
	x := g.Output("x", g.Input("x", dtype.Float32, 2))
	w := vars.ParamOf("w", dtype.Float32, graph.Const(3), 1)
	g.Output("w", w)
	for _, streams := range []int{0, 1, 4} {
		p := compile(t, g, graph.Options{Streams: streams, ForceStreams: true})
		e, err := p.Exec(vars)
		check(t, err)
		if err := e.Replay(t.Context()); !errors.Is(err, graph.ErrUsage) {
			t.Errorf("an output without data: got %v", err)
		}
		check(t, e.Write(x, []float32{1, 2}))
		check(t, e.Replay(t.Context()))
		if !slices.Equal(read(t, e, x), []float32{1, 2}) || !slices.Equal(read(t, e, w), []float32{3}) {
			t.Error("wrong contents")
		}
		check(t, e.Close())
	}
	e, err := compile(t, graph.New("empty"), graph.Options{}).Exec(nil)
	check(t, err)
	check(t, e.Replay(t.Context()))
	check(t, e.Close())
}

// TestCompile_ThenExtend: a graph that grows after Compile leaves the Program and its Execs as they were.
func TestCompile_ThenExtend(t *testing.T) {
	g := graph.New("g")
	x := g.Input("x", dtype.Float32, 2)
	y := g.Output("y", nodes.Scale(x, 2))
	first := compile(t, g, graph.Options{})
	early, err := first.Exec(nil)
	check(t, err)
	defer early.Close()
	dx := g.Output("dx", g.GradientsFrom([]*graph.Value{y}, nil, x).Value[0])
	more := g.Input("more", dtype.Float32, 2)
	z := g.Output("z", nodes.Add(y, more))
	late, err := first.Exec(nil)
	check(t, err)
	defer late.Close()
	second := compile(t, g, graph.Options{})
	again := compile(t, g, graph.Options{})
	if len(first.Steps()) != 1 || len(second.Steps()) != len(again.Steps()) {
		t.Errorf("%d, %d and %d steps", len(first.Steps()), len(second.Steps()), len(again.Steps()))
	}
	for _, e := range []*graph.Exec{early, late} {
		check(t, e.Write(x, []float32{1, 2}))
		check(t, e.Replay(t.Context()))
		if !slices.Equal(read(t, e, y), []float32{2, 4}) {
			t.Errorf("y is %v", read(t, e, y))
		}
		if _, err := e.Read(z, make([]float32, 2)); !errors.Is(err, graph.ErrUsage) {
			t.Errorf("an output that came later: got %v", err)
		}
		if err := e.Write(more, []float32{1, 2}); !errors.Is(err, graph.ErrUsage) {
			t.Errorf("an input that came later: got %v", err)
		}
	}
	for _, p := range []*graph.Program{second, again} {
		e, err := p.Exec(nil)
		check(t, err)
		check(t, e.Write(x, []float32{1, 2}))
		check(t, e.Write(more, []float32{10, 20}))
		check(t, e.Replay(t.Context()))
		if !slices.Equal(read(t, e, z), []float32{12, 24}) || !slices.Equal(read(t, e, dx), []float32{2, 2}) {
			t.Errorf("z %v, dx %v", read(t, e, z), read(t, e, dx))
		}
		check(t, e.Close())
	}
}

// TestExec_RowsOfPrunedNodes: what a node that nobody needs would ask of row counts is not asked.
func TestExec_RowsOfPrunedNodes(t *testing.T) {
	g := graph.New("g")
	x, z := g.Input("x", dtype.Float32, graph.UpTo(4)), g.Input("z", dtype.Float32, graph.UpTo(4))
	nodes.Add(x, z)
	y := g.Output("y", nodes.Scale(x, 2))
	e, err := compile(t, g, graph.Options{}).Exec(nil)
	check(t, err)
	defer e.Close()
	check(t, e.Write(x, []float32{1, 2, 3}))
	check(t, e.Replay(t.Context()))
	check(t, e.Write(z, []float32{1}))
	check(t, e.Replay(t.Context()))
	if got := read(t, e, y); len(got) != 3 {
		t.Errorf("y is %v", got)
	}
}

// TestSameRows_CountsOfOtherKinds: the rows of an input's data and rows that an input's contents count are not known
// to be the same, whoever gives both.
func TestSameRows_CountsOfOtherKinds(t *testing.T) {
	g := graph.New("g")
	offsets := g.Input("offsets", dtype.Int32, 2)
	d, _ := nodes.GroupedGEMM{A: g.Input("a", dtype.Float32, 8, 4), B: nodes.Dense(g.Input("b", dtype.Float32, 2, 4, 4)), PaddedOffsets: offsets, Alignment: 1}.Apply()
	nodes.Add(d, g.Input("x", dtype.Float32, graph.UpTo(8), 4))
	if err := g.Err(); !errors.Is(err, graph.ErrShape) || !strings.Contains(err.Error(), `rows counted by "offsets"`) {
		t.Errorf("got %v", err)
	}
}

// TestInput_Capacity refuses capacities that no row count can tell.
func TestInput_Capacity(t *testing.T) {
	for name, dims := range map[string][]int{
		"2^31 rows": {graph.UpTo(1 << 31), 1}, "the most": {graph.UpTo(math.MaxInt), 1}, "rows of nothing": {graph.UpTo(4), 3, 0},
		"none": {graph.UpTo(0)}, "fewer": {graph.UpTo(-3)}, "second": {4, graph.UpTo(4)},
	} {
		g := graph.New("g")
		if g.Input("x", dtype.Uint8, dims...); !errors.Is(g.Err(), graph.ErrShape) {
			t.Errorf("%s: got %v", name, g.Err())
		}
	}
}

// TestInput_HalfBytes: rows of 4-bit numbers are whole bytes, as only such data can be written.
func TestInput_HalfBytes(t *testing.T) {
	for _, dims := range [][]int{{}, {1}, {2, 3}, {graph.UpTo(4), 5}} {
		g := graph.New("g")
		if g.Input("x", dtype.E2M1, dims...); !errors.Is(g.Err(), graph.ErrShape) {
			t.Errorf("%v: got %v", dims, g.Err())
		}
	}
	g := graph.New("g")
	x := g.Output("x", g.Input("x", dtype.E2M1, graph.UpTo(4), 6))
	e := open(t, compile(t, g, graph.Options{}), nil)
	check(t, e.Write(x, []uint8{0x21, 0x43, 0x65, 0x87, 0xa9, 0xcb}))
	replay(t, e)
	if got := read(t, e, x); !slices.Equal(got, []float32{0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2}) {
		t.Errorf("got %v", got)
	}
}

// TestGradients_Operands: losses, seeds and what is differentiated by must be variables or values of the graph; a
// seed may be a variable.
func TestGradients_Operands(t *testing.T) {
	other := graph.New("other").Input("o", dtype.Float32, 2, 2)
	for name, tc := range map[string]struct{ of, seed, wrt *graph.Value }{
		"loss": {other, nil, nil}, "seed": {nil, other, nil}, "wrt": {nil, nil, other},
		"an empty loss": {&graph.Value{}, nil, nil}, "an empty seed": {nil, &graph.Value{}, nil}, "an empty wrt": {nil, nil, &graph.Value{}},
	} {
		g := graph.New("g")
		x := g.Input("x", dtype.Float32, 2, 2)
		of, wrt := nodes.Scale(x, 2), x
		if tc.of != nil {
			of = tc.of
		}
		if tc.wrt != nil {
			wrt = tc.wrt
		}
		gr := g.GradientsFrom([]*graph.Value{of}, []*graph.Value{tc.seed}, wrt)
		if !errors.Is(g.Err(), graph.ErrUsage) || gr.Value[0].Err() == nil {
			t.Errorf("%s of another graph: got %v", name, g.Err())
		}
		if len(other.Graph().Nodes()) > 0 {
			t.Errorf("%s: the other graph has got nodes", name)
		}
	}
	g := graph.New("g")
	x := g.Input("x", dtype.Float32, 2, 2)
	gr := g.GradientsFrom([]*graph.Value{nil}, nil, x, nil)
	if !errors.Is(g.Err(), graph.ErrUsage) || gr.Get(x).Err() == nil || gr.Get(nil) != nil {
		t.Errorf("no loss: got %v", g.Err())
	}

	g, vars := graph.New("g"), graph.NewVars(1)
	x = g.Input("x", dtype.Float32, 2, 4)
	seed := vars.ParamOf("seed", dtype.Float32, graph.Const(3), 2, 2)
	dx := g.GradientsFrom([]*graph.Value{nodes.Columns(x, 1, 3), x}, []*graph.Value{seed, nil}, x).Value[0]
	own := g.GradientsFrom([]*graph.Value{seed}, []*graph.Value{seed}, seed).Value[0]
	g.Output("dx", dx)
	g.Output("own", own)
	e, err := compile(t, g, graph.Options{}).Exec(vars)
	check(t, err)
	defer e.Close()
	check(t, e.Write(x, make([]float32, 8)))
	check(t, e.Replay(t.Context()))
	if got := read(t, e, dx); !slices.Equal(got, []float32{1, 4, 4, 1, 1, 4, 4, 1}) {
		t.Errorf("with a variable as seed: dx is %v", got)
	}
	if got := read(t, e, own); !slices.Equal(got, []float32{3, 3, 3, 3}) {
		t.Errorf("the gradient of a variable by itself is %v", got)
	}
}

// TestEmptyValue: a Value that nobody made is refused wherever one is taken.
func TestEmptyValue(t *testing.T) {
	for name, use := range map[string]func(g *graph.Graph, v *graph.Value){
		"output":  func(g *graph.Graph, v *graph.Value) { g.Output("v", v) },
		"operand": func(g *graph.Graph, v *graph.Value) { nodes.Add(g.Input("x", dtype.Float32, 2), v) },
	} {
		g := graph.New("g")
		if use(g, &graph.Value{}); !errors.Is(g.Err(), graph.ErrUsage) {
			t.Errorf("%s: got %v", name, g.Err())
		}
	}
}
