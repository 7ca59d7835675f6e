package memory

import (
	"slices"
	"sync/atomic"
)

// outcome of a search at one capacity.
type outcome int

const (
	spent      outcome = iota // the node budget is used up, or someone else was faster
	impossible                // no plan fits: a proof
	found
)

// search decides whether a core fits a capacity, by depth-first search over canonical plans.
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
	cap   int64 // units
	spare int64 // units a stack may exceed cap by, as its top need not be rounded up: 0 or 1... see newSearch

	off, min []int64 // offset, or the lowest one that the placed buffers allow
	placed   []bool
	rank     []int32
	floor    []int64 // of each clique: nothing unplaced can start below
	total    []int64 // of each clique: size of the unplaced members
	witness  []int32 // a member with min == floor, when it was last looked up

	dirty   []uint64 // cliques to look at again, as a set
	ofBits  [][]uint64
	minLog  []logEntry
	secLog  []secEntry
	cands   []int32
	visited []uint64
	queue   []int32
	loose   []uint64 // unplaced buffers, as a set

	nodes, limit, calls int
	cancel              func() bool
}

type logEntry struct {
	k   int32
	old int64
}

type secEntry struct {
	s, witness   int32
	floor, total int64
}

// part is a connected set of unplaced buffers and the cliques that hold any of them.
type part struct {
	bufs, secs []int32
}

