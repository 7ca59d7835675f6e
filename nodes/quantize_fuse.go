package nodes

import "github.com/moegraph/moegraph/graph"

// Fuse implements graph.Fuser: a Quantize whose x is the 16-bit output of a product of block-scaled operands, and
// that nobody else reads, becomes that product's quantizing epilogue, if the product has one for this format:
// factors like those of its operands, the same groups, rounding to nearest. x is then neither rounded to 16 bits
// nor stored.
func (o quantize) Fuse(s *graph.Step, producer func(int) (*graph.Step, bool)) (fused, absorbed *graph.Step) {
	p, sole := producer(quantX)
	if p == nil || !sole || s.In[quantOffsets] == nil || s.In[quantGlobal] != nil || s.In[quantDraw] != nil || o.Auto || o.Transpose || o.Unit {
		return nil, nil
	}
	switch op := p.Op.(type) {
	case scaledGEMM:
		if !o.fits(s, p, op.Scaled, op.Align, p.In[gemmA], p.In[scaledSFA], p.In[gemmOffsets], p.In[gemmCounts], scaledD) || p.Out[scaledAmax] != nil {
			return nil, nil
		}
		op.D, op.Scaled.DiscreteCol = o.Format.Values(), o.Discrete
		return &graph.Step{Name: p.Name, Op: op, In: withNorm(p.In, scaledNorm, s.In[quantNorm]), Out: quantizedOut(p.Out, s.Out, scaledD, scaledDCol)}, p
	case scaledGLU:
		if !o.fits(s, p, op.Scaled, op.Align, p.In[gemmA], p.In[scaledSFA], p.In[gemmOffsets], p.In[gemmCounts], scaledD) || p.Out[scaledAmax] != nil {
			return nil, nil
		}
		op.D, op.Scaled.DiscreteCol = o.Format.Values(), o.Discrete
		return &graph.Step{Name: p.Name, Op: op, In: withNorm(p.In, scaledNorm, s.In[quantNorm]), Out: quantizedOut(p.Out, s.Out, scaledD, scaledDCol)}, p
	case scaledDGLU:
		if !o.fits(s, p, op.Scaled, op.Align, p.In[gradDD], p.In[scaledDGLUSFA], p.In[gradOffsets], p.In[gradCounts], dgluDC) || p.Out[dgluAmax] != nil {
			return nil, nil
		}
		op.DC, op.Scaled.DiscreteCol = o.Format.Values(), o.Discrete
		return &graph.Step{Name: p.Name, Op: op, In: withNorm(p.In, scaledDGLUNorm, s.In[quantNorm]), Out: quantizedOut(p.Out, s.Out, dgluDC, scaledDCCol)}, p
	}
	return nil, nil
}

// fits says whether output d of p, a product of k with operands a and sfa, can be quantized so in its epilogue.
func (o quantize) fits(s, p *graph.Step, k scaledKind, align int, a, sfa, offsets, counts *graph.Value, d int) bool {
	values, _ := codesOf(a)
	f, err := k.format(values, sfa.DType())
	if err != nil || p.Out[d] != s.In[quantX] || !has16(p.Out[d].DType()) || align != o.Align || offsets != s.In[quantOffsets] || counts != s.In[quantCounts] {
		return false
	}
	return k.quantizes(o.Format.Values(), f.Values(), p.Out[d].Dim(1)) && quantizedFormat(o.Format.Values(), f) == o.Format
}

// withNorm returns the operands with norm in its place; without one it is 1.
func withNorm(in []*graph.Value, at int, norm *graph.Value) []*graph.Value {
	in = append([]*graph.Value(nil), in...)
	in[at] = norm
	return in
}

// quantizedOut returns the product's outputs out with what Quantize makes in place of d; column codes and factors
// stand from col on.
func quantizedOut(out, q []*graph.Value, d, col int) []*graph.Value {
	out = append([]*graph.Value(nil), out...)
	out[d], out[col], out[col+1], out[col+2] = q[quantRow], q[quantCol], q[quantRowSF], q[quantColSF]
	return out
}
