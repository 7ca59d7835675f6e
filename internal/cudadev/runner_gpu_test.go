//go:build gpu

package cudadev

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/cuda"
	"github.com/moegraph/moegraph/kernels"
)

var manyStreams = graph.Options{Streams: 3, ForceStreams: true}

// TestRunner_Captured: a plan of three streams gives the right numbers for changing inputs and rows; the graph that
// CUDA tells has the planned nodes and an order that implies the plan's.
func TestRunner_Captured(t *testing.T) {
	d := openGPU(t)
	l := newLadder(64, 4)
	e, p := open(t, d, l.g, nil, manyStreams)
	if p.Streams() < 2 {
		t.Fatalf("the plan has %d streams, want several", p.Streams())
	}
	for i, rows := range []int{64, 7, 1, 0, 64, 33} {
		x := numbers(rows, float32(i))
		must(t, e.Write(l.x, x))
		for range 10 {
			replay(t, e)
		}
		equal(t, read(t, e, l.y), want(x, 4), "%d rows", rows)
	}
	r := e.Runner().(*Runner)
	c, err := r.Captured()
	must(t, err)
	if len(c.Nodes) != len(p.Steps()) {
		t.Errorf("got %d nodes, want %d", len(c.Nodes), len(p.Steps()))
	}
	for _, n := range c.Nodes {
		if n.Type != cuda.KernelNode || n.Kernel != "affine" {
			t.Errorf("got node %v, want kernel affine alone", n)
		}
	}
	must(t, p.VerifyOrder(c.Order()))
	// The check itself must see a missing edge.
	c.Edges = c.Edges[1:]
	if p.VerifyOrder(c.Order()) == nil {
		t.Error("an order without one of its edges passes")
	}
}

// TestRunner_Eager: node by node the numbers are the same, and every node has a time.
func TestRunner_Eager(t *testing.T) {
	d := openGPU(t)
	l := newLadder(64, 4)
	opt := manyStreams
	opt.Debug.Eager = true
	e, p := open(t, d, l.g, nil, opt)
	r := e.Runner().(*Runner)
	if _, err := r.Times(); !errors.Is(err, graph.ErrUsage) {
		t.Errorf("times before a replay: %v", err)
	}
	x := numbers(64, 1)
	must(t, e.Write(l.x, x))
	for range 3 {
		replay(t, e)
	}
	equal(t, read(t, e, l.y), want(x, 4), "eager")
	times, err := r.Times()
	must(t, err)
	for i, s := range p.Steps() {
		if times[i].Name != s.Name || times[i].Time <= 0 || times[i].Time > time.Second {
			t.Errorf("step %d: got %+v", i, times[i])
		}
	}
	profile, err := e.Profile(t.Context(), 3)
	must(t, err)
	for i, s := range p.Steps() {
		if x := profile[i]; x.Name != s.Name || x.EndUS <= x.StartUS || x.EndUS > 1e6 {
			t.Errorf("step %d: got %+v", i, x)
		}
	}
	if _, err := p.WithProfile(profile); err != nil {
		t.Error(err)
	}
	if _, err := r.Captured(); !errors.Is(err, graph.ErrUsage) {
		t.Errorf("the captured graph of eager mode: %v", err)
	}
}

// adder is v += x.
func adder(t testing.TB, dev graph.Device, vars *graph.Vars) (*graph.Exec, *graph.Value, *graph.Value) {
	t.Helper()
	g := graph.New("adder")
	x := g.Input("x", dtype.Float32, 1, width)
	old := g.Output("old", graph.Apply(add{}, vars.ParamOf("v", dtype.Float32, graph.Const(0), 1, width), x)[0])
	e, _ := open(t, dev, g, vars, graph.Options{})
	return e, x, old
}

func all(x float32) []float32 {
	v := make([]float32, width)
	for i := range v {
		v[i] = x
	}
	return v
}

