package nodes

import "github.com/moegraph/moegraph/graph"

// colSumParams are the constants of col_sum.cuh.
type colSumParams struct {
	XType, YType  string
	Across, Elems int // threads along a row, and columns of each
}

func colSumGrid(d graph.GPU, rows, width, elems int) columnGrid {
	return columnGridOf(d, rows, width, elems, min(32, ceilPow2(tiles(width, elems))))
}

// CUDAScratch is a sum of each column for each block of rows, for the narrowest vector.
func (o colSum) CUDAScratch(n *graph.Node, d graph.GPU) int64 {
	x := n.In(0)
	var most int64
	for elems := 1; elems <= 8; elems *= 2 {
		most = max(most, 4*int64(colSumGrid(d, x.Dim(0), x.Dim(1), elems).y)*int64(x.Dim(1)))
	}
	return most
}

func (o colSum) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	x, y := c.In[0], c.Out[0]
	width, elems := x.Shape[1], rowVector(x.Shape[1], x)
	g := colSumGrid(c.GPU, x.Shape[0], width, elems)
	p := colSumParams{typeOf(x), typeOf(y), g.across, elems}
	const source = "col_sum.cuh"
	return []graph.Launch{
		columnsLaunch("col_sum", source, p, g, scratchAt(c, 0), ptr(x), counted(x), int32(width)),
		finishColumns("col_sum_finish", source, p, width, g.y, ptr(y), scratchAt(c, 0)),
	}, refuseRows(c)
}