func newSearch(c *core, f *family, o order, capacity int64) *search {
	s := &search{c: c, f: f, order: o, cap: capacity,
		off: make([]int64, c.n), min: make([]int64, c.n), placed: make([]bool, c.n), rank: make([]int32, c.n),
		floor: make([]int64, len(f.members)), total: make([]int64, len(f.members)),
		witness: make([]int32, len(f.members)), dirty: make([]uint64, (len(f.members)+63)/64),
		visited: make([]uint64, c.words), loose: make([]uint64, c.words),
	}
	for k := range int32(c.n) {
		s.min[k] = max(c.fixed[k], 0)
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
func (s *search) run(limit int, stop *atomic.Int32, self int32) outcome {
	s.limit = limit
	s.cancel = func() bool { return stop != nil && stop.Load() < self }
	root := part{}
	for k := range int32(s.c.n) {
		root.bufs = append(root.bufs, k)
		if s.min[k]+s.c.size[k] > s.cap {
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

func (s *search) solve(p part, lastOff int64, lastRank int32) outcome {
	s.calls++
	reach := int64(-1) // lowest top of any candidate
	for _, k := range p.bufs {
		if !s.placed[k] {
			if top := s.min[k] + s.c.size[k]; reach < 0 || top < reach {
				reach = top
			}
		}
	}
	if reach < 0 {
		return found
	}
	for _, q := range p.secs { // an offset above leaves some stack no room
		if t := s.total[q]; t > 0 && s.cap-t+1 < reach {
			reach = s.cap - t + 1
		}
	}
	base := len(s.cands)
	for _, k := range p.bufs {
		if o := s.min[k]; !s.placed[k] && o < reach && (o > lastOff || o == lastOff && s.rank[k] > lastRank) {
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
		if s.nodes > s.limit || s.nodes&255 == 0 && s.cancel() {
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

// place puts k at o and pushes up what conflicts with it. It reports whether nothing was pushed out of
// the arena or off its fixed offset, and whether anything unplaced conflicts with k.
func (s *search) place(k int32, o int64) (ok, hat bool) {
	c := s.c
	s.placed[k] = true
	s.loose[k>>6] &^= 1 << (uint(k) & 63)
	s.off[k] = o
	top := o + c.size[k]
	for _, q := range s.f.of[k] {
		s.secLog = append(s.secLog, secEntry{q, s.witness[q], s.floor[q], s.total[q]})
		s.total[q] -= c.size[k]
		s.floor[q] = top
	}
	ok = true
	for w, word := range c.rows[k] {
		word &= s.loose[w]
		for ; word != 0; word &= word - 1 {
			j := int32(w*64 + trailing(word))
			hat = true
			if s.min[j] >= top {
				continue
			}
			to := c.alignUp(j, top)
			if c.fixed[j] >= 0 || to+c.size[j] > s.cap {
				return false, true
			}
			s.minLog = append(s.minLog, logEntry{j, s.min[j]})
			s.min[j] = to
			for w, set := range s.ofBits[j] {
				s.dirty[w] |= set
			}
		}
	}
	for _, q := range s.f.of[k] {
		s.dirty[q>>6] |= 1 << (uint(q) & 63)
	}
	for w, word := range s.dirty {
		for ; word != 0; word &= word - 1 {
			s.raise(int32(w*64 + trailing(word)))
		}
	}
	clear(s.dirty)
	return ok, hat
}

// raise lifts the floor of a clique to the lowest offset left to its unplaced members.
func (s *search) raise(q int32) {
	if s.total[q] == 0 {
		return
	}
	floor := s.floor[q]
	if w := s.witness[q]; !s.placed[w] && s.min[w] <= floor {
		return
	}
	best := int32(-1)
	for _, k := range s.f.members[q] {
		if !s.placed[k] && (best < 0 || s.min[k] < s.min[best]) {
			best = k
			if s.min[k] <= floor {
				break
			}
		}
	}
	s.secLog = append(s.secLog, secEntry{q, s.witness[q], floor, s.total[q]})
	s.witness[q] = best
	s.floor[q] = max(floor, s.min[best])
}

// fits reports whether each clique's unplaced members can still be stacked, all above o.
func (s *search) fits(p part, o int64) bool {
	for _, q := range p.secs {
		if t := s.total[q]; t > 0 && max(o, s.floor[q])+t > s.cap {
			return false
		}
	}
	return true
}

func (s *search) undo(k int32, minMark, secMark int) {
	s.placed[k] = false
	s.loose[k>>6] |= 1 << (uint(k) & 63)
	for i := len(s.minLog) - 1; i >= minMark; i-- {
		s.min[s.minLog[i].k] = s.minLog[i].old
	}
	for i := len(s.secLog) - 1; i >= secMark; i-- {
		e := s.secLog[i]
		s.witness[e.s], s.floor[e.s], s.total[e.s] = e.witness, e.floor, e.total
	}
	s.minLog, s.secLog = s.minLog[:minMark], s.secLog[:secMark]
	clear(s.dirty)
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
				if s.placed[b] {
					s.placed[b] = false
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

func (s *search) rewind(minMark, secMark int) {
	for i := len(s.minLog) - 1; i >= minMark; i-- {
		s.min[s.minLog[i].k] = s.minLog[i].old
	}
	for i := len(s.secLog) - 1; i >= secMark; i-- {
		e := s.secLog[i]
		s.witness[e.s], s.floor[e.s], s.total[e.s] = e.witness, e.floor, e.total
	}
	s.minLog, s.secLog = s.minLog[:minMark], s.secLog[:secMark]
}

// split returns the components of the unplaced buffers of p after k was placed, nil if there is one.
func (s *search) split(p part, k int32) []part {
	c := s.c
	clear(s.visited)
	left := 0 // unplaced neighbours of k: each component holds one, as p was connected
	for w, word := range c.rows[k] {
		for word &= s.loose[w]; word != 0; word &= word - 1 {
			left++
		}
	}
	start := int32(-1)
	for _, j := range c.adj[k] {
		if !s.placed[j] {
			start = j
			break
		}
	}
	if n := s.flood(start, k, left); n == left {
		return nil
	}
	var pieces []part
	clear(s.visited)
	for _, j := range c.adj[k] {
		if s.placed[j] || has(s.visited, j) {
			continue
		}
		s.flood(j, -1, 0)
		pieces = append(pieces, part{bufs: slices.Clone(s.queue)})
	}
	if len(pieces) == 1 {
		return nil
	}
	for i := range pieces {
		slices.Sort(pieces[i].bufs)
		for _, q := range p.secs {
			if s.total[q] == 0 {
				continue
			}
			for _, b := range s.f.members[q] {
				if !s.placed[b] {
					if _, in := slices.BinarySearch(pieces[i].bufs, b); in {
						pieces[i].secs = append(pieces[i].secs, q)
					}
					break
				}
			}
		}
	}
	return pieces
}

// flood visits what is connected with start, into queue. With k >= 0 it stops once it has seen all
// left unplaced neighbours of k, and returns how many it saw.
func (s *search) flood(start, k int32, left int) int {
	c := s.c
	s.queue = append(s.queue[:0], start)
	s.visited[start>>6] |= 1 << (uint(start) & 63)
	near := 0
	if k >= 0 && has(c.rows[k], start) {
		near = 1
	}
	for i := 0; i < len(s.queue); i++ {
		if k >= 0 && near == left {
			return near
		}
		row := c.rows[s.queue[i]]
		for w, word := range row {
			word &= s.loose[w] &^ s.visited[w]
			s.visited[w] |= word
			for ; word != 0; word &= word - 1 {
				j := int32(w*64 + trailing(word))
				s.queue = append(s.queue, j)
				if k >= 0 && has(c.rows[k], j) {
					near++
				}
			}
		}
	}
	return near
}
