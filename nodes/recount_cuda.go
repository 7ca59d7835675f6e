package nodes

import "github.com/moegraph/moegraph/graph"

func (o recount) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	x, y := c.In[0], c.Out[0]
	bytes := y.DType.Bytes(y.Width())
	p := columnParams{copyUnit(bytes)}
	units := bytes / p.Unit
	return []graph.Launch{launchOf("recount", "recount.cuh", p,
		strided(c.GPU, capacityRows(y)*units, blockThreads*elementwiseUnroll, elementwiseBlocks), blockThreads,
		ptr(y), ptr(x), graph.Count{T: y}, graph.Count{T: x}, int64(capacityRows(y)), int64(units))}, refuseWide(c)
}
