package graph

// Fuser is an Op that can take in the op that makes one of its operands, so that a value between them need
// not be stored, or not be rounded.
type Fuser interface {
	// Fuse looks at step s, whose Op this is. producer returns the step that makes operand i (nil for inputs
	// and variables) and whether s is the only reader of what it makes there. To fuse, it returns a step
	// with Op, In and Out, whose Out holds every value that s or the absorbed step makes and somebody else
	// may need, and perhaps Name, else it is that of s; and the absorbed step. To leave things alone, nil.
	Fuse(s *Step, producer func(operand int) (p *Step, sole bool)) (fused, absorbed *Step)
}

// fuse offers each step its producers. A fused step stands where the reader stood; that is refused where a
// step between needs what the absorbed one makes, or updates a variable that it reads.
func (c *compilation) fuse() error {
	if c.opt.NoFuse {
		return nil
	}
	for i := 0; i < len(c.steps); i++ {
		f, ok := c.steps[i].Op.(Fuser)
		if !ok {
			continue
		}
		s := c.steps[i]
		used := c.uses()
		fused, absorbed := f.Fuse(s, func(k int) (*Step, bool) {
			if k >= len(s.In) || s.In[k] == nil {
				return nil, false
			}
			j := c.maker(s.In[k])
			if j < 0 {
				return nil, false
			}
			return c.steps[j], used[s.In[k]] == 1
		})
		if fused == nil {
			continue
		}
		j := c.indexOf(absorbed)
		if j < 0 || !c.mayMove(j, i) {
			continue
		}
		if fused.Name == "" {
			fused.Name = s.Name
		}
		fused.nodeIDs = append(append([]int(nil), absorbed.nodeIDs...), s.nodeIDs...)
		c.prog.fused = append(c.prog.fused, absorbed.Name+" into "+s.Name)
		c.steps[i] = fused
		c.steps = append(c.steps[:j], c.steps[j+1:]...)
		i -= 2 // the fused step is looked at again
		if i < -1 {
			i = -1
		}
	}
	return nil
}

func (c *compilation) maker(v *Value) int {
	for j, s := range c.steps {
		if s.makes(v) {
			return j
		}
	}
	return -1
}

func (c *compilation) indexOf(s *Step) int {
	for j, t := range c.steps {
		if t == s {
			return j
		}
	}
	return -1
}

// mayMove says whether step j can run at the place of the later step i.
func (c *compilation) mayMove(j, i int) bool {
	moved := c.steps[j]
	reads := map[*variable]bool{}
	for _, v := range moved.In {
		if v != nil && v.variable != nil {
			reads[v.variable] = true
		}
	}
	for _, s := range c.steps[j+1 : i] {
		for _, v := range s.reads() {
			if moved.makes(v) {
				return false
			}
		}
		ops := s.Op.Operands()
		for k, v := range s.In {
			if v != nil && v.variable != nil && ops[k].Update && reads[v.variable] {
				return false
			}
		}
	}
	return true
}
