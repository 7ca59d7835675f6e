package graph

import (
	"math"
	"slices"
)

// worthStream is the least gain in simulated time for which the planner adds a stream.
const worthStream = 0.97

// streams orders the steps, puts them on streams and finds the waits. It tries 1, 2, 4, ... streams by list
// scheduling (critical path first, each step on the stream where it finishes first) and keeps the fewest
// streams whose simulated time no larger number beats by 3 %. The simulation shares the device among the
// steps that run at once, so that a GEMM that fills it gains nothing from company.
func (c *compilation) streams() error {
	most := c.opt.Streams
	if most == 0 {
		most = 4
	}
	m := newCostModel(c.dev.Rates(), c.steps)
	best := m.oneStream()
	for k := min(2, most); k <= most && best.used < k; k = nextWidth(k, most) {
		s := m.list(k)
		if s.used > best.used && (c.opt.ForceStreams || s.makespan < worthStream*best.makespan) {
			best = s
		}
	}
	c.apply(best)
	return nil
}

// nextWidth is the next number of streams to try: a power of two or the most allowed; beyond that, no more.
func nextWidth(k, most int) int {
	if k == most {
		return most + 1
	}
	return min(2*k, most)
}

// apply renumbers the steps in issue order and stores streams, waits and times.
func (c *compilation) apply(s schedule) {
	pos := make([]int, len(c.steps))
	for i, old := range s.order {
		pos[old] = i
	}
	steps := make([]*Step, len(c.steps))
	for i, old := range s.order {
		st := c.steps[old]
		st.Stream = s.stream[old]
		st.StartUS, st.EndUS = s.start[old], s.end[old]
		for k, d := range st.deps {
			st.deps[k] = pos[d]
		}
		slices.Sort(st.deps)
		steps[i] = st
	}
	c.steps = steps
	c.prog.steps = steps
	c.prog.streams = s.used
	c.prog.makespanUS = s.makespan
	setWaits(steps)
}

// setWaits gives each step the fewest waits that enforce its deps: none where stream order or an earlier
// wait, also one of another stream's, implies it.
func setWaits(steps []*Step) {
	streams := 0
	for _, s := range steps {
		streams = max(streams, s.Stream+1)
	}
	// known[i][t] is the last step of stream t that is complete before step i starts; -1: none.
	known := make([][]int, len(steps))
	last := make([]int, streams)
	for t := range last {
		last[t] = -1
	}
	for i, s := range steps {
		k := make([]int, streams)
		for t := range k {
			k[t] = -1
		}
		learn := func(j int) {
			for t := range k {
				k[t] = max(k[t], known[j][t])
			}
			k[steps[j].Stream] = max(k[steps[j].Stream], j)
		}
		if p := last[s.Stream]; p >= 0 {
			learn(p)
		}
		s.Waits = nil
		for d := len(s.deps) - 1; d >= 0; d-- { // the latest first: it may imply the others
			j := s.deps[d]
			if j <= k[steps[j].Stream] {
				continue
			}
			s.Waits = append(s.Waits, j)
			learn(j)
		}
		slices.Sort(s.Waits)
		known[i] = k
		last[s.Stream] = i
	}
}

// costModel turns costs into time. A step that fills the share width of the device takes launch plus
// work/width alone; steps that run at once and together ask for more than the whole slow down alike.
type costModel struct {
	launch, wait float64
	work         []float64 // microseconds at the whole device's speed
	width        []float64
	deps         [][]int
	rank         []float64 // longest way to the end
}

type schedule struct {
	order      []int // step indices in issue order
	stream     []int
	start, end []float64
	makespan   float64
	used       int
}

func newCostModel(r Rates, steps []*Step) *costModel {
	n := len(steps)
	m := &costModel{launch: r.LaunchUS, wait: r.WaitUS, work: make([]float64, n), width: make([]float64, n), deps: make([][]int, n), rank: make([]float64, n)}
	units := float64(max(r.Units, 1))
	for i, s := range steps {
		m.work[i] = 1e6 * max(float64(s.Cost.Flops)/r.Flops, float64(s.Cost.Bytes)/r.Bytes)
		amount := max(float64(s.Cost.Flops), float64(s.Cost.Bytes))
		m.width[i] = min(1, max(1, math.Floor(amount/r.Grain))/units)
		m.deps[i] = s.deps
	}
	for i := n - 1; i >= 0; i-- {
		m.rank[i] += m.alone(i)
		for _, d := range m.deps[i] {
			m.rank[d] = max(m.rank[d], m.rank[i])
		}
	}
	return m
}

func (m *costModel) alone(i int) float64 { return m.launch + m.work[i]/m.width[i] }

// oneStream keeps the order of building.
func (m *costModel) oneStream() schedule {
	n := len(m.work)
	s := schedule{order: make([]int, n), stream: make([]int, n), used: min(n, 1)}
	for i := range s.order {
		s.order[i] = i
	}
	m.simulate(&s, 1)
	return s
}

// list schedules on at most k streams: of the ready steps the one with the longest way to the end, on the
// stream where it can start first; among equals the stream of its latest dependency, which saves a wait.
func (m *costModel) list(k int) schedule {
	n := len(m.work)
	s := schedule{stream: make([]int, n)}
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
	m.simulate(&s, s.used)
	// Issue in the order of simulated starts; ties keep the topological order.
	slices.SortStableFunc(s.order, func(a, b int) int {
		switch {
		case s.start[a] < s.start[b]:
			return -1
		case s.start[a] > s.start[b]:
			return 1
		}
		return 0
	})
	return s
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

// simulate runs the schedule: each stream in order, a step when its deps are done, the device shared.
func (m *costModel) simulate(s *schedule, streams int) {
	n := len(m.work)
	s.start, s.end = make([]float64, n), make([]float64, n)
	queue := make([][]int, streams)
	for _, i := range s.order {
		queue[s.stream[i]] = append(queue[s.stream[i]], i)
	}
	done := make([]bool, n)
	left := make([]float64, n) // remaining time at the step's own full speed
	running := make([]int, streams)
	for t := range running {
		running[t] = -1
	}
	now := 0.0
	for finished := 0; finished < n; {
		soonest := math.Inf(1)
		for t := range streams {
			if running[t] >= 0 || len(queue[t]) == 0 {
				continue
			}
			i := queue[t][0]
			at := now
			ok := true
			for _, d := range m.deps[i] {
				if !done[d] {
					ok = false
					break
				}
				if s.stream[d] != t {
					at = max(at, s.end[d]+m.wait)
				}
			}
			if !ok {
				continue
			}
			if at > now {
				soonest = min(soonest, at)
				continue
			}
			running[t] = i
			queue[t] = queue[t][1:]
			s.start[i] = now
			left[i] = m.alone(i)
		}
		asked := 0.0
		for _, i := range running {
			if i >= 0 {
				asked += m.width[i]
			}
		}
		speed := 1 / max(1, asked)
		step := soonest - now
		for _, i := range running {
			if i >= 0 {
				step = min(step, left[i]/speed)
			}
		}
		now += step
		for t, i := range running {
			if i < 0 {
				continue
			}
			if left[i] -= step * speed; left[i] <= 1e-9 {
				done[i], s.end[i], running[t] = true, now, -1
				finished++
			}
		}
	}
	s.makespan = now
}
