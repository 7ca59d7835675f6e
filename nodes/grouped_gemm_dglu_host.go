package nodes

import (
	"unsafe"

	"github.com/moegraph/moegraph/graph"
)

// dgluTile is the number of rows that one goroutine takes through all columns, since dprob sums over them.
const dgluTile = 64

func (o gluGrad) Host(c *graph.Call) func() error {
	if isWide(c.In[gradC].DType) {
		return gluGradHost[float64](o, c)
	}
	return gluGradHost[float32](o, c)
}

func gluGradHost[F float](o gluGrad, c *graph.Call) func() error {
	dd := c.In[gradDD]
	n := dd.Shape[1]
	x := newBackward[F](c, &o.Act, o.Layout)
	block := func(w *graph.Worker, e, first, mid, col, nt int) []F {
		acc := buffer[F](w, 0, (mid-first)*nt)
		for r := first; r < mid; r++ {
			loadInto(acc[(r-first)*nt:(r-first+1)*nt], dd, r*n+col)
		}
		return acc
	}
	if offsets := c.In[gradOffsets]; offsets != nil {
		g := newGroups(offsets, c.In[gradCounts], dd.Shape[0], o.Align, dgluTile, dd, c.In[gradC], c.In[gradProb])
		return x.run(g, func() error { g.read(); return nil }, block)
	}
	loop := c.NewLoop(func(w *graph.Worker, lo, hi int) { x.rows(w, 0, 0, lo, hi, hi, block) })
	return func() error {
		loop.Run(min(dd.Rows(), c.In[gradC].Rows()), dgluTile)
		return nil
	}
}

func (o groupedGEMMdGLU) Host(c *graph.Call) func() error {
	if isWide(c.In[gradDD].DType) {
		return groupedGEMMdGLUHost[float64](o, c)
	}
	return groupedGEMMdGLUHost[float32](o, c)
}

func groupedGEMMdGLUHost[F float](o groupedGEMMdGLU, c *graph.Call) func() error {
	a, offsets := c.In[gradDD], c.In[gradOffsets]
	n := c.In[gradC].Shape[1] / 2
	p := &groupedProduct[F]{n: n, k: a.Shape[1], alpha: c.In[dgluAlpha], a: matrix{t: a, ld: a.Shape[1]}}
	p.b = newHostWeights(o.Weights, c.In[dgluB:], offsets.Shape[0], n, p.k)
	p.groups = newGroups(offsets, c.In[gradCounts], a.Shape[0], o.Align, dgluTile, a, c.In[gradC], c.In[gradProb])
	x := newBackward[F](c, &o.Act, o.Layout)
	return x.run(p.groups, p.read, func(w *graph.Worker, e, first, mid, col, nt int) []F {
		return p.multiply(w, 0, e, first, mid, p.b.matrix(e, col), nt)
	})
}

// backwardGLU is the epilogue that gluGrad and groupedGEMMdGLU share: it takes blocks of G and makes every output.
type backwardGLU[F float] struct {
	c      *graph.Call
	act    *act
	layout Layout
	n      int // columns of gate, and of up
	prob   *graph.Tensor
	beta   *graph.Tensor
	quant  *scaledOut // of a quantized dC, nil otherwise
	sums   []F        // scratch: for each row tile the sum of dC's columns, in blocks of 32, then max |dgate| and |dup|
}

func newBackward[F float](c *graph.Call, a *act, l Layout) *backwardGLU[F] {
	x := &backwardGLU[F]{c: c, act: a, layout: l, n: c.In[gradC].Shape[1] / 2, prob: c.In[gradProb], beta: c.In[gradBeta]}
	x.sums = graph.View[F](c.Scratch)
	return x
}

