//go:build gpu

package nodes

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/cuda"
	"github.com/moegraph/moegraph/internal/cudadev"
	"github.com/moegraph/moegraph/internal/host"
	"github.com/moegraph/moegraph/internal/nvrtc"
	"github.com/moegraph/moegraph/internal/shapes"
	"github.com/moegraph/moegraph/kernels"
)

// openGPU returns the first GPU; without one the test is skipped.
func openGPU(t testing.TB) *cudadev.Device {
	t.Helper()
	if err := cuda.Available(); err != nil {
		t.Skipf("no GPU: %v", err)
	}
	d, err := cudadev.Open("cuda:0")
	must(t, err)
	return d
}

// gpuGraph is a graph under construction with the data of its inputs. The same steps make the same graph and the same
// data again.
type gpuGraph struct {
	g    *graph.Graph
	vars *graph.Vars
	data []gpuInput
	outs []*graph.Value
	rand *rand.Rand
	tol  tolerance
}

type gpuInput struct {
	v *graph.Value
	x any
}

// gpuCase is a graph that must give on a GPU what it gives on the host.
type gpuCase struct {
	name  string
	build func(b *gpuGraph)
}

func newGPUGraph(c gpuCase) *gpuGraph {
	b := &gpuGraph{g: graph.New(c.name), vars: graph.NewVars(7), rand: rand.New(rand.NewPCG(5, 6))}
	c.build(b)
	for i, v := range b.outs {
		b.g.Output(fmt.Sprintf("out%d", i), v)
	}
	return b
}

// normals makes n numbers of a normal distribution.
func (b *gpuGraph) normals(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(b.rand.NormFloat64())
	}
	return x
}

// floats is an input with normal data.
func (b *gpuGraph) floats(name string, dt dtype.DType, dims ...int) *graph.Value {
	v := b.g.Input(name, dt, dims...)
	return b.give(v, b.normals(v.Elems()))
}

// counted is an input of up to capacity rows, of which rows are given.
func (b *gpuGraph) counted(name string, dt dtype.DType, rows, capacity int, dims ...int) *graph.Value {
	v := b.g.Input(name, dt, append([]int{graph.UpTo(capacity)}, dims...)...)
	return b.give(v, b.normals(v.Elems()/capacity*rows))
}

func (b *gpuGraph) ints(name string, x []int32, dims ...int) *graph.Value {
	return b.give(b.g.Input(name, dtype.Int32, dims...), x)
}

func (b *gpuGraph) give(v *graph.Value, x any) *graph.Value {
	b.data = append(b.data, gpuInput{v, x})
	return v
}

func (b *gpuGraph) out(vs ...*graph.Value) {
	for _, v := range vs {
		if v != nil {
			b.outs = append(b.outs, v)
		}
	}
}

// grads marks the gradients of of with respect to wrt, for random seeds in the format dt.
func (b *gpuGraph) grads(dt dtype.DType, of []*graph.Value, wrt ...*graph.Value) {
	seeds := make([]*graph.Value, len(of))
	for i, v := range of {
		seed := b.g.Input(fmt.Sprintf("seed%d", i), dt, v.Shape()...)
		seeds[i] = b.give(seed, b.normals(v.Elems()))
	}
	b.out(b.g.GradientsFrom(of, seeds, wrt...).Value...)
}

// replays runs the graph on a device twice, all that it may write filled with 0xFF before, and returns outputs and
// variables after each.
func (b *gpuGraph) replays(t testing.TB, dev graph.Device, opt graph.Options) (all [2][]result) {
	t.Helper()
	e := b.open(t, dev, opt)
	for i := range all {
		must(t, e.Replay(t.Context()))
		all[i] = b.results(t, e)
	}
	if r, ok := e.Runner().(*cudadev.Runner); ok && !opt.Debug.Eager && kernels.Eager() == "" {
		checkCaptured(t, b.g, r, opt)
	}
	must(t, e.Close())
	if _, ok := dev.(*cudadev.Device); ok {
		must(t, b.vars.Free())
	}
	return all
}

func (b *gpuGraph) open(t testing.TB, dev graph.Device, opt graph.Options) *graph.Exec {
	t.Helper()
	opt.Debug.Poison = true
	p, err := b.g.Compile(dev, opt)
	must(t, err)
	e, err := p.Exec(b.vars)
	must(t, err)
	t.Cleanup(func() { e.Close() })
	b.write(t, e)
	return e
}

func (b *gpuGraph) write(t testing.TB, e *graph.Exec) {
	t.Helper()
	for _, in := range b.data {
		must(t, e.Write(in.v, in.x))
	}
}

func (b *gpuGraph) results(t testing.TB, e *graph.Exec) []result {
	t.Helper()
	var all []result
	for i, v := range b.outs {
		all = append(all, fetchResult(t, fmt.Sprintf("out%d %s", i, v), v, func(dst any) (int, error) { return e.Read(v, dst) }))
	}
	for _, v := range append(b.vars.All(), b.vars.States()...) {
		all = append(all, fetchResult(t, v.String(), v, func(dst any) (int, error) { return v.Dim(0), b.vars.Read(v, dst) }))
	}
	return all
}

