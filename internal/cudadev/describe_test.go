package cudadev

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/cuda"
)

// launcher is an op whose launches are given by name.
type launcher struct{ Launches string }

var launchers = map[string][]graph.Launch{}

func (launcher) Kind() string              { return "launcher" }
func (launcher) Operands() []graph.Operand { return []graph.Operand{{Name: "x"}} }
func (launcher) Outputs() []string         { return []string{"y"} }
func (launcher) Infer(in []*graph.Value) ([]graph.Spec, error) {
	return []graph.Spec{in[0].Spec()}, nil
}

func (o launcher) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	ls, ok := launchers[o.Launches]
	if !ok {
		return nil, graph.Unsupported("launches", o.Launches, "others")
	}
	return ls, nil
}

func (launcher) CUDAScratch(*graph.Node, graph.GPU) int64 { return 12 }

// hostOnly has no device code.
type hostOnly struct{}

func (hostOnly) Kind() string              { return "host_only" }
func (hostOnly) Operands() []graph.Operand { return []graph.Operand{{Name: "x"}} }
func (hostOnly) Outputs() []string         { return []string{"y"} }
func (hostOnly) Infer(in []*graph.Value) ([]graph.Spec, error) {
	return []graph.Spec{in[0].Spec()}, nil
}

func describe(op graph.Op, gpu graph.GPU) ([]Step, error) {
	g := graph.New("g")
	x := g.Input("x", dtype.Float32, graph.UpTo(4), 8)
	g.Output("y", graph.ApplyAs("layer0/node", op, x)[0])
	p, err := g.Compile(Plan{gpu}, graph.Options{})
	if err != nil {
		return nil, err
	}
	return Plan{gpu}.Describe(p)
}

func TestDescribe(t *testing.T) {
	ok := graph.Launch{Kernel: graph.Kernel{Name: "k"}, Grid: [3]int{4, 1, 1}, Block: [3]int{128, 1, 1}}
	with := func(f func(l *graph.Launch)) []graph.Launch {
		l := ok
		f(&l)
		return []graph.Launch{ok, l}
	}
	gpu := GPUs[90]
	for _, c := range []struct {
		name     string
		launches []graph.Launch
		want     string
	}{
		{"fine", with(func(l *graph.Launch) { l.Cluster = 2; l.Args = []any{graph.Pointer{}, int32(1)} }), ""},
		{"none", []graph.Launch{}, "launches no kernel"},
		{"no name", with(func(l *graph.Launch) { l.Kernel.Name = "" }), "name: got none"},
		{"empty grid", with(func(l *graph.Launch) { l.Grid[1] = 0 }), "grid: got [4 0 1]"},
		{"large grid", with(func(l *graph.Launch) { l.Grid[2] = 65536 }), "grid: got [4 1 65536]"},
		{"large block", with(func(l *graph.Launch) { l.Block = [3]int{64, 17, 1} }), "block: got [64 17 1]"},
		{"smem", with(func(l *graph.Launch) { l.SharedBytes = gpu.SharedBytes + 1 }), "smem: got 232449, want at most the 232448 bytes"},
		{"cluster", with(func(l *graph.Launch) { l.Cluster = 3 }), "cluster: got 3"},
		{"argument", with(func(l *graph.Launch) { l.Args = []any{int32(0), 7} }), "argument 1: kernel argument: got a int"},
	} {
		launchers[c.name] = c.launches
		steps, err := describe(launcher{c.name}, gpu)
		if c.want != "" {
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), `launcher "layer0/node"`) {
				t.Errorf("%s: got %v, want %q and the node", c.name, err, c.want)
			}
			continue
		}
		if err != nil || len(steps) != 1 || len(steps[0].Launches) != 2 {
			t.Errorf("%s: got %v, %v", c.name, steps, err)
		}
	}
	launchers["cluster on sm_80"] = with(func(l *graph.Launch) { l.Cluster = 2 })
	if _, err := describe(launcher{"cluster on sm_80"}, GPUs[80]); err == nil || !strings.Contains(err.Error(), "none below compute capability 9.0") {
		t.Errorf("a cluster on sm_80: %v", err)
	}
	if _, err := describe(launcher{"unknown"}, gpu); !errors.Is(err, graph.ErrUnsupported) {
		t.Errorf("what the op refuses: %v", err)
	}
	if _, err := describe(hostOnly{}, gpu); !errors.Is(err, graph.ErrUnsupported) || !strings.Contains(err.Error(), "host_only") {
		t.Errorf("an op without device code: %v", err)
	}
}

// TestPlan: it plans, with the op's scratch in the arena, and refuses to run.
func TestPlan(t *testing.T) {
	launchers["one"] = []graph.Launch{{Kernel: graph.Kernel{Name: "k"}, Grid: [3]int{1, 1, 1}, Block: [3]int{1, 1, 1}}}
	g := graph.New("g")
	x := g.Input("x", dtype.Float32, 4)
	g.Output("y", graph.Apply(launcher{"one"}, x)[0])
	p, err := g.Compile(Plan{GPUs[90]}, graph.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if got := p.Steps()[0].Scratch(); got != 12 {
		t.Errorf("got %d bytes of scratch, want 12", got)
	}
	if _, err := p.Exec(nil); !errors.Is(err, graph.ErrDevice) {
		t.Errorf("Exec: %v", err)
	}
}

// atAddress is memory with nothing behind it.
type atAddress struct {
	graph.Memory
	addr uint64
}

func (m atAddress) Addr() uint64 { return m.addr }

func TestPack(t *testing.T) {
	rows := &graph.Tensor{DType: dtype.Int32, Shape: []int{3}, Mem: atAddress{addr: 0x1000}, Off: 0x10}
	x := &graph.Tensor{DType: dtype.Float32, Shape: []int{8, 2}, Mem: atAddress{addr: 0x2000}, Off: 0x100, Count: rows}
	var buf cuda.ArgBuffer
	if err := pack(&buf, []any{uint8(7), graph.Pointer{T: x, Offset: 8}, int32(-1), graph.Count{T: x}, graph.Pointer{}, graph.Count{T: rows}, graph.Count{}}, address); err != nil {
		t.Fatal(err)
	}
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(buf.Data()[8*i:]) }
	for i, want := range []uint64{7, 0x2108, 0xffffffff, 0x1018, 0, 0, 0} {
		if word(i) != want {
			t.Errorf("word %d: got %#x, want %#x", i, word(i), want)
		}
	}
	x.Mem = nil
	if err := pack(&buf, []any{graph.Pointer{T: x}}, address); err == nil || !strings.Contains(err.Error(), "argument 0: a tensor f32 [8 2] has no memory") {
		t.Errorf("got %v for a tensor without memory", err)
	}
}
