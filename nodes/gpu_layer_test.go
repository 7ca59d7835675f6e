//go:build gpu

package nodes

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/cudadev"
	"github.com/moegraph/moegraph/internal/host"
)

const (
	routedTokens  = 300
	routedExperts = 8
	routedTopK    = 2
)

// routed is the experts of a layer, forward and backward, in bf16, whose ids are inputs.
type routed struct {
	*gpuGraph
	ids *graph.Value
}

func newRouted() routed {
	var r routed
	r.gpuGraph = newGPUGraph(gpuCase{"routed", func(b *gpuGraph) {
		x, dy := b.counted("x", bf16, routedTokens, routedTokens, 64), b.counted("dy", bf16, routedTokens, routedTokens, 64)
		r.ids = b.g.Input("ids", dtype.Int32, graph.UpTo(routedTokens), routedTopK)
		prob := b.counted("prob", f32, routedTokens, routedTokens, routedTopK)
		y, route := Experts(x, r.ids, prob, b.vars.Scope("moe"), MoE{Experts: routedExperts, TopK: routedTopK, Intermediate: 96, Alignment: 16, Bias: true})
		b.out(y, route.Counts, route.PaddedOffsets)
		b.out(b.g.GradientsFrom([]*graph.Value{y}, []*graph.Value{dy}, append(b.vars.All(), x, prob)...).Value...)
	}})
	return r
}

// routings are ids for all tokens.
func routings() map[string][]int32 {
	make := func(f func(i int) int) []int32 {
		ids := make([]int32, routedTokens*routedTopK)
		for i := range ids {
			ids[i] = int32(f(i))
		}
		return ids
	}
	return map[string][]int32{
		"uniform":        make(func(i int) int { return i % routedExperts }),
		"skewed":         make(func(i int) int { return int(math.Sqrt(float64(i*i%(routedExperts*routedExperts)))) % routedExperts }),
		"all to one":     make(func(int) int { return 3 }),
		"half empty":     make(func(i int) int { return 2 * (i % (routedExperts / 2)) }),
		"all rows empty": make(func(int) int { return -1 }),
		"some dropped":   make(func(i int) int { return i%(routedExperts+1) - 1 }),
	}
}

// TestGPU_Hazard03_Routings: captured with even counts, replayed with others; each equals eager mode to the bit, and
// the host within rounding. Nothing is captured anew.
func TestGPU_Hazard03_Routings(t *testing.T) {
	dev := openGPU(t)
	run := func(d graph.Device, opt graph.Options, again bool) map[string][]result {
		r := newRouted()
		e := r.open(t, d, opt)
		all := map[string][]result{}
		var captured *cudadev.Captured
		for _, name := range slices.Sorted(keysOf(routings())) {
			must(t, e.Write(r.ids, routings()[name]))
			for range 3 {
				must(t, e.Replay(t.Context()))
			}
			all[name] = r.results(t, e)
			if !again {
				continue
			}
			c, err := e.Runner().(*cudadev.Runner).Captured()
			must(t, err)
			if captured != nil && c.Nodes[0].Handle != captured.Nodes[0].Handle {
				t.Errorf("%s: the graph was captured anew", name)
			}
			captured = c
		}
		must(t, e.Close())
		if d != graph.Device(host.Device{}) {
			must(t, r.vars.Free())
		}
		return all
	}
	want := run(host.Device{}, graph.Options{}, false)
	eager := run(dev, graph.Options{Debug: graph.Debug{Eager: true}}, false)
	got := run(dev, graph.Options{}, true)
	// On several streams with shared bytes, and on one with every workspace apart: a plan changes no bit.
	wide := run(dev, graph.Options{Streams: 4, ForceStreams: true, Debug: graph.Debug{Poison: true}}, true)
	apart := run(dev, graph.Options{Streams: 1, Debug: graph.Debug{Apart: true, Poison: true}}, true)
	for name := range routings() {
		for i := range want[name] {
			if err := compare(got[name][i], want[name][i], tolerance{rough: 4e-3}); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if !sameBits(got[name][i], eager[name][i]) {
				t.Errorf("%s: %s: captured and eager differ", name, want[name][i].name)
			}
			if !sameBits(got[name][i], wide[name][i]) || !sameBits(got[name][i], apart[name][i]) {
				t.Errorf("%s: %s: plans differ", name, want[name][i].name)
			}
		}
	}
}