// TestRunner_WritesAreOrdered: many Writes and replays, none waited for, each Write before its own replay.
func TestRunner_WritesAreOrdered(t *testing.T) {
	d := openGPU(t)
	vars := graph.NewVars(1)
	e, x, old := adder(t, d, vars)
	sum := float32(0)
	data := all(0)
	for i := range 500 {
		for k := range data {
			data[k] = float32(i % 7)
		}
		must(t, e.Write(x, data))
		replay(t, e)
		sum += float32(i % 7)
	}
	equal(t, read(t, e, vars.Lookup("v")), all(sum), "after 500 replays")
	equal(t, read(t, e, old), all(sum-float32(499%7)), "before the last")
	must(t, e.Wait())
	must(t, vars.Write(vars.Lookup("v"), all(5)))
	replay(t, e)
	var v [width]float32
	must(t, vars.Read(vars.Lookup("v"), v[:]))
	equal(t, v[:], all(5+float32(499%7)), "after Vars.Write")
}

// TestRunner_SharedVariables: two writers and a reader of one Vars, in the order of issue.
func TestRunner_SharedVariables(t *testing.T) {
	d := openGPU(t)
	vars := graph.NewVars(1)
	w1, x1, _ := adder(t, d, vars)
	w2, x2, _ := adder(t, d, vars)
	g := graph.New("reader")
	y := g.Output("y", graph.Apply(affine{1}, g.Use(vars.Lookup("v")))[0])
	r, _ := open(t, d, g, vars, graph.Options{})
	must(t, w1.Write(x1, all(1)))
	must(t, w2.Write(x2, all(100)))
	total := float32(0)
	for range 50 {
		for range 20 {
			replay(t, w1)
		}
		replay(t, r)
		replay(t, w2)
		equal(t, read(t, r, y), all(total+20), "the reader between the writers")
		total += 120
	}
}

// TestRunner_CallersMemoryAndStream: inputs, outputs and variables in memory of the caller, other memory from call to
// call, on a stream of the caller.
func TestRunner_CallersMemoryAndStream(t *testing.T) {
	d := openGPU(t)
	vars := graph.NewVars(1)
	e, x, old := adder(t, d, vars)
	const bytes = 4 * width
	block := func(v float32) (*cuda.Memory, graph.DeviceMemory) {
		m, err := d.dev.Alloc(bytes, "the caller's")
		must(t, err)
		t.Cleanup(func() { m.Free() })
		must(t, m.Write(0, f32Bytes(all(v))))
		return m, graph.DeviceMemory{Addr: uintptr(m.Ptr()), Bytes: bytes}
	}
	_, a := block(1)
	_, b := block(10)
	v, vm := block(3)
	out, om := block(0)
	must(t, e.Bind(vars.Lookup("v"), vm))
	must(t, e.Bind(old, om))
	s, err := d.dev.NewStream("the caller's")
	must(t, err)
	defer s.Close()
	sum := float32(3)
	for i := range 20 {
		m, n := a, float32(1)
		if i%2 == 1 {
			m, n = b, 10
		}
		must(t, e.Write(x, m))
		switch i % 3 {
		case 0:
			replay(t, e)
		case 1:
			must(t, e.ReplayOn(context.Background(), s.CU()))
		default:
			must(t, e.ReplayOn(context.Background(), s))
		}
		sum += n
	}
	must(t, s.Synchronize())
	must(t, e.Wait())
	got := make([]float32, width)
	must(t, v.Read(0, f32Bytes(got)))
	equal(t, got, all(sum), "the variable")
	must(t, out.Read(0, f32Bytes(got)))
	equal(t, got, all(sum-10), "the output")
	equal(t, read(t, e, old), all(sum-10), "Read of the bound output")
	if err := e.ReplayOn(context.Background(), "x"); !errors.Is(err, graph.ErrUnsupported) {
		t.Errorf("a string as a stream: %v", err)
	}
	if err := e.Bind(old, b); err == nil { // where the last round's input lies
		t.Error("an output over an input passes")
	}
}

