package memory

import (
	"cmp"
	"math"
	"slices"
)

// layout is a placement of one core.
type layout struct {
	off    []int64 // units
	peak   int64   // bytes: the largest offset + size
	method string
}

// greedy runs the one-pass placements until one meets the goal, and returns the lowest; ties go to the
// first.
//
// First fit and best fit take the buffers in an order and put each into the first, or tightest, gap
// between the placed ones that conflict with it. The skyline always extends the lowest place: it is
// the first dive of the exact search.
func (c *core) greedy(goal int64) layout {
	best := layout{peak: math.MaxInt64}
	keep := func(l layout) bool {
		if best.off == nil || l.peak < best.peak { // a peak of 2^63-1 is one
			best = l
		}
		return best.peak <= goal
	}
	for _, o := range []order{"ZN", "BZ", "AZ", "NZ", "WZ"} {
		seq := c.ranked(o)
		if keep(c.fit(seq, false, "first fit, order "+string(o))) {
			return best
		}
		if o == "ZN" && keep(c.fit(seq, true, "best fit, order "+string(o))) {
			return best
		}
	}
	for _, o := range []order{"WZ", "NZ", "ZW"} {
		if l, ok := c.skyline(c.ranked(o), "skyline, order "+string(o)); ok && keep(l) {
			return best
		}
	}
	return best
}

// ranked lists the buffers by descending keys (see order), fixed ones first.
func (c *core) ranked(o order) []int32 {
	keys := make([][]int64, c.n)
	out := make([]int32, c.n)
	for k := range int32(c.n) {
		out[k] = k
		for _, letter := range []byte(o) {
			keys[k] = append(keys[k], c.key(k, letter))
		}
	}
	slices.SortFunc(out, func(a, b int32) int {
		if fa, fb := c.fixed[a] >= 0, c.fixed[b] >= 0; fa != fb {
			if fa {
				return -1
			}
			return 1
		}
		return cmp.Or(slices.Compare(keys[b], keys[a]), cmp.Compare(a, b))
	})
	return out
}

// fit places the buffers in the given order; those with a fixed offset must come first.
func (c *core) fit(seq []int32, best bool, method string) layout {
	l := layout{off: make([]int64, c.n), method: method}
	placed := make([]int32, 0, c.n) // by ascending offset
	for _, k := range seq {
		o := c.fixed[k]
		if o < 0 {
			o = c.gap(k, placed, l.off, best)
		}
		l.off[k] = o
		l.peak = max(l.peak, c.end(k, o))
		at, _ := slices.BinarySearchFunc(placed, o, func(j int32, o int64) int { return cmp.Compare(l.off[j], o) })
		placed = slices.Insert(placed, at, k)
	}
	return l
}

// gap finds an offset for k among the placed buffers: the lowest, or that of the tightest gap.
func (c *core) gap(k int32, placed []int32, off []int64, best bool) int64 {
	row, size := c.rows[k], c.size[k]
	var o, chosen int64
	room := int64(math.MaxInt64)
	for _, j := range placed {
		if !has(row, j) {
			continue
		}
		if free := off[j] - o; free >= size {
			if !best {
				return o
			}
			if free < room {
				chosen, room = o, free
			}
		}
		if top := off[j] + c.size[j]; top > o {
			o = c.alignUp(k, top)
		}
	}
	if room < math.MaxInt64 {
		return chosen
	}
	return o
}

// skyline places, again and again, the buffer whose lowest possible offset is lowest, ties by the given
// order. It fails only where a buffer with a fixed offset is in the way.
func (c *core) skyline(seq []int32, method string) (layout, bool) {
	l := layout{off: make([]int64, c.n), method: method}
	for k := range l.off {
		l.off[k] = max(c.fixed[k], 0)
	}
	left := slices.Clone(seq)
	for len(left) > 0 {
		at := 0
		for x, k := range left {
			if l.off[k] < l.off[left[at]] {
				at = x
			}
		}
		k := left[at]
		left = slices.Delete(left, at, at+1)
		top := l.off[k] + c.size[k]
		l.peak = max(l.peak, c.end(k, l.off[k]))
		for _, j := range left {
			if l.off[j] < top && has(c.rows[k], j) {
				if c.fixed[j] >= 0 {
					return l, false
				}
				l.off[j] = c.alignUp(j, top)
			}
		}
	}
	return l, true
}
