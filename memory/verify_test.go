package memory

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
)

// closureByMatrix is a third, independent way to the order, for judging mutations: Warshall.
func closureByMatrix(o Order) [][]bool {
	m := make([][]bool, o.Nodes)
	for i := range m {
		m[i] = make([]bool, o.Nodes)
	}
	for _, e := range o.Edges {
		m[e[0]][e[1]] = true
	}
	for k := range m {
		for i := range m {
			for j := range m {
				m[i][j] = m[i][j] || m[i][k] && m[k][j]
			}
		}
	}
	return m
}

// safe judges a plan by the definition: of two buffers that share bytes, all accesses of one come
// before all of the other; and a buffer is not read and written at once.
func safe(d dag, offsets []int64) bool {
	m := closureByMatrix(d.order)
	all := func(a, b []int) bool {
		for _, u := range a {
			for _, v := range b {
				if !m[u][v] {
					return false
				}
			}
		}
		return true
	}
	for i, a := range d.accesses {
		if !all(a[:1], a[1:]) {
			return false
		}
		for j, b := range d.accesses[:i] {
			share := offsets[i] < offsets[j]+d.buffers[j].Size && offsets[j] < offsets[i]+d.buffers[i].Size
			if share && !all(a, b) && !all(b, a) {
				return false
			}
		}
	}
	return true
}