func keysOf[V any](m map[string]V) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// TestGPU_Hazard11_Counters: tile counters, flags and all other scratch are garbage before each of many replays with
// alternating inputs; each equals eager mode.
func TestGPU_Hazard11_Counters(t *testing.T) {
	dev := openGPU(t)
	replays := 1000
	if testing.Short() {
		replays = 50
	}
	r, q := newRouted(), newRouted()
	e, eager := r.open(t, dev, graph.Options{}), q.open(t, dev, graph.Options{Debug: graph.Debug{Eager: true}})
	want := map[string][]result{}
	for name, ids := range routings() {
		must(t, eager.Write(q.ids, ids))
		must(t, eager.Replay(t.Context()))
		want[name] = q.results(t, eager)
	}
	names := slices.Sorted(keysOf(routings()))
	for i := range replays {
		name := names[i*i%len(names)]
		must(t, e.Write(r.ids, routings()[name]))
		must(t, e.Replay(t.Context()))
		if i%17 != 0 && i != replays-1 { // the others run back to back
			continue
		}
		if got := r.results(t, e); !slices.EqualFunc(got, want[name], sameBits) {
			t.Fatalf("replay %d, %s: differs from eager mode", i, name)
		}
	}
}

// TestGPU_Hazard06_TwoWGrads: two weight gradients back to back, without a common operand.
func TestGPU_Hazard06_TwoWGrads(t *testing.T) {
	dev := openGPU(t)
	c := gpuCase{"two wgrads", func(b *gpuGraph) {
		for i := range 2 {
			s := gpuGroupings[2+3*i]
			var ends, real []int32
			m := 0
			for _, n := range s.counts {
				m += (n + s.align - 1) / s.align * s.align
				ends, real = append(ends, int32(m)), append(real, int32(n))
			}
			name := func(s string) string { return fmt.Sprint(s, i) }
			offsets, counts := b.ints(name("offsets"), ends, len(ends)), b.ints(name("counts"), real, len(real))
			b.out(WGrad{A: b.floats(name("a"), bf16, m, 136), B: b.floats(name("b"), bf16, m, 264), Offsets: offsets, Counts: counts, AMajorM: true,
				Alignment: s.align, DType: f32}.Apply()...)
		}
	}}
	eager := newGPUGraph(c).replays(t, dev, graph.Options{Debug: graph.Debug{Eager: true}})
	for _, opt := range []graph.Options{{Streams: 1}, {Streams: 2, ForceStreams: true}} {
		b := newGPUGraph(c)
		e := b.open(t, dev, opt)
		for i := range 100 {
			must(t, e.Replay(t.Context()))
			if got := b.results(t, e); !slices.EqualFunc(got, eager[0], sameBits) {
				t.Fatalf("%d streams, replay %d differs from eager mode", opt.Streams, i)
			}
		}
	}
}

// TestGPU_Decoders: products whose thread blocks wait for others that decode for them, several at once on one device: none of them
// waits for ever, and all have the bits of one alone.
func TestGPU_Decoders(t *testing.T) {
	dev := openGPU(t)
	c := gpuCase{"decoders", func(b *gpuGraph) {
		b.scaledLarge(MXFP8, gpuGrouping{"", []int{1000, 0, 700, 900}, 128, 2048}, 2048, 1024, 2)
	}}
	want := newGPUGraph(c).replays(t, dev, graph.Options{Debug: graph.Debug{Eager: true}})
	const execs, replays = 4, 100
	var graphs [execs]*gpuGraph
	var es [execs]*graph.Exec
	for i := range execs {
		graphs[i] = newGPUGraph(c)
		es[i] = graphs[i].open(t, dev, graph.Options{Streams: 2, ForceStreams: true})
	}
	var all errgroup.Group
	for _, e := range es {
		all.Go(func() error {
			for range replays {
				if err := e.Replay(t.Context()); err != nil {
					return err
				}
			}
			return nil
		})
	}
	must(t, all.Wait())
	for i, b := range graphs {
		if got := b.results(t, es[i]); !slices.EqualFunc(got, want[0], sameBits) {
			t.Errorf("exec %d differs from eager mode", i)
		}
	}
}

