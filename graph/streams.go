package graph

import (
	"cmp"
	"math"
	"slices"
)

// worthStream is the least gain in simulated time for which the planner adds a stream.
const worthStream = 0.97

// defaultStreams is the most streams that are tried where Options.Streams does not say.
const defaultStreams = 8

// streams orders the steps, puts them on streams and finds the waits. Candidates are the order of building on one
// stream, list schedules on 2, 4, 8, ... streams, and the schedule of fewest waits; the one is kept that choose says. With
// Options.MaxWorkspace also the bytes of the arena decide, and edges are added to make them fewer.
func (c *compilation) streams() error {
	most := c.opt.Streams
	if most == 0 {
		most = defaultStreams
	}
	c.built, c.prog.built = c.steps, c.steps
	for i, s := range c.built {
		if s.built != i { // WithProfile has them with their indices, and shares them
			s.built = i
		}
	}
	if err := c.dev.Rates().check(c.dev); err != nil {
		return err
	}
	c.setKey()
	if c.opt.Plan != nil {
		c.adopted = true
		return c.adopt(c.opt.Plan)
	}
	if kept := loadPlan(PlanDir(), c.prog.key); kept != nil {
		if c.adopted = c.adopt(kept) == nil; c.adopted {
			return nil
		}
		c.built, c.prog.control, c.prog.plan = c.prog.built, nil, nil // it is not what its key says: make it anew
	}
	m := newCostModel(c.dev.Rates(), c.built, c.profile)
	if c.opt.MaxWorkspace > 0 {
		return c.fit(m, most)
	}
	s, err := c.choose(m.candidates(most))
	if err != nil {
		return err
	}
	c.apply(s)
	return nil
}

// candidates returns the schedules to choose from, with their waits, those of fewer streams first.
func (m *costModel) candidates(most int) []*schedule {
	all := []*schedule{m.oneStream()}
	for k := min(2, most); k <= most && k > 1; k = nextWidth(k, most) {
		s := m.list(k)
		if s.used <= all[len(all)-1].used {
			break // the graph is no wider
		}
		all = append(all, s)
	}
	if s := m.match(most); s != nil && s.used > 1 {
		all = append(all, s)
	}
	for _, s := range all {
		s.waits = findWaits(s.positions(m.deps))
	}
	slices.SortStableFunc(all, func(a, b *schedule) int { return cmp.Compare(a.used, b.used) })
	return all
}

// positions returns the streams and dependencies of the steps in issue order, by position in it.
func (s *schedule) positions(all [][]int) (stream []int, deps [][]int) {
	pos := make([]int, len(s.order))
	for i, old := range s.order {
		pos[old] = i
	}
	stream, deps = make([]int, len(s.order)), make([][]int, len(s.order))
	for i, old := range s.order {
		stream[i] = s.stream[old]
		for _, d := range all[old] {
			deps[i] = append(deps[i], pos[d])
		}
		slices.Sort(deps[i])
	}
	return stream, deps
}

// choose returns the schedule of the fewest streams whose simulated time no other beats by 3 %: a stream must be worth
// it. Of those on equally many streams with times within a thousandth it is the one with fewer waits, then the one that
// needs fewer bytes at least. Options.ForceStreams takes the most streams instead.
func (c *compilation) choose(all []*schedule) (*schedule, error) {
	best := all[0]
	for _, s := range all[1:] {
		switch {
		case s.used > best.used:
			if c.opt.ForceStreams || s.makespan < worthStream*best.makespan {
				best = s
			}
			continue
		case math.Abs(s.makespan-best.makespan) > 1e-3*best.makespan:
			if s.makespan < best.makespan {
				best = s
			}
			continue
		case s.numWaits() != best.numWaits():
			if s.numWaits() < best.numWaits() {
				best = s
			}
			continue
		}
		a, _, err := c.bytesOf(s.edges())
		if err != nil {
			return nil, err
		}
		b, _, err := c.bytesOf(best.edges())
		if err != nil {
			return nil, err
		}
		if a < b {
			best = s
		}
	}
	return best, nil
}

// nextWidth is the next number of streams to try: a power of two or the most allowed; beyond that, no more.
func nextWidth(k, most int) int {
	if k == most {
		return most + 1
	}
	return min(2*k, most)
}