// fetchResult reads a value bit by bit.
func fetchResult(t testing.TB, name string, v *graph.Value, read func(dst any) (rows int, err error)) result {
	t.Helper()
	r := result{name: name, dt: v.DType(), width: v.Elems() / max(1, v.Dim(0))}
	n := v.Elems()
	get := func(dst any) int {
		rows, err := read(dst)
		must(t, err)
		if v.Rank() == 0 {
			return n
		}
		return rows * r.width
	}
	switch v.DType() {
	case dtype.BFloat16, dtype.Float16:
		x := make([]uint16, n)
		for _, u := range x[:get(x)] {
			r.bits = append(r.bits, uint64(u))
		}
	case dtype.Int32:
		x := make([]int32, n)
		for _, u := range x[:get(x)] {
			r.bits = append(r.bits, uint64(int64(u)))
		}
		return r
	case dtype.Uint64:
		x := make([]uint64, n)
		r.bits = x[:get(x)]
		return r
	case dtype.E4M3, dtype.E5M2, dtype.E2M1, dtype.E8M0: // bytes
		x := make([]byte, r.dt.Bytes(n))
		for _, u := range x[:r.dt.Bytes(get(x))] {
			r.bits = append(r.bits, uint64(u))
		}
		return r
	}
	f := make([]float64, n)
	r.x = f[:get(f)]
	if r.bits == nil {
		for _, x := range r.x {
			r.bits = append(r.bits, math.Float64bits(x))
		}
	}
	return r
}

// checkCaptured reads the captured graph back: one kernel node of the planned name for each planned launch, nothing
// else, and edges that imply the plan's order.
func checkCaptured(t testing.TB, g *graph.Graph, r *cudadev.Runner, opt graph.Options) {
	t.Helper()
	c, err := r.Captured()
	must(t, err)
	launches := 0
	for i, s := range r.Planned() {
		if len(c.Steps[i]) == 0 {
			t.Errorf("%s %q ran no kernel", s.Op.Kind(), s.Name)
		}
		for k, l := range s.Launches {
			launches++
			n := c.Nodes[c.Steps[i][k]]
			if n.Type != cuda.KernelNode || n.Kernel != l.Kernel.Name || n.Grid != l.Grid || n.Block != l.Block || n.SharedBytes != l.SharedBytes {
				t.Errorf("%q, launch %d: captured %v, want kernel %s, grid %v, block %v, smem %d", s.Name, k, n, l.Kernel.Name, l.Grid, l.Block, l.SharedBytes)
			}
		}
	}
	if len(c.Nodes) != launches {
		t.Errorf("captured %d nodes, want the %d launches: %v", len(c.Nodes), launches, c.Nodes)
	}
	opt.Debug.Poison = true
	p, err := g.Compile(mustOpen(t), opt)
	must(t, err)
	if err := p.VerifyOrder(c.Order()); err != nil {
		t.Errorf("the captured edges: %v", err)
	}
}

func mustOpen(t testing.TB) graph.Device {
	d, err := graph.Open("cuda:0")
	must(t, err)
	return d
}

// TestGPU holds every case to the host.
func TestGPU(t *testing.T) {
	dev := openGPU(t)
	for _, c := range gpuCases() {
		t.Run(c.name, func(t *testing.T) {
			h := newGPUGraph(c)
			want := h.replays(t, host.Device{}, graph.Options{})
			b := newGPUGraph(c)
			got := b.replays(t, dev, graph.Options{})
			stateless := slices.EqualFunc(want[0], want[1], sameBits)
			for k := range want {
				for i := range want[k] {
					if err := compare(got[k][i], want[k][i], b.tol); err != nil {
						t.Errorf("replay %d: %v", k, err)
					}
				}
			}
			if stateless && !slices.EqualFunc(got[0], got[1], sameBits) {
				t.Error("two replays differ")
			}
		})
	}
}

func sameBits(a, b result) bool { return slices.Equal(a.bits, b.bits) }

// planned compiles a case for a GPU that need not be there and returns what it launches.
func planned(t testing.TB, c gpuCase, arch int) []cudadev.Step {
	t.Helper()
	plan := cudadev.Plan{GPU: cudadev.GPUs[arch]}
	b := newGPUGraph(c)
	p, err := b.g.Compile(plan, graph.Options{})
	if err != nil {
		t.Errorf("case %q: %v", c.name, err)
		return nil
	}
	steps, err := plan.Describe(p)
	if err != nil {
		t.Errorf("case %q: %v", c.name, err)
	}
	return steps
}

// TestGPU_Kinds: every operator of the table is in a case, so that none is without a device test.
func TestGPU_Kinds(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range gpuCases() {
		for _, s := range planned(t, c, 90) {
			seen[s.Op.Kind()] = true
		}
	}
	for _, info := range graph.Operators() {
		if kind := info.Example.Kind(); !seen[kind] && hostOnly[kind] == "" {
			t.Errorf("no case launches %s", kind)
		}
	}
}

