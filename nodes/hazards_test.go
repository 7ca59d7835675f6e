package nodes

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/host"
)

// start compiles g for the host with poisoned memory and opens it.
func start(t testing.TB, g *graph.Graph, vars *graph.Vars, data map[*graph.Value]any) *graph.Exec {
	t.Helper()
	p, err := g.Compile(host.Device{}, graph.Options{Debug: graph.Debug{Poison: true}})
	must(t, err)
	e, err := p.Exec(vars)
	must(t, err)
	t.Cleanup(func() { e.Close() })
	for v, x := range data {
		must(t, e.Write(v, x))
	}
	return e
}

func fetch[T any](t testing.TB, e *graph.Exec, v *graph.Value) []T {
	t.Helper()
	x := make([]T, v.Elems())
	rows, err := e.Read(v, x)
	must(t, err)
	return x[:rows*(len(x)/max(1, v.Dim(0)))]
}

func ones(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = 1
	}
	return x
}

// TestHazard02_EmptyExpertsInWGrad is the situation "counts 5,0,7,0 in WGrad, output filled with 0xFF": overwriting,
// experts 1 and 3 are exactly zero; accumulating, those two are unchanged to the bit, the others old + new.
func TestHazard02_EmptyExpertsInWGrad(t *testing.T) {
	for _, discrete := range []bool{false, true} {
		for _, accumulate := range []bool{false, true} {
			t.Run(fmt.Sprintf("discrete=%v,accumulate=%v", discrete, accumulate), func(t *testing.T) {
				g, vars := graph.New("g"), graph.NewVars(1)
				a, b := g.Input("a", dtype.Float32, 24, 4), g.Input("b", dtype.Float32, 24, 4)
				offsets, counts := g.Input("offsets", dtype.Int32, 4), g.Input("counts", dtype.Int32, 4)
				w := WGrad{A: a, B: b, Offsets: offsets, Counts: counts, AMajorM: true, Alignment: 8, Discrete: discrete}
				old := float32(0.1)
				if accumulate {
					for e := range 4 {
						if shape := []int{4, 4}; discrete {
							w.Into = append(w.Into, vars.State(fmt.Sprint("w", e), dtype.Float32, graph.Const(float64(old)), shape...))
						}
					}
					if !discrete {
						w.Into = []*graph.Value{vars.State("w", dtype.Float32, graph.Const(float64(old)), 4, 4, 4)}
					}
				}
				outs := w.Apply()
				for i, v := range outs {
					g.Output(fmt.Sprint(i), v)
				}
				if accumulate {
					outs = w.Into
				}
				e := start(t, g, vars, map[*graph.Value]any{a: ones(96), b: ones(96), offsets: []int32{8, 8, 16, 16}, counts: []int32{5, 0, 7, 0}})
				must(t, e.Replay(t.Context()))
				var got []float32
				for _, v := range outs {
					got = append(got, fetch[float32](t, e, v)...)
				}
				if !accumulate {
					old = 0
				}
				for i, v := range got {
					if want := old + []float32{5, 0, 7, 0}[i/16]; math.Float32bits(v) != math.Float32bits(want) {
						t.Fatalf("expert %d: got %v, want %v", i/16, v, want)
					}
				}
			})
		}
	}
}

