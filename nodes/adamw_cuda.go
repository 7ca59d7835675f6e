package nodes

import "github.com/moegraph/moegraph/graph"

// adamWParams are the constants of adamw.cuh.
type adamWParams struct {
	ParamType, GradType string
	Master, Maximize    bool
}

func (o adamW) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	param, m, v, master, grad, step, rate, ready := c.In[0], c.In[1], c.In[2], c.In[3], c.In[4], c.In[5], c.In[6], c.In[7]
	p := adamWParams{typeOf(param), typeOf(grad), master != nil, o.Maximize}
	n := capacity(param)
	return []graph.Launch{launchOf("adamw", "adamw.cuh", p, optimizerBlocks(c.GPU, n), blockThreads,
		ptr(param), ptr(m), ptr(v), ptr(master), ptr(grad), ptr(step), ptr(rate), ptr(ready), int64(n),
		o.Beta1, o.Beta2, o.WeightDecay, float32(o.Eps))}, refuseWide(c)
}

// optimizerBlocks returns the grid of an update of n elements, four of which a thread takes at once.
func optimizerBlocks(d graph.GPU, n int) int {
	return strided(d, n, blockThreads*4, elementwiseBlocks)
}
