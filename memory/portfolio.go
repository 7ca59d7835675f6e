package memory

import (
	"math"
	"runtime"
	"sync"
	"sync/atomic"
)

const (
	maxExact    = 1000    // buffers of a component that is still searched; above, greedy only
	maxNodes    = 1 << 16 // default budget of one search
	maxWork     = 80e6    // default budget of all searches of a component, in nodes * buffers
	firstEffort = 4       // nodes a buffer in the first round, which most graphs do not outlast
	nextEffort  = 32      // nodes a buffer in the second
	bisections  = 4       // capacities tried between the highest that failed and the best plan
)

// ladder are the capacities to try above the lower bound, as parts of it. A search that used up its
// budget says nothing about the capacities above (tight ones are often easier, since they prune more),
// so the ladder is climbed, not bisected.
var ladder = []float64{0, .005, .01, .02, .03, .05, .1, .2}

// orders are the static orders a search is tried with, first wins. With lifetimes in a total order
// their length is the better key; under a partial order the number of conflicts is.
func (c *core) orders() []order {
	switch {
	case c.lower != nil:
		return []order{"TWA", "TAW", "WAT", "AWT", "TNB"}
	case c.span[0] != c.span[c.n-1] || c.before != nil:
		return []order{"TNB", "TWA", "TBN", "TAW", "NBT", "WAT"}
	}
	return []order{"TNB", "TBN", "NBT", "BNT"}
}

// climber looks for low plans of one core. Everything it decides depends on outcomes under node
// budgets alone, so that neither the number of goroutines nor their speed changes the plan.
type climber struct {
	c       *core
	f       *family
	orders  []order
	workers int
	lb      int64 // units: proven
	goal    int64 // units: low enough
	best    layout
	limit   int           // nodes a search may use at most
	left    float64       // nodes that all searches together may still use
	failed  map[int64]int // capacity -> largest budget that did not decide it
}

// climb improves best until it meets the goal or the budget is used up, and returns it with the lower
// bound, which proofs of impossibility may have raised.
func (c *core) climb(f *family, lb, goal int64, best layout, o Options) (layout, int64) {
	x := &climber{c: c, f: f, orders: c.orders(), workers: o.Workers, lb: lb, goal: max(goal, lb), best: best,
		limit: min(maxNodes, c.n*c.n*c.n/64+64), left: maxWork / float64(c.n), failed: map[int64]int{}}
	if x.workers <= 0 {
		x.workers = runtime.GOMAXPROCS(0)
	}
	if o.Nodes > 0 {
		x.limit, x.left = o.Nodes, math.Inf(1)
	}
	small, medium := min(firstEffort*c.n, x.limit), min(nextEffort*c.n, x.limit)
	x.try(x.lb, small)
	if x.goal > lb {
		x.try(x.goal, small)
	}
	x.try(x.lb, medium)
	if x.goal > lb {
		x.try(x.goal, medium)
		x.try(x.goal, x.limit)
	}
	x.rungs(small)
	x.try(x.lb, x.limit)
	x.rungs(medium)
	x.between(medium)
	x.rungs(x.limit)
	x.between(x.limit)
	return x.best, x.lb
}

func (x *climber) done() bool { return x.best.peak <= max(x.goal, x.lb) }

// rungs climbs the ladder until a capacity below the best plan holds one.
func (x *climber) rungs(nodes int) {
	base := x.lb
	for _, part := range ladder {
		if x.try(base+int64(part*float64(base)), nodes) {
			return
		}
	}
}

// between halves the distance from the highest capacity that failed to the best plan.
func (x *climber) between(nodes int) {
	low := x.lb - 1
	for capacity := range x.failed {
		if capacity < x.best.peak {
			low = max(low, capacity)
		}
	}
	for range bisections {
		if capacity := low + (x.best.peak-low)/2; !x.try(capacity, nodes) {
			low = capacity
		}
	}
}

// try searches for a plan of at most capacity and reports whether one was found.
func (x *climber) try(capacity int64, nodes int) bool {
	cost := float64(nodes * len(x.orders))
	if x.done() || capacity < x.lb || capacity >= x.best.peak || x.failed[capacity] >= nodes || x.left < cost {
		return false
	}
	l, result := x.race(capacity, nodes)
	switch result {
	case found:
		x.best = l
		return true
	case impossible:
		x.lb = capacity + 1
		x.goal = max(x.goal, x.lb)
	}
	x.failed[capacity] = nodes
	x.left -= cost
	return false
}

// race runs every order on its own goroutine. The first order, by position, that finds a plan within
// the budget wins: those behind it are stopped, those before it are waited for. A proof stops all.
func (x *climber) race(capacity int64, nodes int) (layout, outcome) {
	var stop, next atomic.Int32
	stop.Store(math.MaxInt32)
	searches := make([]*search, len(x.orders))
	results := make([]outcome, len(x.orders))
	work := func() {
		for i := next.Add(1) - 1; int(i) < len(x.orders); i = next.Add(1) - 1 {
			if stop.Load() < i {
				continue
			}
			s := newSearch(x.c, x.f, x.orders[i], capacity)
			results[i] = s.run(nodes, &stop, i)
			searches[i] = s
			switch results[i] {
			case found:
				lower(&stop, i)
			case impossible:
				lower(&stop, -1)
			}
		}
	}
	var wait sync.WaitGroup
	for range min(x.workers, len(x.orders)) - 1 {
		wait.Go(work)
	}
	work()
	wait.Wait()
	for i, r := range results {
		switch r {
		case impossible:
			return layout{}, impossible
		case found:
			return x.c.layout(searches[i].off, "search, order "+string(x.orders[i])), found
		}
	}
	return layout{}, spent
}

// lower stores the smaller of the value held and v.
func lower(held *atomic.Int32, v int32) {
	for old := held.Load(); v < old; old = held.Load() {
		if held.CompareAndSwap(old, v) {
			return
		}
	}
}

func (c *core) layout(off []int64, method string) layout {
	l := layout{off: off, method: method}
	for k, o := range off {
		l.peak = max(l.peak, o+c.size[k])
	}
	return l
}
