package nodes

import (
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// TestGroupedGEMM_ProbGradientIsExact: dprob of a product in bf16 is as good as its float32 sum, not as a rounded C.
func TestGroupedGEMM_ProbGradientIsExact(t *testing.T) {
	const m, n, k = 32, 64, 64
	run := func(dt, d dtype.DType) []float64 {
		g := graph.New("g")
		stat := statType(dt)
		a, b, prob := g.Input("a", dt, m, k), g.Input("b", dt, 2, n, k), g.Input("prob", stat, m)
		offsets, seed := g.Input("offsets", dtype.Int32, 2), g.Input("seed", dt, m, n)
		y, _ := GroupedGEMM{A: a, B: Dense(b), PaddedOffsets: offsets, Prob: prob, Alignment: 8, DType: d}.Apply()
		dprob := g.Output("dprob", g.GradientsFrom([]*graph.Value{y}, []*graph.Value{seed}, prob).Value[0])
		bf := func(seed uint64, n int) []float32 { // numbers that bf16 holds
			x := noise(seed, n)
			for i := range x {
				x[i] = dtype.BF16Decode(dtype.BF16Encode(x[i]))
			}
			return x
		}
		e := start(t, g, nil, map[*graph.Value]any{a: bf(1, m*k), b: bf(2, 2*n*k), prob: bf(3, m), seed: bf(4, m*n), offsets: []int32{8, 32}})
		must(t, e.Replay(t.Context()))
		return fetch[float64](t, e, dprob)
	}
	got, want := run(dtype.BFloat16, dtype.BFloat16), run(dtype.Float64, dtype.Float64)
	if d := distance(got, want); d > 1e-6 {
		t.Errorf("relative error %.3g, want at most 1e-6", d)
	}
}
