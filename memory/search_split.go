package memory

import "slices"

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
		if s.min[j] != never {
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
		if s.min[j] == never || has(s.visited, j) {
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
				if s.min[b] != never {
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
