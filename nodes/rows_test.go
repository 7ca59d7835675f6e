package nodes

import (
	"errors"
	"strings"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/host"
)

// shortRows are operators with an operand that has fewer rows in use than the offsets, maps or other operands say.
var shortRows = map[string]struct {
	build func(in func(name string, dt dtype.DType, shape ...int) *graph.Value) *graph.Value
	data  map[string]any
	want  string // part of the error in debug mode
}{
	"grouped_gemm": {func(in func(string, dtype.DType, ...int) *graph.Value) *graph.Value {
		d, _ := GroupedGEMM{A: in("a", dtype.Float32, graph.UpTo(16), 8), B: Dense(in("b", dtype.Float32, 2, 8, 8)),
			PaddedOffsets: in("o", dtype.Int32, 2), Prob: in("p", dtype.Float32, graph.UpTo(16)), Alignment: 4}.Apply()
		return d
	}, map[string]any{"a": ones(64), "b": ones(128), "o": []int32{4, 8}, "p": ones(4)}, "the 4 rows"},
	"glu": {func(in func(string, dtype.DType, ...int) *graph.Value) *graph.Value {
		return GLU{C: in("c", dtype.Float32, graph.UpTo(16), 64), Prob: in("p", dtype.Float32, graph.UpTo(16)), PaddedOffsets: in("o", dtype.Int32, 2), Alignment: 4}.Apply()
	}, map[string]any{"c": ones(512), "o": []int32{4, 8}, "p": ones(4)}, "the 4 rows"},
	"grouped_gemm_dglu": {func(in func(string, dtype.DType, ...int) *graph.Value) *graph.Value {
		return GroupedGEMMdGLU{A: in("a", dtype.Float32, graph.UpTo(16), 8), B: Dense(in("b", dtype.Float32, 2, 32, 8)), C: in("c", dtype.Float32, graph.UpTo(16), 64),
			PaddedOffsets: in("o", dtype.Int32, 2), Prob: in("p", dtype.Float32, graph.UpTo(16)), Alignment: 4}.Apply().DC
	}, map[string]any{"a": ones(64), "b": ones(512), "c": ones(512), "o": []int32{4, 8}, "p": ones(4)}, "the 4 rows"},
	"combine": {func(in func(string, dtype.DType, ...int) *graph.Value) *graph.Value {
		return Routing{RowMap: in("m", dtype.Int32, 2, 1)}.Combine(in("d", dtype.Float32, graph.UpTo(16), 8), nil, dtype.Float32)
	}, map[string]any{"m": []int32{0, 12}, "d": ones(32)}, "12 for slot 0 of token 1"},
}

// TestRows_Short runs them: an error in debug mode, and nothing read beyond the rows otherwise.
func TestRows_Short(t *testing.T) {
	for name, tc := range shortRows {
		for _, debug := range []bool{false, true} {
			g := graph.New("g")
			inputs := map[string]*graph.Value{}
			g.Output("y", tc.build(func(name string, dt dtype.DType, shape ...int) *graph.Value {
				inputs[name] = g.Input(name, dt, shape...)
				return inputs[name]
			}))
			p, err := g.Compile(host.Device{}, graph.Options{Debug: graph.Debug{Offsets: debug}})
			must(t, err)
			e, err := p.Exec(nil)
			must(t, err)
			for name, x := range tc.data {
				must(t, e.Write(inputs[name], x))
			}
			err = e.Replay(t.Context())
			if debug && (!errors.Is(err, graph.ErrShape) || !strings.Contains(err.Error(), tc.want)) || !debug && err != nil {
				t.Errorf("%s, debug %v: got %v", name, debug, err)
			}
			must(t, e.Close())
		}
	}
}

// TestRows_Refuses: what has one element an expert has no rows to count.
func TestRows_Refuses(t *testing.T) {
	for operand, build := range map[string]func(g *graph.Graph, o *GroupedGEMM){
		"alpha": func(g *graph.Graph, o *GroupedGEMM) { o.Alpha = g.Input("x", dtype.Float32, graph.UpTo(2)) },
		"bias":  func(g *graph.Graph, o *GroupedGEMM) { o.Bias = g.Input("x", dtype.Float32, graph.UpTo(2), 8) },
		"b_ptrs": func(g *graph.Graph, o *GroupedGEMM) {
			o.B = Weights{Ptrs: g.Input("x", dtype.Uint64, graph.UpTo(2)), N: 8, DType: dtype.Float32}
		},
	} {
		g := graph.New("g")
		o := GroupedGEMM{A: g.Input("a", dtype.Float32, 8, 8), B: Dense(g.Input("b", dtype.Float32, 2, 8, 8)), PaddedOffsets: g.Input("o", dtype.Int32, 2), Alignment: 4}
		build(g, &o)
		o.Apply()
		if err := g.Err(); err == nil || !strings.Contains(err.Error(), operand+": got") {
			t.Errorf("%s: got %v", operand, err)
		}
	}
	g := graph.New("g")
	Routing{RowMap: g.Input("m", dtype.Int32, 4, 1), SlotMap: g.Input("s", dtype.Int32, graph.UpTo(8)), PaddedOffsets: g.Input("o", dtype.Int32, 2)}.Permute(g.Input("x", dtype.Float32, 4, 8))
	if err := g.Err(); !errors.Is(err, graph.ErrShape) || !strings.Contains(err.Error(), "slot_map") {
		t.Errorf("slot_map with rows of its own: got %v", err)
	}
	c := graph.New("g")
	RouterLosses{Logits: c.Input("l", dtype.Float32, 4, 2), Counts: c.Input("c", dtype.Int32, graph.UpTo(2)), K: 1}.Apply()
	if err := c.Err(); !errors.Is(err, graph.ErrShape) || !strings.Contains(err.Error(), "counts") {
		t.Errorf("counts with rows of their own: got %v", err)
	}
}
