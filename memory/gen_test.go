package memory

import (
	"math"
	"math/rand/v2"
	"testing"
)

// dag is a generated step: nodes on streams, buffers and who touches them.
type dag struct {
	order    Order
	buffers  []Buffer
	accesses [][]int // accesses[b][0] writes, the others read
}

// randomDAG draws a layered graph of 4 to 12 layers, 2 to 10 nodes wide, issued on 2 to 4 streams. Each
// node writes one buffer, read by nodes of later layers, and may use scratch; sizes are log-uniform
// over three decades. Edges are those of the data and of the streams. Graphs of more than 200 buffers
// are drawn again.
func randomDAG(seed uint64) dag {
	r := rand.New(rand.NewPCG(seed, 0x6d6f65))
	for {
		if d := layered(r, 4+r.IntN(9), func() int { return 2 + r.IntN(9) }, 2+r.IntN(3)); len(d.buffers) <= 200 {
			return d
		}
	}
}

func layered(r *rand.Rand, layers int, width func() int, streams int) dag {
	var d dag
	last := make([]int, streams) // one more than the last node of each stream
	buffer := func(v int) int {
		d.buffers = append(d.buffers, Buffer{Size: int64(math.Round(math.Pow(10, 3*r.Float64())))})
		d.accesses = append(d.accesses, []int{v})
		return len(d.buffers) - 1
	}
	var earlier, before []int // nodes of the layer before, and of all layers before that
	output := map[int]int{}   // node -> buffer it writes
	for range layers {
		var layer []int
		for range width() {
			v := d.order.Nodes
			d.order.Nodes++
			layer = append(layer, v)
			for range 1 + r.IntN(3) {
				from := earlier
				if len(before) > 0 && r.Float64() < 0.3 {
					from = before
				}
				if len(from) == 0 {
					break
				}
				u := from[r.IntN(len(from))]
				d.order.Edges = append(d.order.Edges, [2]int{u, v})
				d.accesses[output[u]] = append(d.accesses[output[u]], v)
			}
			s := r.IntN(streams)
			if last[s] > 0 {
				d.order.Edges = append(d.order.Edges, [2]int{last[s] - 1, v})
			}
			last[s] = v + 1
			output[v] = buffer(v)
			if r.Float64() < scratch {
				buffer(v)
			}
		}
		before = append(before, earlier...)
		earlier = layer
	}
	return d
}

// scratch is the share of generated nodes that use a buffer of their own.
const scratch = 0.8

// uses turns accesses of buffers into accesses of arena bytes.
func (d dag) uses(offsets []int64) []Access {
	var out []Access
	for b, nodes := range d.accesses {
		for i, v := range nodes {
			out = append(out, Access{Node: v, Offset: offsets[b], Size: d.buffers[b].Size, Write: i == 0, Buffer: b})
		}
	}
	return out
}

// packed fills a rectangle of time and bytes without a gap by cutting it n times, so that the lower
// bound is the capacity, and forgets the offsets.
func packed(seed uint64, cuts int, capacity int64) Problem {
	type box struct{ t0, t1, y0, y1 int64 }
	r := rand.New(rand.NewPCG(seed, 0x706163))
	boxes := []box{{0, 1 << 20, 0, capacity}}
	for len(boxes) <= cuts {
		i := r.IntN(len(boxes))
		b := boxes[i]
		if w, h := b.t1-b.t0, b.y1-b.y0; r.IntN(2) == 0 && w > 1 {
			t := b.t0 + 1 + r.Int64N(w-1)
			boxes[i].t1 = t
			boxes = append(boxes, box{t, b.t1, b.y0, b.y1})
		} else if h > 1 {
			y := b.y0 + 1 + r.Int64N(h-1)
			boxes[i].y1 = y
			boxes = append(boxes, box{b.t0, b.t1, y, b.y1})
		}
	}
	var p Problem
	var lower, upper []int64
	for _, b := range boxes {
		p.Buffers = append(p.Buffers, Buffer{Size: b.y1 - b.y0})
		lower, upper = append(lower, b.t0), append(upper, b.t1)
	}
	p.Conflicts, _ = Intervals(lower, upper)
	return p
}

// check fails the test unless the plan keeps what Solve promises, by looking at every pair.
func check(t testing.TB, p Problem, plan *Plan) {
	t.Helper()
	var peak int64
	for i, a := range p.Buffers {
		x := plan.Offsets[i]
		peak = max(peak, x+a.Size)
		if x < 0 || x%max(a.Align, 1) != 0 || a.Fixed && x != a.Offset {
			t.Fatalf("buffer %d: offset %d, alignment %d, fixed %v at %d", i, x, a.Align, a.Fixed, a.Offset)
		}
		for j, b := range p.Buffers[:i] {
			y := plan.Offsets[j]
			if p.Conflicts.Has(i, j) && x < y+b.Size && y < x+a.Size && a.Size > 0 && b.Size > 0 {
				t.Fatalf("buffers %d and %d conflict and share bytes", i, j)
			}
		}
	}
	if peak != plan.Peak || plan.LowerBound > peak || plan.Proven != (plan.LowerBound == peak) {
		t.Fatalf("peak %d, in the plan %d, bound %d, proven %v", peak, plan.Peak, plan.LowerBound, plan.Proven)
	}
	for _, i := range plan.Pinned {
		for _, j := range plan.Pinned {
			if i != j && !p.Conflicts.Has(i, j) {
				t.Fatalf("pinned buffers %d and %d do not conflict", i, j)
			}
		}
	}
}