// edges returns the order of the schedule, stream order and waits, between steps as built.
func (s *schedule) edges() [][2]int {
	var edges [][2]int
	last := make([]int, s.used)
	for t := range last {
		last[t] = -1
	}
	for i, old := range s.order {
		if t := s.stream[old]; last[t] >= 0 {
			edges = append(edges, [2]int{last[t], old})
		}
		last[s.stream[old]] = old
		for _, w := range s.waits[i] {
			edges = append(edges, [2]int{s.order[w], old})
		}
	}
	return edges
}

// apply puts the steps in issue order and stores streams, waits and times. The steps as built stay as they are.
func (c *compilation) apply(s *schedule) {
	pos := make([]int, len(c.built))
	for i, old := range s.order {
		pos[old] = i
	}
	steps := make([]*Step, len(c.built))
	for i, old := range s.order {
		st := *c.built[old]
		st.Stream = s.stream[old]
		st.StartUS, st.EndUS = s.start[old], s.end[old]
		st.deps = make([]int, len(c.built[old].deps))
		for k, d := range c.built[old].deps {
			st.deps[k] = pos[d]
		}
		slices.Sort(st.deps)
		st.Waits = s.waits[i]
		steps[i] = &st
	}
	c.steps = steps
	c.prog.steps = steps
	c.prog.streams = s.used
	c.prog.makespanUS = s.makespan
	c.prog.how = s.how
}

// oneStream keeps the order of building.
func (m *costModel) oneStream() *schedule {
	n := len(m.work)
	s := &schedule{how: "in the order of building", order: make([]int, n), stream: make([]int, n), used: min(n, 1)}
	for i := range s.order {
		s.order[i] = i
	}
	m.simulate(s, 1)
	return s
}

// list schedules on at most k streams: of the ready steps the one with the longest way to the end, on the
// stream where it can start first; among equals the stream of its latest dependency, which saves a wait.
func (m *costModel) list(k int) *schedule {
	n := len(m.work)
	s := &schedule{how: "longest way to the end first", stream: make([]int, n)}
	end := make([]float64, n)
	free := make([]float64, k)
	missing := make([]int, n)
	next := make([][]int, n)
	var ready []int
	for i, deps := range m.deps {
		missing[i] = len(deps)
		for _, d := range deps {
			next[d] = append(next[d], i)
		}
		if len(deps) == 0 {
			ready = append(ready, i)
		}
	}
	for len(ready) > 0 {
		pick := 0
		for j := range ready {
			a, b := ready[j], ready[pick]
			if m.rank[a] > m.rank[b] || (m.rank[a] == m.rank[b] && a < b) {
				pick = j
			}
		}
		i := ready[pick]
		ready = append(ready[:pick], ready[pick+1:]...)
		bestT, bestAt, bestKey := 0, math.Inf(1), -1.0
		for t := range k {
			at, key := free[t], 0.0
			for _, d := range m.deps[i] {
				if s.stream[d] == t {
					key = max(key, end[d])
				} else {
					at = max(at, end[d]+m.wait)
				}
			}
			if at < bestAt-1e-9 || (at < bestAt+1e-9 && key > bestKey) {
				bestT, bestAt, bestKey = t, at, key
			}
		}
		s.stream[i] = bestT
		end[i] = bestAt + m.alone(i)
		free[bestT] = end[i]
		s.order = append(s.order, i)
		for _, j := range next[i] {
			if missing[j]--; missing[j] == 0 {
				ready = append(ready, j)
			}
		}
	}
	s.number()
	m.simulate(s, s.used)
	s.sortByStart()
	return s
}

// sortByStart issues in the order of simulated starts; ties keep the topological order that there is.
func (s *schedule) sortByStart() {
	slices.SortStableFunc(s.order, func(a, b int) int { return cmp.Compare(s.start[a], s.start[b]) })
}

// number renames the streams in the order of first use; the first is the origin.
func (s *schedule) number() {
	names := map[int]int{}
	for _, i := range s.order {
		t, ok := names[s.stream[i]]
		if !ok {
			t = len(names)
			names[s.stream[i]] = t
		}
		s.stream[i] = t
	}
	s.used = len(names)
}