// TestHazard07_PaddingHoldsNaN is the situation "pad rows between experts hold NaN (counts 3,5, alignment 8)": dW,
// dbias and dprob are finite and equal to the unpadded result.
func TestHazard07_PaddingHoldsNaN(t *testing.T) {
	run := func(padded bool) [][]float32 {
		rows, align, ends := 16, 8, []int32{8, 16}
		if !padded {
			rows, align, ends = 8, 1, []int32{3, 8}
		}
		real := func(r int) (int, bool) { // the row's number among the real ones
			if !padded {
				return r, true
			}
			return r - r/8*5, r < 3 || r >= 8 && r < 13
		}
		fill := func(width int, seed uint64) []float32 {
			src, x := noise(seed, 8*width), make([]float32, rows*width)
			for r := range rows {
				for j := range width {
					x[r*width+j] = float32(math.NaN())
					if n, ok := real(r); ok {
						x[r*width+j] = src[n*width+j]
					}
				}
			}
			return x
		}
		g, vars := graph.New("g"), graph.NewVars(2)
		a, prob, dd := g.Input("a", dtype.Float32, rows, 8), g.Input("prob", dtype.Float32, rows), g.Input("dd", dtype.Float32, rows, 32)
		offsets, counts := g.Input("offsets", dtype.Int32, 2), g.Input("counts", dtype.Int32, 2)
		w, bias := vars.Param("w", 2, 64, 8), vars.Param("bias", 2, 64)
		w2, bias2 := vars.Param("w2", 2, 8, 32), vars.Param("bias2", 2, 8)
		d, _ := GroupedGEMMGLU{A: a, B: Dense(w), PaddedOffsets: offsets, Counts: counts, Prob: prob, Bias: bias, Alignment: align}.Apply()
		y, _ := GroupedGEMM{A: d, B: Dense(w2), PaddedOffsets: offsets, Counts: counts, Prob: prob, Bias: bias2, Alignment: align}.Apply()
		gr := g.GradientsFrom([]*graph.Value{d, y}, []*graph.Value{dd, nil}, w, bias, w2, bias2, prob)
		for i, v := range gr.Value {
			g.Output(fmt.Sprint(i), v)
		}
		e := start(t, g, vars, map[*graph.Value]any{a: fill(8, 1), prob: fill(1, 2), dd: fill(32, 3), offsets: ends, counts: []int32{3, 5}})
		must(t, e.Replay(t.Context()))
		var all [][]float32
		for i, v := range gr.Value {
			x := fetch[float32](t, e, v)
			if i == 4 { // dprob: the real rows, and zeros elsewhere
				var kept []float32
				for r, v := range x {
					if _, ok := real(r); ok {
						kept = append(kept, v)
					} else if v != 0 {
						t.Errorf("dprob of padding row %d is %v", r, v)
					}
				}
				x = kept
			}
			all = append(all, x)
		}
		return all
	}
	got, want := run(true), run(false)
	for i := range want {
		if !slices.Equal(got[i], want[i]) {
			t.Errorf("gradient %d differs from the unpadded one", i)
		}
	}
}

func noise(seed uint64, n int) []float32 {
	x := make([]float32, n)
	s := seed*2654435761 + 1
	for i := range x {
		s = s*6364136223846793005 + 1442695040888963407
		x[i] = float32(int32(s>>32)) / (1 << 31)
	}
	return x
}

// TestHazard08_CapacityBelowNeed is the situation "capacity for 64 rows, routing yields 65": bytes after the buffers
// are intact, the overflow is counted and reported as an error on demand.
func TestHazard08_CapacityBelowNeed(t *testing.T) {
	g := graph.New("g")
	ids, x := g.Input("ids", dtype.Int32, graph.UpTo(80), 1), g.Input("x", dtype.Float32, graph.UpTo(80), 4)
	r := Dispatch{TopKIdx: ids, Experts: 2, Alignment: 1, Capacity: 64}.Apply().Watch()
	a := g.Output("a", r.Permute(x))
	y := g.Output("y", r.Combine(a, nil, dtype.Float32))
	p, err := g.Compile(host.Device{}, graph.Options{Debug: graph.Debug{Poison: true}})
	must(t, err)
	e, err := p.Exec(nil)
	must(t, err)
	defer e.Close()
	guarded := slices.Repeat([]float32{-7}, 64*4+64)
	must(t, e.Bind(a, guarded[:64*4]))
	for _, tokens := range []int{64, 65, 80} {
		must(t, e.Write(ids, make([]int32, tokens)))
		must(t, e.Write(x, ones(tokens*4)))
		must(t, e.Replay(t.Context()))
		for i, v := range guarded[64*4:] {
			if v != -7 {
				t.Fatalf("%d tokens: element %d after the buffer was written: %v", tokens, i, v)
			}
		}
		err := r.Check(e)
		if (err != nil) != (tokens > 64) || (err != nil && (!errors.Is(err, graph.ErrShape) || !strings.Contains(err.Error(), fmt.Sprint(tokens-64, " slots")))) {
			t.Errorf("%d tokens: Check: %v", tokens, err)
		}
		for i, v := range fetch[float32](t, e, y) {
			if want := float32(1); (i/4 < 64) != (v == want) || (i/4 >= 64 && v != 0) {
				t.Fatalf("%d tokens: y of token %d is %v", tokens, i/4, v)
			}
		}
	}
}

