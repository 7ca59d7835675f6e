package gorgop

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/nodes"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// losses trains and returns the mean cost of the first and of the last seven steps: a round of the data.
func losses(t testing.TB, k *machine, steps int) (first, last float64) {
	t.Helper()
	for i := range steps {
		cost := k.step(t)
		if i < 7 {
			first += cost / 7
		}
		if i >= steps-7 {
			last += cost / 7
		}
	}
	return first, last
}

// TestLayer_Trains: from the same weights the loss after 200 steps is that of gorgonia's own ops within 1 %, by
// gorgonia's solver, in both machines.
func TestLayer_Trains(t *testing.T) {
	const steps = 200
	for _, lisp := range []bool{false, true} {
		t.Run(vmName(lisp), func(t *testing.T) {
			l, vars := newLayer(t, small, Config{})
			m, ref := withLayer(t, l, small, tensor.Float32, small.rows), reference(t, vars, small, tensor.Float32)
			_, want := losses(t, newMachine(t, ref, lisp, G.NewAdamSolver(G.WithLearnRate(3e-3))), steps)
			first, got := losses(t, newMachine(t, m, lisp, G.NewAdamSolver(G.WithLearnRate(3e-3))), steps)
			t.Logf("loss from %.4f to %.5f, of gorgonia's ops %.5f: %.2g %% apart", first, got, want, 100*math.Abs(got/want-1))
			if !(got < first/3) || !(math.Abs(got/want-1) < 0.01) {
				t.Errorf("got a loss from %v to %v, want it to fall to %v within 1 %%", first, got, want)
			}
			if f, b := l.Replays(); f != steps || b != steps {
				t.Errorf("got %d forward and %d backward replays, want %d of each", f, b, steps)
			}
		})
	}
}

// TestLayer_ProgramWeights: the Program's optimizer trains what gorgonia's would: SGD at the same rate gives the same
// weights.
func TestLayer_ProgramWeights(t *testing.T) {
	const rate, steps = 0.05, 30
	for _, lisp := range []bool{false, true} {
		t.Run(vmName(lisp), func(t *testing.T) {
			sgd := func(gr *graph.Grads) { nodes.SGD(gr, nodes.SGDConfig{Rate: rate}) }
			own, ownVars := newLayer(t, small, Config{Weights: ProgramWeights, Optimizer: sgd})
			byNode, nodeVars := newLayer(t, small, Config{})
			a := newMachine(t, withLayer(t, own, small, tensor.Float32, small.rows), lisp, G.NewVanillaSolver(G.WithLearnRate(rate)))
			b := newMachine(t, withLayer(t, byNode, small, tensor.Float32, small.rows), lisp, G.NewVanillaSolver(G.WithLearnRate(rate)))
			if len(a.m.layer) != 0 || len(b.m.layer) != 3 {
				t.Fatalf("got %d and %d weight nodes, want 0 and 3", len(a.m.layer), len(b.m.layer))
			}
			before := make([]float64, ownVars.Lookup("moe/fc1").Elems())
			must(t, ownVars.Read(ownVars.Lookup("moe/fc1"), before))
			first, last := losses(t, a, steps)
			_, want := losses(t, b, steps)
			if !(last < first) || math.Abs(last/want-1) > 1e-4 {
				t.Errorf("got a loss from %v to %v, want %v", first, last, want)
			}
			must(t, byNode.Store(b.m.layer))
			for _, name := range []string{"router", "fc1", "fc2"} {
				v, w := ownVars.Lookup("moe/"+name), nodeVars.Lookup("moe/"+name)
				got, wants := make([]float64, v.Elems()), make([]float64, w.Elems())
				must(t, ownVars.Read(v, got))
				must(t, nodeVars.Read(w, wants))
				if d := apart(got, wants); !(d < 1e-4) {
					t.Errorf("%s: %g apart after %d steps", name, d, steps)
				}
				if name == "fc1" && apart(got, before) < 1e-3 {
					t.Error("fc1 has not moved")
				}
			}
			if f, r := own.Replays(); f != steps || r != steps {
				t.Errorf("got %d forward and %d backward replays, want %d of each", f, r, steps)
			}
		})
	}
}

