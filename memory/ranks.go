package memory

import (
	"cmp"
	"math"
	"slices"
)

// order is a static order of buffers: letters are keys, compared largest first, in this sequence.
//
//	W  width: length of the span in the reference schedule
//	A  area: size * W
//	N  number of conflicts, which stands in for W where there is more than one stream
//	B  block: size * N
//	T  largest total left to any of its cliques, at the moment of ranking
//	Z  size
//	L  earliest first position
//	U  latest last position
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
	width := c.span[k].Last - c.span[k].First
	if width < 0 { // beyond int64
		width = math.MaxInt64
	} else if width < math.MaxInt64 {
		width++
	}
	switch letter {
	case 'W':
		return width
	case 'A':
		return satMul(c.size[k], width)
	case 'N':
		return c.degree[k]
	case 'B':
		return satMul(c.size[k], c.degree[k])
	case 'L':
		return ^c.span[k].First // like a minus, without overflow
	case 'U':
		return c.span[k].Last
	case 'Z':
		return c.size[k]
	}
	panic("memory: unknown key " + string(letter))
}

// satMul multiplies non-negative numbers, stopping at the largest int64: keys only need an order.
func satMul(a, b int64) int64 {
	if a != 0 && b > math.MaxInt64/a {
		return math.MaxInt64
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
