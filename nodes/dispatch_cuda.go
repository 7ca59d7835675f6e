package nodes

import "github.com/moegraph/moegraph/graph"

// dispatchParams are the constants of dispatch.cuh.
type dispatchParams struct{ Experts int }

// bins is one for each expert and one for invalid ids.
func (o dispatch) bins() int { return o.Experts + 1 }

// CUDAScratch is the table of counts, chunks by bins, and the totals.
func (o dispatch) CUDAScratch(n *graph.Node, d graph.GPU) int64 {
	return 4 * int64(sortChunks(d, n.In(0).Elems())+1) * int64(o.bins())
}

func (o dispatch) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	ids := c.In[0]
	k, chunks := int32(ids.Shape[1]), sortChunks(c.GPU, capacity(ids))
	p := dispatchParams{o.Experts}
	table, totals := scratchAt(c, 0), scratchAt(c, 4*chunks*o.bins())
	const source = "dispatch.cuh"
	place := launchOf("dispatch_place", source, p, chunks, blockThreads,
		table, totals, ptr(ids), counted(ids), k, int64(o.Align), int64(o.Capacity),
		ptr(c.Out[0]), ptr(c.Out[1]), ptr(c.Out[2]), ptr(c.Out[3]), ptr(c.Out[4]), ptr(c.Out[5]), ptr(c.Out[6]))
	place.SharedBytes = 4 * sortWarps * o.bins()
	return []graph.Launch{
		launchOf("dispatch_count", source, p, chunks, blockThreads, table, ptr(ids), counted(ids), k),
		scanLaunch("dispatch_scan", source, p, o.bins(), chunks, table, totals),
		place,
	}, nil
}