// dgluScratch returns the bytes of backwardGLU's sums.
func dgluScratch(n *graph.Node) int64 {
	offsets, c := n.In(gradOffsets), n.In(gradC)
	if n.Out(dgluDBias) == nil && n.Out(dgluAmax) == nil {
		return 0
	}
	tiles := tiles(c.Dim(0), dgluTile) + offsets.Dim(0)
	var f32 float32
	size := int(unsafe.Sizeof(f32))
	if isWide(c.DType()) {
		size *= 2
	}
	return int64(tiles) * int64(c.Dim(1)+2) * int64(size)
}

// Scratch implements graph.Scratcher.
func (o gluGrad) Scratch(n *graph.Node) int64 { return dgluScratch(n) }

// Scratch implements graph.Scratcher.
func (o groupedGEMMdGLU) Scratch(n *graph.Node) int64 { return dgluScratch(n) }

// block makes rows [first,mid) and columns [col, col+nt) of G for expert e.
type blockFunc[F float] func(w *graph.Worker, e, first, mid, col, nt int) []F

func (x *backwardGLU[F]) run(g *groups, read func() error, block blockFunc[F]) func() error {
	out := x.c.Out
	loop := x.c.NewLoop(func(w *graph.Worker, lo, hi int) {
		for t := lo; t < hi; t++ {
			e, first, mid, last := g.at(t)
			x.rows(w, t, e, first, mid, last, block)
			for i, o := range []*graph.Tensor{out[dgluDC], out[dgluDProb], out[dgluAct]} {
				if o != nil && (i > 0 || x.quant == nil) {
					zero(o, mid*o.Width(), (last-mid)*o.Width())
				}
			}
		}
	})
	join := x.c.NewLoop(func(w *graph.Worker, lo, hi int) {
		for e := lo; e < hi; e++ {
			x.join(w, g, e)
		}
	})
	return func() error {
		if err := read(); err != nil {
			return err
		}
		if x.quant != nil {
			x.quant.begin()
		}
		loop.Run(g.tiles(), 1)
		if len(x.sums) > 0 {
			join.Run(len(g.begin), 1)
		}
		return nil
	}
}

// rows makes the outputs of rows [first,mid), row tile t of expert e, and of a quantized dC those up to last.
func (x *backwardGLU[F]) rows(w *graph.Worker, t, e, first, mid, last int, block blockFunc[F]) {
	var sums []F
	if len(x.sums) > 0 {
		sums = x.sums[t*(2*x.n+2) : (t+1)*(2*x.n+2)]
		clear(sums)
	}
	beta := F(1)
	if x.beta != nil {
		beta = scalar[F](x.beta, e)
	}
	dprob := buffer[F](w, 1, mid-first)
	clear(dprob)
	var whole []F // dC in the output's layout, for what quantizes it
	if x.quant != nil {
		whole = buffer[F](w, 5, (last-first)*2*x.n)
		clear(whole[(mid-first)*2*x.n:])
	}
	for col := 0; col < x.n && mid > first; col += tileN {
		nt := min(tileN, x.n-col)
		acc := block(w, e, first, mid, col, nt)
		for r := first; r < mid; r++ {
			dprob[r-first] += x.piece(w, r, col, acc[(r-first)*nt:(r-first+1)*nt], beta, sums)
			if x.quant != nil {
				x.keepDC(w, whole[(r-first)*2*x.n:(r-first+1)*2*x.n], col, nt)
			}
		}
	}
	if x.quant != nil {
		x.quant.tile(w, t, e, first, mid, last, 0, 2*x.n, same[float32](whole))
	}
	if out := x.c.Out[dgluDProb]; out != nil {
		store(out, first, dprob)
	}
}

