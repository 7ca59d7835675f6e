package memory

import (
	"container/heap"
	"slices"

	"github.com/bits-and-blooms/bitset"
)

// Order is a partial order of events (nodes), given by edges that mean full completion: with an edge
// u -> v, u has finished and its bytes are visible before v starts. Edges that are implied by others
// are allowed, and so are duplicates.
type Order struct {
	Nodes int
	Edges [][2]int
}

// Conflicts computes which buffers may not share bytes. accesses[b] lists the nodes that touch buffer
// b in any way: read, write, zero, scratch, through any alias.
//
//	A before B  :<=>  every access of A happens before every access of B
//	A, B share  :<=>  A before B or B before A
//
// The rule is exact: where it forbids sharing, some legal execution lets one buffer clobber the other.
// A buffer with no access conflicts with every other one, as nothing is known of it.
// Errors: a node out of range, a cycle.
//
// Time: O(V*E/64) for the closure and O(B*B*accesses) bit tests; V*V/8 bytes.
func (o Order) Conflicts(accesses [][]int) (*Conflicts, error) {
	topo, err := o.check(accesses)
	if err != nil {
		return nil, err
	}
	position := make([]int, o.Nodes)
	for i, v := range topo {
		position[v] = i
	}
	return relate(accesses, position, o.descendants(topo)), nil
}

// check refuses nodes out of range and cycles, and returns a topological order.
func (o Order) check(accesses [][]int) ([]int, error) {
	succ, err := o.successors()
	if err != nil {
		return nil, err
	}
	for b, nodes := range accesses {
		for _, v := range nodes {
			if v < 0 || v >= o.Nodes {
				return nil, invalid("accesses of buffer %d: got node %d, want one in [0, %d)", b, v, o.Nodes)
			}
		}
	}
	return o.sort(succ)
}

// closure returns, for each node, everything that starts after it completes.
func (o Order) closure(accesses [][]int) ([]*bitset.BitSet, error) {
	topo, err := o.check(accesses)
	if err != nil {
		return nil, err
	}
	return o.descendants(topo), nil
}

func (o Order) descendants(topo []int) []*bitset.BitSet {
	succ, _ := o.successors() // checked before
	desc := newRows(o.Nodes)
	for _, v := range slices.Backward(topo) {
		for _, w := range succ[v] {
			if !desc[v].Test(uint(w)) {
				desc[v].Set(uint(w))
				desc[v].InPlaceUnion(desc[w])
			}
		}
	}
	return desc
}

// relate fills the relation from the closure. Only pairs whose positions do not rule it out are tested.
func relate(accesses [][]int, position []int, desc []*bitset.BitSet) *Conflicts {
	n := len(accesses)
	c := &Conflicts{rows: newRows(n), before: newRows(n), spans: make([]Span, n)}
	touched := make([][]int, n) // accesses by ascending position, so that a test fails early
	for b, nodes := range accesses {
		touched[b] = slices.Clone(nodes)
		slices.SortFunc(touched[b], func(u, v int) int { return position[u] - position[v] })
		touched[b] = slices.Compact(touched[b])
		if t := touched[b]; len(t) > 0 {
			c.spans[b] = Span{int64(position[t[0]]), int64(position[t[len(t)-1]])}
		} else {
			c.spans[b] = Span{0, int64(len(position))}
		}
	}
	after := bitset.New(uint(len(position)))
	for a := range n {
		if len(touched[a]) == 0 {
			continue
		}
		desc[touched[a][0]].CopyFull(after)
		for _, v := range touched[a][1:] {
			after.InPlaceIntersection(desc[v])
		}
		for b := range n {
			if len(touched[b]) > 0 && c.spans[a].Last < c.spans[b].First && all(after, touched[b]) {
				c.before[a].Set(uint(b))
			}
		}
	}
	for a := range n {
		for b := range a {
			if !c.before[a].Test(uint(b)) && !c.before[b].Test(uint(a)) {
				c.rows[a].Set(uint(b))
				c.rows[b].Set(uint(a))
			}
		}
	}
	return c
}

func all(set *bitset.BitSet, nodes []int) bool {
	for _, v := range nodes {
		if !set.Test(uint(v)) {
			return false
		}
	}
	return true
}

func (o Order) successors() ([][]int32, error) {
	if o.Nodes < 0 {
		return nil, invalid("order: got %d nodes, want 0 or more", o.Nodes)
	}
	succ := make([][]int32, o.Nodes)
	for _, e := range o.Edges {
		u, v := e[0], e[1]
		if u < 0 || v < 0 || u >= o.Nodes || v >= o.Nodes {
			return nil, invalid("edge %d -> %d: want nodes in [0, %d)", u, v, o.Nodes)
		}
		succ[u] = append(succ[u], int32(v))
	}
	return succ, nil
}

// sort returns the topological order that takes the smallest ready node first: where indices are
// already an issue order, it is that order.
func (o Order) sort(succ [][]int32) ([]int, error) {
	waits := make([]int, o.Nodes)
	for _, next := range succ {
		for _, v := range next {
			waits[v]++
		}
	}
	ready := &intHeap{}
	for v, k := range waits {
		if k == 0 {
			heap.Push(ready, v)
		}
	}
	topo := make([]int, 0, o.Nodes)
	for ready.Len() > 0 {
		v := heap.Pop(ready).(int)
		topo = append(topo, v)
		for _, w := range succ[v] {
			if waits[w]--; waits[w] == 0 {
				heap.Push(ready, int(w))
			}
		}
	}
	if len(topo) < o.Nodes {
		v := slices.IndexFunc(waits, func(k int) bool { return k > 0 })
		return nil, invalid("order: node %d is on a cycle or behind one", v)
	}
	return topo, nil
}

type intHeap []int

func (h intHeap) Len() int           { return len(h) }
func (h intHeap) Less(i, j int) bool { return h[i] < h[j] }
func (h intHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *intHeap) Push(x any)        { *h = append(*h, x.(int)) }
func (h *intHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}
