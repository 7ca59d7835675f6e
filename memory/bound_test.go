package memory

import (
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestBound compares the lower bound with the heaviest clique over all subsets, for orders, intervals
// and bare relations.
func TestBound(t *testing.T) {
	for seed := range uint64(600) {
		r := rand.New(rand.NewPCG(seed, 4))
		d := layered(r, 1+r.IntN(3), func() int { return 1 + r.IntN(3) }, 1+r.IntN(2))
		if len(d.buffers) > 14 {
			continue
		}
		c, err := d.order.Conflicts(d.accesses)
		if err != nil {
			t.Fatal(err)
		}
		if seed%3 == 1 { // conflicts by hand, on top of an order
			c.Add(r.IntN(c.Len()), r.IntN(c.Len()))
		}
		if seed%3 == 2 {
			bare := NewConflicts(c.Len())
			for i := range c.Len() {
				for j := range i {
					if c.Has(i, j) {
						bare.Add(i, j)
					}
				}
			}
			c = bare
		}
		p := Problem{Buffers: d.buffers, Conflicts: c}
		plan, err := Solve(p, Options{})
		if err != nil {
			t.Fatal(err)
		}
		check(t, p, plan)
		if bytes, ids, err := LowerBound(p); err != nil || bytes > plan.LowerBound || plan.Proven && plan.Peak == bytes && !slices.Equal(ids, plan.Pinned) {
			t.Fatalf("seed %d: LowerBound: got %d, %v, %v, the plan says %d, %v", seed, bytes, ids, err, plan.LowerBound, plan.Pinned)
		}
		want := heaviestSubset(p)
		var pinned int64
		for _, i := range plan.Pinned {
			pinned += p.Buffers[i].Size
		}
		if pinned != want || plan.LowerBound < want {
			t.Fatalf("seed %d: pinned %d bytes, bound %d, want %d", seed, pinned, plan.LowerBound, want)
		}
	}
}

func heaviestSubset(p Problem) int64 {
	n := len(p.Buffers)
	var best int64
subsets:
	for set := range uint(1) << n {
		var sum int64
		for s := set; s != 0; s &= s - 1 {
			i := bits.TrailingZeros(s)
			for q := s & (s - 1); q != 0; q &= q - 1 {
				if !p.Conflicts.Has(i, bits.TrailingZeros(q)) {
					continue subsets
				}
			}
			sum += p.Buffers[i].Size
		}
		best = max(best, sum)
	}
	return best
}

// TestAntichain_Intervals: for lifetimes in a total order the antichain weighs what is alive at once.
func TestAntichain_Intervals(t *testing.T) {
	for seed := range uint64(60) {
		p := packed(seed, 20+int(seed), 1<<30)
		for _, c := range cores(&p) {
			got, want := c.weight(c.antichain()), c.weight(c.heaviest(c.sections()))
			if got != want {
				t.Fatalf("seed %d: antichain %d, section %d", seed, got, want)
			}
		}
	}
}

// TestIntervals_AsOrder: the lifetimes of a chain of nodes give the same relation either way.
func TestIntervals_AsOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	o := Order{Nodes: 50}
	for v := 1; v < o.Nodes; v++ {
		o.Edges = append(o.Edges, [2]int{v - 1, v})
	}
	var lower, upper []int64
	var accesses [][]int
	for range 80 {
		first := r.IntN(o.Nodes)
		last := first + r.IntN(o.Nodes-first)
		accesses = append(accesses, []int{last, first})
		lower, upper = append(lower, int64(first)), append(upper, int64(last)+1)
	}
	a, err1 := o.Conflicts(accesses)
	b, err2 := Intervals(lower, upper)
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	for i := range accesses {
		for j := range accesses {
			if a.Has(i, j) != b.Has(i, j) || a.Before(i, j) != b.Before(i, j) || a.spans[i] != b.spans[i] {
				t.Fatalf("buffers %d and %d differ", i, j)
			}
		}
	}
}
