package memory

import "fmt"

// reach answers "does u complete before v starts" by depth-first search from u, done once for each u
// that is asked about. It is the verifier's own; the planner has another.
type reach struct {
	out  [][]int
	from [][]uint64 // from[u]: bits of the nodes behind u; nil: not searched yet
}

func newReach(order Order) (*reach, error) {
	if order.Nodes < 0 {
		return nil, fmt.Errorf("memory: verify: got %d nodes, want 0 or more: %w", order.Nodes, ErrInvalid)
	}
	r := &reach{out: make([][]int, order.Nodes), from: make([][]uint64, order.Nodes)}
	for _, e := range order.Edges {
		if e[0] < 0 || e[0] >= order.Nodes || e[1] < 0 || e[1] >= order.Nodes {
			return nil, fmt.Errorf("memory: verify: edge %d -> %d: want nodes in [0, %d): %w",
				e[0], e[1], order.Nodes, ErrInvalid)
		}
		r.out[e[0]] = append(r.out[e[0]], e[1])
	}
	if v := r.cycle(); v >= 0 {
		return nil, fmt.Errorf("memory: verify: node %d is on a cycle: %w", v, ErrInvalid)
	}
	return r, nil
}

// before reports a path of at least one edge from u to v.
func (r *reach) before(u, v int) bool {
	if r.from[u] == nil {
		seen := make([]uint64, (len(r.out)+63)/64)
		stack := []int{u}
		for len(stack) > 0 {
			w := stack[len(stack)-1]
			stack = stack[:len(stack)-1]
			for _, x := range r.out[w] {
				if seen[x/64]>>(x%64)&1 == 0 {
					seen[x/64] |= 1 << (x % 64)
					stack = append(stack, x)
				}
			}
		}
		r.from[u] = seen
	}
	return r.from[u][v/64]>>(v%64)&1 == 1
}

// cycle returns a node on a cycle, or -1: an iterative search with the usual three colours.
func (r *reach) cycle() int {
	const white, grey, black = 0, 1, 2
	colour := make([]byte, len(r.out))
	next := make([]int, len(r.out)) // the next edge to follow from each grey node
	for root := range r.out {
		if colour[root] != white {
			continue
		}
		colour[root] = grey
		path := []int{root}
		for len(path) > 0 {
			u := path[len(path)-1]
			if next[u] == len(r.out[u]) {
				colour[u] = black
				path = path[:len(path)-1]
				continue
			}
			v := r.out[u][next[u]]
			next[u]++
			switch colour[v] {
			case grey:
				return v
			case white:
				colour[v] = grey
				path = append(path, v)
			}
		}
	}
	return -1
}
