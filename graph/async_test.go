package graph_test

import (
	"context"
	"errors"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/asyncdev"
)

type (
	asyncDevice = asyncdev.Device
	asyncRunner = asyncdev.Runner
)

func newAsyncDevice(t testing.TB, pause time.Duration) asyncDevice {
	t.Helper()
	return asyncdev.New(host(t), pause)
}

// addOp adds x to a variable, whose old value it gives.
type addOp struct{}

func (addOp) Kind() string { return "test_add" }
func (addOp) Operands() []graph.Operand {
	return []graph.Operand{{Name: "v", Update: true}, {Name: "x"}}
}
func (addOp) Outputs() []string { return []string{"old"} }

func (addOp) Infer(in []*graph.Value) ([]graph.Spec, error) {
	return []graph.Spec{{DType: dtype.Float32, Shape: in[0].Shape()}}, nil
}

func (addOp) Host(c *graph.Call) func() error {
	return func() error {
		v, x := graph.View[float32](c.In[0].Data), graph.View[float32](c.In[1].Data)
		for i := range c.In[0].Shape[0] {
			if c.Out[0] != nil {
				graph.View[float32](c.Out[0].Data)[i] = v[i]
			}
			v[i] += x[i]
		}
		return nil
	}
}

// adder is v += x; reader is y = v.
func adder(t testing.TB, dev graph.Device, vars *graph.Vars) (e *graph.Exec, x, old *graph.Value) {
	t.Helper()
	g := graph.New("adder")
	x = g.Input("x", dtype.Float32, 4)
	old = g.Output("old", graph.Apply(addOp{}, vars.ParamOf("v", dtype.Float32, graph.Const(0), 4), x)[0])
	return openOn(t, dev, g, vars), x, old
}

func reader(t testing.TB, dev graph.Device, vars *graph.Vars) (e *graph.Exec, y *graph.Value) {
	t.Helper()
	g := graph.New("reader")
	y = g.Output("y", graph.Apply(copyOp{}, g.Use(vars.ParamOf("v", dtype.Float32, graph.Const(0), 4)))[0])
	return openOn(t, dev, g, vars), y
}

func openOn(t testing.TB, dev graph.Device, g *graph.Graph, vars *graph.Vars) *graph.Exec {
	t.Helper()
	p, err := g.Compile(dev, graph.Options{Debug: graph.Debug{Poison: true}})
	check(t, err)
	return open(t, p, vars)
}

func four(x float32) []float32 { return []float32{x, x, x, x} }

// TestAsync_WritesAreOrdered: a Write comes after the replays issued before it and before the next; its slice may
// change at once. Read waits.
func TestAsync_WritesAreOrdered(t *testing.T) {
	vars := graph.NewVars(1)
	e, x, old := adder(t, newAsyncDevice(t, 2*time.Millisecond), vars)
	data := make([]float32, 4)
	for i := range 10 {
		copy(data, four(float32(int(1)<<i)))
		check(t, e.Write(x, data))
		replay(t, e)
		copy(data, four(-1))
	}
	if got := read(t, e, old); got[0] != 511 {
		t.Errorf("the last replay saw v = %v, want 511", got)
	}
	if got := read(t, e, vars.Lookup("v")); got[3] != 1023 {
		t.Errorf("got v = %v, want 1023", got)
	}
	if got, err := e.Scalar(old); err == nil {
		t.Errorf("got a scalar %v of four elements", got)
	}
	check(t, e.Wait())
}

// TestAsync_SharedVariables: Execs on one Vars see each other's updates in the order of issue, and nobody follows who
// need not.
func TestAsync_SharedVariables(t *testing.T) {
	vars := graph.NewVars(1)
	dev := newAsyncDevice(t, time.Millisecond)
	w1, x1, _ := adder(t, dev, vars)
	w2, x2, _ := adder(t, dev, vars)
	r1, y1 := reader(t, dev, vars)
	check(t, w1.Write(x1, four(1)))
	check(t, w2.Write(x2, four(10)))
	want := float32(0)
	for i := range 5 {
		for range i + 1 {
			replay(t, w1)
			want++
		}
		replay(t, r1)
		replay(t, r1)
		replay(t, w2)
		replay(t, w2)
		if got := read(t, r1, y1); got[0] != want {
			t.Fatalf("round %d: the reader saw %v, want %v", i, got, want)
		}
		want += 20
	}
	for i, c := range []struct {
		e    *graph.Exec
		want int
	}{
		{w1, 4},  // after each of the other writer's turns; the readers followed by that one are not followed again
		{w2, 10}, // after the other writer and the reader
		{r1, 5},  // once after each writer's turn
	} {
		if got := c.e.Runner().(*asyncRunner).Follows; got != c.want {
			t.Errorf("Exec %d followed %d times, want %d", i, got, c.want)
		}
	}
	var v [4]float32
	check(t, vars.Read(vars.Lookup("v"), v[:]))
	if v[0] != want {
		t.Errorf("Vars.Read: got %v, want %v", v, want)
	}
	replay(t, w1)
	check(t, vars.Write(vars.Lookup("v"), four(100)))
	replay(t, w1)
	path := filepath.Join(t.TempDir(), "v")
	check(t, vars.Save(path, nil))
	replay(t, w1)
	var b [4]byte
	check(t, vars.ReadBytes(vars.Lookup("v"), 4, b[:]))
	if got := math.Float32frombits(uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24); got != 102 {
		t.Errorf("ReadBytes: got %v, want 102", got)
	}
	_, err := vars.Load(path)
	check(t, err)
	check(t, vars.Read(vars.Lookup("v"), v[:]))
	if v[0] != 101 {
		t.Errorf("the checkpoint has %v, want 101", v)
	}
	// One that is closed is followed by nobody.
	replay(t, w1)
	check(t, w1.Close())
	replay(t, w2)
	if got := read(t, w2, vars.Lookup("v")); got[0] != 112 {
		t.Errorf("after the other writer's end: got %v, want 112", got)
	}
	// A new Exec binds while replays are under way.
	replay(t, w2)
	r2, y2 := reader(t, dev, vars)
	replay(t, r2)
	if got := read(t, r2, y2); got[0] != 122 {
		t.Errorf("a new reader saw %v, want 122", got)
	}
}

