package memory

import (
	"cmp"
	"slices"
)

// order is a static order of buffers: letters are keys, compared largest first, in this sequence.
//
//	W  span in the reference schedule        N  number of conflicts (a stand-in for W)
//	A  size * W                              B  size * N
//	T  largest remaining total of its cliques, at the moment of ranking
//	Z  size
type order string

// assign ranks the unplaced buffers of p. Ties are left in label order.
func (o order) assign(s *search, p part) {
	n := len(p.bufs)
	keys := make([]int64, n*len(o))
	for i, k := range p.bufs {
		for x, letter := range []byte(o) {
			if letter == 'T' {
				keys[i*len(o)+x] = s.tallest(k)
			} else {
				keys[i*len(o)+x] = s.c.key(k, letter)
			}
		}
	}
	idx := make([]int, n)
	for i := range idx {
		idx[i] = i
	}
	slices.SortFunc(idx, func(a, b int) int {
		for x := range len(o) {
			if d := cmp.Compare(keys[b*len(o)+x], keys[a*len(o)+x]); d != 0 {
				return d
			}
		}
		return a - b
	})
	for r, i := range idx {
		s.rank[p.bufs[i]] = int32(r)
	}
}

// key is a key that does not depend on what is placed.
func (c *core) key(k int32, letter byte) int64 {
	width := c.span[k].Last - c.span[k].First + 1
	switch letter {
	case 'W':
		return width
	case 'A':
		return satMul(c.size[k], width)
	case 'N':
		return int64(len(c.adj[k]))
	case 'B':
		return satMul(c.size[k], int64(len(c.adj[k])))
	case 'Z':
		return c.size[k]
	}
	panic("memory: unknown key " + string(letter))
}

// satMul multiplies non-negative numbers, stopping at the largest int64: keys only need an order.
func satMul(a, b int64) int64 {
	if a != 0 && b > (1<<63-1)/a {
		return 1<<63 - 1
	}
	return a * b
}

// tallest is the largest total that is left of a clique of k.
func (s *search) tallest(k int32) int64 {
	var most int64
	for _, q := range s.f.of[k] {
		most = max(most, s.total[q])
	}
	return most
}
