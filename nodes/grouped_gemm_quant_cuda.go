package nodes

import (
	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// CUDAScratch is the addresses of discrete weights and factors, the flag of extreme factors, decoded operands, and D in float32
// where it is quantized.
func (o scaledGEMM) CUDAScratch(n *graph.Node, d graph.GPU) int64 {
	return scaledGEMMScratch(n, d, o.Scaled, o.Weights, o.Align, o.Launch) + quantizedBytes(o.D, n.In(gemmA).Dim(0), o.Weights.width(n.In(scaledB)))
}

// scaledGEMMScratch is the scratch of the product of scaledGEMM and scaledGLU.
func scaledGEMMScratch(n *graph.Node, d graph.GPU, s scaledKind, w weightKind, align int, l Launch) int64 {
	values, a := codesOf(n.In(gemmA))
	f, err := s.format(values, n.In(scaledSFA).DType())
	if err != nil {
		return 0 // CUDA says so
	}
	return scaledShape{f: f, w: w, l: l, experts: n.In(gemmOffsets).Dim(0), m: a[0], k: a[1], n: w.width(n.In(scaledB)), align: align, thin: thinTileM}.scratch(d)
}

func (o scaledGEMM) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	x := scaledRowsCall(c, o.Scaled, o.Weights, o.Align, o.Launch)
	x.n, x.amax = scaledWidthCUDA(c, o.Weights), c.Out[scaledAmax]
	if narrow(o.D) {
		q := x.quantizedD(o.D, o.Scaled, x.n)
		return q.after(x.plain(q.d, nil))
	}
	return x.plain(c.Out[scaledD], nil)
}

// quantizedD describes the D of scaledGEMM and scaledGLU, which has n columns.
func (x scaledCall) quantizedD(dt dtype.DType, s scaledKind, n int) quantizedOutput {
	in, out := x.c.In, x.c.Out
	return x.quantized(dt, s, n, x.scratch(), in[scaledNorm], out[scaledD], out[scaledSFDRow], out[scaledDCol], out[scaledSFDCol],
		in[gemmProb], in[gemmA])
}

// scaledWidthCUDA is scaledWidth of the tensors of a KernelCall.
func scaledWidthCUDA(c *graph.KernelCall, k weightKind) int {
	if k.Ptrs {
		return k.N
	}
	b := c.In[scaledB]
	return b.Shape[len(b.Shape)-2]
}

// scaledRowsCall sorts the operands of scaledGEMM and scaledGLU.
func scaledRowsCall(c *graph.KernelCall, s scaledKind, w weightKind, align int, l Launch) scaledCall {
	b := c.In[scaledB:]
	return scaledCall{
		c: c, f: s.formatOf(c.In[gemmA], c.In[scaledSFA]), w: w, align: align, l: l, thin: thinTileM, a: c.In[gemmA], sfa: c.In[scaledSFA],
		b: b[:w.count()], sfb: b[w.count():], global: c.In[scaledGlobalA:scaledB], offsets: c.In[gemmOffsets], counts: c.In[gemmCounts],
		rows: []any{rowsOf(c.In[gemmA]), rowsOf(c.In[gemmProb])},
	}
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
		BiasType: typeOf(in[gemmBias]), DType: typeOf(d), CType: typeOf(cc),
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
		}{p, e}
	}, x.plainArgs(d, cc)...), nil
}

// plainArgs are the arguments from alpha on.
func (x scaledCall) plainArgs(d, cc *graph.Tensor) []any {
	in := x.c.In
	return []any{ptr(in[gemmAlpha]), ptr(x.global[0]), ptr(x.global[1]), ptr(x.amax), ptr(in[gemmProb]), ptr(in[gemmBias]), ptr(d), ptr(cc), int32(x.a.Shape[0])}
}

// CUDAScratch is that of scaledGEMM.
func (o scaledGLU) CUDAScratch(n *graph.Node, d graph.GPU) int64 {
	return scaledGEMMScratch(n, d, o.Scaled, o.Weights, o.Align, o.Launch) + quantizedBytes(o.D, n.In(gemmA).Dim(0), o.Weights.width(n.In(scaledB))/2)
}

func (o scaledGLU) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	x := scaledRowsCall(c, o.Scaled, o.Weights, o.Align, o.Launch)
	x.n, x.amax = scaledWidthCUDA(c, o.Weights), c.Out[scaledAmax]
	if narrow(o.D) {
		q := x.quantizedD(o.D, o.Scaled, x.n/2)
		return q.after(x.glu(o.Layout, o.Act, q.d, c.Out[scaledC]))
	}
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
			Layout string
			Act    actParams
		}{p, e, layout.cuda(), a.cuda()}
	}, x.plainArgs(d, cc)...), nil
}
