//go:build gpu

package cudadev

import (
	"context"
	"runtime"
	"testing"
	"unsafe"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/cuda"
	"github.com/moegraph/moegraph/internal/nvrtc"
	"github.com/moegraph/moegraph/kernels"
)

// openGPU returns the first GPU; without one, or without a compiler, the test is skipped.
func openGPU(t testing.TB) *Device {
	t.Helper()
	if err := cuda.Available(); err != nil {
		t.Skipf("no GPU: %v", err)
	}
	if _, err := nvrtc.Open(); err != nil {
		t.Skip(err)
	}
	d, err := Open("cuda:0")
	must(t, err)
	return d
}

// withCache is the device with a cache of its own.
func (d *Device) withCache(t testing.TB, cfg kernels.Config) *Device {
	t.Helper()
	cache, err := d.newCache(cfg)
	must(t, err)
	return &Device{dev: d.dev, gpu: d.gpu, clear: d.clear, cache: func() (*kernels.Cache, error) { return cache, nil }}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// affine is y = Factor*x + z, over rows in use; a Factor is a kernel of its own. z is optional.
type affine struct{ Factor float64 }

const affineSource = `extern "C" __global__ void affine(float* y, const float* x, const float* z, const int* rows, int capacity, int width) {
	long long n = (long long)(rows ? *rows : capacity) * width;
	for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n; i += (long long)gridDim.x * blockDim.x)
		y[i] = __fadd_rn(__fmul_rn(Params::Factor, x[i]), z ? z[i] : 0);
}`

func (affine) Kind() string { return "affine" }
func (affine) Operands() []graph.Operand {
	return []graph.Operand{{Name: "x"}, {Name: "z", Optional: true}}
}
func (affine) Outputs() []string                             { return []string{"y"} }
func (affine) Infer(in []*graph.Value) ([]graph.Spec, error) { return []graph.Spec{in[0].Spec()}, nil }

func (o affine) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	x := c.In[0]
	return []graph.Launch{{
		Kernel: graph.Kernel{Name: "affine", Source: affineSource, Inline: true, Params: struct{ Factor float32 }{float32(o.Factor)}},
		Grid:   [3]int{8, 1, 1}, Block: [3]int{128, 1, 1},
		Args: []any{graph.Pointer{T: c.Out[0]}, graph.Pointer{T: x}, graph.Pointer{T: c.In[1]}, graph.Count{T: x}, int32(x.Shape[0]), int32(x.Width())},
	}}, nil
}

// add is v += x; its output is v's old value.
type add struct{}

const addSource = `extern "C" __global__ void add(float* v, const float* x, float* old, int n) {
	for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
		if (old) old[i] = v[i];
		v[i] += x[i];
	}
}`

func (add) Kind() string { return "add" }
func (add) Operands() []graph.Operand {
	return []graph.Operand{{Name: "v", Update: true}, {Name: "x"}}
}
func (add) Outputs() []string { return []string{"old"} }
func (add) Infer(in []*graph.Value) ([]graph.Spec, error) {
	return []graph.Spec{{DType: dtype.Float32, Shape: in[0].Shape()}}, nil
}

func (add) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	return []graph.Launch{{
		Kernel: graph.Kernel{Name: "add", Source: addSource, Inline: true},
		Grid:   [3]int{8, 1, 1}, Block: [3]int{128, 1, 1},
		Args: []any{graph.Pointer{T: c.In[0]}, graph.Pointer{T: c.In[1]}, graph.Pointer{T: c.Out[0]}, int32(c.In[0].Shape[0] * c.In[0].Width())},
	}}, nil
}

// broken is an operator whose launch cannot be made: with more threads than its kernel was compiled for, or with an
// argument that has no memory, which shows in the middle of a capture.
type broken struct{ Wide bool }

const brokenSource = `extern "C" __global__ void __launch_bounds__(32) broken(float* y) { y[threadIdx.x] = 0; }`

func (broken) Kind() string                                  { return "broken" }
func (broken) Operands() []graph.Operand                     { return []graph.Operand{{Name: "x"}} }
func (broken) Outputs() []string                             { return []string{"y"} }
func (broken) Infer(in []*graph.Value) ([]graph.Spec, error) { return []graph.Spec{in[0].Spec()}, nil }

func (o broken) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	l := graph.Launch{
		Kernel: graph.Kernel{Name: "broken", Source: brokenSource, Inline: true},
		Grid:   [3]int{1, 1, 1}, Block: [3]int{32, 1, 1}, Args: []any{graph.Pointer{T: &graph.Tensor{DType: dtype.Float32, Shape: []int{32}}}},
	}
	if o.Wide {
		l.Block[0] = 1024
	}
	return []graph.Launch{l}, nil
}

const width = 1000 // elements of a row in these tests

// ladder is depth steps on each of three branches of x, which meet: y = 2^depth x + x/2^depth + (-1)^depth x.
type ladder struct {
	g    *graph.Graph
	x, y *graph.Value
}

func newLadder(rows, depth int, last ...graph.Op) *ladder {
	l := &ladder{g: graph.New("ladder")}
	l.x = l.g.Input("x", dtype.Float32, graph.UpTo(rows), width)
	branch := func(name string, factor float64) *graph.Value {
		v := l.x
		for range depth {
			l.g.NameNext(name)
			v = graph.Apply(affine{factor}, v)[0]
		}
		return v
	}
	a, b, c := branch("a", 2), branch("b", 0.5), branch("c", -1)
	for _, op := range last {
		l.g.NameNext("bad")
		c = graph.Apply(op, c)[0]
	}
	l.y = l.g.Output("y", graph.Apply(affine{1}, graph.Apply(affine{1}, a, b)[0], c)[0])
	return l
}

// want is what a ladder of that depth makes of x.
func want(x []float32, depth int) []float32 {
	y := make([]float32, len(x))
	for i, v := range x {
		a, b, c := v, v, v
		for range depth {
			a, b, c = 2*a, b/2, -c
		}
		y[i] = a + b + c
	}
	return y
}

func numbers(rows int, start float32) []float32 {
	x := make([]float32, rows*width)
	for i := range x {
		x[i] = start + float32(i%97)
	}
	return x
}

func open(t testing.TB, dev graph.Device, g *graph.Graph, vars *graph.Vars, opt graph.Options) (*graph.Exec, *graph.Program) {
	t.Helper()
	opt.Debug.Poison = true
	p, err := g.Compile(dev, opt)
	must(t, err)
	e, err := p.Exec(vars)
	must(t, err)
	t.Cleanup(func() { e.Close() })
	return e, p
}

func replay(t testing.TB, e *graph.Exec) {
	t.Helper()
	must(t, e.Replay(context.Background()))
}

func read(t testing.TB, e *graph.Exec, v *graph.Value) []float32 {
	t.Helper()
	dst := make([]float32, v.Elems())
	rows, err := e.Read(v, dst)
	must(t, err)
	return dst[:rows*width]
}

func equal(t testing.TB, got, want []float32, what string, args ...any) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("got %d elements, want %d: "+what, append([]any{len(got), len(want)}, args...)...)
		return
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("element %d: got %v, want %v: "+what, append([]any{i, got[i], want[i]}, args...)...)
			return
		}
	}
}

// free returns the device's free bytes when everything is done.
func free(t testing.TB, d *Device) int64 {
	t.Helper()
	runtime.GC()
	must(t, d.dev.Synchronize())
	n, _, err := d.dev.MemInfo()
	must(t, err)
	return n
}

// f32Bytes views floats as bytes.
func f32Bytes(x []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
}
