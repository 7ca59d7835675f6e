package graph

import (
	"fmt"

	"github.com/moegraph/moegraph/memory"
)

// arenaAlign is the alignment of every workspace in bytes: what vector loads, tensor maps and cache lines ask for.
const arenaAlign = 256

// Placed is one buffer of the arena: a workspace or the scratch of one step.
type Placed struct {
	Name        string
	Offset      int64
	Size        int64
	First, Last int // the steps that use it first and last, in issue order
	value       *Value
	step        int // for scratch
}

// place gives every workspace an offset in the arena. Two share bytes only if every access of the one
// happens before every access of the other in the order of streams and waits.
func (c *compilation) place() error {
	p := c.prog
	external := map[*Value]bool{}
	for _, o := range p.outputs {
		external[o.v] = true
		if o.v.rows != nil {
			external[o.v.rows] = true
		}
	}
	index := map[*Value]int{}
	var accesses [][]int
	add := func(b Placed, step int) int {
		b.First, b.Last = step, step
		p.buffers = append(p.buffers, b)
		accesses = append(accesses, []int{step})
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
				accesses[b] = append(accesses[b], i)
				p.buffers[b].Last = max(p.buffers[b].Last, i)
			}
		}
	}
	prob := memory.Problem{Buffers: make([]memory.Buffer, len(p.buffers)), Spans: make([]memory.Span, len(p.buffers))}
	for i, b := range p.buffers {
		prob.Buffers[i] = memory.Buffer{Name: b.Name, Size: b.Size, Align: arenaAlign}
		prob.Spans[i] = memory.Span{First: int64(b.First), Last: int64(b.Last)}
	}
	var err error
	if prob.Conflicts, err = p.order().Conflicts(accesses); err != nil {
		return err
	}
	plan, err := memory.Solve(prob, memory.Options{})
	if err != nil {
		return err
	}
	for i := range p.buffers {
		p.buffers[i].Offset = plan.Offsets[i]
	}
	p.plan = plan
	p.accesses = accesses
	return nil
}

// verify checks the finished plan by code that shares nothing with the planner.
func (c *compilation) verify() error { return c.prog.Verify() }

// Verify checks the plan anew: every dependency is enforced by streams and waits, no two workspaces that
// may be in use at once share bytes, every offset is aligned and inside the arena.
func (p *Program) Verify() error { return p.verify(p.order()) }

// VerifyOrder is Verify for another order than the planned one, such as that of a captured graph: each edge says that
// one step, given by its index, is done before another of a higher index starts.
func (p *Program) VerifyOrder(edges [][2]int) error {
	return p.verify(memory.Order{Nodes: len(p.steps), Edges: edges})
}

func (p *Program) verify(order memory.Order) error {
	buffers := make([]memory.Buffer, len(p.buffers))
	offsets := make([]int64, len(p.buffers))
	var accesses []memory.Access
	for b, x := range p.buffers {
		buffers[b] = memory.Buffer{Name: x.Name, Size: x.Size, Align: arenaAlign}
		offsets[b] = x.Offset
		for k, step := range p.accesses[b] {
			accesses = append(accesses, memory.Access{Node: step, Buffer: b, Offset: x.Offset, Size: x.Size, Write: k == 0})
		}
	}
	if err := memory.Verify(order, buffers, offsets, accesses, p.plan.Peak); err != nil {
		return err
	}
	return p.checkDeps(order)
}

// checkDeps checks that the order implies every dependency.
func (p *Program) checkDeps(order memory.Order) error {
	n := len(p.steps)
	before := make([][]uint64, n)
	words := (n + 63) / 64
	in := make([][]int, n)
	for _, e := range order.Edges {
		if e[0] >= e[1] {
			return fmt.Errorf("edge %d -> %d goes against the order of issue", e[0], e[1])
		}
		in[e[1]] = append(in[e[1]], e[0])
	}
	for i, s := range p.steps {
		before[i] = make([]uint64, words)
		for _, j := range in[i] {
			for w := range before[i] {
				before[i][w] |= before[j][w]
			}
			before[i][j/64] |= 1 << (j % 64)
		}
		for _, d := range s.deps {
			if before[i][d/64]>>(d%64)&1 == 0 {
				return fmt.Errorf("step %d %q may start before step %d %q is done", i, s.Name, d, p.steps[d].Name)
			}
		}
	}
	return nil
}
