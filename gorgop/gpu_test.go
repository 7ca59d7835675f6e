//go:build gpu

package gorgop

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/cuda"
	"github.com/moegraph/moegraph/internal/cudadev"
	"github.com/moegraph/moegraph/internal/nvrtc"
	"github.com/moegraph/moegraph/nodes"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// onGPU puts the layers of a test on the first GPU; without one the test is skipped.
func onGPU(t testing.TB) {
	t.Helper()
	if err := cuda.Available(); err != nil {
		t.Skipf("no GPU: %v", err)
	}
	if _, err := nvrtc.Open(); err != nil {
		t.Skip(err)
	}
	was := device
	device = "cuda:0"
	t.Cleanup(func() { device = was })
}

// TestGPU: what holds on the host holds with the layer on a GPU.
func TestGPU(t *testing.T) {
	onGPU(t)
	for _, c := range everywhere {
		t.Run(c.name, c.test)
	}
}

// TestGPU_DeviceMemory: 1,000 steps leave the device's memory as it was, and the Program as it was captured.
func TestGPU_DeviceMemory(t *testing.T) {
	onGPU(t)
	l, _ := newLayer(t, small, Config{})
	m := withLayer(t, l, small, tensor.Float32, 5)
	k := newMachine(t, m, false, G.NewVanillaSolver(G.WithLearnRate(0.01)))
	k.step(t)
	k.step(t)
	dev := open(t).(*cudadev.Device).CUDA()
	s := m.y.Op().(awaitOp).s
	nodesOf := func(e *graph.Exec) []cuda.Node {
		c, err := e.Runner().(*cudadev.Runner).Captured()
		must(t, err)
		return c.Nodes
	}
	free, _, err := dev.MemInfo()
	must(t, err)
	fwd, back := nodesOf(s.fwd)[0].Handle, nodesOf(s.back)[0].Handle
	for range 1000 {
		k.step(t)
	}
	after, _, err := dev.MemInfo()
	must(t, err)
	if after < free-1<<20 {
		t.Errorf("free device memory went from %d to %d bytes", free, after)
	}
	if nodesOf(s.fwd)[0].Handle != fwd || nodesOf(s.back)[0].Handle != back {
		t.Error("a replay was captured anew")
	}
}

// TestGPU_Overlap: a backward Do returns before the device is done: gorgonia's other ops run beside it.
func TestGPU_Overlap(t *testing.T) {
	onGPU(t)
	const rows, hidden, inner, experts = 4096, 2048, 1024, 32
	vars := graph.NewVars(1)
	moe := nodes.MoE{Experts: experts, TopK: 4, Hidden: hidden, Intermediate: inner, Compute: dtype.BFloat16}
	l, err := MoE(open(t), vars, rows, moe, Config{Weights: ProgramWeights, Optimizer: func(gr *graph.Grads) { nodes.SGD(gr, nodes.SGDConfig{Rate: 1e-6}) }})
	must(t, err)
	cleanup(t, l, vars)
	g := G.NewGraph()
	x := G.NewMatrix(g, tensor.Float32, G.WithShape(rows, hidden), G.WithName("x"))
	y, err := l.Apply(x)
	must(t, err)
	s := y.Op().(awaitOp).s
	xs := tensorOf(tensor.Float32, numbers(1, rows*hidden, 1), rows, hidden)
	var issue, wait time.Duration
	for i := range 6 {
		must(t, s.forward([]G.Value{xs, nil}))
		began := time.Now()
		must(t, s.backward(xs))
		mid := time.Now()
		_, err = s.gradient(0)
		must(t, err)
		if i > 0 { // the first one compiles and captures
			issue, wait = issue+mid.Sub(began), wait+time.Since(mid)
		}
	}
	t.Logf("a backward Do of %d rows: issued in %v, the gradient is there after %v more", rows, issue/5, wait/5)
	if wait < issue/20 {
		t.Error("the backward Do waits for the device")
	}
}