// TestHazard08_SpareCapacityCostsLittle: eight times the capacity does not take eight times the time.
func TestHazard08_SpareCapacityCostsLittle(t *testing.T) {
	best := func(capacity int) time.Duration {
		g, vars := graph.New("g"), graph.NewVars(1)
		x := g.Input("x", dtype.Float32, graph.UpTo(256), 64)
		y, _ := MoELayer(x, vars, MoE{Experts: 4, TopK: 2, Intermediate: 64, Alignment: 8, Capacity: capacity})
		g.Output("y", y)
		e := start(t, g, vars, map[*graph.Value]any{x: noise(1, 256*64)})
		fastest := time.Hour
		for range 20 {
			begin := time.Now()
			must(t, e.Replay(t.Context()))
			fastest = min(fastest, time.Since(begin))
		}
		return fastest
	}
	if tight, spare := best(576), best(8*576); spare > 4*tight {
		t.Errorf("8 times the capacity: %v instead of %v", spare, tight)
	}
}

// TestHazard14_MicroBatches is the situation "gradients of micro-batches 1 and 2, the first result kept by the caller":
// accumulation in the graph and on the host both give g1+g2, and what the caller read stays as it was.
func TestHazard14_MicroBatches(t *testing.T) {
	vars := graph.NewVars(1)
	w := vars.Param("w", 3, 4)
	g := graph.New("g")
	x := g.Input("x", dtype.Float32, 2, 4)
	y := Linear(x, w)
	grad := g.GradientsFrom([]*graph.Value{y}, nil, w)
	g.Output("dw", grad.Value[0])
	mean := g.Output("mean", Accumulate(grad, 2).Value[0])
	e := start(t, g, vars, nil)
	must(t, e.Write(x, noise(1, 8)))
	must(t, e.Replay(t.Context()))
	first := fetch[float32](t, e, grad.Value[0])
	kept := slices.Clone(first)
	must(t, e.Write(x, noise(2, 8)))
	must(t, e.Replay(t.Context()))
	second := fetch[float32](t, e, grad.Value[0])
	if !slices.Equal(first, kept) {
		t.Error("the first result was overwritten")
	}
	for i, m := range fetch[float32](t, e, mean) {
		if want := (first[i] + second[i]) / 2; math.Abs(float64(m-want)) > 1e-6 {
			t.Errorf("mean of gradients %v, want %v", m, want)
		}
	}
}

