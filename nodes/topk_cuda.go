package nodes

import "github.com/moegraph/moegraph/graph"

// topKParams are the constants of topk.cuh.
type topKParams struct {
	Experts, K, Order  int
	Normalize, Bias    bool
	Groups, TopKGroups int
	Warps              int // of a block, a token each
}

// staticShared is the shared memory that a kernel may have without asking for more.
const staticShared = 48 << 10

// kernel returns the constants for logits of experts columns, and the launch's blocks.
func (o topK) kernel(c *graph.KernelCall, bias bool) (p topKParams, blocks int) {
	tokens, experts := c.In[0].Shape[0], c.In[0].Shape[1]
	perWarp := 16*experts + 4*o.K + 8*max(1, o.Groups)
	p = topKParams{
		Experts: experts, K: o.K, Order: int(o.Order), Normalize: o.Normalize, Bias: bias, Groups: o.Groups, TopKGroups: o.TopKGroups,
		Warps: min(4, staticShared/perWarp),
	}
	return p, strided(c.GPU, tokens, p.Warps, 32/p.Warps)
}

func (o topK) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	logits, bias := c.In[0], c.In[1]
	p, blocks := o.kernel(c, bias != nil)
	return []graph.Launch{launchOf("topk", "topk.cuh", p, blocks, 32*p.Warps,
		ptr(c.Out[0]), ptr(c.Out[1]), ptr(logits), ptr(bias), counted(logits), o.Scale)}, refuseWide(c)
}

func (o topKGrad) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	logits, idx, dprob := c.In[0], c.In[1], c.In[2]
	p, blocks := o.Of.kernel(c, false)
	return []graph.Launch{launchOf("topk_grad", "topk.cuh", p, blocks, 32*p.Warps,
		ptr(c.Out[0]), ptr(logits), ptr(idx), ptr(dprob), counted(logits), o.Of.Scale)}, refuseWide(c)
}
