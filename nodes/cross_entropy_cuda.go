package nodes

import "github.com/moegraph/moegraph/graph"

// entropyParams are the constants of cross_entropy.cuh.
type entropyParams struct {
	XType, UpstreamType string
	Team                int // threads of a row: a warp or a block
}

func entropyKernel(c *graph.KernelCall, upstream *graph.Tensor) (p entropyParams, blocks int) {
	logits := c.In[0]
	p = entropyParams{typeOf(logits), typeOf(upstream), 32}
	const vectorsPerLane = 8 // a warp's rows end where a block's four loads in flight begin to be of use
	if tiles(logits.Shape[1], vectorElems(logits)) > 32*vectorsPerLane {
		p.Team = blockThreads
	}
	return p, strided(c.GPU, logits.Shape[0], blockThreads/p.Team, elementwiseBlocks)
}

// CUDAScratch is a loss for each row.
func (o crossEntropy) CUDAScratch(n *graph.Node, _ graph.GPU) int64 { return 8 * int64(n.In(0).Dim(0)) }

func (o crossEntropy) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	logits, labels, loss, stats := c.In[0], c.In[1], c.Out[0], c.Out[1]
	p, blocks := entropyKernel(c, nil)
	const source = "cross_entropy.cuh"
	launches := []graph.Launch{launchOf("cross_entropy", source, p, blocks, blockThreads,
		ptr(stats), scratchAt(c, 0), ptr(logits), ptr(labels), counted(logits), int64(logits.Shape[1]), int32(o.Ignore))}
	if loss != nil {
		launches = append(launches, launchOf("cross_entropy_final", source, p, 1, 1024,
			ptr(loss), scratchAt(c, 0), ptr(labels), counted(logits), int32(o.Ignore)))
	}
	return launches, refuseWide(c)
}

// CUDAScratch is one float64: upstream over the number of labels that count.
func (o crossEntropyGrad) CUDAScratch(*graph.Node, graph.GPU) int64 { return 8 }

func (o crossEntropyGrad) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	logits, labels, stats, up := c.In[0], c.In[1], c.In[2], c.In[3]
	p, blocks := entropyKernel(c, up)
	const source = "cross_entropy.cuh"
	return []graph.Launch{
		launchOf("cross_entropy_factor", source, p, 1, 1024, scratchAt(c, 0), ptr(up), ptr(labels), counted(logits), int32(o.Ignore)),
		launchOf("cross_entropy_grad", source, p, blocks, blockThreads, ptr(c.Out[0]), ptr(logits), ptr(labels), ptr(stats), scratchAt(c, 0),
			counted(logits), int64(logits.Shape[1]), int32(o.Ignore)),
	}, refuseWide(c)
}