// TestHazard24_IDsAndLogits is the situation "expert ids -1 and E from a user's own routing; logits all NaN, all -Inf, all
// equal": ids in range, no duplicates, counts equal the valid slots; -1 means dropped.
func TestHazard24_IDsAndLogits(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	logits := [][]float32{{nan, nan, nan, nan}, {-inf, -inf, -inf, -inf}, {2, 2, 2, 2}, {nan, 1, nan, -inf}, {inf, inf, 0, 0}, {1, nan, 3, 2}}
	for _, order := range []Order{SoftmaxTopK, TopKSoftmax, Sigmoid} {
		g := graph.New("g")
		l := g.Input("logits", dtype.Float32, len(logits), 4)
		idx, _ := TopK{Logits: l, K: 3, Order: order}.Apply()
		r := Dispatch{TopKIdx: idx, Experts: 4, Alignment: 4}.Apply().Watch()
		g.Output("idx", idx)
		g.Output("counts", r.Counts)
		e := start(t, g, nil, map[*graph.Value]any{l: slices.Concat(logits...)})
		must(t, e.Replay(t.Context()))
		must(t, r.Check(e))
		ids := fetch[int32](t, e, idx)
		for i := 0; i < len(ids); i += 3 {
			seen := map[int32]bool{}
			for _, id := range ids[i : i+3] {
				if id < 0 || id > 3 || seen[id] {
					t.Errorf("%s, token %d: ids %v", order, i/3, ids[i:i+3])
				}
				seen[id] = true
			}
		}
		if i := 0; !slices.Equal(ids[i:i+3], []int32{0, 1, 2}) || !slices.Equal(ids[3:6], []int32{0, 1, 2}) || !slices.Equal(ids[6:9], []int32{0, 1, 2}) {
			t.Errorf("%s: equal and NaN logits chose %v, want the lower experts in order", order, ids[:9])
		}
		var sum int32
		for _, c := range fetch[int32](t, e, r.Counts) {
			sum += c
		}
		if int(sum) != len(ids) {
			t.Errorf("%s: counts sum to %d, want %d", order, sum, len(ids))
		}
	}
	g := graph.New("own")
	idx := g.Input("idx", dtype.Int32, 3, 2)
	r := Dispatch{TopKIdx: idx, Experts: 4, Alignment: 1}.Apply().Watch()
	g.Output("counts", r.Counts)
	g.Output("map", r.RowMap)
	e := start(t, g, nil, map[*graph.Value]any{idx: []int32{-1, 4, 3, 0, math.MinInt32, 1}})
	must(t, e.Replay(t.Context()))
	if c := fetch[int32](t, e, r.Counts); !slices.Equal(c, []int32{1, 1, 0, 1}) {
		t.Errorf("counts %v", c)
	}
	if m := fetch[int32](t, e, r.RowMap); !slices.Equal(m, []int32{-1, -1, 2, 0, -1, 1}) {
		t.Errorf("row map %v", m)
	}
	if err := r.Check(e); err == nil || !strings.Contains(err.Error(), "2 ids") {
		t.Errorf("Check: %v", err)
	}
}

// TestHazard25_ExtremeGates is the situation "dGLU with alpha 0.5, half the gates beyond the clamp, gates -1e4, -90, 0, 90,
// 1e4": it matches float64, and no NaN comes from a large negative gate.
func TestHazard25_ExtremeGates(t *testing.T) {
	gates := []float64{-1e4, -90, 0, 90, 1e4, 6.5, 7, 7.5, -7, -7.5, 1, -1}
	for _, act := range []Activation{{}, {Func: "geglu"}} {
		run := func(dt dtype.DType) [][]float64 {
			g := graph.New("g")
			stat := statType(dt)
			a, b, c := g.Input("a", dt, 4, 8), g.Input("b", dt, 1, 64, 8), g.Input("c", dt, 4, 128)
			offsets, alpha, prob := g.Input("offsets", dtype.Int32, 1), g.Input("alpha", stat, 1), g.Input("prob", stat, 4)
			out := GroupedGEMMdGLU{A: a, B: Dense(b), C: c, PaddedOffsets: offsets, Alpha: alpha, Prob: prob, Activation: act, Alignment: 4}.Apply()
			outs := []*graph.Value{out.DC, out.DProb, out.Amax, out.DBias, out.Act}
			for i, v := range outs {
				g.Output(fmt.Sprint(i), v)
			}
			cs := make([]float64, 4*128)
			for i := range cs {
				cs[i] = gates[(i*7+i/64)%len(gates)]
			}
			e := start(t, g, nil, map[*graph.Value]any{a: noise(1, 32), b: noise(2, 512), c: cs, offsets: []int32{4}, alpha: []float64{0.5}, prob: []float64{1, 0.5, 0, 0.25}})
			must(t, e.Replay(t.Context()))
			var all [][]float64
			for _, v := range outs {
				all = append(all, fetch[float64](t, e, v))
			}
			return all
		}
		got, want := run(dtype.Float32), run(dtype.Float64)
		for i := range want {
			for j, v := range got[i] {
				if math.IsNaN(v) {
					t.Fatalf("%s: output %d, element %d is NaN", act.Func, i, j)
				}
			}
			if d := distance(got[i], want[i]); d > 1e-6 {
				t.Errorf("%s: output %d: relative error %.3g", act.Func, i, d)
			}
		}
	}
}

