package graph

import (
	"cmp"
	"errors"
	"slices"

	"github.com/moegraph/moegraph/memory"
)

// arenaAlign is the alignment of every workspace in bytes: what vector loads, tensor maps and cache lines ask for.
const arenaAlign = 256

// Placed is one buffer of the arena: a workspace or the scratch of one step.
type Placed struct {
	Name        string
	Offset      int64
	Size        int64
	First, Last int    // the steps that use it first and last, in issue order
	Over        string // the workspace that step First overwrites in place to make this one; "": none
	value       *Value
	step        int // for scratch
	over        int // index of Over's buffer; -1: none
}

// place gives every workspace an offset in the arena. Two share bytes only if every access of the one
// happens before every access of the other in the order of streams and waits, or if an elementwise step makes one
// out of the other in place.
func (c *compilation) place() error {
	if c.prog.plan != nil { // the search for a schedule that fits has placed them
		return nil
	}
	return c.placeWorkspaces()
}

// placeWorkspaces solves.
func (c *compilation) placeWorkspaces() error {
	p := c.prog
	p.listBuffers()
	order := p.order()
	prob, err := p.problem(order)
	if err != nil {
		return err
	}
	plan, err := p.solve(prob)
	if err != nil {
		return err
	}
	offsets := plan.Offsets
	if !c.opt.Debug.Apart {
		m, err := order.Merge(prob.Buffers, p.accesses, p.mayOverwrite(c.g))
		if err != nil {
			return err
		}
		// Merging lowers what must exist at once. It also ties two buffers to one place, so that without a proof the
		// plan without it may be the lower one.
		if len(m.Made) > 0 {
			merged, at, err := p.solveMerged(order, m)
			if err != nil {
				return err
			}
			if merged.Peak <= plan.Peak {
				plan, offsets = merged, at
				for _, a := range m.Made {
					p.buffers[a.To].over, p.buffers[a.To].Over = a.From, p.buffers[a.From].Name
				}
			}
		}
	}
	for i := range p.buffers {
		p.buffers[i].Offset = offsets[i]
	}
	p.plan = plan
	return nil
}

// listBuffers finds what lies in the arena, and which steps use it.
func (p *Program) listBuffers() {
	p.buffers, p.accesses, p.external = nil, nil, nil
	external := map[*Value]bool{}
	for _, o := range p.outputs {
		external[o.v] = true
		if o.v.rows != nil {
			external[o.v.rows] = true
		}
	}
	index := map[*Value]int{}
	add := func(b Placed, step int) int {
		b.First, b.Last, b.over = step, step, -1
		p.buffers = append(p.buffers, b)
		p.accesses = append(p.accesses, []int{step})
		return len(p.buffers) - 1
	}
	for i, s := range p.steps {
		for _, v := range s.Out {
			switch {
			case v == nil:
			case external[v]:
				p.external = append(p.external, v)
			default:
				index[v] = add(Placed{Name: v.Name(), Size: v.Bytes(), value: v}, i)
			}
		}
		if s.scratch > 0 {
			add(Placed{Name: s.Name + ":scratch", Size: s.scratch, step: i}, i)
		}
		for _, v := range s.reads() {
			if b, ok := index[v]; ok {
				p.accesses[b] = append(p.accesses[b], i)
				p.buffers[b].Last = max(p.buffers[b].Last, i)
			}
		}
	}
}

// solve places as low as can be; where that is above MaxWorkspace, it searches on for just that.
func (p *Program) solve(prob memory.Problem) (*memory.Plan, error) {
	plan, err := memory.Solve(prob, memory.Options{})
	if err != nil || p.opt.MaxWorkspace == 0 || plan.Peak <= p.opt.MaxWorkspace || plan.LowerBound > p.opt.MaxWorkspace {
		return plan, err
	}
	prob.Capacity = p.opt.MaxWorkspace
	asked, err := memory.Solve(prob, memory.Options{})
	if errors.Is(err, memory.ErrCapacity) {
		return plan, nil
	}
	return asked, err
}