// hot are the kernels in which a spilled register costs time that matters.
var hot = []string{"grouped_gemm", "grouped_gemm_glu", "grouped_gemm_dglu", "wgrad",
	"grouped_gemm_quant", "grouped_gemm_glu_quant", "grouped_gemm_dglu_quant", "wgrad_quant"}

// TestCompileAll compiles every kernel that the cases and the layers of public models launch, for sm_90a, and four of
// each name for the other families of devices, and reports what each takes. It needs NVRTC and no GPU. Compiled
// kernels stay in the cache's folder, so a second run takes seconds. With -short it is one of each name for every architecture.
func TestCompileAll(t *testing.T) {
	compiler, err := nvrtc.Open()
	if errors.Is(err, nvrtc.ErrNotFound) {
		t.Skip(err)
	}
	must(t, err)
	for _, arch := range []int{80, 90, 100, 120} {
		cache := kernels.NewCache(kernels.Config{Compiler: compiler, Target: kernels.Target{Arch: arch}, Disk: kernels.OpenDisk(),
			Load: func(*kernels.Image) (kernels.Module, error) { return neverLoaded{}, nil }})
		most := 1 << 20 // of each name
		switch {
		case testing.Short():
			most = 1
		case arch != 90:
			most = 4
		}
		for _, l := range thin(launchesOf(t, arch), most) {
			k := l.Kernel
			config := strings.NewReplacer(" ", ",", "/", "_").Replace(fmt.Sprintf("%+v", k.Params))
			t.Run(fmt.Sprintf("%s/%s/%s", k.Name, config, kernels.Target{Arch: arch}), func(t *testing.T) {
				t.Parallel()
				s, err := cache.Acquire([]graph.Kernel{k}, nil)
				must(t, err)
				defer s.Close()
				img := s.Images()[k]
				t.Log(img.Usage)
				if img.SpillStores+img.SpillLoads > 0 && slices.Contains(hot, k.Name) {
					t.Errorf("registers spill: %s", img.Usage)
				}
				if most := cudadev.GPUs[arch].SharedBytes; l.SharedBytes+img.SharedBytes > most {
					t.Errorf("shared memory: got %d dynamic and %d static bytes, want at most %d", l.SharedBytes, img.SharedBytes, most)
				}
				if threads := l.Block[0] * l.Block[1] * l.Block[2]; threads*img.Registers > 64<<10 {
					t.Errorf("registers: got %d threads of %d, want at most %d in all", threads, img.Registers, 64<<10)
				}
			})
		}
	}
}

// thin keeps at most n launches of each name, evenly spread.
func thin(all []graph.Launch, n int) []graph.Launch {
	by := map[string][]graph.Launch{}
	var names []string
	for _, l := range all {
		if by[l.Kernel.Name] == nil {
			names = append(names, l.Kernel.Name)
		}
		by[l.Kernel.Name] = append(by[l.Kernel.Name], l)
	}
	var kept []graph.Launch
	for _, name := range names {
		of := by[name]
		k := min(n, len(of))
		for i := range k {
			kept = append(kept, of[i*len(of)/k])
		}
	}
	return kept
}

type neverLoaded struct{}

func (neverLoaded) Unload() error { return nil }

// launchesOf returns one launch of each kernel, that with the most shared memory.
func launchesOf(t *testing.T, arch int) []graph.Launch {
	cases := gpuCases()
	if !testing.Short() {
		for _, s := range shapes.All {
			cases = append(cases, gpuCase{"layer/" + s.Name, func(b *gpuGraph) { layerOf(b, s) }})
		}
	}
	by := map[graph.Kernel]graph.Launch{}
	for _, c := range cases {
		for _, s := range planned(t, c, arch) {
			for _, l := range s.Launches {
				if old, ok := by[l.Kernel]; !ok || old.SharedBytes < l.SharedBytes {
					by[l.Kernel] = l
				}
			}
		}
	}
	var all []graph.Launch
	for _, l := range by {
		all = append(all, l)
	}
	sort.Slice(all, func(i, j int) bool {
		a, b := all[i].Kernel, all[j].Kernel
		if a.Name != b.Name {
			return a.Name < b.Name
		}
		return fmt.Sprint(a.Params) < fmt.Sprint(b.Params)
	})
	return all
}

// layerOf is a layer of a public model, forward and backward, without data.
func layerOf(b *gpuGraph, s shapes.Shape) {
	x := b.g.Input("x", dtype.BFloat16, s.Tokens, s.Hidden)
	dy := b.g.Input("dy", dtype.BFloat16, s.Tokens, s.Hidden)
	y, _ := MoELayer(x, b.vars.Scope("moe"), MoE{Experts: s.Experts, TopK: s.TopK, Intermediate: s.Intermediate, Params: dtype.BFloat16})
	b.out(y)
	b.out(b.g.GradientsFrom([]*graph.Value{y}, []*graph.Value{dy}, append(b.vars.All(), x)...).Value...)
}