// TestRunner_ReplayAllocates nothing in Go.
func TestRunner_ReplayAllocates(t *testing.T) {
	d := openGPU(t)
	vars := graph.NewVars(1)
	g := graph.New("adder")
	x := g.Input("x", dtype.Float32, 1, width)
	graph.Apply(add{}, vars.ParamOf("v", dtype.Float32, graph.Const(0), 1, width), x)
	p, err := g.Compile(d, graph.Options{})
	must(t, err)
	e, err := p.Exec(vars)
	must(t, err)
	defer e.Close()
	must(t, e.Write(x, all(1)))
	replay(t, e)
	ctx := context.Background()
	if n := testing.AllocsPerRun(1000, func() { must(t, e.Replay(ctx)) }); n != 0 {
		t.Errorf("a replay allocates %v times", n)
	}
}

// TestRunner_LaunchTime: a replay costs Go at most half a microsecond more than C.
func TestRunner_LaunchTime(t *testing.T) {
	d := openGPU(t)
	l := newLadder(64, 9)
	p, err := l.g.Compile(d, graph.Options{})
	must(t, err)
	e, err := p.Exec(nil)
	must(t, err)
	defer e.Close()
	must(t, e.Write(l.x, numbers(64, 0)))
	ctx := context.Background()
	inGo, inC, err := e.Runner().(*Runner).LaunchUS(5, 2000, func() error { return e.Replay(ctx) })
	must(t, err)
	t.Logf("%d nodes: %.2f us from Go, %.2f us from C", len(p.Steps()), inGo, inC)
	if inGo > inC+0.5 {
		t.Errorf("got %.2f us, want at most %.2f + 0.5", inGo, inC)
	}
}

// TestHazard03_OtherRows: captured with all rows, replayed with others; each equals eager mode.
func TestHazard03_OtherRows(t *testing.T) {
	d := openGPU(t)
	l, k := newLadder(64, 3), newLadder(64, 3)
	e, _ := open(t, d, l.g, nil, graph.Options{})
	eager, _ := open(t, d, k.g, nil, graph.Options{Debug: graph.Debug{Eager: true}})
	for _, rows := range []int{64, 1, 0, 63} {
		x := numbers(rows, 3)
		must(t, e.Write(l.x, x))
		must(t, eager.Write(k.x, x))
		replay(t, e)
		replay(t, eager)
		equal(t, read(t, e, l.y), read(t, eager, k.y), "%d rows", rows)
	}
}

// TestHazard04_OtherProgram: another program that needs more, and its end, leave a captured one as it is.
func TestHazard04_OtherProgram(t *testing.T) {
	d := openGPU(t)
	l := newLadder(8, 3)
	e, _ := open(t, d, l.g, nil, graph.Options{})
	x := numbers(8, 1)
	must(t, e.Write(l.x, x))
	replay(t, e)
	b := newLadder(4096, 5)
	other, _ := open(t, d, b.g, nil, manyStreams)
	must(t, other.Write(b.x, numbers(4096, 2)))
	replay(t, other)
	replay(t, e)
	equal(t, read(t, e, l.y), want(x, 3), "beside a larger program")
	must(t, other.Close())
	for range 10 {
		replay(t, e)
	}
	equal(t, read(t, e, l.y), want(x, 3), "after the larger program's end")
}

// one is y = Factor*x.
func one(t testing.TB, d *Device, factor float64) (*graph.Exec, *graph.Value, *graph.Value) {
	t.Helper()
	g := graph.New("one")
	x := g.Input("x", dtype.Float32, 1, width)
	y := g.Output("y", graph.Apply(affine{factor}, x)[0])
	e, _ := open(t, d, g, nil, graph.Options{})
	return e, x, y
}

