package nodes

import (
	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// CUDAScratch is that of scaledShape.
func (o scaledGEMM) CUDAScratch(n *graph.Node, d graph.GPU) int64 {
	return scaledGEMMScratch(n, d, o.Scaled, o.Weights, o.Align, o.Launch, o.D)
}

// scaledGEMMScratch is the scratch of scaledGEMM and scaledGLU with an output in format dt.
func scaledGEMMScratch(n *graph.Node, d graph.GPU, s scaledKind, w weightKind, align int, l Launch, dt dtype.DType) int64 {
	values, a := codesOf(n.In(gemmA))
	f, err := s.format(values, n.In(scaledSFA).DType())
	if err != nil {
		return 0 // CUDA says so
	}
	return scaledShape{f: f, w: w, l: l, experts: n.In(gemmOffsets).Dim(0), m: a[0], k: a[1], n: w.width(n.In(scaledB)), align: align, thin: thinTileM, quant: narrowOnly(dt)}.scratch(d)
}

func (o scaledGEMM) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	x := scaledRowsCall(c, o.Scaled, o.Weights, o.Align, o.Launch, o.D)
	return x.plain(c.Out[scaledD], nil)
}

// scaledWidthCUDA is scaledWidth of the tensors of a KernelCall.
func scaledWidthCUDA(c *graph.KernelCall, k weightKind) int {
	if k.Ptrs {
		return k.N
	}
	b := c.In[scaledB]
	return b.Shape[len(b.Shape)-2]
}

// scaledRowsCall sorts the operands and outputs of scaledGEMM and scaledGLU with an output in format dt.
func scaledRowsCall(c *graph.KernelCall, s scaledKind, w weightKind, align int, l Launch, dt dtype.DType) scaledCall {
	b, out := c.In[scaledB:], c.Out
	x := scaledCall{
		c: c, f: s.formatOf(c.In[gemmA], c.In[scaledSFA]), w: w, align: align, l: l, thin: thinTileM, n: scaledWidthCUDA(c, w), a: c.In[gemmA], sfa: c.In[scaledSFA],
		b: b[:w.count()], sfb: b[w.count():], global: c.In[scaledGlobalA:scaledB], offsets: c.In[gemmOffsets], counts: c.In[gemmCounts],
		rows: []any{rowsOf(c.In[gemmA]), rowsOf(c.In[gemmProb])}, amax: out[scaledAmax],
	}
	if narrow(dt) {
		x.quant = quantOutput{dt, s.DiscreteCol, c.In[scaledNorm], out[scaledD], out[scaledSFDRow], out[scaledDCol], out[scaledSFDCol]}
	}
	return x
}

// onlyCall sorts the operands of groupedGEMM and groupedGEMMGLU with weights that are block-scaled alone.
func onlyCall(c *graph.KernelCall, w weightKind, align int, l Launch, n int) scaledCall {
	b := c.In[gemmB:]
	return scaledCall{
		c: c, f: w.Only, w: w, align: align, l: l, thin: thinTileM, n: n, a: c.In[gemmA], b: b[:w.count()], sfb: b[w.count():], global: make([]*graph.Tensor, 2),
		offsets: c.In[gemmOffsets], counts: c.In[gemmCounts], rows: []any{rowsOf(c.In[gemmA]), rowsOf(c.In[gemmProb])},
	}
}

// epilogue describes a plain epilogue with outputs d and cc.
func (x scaledCall) epilogue(d, cc *graph.Tensor) plainEpilogue {
	in := x.c.In
	return plainEpilogue{
		BiasType: typeOf(in[gemmBias]), DType: x.quant.typeOf(d), CType: typeOf(cc),
		HasAlpha: in[gemmAlpha] != nil, HasProb: in[gemmProb] != nil, HasBias: in[gemmBias] != nil, HasD: d != nil, HasC: cc != nil,
	}
}

// plain describes a product of section 4 or 7.
func (x scaledCall) plain(d, cc *graph.Tensor) ([]graph.Launch, error) {
	e := x.epilogue(d, cc)
	p, s, err := x.product()
	if err != nil {
		return nil, err
	}
	return x.launches("grouped_gemm_quant", p, s, func(p scaledProduct) any {
		return struct {
			scaledProduct
			plainEpilogue
			quantConsts
		}{p, e, x.quant.consts()}
	}, x.plainArgs(d, cc)...), nil
}

// plainArgs are the arguments from alpha on.
func (x scaledCall) plainArgs(d, cc *graph.Tensor) []any {
	in := x.c.In
	return []any{ptr(in[gemmAlpha]), ptr(x.global[0]), ptr(x.global[1]), ptr(x.amax), ptr(in[gemmProb]), ptr(in[gemmBias]), ptr(d), ptr(cc), int32(x.a.Shape[0])}
}

// CUDAScratch is that of scaledGEMM.
func (o scaledGLU) CUDAScratch(n *graph.Node, d graph.GPU) int64 {
	return scaledGEMMScratch(n, d, o.Scaled, o.Weights, o.Align, o.Launch, o.D)
}

func (o scaledGLU) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	x := scaledRowsCall(c, o.Scaled, o.Weights, o.Align, o.Launch, o.D)
	return x.glu(o.Layout, o.Act, c.Out[scaledD], c.Out[scaledC])
}

// glu describes a product of section 5.
func (x scaledCall) glu(layout Layout, a act, d, cc *graph.Tensor) ([]graph.Launch, error) {
	e := x.epilogue(d, cc)
	p, s, err := x.product()
	if err != nil {
		return nil, err
	}
	if layout == LayoutConcat {
		p.UpRow = x.n / 2
	}
	return x.launches("grouped_gemm_glu_quant", p, s, func(p scaledProduct) any {
		return struct {
			scaledProduct
			plainEpilogue
			quantConsts
			Layout string
			Act    actParams
		}{p, e, x.quant.consts(), layout.cuda(), a.cuda()}
	}, x.plainArgs(d, cc)...), nil
}
