package memory

import (
	"cmp"
	"slices"
)

const (
	squeakSteps = 25e7 // pairs of buffers looked at while refitting one component
	squeakMost  = 200  // refits at most
)

// squeak places c by first fit again and again, each time with the buffers moved ahead that reached
// above the goal the time before (the squeaky wheel gets the grease), and returns the lowest layout,
// at worst best. It is what components get that are too large for the search.
func (c *core) squeak(goal int64, best layout) layout {
	rounds := min(squeakMost, int(squeakSteps/(int64(c.n)*int64(c.n)))) / 2
	best = c.refit("BZ", 50, rounds, goal, best)
	return c.refit("ZN", 10, rounds, goal, best)
}

// refit starts from an order; a buffer that is moved passes one in every part of the others.
func (c *core) refit(start order, part, rounds int, goal int64, best layout) layout {
	seq := c.ranked(start) // fixed buffers come first, and stay there: nothing moves past them
	position := make([]int, c.n)
	for i, k := range seq {
		position[k] = i
	}
	loose := seq
	for len(loose) > 0 && c.fixed[loose[0]] >= 0 {
		loose = loose[1:]
	}
	for range rounds {
		if best.peak <= goal {
			break
		}
		l := c.fit(seq, false, "first fit, refitted from order "+string(start))
		if l.peak < best.peak {
			best = l
		}
		for k, o := range l.off {
			if c.end(int32(k), o) > goal {
				position[k] -= c.n/part + 1
			}
		}
		slices.SortStableFunc(loose, func(a, b int32) int { return cmp.Compare(position[a], position[b]) })
	}
	return best
}
