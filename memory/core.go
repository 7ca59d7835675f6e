package memory

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
)

// core is one connected component of the conflict graph over buffers of at least one byte, relabelled
// and scaled: what every algorithm below works on. Labels go from the largest buffer to the smallest;
// ties are broken by what the buffers are, not by their index, so that permuted input is the same core.
//
// Bytes are divided by unit, the greatest common divisor of sizes, fixed offsets and those alignments
// that do not follow from them. Sizes are first rounded up to the smallest alignment, which loses
// nothing: whatever lies above starts at a multiple of it.
type core struct {
	n      int
	unit   int64
	ids    []int      // index in the problem
	size   []int64    // units
	spare  []int64    // bytes lost to rounding size up
	align  []int64    // units, 1: every offset will do
	fixed  []int64    // units, -1: free
	span   []Span     // position in the reference schedule; all equal if there is none
	words  int        // words in a row
	rows   [][]uint64 // conflicts
	before [][]uint64 // precedence, nil if unknown
	edited bool       // before may not be transitive
	degree []int64    // number of conflicts
	adj    [][]int32  // conflicts as lists, nil above maxExact buffers
	lower  []int64    // half-open lifetimes, nil unless the problem is one of intervals
	upper  []int64
}

// cores splits a valid problem into its components, largest number of buffers first.
func cores(p *Problem) []*core {
	n := len(p.Buffers)
	seen := make([]bool, n)
	var out []*core
	for i, b := range p.Buffers {
		if seen[i] || b.Size == 0 {
			continue
		}
		seen[i] = true
		members := []int{i}
		if p.Conflicts != nil {
			for k := 0; k < len(members); k++ {
				row := p.Conflicts.rows[members[k]]
				for j, ok := row.NextSet(0); ok; j, ok = row.NextSet(j + 1) {
					if !seen[j] && p.Buffers[j].Size > 0 {
						seen[j] = true
						members = append(members, int(j))
					}
				}
			}
		}
		out = append(out, newCore(p, members))
	}
	slices.SortStableFunc(out, func(a, b *core) int { return cmp.Compare(b.n, a.n) })
	return out
}

func newCore(p *Problem, ids []int) *core {
	c := &core{n: len(ids), ids: ids, words: (len(ids) + 63) / 64}
	c.edited = p.Conflicts != nil && p.Conflicts.edited
	spans := p.Spans
	if spans == nil && p.Conflicts != nil {
		spans = p.Conflicts.spans
	}
	spanOf := func(i int) Span {
		if spans == nil {
			return Span{}
		}
		return spans[i]
	}
	degrees := make([]int, len(p.Buffers))
	for _, i := range ids {
		if p.Conflicts != nil {
			degrees[i] = p.Conflicts.Degree(i)
		}
	}
	slices.SortFunc(ids, func(i, j int) int {
		a, b := p.Buffers[i], p.Buffers[j]
		return cmp.Or(cmp.Compare(b.Size, a.Size), cmp.Compare(degrees[j], degrees[i]),
			cmp.Compare(spanOf(i).First, spanOf(j).First), cmp.Compare(spanOf(i).Last, spanOf(j).Last),
			cmp.Compare(b.align(), a.align()), cmp.Compare(i, j))
	})
	least := p.Buffers[ids[0]].align()
	for _, i := range ids {
		least = min(least, p.Buffers[i].align())
		c.span = append(c.span, spanOf(i))
	}
	c.scale(p, least)
	c.link(p)
	return c
}

// scale fills sizes, alignments and fixed offsets in units.
func (c *core) scale(p *Problem, least int64) {
	for _, i := range c.ids {
		b := p.Buffers[i]
		size := roundUp(b.Size, least)
		c.spare = append(c.spare, size-b.Size)
		c.size = append(c.size, size)
		c.unit = gcd(c.unit, size)
		if b.Fixed {
			c.unit = gcd(c.unit, b.Offset)
		}
	}
	for _, i := range c.ids {
		if a := p.Buffers[i].align(); !p.Buffers[i].Fixed && c.unit%a != 0 {
			c.unit = gcd(c.unit, a)
		}
	}
	for k, i := range c.ids {
		b := p.Buffers[i]
		c.size[k] /= c.unit
		c.align = append(c.align, 1)
		c.fixed = append(c.fixed, -1)
		if b.Fixed {
			c.fixed[k] = b.Offset / c.unit
		} else if c.unit%b.align() != 0 {
			c.align[k] = b.align() / c.unit
		}
	}
}

// link copies the part of the relations that lies inside the component.
func (c *core) link(p *Problem) {
	label := make([]int32, len(p.Buffers)) // one more than the label, 0: not in the component
	for k, i := range c.ids {
		label[i] = int32(k) + 1
	}
	local := func(set []uint64) []uint64 {
		row := make([]uint64, c.words)
		for w, word := range set {
			for ; word != 0; word &= word - 1 {
				if k := label[w*64+bits.TrailingZeros64(word)] - 1; k >= 0 {
					row[k>>6] |= 1 << (uint(k) & 63)
				}
			}
		}
		return row
	}
	c.rows, c.degree = make([][]uint64, c.n), make([]int64, c.n)
	for k, i := range c.ids {
		if p.Conflicts == nil {
			c.rows[k] = make([]uint64, c.words)
			continue
		}
		c.rows[k] = local(p.Conflicts.rows[i].Words())
		for _, word := range c.rows[k] {
			c.degree[k] += int64(bits.OnesCount64(word))
		}
		if p.Conflicts.before != nil {
			c.before = append(c.before, local(p.Conflicts.before[i].Words()))
		}
		if p.Conflicts.lower != nil {
			c.lower = append(c.lower, p.Conflicts.lower[i])
			c.upper = append(c.upper, p.Conflicts.upper[i])
		}
	}
	if c.n <= maxExact {
		for _, row := range c.rows {
			c.adj = append(c.adj, members(row))
		}
	}
}

// members lists the bits of a set, ascending.
func members(set []uint64) []int32 {
	var out []int32
	for w, word := range set {
		for ; word != 0; word &= word - 1 {
			out = append(out, int32(w*64+bits.TrailingZeros64(word)))
		}
	}
	return out
}

func has(set []uint64, i int32) bool { return set[i>>6]>>(uint(i)&63)&1 == 1 }

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// alignUp rounds x units up to k's alignment.
func (c *core) alignUp(k int32, x int64) int64 {
	if a := c.align[k]; a > 1 {
		return (x + a - 1) &^ (a - 1)
	}
	return x
}

func trailing(word uint64) int { return bits.TrailingZeros64(word) }

// end is where k ends, in bytes, if it starts at o units: without the padding of its size.
func (c *core) end(k int32, o int64) int64 { return (o+c.size[k])*c.unit - c.spare[k] }

// peakFrom is the lowest peak, in bytes, that any plan can have if it is at least x; peaks are whole units
// less the padding of the topmost buffer.
func (c *core) peakFrom(x int64) int64 {
	lowest := int64(math.MaxInt64)
	for _, spare := range c.spare {
		lowest = min(lowest, (x+spare+c.unit-1)/c.unit*c.unit-spare)
	}
	return lowest
}

// peakUpTo is the highest peak, in bytes, that any plan can have if it is at most x.
func (c *core) peakUpTo(x int64) int64 {
	var highest int64
	for _, spare := range c.spare {
		highest = max(highest, (x+spare)/c.unit*c.unit-spare)
	}
	return highest
}
