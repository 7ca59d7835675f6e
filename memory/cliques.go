package memory

import (
	"cmp"
	"encoding/binary"
	"slices"
)

// family is a set of cliques (buffers that conflict pairwise, so that they must be stacked on top of
// one another) which together cover every conflict.
type family struct {
	members [][]int32
	of      [][]int32 // of[k]: the cliques of buffer k, ascending
}

// sections are the cliques of an interval problem: for each distinct end of a lifetime, what is alive
// just before it. Every maximal clique is among them.
func (c *core) sections() [][]int32 {
	ends := slices.Clone(c.upper)
	slices.Sort(ends)
	ends = slices.Compact(ends)
	out := make([][]int32, len(ends))
	for k := range int32(c.n) {
		s, _ := slices.BinarySearch(ends, c.lower[k]+1)
		for ; s < len(ends) && ends[s] <= c.upper[k]; s++ {
			out[s] = append(out[s], k)
		}
	}
	return out
}

// grown are the cliques of any conflict graph: one grown from each buffer and from each conflict that
// no clique covers yet, always by the largest buffer that fits in. extra cliques are taken along.
func (c *core) grown(extra ...[]int32) [][]int32 {
	covered := make([][]uint64, c.n)
	for k := range covered {
		covered[k] = make([]uint64, c.words)
	}
	seen := map[string]bool{}
	var out [][]int32
	add := func(clique []int32) {
		slices.Sort(clique)
		key := make([]byte, 0, 4*len(clique))
		for _, k := range clique {
			key = binary.LittleEndian.AppendUint32(key, uint32(k))
		}
		if seen[string(key)] {
			return
		}
		seen[string(key)] = true
		out = append(out, clique)
		set := make([]uint64, c.words)
		for _, k := range clique {
			set[k>>6] |= 1 << (uint(k) & 63)
		}
		for _, k := range clique {
			for w := range set {
				covered[k][w] |= set[w]
			}
		}
	}
	for _, clique := range extra {
		add(slices.Clone(clique))
	}
	common := make([]uint64, c.words)
	grow := func(clique ...int32) []int32 {
		copy(common, c.rows[clique[0]])
		for _, k := range clique[1:] {
			intersect(common, c.rows[k])
		}
		for k := first(common); k >= 0; k = first(common) {
			clique = append(clique, k)
			intersect(common, c.rows[k])
		}
		return clique
	}
	for k := range int32(c.n) {
		add(grow(k))
	}
	for k := range int32(c.n) {
		for _, j := range c.adj[k] {
			if j > k && !has(covered[k], j) {
				add(grow(k, j))
			}
		}
	}
	return out
}

// newFamily indexes cliques.
func (c *core) newFamily(cliques [][]int32) *family {
	f := &family{members: cliques, of: make([][]int32, c.n)}
	for s, clique := range cliques {
		for _, k := range clique {
			f.of[k] = append(f.of[k], int32(s))
		}
	}
	return f
}

// heaviest returns the clique of the largest total size.
func (c *core) heaviest(cliques [][]int32) []int32 {
	return slices.MaxFunc(cliques, func(a, b []int32) int { return cmp.Compare(c.weight(a), c.weight(b)) })
}

func (c *core) weight(clique []int32) int64 {
	var sum int64
	for _, k := range clique {
		sum += c.size[k]
	}
	return sum
}

func intersect(set, with []uint64) {
	for w := range set {
		set[w] &= with[w]
	}
}

// first returns the smallest member of a set, -1 if it is empty.
func first(set []uint64) int32 {
	for w, word := range set {
		if word != 0 {
			return int32(w*64 + trailing(word))
		}
	}
	return -1
}