// TestGPU_Hazard08_Overflow: more slots than rows: the overflow is counted and an error on demand.
func TestGPU_Hazard08_Overflow(t *testing.T) {
	dev := openGPU(t)
	g := graph.New("g")
	ids, x := g.Input("ids", dtype.Int32, graph.UpTo(80), 1), g.Input("x", f32, graph.UpTo(80), 8)
	r := Dispatch{TopKIdx: ids, Experts: 2, Alignment: 1, Capacity: 64}.Apply().Watch()
	a := g.Output("a", r.Permute(x))
	p, err := g.Compile(dev, graph.Options{Debug: graph.Debug{Poison: true}})
	must(t, err)
	e, err := p.Exec(nil)
	must(t, err)
	defer e.Close()
	const rows, guard = 64 * 8, 64
	m, err := dev.Alloc(4*(rows+guard), "guarded")
	must(t, err)
	defer m.Free()
	must(t, e.Bind(a, graph.DeviceMemory{Addr: uintptr(m.(graph.Addressed).Addr()), Bytes: 4 * rows}))
	for _, tokens := range []int{64, 65, 80} {
		must(t, e.Write(ids, make([]int32, tokens)))
		must(t, e.Write(x, ones(tokens*8)))
		must(t, e.Replay(t.Context()))
		if err := r.Check(e); (err != nil) != (tokens > 64) || err != nil && !errors.Is(err, graph.ErrShape) {
			t.Errorf("%d tokens: Check: %v", tokens, err)
		}
		after := make([]byte, 4*guard)
		must(t, m.Read(4*rows, after))
		if slices.ContainsFunc(after, func(b byte) bool { return b != 0 }) {
			t.Errorf("%d tokens: bytes after the buffer were written", tokens)
		}
	}
}

// TestGPU_Hazard01_UnusedRows: rows past the last offset are untouched, padding rows zero.
func TestGPU_Hazard01_UnusedRows(t *testing.T) {
	dev := openGPU(t)
	g := graph.New("g")
	const m, k, n = 64, 72, 136
	a, w := g.Input("a", bf16, m, k), g.Input("w", bf16, 2, n, k)
	offsets, counts := g.Input("offsets", dtype.Int32, 2), g.Input("counts", dtype.Int32, 2)
	d, _ := GroupedGEMM{A: a, B: Dense(w), PaddedOffsets: offsets, Counts: counts, Alignment: 8, DType: f32}.Apply()
	g.Output("d", d)
	p, err := g.Compile(dev, graph.Options{})
	must(t, err)
	e, err := p.Exec(nil)
	must(t, err)
	defer e.Close()
	out, err := dev.Alloc(4*m*n, "out")
	must(t, err)
	defer out.Free()
	must(t, e.Bind(d, graph.DeviceMemory{Addr: uintptr(out.(graph.Addressed).Addr()), Bytes: 4 * m * n}))
	nan := make([]float32, m*k) // padding may hold anything
	for i := range nan {
		nan[i] = float32(math.NaN())
	}
	copy(nan, ones(21*k))
	copy(nan[24*k:], ones(16*k))
	for _, x := range []gpuInput{{a, nan}, {w, ones(2 * n * k)}, {offsets, []int32{24, 40}}, {counts, []int32{21, 16}}} {
		must(t, e.Write(x.v, x.x))
	}
	poison := slices.Repeat([]byte{0xff}, 4*m*n)
	for range 3 {
		must(t, out.Write(0, poison))
		must(t, e.Replay(t.Context()))
		must(t, e.Wait())
		got := make([]byte, 4*m*n)
		must(t, out.Read(0, got))
		for i, v := range graph.View[float32](got) {
			row := i / n
			switch {
			case row >= 40:
				if math.Float32bits(v) != 0xffffffff {
					t.Fatalf("row %d past the last offset was written: %v", row, v)
				}
			case row >= 21 && row < 24:
				if v != 0 {
					t.Fatalf("padding row %d is %v", row, v)
				}
			case v != k:
				t.Fatalf("row %d is %v, want %d", row, v, k)
			}
		}
	}
}