// BenchmarkGPU_Step: a training step of a layer that owns its weights, within gorgonia, beside the two replays alone.
func BenchmarkGPU_Step(b *testing.B) {
	onGPU(b)
	for _, z := range []sizes{{rows: 64, hidden: 256, inner: 256, experts: 8, topK: 2}, {rows: 4096, hidden: 2048, inner: 1024, experts: 32, topK: 8}} {
		moe := nodes.MoE{Experts: z.experts, TopK: z.topK, Hidden: z.hidden, Intermediate: z.inner, Compute: dtype.BFloat16}
		vars := graph.NewVars(1)
		l, err := MoE(open(b), vars, z.rows, moe, Config{Weights: ProgramWeights, Optimizer: func(gr *graph.Grads) { nodes.SGD(gr, nodes.SGDConfig{Rate: 1e-6}) }})
		must(b, err)
		g := G.NewGraph()
		x := G.NewMatrix(g, tensor.Float32, G.WithShape(z.rows, z.hidden), G.WithName("x"), G.WithValue(tensorOf(tensor.Float32, numbers(1, z.rows*z.hidden, 1), z.rows, z.hidden)))
		y, err := l.Apply(x)
		must(b, err)
		_, err = G.Grad(G.Must(G.Mean(G.Must(G.Square(y)))), x)
		must(b, err)
		vm := G.NewTapeMachine(g)
		must(b, vm.RunAll())
		vm.Reset()
		s := y.Op().(awaitOp).s
		name := fmt.Sprintf("T=%d,H=%d,I=%d,E=%d", z.rows, z.hidden, z.inner, z.experts)
		b.Run(name+"/bare", func(b *testing.B) {
			for range b.N {
				must(b, s.fwd.After(s.back))
				must(b, s.fwd.Replay(b.Context()))
				must(b, s.back.After(s.fwd))
				must(b, s.back.Replay(b.Context()))
			}
			must(b, s.back.Wait())
			must(b, s.fwd.Wait())
		})
		xs, err := dense(x.Value())
		must(b, err)
		b.Run(name+"/Do", func(b *testing.B) {
			for range b.N {
				must(b, s.forward([]G.Value{xs, nil}))
				_, err := s.output()
				must(b, err)
				must(b, s.backward(xs))
				_, err = s.gradient(0)
				must(b, err)
			}
			b.ReportMetric(float64(4*z.rows*z.hidden*4)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GB/s")
		})
		b.Run(name+"/op", func(b *testing.B) {
			for range b.N {
				must(b, vm.RunAll())
				vm.Reset()
			}
		})
		must(b, vm.Close())
		must(b, l.Close())
		must(b, vars.Free())
	}
}

// TestGPU_LargeAgainstHost: a layer of real proportions in float32, with fewer rows than its capacity: output and
// gradients are the host's.
func TestGPU_LargeAgainstHost(t *testing.T) {
	onGPU(t)
	z := sizes{rows: 300, hidden: 256, inner: 128, experts: 16, topK: 4}
	run := func() ([]float64, [][]float64) {
		vars := graph.NewVars(5)
		l, err := MoE(open(t), vars, z.rows, z.moe(), Config{Balance: 0.01})
		must(t, err)
		defer func() {
			must(t, l.Close())
			must(t, vars.Free())
		}()
		g := G.NewGraph()
		x := input(g, "x", 3, 217, z.hidden)
		ws, err := l.Weights(g, tensor.Float32)
		must(t, err)
		y, err := l.Apply(append(G.Nodes{x}, ws...)...)
		must(t, err)
		return once(t, false, y, append(G.Nodes{x}, ws...)...)
	}
	got, grads := run()
	device = "host"
	want, wants := run()
	if d := apart(got, want); !(d < 1e-5) || math.IsNaN(d) {
		t.Errorf("output: %g apart", d)
	}
	for i := range wants {
		d := apart(grads[i], wants[i])
		t.Logf("gradient %d: %.2g apart", i, d)
		if !(d < 1e-5) {
			t.Errorf("gradient %d: %g apart", i, d)
		}
	}
}
