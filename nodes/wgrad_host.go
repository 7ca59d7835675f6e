package nodes

import "github.com/moegraph/moegraph/graph"

func (o wgrad) Host(c *graph.Call) func() error {
	if isWide(c.In[wgA].DType) {
		return wgradHost[float64](o, c, c.In[wgInto:], nil)
	}
	return wgradHost[float32](o, c, c.In[wgInto:], nil)
}

// wgradHost runs the node; into are the accumulators or addresses, s what block-scaled operands bring.
func wgradHost[F float](o wgrad, c *graph.Call, into []*graph.Tensor, s *wgradScales) func() error {
	a, b := c.In[wgA], c.In[wgB]
	hidden, tokens := a.Shape[0], codeWidth(a)
	if o.AMajorM {
		hidden, tokens = tokens, hidden
	}
	inter := codeWidth(b)
	if o.BMajorK {
		inter = b.Shape[0]
	}
	var over []*graph.Tensor
	if o.AMajorM {
		over = append(over, a)
	}
	if !o.BMajorK {
		over = append(over, b)
	}
	experts := c.In[wgOffsets].Shape[0]
	g := newGroups(c.In[wgOffsets], c.In[wgCounts], tokens, o.Align, 1, over...)
	g.blocks = s != nil
	out := &gradOutputs{o: o, experts: experts, size: hidden * inter, t: c.Out}
	if o.Accumulate || o.Ptrs {
		out.t = into
	}
	rows, cols := tiles(hidden, tileM), tiles(inter, tileN)
	loop := c.NewLoop(func(w *graph.Worker, lo, hi int) {
		for t := lo; t < hi; t++ {
			e, r, q := t/(rows*cols), t/cols%rows*tileM, t%cols*tileN
			dst, base := out.of(e)
			if dst == nil {
				continue
			}
			mt, nt := min(tileM, hidden-r), min(tileN, inter-q)
			k := g.real[e] - g.begin[e]
			if k == 0 && o.Accumulate {
				continue
			}
			acc := buffer[F](w, 0, mt*nt)
			alpha := F(1)
			if c.In[wgAlpha] != nil {
				alpha = scalar[F](c.In[wgAlpha], e)
			}
			ma, mb := o.operand(a, o.AMajorM, hidden, g.begin[e], g.end[e]), o.operandB(b, inter, g.begin[e], g.end[e])
			if s != nil {
				alpha *= F(s.global(e))
				ma.sf, mb.sf = s.view(0, e, g, o.AMajorM), s.view(1, e, g, !o.BMajorK)
			}
			ma, mb = ma.block(r, 0), mb.block(0, q)
			multiply(w, mt, nt, k, alpha, ma, mb, 0, acc, nt)
			for i := range mt {
				row, at := acc[i*nt:(i+1)*nt], base+(r+i)*inter+q
				if o.Accumulate {
					for j, old := range load[F](w, 1, dst, at, nt) {
						row[j] += old
					}
				}
				store(dst, at, row)
			}
		}
	})
	return func() error {
		g.read()
		if err := out.read(); err != nil {
			return err
		}
		if s != nil {
			s.read(g)
		}
		loop.Run(experts*rows*cols, 1)
		return nil
	}
}

// operand returns the (width,tokens) factor of the expert whose tokens are [begin,end).
func (o wgrad) operand(t *graph.Tensor, tokenMajor bool, width, begin, end int) matrix {
	switch {
	case tokenMajor: // stored (tokens,width)
		return matrix{t: t, at: begin * width, ld: width, trans: true}
	case o.Ragged:
		return matrix{t: t, at: width * begin, ld: end - begin}
	}
	return matrix{t: t, at: begin, ld: codeWidth(t)}
}

// operandB returns the (tokens,width) factor.
func (o wgrad) operandB(t *graph.Tensor, width, begin, end int) matrix {
	m := o.operand(t, !o.BMajorK, width, begin, end)
	m.trans = !m.trans
	return m
}

// gradOutputs finds expert e's gradient, wherever it is kept.
type gradOutputs struct {
	o       wgrad
	experts int
	size    int // elements an expert
	t       []*graph.Tensor
	ptrs    []graph.Tensor
}

func (g *gradOutputs) of(e int) (t *graph.Tensor, at int) {
	switch {
	case g.o.Ptrs:
		return &g.ptrs[e], 0
	case g.o.Discrete > 0:
		return g.t[e], 0
	}
	return g.t[0], e * g.size
}

func (g *gradOutputs) read() error {
	if !g.o.Ptrs {
		return nil
	}
	if g.ptrs == nil {
		g.ptrs = make([]graph.Tensor, g.experts)
	}
	for e, p := range graph.View[uint64](g.t[0].Data) {
		if p == 0 || p%16 != 0 {
			return graph.Misuse("wgrad_ptrs", p, "an address for expert %d that is not null and 16-byte aligned", e)
		}
		g.ptrs[e] = graph.Tensor{DType: g.o.DType, Data: bytesAt(p, g.o.DType.Bytes(g.size))}
	}
	return nil
}
