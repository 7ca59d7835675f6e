package memory

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// crowd draws n lifetimes of very different lengths, up to a part of the whole time.
func crowd(n int, part float64) Problem {
	r := rand.New(rand.NewPCG(uint64(n), 1))
	whole := float64(10 * n)
	var p Problem
	var lower, upper []int64
	for range n {
		first := r.Int64N(int64(whole))
		lower = append(lower, first)
		upper = append(upper, first+1+int64(math.Pow(whole*part, r.Float64())))
		p.Buffers = append(p.Buffers, Buffer{Size: 256 * int64(math.Pow(10, 3*r.Float64())), Align: 256})
	}
	p.Conflicts, _ = Intervals(lower, upper)
	return p
}

// step is a training step: a forward pass on a few streams, then a backward pass that reads what the
// forward pass saved.
func step(nodes, streams int) dag {
	r := rand.New(rand.NewPCG(uint64(nodes), 6))
	d := dag{order: Order{Nodes: nodes}}
	last := make([]int, streams)
	edge := func(u, v int) { d.order.Edges = append(d.order.Edges, [2]int{u, v}) }
	for v := range nodes {
		s := r.IntN(streams)
		if last[s] > 0 {
			edge(last[s]-1, v)
		}
		last[s] = v + 1
		d.buffers = append(d.buffers, Buffer{Size: 256 * int64(math.Pow(10, 3*r.Float64())), Align: 256})
		d.accesses = append(d.accesses, []int{v})
		reads := []int{v - 1 - r.IntN(6), v - 1 - r.IntN(6)}
		if v > nodes/2 {
			reads = append(reads, nodes-v)
		}
		for _, u := range reads {
			if u >= 0 {
				edge(u, v)
				d.accesses[u] = append(d.accesses[u], v)
			}
		}
	}
	return d
}

// plan goes all the way from edges to a verified plan.
func (d dag) plan(t testing.TB) (*Plan, time.Duration) {
	start := time.Now()
	c, err := d.order.Conflicts(d.accesses)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := Solve(Problem{Buffers: d.buffers, Conflicts: c}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return plan, time.Since(start)
}

// TestSolve_Large plans thousands of buffers. The times are logged; the limits leave a busy machine ten
// times what an idle one needs.
func TestSolve_Large(t *testing.T) {
	if Raced || testing.Short() {
		t.Skip("only without the race detector, and not with -short")
	}
	const limit = 10 * time.Second
	for _, nodes := range []int{60, 500, 2000} {
		d := step(nodes, 3)
		plan, took := d.plan(t)
		if err := Verify(d.order, d.buffers, plan.Offsets, d.uses(plan.Offsets), plan.Peak); err != nil {
			t.Fatal(err)
		}
		t.Logf("%d nodes: %v, %.4f of the bound", nodes, took, float64(plan.Peak)/float64(plan.LowerBound))
		if took > limit {
			t.Errorf("%d nodes: took %v", nodes, took)
		}
	}
	for _, n := range []int{1000, 5000} {
		for _, part := range []float64{.002, .02, .3} {
			p := crowd(n, part)
			start := time.Now()
			plan, err := Solve(p, Options{})
			if err != nil {
				t.Fatal(err)
			}
			took := time.Since(start)
			check(t, p, plan)
			t.Logf("%d lifetimes up to %v: %v, %.4f of the bound, %s", n, part, took,
				float64(plan.Peak)/float64(plan.LowerBound), plan.Method)
			if took > limit {
				t.Errorf("%d lifetimes: took %v", n, took)
			}
			if float64(plan.Peak) > 1.15*float64(plan.LowerBound) {
				t.Errorf("%d lifetimes up to %v: peak %d, bound %d", n, part, plan.Peak, plan.LowerBound)
			}
		}
	}
}

func BenchmarkStep(b *testing.B) {
	for name, d := range map[string]dag{"nodes=60": step(60, 3), "nodes=2000": step(2000, 3)} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				d.plan(b)
			}
		})
	}
}

func BenchmarkVerify(b *testing.B) {
	d := step(2000, 3)
	plan, _ := d.plan(b)
	uses := d.uses(plan.Offsets)
	for b.Loop() {
		if err := Verify(d.order, d.buffers, plan.Offsets, uses, plan.Peak); err != nil {
			b.Fatal(err)
		}
	}
}
