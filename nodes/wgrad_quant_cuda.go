package nodes

import (
	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// scaledGroupProduct are the constants of scaled_groups.cuh.
type scaledGroupProduct struct {
	groupProduct
	scaledConsts
}

// CUDAScratch is the addresses of discrete gradients, the flag of extreme factors, then decoded operands.
func (o scaledWGrad) CUDAScratch(n *graph.Node, _ graph.GPU) int64 {
	_, a := codesOf(n.In(wgA))
	_, b := codesOf(n.In(wgB))
	_, decoded := decodedBytes(a[0]*a[1], b[0]*b[1])
	return pointerBytes(o.WGrad.Discrete) + flagBytes + decoded
}

func (o scaledWGrad) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	w, a, b, offsets, alpha := o.WGrad, c.In[wgA], c.In[wgB], c.In[wgOffsets], c.In[wgAlpha]
	f, err := blockFormatOf(valuesFormat(a), c.In[scaledWGSFA].DType, o.Vec, "sfa")
	if err != nil {
		return nil, err
	}
	hidden, tokens, inter := a.Shape[0], codeWidth(a), codeWidth(b)
	if w.AMajorM {
		hidden, tokens = codeWidth(a), a.Shape[0]
	}
	if w.BMajorK {
		inter = b.Shape[0]
	}
	s := productSize{dt: dtype.BFloat16, groups: offsets.Shape[0], m: hidden, n: inter, codes: codeBits{a: f.Values().Bits(), b: f.Values().Bits()}, decoded: true}
	p := scaledGroupProduct{w.product(s.groups, hidden, inter, "bf16", alpha), scaledConsts{
		AType: "float", CodesA: cudaCodes(f.Values()), CodesB: cudaCodes(f.Values()), Format: cudaFactors(f.Factor()), Vec: f.Vec(), Align: w.Align,
		HasGlobalA: c.In[scaledWGGlobalA] != nil, HasGlobalB: c.In[scaledWGGlobalB] != nil,
	}}
	if p.productTile, err = chooseTile(w.Launch, c.GPU, s); err != nil {
		return nil, err
	}
	out, launches := w.output(c, scaledWGInto)
	rowsA, rowsB := w.rows(a, b)
	flag := ptr(nil)
	if f.extremes() {
		flag = scratchAt(c, int(pointerBytes(w.Discrete)))
		launches = append(launches, zeros(c.GPU, ptr(nil), flag, 1, nil))
	}
	// The tokens of experts are few bytes beside the work, also where they are few: they are always decoded first.
	first, _ := decodedBytes(hidden*tokens, inter*tokens)
	da, db := scratchAt(c, int(pointerBytes(w.Discrete)+flagBytes)), scratchAt(c, int(pointerBytes(w.Discrete)+flagBytes+first))
	for i, x := range []struct {
		rows  int
		inner bool
		out   graph.Pointer
	}{{hidden, p.RowsInnerA, da}, {inter, p.RowsInnerB, db}} {
		d := decodeParams{Codes: p.CodesA, Format: p.Format, Vec: p.Vec, E: p.E, Rows: x.rows, Align: w.Align, TokensInner: x.inner, Ragged: w.Ragged,
			Extremes: f.extremes()}
		launches = append(launches, d.launch(c.GPU, tiles(x.rows, 128)*tiles(tokens, 128), x.out, ptr(c.In[wgA+i]), ptr(c.In[scaledWGSFA+i]), ptr(offsets), ptr(c.In[wgCounts]),
			rowsA, rowsB, flag, int32(tokens)))
	}
	rest := []any{flag, ptr(offsets), ptr(c.In[wgCounts]), rowsA, rowsB, ptr(alpha), ptr(c.In[scaledWGGlobalA]), ptr(c.In[scaledWGGlobalB]), out, int32(tokens)}
	decoded := p
	decoded.AType, decoded.CodesA, decoded.CodesB, decoded.Format, decoded.Vec = "bf16", "kNoCodes", "kNoCodes", "kE8M0Factors", 32 // whatever the format
	if f.extremes() {
		decoded.When = unlessExtreme
	}
	launches = append(launches, p.launch(c.GPU, "wgrad_quant", decoded, p.work(), join(da, db, ptr(nil), ptr(nil), rest)...))
	if f.extremes() {
		p.When, p.OperandType, s.dt = ifExtreme, "float", dtype.Float32
		p.Blocks, p.SharedBytes = 1, p.sharedBytes(0, s)
		launches = append(launches, p.launch(c.GPU, "wgrad_quant", p, p.work(), join(ptr(a), ptr(b), ptr(c.In[scaledWGSFA]), ptr(c.In[scaledWGSFB]), rest)...))
	}
	return launches, nil
}