// TestAsync_Goroutines: Execs are replayed, read and closed by goroutines at once.
func TestAsync_Goroutines(t *testing.T) {
	vars := graph.NewVars(1)
	dev := newAsyncDevice(t, 0)
	w, x, _ := adder(t, dev, vars)
	check(t, w.Write(x, four(1)))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 20 {
				r, y := reader(t, dev, vars)
				check(t, r.Replay(context.Background()))
				got := make([]float32, 4)
				_, err := r.Read(y, got)
				check(t, err)
				if got[0] != got[3] {
					t.Errorf("a reader saw half an update: %v", got)
				}
				check(t, r.Close())
			}
		})
	}
	for range 100 {
		replay(t, w)
	}
	wg.Wait()
	if got := read(t, w, vars.Lookup("v")); got[0] != 100 {
		t.Errorf("got %v, want 100", got)
	}
}

// TestAsync_CallersMemory: inputs, outputs and variables live in the caller's device memory, without a copy, and may
// change from replay to replay.
func TestAsync_CallersMemory(t *testing.T) {
	dev := newAsyncDevice(t, time.Millisecond)
	vars := graph.NewVars(1)
	e, x, old := adder(t, dev, vars)
	r := e.Runner().(*asyncRunner)
	a, b, v, out := four(1), four(2), four(5), make([]float32, 4)
	check(t, e.Bind(vars.Lookup("v"), dev.MemoryOf(v)))
	check(t, e.Bind(old, dev.MemoryOf(out)))
	ma, mb := dev.MemoryOf(a), dev.MemoryOf(b)
	before := r.Rebinds
	for _, m := range []graph.DeviceMemory{ma, ma, mb, mb} {
		check(t, e.Write(x, m))
		replay(t, e)
	}
	check(t, e.Write(x, four(10)))
	replay(t, e)
	check(t, e.Wait())
	if got := r.Rebinds - before; got != 3 {
		t.Errorf("the addresses changed 3 times, the runner heard of %d", got)
	}
	if v[0] != 5+1+1+2+2+10 || out[0] != 11 {
		t.Errorf("got v = %v and old = %v, want 21 and 11", v, out)
	}
	if got := read(t, e, old); got[0] != 11 {
		t.Errorf("Read of a bound output: %v", got)
	}
	whole := make([]float32, 8)
	for what, c := range map[string]struct {
		err  error
		want string
	}{
		"bytes of an input":    {e.Write(x, graph.DeviceMemory{Addr: ma.Addr, Bytes: 12}), "got 12 bytes, want 16"},
		"bytes of an output":   {e.Bind(old, graph.DeviceMemory{Addr: ma.Addr, Bytes: 12}), "got 12 bytes, want 16"},
		"alignment":            {e.Write(x, graph.DeviceMemory{Addr: ma.Addr + 4, Bytes: 16}), "a multiple of 16"},
		"null":                 {e.Write(x, graph.DeviceMemory{Bytes: 16}), "want an address"},
		"a slice of Go":        {e.Bind(old, whole), "want DeviceMemory"},
		"output over input":    {e.Bind(old, dev.MemoryOf(a)), ""},
		"stream of a stranger": {e.ReplayOn(context.Background(), 7), "a *Queue"},
		"no stream":            {e.ReplayOn(context.Background(), nil), "no stream"},
	} {
		if what == "output over input" {
			c.err = errors.Join(e.Write(x, ma), c.err) // it was fine while x lived elsewhere
			c.want = "shares bytes"
		}
		if c.err == nil || !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", what, c.err, c.want)
		}
	}
	h, hx, _ := adder(t, host(t), graph.NewVars(1))
	if err := h.Write(hx, ma); !errors.Is(err, graph.ErrDevice) {
		t.Errorf("device memory on the host: %v", err)
	}
	if err := h.ReplayOn(context.Background(), asyncdev.NewQueue()); !errors.Is(err, graph.ErrUnsupported) {
		t.Errorf("a stream on the host: %v", err)
	}
}

