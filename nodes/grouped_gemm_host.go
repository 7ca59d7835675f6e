package nodes

import "github.com/moegraph/moegraph/graph"

func (o groupedGEMM) Host(c *graph.Call) func() error {
	if isWide(c.In[gemmA].DType) {
		return groupedGEMMHost[float64](o, c)
	}
	return groupedGEMMHost[float32](o, c)
}

func groupedGEMMHost[F float](o groupedGEMM, c *graph.Call) func() error {
	d, cc := c.Out[0], c.Out[1]
	prob, bias := c.In[gemmProb], c.In[gemmBias]
	p := newGroupedProduct[F](c, o.Weights, o.Align, width(d, cc))
	return p.run(func(w *graph.Worker, e, row, col int, acc []F) {
		at := row*p.n + col
		if bias != nil {
			addScaled(acc, load[F](w, 1, bias, e*p.n+col, len(acc)), rowProb[F](prob, row))
		}
		if cc != nil {
			store(cc, at, acc)
		}
		if d == nil {
			return
		}
		if bias == nil && prob != nil {
			f := scalar[F](prob, row)
			for i := range acc {
				acc[i] *= f
			}
		}
		store(d, at, acc)
	}, d, cc)
}

// width returns the row width of the first output that exists.
func width(outs ...*graph.Tensor) int {
	for _, t := range outs {
		if t != nil {
			return t.Shape[1]
		}
	}
	return 0
}

// rowProb returns prob[row], 1 where there is no prob.
func rowProb[F float](prob *graph.Tensor, row int) F {
	if prob == nil {
		return 1
	}
	return scalar[F](prob, row)
}

// addScaled adds f * x to y, each product rounded on its own.
func addScaled[F float](y, x []F, f F) {
	for i, v := range x {
		y[i] += F(v * f)
	}
}

// groupedProduct runs the matrix products of a grouped GEMM tile by tile and hands each finished row piece of
// alpha * A B^T to an epilogue.
type groupedProduct[F float] struct {
	c      *graph.Call
	groups *groups
	b      *hostWeights
	a      matrix
	alpha  *graph.Tensor
	n, k   int
	cols   int             // tiles across
	global []*graph.Tensor // (E,), nil where absent: alpha is multiplied by them
	sfa    *graph.Tensor   // of a block-scaled A, whose data may be another slice at each run
}

func newGroupedProduct[F float](c *graph.Call, k weightKind, align, n int) *groupedProduct[F] {
	a := c.In[gemmA]
	p := &groupedProduct[F]{c: c, n: n, k: a.Shape[1], alpha: c.In[gemmAlpha], a: matrix{t: a, ld: a.Shape[1]}, cols: tiles(n, tileN)}
	p.groups = newGroups(c.In[gemmOffsets], c.In[gemmCounts], a.Shape[0], align, tileM, a, c.In[gemmProb])
	p.b = newHostWeights(k, c.In[gemmB:], c.In[gemmOffsets].Shape[0], n, p.k)
	return p
}

// run returns the node's function. The epilogue gets a row, its first column and the float32 sums, which
// it may change. Padding rows of the outputs, (M,n) each, are set to zero.
func (p *groupedProduct[F]) run(epilogue func(w *graph.Worker, e, row, col int, acc []F), outs ...*graph.Tensor) func() error {
	loop := p.c.NewLoop(func(w *graph.Worker, lo, hi int) {
		for t := lo; t < hi; t++ {
			e, first, mid, last := p.groups.at(t / p.cols)
			col := t % p.cols * tileN
			nt := min(tileN, p.n-col)
			acc := p.multiply(w, 0, e, first, mid, p.b.matrix(e, col), nt)
			for r := first; r < mid; r++ {
				epilogue(w, e, r, col, acc[(r-first)*nt:(r-first+1)*nt])
			}
			zeroRows(outs, p.n, mid, last, col, nt)
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

func (p *groupedProduct[F]) read() error {
	p.groups.read()
	if p.sfa != nil {
		p.a.sf.data = p.sfa.Data
	}
	return p.b.read()
}

// multiply computes alpha[e] times rows [first,mid) of A times nt columns of b, into the worker's buffer slot.
func (p *groupedProduct[F]) multiply(w *graph.Worker, slot, e, first, mid int, b matrix, nt int) []F {
	acc := buffer[F](w, slot, (mid-first)*nt)
	alpha := F(1)
	if p.alpha != nil {
		alpha = scalar[F](p.alpha, e)
	}
	for _, t := range p.global {
		if t != nil {
			alpha *= scalar[F](t, e)
		}
	}
	if mid > first {
		multiply(w, mid-first, nt, p.k, alpha, p.a.block(first, 0), b, 0, acc, nt)
	}
	return acc
}

// zeroRows clears columns [col, col+nt) of rows [lo,hi) of matrices with n columns.
func zeroRows(outs []*graph.Tensor, n, lo, hi, col, nt int) {
	for _, t := range outs {
		if t == nil {
			continue
		}
		for r := lo; r < hi; r++ {
			zero(t, r*n+col, nt)
		}
	}
}