// piece turns row m, columns [col, col+len(g)) of G into dC and the activation, adds to sums, and returns the
// columns' part of dprob.
func (x *backwardGLU[F]) piece(w *graph.Worker, m, col int, g []F, beta F, sums []F) (dprob F) {
	nt := len(g)
	c := buffer[F](w, 2, 2*nt)
	loadInto(c, x.c.In[gradC], m*2*x.n+2*col)
	prob := rowProb[F](x.prob, m)
	var value []F
	if out := x.c.Out[dgluAct]; out != nil {
		value = target[F](w, 3, out, m*x.n+col, nt)
	}
	for b := 0; b < nt; b += gluBlock {
		gate, up, grad := c[2*b:2*b+gluBlock], c[2*b+gluBlock:2*b+2*gluBlock], g[b:b+gluBlock]
		var part F
		for j, gj := range grad {
			v, dGate, dUp := backward(x.act, F(beta*gate[j]), F(beta*up[j]))
			part += v * gj
			gate[j], up[j] = prob*gj*dGate, prob*gj*dUp
			if value != nil {
				value[b+j] = prob * v
			}
		}
		dprob += part
	}
	if value != nil {
		store(x.c.Out[dgluAct], m*x.n+col, value)
	}
	if sums != nil {
		x.collect(c, sums, 2*col)
	}
	if x.c.Out[dgluDC] != nil && x.quant == nil {
		x.storeDC(w, m, col, c)
	}
	return dprob
}

// collect adds a piece of dC to the tile's sums and maxima.
func (x *backwardGLU[F]) collect(c, sums []F, at int) {
	top := sums[2*x.n:]
	for b := 0; b < len(c); b += 2 * gluBlock {
		for j := range gluBlock {
			top[0] = max(top[0], abs(c[b+j]))
			top[1] = max(top[1], abs(c[b+gluBlock+j]))
		}
	}
	for j, v := range c {
		sums[at+j] += v
	}
}

// keepDC moves the piece of dC that piece has left in its buffer into a whole row in the output's layout.
func (x *backwardGLU[F]) keepDC(w *graph.Worker, row []F, col, nt int) {
	c := buffer[F](w, 2, 2*nt)
	if x.layout != LayoutConcat {
		relayout(x.layout, row[2*col:2*col+2*nt], c)
		return
	}
	moved := buffer[F](w, 4, 2*nt)
	relayout(x.layout, moved, c)
	copy(row[col:], moved[:nt])
	copy(row[x.n+col:], moved[nt:])
}

// storeDC rounds a piece of dC, in blocks of 32, into the output's layout.
func (x *backwardGLU[F]) storeDC(w *graph.Worker, m, col int, c []F) {
	dc, nt := x.c.Out[dgluDC], len(c)/2
	switch x.layout {
	case LayoutInterleaved32:
		store(dc, m*2*x.n+2*col, c)
		return
	}
	moved := buffer[F](w, 4, 2*nt)
	relayout(x.layout, moved, c)
	if x.layout == LayoutPairs {
		store(dc, m*2*x.n+2*col, moved)
		return
	}
	store(dc, m*2*x.n+col, moved[:nt])
	store(dc, m*2*x.n+x.n+col, moved[nt:])
}

// join adds up the sums of expert e's row tiles in their order.
func (x *backwardGLU[F]) join(w *graph.Worker, g *groups, e int) {
	total := buffer[F](w, 0, 2*x.n+2)
	clear(total)
	for t := g.first[e]; t < g.first[e+1]; t++ {
		sums := x.sums[t*(2*x.n+2) : (t+1)*(2*x.n+2)]
		for j, v := range sums[:2*x.n] {
			total[j] += v
		}
		for j := 2 * x.n; j < len(sums); j++ {
			total[j] = max(total[j], sums[j])
		}
	}
	if out := x.c.Out[dgluDBias]; out != nil {
		moved := buffer[F](w, 1, 2*x.n)
		relayout(x.layout, moved, total[:2*x.n])
		store(out, e*2*x.n, moved)
	}
	if out := x.c.Out[dgluAmax]; out != nil {
		store(out, 2*e, total[2*x.n:])
	}
}

// relayout writes a row of dC from blocks of 32 into another layout.
func relayout[F float](l Layout, dst, src []F) {
	half := len(src) / 2
	for j := range half {
		dst[l.gate(j, half)] = src[LayoutInterleaved32.gate(j, half)]
		dst[l.up(j, half)] = src[LayoutInterleaved32.up(j, half)]
	}
}
