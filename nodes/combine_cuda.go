package nodes

import (
	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// permuteParams are the constants of permute.cuh.
type permuteParams struct {
	XType string
	Unit  int // bytes of a load
	Lanes int
	Prob  bool
}

func (o permute) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	x, slotMap, rowMap, prob, a := c.In[0], c.In[1], c.In[2], c.In[4], c.Out[0]
	if err := refuseRows(c); err != nil {
		return nil, err
	}
	if prob != nil && prob.DType != dtype.Float32 {
		return nil, graph.BadDType("topk_prob", prob.DType, "f32")
	}
	bytes := x.DType.Bytes(x.Shape[1])
	unit := copyUnit(bytes)
	p := permuteParams{XType: typeOf(x), Unit: unit, Lanes: rowLanes(bytes/unit, 4), Prob: prob != nil}
	return []graph.Launch{rowLaunch(c, "permute", "permute.cuh", p, a.Shape[0], p.Lanes,
		ptr(a), ptr(x), ptr(slotMap), ptr(prob), counted(a), counted(x), int32(rowMap.Shape[1]), int32(x.Shape[1]))}, nil
}

// combineParams are the constants of combine.cuh.
type combineParams struct {
	DType, YType string
	K            int
	Elems        int // of a load
	Parts        int // loads of one slot in flight
	Lanes        int
	Prob         bool
}

func (o combine) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	d, rowMap, prob, y := c.In[0], c.In[1], c.In[4], c.Out[0]
	h := d.Shape[1]
	p := combineParams{DType: typeOf(d), YType: typeOf(y), K: rowMap.Shape[1], Elems: rowVector(h, d, y), Parts: 2, Prob: prob != nil}
	if p.Elems*d.DType.Bits() > 128 {
		p.Parts = 1
	}
	p.Lanes = rowLanes(h/p.Elems, p.Parts)
	return []graph.Launch{rowLaunch(c, "combine", "combine.cuh", p, y.Shape[0], p.Lanes,
		ptr(y), ptr(d), ptr(rowMap), ptr(prob), counted(y), counted(d), int32(h))}, refuseRows(c)
}