// TestLayer_Handle: a layer that owns its weights trains though nothing before it does.
func TestLayer_Handle(t *testing.T) {
	l, vars := newLayer(t, small, Config{Weights: ProgramWeights, Optimizer: func(gr *graph.Grads) { nodes.SGD(gr, nodes.SGDConfig{Rate: 0.1}) }})
	g := G.NewGraph()
	x := G.NewMatrix(g, tensor.Float64, G.WithShape(4, small.hidden), G.WithName("x"), G.WithValue(tensorOf(tensor.Float64, numbers(3, 4*small.hidden, 1), 4, small.hidden)))
	y, err := l.Apply(x)
	must(t, err)
	cost := G.Must(G.Mean(G.Must(G.Square(y))))
	handle, err := l.Handle(g, tensor.Float64)
	must(t, err)
	grads, err := G.Grad(cost, handle)
	must(t, err)
	vm := G.NewTapeMachine(g)
	defer vm.Close()
	var costs []float64
	for range 40 {
		must(t, vm.RunAll())
		costs = append(costs, floats(t, cost.Value())[0])
		vm.Reset()
	}
	if !(costs[39] < costs[0]/2) {
		t.Errorf("got a cost from %v to %v, want it to fall", costs[0], costs[39])
	}
	if v := floats(t, grads[0].Value()); v[0] != 0 {
		t.Errorf("gradient of the handle: got %v, want 0", v)
	}
	if vars.Lookup("moe/fc1") == nil {
		t.Error("the Vars has no fc1")
	}
	nodeLayer, _ := newLayer(t, small, Config{})
	if _, err := nodeLayer.Handle(g, tensor.Float64); err == nil {
		t.Error("a layer with node weights gives a handle")
	}
}

// TestLayer_BFloat16: with products in bf16 the gradients are those of float32 but for their rounding, and it trains.
func TestLayer_BFloat16(t *testing.T) {
	run := func(compute dtype.DType) (*machine, *Layer) {
		vars := graph.NewVars(7)
		moe := small.moe()
		moe.Compute = compute
		l, err := MoE(open(t), vars.Scope("moe"), small.rows, moe, Config{Balance: 0.01, ZLoss: 0.001})
		must(t, err)
		cleanup(t, l, vars)
		return newMachine(t, withLayer(t, l, small, tensor.Float32, small.rows), false, G.NewAdamSolver(G.WithLearnRate(3e-3))), l
	}
	low, _ := run(dtype.BFloat16)
	high, _ := run(dtype.Float32)
	low.m.batch(t, 0)
	high.m.batch(t, 0)
	low.run(t)
	high.run(t)
	got, want := low.m.grads(t), high.m.grads(t)
	for name, w := range want {
		d := apart(got[name], w)
		t.Logf("%s: %.2g apart", name, d)
		if d > 0.05 || name == "fc1" && d == 0 {
			t.Errorf("gradient of %s: %g apart, want some, less than 0.05", name, d)
		}
	}
	if first, last := losses(t, low, 100); !(last < first/2) {
		t.Errorf("got a loss from %v to %v", first, last)
	}
}

// TestLayer_MemoryConstant: 10,000 steps leave the heap as it was after the first hundred. The loop
// calls no garbage collector.
func TestLayer_MemoryConstant(t *testing.T) {
	if testing.Short() {
		t.Skip("10,000 steps")
	}
	z := sizes{rows: 4, in: 4, hidden: 8, inner: 32, experts: 2, topK: 1, out: 2}
	l, _ := newLayer(t, z, Config{})
	k := newMachine(t, withLayer(t, l, z, tensor.Float32, z.rows), false, G.NewVanillaSolver(G.WithLearnRate(0.01)))
	k.m.batch(t, 0)
	learn := G.NodesToValueGrads(k.m.learnables())
	heap := func() uint64 {
		var s runtime.MemStats
		runtime.GC() // around the loop, to see what is alive
		runtime.ReadMemStats(&s)
		return s.HeapAlloc
	}
	var most uint64 // what the heap grows to between two collections that nobody asked for
	loop := func(steps int) {
		var s runtime.MemStats
		for i := range steps {
			k.run(t)
			must(t, k.solver.Step(learn))
			if i%500 == 0 {
				runtime.ReadMemStats(&s)
				most = max(most, s.HeapSys)
			}
		}
	}
	loop(500)
	before, mostBefore := heap(), most
	loop(10_000)
	after := heap()
	t.Logf("live heap %d KiB before, %d KiB after 10,000 steps; heap from the system at most %d and %d KiB", before>>10, after>>10, mostBefore>>10, most>>10)
	if after > before+64<<10 {
		t.Errorf("the live heap grew from %d to %d bytes", before, after)
	}
	if most > 2*mostBefore {
		t.Errorf("the heap took %d bytes from the system, after 500 steps %d", most, mostBefore)
	}
}

