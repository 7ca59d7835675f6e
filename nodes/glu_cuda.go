package nodes

import "github.com/moegraph/moegraph/graph"

// rowTileElems is about how many elements a thread block of an elementwise kernel over row tiles takes at a time.
const rowTileElems = 1 << 13

// rowTileOf returns the rows of a tile of an elementwise kernel (row_tiles.cuh) over rows of width elements.
func rowTileOf(width int) int { return max(1, min(64, ceilPow2(rowTileElems/max(1, width)))) }

// rowTileBlocks is how many blocks of 256 threads of such a kernel a multiprocessor holds.
const rowTileBlocks = 8

// rowTilesLaunch launches a kernel of row_tiles.cuh over m rows in tiles of tileM.
func rowTilesLaunch(d graph.GPU, name string, params any, m, tileM, groups int, args ...any) graph.Launch {
	return launchOf(name, name+".cuh", params, max(1, min(maxRowTiles(m, tileM, max(1, groups)), d.Units*rowTileBlocks)), blockThreads, args...)
}

// numGroups returns the number of experts, 0 without groups.
func numGroups(offsets *graph.Tensor) int {
	if offsets == nil {
		return 0
	}
	return offsets.Shape[0]
}

func (o glu) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	cc, offsets, prob, d := c.In[gluC], c.In[gluOffsets], c.In[gluProb], c.Out[0]
	p := struct {
		E, N, TileM  int
		CType, DType string
		HasProb      bool
		Act          actParams
	}{numGroups(offsets), cc.Shape[1], rowTileOf(cc.Shape[1]), typeOf(cc), typeOf(d), prob != nil, o.Act.cuda()}
	m := cc.Shape[0]
	return []graph.Launch{rowTilesLaunch(c.GPU, "glu", p, m, p.TileM, p.E,
		ptr(cc), ptr(offsets), ptr(c.In[gluCounts]), rowsOf(cc), rowsOf(prob), ptr(prob), ptr(d), int32(m))}, refuseRows(c)
}

// Rows of a tile of glu_grad.cuh, and threads of its blocks.
const (
	gluGradTile    = 64
	gluGradThreads = 128
	gluGradBlocks  = 5 // of its thread blocks on a multiprocessor
)

// parts lays out the parts of sums: one a tile.
func (o gluGrad) parts(experts, m, n int, dprob, dbias, amax bool) dgluParts {
	return dgluPartsOf(0, gluGradTile, 1, experts, m, n, dprob, dbias, amax)
}

// CUDAScratch is the parts of sums.
func (o gluGrad) CUDAScratch(n *graph.Node, _ graph.GPU) int64 {
	c, experts := n.In(gradC), 0
	if offsets := n.In(gradOffsets); offsets != nil {
		experts = offsets.Dim(0)
	}
	return o.parts(experts, c.Dim(0), c.Dim(1)/2, n.Out(dgluDProb) != nil, n.Out(dgluDBias) != nil, n.Out(dgluAmax) != nil).end
}

func (o gluGrad) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	dd, offsets, cc := c.In[gradDD], c.In[gradOffsets], c.In[gradC]
	m, n := cc.Shape[0], cc.Shape[1]/2
	p := struct {
		E, N, TileM int
		DDType      string
		dgluParams
	}{numGroups(offsets), n, gluGradTile, typeOf(dd), dgluParamsOf(c, o.Act, o.Layout)}
	parts := o.parts(p.E, m, n, p.HasDProb, p.HasDBias, p.HasAmax)
	work := maxRowTiles(m, p.TileM, max(1, p.E)) * parts.blocks
	launch := launchOf("glu_grad", "glu_grad.cuh", p, strided(c.GPU, work, gluGradThreads/32, gluGradBlocks), gluGradThreads,
		ptr(dd), ptr(offsets), ptr(c.In[gradCounts]), rowsOf(dd), rowsOf(cc), rowsOf(c.In[gradProb]), ptr(c.In[gradProb]), ptr(c.In[gradBeta]), ptr(cc),
		ptr(c.Out[dgluDC]), ptr(c.Out[dgluAct]), parts.args(c), int32(m))
	return append([]graph.Launch{launch}, parts.join(c, o.Layout)...), refuseRows(c)
}

func (o relayoutOp) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	x, y := c.In[0], c.Out[0]
	p := struct {
		N, TileM      int
		Layout, XType string
	}{x.Shape[1], rowTileOf(x.Shape[1]), o.To.cuda(), typeOf(x)}
	return []graph.Launch{rowTilesLaunch(c.GPU, "glu_layout", p, x.Shape[0], p.TileM, 0, ptr(x), rowsOf(x), ptr(y), int32(x.Shape[0]))}, refuseRows(c)
}
