package nodes

import (
	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// dgluCall sorts the operands that groupedGEMMdGLU and scaledDGLU have in common.
func dgluCall(c *graph.KernelCall, f BlockFormat, w weightKind, align int, l Launch) scaledCall {
	return scaledCall{
		c: c, f: f, w: w, align: align, l: l, thin: thinDGLUTileM, n: c.In[gradC].Shape[1] / 2, a: c.In[gradDD], offsets: c.In[gradOffsets], counts: c.In[gradCounts],
		rows: []any{rowsOf(c.In[gradDD]), rowsOf(c.In[gradC]), rowsOf(c.In[gradProb])},
	}
}

// dglu describes a product of section 6, with the parts of its sums after what every product has in the scratch.
func (x scaledCall) dglu(a act, layout Layout) ([]graph.Launch, error) {
	c, m := x.c, x.a.Shape[0]
	p, s, err := x.product()
	if err != nil {
		return nil, err
	}
	d := dgluParamsOf(c, a, layout)
	parts := dgluPartsOf(x.scratch(), p.TileM, p.TileM/p.WarpM, p.E, m, p.N, d.HasDProb, d.HasDBias, d.HasAmax)
	launches := x.launches("grouped_gemm_dglu_quant", p, s, func(p scaledProduct) any {
		p.HasAmax = d.HasAmax // of gate and up, by parts
		return struct {
			scaledProduct
			CType, DCType, ActType            string
			Layout                            string
			Act                               actParams
			HasAlpha, HasProb, HasBeta        bool
			HasDC, HasDProb, HasDBias, HasAct bool
			quantConsts
		}{p, d.CType, x.quant.typeOf(c.Out[dgluDC]), d.ActType, d.Layout, d.Act, c.In[dgluAlpha] != nil, d.HasProb, d.HasBeta, d.HasDC, d.HasDProb, d.HasDBias, d.HasAct, x.quant.consts()}
	}, ptr(c.In[dgluAlpha]), ptr(x.global[0]), ptr(x.global[1]), ptr(c.In[gradProb]), ptr(c.In[gradBeta]), ptr(c.In[gradC]),
		ptr(c.Out[dgluDC]), ptr(c.Out[dgluAct]), parts.args(c), int32(m))
	return append(launches, parts.join(c, layout)...), nil
}

// scaledDGLUScratch is the scratch of dglu; plain and quant as in scaledShape.
func scaledDGLUScratch(n *graph.Node, d graph.GPU, f BlockFormat, w weightKind, align int, l Launch, plain, quant dtype.DType) int64 {
	_, shape := codesOf(n.In(gradDD))
	c, experts := n.In(gradC), n.In(gradOffsets).Dim(0)
	x := scaledShape{f, w, l, plain, experts, shape[0], shape[1], c.Dim(1) / 2, align, thinDGLUTileM, quant}
	p, _, err := x.product(d)
	if err != nil {
		return 0 // CUDA says so
	}
	return dgluPartsOf(x.scratch(d), p.TileM, p.TileM/p.WarpM, p.E, shape[0], p.N, n.Out(dgluDProb) != nil, n.Out(dgluDBias) != nil, n.Out(dgluAmax) != nil).end
}

// CUDAScratch is that of scaledShape, and the parts of sums.
func (o scaledDGLU) CUDAScratch(n *graph.Node, d graph.GPU) int64 {
	values, _ := codesOf(n.In(gradDD))
	f, err := o.Scaled.format(values, n.In(scaledDGLUSFA).DType())
	if err != nil {
		return 0
	}
	return scaledDGLUScratch(n, d, f, o.Weights, o.Align, o.Launch, dtype.Invalid, narrowOnly(o.DC))
}

func (o scaledDGLU) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	x, out := dgluCall(c, o.Scaled.formatOf(c.In[gradDD], c.In[scaledDGLUSFA]), o.Weights, o.Align, o.Launch), c.Out
	b := c.In[scaledDGLUB:]
	x.sfa, x.b, x.sfb, x.global = c.In[scaledDGLUSFA], b[:o.Weights.count()], b[o.Weights.count():], c.In[scaledDGLUGlobalA:scaledDGLUB]
	if narrow(o.DC) {
		x.quant = quantOutput{o.DC, o.Scaled.DiscreteCol, c.In[scaledDGLUNorm], out[dgluDC], out[scaledSFDCRow], out[scaledDCCol], out[scaledSFDCCol]}
	}
	return x.dglu(o.Act, o.Layout)
}