// lm is a small language model's whole step on text that repeats itself: embedding, norm, layer, head, loss, clipping and
// AdamW.
type lm struct {
	g              *graph.Graph
	vars           *graph.Vars
	tokens, labels *graph.Value
	loss           *graph.Value
}

const (
	lmBatch   = 256
	lmContext = 4
)

func newLM(compute dtype.DType) lm {
	m := lm{g: graph.New("lm"), vars: graph.NewVars(11)}
	m.tokens = m.g.Input("tokens", dtype.Int32, graph.UpTo(lmBatch), lmContext)
	m.labels = m.g.Input("labels", dtype.Int32, graph.UpTo(lmBatch))
	const h = lmContext * 16
	x := Embedding(m.tokens, m.vars.ParamOf("embed", f32, graph.Normal(1), 64, 16))
	y, aux := MoELayer(RMSNorm(x, m.vars.ParamOf("norm", f32, graph.Const(1), h)), m.vars.Scope("moe"),
		MoE{Experts: 8, TopK: 2, Intermediate: 64, Alignment: 16, Compute: compute})
	z := Cast(RMSNorm(Add(x, y), m.vars.ParamOf("norm2", f32, graph.Const(1), h)), compute)
	m.loss = m.g.Output("loss", CrossEntropy(Linear(z, m.vars.Param("head", 64, h), LinearConfig{DType: f32}), m.labels))
	grads, _ := ClipGlobalNorm(m.g.Gradients(m.loss.Plus(aux.Balance.Scale(0.01)), m.vars.All()...), 1)
	AdamW(grads, AdamWConfig{Rate: 3e-3, Schedule: Schedule{Kind: CosineDecay, Warmup: 5, Total: 100}})
	return m
}

// batch is the i-th piece of an endless text with structure.
func (m lm) batch(i int) (tokens, labels []int32) {
	at := func(n int) int32 { return int32((n*n/7 + n*5) % 64) }
	for r := range lmBatch - i%3 { // the rows change too
		n := i*lmBatch + r
		for c := range lmContext {
			tokens = append(tokens, at(n+c))
		}
		labels = append(labels, at(n+lmContext))
	}
	return tokens, labels
}

func (m lm) train(t testing.TB, d graph.Device, steps int) (losses []float64) {
	t.Helper()
	p, err := m.g.Compile(d, graph.Options{})
	must(t, err)
	e, err := p.Exec(m.vars)
	must(t, err)
	defer e.Close()
	for i := range steps {
		tokens, labels := m.batch(i)
		must(t, e.Write(m.tokens, tokens))
		must(t, e.Write(m.labels, labels))
		must(t, e.Replay(t.Context()))
		loss, err := e.Scalar(m.loss)
		must(t, err)
		losses = append(losses, loss)
	}
	if r, ok := e.Runner().(*cudadev.Runner); ok {
		checkCaptured(t, m.g, r, graph.Options{}) // hazard 15: the whole step
	}
	return losses
}

