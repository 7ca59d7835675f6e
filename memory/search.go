package memory

import (
	"math"
	"sync/atomic"
)

// outcome of a search at one capacity.
type outcome int

const (
	spent      outcome = iota // the budget is used up, or another order has decided
	impossible                // no plan fits: a proof
	found
)

// never is above every offset.
const never = int64(math.MaxInt64)

// search decides whether a core fits a capacity of bytes, by depth-first search over canonical plans.
//
// Every plan can be pushed down until each buffer rests on 0 or on a conflicting buffer; its buffers
// are then placed in ascending (offset, rank), each exactly at the lowest offset that the placed ones
// allow. What cannot hold a plan any more is cut by: the canonical order; dominance (a buffer that
// would fit wholly below could be moved down); the floor of each clique (nothing below it can be used
// any more) under the stack of its unplaced members; hatless buffers (which cannot be the cause of a
// failure); and a split into the components of what is unplaced.
type search struct {
	c     *core
	f     *family
	order order
	tops  []int64 // units: where each buffer must end
	cap   int64   // units: the highest of tops

	off     []int64 // of the placed buffers
	min     []int64 // lowest offset that the placed buffers allow; of a placed one: never
	rank    []int32
	floor   []int64 // of each clique: nothing unplaced can start below
	total   []int64 // of each clique: size of the unplaced members
	witness []int32 // a member with min == floor, when it was last looked up

	loose   []uint64   // unplaced buffers, as a set
	dirty   []uint64   // cliques to look at again, as a set
	ofBits  [][]uint64 // the cliques of each buffer, as sets
	minLog  []logEntry
	secLog  []secEntry
	cands   []int32  // candidates of all open nodes, as a stack
	visited []uint64 // of flood
	queue   []int32  // of flood

	nodes, limit     int   // placements tried, and how many may be
	steps, stepLimit int64 // elementary steps, likewise: nodes of large problems cost more
	cancel           func() bool
}

// logEntry undoes a change of min.
type logEntry struct {
	k   int32
	old int64
}

// secEntry undoes a change of a clique.
type secEntry struct {
	s, witness   int32
	floor, total int64
}

// part is a connected set of unplaced buffers and the cliques that hold any of them.
type part struct {
	bufs, secs []int32
}

// newSearch prepares a search; c and f are only read, so that searches may share them.
func newSearch(c *core, f *family, o order, capacity int64) *search {
	s := &search{c: c, f: f, order: o,
		tops: make([]int64, c.n), off: make([]int64, c.n), min: make([]int64, c.n), rank: make([]int32, c.n),
		floor: make([]int64, len(f.members)), total: make([]int64, len(f.members)),
		witness: make([]int32, len(f.members)), dirty: make([]uint64, (len(f.members)+63)/64),
		visited: make([]uint64, c.words), loose: make([]uint64, c.words),
	}
	for k := range int32(c.n) {
		s.min[k] = max(c.fixed[k], 0)
		s.tops[k] = (capacity + c.spare[k]) / c.unit
		s.cap = max(s.cap, s.tops[k])
		s.loose[k>>6] |= 1 << (uint(k) & 63)
		set := make([]uint64, len(s.dirty))
		for _, q := range f.of[k] {
			set[q>>6] |= 1 << (uint(q) & 63)
		}
		s.ofBits = append(s.ofBits, set)
	}
	for q, clique := range f.members {
		s.total[q] = c.weight(clique)
		s.witness[q] = clique[0]
		for _, k := range clique {
			if s.min[k] < s.min[s.witness[q]] {
				s.witness[q] = k
			}
		}
		s.floor[q] = s.min[s.witness[q]]
	}
	return s
}

// run searches with a budget of nodes. Offsets are in s.off when it returns found.
func (s *search) run(limit int, steps int64, stop *atomic.Int32, self int32) outcome {
	s.limit, s.stepLimit = limit, steps
	s.cancel = func() bool { return stop != nil && stop.Load() < self }
	root := part{}
	for k := range int32(s.c.n) {
		root.bufs = append(root.bufs, k)
		if s.min[k]+s.c.size[k] > s.tops[k] {
			return impossible
		}
	}
	for q := range int32(len(s.f.members)) {
		root.secs = append(root.secs, q)
	}
	if !s.fits(root, 0) {
		return impossible
	}
	s.order.assign(s, root)
	return s.solve(root, 0, -1)
}

// solve places the unplaced buffers of p, none below (lastOff, lastRank). On found they stay placed, on
// impossible everything is as before.
func (s *search) solve(p part, lastOff int64, lastRank int32) outcome {
	s.steps += int64(len(p.bufs) + len(p.secs))
	reach := never // lowest top of any candidate
	for _, k := range p.bufs {
		if o := s.min[k]; o != never {
			reach = min(reach, o+s.c.size[k])
		}
	}
	if reach == never {
		return found
	}
	for _, q := range p.secs { // an offset above leaves some stack no room
		if t := s.total[q]; t > 0 && s.cap-t+1 < reach {
			reach = s.cap - t + 1
		}
	}
	base := len(s.cands)
	for _, k := range p.bufs {
		if o := s.min[k]; o < reach && (o > lastOff || o == lastOff && s.rank[k] > lastRank) {
			s.cands = append(s.cands, k)
			i := len(s.cands) - 1
			for ; i > base && s.less(k, s.cands[i-1]); i-- {
				s.cands[i] = s.cands[i-1]
			}
			s.cands[i] = k
		}
	}
	end := len(s.cands)
	result := impossible
	for i := base; i < end; i++ {
		k := s.cands[i]
		o := s.min[k]
		s.nodes++
		if s.nodes > s.limit || s.steps > s.stepLimit || s.nodes&255 == 0 && s.cancel() {
			s.cands = s.cands[:base]
			return spent
		}
		minMark, secMark := len(s.minLog), len(s.secLog)
		ok, hat := s.place(k, o)
		if ok && s.fits(p, o) {
			switch r := s.descend(p, k, o, hat); r {
			case found, spent:
				if r == spent {
					s.undo(k, minMark, secMark)
				}
				s.cands = s.cands[:base]
				return r
			}
		}
		s.undo(k, minMark, secMark)
		if !hat {
			break
		}
	}
	s.cands = s.cands[:base]
	return result
}

func (s *search) less(a, b int32) bool {
	return s.min[a] < s.min[b] || s.min[a] == s.min[b] && s.rank[a] < s.rank[b]
}

// descend goes on after k was placed at o: with the part as it is, or with each of its pieces, which
// share nothing any more and are searched on their own, with ranks of their own.
func (s *search) descend(p part, k int32, o int64, hat bool) outcome {
	if !hat {
		return s.solve(p, o, s.rank[k])
	}
	pieces := s.split(p, k)
	if pieces == nil {
		return s.solve(p, o, s.rank[k])
	}
	old := make([]int32, len(p.bufs))
	for i, b := range p.bufs {
		old[i] = s.rank[b]
	}
	placedMin, placedSec := len(s.minLog), len(s.secLog)
	result := found
	for _, piece := range pieces {
		s.order.assign(s, piece)
		if result = s.solve(piece, 0, -1); result != found {
			break
		}
	}
	if result != found {
		// Pieces that were solved stay placed until here; what they changed is in the logs.
		for _, piece := range pieces {
			for _, b := range piece.bufs {
				if s.min[b] == never {
					s.min[b] = s.off[b]
					s.loose[b>>6] |= 1 << (uint(b) & 63)
				}
			}
		}
		s.rewind(placedMin, placedSec)
		for i, b := range p.bufs {
			s.rank[b] = old[i]
		}
	}
	return result
}
