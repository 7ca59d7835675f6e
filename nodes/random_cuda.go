package nodes

import "github.com/moegraph/moegraph/graph"

// randomParams are the constants of random.cuh.
type randomParams struct{ XType string }

func (o randomNext) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	return []graph.Launch{launchOf("random_next", "random.cuh", randomParams{"float"}, 1, 1, ptr(c.In[0]), ptr(c.Out[0]))}, nil
}

func (o randomScale) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	x, draw, y := c.In[0], c.In[1], c.Out[0]
	p := float32(o.P)
	return []graph.Launch{elementwiseLaunch(c, o.Op, "random.cuh", randomParams{typeOf(x)}, y, c.In[:1],
		ptr(y), ptr(x), ptr(draw), counted(y), int64(y.Width()), o.Salt, p, 1/(1-p))}, refuseWide(c)
}
