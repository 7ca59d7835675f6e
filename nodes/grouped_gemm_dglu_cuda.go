package nodes

import (
	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// dgluParams are the constants of dglu.cuh, but for N.
type dgluParams struct {
	CType, DCType, ActType                     string
	Layout                                     string
	Act                                        actParams
	HasProb, HasBeta                           bool
	HasDC, HasDProb, HasAmax, HasDBias, HasAct bool
}

func dgluParamsOf(c *graph.KernelCall, a act, l Layout) dgluParams {
	out := c.Out
	return dgluParams{
		CType: typeOf(c.In[gradC]), DCType: typeOf(out[dgluDC]), ActType: typeOf(out[dgluAct]), Layout: l.cuda(), Act: a.cuda(),
		HasProb: c.In[gradProb] != nil, HasBeta: c.In[gradBeta] != nil, HasDC: out[dgluDC] != nil, HasDProb: out[dgluDProb] != nil,
		HasAmax: out[dgluAmax] != nil, HasDBias: out[dgluDBias] != nil, HasAct: out[dgluAct] != nil,
	}
}

// dgluParts is how the sums of dglu.cuh are cut, and where their parts lie in the node's scratch.
type dgluParts struct {
	tileM, parts          int   // rows of a tile, and parts that each tile leaves
	blocks                int   // parts of a row: 64 columns of G each
	rows, cols, amax, end int64 // bytes; a kind of part that nobody wants takes none
}

// dgluPartsOf lays out the parts after at bytes, for m rows of n columns of G.
func dgluPartsOf(at int64, tileM, parts, experts, m, n int, dprob, dbias, amax bool) dgluParts {
	p := dgluParts{tileM: tileM, parts: parts, blocks: tiles(n, 64), rows: at}
	numParts := int64(maxRowTiles(m, tileM, max(1, experts)) * parts)
	size := func(want bool, bytes int64) int64 {
		if !want {
			return 0
		}
		return (bytes + 255) / 256 * 256
	}
	p.cols = p.rows + size(dprob, int64(p.blocks)*int64(m)*4)
	p.amax = p.cols + size(dbias, numParts*int64(2*n)*4)
	p.end = p.amax + size(amax, numParts*int64(p.blocks)*8)
	return p
}

// args are the arguments for the parts of rows, columns and maxima, null for those that nobody wants.
func (p dgluParts) args(c *graph.KernelCall) []any {
	var all []any
	for _, r := range [][2]int64{{p.rows, p.cols}, {p.cols, p.amax}, {p.amax, p.end}} {
		at := ptr(nil)
		if r[0] < r[1] {
			at = scratchAt(c, int(r[0]))
		}
		all = append(all, at)
	}
	return all
}

// join returns the launches that add up the parts. a is dY or dD, which bounds the rows together with C.
func (p dgluParts) join(c *graph.KernelCall, l Layout) []graph.Launch {
	a, offsets, counts, prob, cc := c.In[gradDD], c.In[gradOffsets], c.In[gradCounts], c.In[gradProb], c.In[gradC]
	m, n := cc.Shape[0], cc.Shape[1]/2
	experts := 0
	if offsets != nil {
		experts = offsets.Shape[0]
	}
	args := p.args(c)
	var launches []graph.Launch
	if out := c.Out[dgluDProb]; out != nil {
		params := struct{ E, Blocks int }{experts, p.blocks}
		launches = append(launches, launchOf("dglu_rows", "dglu_rows.cuh", params, strided(c.GPU, m, blockThreads, 8), blockThreads,
			args[0], ptr(offsets), rowsOf(a), rowsOf(cc), rowsOf(prob), ptr(out), int32(m)))
	}
	if dbias, amax := c.Out[dgluDBias], c.Out[dgluAmax]; dbias != nil || amax != nil {
		launches = append(launches, groupPartsParams{
			E: experts, TileM: p.tileM, Parts: p.parts, Width: 2 * n, Blocks: p.blocks, Layout: l.cuda(), YType: typeOf(dbias),
			HasSum: dbias != nil, HasAmax: amax != nil,
		}.launch(args[1], args[2], ptr(offsets), ptr(counts), rowsOf(a), rowsOf(cc), rowsOf(prob), ptr(dbias), ptr(amax), int32(m)))
	}
	return launches
}

// groupPartsParams are the constants of group_parts.cuh.
type groupPartsParams struct {
	E, TileM, Parts, Width, Blocks int
	Layout, YType                  string
	HasSum, HasAmax                bool
}

func (p groupPartsParams) launch(args ...any) graph.Launch {
	x := 0
	if p.HasSum {
		x = tiles(p.Width, blockThreads)
	}
	if p.HasAmax {
		x++
	}
	l := launchOf("group_parts", "group_parts.cuh", p, x, blockThreads, args...)
	l.Grid[1] = p.E
	return l
}

// parts returns the constants of the product and the layout of its parts.
func (o groupedGEMMdGLU) parts(w weightKind, p rowProduct, m int, dprob, dbias, amax bool) dgluParts {
	return dgluPartsOf(w.pointerScratch(), p.TileM, p.TileM/p.WarpM, p.E, m, p.N, dprob, dbias, amax)
}

// CUDAScratch is the addresses of discrete weights and the parts of sums.
func (o groupedGEMMdGLU) CUDAScratch(n *graph.Node, d graph.GPU) int64 {
	a, c, experts := n.In(gradDD), n.In(gradC), n.In(gradOffsets).Dim(0)
	if f := o.Weights.Only; f != NoBlockFormat {
		return scaledDGLUScratch(n, d, f, o.Weights, o.Align, o.Launch, a.DType(), dtype.Invalid)
	}
	p, err := rowProductOf(o.Launch, d, o.Weights, a.DType(), experts, a.Dim(0), a.Dim(1), c.Dim(1)/2)
	if err != nil {
		return 0 // CUDA says so
	}
	return o.parts(o.Weights, p, a.Dim(0), n.Out(dgluDProb) != nil, n.Out(dgluDBias) != nil, n.Out(dgluAmax) != nil).end
}

func (o groupedGEMMdGLU) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	if err := refuseWide(c); err != nil {
		return nil, err
	}
	if o.Weights.Only != NoBlockFormat {
		b := c.In[dgluB:]
		x := dgluCall(c, o.Weights.Only, o.Weights, o.Align, o.Launch)
		x.b, x.sfb, x.global = b[:o.Weights.count()], b[o.Weights.count():], make([]*graph.Tensor, 2)
		return x.dglu(o.Act, o.Layout)
	}
	a, offsets, cc := c.In[gradDD], c.In[gradOffsets], c.In[gradC]
	m, n := a.Shape[0], cc.Shape[1]/2
	product, err := rowProductOf(o.Launch, c.GPU, o.Weights, a.DType, offsets.Shape[0], m, a.Shape[1], n)
	if err != nil {
		return nil, err
	}
	p := struct {
		rowProduct
		dgluParams
		HasAlpha bool
	}{product, dgluParamsOf(c, o.Act, o.Layout), c.In[dgluAlpha] != nil}
	parts := o.parts(o.Weights, product, m, p.HasDProb, p.HasDBias, p.HasAmax)
	b, launches := o.Weights.cuda(c, c.In[dgluB:])
	launches = append(launches, product.launch(c.GPU, "grouped_gemm_dglu", p, product.work(m),
		ptr(a), b, ptr(offsets), ptr(c.In[gradCounts]), rowsOf(a), rowsOf(cc), rowsOf(c.In[gradProb]), ptr(c.In[dgluAlpha]), ptr(c.In[gradProb]), ptr(c.In[gradBeta]), ptr(cc),
		ptr(c.Out[dgluDC]), ptr(c.Out[dgluAct]), parts.args(c), int32(m)))
	return append(launches, parts.join(c, o.Layout)...), nil
}
