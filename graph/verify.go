package graph

import (
	"fmt"

	"github.com/moegraph/moegraph/memory"
)

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
	var aliases []memory.Alias
	for b, x := range p.buffers {
		if x.over >= 0 {
			a, err := p.alias(b)
			if err != nil {
				return err
			}
			aliases = append(aliases, a)
		}
		buffers[b] = memory.Buffer{Name: x.Name, Size: x.Size, Align: arenaAlign}
		offsets[b] = x.Offset
		for k, step := range p.accesses[b] {
			accesses = append(accesses, memory.Access{Node: step, Buffer: b, Offset: x.Offset, Size: x.Size, Write: k == 0})
		}
	}
	if err := memory.Verify(order, buffers, offsets, accesses, p.plan.Peak, aliases...); err != nil {
		return err
	}
	return p.checkDeps(order)
}

// alias returns how buffer b takes over another, after asking the operator anew.
func (p *Program) alias(b int) (memory.Alias, error) {
	x := p.buffers[b]
	s := p.steps[x.First]
	for k, v := range s.Out {
		if v == nil || v != x.value {
			continue
		}
		if from, ok := s.overwrites(v.g, k); ok && from == p.buffers[x.over].value {
			return memory.Alias{Node: x.First, From: x.over, To: b}, nil
		}
	}
	return memory.Alias{}, fmt.Errorf("%s %q does not make %q in place of %q", s.Op.Kind(), s.Name, x.Name, p.buffers[x.over].Name)
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
