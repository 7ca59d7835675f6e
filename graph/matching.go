package graph

import (
	"cmp"
	"slices"
)

// reduce returns the transitive reduction of deps, lists of earlier indices: a step keeps those that no other of its
// dependencies comes after. It is the one smallest set of edges with the same order. Time: O(V*E/64).
func reduce(deps [][]int) [][]int {
	words := (len(deps) + 63) / 64
	before := make([][]uint64, len(deps)) // of each step, all that come before it
	reduced := make([][]int, len(deps))
	for i, ds := range deps {
		before[i] = make([]uint64, words)
		byIndex := slices.Clone(ds)
		slices.Sort(byIndex)
		for _, d := range slices.Backward(slices.Compact(byIndex)) { // the latest first: it comes after none of the others
			if before[i][d/64]>>(d%64)&1 == 1 {
				continue
			}
			reduced[i] = append(reduced[i], d)
			before[i][d/64] |= 1 << (d % 64)
			for w, bits := range before[d] {
				before[i][w] |= bits
			}
		}
		slices.Sort(reduced[i])
	}
	return reduced
}

// match schedules with the fewest waits at which any two steps without an order are on different streams: a maximum
// matching of the transitive reduction says which step directly follows which on its stream, and each other edge of the
// reduction is one wait. Source: Kwon et al., Nimble: Lightweight and Parallel GPU Task Scheduling for Deep Learning,
// NeurIPS 2020. The paths of the matching are then laid one behind the other where one's end comes before
// another's start, which takes no concurrency and fewer streams. It returns nil where that takes more than most streams.
//
// Of the maximum matchings it is one that prefers edges on long ways to the end.
func (m *costModel) match(most int) *schedule {
	n := len(m.work)
	after := make([][]int, n)
	edges := reduce(m.deps)
	for v, ds := range edges {
		for _, u := range ds {
			after[u] = append(after[u], v)
		}
	}
	heavy := func(a, b int) int { return cmp.Or(cmp.Compare(m.rank[b], m.rank[a]), cmp.Compare(a, b)) }
	byRank := make([]int, n)
	for i := range byRank {
		byRank[i] = i
		slices.SortFunc(after[i], heavy)
	}
	slices.SortFunc(byRank, heavy)
	next := matching(byRank, after)
	head := make([]int, n) // of each step, the first of its path
	for i := range head {
		head[i] = i
	}
	var paths [][]int
	pathOf := make([]int, n)
	for i := range n { // a path's next step has a higher index
		if head[i] == i {
			path := []int{i}
			for j := next[i]; j >= 0; j = next[j] {
				head[j] = i
				path = append(path, j)
			}
			for _, j := range path {
				pathOf[j] = len(paths)
			}
			paths = append(paths, path)
		}
	}
	stream := m.layPaths(paths)
	s := &schedule{how: "fewest waits", stream: make([]int, n), used: slices.Max(append(stream, -1)) + 1}
	if s.used > most {
		return nil
	}
	for i := range n {
		s.stream[i] = stream[pathOf[i]]
		s.order = append(s.order, i)
	}
	s.number()
	m.simulate(s, s.used)
	s.sortByStart()
	return s
}

// layPaths puts paths on streams, one behind the other where all of one comes before all of the next: again a maximum
// matching, of the relation between whole paths.
func (m *costModel) layPaths(paths [][]int) []int {
	words := (len(m.deps) + 63) / 64
	before := make([][]uint64, len(m.deps))
	for i, ds := range m.deps {
		before[i] = make([]uint64, words)
		for _, d := range ds {
			before[i][d/64] |= 1 << (d % 64)
			for w, bits := range before[d] {
				before[i][w] |= bits
			}
		}
	}
	after := make([][]int, len(paths))
	all := make([]int, len(paths))
	for i, p := range paths {
		all[i] = i
		end := p[len(p)-1]
		for j, q := range paths {
			if start := q[0]; i != j && before[start][end/64]>>(end%64)&1 == 1 {
				after[i] = append(after[i], j)
			}
		}
	}
	next := matching(all, after)
	follows := make([]bool, len(paths))
	for _, j := range next {
		if j >= 0 {
			follows[j] = true
		}
	}
	stream := make([]int, len(paths))
	used := 0
	for i := range paths {
		if follows[i] {
			continue
		}
		for j := i; j >= 0; j = next[j] {
			stream[j] = used
		}
		used++
	}
	return stream
}

// matching is Kuhn's algorithm: it gives as many of the left ones as possible a right one of their lists each, and
// returns it, -1 for none. Earlier ones and earlier entries of lists are preferred, first by a greedy pass.
func matching(left []int, lists [][]int) []int {
	n := len(lists)
	next, owner := make([]int, n), make([]int, n)
	for i := range n {
		next[i], owner[i] = -1, -1
	}
	for _, u := range left {
		for _, v := range lists[u] {
			if owner[v] < 0 {
				next[u], owner[v] = v, u
				break
			}
		}
	}
	seen := make([]int, n) // the round in which a right one was looked at
	var try func(u, round int) bool
	try = func(u, round int) bool {
		for _, v := range lists[u] {
			if seen[v] == round {
				continue
			}
			seen[v] = round
			if owner[v] < 0 || try(owner[v], round) {
				next[u], owner[v] = v, u
				return true
			}
		}
		return false
	}
	for i, u := range left {
		if next[u] < 0 {
			try(u, i+1)
		}
	}
	return next
}
