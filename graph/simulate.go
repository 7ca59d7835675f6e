package graph

import (
	"fmt"
	"math"
)

// costModel turns costs into time. A step that fills the share width of the device takes launch plus
// work/width alone; steps that run at once and together ask for more than the whole slow down alike.
//
// Products that are added are converted to float64 first: that forbids fused multiply-adds, which some processors
// have, and which would round, and at a tie schedule, otherwise.
type costModel struct {
	launch, wait float64
	work         []float64 // microseconds at the whole device's speed
	width        []float64
	deps         [][]int   // of each step, those before it, by ascending index
	rank         []float64 // longest way to the end
}

// schedule is an assignment of steps to streams, and what the model says of it.
type schedule struct {
	how        string // for people
	order      []int  // step indices in issue order
	stream     []int
	start, end []float64
	makespan   float64
	used       int     // streams
	waits      [][]int // of the steps in issue order, by position in it
}

// numWaits counts the waits between streams.
func (s *schedule) numWaits() int {
	n := 0
	for _, w := range s.waits {
		n += len(w)
	}
	return n
}

// check refuses rates by which a step would take no time that is a number: a simulation of it has no end.
func (r Rates) check(dev Device) error {
	speed := func(x float64) bool { return x > 0 && !math.IsInf(x, 1) }
	pause := func(x float64) bool { return x >= 0 && x <= longestUS }
	if !speed(r.Flops) || !speed(r.Bytes) || !speed(r.Grain) || !pause(r.LaunchUS) || !pause(r.WaitUS) {
		return fmt.Errorf("%w: %s: Rates: got %+v, want positive numbers, and 0 or more for LaunchUS and WaitUS", ErrDevice, dev, r)
	}
	return nil
}

// newCostModel takes the time of a step from profile, by name, where there is one, and else from its cost at the device's
// rates.
func newCostModel(r Rates, steps []*Step, profile map[string]float64) *costModel {
	n := len(steps)
	m := &costModel{launch: r.LaunchUS, wait: r.WaitUS, work: make([]float64, n), width: make([]float64, n), deps: make([][]int, n)}
	units := float64(max(r.Units, 1))
	for i, s := range steps {
		amount := max(float64(s.Cost.Flops), float64(s.Cost.Bytes))
		m.width[i] = min(1, max(1, math.Floor(amount/r.Grain))/units)
		m.work[i] = 1e6 * max(float64(s.Cost.Flops)/r.Flops, float64(s.Cost.Bytes)/r.Bytes)
		if us, ok := profile[s.Name]; ok {
			m.work[i] = float64(max(0, us-r.LaunchUS) * m.width[i])
		}
		m.deps[i] = s.deps
	}
	m.setRanks()
	return m
}

func (m *costModel) setRanks() {
	m.rank = make([]float64, len(m.work))
	for i := len(m.work) - 1; i >= 0; i-- {
		m.rank[i] += m.alone(i)
		for _, d := range m.deps[i] {
			m.rank[d] = max(m.rank[d], m.rank[i])
		}
	}
}

func (m *costModel) alone(i int) float64 { return m.launch + m.work[i]/m.width[i] }

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
			if left[i] -= float64(step * speed); left[i] <= 1e-9 {
				done[i], s.end[i], running[t] = true, now, -1
				finished++
			}
		}
	}
	s.makespan = now
}
