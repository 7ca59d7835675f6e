package memory

import "slices"

// bound is what a component needs at least.
type bound struct {
	bytes   int64     // by the heaviest clique and the fixed offsets
	pinned  []int32   // the heaviest clique
	cliques [][]int32 // found on the way; nil: none yet
}

// bound computes the lower bound: the heaviest section of intervals, the maximum-weight antichain of
// an order, both exact, or the heaviest clique that a bounded search finds in a bare relation or in
// one with conflicts added by hand.
func (c *core) bound() *bound {
	b := &bound{}
	switch {
	case c.n == 1:
		b.pinned = []int32{0}
	case c.lower != nil:
		b.cliques = c.sections()
		b.pinned = c.heaviest(b.cliques)
	case c.before != nil:
		b.pinned = c.antichain()
		if c.edited { // still a clique, but perhaps not the heaviest
			if other := c.heavyClique(); c.weight(other) > c.weight(b.pinned) {
				b.pinned = other
			}
		}
	default:
		b.pinned = c.heavyClique()
	}
	var spare int64
	for _, k := range b.pinned {
		spare = max(spare, c.spare[k])
	}
	b.bytes = c.weight(b.pinned)*c.unit - spare // the topmost of the clique may be the one with most padding
	for k, o := range c.fixed {
		if end := c.end(int32(k), o); o >= 0 && end > b.bytes {
			b.bytes = end
			b.pinned = []int32{int32(k)}
		}
	}
	return b
}

// family returns the cliques the search reasons with.
func (b *bound) family(c *core) *family {
	if b.cliques == nil {
		b.cliques = c.grown(b.pinned)
	}
	return c.newFamily(b.cliques)
}

const (
	cliqueSeeds = 512     // buffers that a clique is grown from, largest first
	cliqueNodes = 200_000 // nodes of the clique search, divided by the words of a row
)

// heavyClique looks for the heaviest clique of a conflict graph of which nothing else is known:
// greedily from many buffers, then by branch and bound within a budget of nodes.
func (c *core) heavyClique() []int32 {
	var best []int32
	common := make([]uint64, c.words)
	for k := range int32(min(c.n, cliqueSeeds)) {
		clique := []int32{k}
		copy(common, c.rows[k])
		for j := first(common); j >= 0; j = first(common) {
			clique = append(clique, j)
			intersect(common, c.rows[j])
		}
		if c.weight(clique) > c.weight(best) {
			best = clique
		}
	}
	s := &cliqueSearch{c: c, best: best, weight: c.weight(best), left: cliqueNodes / c.words}
	everyone := make([]uint64, c.words)
	for k := range c.n {
		everyone[k>>6] |= 1 << (k & 63)
	}
	s.extend(nil, 0, everyone)
	slices.Sort(s.best)
	return s.best
}

// cliqueSearch is branch and bound for the heaviest clique. What may still be added is coloured: sets
// of buffers that do not conflict, of which a clique has at most one each, so that the sum of the
// largest of each set bounds what can be gained.
type cliqueSearch struct {
	c      *core
	best   []int32
	weight int64
	left   int
}

func (s *cliqueSearch) extend(clique []int32, weight int64, allowed []uint64) {
	if weight > s.weight {
		s.best, s.weight = slices.Clone(clique), weight
	}
	if s.left--; s.left < 0 {
		return
	}
	seq, reach := s.colour(allowed)
	rest := slices.Clone(allowed)
	next := make([]uint64, len(allowed))
	for i := len(seq) - 1; i >= 0 && weight+reach[i] > s.weight && s.left >= 0; i-- {
		k := seq[i]
		for w := range next {
			next[w] = rest[w] & s.c.rows[k][w]
		}
		s.extend(append(clique, k), weight+s.c.size[k], next)
		rest[k>>6] &^= 1 << (uint(k) & 63)
	}
}

// colour lists the buffers of a set colour by colour; reach[i] bounds the weight of any clique within
// seq[:i+1].
func (s *cliqueSearch) colour(set []uint64) (seq []int32, reach []int64) {
	left := slices.Clone(set)
	var sum int64
	for first(left) >= 0 {
		class := slices.Clone(left)
		base := sum
		for k := first(class); k >= 0; k = first(class) {
			class[k>>6] &^= 1 << (uint(k) & 63)
			left[k>>6] &^= 1 << (uint(k) & 63)
			for w := range class {
				class[w] &^= s.c.rows[k][w]
			}
			sum = max(sum, base+s.c.size[k])
			seq, reach = append(seq, k), append(reach, sum)
		}
	}
	return seq, reach
}
