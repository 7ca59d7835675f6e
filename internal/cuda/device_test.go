//go:build gpu

package cuda

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"
)

func TestDevice_Open(t *testing.T) {
	d := open(t)
	if d.Arch < 50 || d.Units < 1 || d.SharedPerBlockMax < 48<<10 || d.TotalMem < 1<<28 || d.Name == "" {
		t.Errorf("got %+v", d)
	}
	if again := must(Open(0))(t); again != d {
		t.Error("a second Open gives another Device")
	}
	check(t, d.Close())
	_, err := Open(99)
	wantError(t, err, "cuda device: got 99, want 0 to ")
}

func TestDevice_Memory(t *testing.T) {
	d := open(t)
	s := stream(t, d, "memory")
	const n = 3 << 20
	m, m2 := memory(t, d, n, "block"), memory(t, d, n, "block 2")
	p := must(d.AllocPinned(n, "staging"))(t)
	for i := range p.Bytes() {
		p.Bytes()[i] = byte(i * 7)
	}
	check(t, m.WriteAsync(s, 5, p, 5, n-5))
	check(t, m.Fill8(s, 0, 5, 0xAA))
	check(t, m2.Copy(s, 16, m, 0, n-16))
	check(t, m2.Fill32(s, 8, 2, 0x01020304))
	check(t, s.Synchronize())
	got := make([]byte, n)
	check(t, m2.Read(0, got))
	want := append(bytes.Repeat([]byte{0xFF}, 8), 4, 3, 2, 1, 4, 3, 2, 1)
	want = append(append(want, bytes.Repeat([]byte{0xAA}, 5)...), p.Bytes()[5:n-16]...)
	if !bytes.Equal(got, want) {
		t.Error("bytes differ")
	}
	check(t, m.ReadAsync(s, 0, p, 1, 8))
	check(t, s.Synchronize())
	if !bytes.Equal(p.Bytes()[1:6], want[16:21]) {
		t.Errorf("async read: got % x", p.Bytes()[1:6])
	}
	wantError(t, m.Write(n-1, []byte{1, 2}), "write block: got bytes [3145727, 3145729), want them within [0, 3145728)")
	wantError(t, m.WriteAsync(s, 0, p, n, 1), "pinned staging: got bytes")
	check(t, m.Free())
	check(t, m.Free())
	if err := m.Read(0, got); !errors.Is(err, ErrClosed) {
		t.Errorf("read after Free: got %v", err)
	}
	check(t, p.Free())
	if err := m2.ReadAsync(s, 0, p, 0, 1); !errors.Is(err, ErrClosed) {
		t.Errorf("pinned after Free: got %v", err)
	}
}

// A failed allocation names what was asked for, what was free and who holds the rest.
func TestDevice_OutOfMemory(t *testing.T) {
	d := open(t)
	memory(t, d, 1<<20, `arena of "lm": workspaces 1 MiB`)
	_, err := d.Alloc(d.TotalMem+1, `arena of "big": workspaces, scratch`)
	if !errors.Is(err, ErrOutOfMemory) {
		t.Fatalf("got %v, want ErrOutOfMemory", err)
	}
	wantError(t, err, `cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY`, `for arena of "big": workspaces, scratch on cuda:0; free `,
		`this process holds 1.0 MiB arena of "lm": workspaces 1 MiB`)
	check(t, d.usable()) // it is not an error that lasts
}

// Hazard 23: arguments of 1, 128, 4 and 8 bytes, eager and captured.
func TestDevice_Arguments(t *testing.T) {
	d := open(t)
	s, echo, out := stream(t, d, "main"), function(t, d, "echo"), memory(t, d, 35*8, "out")
	var big [128]byte
	want := []uint64{0xAB, 0xDEADBEEF, 0x1122334455667788}
	for i := range uint32(32) {
		binary.LittleEndian.PutUint32(big[4*i:], i*i+1)
		want = append(want, uint64(i*i+1))
	}
	var args ArgBuffer
	args.Uint8(0xAB)
	args.Struct(big[:], 4)
	args.Uint32(0xDEADBEEF)
	args.Uint64(0x1122334455667788)
	args.Ptr(out.Ptr())
	launch := func() error {
		return echo.Launch(s, LaunchConfig{Name: "echo", Grid: [3]int{1, 1, 1}, Block: [3]int{1, 1, 1}}, &args)
	}
	compare := func(how string) {
		t.Helper()
		check(t, s.Synchronize())
		b := make([]byte, 35*8)
		check(t, out.Read(0, b))
		for i, w := range want {
			if got := binary.LittleEndian.Uint64(b[8*i:]); got != w {
				t.Errorf("%s: word %d: got %#x, want %#x", how, i, got, w)
			}
		}
		check(t, out.Fill8(s, 0, out.Size(), 0xFF))
	}
	check(t, launch())
	compare("eager")
	g := must(s.Capture("echo", launch))(t)
	args.Reset() // the graph has its own copy
	x := must(g.Instantiate("echo"))(t)
	check(t, g.Close())
	check(t, x.Launch(s))
	compare("captured")
	check(t, x.Close())
	if params, err := echo.Params(); err == nil {
		if got := fmt.Sprint(params); got != "[{0 1} {4 128} {132 4} {136 8} {144 8}]" {
			t.Errorf("parameters: got %v", got)
		}
	} else if !errors.Is(err, ErrUnavailable) {
		t.Error(err)
	}
}

