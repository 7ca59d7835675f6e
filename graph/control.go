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
	// try plans with the edges that slack allows, as many as it takes to need no more than goal bytes.
	try := func(slack float64, goal int64, least *reached) (bool, error) {
		c.built, c.shape, c.prog.control, c.prog.plan = original, nil, nil, nil
		model := m
		if slack >= 0 {
			edges, err := c.control(m, slack, goal)
			if err != nil {
				return false, err
			}
			c.reorder(edges)
			model = newCostModel(c.dev.Rates(), c.built, c.profile)
		}
		all := model.candidates(most)
		slices.SortStableFunc(all, func(a, b *schedule) int { return cmp.Compare(a.makespan, b.makespan) })
		for _, s := range all {
			if ok, err := c.tryFit(s, least); ok || err != nil {
				return ok, err
			}
		}
		return false, nil
	}
	var last *Program // what any length allows
	for _, slack := range slacks {
		ok, err := try(slack, c.opt.MaxWorkspace, nil)
		if err == nil && !ok && math.IsInf(slack, 1) {
			// What edges towards fewer bytes than asked for come to is the same for every limit. So a limit that it
			// meets is met, and the least that it comes to is what the error may promise.
			least := reached{bytes: math.MaxInt64}
			if ok, err = try(slack, 0, &least); err == nil && !ok {
				return BadShape("Options.MaxWorkspace", fmt.Sprintf("%d bytes", c.opt.MaxWorkspace),
					"at least %d, the least found in any order of the steps; %s need it at once", least.bytes, least.names)
			}
		}
		switch {
		case err != nil:
			return err
		case ok && math.IsInf(slack, 1):
			held := *c.prog
			last = &held
		case ok:
			return nil
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

// tryFit makes the schedule the Program's if it has a plan that is small enough. Where least is given, a schedule that
// needs more is placed all the same, since only a peak is sure to be met again.
func (c *compilation) tryFit(s *schedule, least *reached) (bool, error) {
	bytes, pins, err := c.bytesOf(s.edges())
	if err != nil {
		return false, err
	}
	if bytes > c.opt.MaxWorkspace && (least == nil || bytes >= least.bytes) {
		return false, nil
	}
	c.apply(s)
	if err := c.placeWorkspaces(); err != nil {
		return false, err
	}
	if peak := c.prog.plan.Peak; peak > c.opt.MaxWorkspace {
		if least != nil && peak < least.bytes {
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

// control returns edges between the steps as built, beyond their dependencies, under which at most goal bytes must
// exist at once, or as few as come of it. Each round takes the workspaces that need the most bytes at once, and makes
// one of them end before another begins: the pair that makes the critical path least long, then needs the fewest
// edges, then has the larger smaller one. A pair is allowed if the path stays below 1+slack times what it was.
func (c *compilation) control(m *costModel, slack float64, goal int64) ([][2]int, error) {
	x := newReacher(m)
	limit := x.critical() * (1 + slack)
	var added [][2]int
	rounds := max(16, int(controlSteps/float64(max(1, len(c.listWorkspaces().p.buffers)*len(c.listWorkspaces().p.buffers)))))
	for range rounds {
		bytes, pins, err := c.bytesOf(x.edges())
		if err != nil || bytes <= goal {
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
