package graph

import (
	"context"
	"fmt"
)

// StepTime is when a step ran in a replay.
type StepTime struct {
	Name    string  // the step's
	StartUS float64 // microseconds from the start of the replay
	EndUS   float64
}

// Profile is what a replay of a Program took, in the order of its steps.
type Profile []StepTime

// Profiler is a Runner that can time the steps of its last replay; it takes Options.Debug.Eager.
type Profiler interface {
	Profile() (Profile, error)
}

// Profile replays n times, timing each step, and returns the last replay with each step as long as in the shortest of
// them: what disturbs a measurement makes it longer. The Program was compiled with Options.Debug.Eager, and with one
// stream where the times are to be those of steps alone.
func (e *Exec) Profile(ctx context.Context, n int) (Profile, error) {
	t, ok := e.runner.(Profiler)
	if !ok || !e.p.opt.Debug.Eager {
		return nil, usagef("Profile of %q: want a Program compiled with Options.Debug.Eager, for a device that times steps", e.p.graph)
	}
	if n < 1 {
		return nil, usagef("Profile of %q: got %d replays, want at least 1", e.p.graph, n)
	}
	var last Profile
	shortest := map[string]float64{}
	ahead := 1
	if e.async != nil {
		ahead = 4 // the device falls behind what is issued: the last replay's times are its own, not the host's
	}
	for i := range n {
		for range ahead {
			if err := e.Replay(ctx); err != nil {
				return nil, err
			}
		}
		p, err := t.Profile()
		if err != nil {
			return nil, err
		}
		for _, s := range p {
			if us, ok := shortest[s.Name]; i == 0 || !ok || s.EndUS-s.StartUS < us {
				shortest[s.Name] = s.EndUS - s.StartUS
			}
		}
		last = p
	}
	for i, s := range last {
		last[i].EndUS = s.StartUS + shortest[s.Name]
	}
	return last, nil
}

// longestUS is the most that a step may take, thirty years in microseconds: a simulation with an infinite time has no end.
const longestUS = 1e15

// WithProfile returns the Program planned anew, with measured times in place of those of the cost model: which steps go
// on which streams, and so where workspaces lie, follows from how long steps take. The profile is one of the same
// graph with the same fusing; it may have more steps, and must have all.
func (p *Program) WithProfile(profile Profile) (*Program, error) {
	times := map[string]float64{}
	for _, s := range profile {
		if d := s.EndUS - s.StartUS; !(d >= 0 && d <= longestUS) {
			return nil, usagef("WithProfile of %q: step %q: got a start at %g us and an end at %g us, want one of 0 to %g us", p.graph, s.Name, s.StartUS, s.EndUS, longestUS)
		}
		times[s.Name] = s.EndUS - s.StartUS
	}
	for _, s := range p.built {
		if _, ok := times[s.Name]; !ok {
			return nil, usagef("WithProfile of %q: no time for step %q: want a profile of this Program's steps", p.graph, s.Name)
		}
	}
	opt := p.opt
	opt.Plan = nil // it was made from other times
	q := &Program{graph: p.graph, g: p.g, dev: p.dev, opt: opt, inputs: p.inputs, outputs: p.outputs, equal: p.equal, fused: p.fused,
		profile: append(Profile(nil), profile...)}
	c := &compilation{g: p.g, dev: p.dev, opt: opt, profile: times, steps: p.built, prog: q}
	for i, pass := range passes {
		if pass.name == "streams" {
			if err := c.run(passes[i:]); err != nil {
				return nil, err
			}
			return q, nil
		}
	}
	return nil, fmt.Errorf("graph %q: internal error: no pass makes streams", p.graph)
}

// Profile returns the times that the Program was planned with, nil for those of the cost model.
func (p *Program) Profile() Profile { return append(Profile(nil), p.profile...) }
