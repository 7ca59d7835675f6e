package memory

import (
	"math"
	"math/rand/v2"
)

// dag is a generated step: nodes on streams, buffers and who touches them.
type dag struct {
	order    Order
	buffers  []Buffer
	accesses [][]int // accesses[b][0] writes, the others read
}

// randomDAG draws a layered graph of 4 to 12 layers, 2 to 10 nodes wide, issued on 2 to 4 streams. Each
// node writes one buffer, read by nodes of later layers, and may use scratch; sizes are log-uniform
// over three decades. Edges are those of the data and of the streams.
func randomDAG(seed uint64) dag {
	r := rand.New(rand.NewPCG(seed, 0x6d6f65))
	var d dag
	streams := 2 + r.IntN(3)
	last := make([]int, streams)
	for s := range last {
		last[s] = -1
	}
	size := func() int64 { return int64(math.Round(math.Pow(10, 3*r.Float64()))) }
	var earlier, before []int // nodes of the layer before, and of all layers before that
	output := map[int]int{}   // node -> buffer it writes
	for range 4 + r.IntN(9) {
		var layer []int
		for range 2 + r.IntN(9) {
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
			if s := r.IntN(streams); true {
				if last[s] >= 0 {
					d.order.Edges = append(d.order.Edges, [2]int{last[s], v})
				}
				last[s] = v
			}
			output[v] = len(d.buffers)
			d.buffers = append(d.buffers, Buffer{Size: size()})
			d.accesses = append(d.accesses, []int{v})
			if r.Float64() < 0.6 {
				d.buffers = append(d.buffers, Buffer{Size: size()})
				d.accesses = append(d.accesses, []int{v})
			}
		}
		before = append(before, earlier...)
		earlier = layer
	}
	return d
}