func TestDevice_LaunchErrors(t *testing.T) {
	d := open(t)
	s, f, x := stream(t, d, "main"), function(t, d, "shared"), memory(t, d, 4, "x")
	var args ArgBuffer
	args.Ptr(x.Ptr())
	args.Int32(10)
	err := f.Launch(s, LaunchConfig{Name: "layer0/fc1", Grid: [3]int{132, 1, 1}, Block: [3]int{2048, 1, 1}, SharedBytes: 64}, &args)
	wantError(t, err, "cuLaunchKernelEx: CUDA_ERROR_INVALID_VALUE", `node "layer0/fc1", kernel shared, grid [132 1 1], block [2048 1 1], smem 64 B`)
	wantError(t, f.SetDynamicShared(1<<30), "cuFuncSetAttribute: CUDA_ERROR_INVALID_VALUE", "dynamic shared memory of 1073741824 B (device max ")
	n := d.SharedPerBlockMax / 4
	check(t, f.SetDynamicShared(4*n))
	args.Reset()
	args.Ptr(x.Ptr())
	args.Int32(int32(n))
	check(t, f.Launch(s, LaunchConfig{Name: "x", Grid: [3]int{1, 1, 1}, Block: [3]int{32, 1, 1}, SharedBytes: 4 * n}, &args))
	check(t, s.Synchronize())
	var b [4]byte
	check(t, x.Read(0, b[:]))
	if got := binary.LittleEndian.Uint32(b[:]); got != uint32(n-1) {
		t.Errorf("got %d, want %d", got, n-1)
	}
	a := must(f.Attributes())(t)
	if a.Registers < 1 || a.MaxThreads < 1 {
		t.Errorf("attributes: got %+v", a)
	}
}

// Hazard 28: a cubin for another architecture.
func TestDevice_OtherArchitecture(t *testing.T) {
	d := open(t)
	if d.Arch/10 == 7 {
		t.Skip("the cubin runs here")
	}
	_, err := d.LoadModule(must(os.ReadFile("testdata/sm75.cubin"))(t), "nothing")
	wantError(t, err, "cuModuleLoadData: CUDA_ERROR_NO_BINARY_FOR_GPU", `module "nothing"`, fmt.Sprintf("sm_%d", d.Arch), "it was compiled for sm_75")
	_, err = must(d.LoadModule(must(os.ReadFile("testdata/kernels.ptx"))(t), "kernels"))(t).Function("nix")
	wantError(t, err, "cuModuleGetFunction: ", `function "nix" of module "kernels"`)
}

