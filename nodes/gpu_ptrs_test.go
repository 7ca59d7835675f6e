//go:build gpu

package nodes_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/cuda"
	"github.com/moegraph/moegraph/nodes"
)

// TestGPU_ScaledPtrs gives block-scaled weights, their factors and gradients of weights by addresses, for few rows and for room
// for many, with the bits of the dense ones.
func TestGPU_ScaledPtrs(t *testing.T) {
	if err := cuda.Available(); err != nil {
		t.Skipf("no GPU: %v", err)
	}
	fail := func(t *testing.T, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check := func(err error) {
		t.Helper()
		fail(t, err)
	}
	runtime.LockOSThread() // of the memory below
	defer runtime.UnlockOSThread()
	device, err := cu.GetDevice(0)
	check(err)
	own, err := device.RetainPrimaryCtx()
	check(err)
	check(cu.SetCurrentContext(own))
	upload := func(b []byte) uint64 {
		p, err := cu.MemAlloc(int64(len(b)))
		check(err)
		t.Cleanup(func() { cu.MemFree(p) })
		check(cu.MemcpyHtoD(p, unsafe.Pointer(&b[0]), int64(len(b))))
		return uint64(p)
	}
	const experts, n, k = 2, 64, 128
	r := rand.New(rand.NewPCG(1, 2))
	random := func(n int) []byte { // e4m3 between 1/2 and 4
		x := make([]byte, n)
		for i := range x {
			x[i] = byte(r.UintN(256))&0x87 | 0x30 + byte(r.UintN(3))<<3
		}
		return x
	}
	ones := func(rows, cols int) []byte {
		return bytes.Repeat([]byte{127}, dtype.FactorLayout{Rows: rows, Cols: cols, Batches: 1}.Bytes())
	}
	weights, sf := random(experts*n*k), ones(n, k/32)
	var codes, factors []uint64
	for e := range experts {
		codes, factors = append(codes, upload(weights[e*n*k:(e+1)*n*k])), append(factors, upload(sf))
	}
	for _, m := range []int{256, 2048} {
		t.Run(fmt.Sprint(m), func(t *testing.T) {
			check := func(err error) {
				t.Helper()
				fail(t, err)
			}
			dev, err := graph.Open("cuda:0")
			check(err)
			var grads []uint64
			for range experts {
				grads = append(grads, upload(make([]byte, 2*k*k)))
			}
			inputs := map[*graph.Value]any{}
			var dense, byAddress, wgrad *graph.Value
			g := graph.New("pointers")
			in := func(name string, dt dtype.DType, data any, dims ...int) *graph.Value {
				v := g.Input(name, dt, dims...)
				inputs[v] = data
				return v
			}
			bytesIn := func(name string, dt dtype.DType, data []byte) *graph.Value { return in(name, dt, data, len(data)) }
			a, sfa := in("a", dtype.E4M3, random(m*k), m, k), bytesIn("sfa", dtype.E8M0, ones(m, k/32))
			offsets, counts := in("offsets", dtype.Int32, []int32{128, 256}, experts), in("counts", dtype.Int32, []int32{70, 9}, experts)
			o := nodes.GroupedGEMM{A: a, PaddedOffsets: offsets, Counts: counts, Alignment: 128, Scales: nodes.Scales{SFA: sfa}}
			o.B = nodes.Weights{Dense: in("b", dtype.E4M3, weights, experts, n, k), SF: bytesIn("sfb", dtype.E8M0, slices.Repeat(sf, experts))}
			dense = g.Output("dense", o.ApplyScaled().D)
			o.B = nodes.Weights{Ptrs: in("b_ptrs", dtype.Uint64, codes, experts), SFPtrs: in("sfb_ptrs", dtype.Uint64, factors, experts), N: n, DType: dtype.E4M3}
			byAddress = g.Output("by address", o.ApplyScaled().D)
			sft := bytesIn("sft", dtype.E8M0, ones(k, m/32))
			w := nodes.WGrad{A: a, B: a, SFA: sft, SFB: sft, SFVec: 32, Offsets: offsets, Counts: counts, AMajorM: true, Alignment: 128}
			wgrad = g.Output("wgrad", w.Apply()[0])
			w.Ptrs = in("wgrad_ptrs", dtype.Uint64, grads, experts)
			w.Apply()
			prog, err := g.Compile(dev, graph.Options{})
			check(err)
			exec, err := prog.Exec(nil)
			check(err)
			defer exec.Close()
			for v, x := range inputs {
				check(exec.Write(v, x))
			}
			check(exec.Replay(t.Context()))
			read := func(v *graph.Value) []uint16 {
				x := make([]uint16, v.Elems())
				_, err := exec.Read(v, x)
				check(err)
				return x
			}
			if d, p := read(dense), read(byAddress); !slices.Equal(d[:256*n], p[:256*n]) || d[0] == 0 {
				t.Error("weights by address: other bits than the dense ones")
			}
			want, got := read(wgrad), make([]uint16, k*k)
			for e, p := range grads {
				check(cu.MemcpyDtoH(unsafe.Pointer(&got[0]), cu.DevicePtr(p), 2*k*k))
				if !slices.Equal(got, want[e*k*k:(e+1)*k*k]) || got[0] == 0 {
					t.Errorf("gradient %d by address: other bits than the dense one", e)
				}
			}
		})
	}
}
