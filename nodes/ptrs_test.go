package nodes

import (
	"errors"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/host"
)

// blocks are matrices of the caller, one an expert, with their addresses.
type blocks struct {
	data [][]float32
	addr []uint64
}

func newBlocks(t *testing.T, experts, size int) *blocks {
	b := &blocks{}
	var pin runtime.Pinner
	t.Cleanup(pin.Unpin)
	for e := range experts {
		x := noise(uint64(e), size+4)
		for uintptr(unsafe.Pointer(&x[0]))%16 != 0 {
			x = x[1:]
		}
		x = x[:size:size]
		pin.Pin(&x[0])
		b.data, b.addr = append(b.data, x), append(b.addr, uint64(uintptr(unsafe.Pointer(&x[0]))))
	}
	return b
}

// TestPointers_Weights gives weights by their addresses: the result is that of dense ones, other addresses take effect
// at the next replay, and null or misaligned ones are refused.
func TestPointers_Weights(t *testing.T) {
	const e, m, n, k = 3, 16, 8, 4
	for _, nMajor := range []bool{false, true} {
		w := newBlocks(t, e, n*k)
		g := graph.New("g")
		a, ptrs := g.Input("a", dtype.Float32, m, k), g.Input("b_ptrs", dtype.Uint64, e)
		shape := []int{e, n, k}
		if nMajor {
			shape = []int{e, k, n}
		}
		b, offsets := g.Input("b", dtype.Float32, shape...), g.Input("offsets", dtype.Int32, e)
		gemm := GroupedGEMM{A: a, PaddedOffsets: offsets, Alignment: 4, B: Weights{Ptrs: ptrs, N: n, DType: dtype.Float32, NMajor: nMajor}}
		d, _ := gemm.Apply()
		gemm.B = Weights{Dense: b, NMajor: nMajor}
		want, _ := gemm.Apply()
		g.Output("d", d)
		g.Output("want", want)
		x := start(t, g, nil, map[*graph.Value]any{a: noise(9, m*k), b: slices.Concat(w.data...), offsets: []int32{4, 4, 16}, ptrs: w.addr})
		must(t, x.Replay(t.Context()))
		if got := fetch[float32](t, x, d); !slices.Equal(got, fetch[float32](t, x, want)) {
			t.Errorf("nMajor %v: the result differs from that of dense weights", nMajor)
		}
		other := newBlocks(t, e+1, n*k)
		must(t, x.Write(ptrs, other.addr[1:]))
		must(t, x.Write(b, slices.Concat(other.data[1:]...)))
		must(t, x.Replay(t.Context()))
		if got := fetch[float32](t, x, d); !slices.Equal(got, fetch[float32](t, x, want)) {
			t.Errorf("nMajor %v: other addresses take no effect", nMajor)
		}
		for _, bad := range []uint64{0, w.addr[1] + 4} {
			must(t, x.Write(ptrs, []uint64{w.addr[0], bad, w.addr[2]}))
			if err := x.Replay(t.Context()); !errors.Is(err, graph.ErrUsage) || !strings.Contains(err.Error(), "b_ptrs") {
				t.Errorf("address %#x: %v", bad, err)
			}
		}
	}
}

// TestPointers_WGrad writes, and accumulates, gradients through addresses; the node is kept though it has no output.
func TestPointers_WGrad(t *testing.T) {
	const e, tokens, h, n = 2, 8, 4, 4
	for _, accumulate := range []bool{false, true} {
		out := newBlocks(t, e, h*n)
		before := slices.Concat(out.data...)
		g := graph.New("g")
		a, b := g.Input("a", dtype.Float32, tokens, h), g.Input("b", dtype.Float32, tokens, n)
		offsets, ptrs := g.Input("offsets", dtype.Int32, e), g.Input("wgrad_ptrs", dtype.Uint64, e)
		w := WGrad{A: a, B: b, Offsets: offsets, AMajorM: true, Alignment: 4}
		dense := g.Output("dense", w.Apply()[0])
		w.Ptrs, w.Accumulate = ptrs, accumulate
		if got := w.Apply(); got != nil {
			t.Errorf("got outputs %v", got)
		}
		p, err := g.Compile(host.Device{}, graph.Options{})
		must(t, err)
		x, err := p.Exec(nil)
		must(t, err)
		for v, data := range map[*graph.Value]any{a: noise(1, tokens*h), b: noise(2, tokens*n), offsets: []int32{8, 8}, ptrs: out.addr} {
			must(t, x.Write(v, data))
		}
		must(t, x.Replay(t.Context()))
		want := fetch[float32](t, x, dense)
		if accumulate {
			for i := range want {
				want[i] += before[i]
			}
		}
		if got := slices.Concat(out.data...); !slices.Equal(got, want) {
			t.Errorf("accumulate %v: got %v, want %v", accumulate, got, want)
		}
		must(t, x.Close())
	}
}

// TestPointers_InOrder: nodes that write through addresses may mean the same bytes, so they run one after the other.
func TestPointers_InOrder(t *testing.T) {
	g := graph.New("g")
	x, offsets, ptrs := g.Input("x", dtype.Float32, 512, 32), g.Input("offsets", dtype.Int32, 1), g.Input("p", dtype.Uint64, 1)
	for range 3 {
		WGrad{A: x, B: x, Offsets: offsets, AMajorM: true, Alignment: 4, Ptrs: ptrs, Accumulate: true}.Apply()
	}
	p, err := g.Compile(host.Device{}, graph.Options{Streams: 4, ForceStreams: true})
	must(t, err)
	for i, s := range p.Steps() {
		if i > 0 && !slices.Contains(s.Deps(), i-1) {
			t.Errorf("step %d depends on %v, want the one before", i, s.Deps())
		}
	}
}

// TestPointers_Refuses: addresses and another output, accumulating into nothing.
func TestPointers_Refuses(t *testing.T) {
	for _, change := range []func(g *graph.Graph, w *WGrad){
		func(g *graph.Graph, w *WGrad) { w.Ptrs, w.Discrete = g.Input("p", dtype.Uint64, 2), true },
		func(g *graph.Graph, w *WGrad) { w.Ptrs = g.Input("p", dtype.Int64, 2) },
		func(g *graph.Graph, w *WGrad) { w.Ptrs = g.Input("p", dtype.Uint64, 3) },
		func(g *graph.Graph, w *WGrad) { w.Accumulate = true },
	} {
		g := graph.New("g")
		w := WGrad{A: g.Input("a", dtype.Float32, 8, 4), B: g.Input("b", dtype.Float32, 8, 4), Offsets: g.Input("o", dtype.Int32, 2), AMajorM: true, Alignment: 4}
		change(g, &w)
		w.Apply()
		if err := g.Err(); err == nil || !strings.Contains(err.Error(), "wgrad") {
			t.Errorf("got %v", err)
		}
	}
}
