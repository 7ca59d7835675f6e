package nodes

import (
	"math"
	"strings"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

func TestCodec_Host(t *testing.T) {
	g := graph.New("g")
	x := g.Input("x", dtype.Float32, 1, 6)
	c := Encode(x, dtype.E2M1)
	y := g.Output("y", Decode(c))
	e := start(t, g, nil, map[*graph.Value]any{x: []float32{0.7, -5, 100, -0.2, 2.5, float32(math.NaN())}})
	must(t, e.Replay(t.Context()))
	want := []float32{0.5, -4, 6, float32(math.Copysign(0, -1)), 2, 6}
	for i, v := range fetch[float32](t, e, y) {
		if math.Float32bits(v) != math.Float32bits(want[i]) {
			t.Errorf("element %d: got %v, want %v", i, v, want[i])
		}
	}
}

func TestCodec_Refuses(t *testing.T) {
	for want, build := range map[string]func(g *graph.Graph){
		"x: got bf16":      func(g *graph.Graph) { Encode(g.Input("x", dtype.BFloat16, 4), dtype.E4M3) },
		"format: got f32":  func(g *graph.Graph) { Encode(g.Input("x", dtype.Float32, 4), dtype.Float32) },
		"an even last dim": func(g *graph.Graph) { Encode(g.Input("x", dtype.Float32, 2, 3), dtype.E2M1) },
		"x: got int32":     func(g *graph.Graph) { Decode(g.Input("x", dtype.Int32, 4)) },
	} {
		g := graph.New("g")
		build(g)
		if err := g.Err(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want one with %q", err, want)
		}
	}
}

// TestDequantize_StackOfOne: the one matrix of a stack is dequantized whole.
func TestDequantize_StackOfOne(t *testing.T) {
	g := graph.New("g")
	x := g.Input("x", dtype.Float32, 1, 40, 32)
	q := Quantize{X: x, Format: MXFP8}.Apply()
	y := g.Output("y", Dequantize{X: q.Row, SF: q.RowSF, Format: MXFP8}.Apply())
	ones := make([]float32, 40*32)
	for i := range ones {
		ones[i] = 1
	}
	e := start(t, g, nil, map[*graph.Value]any{x: ones})
	must(t, e.Replay(t.Context()))
	for i, v := range fetch[float32](t, e, y) {
		if v != 1 {
			t.Fatalf("element %d: got %v, want 1", i, v)
		}
	}
}
