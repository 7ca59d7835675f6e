package nodes

import "github.com/moegraph/moegraph/graph"

// groupSumTile is the number of rows that leave one part of a sum (group_sum.cuh).
const groupSumTile = 128

// CUDAScratch is the parts of a group_sum.
func (o groupMap) CUDAScratch(n *graph.Node, _ graph.GPU) int64 {
	if o.Op != "group_sum" {
		return 0
	}
	x := n.In(0)
	return int64(maxRowTiles(x.Dim(0), groupSumTile, n.In(1).Dim(0))) * int64(x.Dim(1)) * 4
}

func (o groupMap) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	x, offsets, counts, with, y := c.In[0], c.In[1], c.In[2], c.In[3], c.Out[0]
	m, n, e := x.Shape[0], x.Shape[1], offsets.Shape[0]
	rows := rowsOf(with)
	if o.Op == "row_dot_bias" {
		rows = rowsOf(nil) // a row a group
	}
	args := []any{ptr(x), ptr(offsets), ptr(counts), rowsOf(x), rows, ptr(with)}
	if err := refuseRows(c); err != nil {
		return nil, err
	}
	switch o.Op {
	case "scale_rows":
		p := struct {
			E, N, TileM  int
			XType, YType string
		}{e, n, rowTileOf(n), typeOf(x), typeOf(y)}
		return []graph.Launch{rowTilesLaunch(c.GPU, "scale_rows", p, m, p.TileM, e, join(args, ptr(y), int32(m))...)}, nil
	case "group_sum":
		return o.sum(c), nil
	}
	p := struct {
		E, N, TileM  int
		XType, ZType string
		OfGroup      bool
	}{e, n, max(8, rowTileOf(n)), typeOf(x), typeOf(with), o.Op == "row_dot_bias"}
	return []graph.Launch{rowTilesLaunch(c.GPU, "row_dot", p, m, p.TileM, e, join(args, ptr(y), int32(m))...)}, nil
}

// sum leaves a part of each column's sum for every tile of rows, then adds them up in order.
func (o groupMap) sum(c *graph.KernelCall) []graph.Launch {
	x, offsets, counts, prob, y := c.In[0], c.In[1], c.In[2], c.In[3], c.Out[0]
	m, n, e := x.Shape[0], x.Shape[1], offsets.Shape[0]
	p := struct {
		E, N, TileM int
		XType       string
		HasProb     bool
	}{e, n, groupSumTile, typeOf(x), prob != nil}
	first := rowTilesLaunch(c.GPU, "group_sum", p, m, p.TileM, e,
		ptr(x), ptr(offsets), ptr(counts), rowsOf(x), rowsOf(prob), ptr(prob), scratchAt(c, 0), int32(m))
	first.Grid[1] = tiles(n, blockThreads)
	then := groupPartsParams{E: e, TileM: groupSumTile, Parts: 1, Width: n, Blocks: 0, Layout: LayoutInterleaved32.cuda(), YType: typeOf(y), HasSum: true}
	return []graph.Launch{first, then.launch(scratchAt(c, 0), ptr(nil), ptr(offsets), ptr(counts), rowsOf(x), rowsOf(prob), rowsOf(nil), ptr(y), ptr(nil), int32(m))}
}
