package nodes

import "github.com/moegraph/moegraph/graph"

// plainEpilogue are the constants of PlainEpilogue in row_product.cuh, which those of grouped_gemm_glu.cuh extend.
type plainEpilogue struct {
	BiasType, DType, CType                 string
	HasAlpha, HasProb, HasBias, HasD, HasC bool
}

// plainEpilogueOf describes the operands and outputs of a grouped GEMM.
func plainEpilogueOf(c *graph.KernelCall) plainEpilogue {
	return plainEpilogue{
		BiasType: typeOf(c.In[gemmBias]), DType: typeOf(c.Out[0]), CType: typeOf(c.Out[1]),
		HasAlpha: c.In[gemmAlpha] != nil, HasProb: c.In[gemmProb] != nil, HasBias: c.In[gemmBias] != nil,
		HasD: c.Out[0] != nil, HasC: c.Out[1] != nil,
	}
}

// CUDAScratch is the addresses of discrete weights.
func (o groupedGEMM) CUDAScratch(*graph.Node, graph.GPU) int64 { return o.Weights.pointerScratch() }

func (o groupedGEMM) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	if err := refuseWide(c); err != nil {
		return nil, err
	}
	n := width(c.Out...)
	if o.Weights.Only != NoBlockFormat {
		return onlyCall(c, o.Weights, o.Align, o.Launch, n).plain(c.Out[0], c.Out[1])
	}
	p := struct {
		rowProduct
		plainEpilogue
	}{plainEpilogue: plainEpilogueOf(c)}
	return gemmLaunches(c, "grouped_gemm", o.Launch, o.Weights, n, &p.rowProduct, func() any { return p })
}

// gemmLaunches describes a grouped GEMM of sections 4 and 5, whose operands and outputs lie alike; params returns the
// constants once product is filled in.
func gemmLaunches(c *graph.KernelCall, name string, l Launch, w weightKind, n int, product *rowProduct, params func() any) ([]graph.Launch, error) {
	a, offsets := c.In[gemmA], c.In[gemmOffsets]
	m, up := a.Shape[0], product.UpRow
	p, err := rowProductOf(l, c.GPU, w, a.DType, offsets.Shape[0], m, a.Shape[1], n)
	if err != nil {
		return nil, err
	}
	p.UpRow = up
	*product = p
	b, launches := w.cuda(c, c.In[gemmB:])
	return append(launches, p.launch(c.GPU, name, params(), p.work(m),
		ptr(a), b, ptr(offsets), ptr(c.In[gemmCounts]), rowsOf(a), rowsOf(c.In[gemmProb]), ptr(c.In[gemmAlpha]), ptr(c.In[gemmProb]), ptr(c.In[gemmBias]),
		ptr(c.Out[0]), ptr(c.Out[1]), int32(m))), nil
}