// TestVerify_Mutations damages good plans, by dropping an edge or moving a buffer, and demands that
// Verify rejects exactly what is unsafe by the definition.
func TestVerify_Mutations(t *testing.T) {
	var rejected, accepted, edges, moves int
	for seed := uint64(0); rejected < 1000 || accepted < 200; seed++ {
		r := rand.New(rand.NewPCG(seed, 2))
		d := layered(r, 2+r.IntN(4), func() int { return 1 + r.IntN(4) }, 1+r.IntN(3))
		conflicts, err := d.order.Conflicts(d.accesses)
		if err != nil {
			t.Fatal(err)
		}
		plan, err := Solve(Problem{Buffers: d.buffers, Conflicts: conflicts}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := Verify(d.order, d.buffers, plan.Offsets, d.uses(plan.Offsets), plan.Peak); err != nil {
			t.Fatalf("seed %d: a good plan: %v", seed, err)
		}
		for range 10 {
			m, offsets := d, append([]int64{}, plan.Offsets...)
			edge := r.IntN(2) == 0 && len(d.order.Edges) > 0
			if edge {
				m.order = dropEdge(d.order, r.IntN(len(d.order.Edges)))
			} else {
				a, b := r.IntN(len(offsets)), r.IntN(len(offsets))
				offsets[a] = min(plan.Offsets[b], plan.Peak-d.buffers[a].Size)
			}
			err := Verify(m.order, m.buffers, offsets, m.uses(offsets), plan.Peak)
			if safe(m, offsets) {
				if err != nil {
					t.Fatalf("seed %d: a harmless mutation is rejected: %v", seed, err)
				}
				accepted++
				continue
			}
			if !errors.Is(err, ErrUnsafe) {
				t.Fatalf("seed %d: an unsafe mutation: got %v, want ErrUnsafe", seed, err)
			}
			rejected++
			if edge {
				edges++
			} else {
				moves++
			}
		}
	}
	t.Logf("rejected %d (%d edges, %d offsets), accepted %d", rejected, edges, moves, accepted)
	if edges < 100 || moves < 100 {
		t.Errorf("too few of a kind: %d edges, %d offsets", edges, moves)
	}
}

// dropEdge leaves out edge i and its duplicates.
func dropEdge(o Order, i int) Order {
	out := Order{Nodes: o.Nodes}
	for _, e := range o.Edges {
		if e != o.Edges[i] {
			out.Edges = append(out.Edges, e)
		}
	}
	return out
}

func TestVerify_Violations(t *testing.T) {
	chain := Order{Nodes: 3, Edges: [][2]int{{0, 1}, {1, 2}}}
	buffers := []Buffer{{Name: "a", Size: 8}, {Name: "b", Size: 8, Align: 4}}
	good := []Access{{0, 0, 8, true, 0}, {1, 0, 8, false, 0}, {2, 0, 8, true, 1}}
	zero := []int64{0, 0}
	with := func(i int, a Access) []Access {
		out := append([]Access{}, good...)
		out[i] = a
		return out
	}
	for name, c := range map[string]struct {
		order    Order
		buffers  []Buffer
		offsets  []int64
		accesses []Access
		text     string // "": fine
	}{
		"good":          {chain, buffers, []int64{0, 0}, good, ""},
		"offsets":       {chain, buffers, []int64{0}, good, "got 1 offsets"},
		"outside":       {chain, buffers, []int64{0, 12}, good, `buffer 1 "b": offset 12, size 8: outside`},
		"below":         {chain, buffers, []int64{0, -4}, good, "outside"},
		"misaligned":    {chain, buffers, []int64{0, 2}, good, "no multiple of 4"},
		"fixed":         {chain, []Buffer{{Size: 8}, {Size: 8, Fixed: true, Offset: 4}}, []int64{0, 0}, good, "fixed 4"},
		"last reader":   {Order{3, [][2]int{{0, 1}, {0, 2}}}, buffers, []int64{0, 0}, good, "nodes 1 and 2"},
		"same node":     {chain, buffers, zero, with(2, Access{1, 0, 8, true, 1}), "share bytes"},
		"nobody's":      {chain, buffers, []int64{0, 0}, good[:2], "share bytes"},
		"access":        {chain, buffers, zero, with(1, Access{1, 0, 9, false, 0}), "leaves buffer 0"},
		"access beyond": {chain, buffers, zero, with(1, Access{1, 99, 8, false, 0}), "outside"},
		"node":          {chain, buffers, zero, with(1, Access{3, 0, 8, false, 0}), "node 3"},
		"buffer":        {chain, buffers, zero, with(1, Access{1, 0, 8, false, 2}), "buffer 2"},
		"hazard in a buffer": {Order{Nodes: 2}, buffers[:1], []int64{0},
			[]Access{{0, 0, 8, true, 0}, {1, 4, 4, false, 0}}, "nodes 0 and 1 both touch byte 4"},
		"halves of a buffer": {Order{Nodes: 2}, buffers[:1], []int64{0},
			[]Access{{0, 0, 4, true, 0}, {1, 4, 4, true, 0}}, ""},
		"readers":       {Order{Nodes: 2}, buffers[:1], []int64{0}, []Access{{0, 0, 8, false, 0}, {1, 0, 8, false, 0}}, ""},
		"no buffer":     {Order{Nodes: 2}, nil, nil, []Access{{0, 0, 8, true, -1}, {1, 7, 1, true, -1}}, "byte 7"},
		"two of a node": {Order{Nodes: 1}, nil, nil, []Access{{0, 0, 8, true, -1}, {0, 7, 1, false, -1}}, ""},
		"cycle":         {Order{2, [][2]int{{0, 1}, {1, 0}}}, nil, nil, nil, "cycle"},
		"edge":          {Order{2, [][2]int{{0, 2}}}, nil, nil, nil, "edge 0 -> 2"},
	} {
		err := Verify(c.order, c.buffers, c.offsets, c.accesses, 16)
		if c.text == "" && err != nil || c.text != "" && (err == nil || !strings.Contains(err.Error(), c.text)) {
			t.Errorf("%s: got %v, want %q", name, err, c.text)
		}
	}
}

// TestConflicts_Interleavings runs small graphs in every order of starts and ends, with two buffers in
// the same bytes, and demands that some run goes wrong exactly where the rule says conflict.
func TestConflicts_Interleavings(t *testing.T) {
	const cases = 4000
	shared := 0
	for seed := range uint64(cases) {
		r := rand.New(rand.NewPCG(seed, 3))
		o := Order{Nodes: 2 + r.IntN(5)}
		for v := range o.Nodes {
			for u := range v {
				if r.IntN(5) < 2 {
					o.Edges = append(o.Edges, [2]int{u, v})
				}
			}
		}
		after := closureByMatrix(o)
		var accesses [][]int // a writer, and readers that come after it
		for range 2 {
			nodes := []int{r.IntN(o.Nodes)}
			for v := range o.Nodes {
				if after[nodes[0]][v] && r.IntN(2) == 0 {
					nodes = append(nodes, v)
				}
			}
			accesses = append(accesses, nodes)
		}
		c, err := o.Conflicts(accesses)
		if err != nil {
			t.Fatal(err)
		}
		if clobbers := someRunClobbers(o, accesses); clobbers != c.Has(0, 1) {
			t.Fatalf("seed %d: %v, accesses %v: clobbers %v, conflict %v", seed, o, accesses, clobbers, c.Has(0, 1))
		}
		if !c.Has(0, 1) {
			shared++
		}
	}
	t.Logf("%d of %d pairs may share", shared, cases)
	if shared < cases/20 {
		t.Errorf("only %d of %d pairs may share", shared, cases)
	}
}

// someRunClobbers explores every state (nodes started, nodes ended, whose bytes these are now). A
// writer makes the bytes its buffer's when it starts; every access needs them to be its buffer's from
// its start to its end.
func someRunClobbers(o Order, accesses [][]int) bool {
	type state struct{ started, ended, tag int }
	needs := make([]int, o.Nodes) // predecessors, as a set
	for _, e := range o.Edges {
		needs[e[1]] |= 1 << e[0]
	}
	use := make([][]int, o.Nodes) // buffers a node touches
	for b, nodes := range accesses {
		for _, v := range nodes {
			use[v] = append(use[v], b)
		}
	}
	seen := map[state]bool{}
	var visit func(state) bool
	visit = func(s state) bool {
		if seen[s] {
			return false
		}
		seen[s] = true
		for v := range o.Nodes {
			if s.started>>v&1 == 0 {
				if needs[v]&^s.ended != 0 {
					continue
				}
				next := state{s.started | 1<<v, s.ended, s.tag}
				for _, b := range use[v] {
					if accesses[b][0] == v {
						next.tag = b + 1
					}
				}
				for w := range o.Nodes { // everyone running must still find its own bytes
					if next.started>>w&1 == 1 && next.ended>>w&1 == 0 {
						for _, b := range use[w] {
							if next.tag != b+1 {
								return true
							}
						}
					}
				}
				if visit(next) {
					return true
				}
			} else if s.ended>>v&1 == 0 && visit(state{s.started, s.ended | 1<<v, s.tag}) {
				return true
			}
		}
		return false
	}
	return visit(state{})
}
