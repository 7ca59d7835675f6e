package memory

import (
	"math"
	"runtime"
	"sync"
	"sync/atomic"
)

const (
	maxExact = 1000    // buffers of a component that is still searched; above, greedy only
	maxNodes = 1 << 16 // default budget of one search
	maxSteps = 4e8     // default budget of all searches of a component, in elementary steps
	near     = 40      // a best plan within 1/near of the bound makes the bound worth another try
	probes   = 8       // capacities that may fail below the best plan, at each effort

	// Efforts: nodes a buffer that each order may visit. Most graphs do not outlast the first.
	quick   = 4
	short   = 16
	medium  = 80
	long    = 512 // only for the leading orders
	leading = 4
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
		return []order{"TWA", "UTW", "LTZ", "TAW", "NBT", "WAT", "TBN", "UTZ", "LTW"}
	case c.span[0] != c.span[c.n-1] || c.before != nil:
		return []order{"TAW", "NBT", "TWA", "TUW", "TNB", "BTN"}
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
	lb      int64 // bytes: proven
	goal    int64 // bytes: low enough
	best    layout
	limit   int           // nodes a search may use at most
	least   int64         // steps below which nothing more is begun
	left    int64         // steps that all searches together may still use
	rung    int64         // bytes: the highest capacity of the ladder that failed
	failed  map[int64]int // capacity -> largest budget that did not decide it
}

// climb improves best until it meets the goal or the budget is used up, and returns it with the lower
// bound, which proofs of impossibility may have raised. With ask, the goal is a capacity that the
// caller cannot do without, so that it comes before anything lower.
func (c *core) climb(f *family, lb, goal int64, ask bool, best layout, o Options) (layout, int64) {
	n := int64(c.n)
	x := &climber{c: c, f: f, orders: c.orders(), workers: o.Workers, lb: lb, goal: max(goal, lb), best: best,
		limit: min(maxNodes, 6*c.n*c.n), left: min(maxSteps, n*n*n*n+1e6), failed: map[int64]int{}}
	x.least = x.left / 64
	if x.workers <= 0 {
		x.workers = runtime.GOMAXPROCS(0)
	}
	if o.Nodes > 0 {
		x.limit, x.left = o.Nodes, math.MaxInt64
	}
	x.try(x.lb, quick)
	x.try(x.goal, quick)
	x.try(x.goal, short)
	x.try(x.lb, short)
	if ask || x.goal > x.lb {
		x.try(x.goal, medium)
		x.try(x.goal, long)
	}
	if !x.done() {
		x.best = c.squeak(max(x.goal, x.lb), x.best)
	}
	x.rungs(quick)
	x.comb(quick)
	x.comb(short)
	if x.best.peak-x.lb <= x.lb/near {
		x.try(x.lb, medium)
	}
	x.bisect(medium)
	x.try(x.lb, medium)
	x.try(x.lb, long)
	x.bisect(long)
	return x.best, x.lb
}

func (x *climber) done() bool { return x.best.peak <= max(x.goal, x.lb) }

// rungs climbs the ladder until a capacity below the best plan holds one.
func (x *climber) rungs(effort int) {
	base := x.lb
	for _, part := range ladder {
		capacity := base + int64(part*float64(base))
		if x.try(capacity, effort) {
			return
		}
		if capacity < x.best.peak {
			x.rung = capacity
		}
	}
}

// comb tries capacities between the last one that failed on the ladder and the best plan, at even steps
// that get finer while nothing is found. Finding nothing at one says little about its neighbours:
// which order meets which capacity quickly is a matter of luck.
func (x *climber) comb(effort int) {
	low := x.rung
	for parts, left := int64(4), probes; left > 0 && !x.done(); {
		peak := x.best.peak
		step := max(x.c.unit, (peak-low)/parts)
		for capacity := low + step; capacity < peak && left > 0 && x.best.peak == peak; capacity += step {
			if !x.tried(capacity, effort) && !x.try(capacity, effort) {
				left--
			}
		}
		if x.best.peak == peak {
			if step == x.c.unit {
				return
			}
			parts *= 2
		}
	}
}

// bisect spends larger efforts where they are most likely to gain something.
func (x *climber) bisect(effort int) {
	low := x.highest(effort)
	for range probes {
		if capacity := low + (x.best.peak-low)/2; !x.try(capacity, effort) {
			low = capacity
		}
	}
}

// highest is the highest capacity below the best plan at which an effort failed.
func (x *climber) highest(effort int) int64 {
	low := x.lb
	for capacity, spent := range x.failed {
		if capacity < x.best.peak && spent >= x.nodes(effort) {
			low = max(low, capacity)
		}
	}
	return low
}

// tried reports whether try would have nothing new to say about a capacity.
func (x *climber) tried(capacity int64, effort int) bool {
	return x.failed[x.c.peakUpTo(capacity)] >= x.nodes(effort)
}

// nodes is the budget of one search at an effort.
func (x *climber) nodes(effort int) int { return min(effort*x.c.n, x.limit) }

// try searches for a plan of at most capacity and reports whether one was found.
func (x *climber) try(capacity int64, effort int) bool {
	capacity = x.c.peakUpTo(capacity)
	if x.done() || capacity < x.lb || capacity >= x.best.peak {
		return false
	}
	orders := x.orders
	if effort == long {
		orders = orders[:min(leading, len(orders))]
	}
	nodes := x.nodes(effort)
	if nodes <= x.failed[capacity] || x.left < x.least {
		return false
	}
	l, result, steps := x.race(capacity, orders, nodes, x.left/int64(2*len(orders)))
	switch result {
	case found:
		x.best = l
		return true
	case impossible:
		x.lb = x.c.peakFrom(capacity + 1)
		x.goal = max(x.goal, x.lb)
	}
	x.failed[capacity] = nodes
	x.left -= steps
	return false
}

// race runs every order on its own goroutine. The first order, by position, that finds a plan within
// the budget wins: those behind it are stopped, those before it are waited for. A proof stops all.
func (x *climber) race(capacity int64, orders []order, nodes int, steps int64) (layout, outcome, int64) {
	var stop, next atomic.Int32
	stop.Store(math.MaxInt32)
	searches := make([]*search, len(orders))
	results := make([]outcome, len(orders))
	work := func() {
		for i := next.Add(1) - 1; int(i) < len(orders); i = next.Add(1) - 1 {
			if stop.Load() < i {
				continue
			}
			s := newSearch(x.c, x.f, orders[i], capacity)
			results[i] = s.run(nodes, steps, &stop, i)
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
	for range min(x.workers, len(orders)) - 1 {
		wait.Go(work)
	}
	work()
	wait.Wait()
	for i, r := range results {
		switch r {
		case impossible:
			return layout{}, impossible, 0
		case found:
			return x.c.layout(searches[i].off, "search, order "+string(orders[i])), found, 0
		}
	}
	var sum int64
	for _, s := range searches { // nobody was stopped, so this is the same on every run
		sum += s.steps
	}
	return layout{}, spent, sum
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
		l.peak = max(l.peak, c.end(int32(k), o))
	}
	return l
}