// Hazard 9: many goroutines, mixed calls, and a thread that changes between them.
func TestDevice_Threads(t *testing.T) {
	d := open(t)
	calls := 1000
	if testing.Short() {
		calls = 100
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(16))
	add := function(t, d, "add")
	g := func() *GraphExec { // a graph for all
		s, m := stream(t, d, "capture"), memory(t, d, 4, "counter")
		var args ArgBuffer
		args.Ptr(m.Ptr())
		args.Int32(1)
		args.Int32(1)
		graph := must(s.Capture("add", func() error {
			return add.Launch(s, LaunchConfig{Name: "add", Grid: [3]int{1, 1, 1}, Block: [3]int{1, 1, 1}}, &args)
		}))(t)
		defer graph.Close()
		return must(graph.Instantiate("add"))(t)
	}()
	defer g.Close()
	var shared sync.Mutex // a GraphExec is launched by one goroutine at a time
	var wg sync.WaitGroup
	errs := make([]error, 64)
	for i := range errs {
		wg.Go(func() {
			errs[i] = mixedCalls(d, add, g, &shared, calls)
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	check(t, d.Synchronize())
}

// mixedCalls makes n calls of all kinds and checks the sum that it adds up.
func mixedCalls(d *Device, add *Function, g *GraphExec, shared *sync.Mutex, n int) error {
	s, err := d.NewStream("worker")
	if err != nil {
		return err
	}
	defer s.Close()
	m, err := d.Alloc(4, "worker")
	if err != nil {
		return err
	}
	defer m.Free()
	if err := m.Write(0, make([]byte, 4)); err != nil {
		return err
	}
	var args ArgBuffer
	args.Ptr(m.Ptr())
	args.Int32(1)
	args.Int32(1)
	added := 0
	for i := range n {
		switch i % 8 {
		case 0, 1, 2:
			added++
			err = add.Launch(s, LaunchConfig{Name: "add", Grid: [3]int{1, 1, 1}, Block: [3]int{1, 1, 1}}, &args)
		case 3:
			shared.Lock()
			err = g.Launch(s)
			shared.Unlock()
		case 4:
			_, _, err = d.MemInfo()
		case 5:
			_, err = s.Query()
		case 6:
			var e *Event
			if e, err = d.NewEvent(false); err == nil {
				err = errors.Join(s.Record(e), s.WaitEvent(e), e.Synchronize(), e.Close())
			}
		case 7:
			var x *Memory
			if i%80 == 7 { // cuMemFree waits for the whole device
				if x, err = d.Alloc(1024, "short-lived"); err == nil {
					err = errors.Join(x.Fill8(s, 0, 1024, 1), s.Synchronize(), x.Free())
				}
			}
		}
		if err != nil {
			return fmt.Errorf("call %d: %w", i, err)
		}
		runtime.Gosched()
	}
	if err := s.Synchronize(); err != nil {
		return err
	}
	var b [4]byte
	if err := m.Read(0, b[:]); err != nil {
		return err
	}
	if got := int(binary.LittleEndian.Uint32(b[:])); got != added {
		return fmt.Errorf("sum: got %d, want %d", got, added)
	}
	return nil
}

// A context that has failed says so on every later call.
func TestDevice_Failed(t *testing.T) {
	if !inChild(t) {
		open(t) // or skip
		runChild(t, "TestDevice_Failed")
		return
	}
	if err := Available(); err != nil {
		t.Skip(err)
	}
	d := must(Open(0))(t)
	s, m := must(d.NewStream("main"))(t), must(d.Alloc(64, "block"))(t)
	g := must(s.Capture("nothing", func() error { return nil }))(t)
	x := must(g.Instantiate("nothing"))(t)
	var args ArgBuffer
	args.Ptr(0x10)
	err := function(t, d, "fault").Launch(s, LaunchConfig{Name: "layer0/fc1", Grid: [3]int{1, 1, 1}, Block: [3]int{1, 1, 1}}, &args)
	if err == nil {
		err = s.Synchronize()
	}
	wantError(t, err, "CUDA_ERROR_ILLEGAL_ADDRESS")
	_, allocErr := d.Alloc(64, "another")
	for i, err := range []error{s.Synchronize(), m.Read(0, make([]byte, 4)), x.Launch(s), m.Free(), d.Synchronize(), allocErr} {
		if !errors.Is(err, ErrFailed) {
			t.Errorf("call %d: got %v, want ErrFailed", i, err)
		}
		wantError(t, err, "cuda:0: the CUDA context has failed", "the first error was: cu", "CUDA_ERROR_ILLEGAL_ADDRESS")
	}
}

func TestDevice_Events(t *testing.T) {
	d := open(t)
	s := stream(t, d, "main")
	a, b := must(d.NewEvent(true))(t), must(d.NewEvent(true))(t)
	m := memory(t, d, 1<<20, "block")
	check(t, s.Record(a))
	check(t, m.Fill8(s, 0, m.Size(), 0))
	check(t, s.Record(b))
	check(t, b.Synchronize())
	if e := must(a.Elapsed(b))(t); e <= 0 || e > time.Second {
		t.Errorf("elapsed: got %v", e)
	}
	check(t, errors.Join(a.Close(), b.Close(), a.Close()))
	_, err := event(t, d).Elapsed(b)
	wantError(t, err, "got an event without timing")
}
