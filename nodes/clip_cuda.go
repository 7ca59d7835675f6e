package nodes

import "github.com/moegraph/moegraph/graph"

// normBlocks returns how many blocks add up the squares of n elements: for 16-bit formats, no more for f32.
func normBlocks(d graph.GPU, n int) int {
	return strided(d, n, blockThreads*8*elementwiseUnroll, elementwiseBlocks)
}

// CUDAScratch is a float64 sum for each block of each operand.
func (o globalNorm) CUDAScratch(n *graph.Node, d graph.GPU) int64 {
	blocks := 0
	for i := range o.N {
		blocks += normBlocks(d, n.In(i).Elems())
	}
	return 8 * int64(blocks)
}

func (o globalNorm) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	const source = "global_norm.cuh"
	var launches []graph.Launch
	partials := 0
	for _, x := range c.In {
		p := struct{ XType string }{typeOf(x)}
		blocks := normBlocks(c.GPU, capacity(x))
		launches = append(launches, launchOf("global_norm", source, p, blocks, blockThreads,
			scratchAt(c, 8*partials), ptr(x), counted(x), int64(x.Width())))
		partials += blocks
	}
	launches = append(launches, launchOf("global_norm_final", source, struct{ XType string }{"float"}, 1, 1024,
		ptr(c.Out[0]), ptr(c.Out[1]), scratchAt(c, 0), int32(partials), float32(o.MaxNorm)))
	return launches, refuseWide(c)
}
