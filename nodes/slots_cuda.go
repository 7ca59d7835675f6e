package nodes

import "github.com/moegraph/moegraph/graph"

// slotLaunch launches a kernel of slots.cuh over n numbers.
func slotLaunch(c *graph.KernelCall, name string, n int, args ...any) ([]graph.Launch, error) {
	return []graph.Launch{launchOf(name, "slots.cuh", noParams{}, strided(c.GPU, n, blockThreads, 8), blockThreads, args...)}, refuseWide(c)
}

func (o permuteProb) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	p, slotMap, out := c.In[0], c.In[1], c.Out[0]
	return slotLaunch(c, "permute_prob", out.Shape[0], ptr(out), ptr(p), ptr(slotMap), counted(out), counted(p), int32(p.Width()))
}

func (o slotGather) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	x, rowMap, out := c.In[0], c.In[2], c.Out[0]
	return slotLaunch(c, "slot_gather", capacity(out), ptr(out), ptr(x), ptr(rowMap), counted(out), int32(out.Width()), counted(x))
}

// slotDotParams are the constants of slot_dot.cuh.
type slotDotParams struct {
	XType, DType string
	Elems        int // of a load
}

func (o slotDot) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	x, d, rowMap, out := c.In[0], c.In[1], c.In[2], c.Out[0]
	k, h := rowMap.Shape[1], x.Shape[1]
	p := slotDotParams{typeOf(x), typeOf(d), rowVector(h, x, d)}
	return []graph.Launch{rowLaunch(c, "slot_dot", "slot_dot.cuh", p, capacity(out), 32,
		ptr(out), ptr(x), ptr(d), ptr(rowMap), counted(out), int32(k), counted(d), int32(h))}, refuseRows(c)
}
