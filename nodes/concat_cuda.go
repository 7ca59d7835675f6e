package nodes

import "github.com/moegraph/moegraph/graph"

// columnParams are the constants of concat.cuh and recount.cuh.
type columnParams struct{ Unit int } // bytes of a load

// columnCopy is columns of one matrix that go into another, in elements. Of y's columns [yFrom, yFrom+width) those
// from pad on, as many as take, come from x's columns from xFrom on; the others are zero.
type columnCopy struct{ xFrom, take, yFrom, width, pad int }

// copyColumns launches a kernel of concat.cuh.
func copyColumns(c *graph.KernelCall, name string, x, y *graph.Tensor, m columnCopy) graph.Launch {
	size := y.DType.Bytes(1)
	xStride, yStride := x.Width()*size, y.Width()*size
	p := columnParams{copyUnit(xStride, yStride, m.xFrom*size, m.take*size, m.yFrom*size, m.width*size, m.pad*size)}
	units := func(elems int) int64 { return int64(elems * size / p.Unit) }
	blocks := strided(c.GPU, capacityRows(y)*int(units(m.width)), blockThreads*elementwiseUnroll, elementwiseBlocks)
	return launchOf(name, "concat.cuh", p, blocks, blockThreads, ptr(y), ptr(x), counted(y),
		units(x.Width()), units(m.xFrom), units(m.take), units(y.Width()), units(m.yFrom), units(m.width), units(m.pad))
}

func (o concat) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	var launches []graph.Launch
	at := 0
	for _, x := range c.In {
		width := x.Width()
		launches = append(launches, copyColumns(c, "concat", x, c.Out[0], columnCopy{take: width, yFrom: at, width: width}))
		at += width
	}
	return launches, refuseRows(c)
}

func (o sliceCols) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	width := o.To - o.From
	m := columnCopy{xFrom: o.From, take: width, width: width}
	return []graph.Launch{copyColumns(c, "slice_cols", c.In[0], c.Out[0], m)}, refuseRows(c)
}

func (o padCols) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	m := columnCopy{take: c.In[0].Width(), width: o.Total, pad: o.From}
	return []graph.Launch{copyColumns(c, "pad_cols", c.In[0], c.Out[0], m)}, refuseRows(c)
}