// TestHazard26_CombineIsDeterministic is the situation "combine and its backward with k = 8, 50 runs": bit-equal.
func TestHazard26_CombineIsDeterministic(t *testing.T) {
	const tokens, k, h = 100, 8, 48
	g := graph.New("g")
	x, p := g.Input("x", dtype.BFloat16, tokens, h), g.Input("p", dtype.Float32, tokens, k)
	ids := g.Input("ids", dtype.Int32, tokens, k)
	r := Dispatch{TopKIdx: ids, Experts: 16, Alignment: 8}.Apply()
	y := g.Output("y", r.Combine(r.Permute(x), p, dtype.BFloat16))
	gr := g.GradientsFrom([]*graph.Value{y}, []*graph.Value{x}, x, p)
	dx, dp := g.Output("dx", gr.Value[0]), g.Output("dp", gr.Value[1])
	id := make([]int32, tokens*k)
	for i := range id {
		id[i] = int32((i*7 + i/k) % 16)
	}
	prog, err := g.Compile(host.Device{}, graph.Options{Streams: 4, ForceStreams: true, Debug: graph.Debug{Poison: true, Jitter: 3}})
	must(t, err)
	e, err := prog.Exec(nil)
	must(t, err)
	defer e.Close()
	must(t, e.Write(x, noise(1, tokens*h)))
	must(t, e.Write(p, noise(2, tokens*k)))
	must(t, e.Write(ids, id))
	var first []float32
	for i := range 50 {
		must(t, e.Replay(t.Context()))
		all := slices.Concat(fetch[float32](t, e, y), fetch[float32](t, e, dx), fetch[float32](t, e, dp))
		if i == 0 {
			first = all
		} else if !slices.Equal(all, first) {
			t.Fatalf("run %d differs", i)
		}
	}
}

// TestHazard26_TimeGrowsWithTokens: four times the tokens take about four times as long.
func TestHazard26_TimeGrowsWithTokens(t *testing.T) {
	best := func(tokens int) time.Duration {
		g := graph.New("g")
		x, ids := g.Input("x", dtype.Float32, tokens, 64), g.Input("ids", dtype.Int32, tokens, 8)
		r := Dispatch{TopKIdx: ids, Experts: 16, Alignment: 8}.Apply()
		g.Output("y", r.Combine(r.Permute(x), nil, dtype.Float32))
		id := make([]int32, tokens*8)
		for i := range id {
			id[i] = int32(i % 16)
		}
		e := start(t, g, nil, map[*graph.Value]any{x: ones(tokens * 64), ids: id})
		fastest := time.Hour
		for range 15 {
			begin := time.Now()
			must(t, e.Replay(t.Context()))
			fastest = min(fastest, time.Since(begin))
		}
		return fastest
	}
	if small, large := best(1000), best(4000); large > 12*small {
		t.Errorf("4 times the tokens: %v instead of %v", large, small)
	}
}

// TestHazard29_TenThousandSteps trains a small layer for 10,000 replays: goroutines and memory stay flat.
func TestHazard29_TenThousandSteps(t *testing.T) {
	g, vars := graph.New("g"), graph.NewVars(1)
	x := g.Input("x", dtype.Float32, graph.UpTo(4), 8)
	y, aux := MoELayer(x, vars, MoE{Experts: 2, TopK: 1, Intermediate: 32, Alignment: 8})
	loss := Add(aux.Balance, aux.ZLoss)
	grads := g.GradientsFrom([]*graph.Value{y, loss}, nil, vars.All()...)
	AdamW(grads, AdamWConfig{Rate: 1e-3})
	p, err := g.Compile(host.Device{}, graph.Options{Streams: 2, ForceStreams: true})
	must(t, err)
	e, err := p.Exec(vars)
	must(t, err)
	defer e.Close()
	steps := func(n int) {
		for i := range n {
			must(t, e.Write(x, noise(uint64(i), 8*(1+i%4))))
			must(t, e.Replay(t.Context()))
		}
	}
	measure := func() (heap uint64, goroutines int) {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc, runtime.NumGoroutine()
	}
	steps(100)
	heap, goroutines := measure()
	steps(10000)
	heapAfter, goroutinesAfter := measure()
	if goroutinesAfter > goroutines || heapAfter > heap+64<<10 {
		t.Errorf("after 10,000 steps: %d goroutines (%d before), %d bytes of heap (%d before)", goroutinesAfter, goroutines, heapAfter, heap)
	}
}
