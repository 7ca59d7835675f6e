package memory

import (
	"cmp"
	"slices"
)

// Solve finds offsets: conflicting buffers share no bytes, alignments and fixed offsets hold, and the
// peak is as low as the budget allows, or at most p.Capacity where that is set.
//
// Errors: ErrInvalid for a problem that makes no sense; a CapacityError, with the best plan in it, for
// a capacity that was not met.
//
// It may be called from several goroutines, on the same Problem too.
func Solve(p Problem, o Options) (*Plan, error) {
	if err := p.validate(); err != nil {
		return nil, err
	}
	plan := &Plan{Offsets: make([]int64, len(p.Buffers)), Method: "nothing to place"}
	for i, b := range p.Buffers {
		if b.Fixed {
			plan.Offsets[i] = b.Offset
			if end := b.Offset + b.Size; end > plan.LowerBound {
				plan.LowerBound, plan.Pinned = end, []int{i}
			}
		}
	}
	plan.Peak = plan.LowerBound
	parts := cores(&p)
	bounds := make([]*bound, len(parts))
	for i, c := range parts {
		bounds[i] = c.bound()
		if b := bounds[i]; b.bytes > plan.LowerBound {
			plan.LowerBound, plan.Pinned = b.bytes, c.problemIDs(b.pinned)
		}
	}
	// The components that need most come first: the others need not be lower than these.
	byBound := make([]int, len(parts))
	for i := range byBound {
		byBound[i] = i
	}
	slices.SortStableFunc(byBound, func(i, j int) int { return cmp.Compare(bounds[j].bytes, bounds[i].bytes) })
	for _, i := range byBound {
		c := parts[i]
		l, proven := c.place(bounds[i], max(plan.LowerBound, plan.Peak, p.Capacity), p.Capacity > 0, o)
		for k, id := range c.ids {
			plan.Offsets[id] = l.off[k] * c.unit
		}
		if l.peak > plan.Peak {
			plan.Peak, plan.Method = l.peak, l.method
		}
		plan.LowerBound = max(plan.LowerBound, proven)
	}
	plan.Proven = plan.Peak == plan.LowerBound
	if p.Capacity > 0 && plan.Peak > p.Capacity {
		return nil, &CapacityError{Capacity: p.Capacity, LowerBound: plan.LowerBound, Best: plan}
	}
	return plan, nil
}

// LowerBound returns what Solve's plan says of itself, without making one: the bytes below which no plan comes, and
// the buffers that pin them, ascending. Solve may raise the bound by proofs.
func LowerBound(p Problem) (bytes int64, pinned []int, err error) {
	if err := p.validate(); err != nil {
		return 0, nil, err
	}
	for i, b := range p.Buffers {
		if end := b.Offset + b.Size; b.Fixed && end > bytes {
			bytes, pinned = end, []int{i}
		}
	}
	for _, c := range cores(&p) {
		if b := c.bound(); b.bytes > bytes {
			bytes, pinned = b.bytes, c.problemIDs(b.pinned)
		}
	}
	return bytes, pinned, nil
}

// place finds a layout of c whose peak is at most goal bytes, or as low as the budget allows, and the
// bytes that are proven to be needed.
func (c *core) place(b *bound, goal int64, ask bool, o Options) (layout, int64) {
	best := c.greedy(goal)
	switch {
	case best.peak <= goal || o.Nodes < 0:
		return best, b.bytes
	case c.n > maxExact:
		return c.squeak(goal, best), b.bytes
	}
	return c.climb(b.family(c), b.bytes, goal, ask, best, o)
}

func (c *core) problemIDs(labels []int32) []int {
	out := make([]int, len(labels))
	for i, k := range labels {
		out[i] = c.ids[k]
	}
	slices.Sort(out)
	return out
}