// BenchmarkStep: what embedding costs, in microseconds, of which a tenth of the runs took less. "bare" are the two replays of a step alone, and "do"
// adds what the ops do around them; "op" is all of it within a gorgonia graph of the layer and a mean of squares,
// without a solver, and "rest" is that graph without the layer. They are run in turn, so that other load on the
// machine meets all of them. "overhead" is op - rest - bare.
func BenchmarkStep(b *testing.B) {
	for _, z := range []sizes{{rows: 8, hidden: 16, inner: 32, experts: 4, topK: 2}, {rows: 256, hidden: 128, inner: 256, experts: 8, topK: 2}} {
		b.Run(fmt.Sprintf("T=%d,H=%d,I=%d,E=%d", z.rows, z.hidden, z.inner, z.experts), func(b *testing.B) { benchmarkStep(b, z) })
	}
}

func benchmarkStep(b *testing.B, z sizes) {
	vars := graph.NewVars(1)
	l, err := MoE(open(b), vars, z.rows, z.moe(), Config{})
	must(b, err)
	defer func() { must(b, l.Close()) }()
	build := func(with bool) (vm G.VM, y *G.Node, vals []G.Value) {
		g := G.NewGraph()
		x := input(g, "x", 1, z.rows, z.hidden)
		y, vals = x, []G.Value{x.Value()}
		if with {
			ws, err := l.Weights(g, tensor.Float32)
			must(b, err)
			for _, n := range ws {
				vals = append(vals, n.Value())
			}
			y, err = l.Apply(append(G.Nodes{x}, ws...)...)
			must(b, err)
		}
		_, err := G.Grad(G.Must(G.Mean(G.Must(G.Square(y)))), x)
		must(b, err)
		vm = G.NewTapeMachine(g)
		must(b, vm.RunAll())
		vm.Reset()
		return vm, y, vals
	}
	vm, y, vals := build(true)
	defer vm.Close()
	rest, _, _ := build(false)
	defer rest.Close()
	s := y.Op().(awaitOp).s
	parts := []struct {
		name string
		run  func()
	}{
		{"bare", func() {
			must(b, s.fwd.Replay(b.Context()))
			must(b, s.back.Replay(b.Context()))
			must(b, s.back.Wait())
		}},
		{"do", func() {
			must(b, s.forward(vals))
			v, err := s.output()
			must(b, err)
			must(b, s.backward(v))
			for i := range s.grads {
				_, err := s.gradient(i)
				must(b, err)
			}
		}},
		{"op", func() {
			must(b, vm.RunAll())
			vm.Reset()
		}},
		{"rest", func() {
			must(b, rest.RunAll())
			rest.Reset()
		}},
	}
	times := make([][]float64, len(parts))
	for b.Loop() {
		for i, p := range parts {
			began := time.Now()
			p.run()
			times[i] = append(times[i], float64(time.Since(began))/1e3)
		}
	}
	us := map[string]float64{}
	for i, p := range parts {
		slices.Sort(times[i])
		us[p.name] = times[i][len(times[i])/10]
		b.ReportMetric(us[p.name], p.name+"-us")
	}
	b.ReportMetric(us["op"]-us["rest"]-us["bare"], "overhead-us")
}
