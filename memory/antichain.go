package memory

import "slices"

// antichain finds a set of buffers that conflict pairwise and has the largest total size: the bytes
// that must exist at once, whatever the offsets. With before the strict partial order "i ends before j
// starts", it is
//
//	sum of sizes - maximum flow  in  source -> L_i (size_i),  R_j -> sink (size_j),  L_i -> R_j  if i before j
//
// (Dilworth's theorem with weights; the set is read off a minimum cut: L_i reached, R_i not).
// The flow is Dinic's. The middle edges, up to n*n of them, are never stored: they have no limit, so
// the rows of before serve as they are, and only edges that carry flow are kept, for the way back.
//
// If before is not transitive the set is still a clique, as before holds every pair that may share, but
// it need not be the heaviest.
func (c *core) antichain() []int32 {
	f := newFlow(c)
	for f.label() {
		clear(f.nextR)
		clear(f.nextBack)
		for i := range int32(c.n) {
			for f.supply[i] > 0 {
				sent := f.push(i, f.supply[i])
				if sent == 0 {
					break
				}
				f.supply[i] -= sent
			}
		}
	}
	var out []int32
	for i := range int32(c.n) {
		if f.levelL[i] >= 0 && f.levelR[i] < 0 {
			out = append(out, i)
		}
	}
	return out
}

// flow is the residual network.
type flow struct {
	c              *core
	supply, demand []int64    // what source -> L_i and R_i -> sink can still carry
	back           [][]onEdge // back[j]: the edges into R_j that carry flow
	levelL, levelR []int32    // distance from the source, -1: not reached
	open           []uint64   // R not reached yet
	at             [][]uint64 // at[d]: the R at the d-th layer that may still lead to the sink
	nextR          []int32    // first R that L_i has not tried at its layer
	nextBack       []int32    // first entry of back[j] not tried
	queue          []int32
}

type onEdge struct {
	from int32
	flow int64
}

func newFlow(c *core) *flow {
	return &flow{c: c, supply: slices.Clone(c.size), demand: slices.Clone(c.size),
		back: make([][]onEdge, c.n), levelL: make([]int32, c.n), levelR: make([]int32, c.n),
		open: make([]uint64, c.words), nextR: make([]int32, c.n), nextBack: make([]int32, c.n)}
}

// label sets the levels of one phase and reports whether the sink can be reached. Layer d is the L at
// distance d and the R that these reach; the search ends with the layer that reaches the sink.
func (f *flow) label() bool {
	c := f.c
	f.at = f.at[:0]
	f.queue = f.queue[:0]
	for i := range int32(c.n) {
		f.levelL[i], f.levelR[i] = -1, -1
		f.open[i>>6] |= 1 << (uint(i) & 63)
		if f.supply[i] > 0 {
			f.levelL[i] = 0
			f.queue = append(f.queue, i)
		}
	}
	done := false
	for d := int32(0); len(f.queue) > 0 && !done; d++ {
		layer := make([]uint64, c.words)
		for _, i := range f.queue {
			for w, word := range c.before[i] {
				word &= f.open[w]
				layer[w] |= word
				f.open[w] &^= word
			}
		}
		f.at = append(f.at, layer)
		f.queue = f.queue[:0]
		for _, j := range members(layer) {
			f.levelR[j] = d
			done = done || f.demand[j] > 0
			for _, e := range f.back[j] {
				if e.flow > 0 && f.levelL[e.from] < 0 {
					f.levelL[e.from] = d + 1
					f.queue = append(f.queue, e.from)
				}
			}
		}
	}
	return done
}

// push sends up to want from L_i along the levels and returns what arrived.
func (f *flow) push(i int32, want int64) int64 {
	d := f.levelL[i]
	if int(d) >= len(f.at) {
		return 0
	}
	layer, row := f.at[d], f.c.before[i]
	for w := int(f.nextR[i] >> 6); w < len(row); w++ {
		word := row[w] & layer[w]
		if w == int(f.nextR[i]>>6) {
			word &= ^uint64(0) << (uint(f.nextR[i]) & 63)
		}
		for ; word != 0; word &= word - 1 {
			j := int32(w*64 + trailing(word))
			f.nextR[i] = j
			if sent := f.drain(j, want); sent > 0 {
				f.carry(j, i, sent)
				return sent
			}
			layer[w] &^= 1 << (uint(j) & 63) // a dead end for the rest of the phase
		}
	}
	f.nextR[i] = int32(len(row) * 64)
	return 0
}

// drain sends up to want from R_j to the sink, or back to where R_j's flow comes from and on.
func (f *flow) drain(j int32, want int64) int64 {
	if f.demand[j] > 0 {
		sent := min(want, f.demand[j])
		f.demand[j] -= sent
		return sent
	}
	for ; int(f.nextBack[j]) < len(f.back[j]); f.nextBack[j]++ {
		e := &f.back[j][f.nextBack[j]]
		if e.flow == 0 || f.levelL[e.from] != f.levelR[j]+1 {
			continue
		}
		if sent := f.push(e.from, min(want, e.flow)); sent > 0 {
			f.back[j][f.nextBack[j]].flow -= sent
			return sent
		}
	}
	return 0
}

// carry adds flow to L_i -> R_j.
func (f *flow) carry(j, i int32, sent int64) {
	for k := range f.back[j] {
		if f.back[j][k].from == i {
			f.back[j][k].flow += sent
			return
		}
	}
	f.back[j] = append(f.back[j], onEdge{i, sent})
}
