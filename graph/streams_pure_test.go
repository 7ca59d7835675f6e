package graph

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// randomDeps draws a graph of n steps.
func randomDeps(r *rand.Rand, n int, density float64) [][]int {
	deps := make([][]int, n)
	for i := range deps {
		for j := range i {
			if r.Float64() < density {
				deps[i] = append(deps[i], j)
			}
		}
	}
	return deps
}

// randomModel gives the steps of a random graph work, width and the costs of an H200 between them.
func randomModel(r *rand.Rand, deps [][]int) *costModel {
	m := &costModel{launch: 2.5, wait: 1.5, deps: deps}
	for range deps {
		m.work = append(m.work, 100*r.Float64()*r.Float64())
		m.width = append(m.width, min(1, 0.02+r.Float64()*1.5))
	}
	m.setRanks()
	return m
}

// matrix is the closure, computed plainly.
func matrix(deps [][]int) [][]bool {
	n := len(deps)
	c := make([][]bool, n) // c[i][j]: j before i
	for i := range c {
		c[i] = make([]bool, n)
		for _, d := range deps[i] {
			c[i][d] = true
			for j := range n {
				c[i][j] = c[i][j] || c[d][j]
			}
		}
	}
	return c
}

// TestReduce: the same order, and no edge can go.
func TestReduce(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 1))
		deps := randomDeps(r, 2+r.IntN(20), r.Float64())
		want := matrix(deps)
		got := reduce(deps)
		if fmt.Sprint(matrix(got)) != fmt.Sprint(want) {
			t.Fatalf("seed %d: another order", seed)
		}
		for i, ds := range got {
			for k := range ds {
				less := slices.Clone(got)
				less[i] = slices.Delete(slices.Clone(ds), k, k+1)
				if fmt.Sprint(matrix(less)) == fmt.Sprint(want) {
					t.Fatalf("seed %d: step %d does not need %d", seed, i, ds[k])
				}
			}
		}
	}
}

// TestMatch compares the waits with the fewest over all partitions of small graphs into chains of steps that have an
// order, and demands that what has none is on different streams.
func TestMatch(t *testing.T) {
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 2))
		deps := randomDeps(r, 2+r.IntN(6), 0.15+0.5*r.Float64())
		n, before := len(deps), matrix(deps)
		m := randomModel(r, deps)
		s := m.match(n)
		if s == nil {
			t.Fatalf("seed %d: no schedule on %d streams", seed, n)
		}
		for i := range n {
			for j := range i {
				if !before[i][j] && s.stream[i] == s.stream[j] {
					t.Fatalf("seed %d: %d and %d have no order and share a stream", seed, i, j)
				}
			}
		}
		fewest := math.MaxInt
		stream := make([]int, n)
		var assign func(i, used int)
		assign = func(i, used int) {
			if i == n {
				w := 0
				for _, ws := range findWaits(stream, deps) {
					w += len(ws)
				}
				fewest = min(fewest, w)
				return
			}
			for k := range used + 1 {
				ok := true
				for j := range i {
					ok = ok && (stream[j] != k || before[i][j])
				}
				if ok {
					stream[i] = k
					assign(i+1, max(used, k+1))
				}
			}
		}
		assign(0, 0)
		s.waits = findWaits(s.positions(m.deps))
		if s.numWaits() != fewest {
			t.Fatalf("seed %d: %v: %d waits, the fewest are %d", seed, deps, s.numWaits(), fewest)
		}
	}
}

// TestCandidates: every schedule keeps every dependency, in its order of issue, its waits and its simulated times; the
// device is never asked for more than it has, so that no schedule beats the sum of all work; and both are the same on
// every run.
func TestCandidates(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 3))
		m := randomModel(r, randomDeps(r, 2+r.IntN(60), 0.3*r.Float64()))
		sum, alone := 0.0, 0.0
		for i := range m.work {
			sum += m.work[i]
			alone += m.alone(i)
		}
		all := m.candidates(8)
		for _, s := range all {
			seen := make([]bool, len(m.work))
			for _, i := range s.order {
				for _, d := range m.deps[i] {
					if !seen[d] || s.end[d] > s.start[i]+1e-9 {
						t.Fatalf("seed %d, %s: step %d is issued or starts before %d is done", seed, s.how, i, d)
					}
				}
				seen[i] = true
				if s.end[i]-s.start[i] < m.alone(i)-1e-6 {
					t.Fatalf("seed %d, %s: step %d takes %g, alone it takes %g", seed, s.how, i, s.end[i]-s.start[i], m.alone(i))
				}
			}
			if s.makespan < sum-1e-6 || s.makespan < slices.Max(m.rank)-1e-6 {
				t.Fatalf("seed %d, %s: makespan %g, work %g, critical path %g", seed, s.how, s.makespan, sum, slices.Max(m.rank))
			}
			if s.used == 1 && math.Abs(s.makespan-alone) > 1e-6 {
				t.Fatalf("seed %d: one stream takes %g, want %g", seed, s.makespan, alone)
			}
			x := newReacher(&costModel{work: m.work, width: m.width, deps: edgesToDeps(s.edges(), len(m.work))})
			for i, ds := range m.deps {
				for _, d := range ds {
					if !x.is(d, i) {
						t.Fatalf("seed %d, %s: streams and waits do not put %d before %d", seed, s.how, d, i)
					}
				}
			}
		}
		if again := m.candidates(8); fmt.Sprint(describe(all)) != fmt.Sprint(describe(again)) {
			t.Fatalf("seed %d: two runs differ", seed)
		}
	}
}

func describe(all []*schedule) []schedule {
	var out []schedule
	for _, s := range all {
		out = append(out, *s)
	}
	return out
}

// edgesToDeps sorts the steps no more: edges of a schedule may go from a higher index to a lower.
func edgesToDeps(edges [][2]int, n int) [][]int {
	deps := make([][]int, n)
	for _, e := range edges {
		deps[e[1]] = append(deps[e[1]], e[0])
	}
	return deps
}

// TestSimulate_Shares: a step that fills the device leaves no room, small ones run beside each other.
func TestSimulate_Shares(t *testing.T) {
	pair := func(width float64) float64 {
		m := &costModel{launch: 1, wait: 1, work: []float64{100 * width, 100 * width}, width: []float64{width, width}, deps: [][]int{nil, nil}}
		m.setRanks()
		return m.list(2).makespan
	}
	if got := pair(0.25); math.Abs(got-101) > 1e-6 {
		t.Errorf("two quarters take %g, want 101", got)
	}
	if got := pair(1); math.Abs(got-202) > 1e-6 {
		t.Errorf("two that fill the device take %g, want 202", got)
	}
}

// TestReacher_Needed: edges that others imply are left out.
func TestReacher_Needed(t *testing.T) {
	m := randomModel(rand.New(rand.NewPCG(1, 1)), [][]int{nil, nil, {1}, nil})
	x := newReacher(m)
	added := [][2]int{{0, 1}, {0, 2}, {3, 0}}
	x.add(added)
	if got := x.needed(added); !slices.Equal(got, [][2]int{{0, 1}, {3, 0}}) {
		t.Errorf("got %v", got)
	}
}
