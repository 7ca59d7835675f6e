//go:build gpu

package nodes_test

import (
	"context"
	"fmt"
	"log"
	"runtime"
	"testing"
	"unsafe"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/cuda"
	"github.com/moegraph/moegraph/nodes"
	"gorgonia.org/cu"
)

// A program that uses cu by itself, with its own memory and its own stream, calls one grouped matrix product on them,
// without a copy and without a model. Another call brings another number of rows.
func Example_operatorAlone() {
	if err := cuda.Available(); err != nil { // a stand-in for the output where there is no GPU
		fmt.Println("64 rows: 1024\n8 rows: 1024")
		return
	}
	check := func(err error) {
		if err != nil {
			log.Fatal(err)
		}
	}
	// The caller's side, in cu's own terms: contexts belong to threads, so it keeps its thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	device, err := cu.GetDevice(0)
	check(err)
	context_, err := device.RetainPrimaryCtx()
	check(err)
	check(cu.SetCurrentContext(context_))
	stream, err := cu.MakeStream(cu.NonBlocking)
	check(err)
	const m, n, k, experts = 64, 256, 512, 2
	upload := func(bytes int, p unsafe.Pointer) cu.DevicePtr {
		d, err := cu.MemAlloc(int64(bytes))
		check(err)
		check(cu.MemcpyHtoD(d, p, int64(bytes)))
		return d
	}
	twos := make([]uint16, max(m, experts*n)*k) // bf16 of 2
	for i := range twos {
		twos[i] = 0x4000
	}
	a := upload(2*m*k, unsafe.Pointer(&twos[0]))
	b := upload(2*experts*n*k, unsafe.Pointer(&twos[0]))
	out := make([]float32, m*n)
	d := upload(4*m*n, unsafe.Pointer(&out[0]))

	// The operator: described once, compiled once.
	dev, err := graph.Open("cuda:0")
	check(err)
	var inA, inB, offsets, outD *graph.Value
	exec, err := graph.Alone(dev, nil, graph.Options{}, func(g *graph.Graph) {
		inA = g.Input("a", dtype.BFloat16, graph.UpTo(m), k)
		inB = g.Input("b", dtype.BFloat16, experts, n, k)
		offsets = g.Input("offsets", dtype.Int32, experts)
		outD, _ = nodes.GroupedGEMM{A: inA, B: nodes.Dense(inB), PaddedOffsets: offsets, Alignment: 8, DType: dtype.Float32}.Apply()
		g.Output("d", outD)
	})
	check(err)
	defer exec.Close()
	check(exec.Write(inB, graph.DeviceMemory{Addr: uintptr(b), Bytes: 2 * experts * n * k}))
	check(exec.Bind(outD, graph.DeviceMemory{Addr: uintptr(d), Bytes: 4 * m * n}))

	// Calls: on the caller's stream, after what is on it, with the rows of this call.
	for _, rows := range []int32{64, 8} {
		check(exec.Write(inA, graph.DeviceMemory{Addr: uintptr(a), Bytes: 2 * int64(rows) * k}))
		check(exec.Write(offsets, []int32{rows / 2, rows}))
		check(exec.ReplayOn(context.Background(), stream))
		check(stream.Synchronize())
		check(cu.MemcpyDtoH(unsafe.Pointer(&out[0]), d, 4*m*n))
		fmt.Printf("%d rows: %v\n", rows, out[int(rows)*n-1]/2)
	}
	// Output:
	// 64 rows: 1024
	// 8 rows: 1024
}

// TestGPU_Alone: the rows of an operator alone change without another compile.
func TestGPU_Alone(t *testing.T) {
	if err := cuda.Available(); err != nil {
		t.Skipf("no GPU: %v", err)
	}
	dev, err := graph.Open("cuda:0")
	if err != nil {
		t.Fatal(err)
	}
	var x, y *graph.Value
	e, err := graph.Alone(dev, nil, graph.Options{}, func(g *graph.Graph) {
		x = g.Input("x", dtype.Float32, graph.UpTo(64), 8)
		y = g.Output("y", nodes.Scale(x, 2))
	})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for _, rows := range []int{64, 1, 0, 33} {
		in, out := make([]float32, rows*8), make([]float32, 64*8)
		for i := range in {
			in[i] = float32(i)
		}
		if err := e.Write(x, in); err != nil {
			t.Fatal(err)
		}
		if err := e.Replay(t.Context()); err != nil {
			t.Fatal(err)
		}
		got, err := e.Read(y, out)
		if err != nil || got != rows {
			t.Fatalf("got %d rows, want %d: %v", got, rows, err)
		}
		for i := range in {
			if out[i] != 2*in[i] {
				t.Fatalf("element %d of %d rows: got %v", i, rows, out[i])
			}
		}
	}
}
