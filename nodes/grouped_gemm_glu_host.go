package nodes

import "github.com/moegraph/moegraph/graph"

func (o groupedGEMMGLU) Host(c *graph.Call) func() error {
	if isWide(c.In[gemmA].DType) {
		return groupedGEMMGLUHost[float64](o, c)
	}
	return groupedGEMMGLUHost[float32](o, c)
}

// groupedGEMMGLUHost computes tiles of tileN columns of C: half gate, half up, which with LayoutConcat are two pieces of
// the weight.
func groupedGEMMGLUHost[F float](o groupedGEMMGLU, c *graph.Call) func() error {
	d, cc := c.Out[0], c.Out[1]
	n := 0
	if cc != nil {
		n = cc.Shape[1]
	} else if d != nil {
		n = 2 * d.Shape[1]
	}
	prob, bias := c.In[gemmProb], c.In[gemmBias]
	p := newGroupedProduct[F](c, o.Weights, o.Align, n)
	loop := c.NewLoop(func(w *graph.Worker, lo, hi int) {
		for t := lo; t < hi; t++ {
			e, first, mid, last := p.groups.at(t / p.cols)
			col := t % p.cols * tileN // of C
			nt := min(tileN, n-col)
			acc := gluProduct(w, p, o.Layout, e, first, mid, col, nt)
			for r := first; r < mid; r++ {
				row := buffer[F](w, 2, nt)
				interleave(o.Layout, row, acc[(r-first)*nt:(r-first+1)*nt])
				if bias != nil {
					addBias(w, row, bias, o.Layout, e*n, n, col)
				}
				if cc != nil {
					store(cc, r*n+col, row)
				}
				if d != nil {
					out := target[F](w, 4, d, (r*n+col)/2, nt/2)
					gluRow(&o.Act, out, row, rowProb[F](prob, r))
					store(d, (r*n+col)/2, out)
				}
			}
			zeroRows([]*graph.Tensor{cc}, n, mid, last, col, nt)
			zeroRows([]*graph.Tensor{d}, n/2, mid, last, col/2, nt/2)
		}
	})
	return func() error {
		if err := p.read(); err != nil {
			return err
		}
		loop.Run(p.groups.tiles()*p.cols, 1)
		return nil
	}
}

// gluProduct computes columns [col, col+nt) of C, each row with its columns in the weight's order: all gate and
// then all up with LayoutConcat, alternating with LayoutPairs.
func gluProduct[F float](w *graph.Worker, p *groupedProduct[F], l Layout, e, first, mid, col, nt int) []F {
	if l != LayoutConcat {
		return p.multiply(w, 0, e, first, mid, p.b.matrix(e, col), nt)
	}
	rows, half := mid-first, nt/2
	gate := p.multiply(w, 0, e, first, mid, p.b.matrix(e, col/2), half)
	up := p.multiply(w, 1, e, first, mid, p.b.matrix(e, p.n/2+col/2), half)
	acc := buffer[F](w, 3, rows*nt)
	for r := range rows {
		copy(acc[r*nt:], gate[r*half:(r+1)*half])
		copy(acc[r*nt+half:], up[r*half:(r+1)*half])
	}
	return acc
}

// interleave writes a row piece from a weight's order into blocks of 32.
func interleave[F float](l Layout, dst, src []F) {
	if l == LayoutInterleaved32 {
		copy(dst, src)
		return
	}
	half := len(src) / 2
	for j := range half {
		dst[LayoutInterleaved32.gate(j, half)] = src[l.gate(j, half)]
		dst[LayoutInterleaved32.up(j, half)] = src[l.up(j, half)]
	}
}

// addBias adds the bias of C's columns [col, col+len(row)); the bias of n elements begins at base, in order l.
func addBias[F float](w *graph.Worker, row []F, bias *graph.Tensor, l Layout, base, n, col int) {
	nt := len(row)
	if l == LayoutInterleaved32 {
		addScaled(row, load[F](w, 1, bias, base+col, nt), 1)
		return
	}
	var gate, up []F
	if l == LayoutConcat {
		gate, up = load[F](w, 1, bias, base+col/2, nt/2), load[F](w, 5, bias, base+n/2+col/2, nt/2)
		for j := range nt / 2 {
			row[LayoutInterleaved32.gate(j, nt/2)] += gate[j]
			row[LayoutInterleaved32.up(j, nt/2)] += up[j]
		}
		return
	}
	pairs := load[F](w, 1, bias, base+col, nt)
	for j := range nt / 2 {
		row[LayoutInterleaved32.gate(j, nt/2)] += pairs[2*j]
		row[LayoutInterleaved32.up(j, nt/2)] += pairs[2*j+1]
	}
}