// TestAsync_CallersStream: a replay on a stream of the caller is ordered with what else is on it, and with the
// Exec's own.
func TestAsync_CallersStream(t *testing.T) {
	dev := newAsyncDevice(t, time.Millisecond)
	vars := graph.NewVars(1)
	e, x, old := adder(t, dev, vars)
	in, out, seen := four(0), make([]float32, 4), float32(0)
	check(t, e.Write(x, dev.MemoryOf(in)))
	check(t, e.Bind(old, dev.MemoryOf(out)))
	q := asyncdev.NewQueue()
	for i := range 5 {
		q.Put(func() { copy(in, four(float32(i+1))) })
		check(t, e.ReplayOn(context.Background(), q))
		q.Put(func() { seen = out[0] })
		<-q.Mark() // what follows is the Exec's, on the caller's memory
		replay(t, e)
		check(t, e.Wait()) // the next round changes what it reads
	}
	if seen != 2*(1+2+3+4) || out[0] != 25 {
		t.Errorf("the caller saw %v, then %v, want 20 and 25", seen, out)
	}
}

// TestAsync_Layer: a whole layer, with counted rows, gives what it gives on the host, also when rows change.
func TestAsync_Layer(t *testing.T) {
	l := newLayer(24, dtype.Float32)
	e := openOn(t, newAsyncDevice(t, 0), l.g, l.vars)
	k := newLayer(24, dtype.Float32)
	h := open(t, compile(t, k.g, graph.Options{}), k.vars)
	for _, rows := range []int{24, 7, 1, 24} {
		got, want := l.run(t, e, uint64(rows), rows), k.run(t, h, uint64(rows), rows)
		for i := range want {
			if !slices.Equal(got[i], want[i]) {
				t.Errorf("%d rows: output %d differs from the host's", rows, i)
			}
		}
		d, err := e.Dense(l.outs[0])
		check(t, err)
		if d.Shape()[0] != rows {
			t.Errorf("%d rows: Dense has shape %v", rows, d.Shape())
		}
	}
	check(t, e.Write(l.x, normal(1, 3*layerWidth)))
	if err := e.Replay(context.Background()); !errors.Is(err, graph.ErrShape) {
		t.Errorf("rows that differ: %v", err)
	}
}

// nothing is a runner that does nothing.
type nothing struct{ *asyncRunner }

func (nothing) Replay() error { return nil }

type nothingDevice struct{ asyncDevice }

func (d nothingDevice) Load(p *graph.Program, calls []*graph.Call) (graph.Runner, error) {
	r, err := d.asyncDevice.Load(p, calls)
	return nothing{r.(*asyncRunner)}, err
}

// TestAsync_ReplayAllocatesNothing: Exec adds nothing to what a device's replay costs.
func TestAsync_ReplayAllocatesNothing(t *testing.T) {
	vars := graph.NewVars(1)
	g := graph.New("adder")
	x := g.Input("x", dtype.Float32, 4)
	graph.Apply(addOp{}, vars.ParamOf("v", dtype.Float32, graph.Const(0), 4), x)
	p, err := g.Compile(nothingDevice{newAsyncDevice(t, 0)}, graph.Options{})
	check(t, err)
	e := open(t, p, vars)
	check(t, e.Write(x, four(1)))
	ctx := context.Background()
	if n := testing.AllocsPerRun(100, func() { check(t, e.Replay(ctx)) }); n != 0 && !raceEnabled {
		t.Errorf("a replay allocates %v times", n)
	}
}

// TestAsync_ReadsInPieces: what is larger than a piece arrives whole, whether it ends with a piece or not.
func TestAsync_ReadsInPieces(t *testing.T) {
	const piece = 2 << 20 // floats in 8 MiB
	for _, n := range []int{1, piece - 1, piece, piece + 1, 2*piece + 5} {
		g := graph.New("pieces")
		x := g.Input("x", dtype.Float32, n)
		y := g.Output("y", graph.Apply(copyOp{}, x)[0])
		e := openOn(t, newAsyncDevice(t, 0), g, nil)
		data := make([]float32, n)
		for i := range data {
			data[i] = float32(i)
		}
		check(t, e.Write(x, data))
		replay(t, e)
		got := make([]float32, n)
		_, err := e.Read(y, got)
		check(t, err)
		if !slices.Equal(got, data) {
			t.Errorf("%d floats: what was read differs", n)
		}
	}
}
