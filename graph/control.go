package graph

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/moegraph/moegraph/memory"
)

// slacks are how much longer the critical path may get by edges that save bytes, as parts of it. They are tried in this
// order: without any edge; with those of any length, since what these do not reach is out of reach; then with as
// little as does.
var slacks = []float64{-1, math.Inf(1), 0, .1, .3, 1}

// workspaces are the buffers of the steps as built, for bounds on what schedules need.
type workspaces struct {
	p   *Program
	may []memory.Alias
}

// listWorkspaces lists them once.
func (c *compilation) listWorkspaces() *workspaces {
	if c.shape == nil {
		p := &Program{steps: c.built, outputs: c.prog.outputs, opt: c.opt}
		p.listBuffers()
		c.shape = &workspaces{p, p.mayOverwrite(c.g)}
	}
	return c.shape
}

// bytesOf returns the bytes below which no placement can come in an order of the steps as built, and the groups of
// workspaces that pin them.
func (c *compilation) bytesOf(edges [][2]int) (int64, *pinning, error) {
	w := c.listWorkspaces()
	order := memory.Order{Nodes: len(c.built), Edges: edges}
	may := w.may
	if c.opt.Debug.Apart {
		may = nil
	}
	m, err := order.Merge(w.p.memoryBuffers(), w.p.accesses, may)
	if err != nil {
		return 0, nil, err
	}
	prob := memory.Problem{Buffers: m.Buffers}
	if prob.Conflicts, err = order.Conflicts(m.Accesses); err != nil {
		return 0, nil, err
	}
	bytes, pinned, err := memory.LowerBound(prob)
	return bytes, &pinning{m, pinned}, err
}

// pinning is which groups of workspaces need a lower bound.
type pinning struct {
	m      *memory.Merged
	groups []int
}

// names lists the first members of the groups, the largest first, at most eight.
func (p *pinning) names() string {
	byBytes := slices.Clone(p.groups)
	slices.SortStableFunc(byBytes, func(a, b int) int { return cmp.Compare(p.m.Buffers[b].Size, p.m.Buffers[a].Size) })
	var names []string
	for k, g := range byBytes {
		if k == 8 {
			names = append(names, fmt.Sprintf("and %d more", len(byBytes)-k))
			break
		}
		names = append(names, p.m.Buffers[g].Name)
	}
	return strings.Join(names, ", ")
}

// fit finds a plan of at most Options.MaxWorkspace bytes: of the schedules that have one the one of the least simulated
// time. Where there is none, edges are added to the graph that make workspaces end before others begin, at first only
// where they make the critical path no longer, then where they do.
func (c *compilation) fit(m *costModel, most int) error {
	original := c.built
	least := reached{bytes: math.MaxInt64}
	var last *Program // what any length allows
	for _, slack := range slacks {
		c.built, c.shape, c.prog.control = original, nil, nil
		model := m
		if slack >= 0 {
			edges, err := c.control(m, slack)
			if err != nil {
				return err
			}
			c.reorder(edges)
			model = newCostModel(c.dev.Rates(), c.built, c.profile)
		}
		all := model.candidates(most)
		slices.SortStableFunc(all, func(a, b *schedule) int { return cmp.Compare(a.makespan, b.makespan) })
		ok, err := false, error(nil)
		for _, s := range all {
			if ok, err = c.tryFit(s, &least); ok || err != nil {
				break
			}
		}
		switch {
		case err != nil:
			return err
		case ok && math.IsInf(slack, 1):
			held := *c.prog
			last, c.prog.plan = &held, nil
		case ok:
			return nil
		case math.IsInf(slack, 1):
			return BadShape("Options.MaxWorkspace", fmt.Sprintf("%d bytes", c.opt.MaxWorkspace),
				"at least %d, the least found in any order of the steps; %s need it at once", least.bytes, least.names)
		}
	}
	*c.prog = *last
	c.steps = last.steps
	return nil
}

// reached is the smallest arena found so far.
type reached struct {
	bytes int64
	names string
}

// tryFit makes the schedule the Program's if it has a plan that is small enough.
func (c *compilation) tryFit(s *schedule, least *reached) (bool, error) {
	bytes, pins, err := c.bytesOf(s.edges())
	if err != nil {
		return false, err
	}
	if bytes > c.opt.MaxWorkspace {
		if bytes < least.bytes {
			*least = reached{bytes, pins.names()}
		}
		return false, nil
	}
	c.apply(s)
	if err := c.placeWorkspaces(); err != nil {
		return false, err
	}
	if peak := c.prog.plan.Peak; peak > c.opt.MaxWorkspace {
		if peak < least.bytes {
			*least = reached{peak, pins.names()}
		}
		c.prog.plan = nil
		return false, nil
	}
	return true, nil
}

// reorder makes edges, between the steps as built, dependencies, and puts the steps in an order that keeps them.
func (c *compilation) reorder(edges [][2]int) {
	n := len(c.built)
	deps := make([][]int, n)
	for i, s := range c.built {
		deps[i] = slices.Clone(s.deps)
	}
	for _, e := range edges {
		deps[e[1]] = append(deps[e[1]], e[0])
	}
	topo := sortSteps(deps)
	pos := make([]int, n)
	for i, old := range topo {
		pos[old] = i
	}
	steps := make([]*Step, n)
	for i, old := range topo {
		s := *c.built[old]
		s.deps = make([]int, len(deps[old]))
		for k, d := range deps[old] {
			s.deps[k] = pos[d]
		}
		slices.Sort(s.deps)
		s.deps = slices.Compact(s.deps)
		steps[i] = &s
	}
	c.built, c.shape = steps, nil
	c.prog.control = edges
}

// sortSteps returns the order that takes the first ready step each time.
func sortSteps(deps [][]int) []int {
	n := len(deps)
	missing, next := make([]int, n), make([][]int, n)
	var ready []int // ascending
	for i, ds := range deps {
		missing[i] = len(ds)
		for _, d := range ds {
			next[d] = append(next[d], i)
		}
		if len(ds) == 0 {
			ready = append(ready, i)
		}
	}
	var order []int
	for len(ready) > 0 {
		i := ready[0]
		ready = ready[1:]
		order = append(order, i)
		for _, j := range next[i] {
			if missing[j]--; missing[j] == 0 {
				at, _ := slices.BinarySearch(ready, j)
				ready = slices.Insert(ready, at, j)
			}
		}
	}
	return order
}

// controlSteps bounds the work of control: rounds times pairs of workspaces.
const controlSteps = 2e7

// control returns edges between the steps as built, beyond their dependencies, under which at most MaxWorkspace bytes must
// exist at once, or as few as come of it. Each round takes the workspaces that need the most bytes at once, and makes
// one of them end before another begins: the pair that makes the critical path least long, then needs the fewest
// edges, then has the larger smaller one. A pair is allowed if the path stays below 1+slack times what it was.
func (c *compilation) control(m *costModel, slack float64) ([][2]int, error) {
	x := newReacher(m)
	limit := x.critical() * (1 + slack)
	var added [][2]int
	rounds := max(16, int(controlSteps/float64(max(1, len(c.listWorkspaces().p.buffers)*len(c.listWorkspaces().p.buffers)))))
	for range rounds {
		bytes, pins, err := c.bytesOf(x.edges())
		if err != nil || bytes <= c.opt.MaxWorkspace {
			return x.needed(added), err
		}
		edges := x.cheapest(pins, limit)
		if edges == nil {
			break
		}
		added = append(added, edges...)
		x.add(edges)
	}
	return x.needed(added), nil
}

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