// TestGPU_Training: the loss of each of 50 steps is within 0.01 nats of the host's, and the model learns.
func TestGPU_Training(t *testing.T) {
	dev := openGPU(t)
	for _, compute := range []dtype.DType{f32, bf16} {
		t.Run(compute.String(), func(t *testing.T) {
			const steps = 50
			want, got := newLM(compute).train(t, host.Device{}, steps), newLM(compute).train(t, dev, steps)
			for i := range want {
				if !(math.Abs(got[i]-want[i]) <= 0.01) {
					t.Fatalf("step %d: loss %.4f, on the host %.4f", i, got[i], want[i])
				}
			}
			t.Logf("loss %.4f to %.4f, on the host %.4f", got[0], got[steps-1], want[steps-1])
			if got[steps-1] > got[0]-0.3 {
				t.Errorf("the loss went from %.3f to %.3f", got[0], got[steps-1])
			}
		})
	}
}

// TestGPU_Identical: 50 replays of a layer give identical bits, on one stream and on several.
func TestGPU_Identical(t *testing.T) {
	dev := openGPU(t)
	var first []result
	for _, opt := range []graph.Options{{}, {Streams: 4, ForceStreams: true}} {
		r := newRouted()
		e := r.open(t, dev, opt)
		must(t, e.Write(r.ids, routings()["skewed"]))
		for i := range 50 {
			must(t, e.Replay(t.Context()))
			got := r.results(t, e)
			if first == nil {
				first = got
			}
			if !slices.EqualFunc(got, first, sameBits) {
				t.Fatalf("%d streams, replay %d differs", opt.Streams, i)
			}
		}
	}
}

// TestGPU_Hazard13_OtherWeights: weights that are written between replays are used everywhere by the next, their casts
// included.
func TestGPU_Hazard13_OtherWeights(t *testing.T) {
	dev := openGPU(t)
	run := func(d graph.Device) (all []result) {
		r := newRouted()
		e := r.open(t, d, graph.Options{})
		must(t, e.Write(r.ids, routings()["uniform"]))
		for i := range 3 {
			for _, v := range r.vars.All() {
				x := noise(uint64(i), v.Elems())
				must(t, r.vars.Write(v, x))
			}
			must(t, e.Replay(t.Context()))
			all = append(all, r.results(t, e)...)
		}
		return all
	}
	want, got := run(host.Device{}), run(dev)
	for i := range want {
		if err := compare(got[i], want[i], tolerance{rough: 4e-3}); err != nil {
			t.Error(err)
		}
	}
}

// TestGPU_Hazard27_Random: two replays draw other numbers, the same seed reproduces both.
func TestGPU_Hazard27_Random(t *testing.T) {
	dev := openGPU(t)
	run := func() [2][]result {
		return newGPUGraph(gpuCase{"random", func(b *gpuGraph) {
			r := NewRandom(b.vars, "random", 3)
			b.out(Dropout(b.floats("x", f32, 64, 33), r.Draw(b.g), 0.5))
		}}).replays(t, dev, graph.Options{})
	}
	a, b := run(), run()
	if sameBits(a[0][0], a[1][0]) {
		t.Error("two replays drew the same")
	}
	for i := range a {
		if !sameBits(a[i][0], b[i][0]) {
			t.Errorf("replay %d is not reproduced", i)
		}
	}
}

// TestGPU_Cycles: 1,000 times the whole training step is bound, captured, replayed and closed, and the device has its
// memory back.
func TestGPU_Cycles(t *testing.T) {
	dev := openGPU(t)
	cycles := 1000
	if testing.Short() {
		cycles = 50
	}
	m := newLM(bf16)
	p, err := m.g.Compile(dev, graph.Options{})
	must(t, err)
	tokens, labels := m.batch(0)
	free := func() int64 {
		runtime.GC()
		must(t, dev.CUDA().Synchronize())
		n, _, err := dev.CUDA().MemInfo()
		must(t, err)
		return n
	}
	var before int64
	for i := range cycles + 20 {
		if i == 20 {
			before = free()
		}
		e, err := p.Exec(m.vars)
		must(t, err)
		must(t, e.Write(m.tokens, tokens))
		must(t, e.Write(m.labels, labels))
		must(t, e.Replay(t.Context()))
		must(t, e.Close())
	}
	if after := free(); after < before {
		t.Errorf("%d cycles cost %d bytes of the device", cycles, before-after)
	}
}
