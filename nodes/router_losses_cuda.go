package nodes

import "github.com/moegraph/moegraph/graph"

// lossParams are the constants of router_losses.cuh.
type lossParams struct{ Experts, Order int }

// lossWarps is the number of warps of a block, a token each.
const lossWarps = 4

// lossBlocks returns how many blocks add up the shares of so many tokens.
func lossBlocks(d graph.GPU, tokens int) int { return strided(d, tokens, 4*lossWarps, 2) }

// CUDAScratch is a sum for each expert and one for the z-loss, for each block.
func (o routerLosses) CUDAScratch(n *graph.Node, d graph.GPU) int64 {
	l := n.In(0)
	return 8 * int64(lossBlocks(d, l.Dim(0))) * int64(l.Dim(1)+1)
}

func (o routerLosses) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	logits, counts := c.In[0], c.In[1]
	p := lossParams{logits.Shape[1], int(o.Order)}
	blocks := lossBlocks(c.GPU, logits.Shape[0])
	const source = "router_losses.cuh"
	return []graph.Launch{
		launchOf("router_losses_sum", source, p, blocks, 32*lossWarps, scratchAt(c, 0), ptr(logits), counted(logits)),
		launchOf("router_losses_final", source, p, 1, 1024,
			ptr(c.Out[0]), ptr(c.Out[1]), scratchAt(c, 0), int32(blocks), ptr(counts), counted(logits), int32(o.K)),
	}, refuseWide(c)
}

func (o routerLossesGrad) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	logits, counts := c.In[0], c.In[1]
	p := lossParams{logits.Shape[1], int(o.Of.Order)}
	return []graph.Launch{launchOf("router_losses_grad", "router_losses.cuh", p, strided(c.GPU, logits.Shape[0], lossWarps, 8), 32*lossWarps,
		ptr(c.Out[0]), ptr(logits), ptr(counts), ptr(c.In[2]), ptr(c.In[3]), counted(logits), int32(o.Of.K))}, refuseWide(c)
}
