package nodes

import (
	"fmt"
	"math"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

func TestSchedule_At(t *testing.T) {
	cos := func(p float64) float64 { return (1 + math.Cos(math.Pi*p)) / 2 }
	for _, c := range []struct {
		s     Schedule
		rates map[int]float64
	}{
		{Schedule{Rate: 2}, map[int]float64{0: 2, 1: 2, 1000: 2}},
		{Schedule{Rate: 2, Warmup: 4, Kind: ConstantRate}, map[int]float64{0: 0.5, 1: 0.5, 2: 1, 4: 2, 5: 2, 99: 2}},
		// Without warm-up: PyTorch's LinearLR(1, Min/Rate, total_iters=4) and CosineAnnealingLR(4, Min).
		{Schedule{Rate: 2, Total: 4, Kind: LinearDecay, Min: 1}, map[int]float64{1: 2, 2: 1.75, 3: 1.5, 4: 1.25, 5: 1, 6: 1}},
		{Schedule{Rate: 2, Total: 4, Kind: CosineDecay, Min: 1},
			map[int]float64{1: 2, 2: 1 + cos(0.25), 3: 1.5, 4: 1 + cos(0.75), 5: 1, 100: 1}},
		{Schedule{Rate: 1, Warmup: 2, Total: 6, Kind: CosineDecay},
			map[int]float64{1: 0.5, 2: 1, 3: 1, 4: cos(0.25), 5: 0.5, 6: cos(0.75), 7: 0, 8: 0}},
		{Schedule{Rate: 1, Warmup: 1, Total: 2, Kind: LinearDecay}, map[int]float64{1: 1, 2: 1, 3: 0}},
	} {
		for step, want := range c.rates {
			if got := c.s.At(step); math.Abs(got-want) > 1e-15 {
				t.Errorf("%+v, step %d: got %v, want %v", c.s, step, got, want)
			}
		}
	}
}

// TestSchedule_Host: replays advance the counter on the device, and the rate follows.
func TestSchedule_Host(t *testing.T) {
	s := Schedule{Rate: 0.5, Warmup: 3, Total: 8, Kind: CosineDecay, Min: 0.125}
	var rate *graph.Value
	want := 10.0
	o := tryOptimizer(t, dtype.Float64, dtype.Float64, []float64{want}, func(gr *graph.Grads) *graph.Value {
		step := SGD(gr, SGDConfig{Schedule: s})
		rate = gr.Graph().Output("rate", Rate(step, s))
		return step
	})
	for step := 1; step <= 12; step++ {
		n, w := o.apply([]float64{1})
		want -= s.At(step)
		if n != step {
			t.Fatalf("got step %d, want %d", n, step)
		}
		near(t, fmt.Sprint("w at step ", step), dtype.Float64, w, []float64{want}, 1e-15)
		near(t, fmt.Sprint("rate of step ", step), dtype.Float32, o.floats(rate), []float64{s.At(step)}, 0)
	}
}

func TestSchedule_Refuses(t *testing.T) {
	for _, c := range []struct {
		operand string
		kind    error
		s       Schedule
	}{
		{"kind", graph.ErrUnsupported, Schedule{Kind: "cubic"}},
		{"rate", graph.ErrShape, Schedule{Rate: math.NaN()}},
		{"warmup", graph.ErrShape, Schedule{Warmup: -1}},
		{"total", graph.ErrShape, Schedule{Kind: CosineDecay}},
		{"total", graph.ErrShape, Schedule{Kind: LinearDecay, Warmup: 5, Total: 5}},
		{"min", graph.ErrShape, Schedule{Kind: LinearDecay, Total: 5, Rate: 1, Min: 2}},
		{"min", graph.ErrShape, Schedule{Kind: LinearDecay, Total: 5, Min: math.NaN()}},
	} {
		g, vars := graph.New("refuses"), graph.NewVars(1)
		w := vars.Param("w", 3)
		AdamW(g.GradientsFrom([]*graph.Value{g.Use(w)}, nil, w), AdamWConfig{Schedule: c.s})
		refuses(t, fmt.Sprintf("%+v", c.s), g, c.kind, c.operand)
	}
	g := graph.New("refuses")
	Rate(g.Input("step", dtype.Float32, 1), Schedule{Rate: 1})
	refuses(t, "a float step", g, graph.ErrDType, "step")
}
