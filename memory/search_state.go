package memory

// place puts k at o and pushes up what conflicts with it. It reports whether nothing was pushed out of
// the arena or off its fixed offset, and whether anything unplaced conflicts with k.
func (s *search) place(k int32, o int64) (ok, hat bool) {
	c := s.c
	s.min[k] = never
	s.loose[k>>6] &^= 1 << (uint(k) & 63)
	s.off[k] = o
	s.steps += int64(c.words + len(s.f.of[k]))
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
			if c.fixed[j] >= 0 || to+c.size[j] > s.tops[j] {
				return false, true
			}
			s.steps += int64(len(s.dirty))
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
	if s.min[s.witness[q]] <= floor {
		return
	}
	s.steps += int64(len(s.f.members[q]))
	best, witness := never, int32(0)
	for _, k := range s.f.members[q] {
		if o := s.min[k]; o < best {
			best, witness = o, k
			if o <= floor {
				break
			}
		}
	}
	s.secLog = append(s.secLog, secEntry{q, s.witness[q], floor, s.total[q]})
	s.witness[q] = witness
	s.floor[q] = max(floor, best)
}

// fits reports whether each clique's unplaced members can still be stacked, all above o.
func (s *search) fits(p part, o int64) bool {
	s.steps += int64(len(p.secs))
	for _, q := range p.secs {
		if t := s.total[q]; t > 0 && max(o, s.floor[q])+t > s.cap {
			return false
		}
	}
	return true
}

// undo takes k out again.
func (s *search) undo(k int32, minMark, secMark int) {
	s.min[k] = s.off[k]
	s.loose[k>>6] |= 1 << (uint(k) & 63)
	s.rewind(minMark, secMark)
	clear(s.dirty)
}

// rewind takes back what the logs hold past the marks.
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