// problem states where buffers may lie: anywhere, but conflicting ones apart.
func (p *Program) problem(order memory.Order) (memory.Problem, error) {
	prob := memory.Problem{Buffers: p.memoryBuffers(), Spans: make([]memory.Span, len(p.buffers))}
	for i, b := range p.buffers {
		prob.Spans[i] = memory.Span{First: int64(b.First), Last: int64(b.Last)}
	}
	if p.opt.Debug.Apart {
		prob.Conflicts = memory.NewConflicts(len(p.buffers))
		for i := range p.buffers {
			for j := range i {
				prob.Conflicts.Add(i, j)
			}
		}
		return prob, nil
	}
	var err error
	prob.Conflicts, err = order.Conflicts(p.accesses)
	return prob, err
}

// memoryBuffers are the buffers as package memory has them.
func (p *Program) memoryBuffers() []memory.Buffer {
	buffers := make([]memory.Buffer, len(p.buffers))
	for i, b := range p.buffers {
		buffers[i] = memory.Buffer{Name: b.Name, Size: b.Size, Align: arenaAlign}
	}
	return buffers
}

// mayOverwrite lists the pairs of workspaces that a step may make one out of the other in place, as far as the step
// itself goes. The output of most bytes comes first: where two want the same operand, it gets it.
func (p *Program) mayOverwrite(g *Graph) []memory.Alias {
	index := map[*Value]int{}
	for b, x := range p.buffers {
		if x.value != nil {
			index[x.value] = b
		}
	}
	var may []memory.Alias
	for i, s := range p.steps {
		for k, v := range s.Out {
			from, ok := s.overwrites(g, k)
			if !ok {
				continue
			}
			a, here := index[from]
			b, there := index[v]
			if here && there {
				may = append(may, memory.Alias{Node: i, From: a, To: b})
			}
		}
	}
	slices.SortStableFunc(may, func(a, b memory.Alias) int { return cmp.Compare(p.buffers[b.To].Size, p.buffers[a.To].Size) })
	return may
}

// overwrites returns the operand whose bytes output k of the step may be made in.
func (s *Step) overwrites(g *Graph, k int) (from *Value, ok bool) {
	op, is := s.Op.(InPlacer)
	if !is || s.Out[k] == nil {
		return nil, false
	}
	i := op.InPlace(s.node(g), k)
	if i < 0 || i >= len(s.In) || s.In[i] == nil {
		return nil, false
	}
	from = s.In[i]
	if from.dt.Bits() != s.Out[k].dt.Bits() || from.Bytes() != s.Out[k].Bytes() {
		return nil, false
	}
	uses := 0
	for _, v := range s.In {
		if v == from {
			uses++
		}
	}
	for _, v := range append(append([]*Value(nil), s.In...), s.Out...) {
		if v.Rows() == from { // it counts rows while the step runs
			uses++
		}
	}
	return from, uses == 1
}

// solveMerged plans with the groups of m as buffers and returns the offsets of the buffers themselves.
func (p *Program) solveMerged(order memory.Order, m *memory.Merged) (*memory.Plan, []int64, error) {
	conflicts, err := order.Conflicts(m.Accesses)
	if err != nil {
		return nil, nil, err
	}
	spans := make([]memory.Span, len(m.Buffers))
	for g, nodes := range m.Accesses {
		spans[g] = memory.Span{First: int64(slices.Min(nodes)), Last: int64(slices.Max(nodes))}
	}
	plan, err := p.solve(memory.Problem{Buffers: m.Buffers, Conflicts: conflicts, Spans: spans})
	if err != nil {
		return nil, nil, err
	}
	offsets := make([]int64, len(p.buffers))
	first := make([]int, len(m.Buffers))
	for i, g := range slices.Backward(m.Group) {
		offsets[i], first[g] = plan.Offsets[g], i
	}
	for k, g := range plan.Pinned { // the plan speaks of our buffers
		plan.Pinned[k] = first[g]
	}
	slices.Sort(plan.Pinned)
	plan.Offsets = offsets
	return plan, offsets, nil
}
