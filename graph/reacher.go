package graph

import (
	"cmp"
	"math"
	"slices"
)

// reacher is a graph of steps with its closure and the longest ways to and from each.
type reacher struct {
	m      *costModel
	deps   [][]int
	before [][]uint64 // of each step, those before it
	head   []float64  // longest way that ends with the step
	tail   []float64  // longest way that begins with it
}

func newReacher(m *costModel) *reacher {
	x := &reacher{m: m}
	for _, d := range m.deps {
		x.deps = append(x.deps, slices.Clone(d))
	}
	x.update()
	return x
}

func (x *reacher) add(edges [][2]int) {
	for _, e := range edges {
		x.deps[e[1]] = append(x.deps[e[1]], e[0])
	}
	x.update()
}

func (x *reacher) update() {
	n := len(x.deps)
	words := (n + 63) / 64
	x.before, x.head, x.tail = make([][]uint64, n), make([]float64, n), make([]float64, n)
	order := sortSteps(x.deps)
	for _, i := range order {
		x.before[i] = make([]uint64, words)
		for _, d := range x.deps[i] {
			x.before[i][d/64] |= 1 << (d % 64)
			for w, bits := range x.before[d] {
				x.before[i][w] |= bits
			}
			x.head[i] = max(x.head[i], x.head[d])
		}
		x.head[i] += x.m.alone(i)
	}
	for _, i := range slices.Backward(order) {
		x.tail[i] += x.m.alone(i)
		for _, d := range x.deps[i] {
			x.tail[d] = max(x.tail[d], x.tail[i])
		}
	}
}

func (x *reacher) critical() float64 { return slices.Max(append(x.head, 0)) }

// is says whether step a comes before step b.
func (x *reacher) is(a, b int) bool { return x.before[b][a/64]>>(a%64)&1 == 1 }

func (x *reacher) edges() [][2]int {
	var edges [][2]int
	for i, ds := range x.deps {
		for _, d := range ds {
			edges = append(edges, [2]int{d, i})
		}
	}
	return edges
}

// needed leaves out the added edges that others imply.
func (x *reacher) needed(added [][2]int) [][2]int {
	var kept [][2]int
	for _, e := range added {
		implied := slices.ContainsFunc(x.deps[e[1]], func(d int) bool { return d != e[0] && x.is(e[0], d) })
		if !implied && !slices.Contains(kept, e) {
			kept = append(kept, e)
		}
	}
	return kept
}

// cheapest returns the edges for the best pair of pins, nil if no pair is allowed.
func (x *reacher) cheapest(pins *pinning, limit float64) [][2]int {
	var best [][2]int
	bestCost, bestSize := math.Inf(1), int64(0)
	for _, a := range pins.groups {
		last := x.outermost(pins.m.Accesses[a], false)
		for _, b := range pins.groups {
			if a == b {
				continue
			}
			edges, cost, ok := x.between(last, x.outermost(pins.m.Accesses[b], true))
			size := min(pins.m.Buffers[a].Size, pins.m.Buffers[b].Size)
			if !ok || cost > limit {
				continue
			}
			if c := cmp.Or(cmp.Compare(cost, bestCost), cmp.Compare(len(edges), len(best)), cmp.Compare(bestSize, size)); best == nil || c < 0 {
				best, bestCost, bestSize = edges, cost, size
			}
		}
	}
	return best
}

// outermost returns those of the steps that come before, or after, no other of them.
func (x *reacher) outermost(steps []int, first bool) []int {
	var out []int
	for _, v := range steps {
		inner := slices.ContainsFunc(steps, func(u int) bool { return first && x.is(u, v) || !first && x.is(v, u) })
		if !inner && !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	return out
}

// between returns the edges that put each of last before each of first, and the longest way through one of them; not ok
// where that would make a cycle.
func (x *reacher) between(last, first []int) (edges [][2]int, cost float64, ok bool) {
	for _, a := range last {
		for _, w := range first {
			if a == w || x.is(w, a) {
				return nil, 0, false
			}
			if !x.is(a, w) {
				edges = append(edges, [2]int{a, w})
				cost = max(cost, x.head[a]+x.tail[w])
			}
		}
	}
	return edges, cost, len(edges) > 0
}