// TestHazard05_Eviction: in a cache of size 1 the kernels of a live Exec stay, also while others come and go, during
// captures too.
func TestHazard05_Eviction(t *testing.T) {
	d := openGPU(t).withCache(t, kernels.Config{MaxModules: 1})
	a, x, y := one(t, d, 2)
	must(t, a.Write(x, all(1)))
	replay(t, a)
	b, bx, by := one(t, d, 3)
	must(t, b.Write(bx, all(1)))
	replay(t, b)
	equal(t, read(t, b, by), all(3), "the second kernel")
	must(t, b.Close())
	runtime.GC()
	replay(t, a)
	equal(t, read(t, a, y), all(2), "the first kernel")
	cache, err := d.cache()
	must(t, err)
	if got := cache.Stats(); got.Loaded != 1 || got.Unloaded != 1 {
		t.Errorf("got %+v, want the second kernel gone", got)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				s, err := cache.Acquire([]graph.Kernel{{Name: "affine", Source: affineSource, Inline: true, Params: struct{ Factor float32 }{float32(4 + i%3)}}}, nil)
				if err == nil {
					err = s.Close()
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	for i := range 100 {
		c, cx, cy := one(t, d, 2)
		must(t, c.Write(cx, all(float32(i))))
		replay(t, c)
		equal(t, read(t, c, cy), all(2*float32(i)), "capture %d beside evictions", i)
		must(t, c.Close())
	}
	close(stop)
	wg.Wait()
	replay(t, a)
	equal(t, read(t, a, y), all(2), "the first kernel at last")
}

// TestHazard09_Goroutines: many goroutines on Execs of their own, moving between threads.
func TestHazard09_Goroutines(t *testing.T) {
	d := openGPU(t)
	old := runtime.GOMAXPROCS(16)
	defer runtime.GOMAXPROCS(old)
	var wg sync.WaitGroup
	for g := range 64 {
		wg.Go(func() {
			l := newLadder(4, 2)
			p, err := l.g.Compile(d, manyStreams)
			if err != nil {
				t.Error(err)
				return
			}
			for range 10 {
				e, err := p.Exec(nil)
				if err != nil {
					t.Error(err)
					return
				}
				for i := range 30 {
					x := numbers(1+i%4, float32(g))
					err = errors.Join(err, e.Write(l.x, x))
					runtime.Gosched()
					err = errors.Join(err, e.Replay(context.Background()))
					runtime.Gosched()
					got := make([]float32, 4*width)
					_, readErr := e.Read(l.y, got)
					err = errors.Join(err, readErr)
					if w := want(x, 2); got[width-1] != w[width-1] {
						t.Errorf("goroutine %d: got %v, want %v", g, got[width-1], w[width-1])
					}
				}
				if err = errors.Join(err, e.Close()); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// TestHazard10_Intruder: captures succeed while another goroutine allocates, frees and synchronizes the device.
func TestHazard10_Intruder(t *testing.T) {
	d := openGPU(t)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				m, err := d.Alloc(1<<20, "intruder")
				if err == nil {
					err = errors.Join(m.Write(0, make([]byte, 1<<10)), d.dev.Synchronize(), m.Free())
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	l := newLadder(4, 3)
	p, err := l.g.Compile(d, manyStreams)
	must(t, err)
	for range 100 {
		e, err := p.Exec(nil)
		must(t, err)
		x := numbers(4, 1)
		must(t, e.Write(l.x, x))
		replay(t, e)
		equal(t, read(t, e, l.y), want(x, 3), "beside the intruder")
		must(t, e.Close())
	}
	close(stop)
	wg.Wait()
}

// TestHazard12_LaterMemory: memory that the user allocates after the capture is the user's.
func TestHazard12_LaterMemory(t *testing.T) {
	d := openGPU(t)
	l := newLadder(64, 4)
	e, _ := open(t, d, l.g, nil, manyStreams)
	must(t, e.Write(l.x, numbers(64, 1)))
	replay(t, e)
	must(t, e.Wait())
	m, err := d.Alloc(4*width, "the user's")
	must(t, err)
	defer m.Free()
	must(t, m.Write(0, f32Bytes(all(7))))
	for range 10 {
		replay(t, e)
	}
	must(t, e.Wait())
	got := make([]float32, width)
	must(t, m.Read(0, f32Bytes(got)))
	equal(t, got, all(7), "the user's memory")
	c, err := e.Runner().(*Runner).Captured()
	must(t, err)
	for _, n := range c.Nodes {
		if n.Type != cuda.KernelNode {
			t.Errorf("got node %v, want kernels alone", n)
		}
	}
}

// TestHazard16_FailedCaptures: a capture that fails halfway, with side streams forked, names stream and node; nothing
// leaks and the next capture works.
func TestHazard16_FailedCaptures(t *testing.T) {
	d := openGPU(t)
	try := func() {
		l := newLadder(4, 3, broken{})
		p, err := l.g.Compile(d, manyStreams)
		must(t, err)
		e, err := p.Exec(nil)
		must(t, err)
		must(t, e.Write(l.x, numbers(4, 1)))
		err = e.Replay(context.Background())
		if err == nil || !strings.Contains(err.Error(), `broken "bad" on stream "`) || !strings.Contains(err.Error(), `kernel "broken": argument 0`) {
			t.Fatalf("got %v, want the node, the stream and the kernel", err)
		}
		if err := e.Replay(context.Background()); err == nil {
			t.Fatal("the second try passes")
		}
		must(t, e.Wait())
		must(t, e.Close())
	}
	good := func() {
		l := newLadder(4, 3)
		e, _ := open(t, d, l.g, nil, manyStreams)
		x := numbers(4, 1)
		must(t, e.Write(l.x, x))
		replay(t, e)
		equal(t, read(t, e, l.y), want(x, 3), "after failed captures")
		must(t, e.Close())
	}
	for range 5 {
		try()
		good()
	}
	before := free(t, d)
	for range 100 {
		try()
	}
	good()
	if after := free(t, d); after < before {
		t.Errorf("100 failed captures cost %d bytes of the device", before-after)
	}
}

// TestRunner_Cycles: programs come and go, with changing addresses, and the device's memory stays as it is.
func TestRunner_Cycles(t *testing.T) {
	d := openGPU(t)
	l := newLadder(256, 3)
	p, err := l.g.Compile(d, manyStreams)
	must(t, err)
	x := numbers(256, 1)
	cycle := func() {
		e, err := p.Exec(nil)
		must(t, err)
		must(t, e.Write(l.x, x))
		replay(t, e)
		must(t, e.Close())
	}
	for range 50 {
		cycle()
	}
	before := free(t, d)
	for range 1000 {
		cycle()
	}
	if after := free(t, d); after < before {
		t.Errorf("1000 cycles cost %d bytes of the device", before-after)
	}
}

// TestRunner_TooManyThreads: a launch that its kernel was not compiled for is refused when the program is loaded.
func TestRunner_TooManyThreads(t *testing.T) {
	d := openGPU(t)
	l := newLadder(4, 3, broken{Wide: true})
	p, err := l.g.Compile(d, graph.Options{})
	must(t, err)
	_, err = p.Exec(nil)
	if !errors.Is(err, graph.ErrShape) || !strings.Contains(err.Error(), `broken "bad": kernel "broken": block: got 1024 threads, want at most the 32`) {
		t.Errorf("got %v, want the node, its kernel and the threads", err)
	}
}

// TestRunner_NoMemory: a failed allocation names what it was for.
func TestRunner_NoMemory(t *testing.T) {
	d := openGPU(t)
	g := graph.New("huge")
	x := g.Input("x", dtype.Float32, 1<<20, 1<<20)
	g.Output("y", graph.Apply(affine{2}, x)[0])
	p, err := g.Compile(d, graph.Options{})
	must(t, err)
	_, err = p.Exec(nil)
	if !errors.Is(err, graph.ErrDevice) || !errors.Is(err, cuda.ErrOutOfMemory) || !strings.Contains(err.Error(), "output affine") {
		t.Errorf("got %v, want out of memory for the output", err)
	}
}

// TestOpen_Names: names of devices.
func TestOpen_Names(t *testing.T) {
	for _, name := range []string{"cuda:", "cuda:x", "cuda:-1", "gpu:0", "cuda:99"} {
		if _, err := Open(name); !errors.Is(err, graph.ErrDevice) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if cuda.Available() != nil {
		return
	}
	a, err := graph.Open("cuda")
	must(t, err)
	b, err := graph.Open("cuda:0")
	must(t, err)
	if a != b || fmt.Sprint(a) != "cuda:0" {
		t.Errorf("got %v and %v, want one device", a, b)
	}
}
