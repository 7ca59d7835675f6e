package graph

import "github.com/moegraph/moegraph/memory"

// WithoutWait returns a copy of the Program in which step i lacks its k-th wait.
func (p *Program) WithoutWait(i, k int) *Program {
	q := *p
	q.steps = append([]*Step(nil), p.steps...)
	s := *p.steps[i]
	s.Waits = append(append([]int(nil), s.Waits[:k]...), s.Waits[k+1:]...)
	q.steps[i] = &s
	return &q
}

// WithOffset returns a copy of the Program in which workspace b lies elsewhere.
func (p *Program) WithOffset(b int, offset int64) *Program {
	q := *p
	q.buffers = append([]Placed(nil), p.buffers...)
	q.buffers[b].Offset = offset
	return &q
}

// Conflicts returns which workspaces may not share bytes.
func (p *Program) Conflicts() (*memory.Conflicts, error) { return p.order().Conflicts(p.accesses) }

// SetWaits exposes the search for waits.
func SetWaits(steps []*Step) { setWaits(steps) }

// StepOn makes a step for tests of the planner.
func StepOn(stream int, deps ...int) *Step { return &Step{Stream: stream, deps: deps} }

// TryPlan compiles the Program's graph anew with a plan.
func (p *Program) TryPlan(plan *Plan) (*Program, error) {
	opt := p.opt
	opt.Plan = plan
	return p.g.Compile(p.dev, opt)
}

// Replan is TryPlan with a plan that must do.
func (p *Program) Replan(t interface{ Fatal(args ...any) }, plan *Plan) *Program {
	q, err := p.TryPlan(plan)
	if err != nil {
		t.Fatal(err)
	}
	return q
}
