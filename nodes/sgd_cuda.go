package nodes

import "github.com/moegraph/moegraph/graph"

// sgdParams are the constants of sgd.cuh.
type sgdParams struct {
	ParamType, GradType                  string
	Master, Maximize, Momentum, Nesterov bool
}

func (o sgd) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	param, buffer, master, grad, step, rate, ready := c.In[0], c.In[1], c.In[2], c.In[3], c.In[4], c.In[5], c.In[6]
	p := sgdParams{typeOf(param), typeOf(grad), master != nil, o.Maximize, buffer != nil, o.Nesterov}
	n := capacity(param)
	return []graph.Launch{launchOf("sgd", "sgd.cuh", p, optimizerBlocks(c.GPU, n), blockThreads,
		ptr(param), ptr(buffer), ptr(master), ptr(grad), ptr(step), ptr(rate), ptr(ready), int64(n),
		float32(o.WeightDecay), float32(o.Momentum), float32(1-o.Dampening))}, refuseWide(c)
}
