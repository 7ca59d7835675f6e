package nodes

import "github.com/moegraph/moegraph/graph"

func (o cycle) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	return oneThread("cycle", "scalars.cuh", ptr(c.In[0]), ptr(c.Out[0]), ptr(c.Out[1]), int64(o.Every)), nil
}

// accumulateParams are the constants of accumulate.cuh.
type accumulateParams struct {
	XType string
	Mean  bool
}

func (accumulate) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	total, x, count, mean := c.In[0], c.In[1], c.In[2], c.Out[0]
	n := capacity(total)
	return []graph.Launch{elementwiseLaunch(c, "accumulate", "accumulate.cuh", accumulateParams{typeOf(x), mean != nil}, total, c.In[:2],
		ptr(total), ptr(x), ptr(count), ptr(mean), int64(n))}, refuseWide(c)
}
