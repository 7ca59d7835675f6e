package memory

import (
	"github.com/bits-and-blooms/bitset"
)

// Conflicts says which buffers may not share bytes: a symmetric relation over n buffers, as bitsets.
// A relation made by Order.Conflicts or Intervals also remembers which of two buffers that may share
// comes first (the exact lower bound needs it) and where each stands in a reference schedule.
//
// A Conflicts may be read from several goroutines while nobody calls Add.
type Conflicts struct {
	rows   []*bitset.BitSet // rows[i] has j: i and j conflict
	before []*bitset.BitSet // before[i] has j: i ends before j starts; nil for a bare relation
	spans  []Span           // nil for a bare relation
	lower  []int64          // half-open lifetimes: only from Intervals and as long as nothing is added
	upper  []int64
	edited bool  // a pair that had an order was made to conflict: before may not be transitive
	err    error // the first wrong Add; Solve returns it
}

// NewConflicts returns the empty relation over n buffers.
func NewConflicts(n int) *Conflicts {
	return &Conflicts{rows: newRows(max(n, 0))}
}

func newRows(n int) []*bitset.BitSet {
	rows := make([]*bitset.BitSet, n)
	words := (n + 63) / 64
	flat := make([]uint64, n*words)
	for i := range rows {
		rows[i] = bitset.FromWithLength(uint(n), flat[i*words:(i+1)*words:(i+1)*words])
	}
	return rows
}

// Len is the number of buffers.
func (c *Conflicts) Len() int { return len(c.rows) }

// Add makes buffers i and j conflict. A buffer does not conflict with itself: Add(i, i) does nothing.
// An index out of range is kept as an error that Solve returns.
func (c *Conflicts) Add(i, j int) {
	n := len(c.rows)
	if i < 0 || j < 0 || i >= n || j >= n {
		if c.err == nil {
			c.err = invalid("conflict (%d, %d): want indices in [0, %d)", i, j, n)
		}
		return
	}
	if i == j || c.rows[i].Test(uint(j)) {
		return
	}
	c.rows[i].Set(uint(j))
	c.rows[j].Set(uint(i))
	if c.before != nil {
		c.edited = true
		c.before[i].Clear(uint(j))
		c.before[j].Clear(uint(i))
	}
	c.lower, c.upper = nil, nil
}

// Has reports whether i and j conflict.
func (c *Conflicts) Has(i, j int) bool {
	return i >= 0 && i < len(c.rows) && j >= 0 && j < len(c.rows) && c.rows[i].Test(uint(j))
}

// Before reports whether i is known to end before j starts. It is false throughout for a bare relation.
func (c *Conflicts) Before(i, j int) bool {
	return c.before != nil && i >= 0 && i < len(c.rows) && j >= 0 && j < len(c.rows) && c.before[i].Test(uint(j))
}

// Degree is the number of buffers that conflict with i.
func (c *Conflicts) Degree(i int) int { return int(c.rows[i].Count()) }

// Intervals is the relation of half-open lifetimes [lower, upper) in a total order: two buffers
// conflict if their lifetimes intersect. An empty lifetime conflicts with nothing.
// Errors: different lengths, upper below lower.
func Intervals(lower, upper []int64) (*Conflicts, error) {
	if len(lower) != len(upper) {
		return nil, invalid("intervals: got %d lower and %d upper ends, want as many", len(lower), len(upper))
	}
	c := NewConflicts(len(lower))
	c.before = newRows(len(lower))
	c.spans = make([]Span, len(lower))
	c.lower, c.upper = append([]int64{}, lower...), append([]int64{}, upper...)
	for i := range lower {
		if upper[i] < lower[i] {
			return nil, invalid("interval %d: got [%d, %d), want upper >= lower", i, lower[i], upper[i])
		}
		c.spans[i] = Span{lower[i], lower[i]}
		if upper[i] > lower[i] {
			c.spans[i].Last = upper[i] - 1
		}
		for j := range i {
			switch {
			case lower[i] == upper[i], lower[j] == upper[j]: // alive at no time, in no order
			case upper[i] <= lower[j]:
				c.before[i].Set(uint(j))
			case upper[j] <= lower[i]:
				c.before[j].Set(uint(i))
			default:
				c.rows[i].Set(uint(j))
				c.rows[j].Set(uint(i))
			}
		}
	}
	return c, nil
}
