package nodes

import (
	"math"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// newScaledProduct is newGroupedProduct for block-scaled operands, which are decoded exactly to float32 on the way
// into the product.
func newScaledProduct(c *graph.Call, s scaledKind, k weightKind, align, n, tile int) *groupedProduct[float32] {
	a, sfa := c.In[gemmA], c.In[scaledSFA]
	p := scaledProductOf(c, s.formatOf(a, sfa), k, n, a, sfa, c.In[gemmAlpha], c.In[gemmOffsets], c.In[scaledB:])
	p.groups = newGroups(c.In[gemmOffsets], c.In[gemmCounts], a.Shape[0], align, tile, a, c.In[gemmProb])
	p.groups.blocks = true
	p.global = c.In[scaledGlobalA:scaledB]
	return p
}

// scaledProductOf describes a product without its groups; b are the weights and their factors.
func scaledProductOf(c *graph.Call, f BlockFormat, k weightKind, n int, a, sfa, alpha, offsets *graph.Tensor, b []*graph.Tensor) *groupedProduct[float32] {
	red := codeWidth(a)
	p := &groupedProduct[float32]{c: c, n: n, k: red, alpha: alpha, cols: tiles(n, tileN)}
	p.a = matrix{t: a, ld: red, sf: factorView{format: f, data: sfa.Data, layout: factorLayout(a.Shape[0], red, f)}}
	p.sfa = sfa
	p.b = newHostWeights(k, b[:k.count()], offsets.Shape[0], n, red)
	p.b.withFactors(f, b[k.count():])
	return p
}

// scaledOut makes the outputs of a product of block-scaled operands from the float32 D of each tile: rounded, with
// amax, or quantized by Quantize's own code.
type scaledOut struct {
	d, amax, norm *graph.Tensor
	n             int
	quant         *blockQuantizer // nil: D is not quantized
	groups        *groups
	sfBase        []int
	tops          []uint32 // scratch: max |D| of each tile as bits
}

func newScaledOut(c *graph.Call, f BlockFormat, s scaledKind, dt dtype.DType, n, rows int, g *groups, d, col, sfRow, sfCol, amax, norm *graph.Tensor) *scaledOut {
	o := &scaledOut{d: d, amax: amax, norm: norm, n: n, groups: g, sfBase: make([]int, len(g.begin))}
	if narrow(dt) {
		o.quant = newBlockQuantizer(quantizedFormat(dt, f), rows, n, 1)
		o.quant.row, o.quant.col = quantAxis{d, sfRow}, quantAxis{col, sfCol}
		o.quant.discrete = s.DiscreteCol
	}
	if amax != nil {
		o.tops = graph.View[uint32](c.Scratch)
	}
	return o
}

// begin prepares a run, when the groups are known.
func (o *scaledOut) begin() {
	if o.quant != nil {
		o.quant.clearFactors()
		columnFactorBases(o.sfBase, o.groups, o.n, o.quant.vec)
	}
}

// tile takes in the float32 D of rows [first,last), of which those from mid on are padding and hold zeros, and
// columns [col, col+nt): tile number t of all.
func (o *scaledOut) tile(w *graph.Worker, t, e, first, mid, last, col, nt int, d []float32) {
	if o.tops != nil {
		top := uint32(0)
		for _, v := range d[:(mid-first)*nt] {
			top = max(top, magnitude(v))
		}
		o.tops[t] = top
	}
	if o.quant != nil {
		g := quantGroup{begin: o.groups.begin[e], rows: o.groups.end[e] - o.groups.begin[e], sfBase: o.sfBase[e]}
		norm := float32(1) // of a product that a Quantize without norm_const was fused into
		if o.norm != nil {
			norm = scalar[float32](o.norm, 0)
		}
		o.quant.tile(w, d, nt, first, col, last-first, nt, norm, g)
		return
	}
	if o.d == nil {
		return
	}
	for r := first; r < last; r++ {
		store(o.d, r*o.n+col, d[(r-first)*nt:(r-first+1)*nt])
	}
}

// run returns the node's function: loop runs over the tiles of p, which it hands to tile.
func (o *scaledOut) run(p *groupedProduct[float32], loop graph.Loop) func() error {
	return func() error {
		if err := p.read(); err != nil {
			return err
		}
		o.begin()
		loop.Run(p.groups.tiles()*p.cols, 1)
		o.finish(p.cols)
		return nil
	}
}

// finish joins the tiles' maxima; cols is the number of tiles across.
func (o *scaledOut) finish(cols int) {
	if o.tops == nil {
		return
	}
	amax := graph.View[float32](o.amax.Data)
	for e := range o.groups.begin {
		top := uint32(0)
		for _, v := range o.tops[o.groups.first[e]*cols : o.groups.first[e+1]*cols] {
			top = max(top, v)
		}
		amax[e] = math.Float32frombits(top)
	}
}

// scaledScratch is the room for the maxima of tiles of an output of n columns, cut in pieces of tile rows and tileN
// columns.
func scaledScratch(amax *graph.Value, rows, experts, n, tile int) int64 {
	if amax == nil {
		return 0
	}
	return 4 * int64(tiles(rows, tile)+experts) * int64(tiles(n, tileN))
}

// Scratch implements graph.Scratcher.
func (o scaledGEMM) Scratch(n *graph.Node) int64 {
	return scaledScratch(n.Out(scaledAmax), n.In(gemmA).Dim(0), n.In(gemmOffsets).Dim(0), o.Weights.width(n.In(scaledB)), tileM)
}

func (o scaledGEMM) Host(c *graph.Call) func() error {
	n := scaledWidth(c, o.Weights)
	prob, bias := c.In[gemmProb], c.In[gemmBias]
	p := newScaledProduct(c, o.Scaled, o.Weights, o.Align, n, tileM)
	f := o.Scaled.formatOf(c.In[gemmA], c.In[scaledSFA])
	out := newScaledOut(c, f, o.Scaled, o.D, n, c.In[gemmA].Shape[0], p.groups,
		c.Out[scaledD], c.Out[scaledDCol], c.Out[scaledSFDRow], c.Out[scaledSFDCol], c.Out[scaledAmax], c.In[scaledNorm])
	loop := c.NewLoop(func(w *graph.Worker, lo, hi int) {
		for t := lo; t < hi; t++ {
			e, first, mid, last := p.groups.at(t / p.cols)
			col := t % p.cols * tileN
			nt := min(tileN, n-col)
			d := buffer[float32](w, 0, (last-first)*nt) // the product's own buffer, with room for padding
			p.multiply(w, 0, e, first, mid, p.b.matrix(e, col), nt)
			clear(d[(mid-first)*nt:])
			for r := first; r < mid; r++ {
				row := d[(r-first)*nt : (r-first+1)*nt]
				switch {
				case bias != nil:
					addScaled(row, load[float32](w, 1, bias, e*n+col, nt), rowProb[float32](prob, r))
				case prob != nil:
					times(row, scalar[float32](prob, r))
				}
			}
			out.tile(w, t, e, first, mid, last, col, nt, d)
		}
	})
	return out.run(p, loop)
}

// times multiplies each element by f, rounded on its own.
func times(x []float32, f float32) {
	for i, v := range x {
		x[i] = float32(v * f)
	}
}

// scaledWidth is N of the weights of a Call.
func scaledWidth(c *graph.Call, k weightKind) int {
	if k.Ptrs {
		return k.N
	}
	b := c.In[scaledB]
	return b.Shape[len(b.Shape)-2]
}

// Scratch implements graph.Scratcher.
func (o scaledGLU) Scratch(n *graph.Node) int64 {
	return scaledGEMM{Weights: o.Weights}.Scratch(n)
}

func (o scaledGLU) Host(c *graph.Call) func() error {
	n := scaledWidth(c, o.Weights)
	cc := c.Out[scaledC]
	prob, bias := c.In[gemmProb], c.In[gemmBias]
	p := newScaledProduct(c, o.Scaled, o.Weights, o.Align, n, tileM)
	f := o.Scaled.formatOf(c.In[gemmA], c.In[scaledSFA])
	out := newScaledOut(c, f, o.Scaled, o.D, n/2, c.In[gemmA].Shape[0], p.groups,
		c.Out[scaledD], c.Out[scaledDCol], c.Out[scaledSFDRow], c.Out[scaledSFDCol], c.Out[scaledAmax], c.In[scaledNorm])
	wantD := c.Out[scaledD] != nil || c.Out[scaledAmax] != nil || out.quant != nil && (out.quant.row.wanted() || out.quant.col.wanted())
	loop := c.NewLoop(func(w *graph.Worker, lo, hi int) {
		for t := lo; t < hi; t++ {
			e, first, mid, last := p.groups.at(t / p.cols)
			col := t % p.cols * tileN // of C
			nt := min(tileN, n-col)
			acc := gluProduct(w, p, o.Layout, e, first, mid, col, nt)
			d := buffer[float32](w, 4, (last-first)*nt/2)
			clear(d[(mid-first)*nt/2:])
			for r := first; r < mid; r++ {
				row := buffer[float32](w, 2, nt)
				interleave(o.Layout, row, acc[(r-first)*nt:(r-first+1)*nt])
				if bias != nil {
					addBias(w, row, bias, o.Layout, e*n, n, col)
				}
				if cc != nil {
					store(cc, r*n+col, row)
				}
				if wantD {
					gluRow(&o.Act, d[(r-first)*nt/2:(r-first+1)*nt/2], row, rowProb[float32](prob, r))
				}
			}
			zeroRows([]*graph.Tensor{cc}, n, mid, last, col, nt)
			if wantD {
				out.tile(w, t, e, first, mid, last, col/2, nt/2, d)
			}
		}
	})
	return out.run(p, loop)
}
