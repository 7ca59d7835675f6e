package memory

import (
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestSolve_Exhaustive compares small problems, with alignments, fixed offsets and zero sizes, with the
// best first fit over all orders, which is the optimum.
func TestSolve_Exhaustive(t *testing.T) {
	optimal, total := 0, 0
	const cases = 1500
	for seed := range uint64(cases) {
		r := rand.New(rand.NewPCG(seed, 1))
		p := smallProblem(r)
		if p.validate() != nil {
			continue
		}
		plan, err := Solve(p, Options{})
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		check(t, p, plan)
		best := optimum(p)
		if plan.Peak < best || plan.LowerBound > best || plan.Proven && plan.Peak != best {
			t.Fatalf("seed %d: plan %+v, optimum %d", seed, plan, best)
		}
		total++
		if plan.Peak == best {
			optimal++
		}
	}
	t.Logf("optimal in %d of %d", optimal, total)
	if optimal*100 < total*99 {
		t.Errorf("optimal in %d of %d", optimal, total)
	}
}

func smallProblem(r *rand.Rand) Problem {
	n := 1 + r.IntN(6)
	p := Problem{Conflicts: NewConflicts(n)}
	if r.IntN(2) == 0 {
		lower, upper := make([]int64, n), make([]int64, n)
		for i := range n {
			lower[i] = r.Int64N(8)
			upper[i] = lower[i] + r.Int64N(5)
		}
		p.Conflicts, _ = Intervals(lower, upper)
	} else {
		for i := range n {
			for j := range i {
				if r.IntN(2) == 0 {
					p.Conflicts.Add(i, j)
				}
			}
		}
	}
	for range n {
		b := Buffer{Size: r.Int64N(9), Align: 1 << r.IntN(4)}
		if r.IntN(8) == 0 {
			b.Fixed, b.Offset = true, b.Align*r.Int64N(6)
		}
		p.Buffers = append(p.Buffers, b)
	}
	return p
}

// optimum is the lowest peak of first fit over every order of the buffers that are not fixed.
func optimum(p Problem) int64 {
	best := int64(math.MaxInt64)
	offsets := make([]int64, len(p.Buffers))
	var placed, free []int
	for i, b := range p.Buffers {
		if b.Fixed {
			offsets[i] = b.Offset
			placed = append(placed, i)
		} else {
			free = append(free, i)
		}
	}
	var extend func(int)
	extend = func(k int) {
		if k == len(free) {
			var peak int64
			for i, b := range p.Buffers {
				peak = max(peak, offsets[i]+b.Size)
			}
			best = min(best, peak)
			return
		}
		for i := k; i < len(free); i++ {
			free[k], free[i] = free[i], free[k]
			b := free[k]
			for offsets[b] = 0; !fitsAt(p, offsets, placed, b); offsets[b] += max(p.Buffers[b].Align, 1) {
			}
			placed = append(placed, b)
			extend(k + 1)
			placed = placed[:len(placed)-1]
			free[k], free[i] = free[i], free[k]
		}
	}
	extend(0)
	return best
}

func fitsAt(p Problem, offsets []int64, placed []int, b int) bool {
	for _, j := range placed {
		a, c := p.Buffers[b], p.Buffers[j]
		if a.Size > 0 && c.Size > 0 && p.Conflicts.Has(b, j) &&
			offsets[b] < offsets[j]+c.Size && offsets[j] < offsets[b]+a.Size {
			return false
		}
	}
	return true
}

// TestSolve_DAGs holds Solve to the lower bound on random graphs; MOEGRAPH_TEST_DAGS sets how many.
func TestSolve_DAGs(t *testing.T) {
	num := 300
	if n, err := strconv.Atoi(os.Getenv("MOEGRAPH_TEST_DAGS")); err == nil {
		num = n
	} else if Raced {
		num = 20
	} else if testing.Short() {
		num = 100
	}
	var greedy, optimal int
	var worst, sum time.Duration
	for seed := range uint64(num) {
		d := randomDAG(seed)
		start := time.Now()
		conflicts, err := d.order.Conflicts(d.accesses)
		if err != nil {
			t.Fatal(err)
		}
		p := Problem{Buffers: d.buffers, Conflicts: conflicts}
		plan, err := Solve(p, Options{})
		if err != nil {
			t.Fatal(err)
		}
		sum += time.Since(start)
		worst = max(worst, time.Since(start))
		check(t, p, plan)
		if err := Verify(d.order, d.buffers, plan.Offsets, d.uses(plan.Offsets), plan.Peak); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		simple, err := Solve(p, Options{Nodes: -1})
		if err != nil {
			t.Fatal(err)
		}
		check(t, p, simple)
		if plan.Proven {
			optimal++
		}
		if simple.Proven {
			greedy++
		}
	}
	t.Logf("%d graphs: at the bound %.1f %%, greedy alone %.1f %%; mean %v, worst %v", num,
		100*float64(optimal)/float64(num), 100*float64(greedy)/float64(num), sum/time.Duration(num), worst)
	if optimal*10 < num*9 {
		t.Errorf("at the bound in %d of %d, want 90 %%", optimal, num)
	}
	if num >= 300 && greedy*10 > num*6 {
		t.Errorf("greedy is at the bound in %d of %d, want at most 60 %%: the graphs are too easy", greedy, num)
	}
}

// TestSolve_Packed fills rectangles without a gap: the hardest kind of interval problem.
func TestSolve_Packed(t *testing.T) {
	var greedy, full int
	const cases = 12
	for seed := range uint64(cases) {
		p := packed(seed, 150, 1<<20)
		p.Capacity = 1 << 20
		plan, err := Solve(p, Options{})
		if err == nil {
			check(t, p, plan)
			full++
		} else if !errors.Is(err, ErrCapacity) {
			t.Fatal(err)
		}
		if _, err := Solve(p, Options{Nodes: -1}); err == nil {
			greedy++
		}
	}
	t.Logf("full in %d, greedy alone %d, of %d", full, greedy, cases)
	if full < cases*3/4 {
		t.Errorf("full in %d of %d", full, cases)
	}
}

// TestSolve_Same demands the same plan whatever the number of goroutines, and on every run.
func TestSolve_Same(t *testing.T) {
	cases := uint64(40)
	if Raced {
		cases = 10
	}
	for seed := range cases {
		d := randomDAG(1000 + seed)
		p := Problem{Buffers: d.buffers}
		p.Conflicts, _ = d.order.Conflicts(d.accesses)
		if seed%2 == 1 {
			p = packed(seed, 40, 1<<16)
		}
		want, err := Solve(p, Options{Workers: 1, Nodes: 2000})
		if err != nil {
			t.Fatal(err)
		}
		for _, workers := range []int{0, 2, 7, 7} {
			got, err := Solve(p, Options{Workers: workers, Nodes: 2000})
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Fatalf("seed %d, %d workers: %s", seed, workers, d)
			}
		}
	}
}
