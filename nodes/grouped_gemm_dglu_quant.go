package nodes

import (
	"cmp"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

func init() {
	graph.Register(graph.Info{
		Example: scaledDGLU{Act: defaultAct, Align: DefaultAlignment, DC: dtype.BFloat16, ActType: dtype.BFloat16},
		Doc:     "G = alpha[g] dY_g B_g of block-scaled operands, then dC, quantized where asked, dprob, amax, dbias and the activation",
		Options: []string{"act_func = swiglu", "linear_offset = 1", "geglu_alpha = 1.702", "glu_clamp_max = 7", "glu_clamp_min = -7",
			"sf_vec_size = 32 for fp8, 16 for fp4", "dc_dtype = bf16", "act_dtype = that of c", "discrete_col_sfd = 0", "alignment = 256", "tile, cluster, scheduler, family = chosen"},
		NoGrad: "it makes gradients; their gradients are not needed for training",
	})
}

// Positions of scaledDGLU's operands beyond those of groupedGEMMdGLU; after the weights come their factors.
const (
	scaledDGLUSFA = dgluAlpha + 1 + iota
	scaledDGLUNorm
	scaledDGLUGlobalA
	scaledDGLUGlobalB
	scaledDGLUB
)

// Positions of scaledDGLU's outputs beyond those of groupedGEMMdGLU.
const (
	scaledDCCol = dgluAct + 1 + iota
	scaledSFDCRow
	scaledSFDCCol
)

// applyScaled is Apply for block-scaled operands.
func (o GroupedGEMMdGLU) applyScaled(a act, fail func(error) DGLU) DGLU {
	kind, b, err := scaledWeights(o.B)
	if err != nil {
		return fail(err)
	}
	op := scaledDGLU{Act: a, Align: alignment(o.Alignment), DC: cmp.Or(o.DType, dtype.BFloat16), ActType: cmp.Or(o.ActType, o.C.DType()), Layout: o.Layout,
		Scaled: o.Scales.kind(), Weights: kind, Launch: o.Launch}
	out := graph.Apply(op, scaledArgs([]*graph.Value{o.A, o.PaddedOffsets, o.Counts, o.Prob, o.Beta, o.C, o.Alpha}, o.Scales, b)...)
	return DGLU{out[dgluDC], out[dgluDProb], out[dgluAmax], out[dgluDBias], out[dgluAct], out[scaledDCCol], out[scaledSFDCRow], out[scaledSFDCCol]}
}

type scaledDGLU struct {
	Act         act
	Align       int
	DC, ActType dtype.DType
	Layout      Layout
	Scaled      scaledKind
	Weights     weightKind
	Launch      Launch
}

func (o scaledDGLU) Kind() string { return "grouped_gemm_dglu_quant" }

func (o scaledDGLU) Operands() []graph.Operand {
	ops := append(groupedGEMMdGLU{}.Operands()[:dgluB:dgluB], scaleNames()...)
	return append(append(ops, o.Weights.names()...), o.Weights.factorNames()...)
}

func (o scaledDGLU) Outputs() []string {
	return append(dgluOutputs[:len(dgluOutputs):len(dgluOutputs)], "dc_col", "sfdc_row", "sfdc_col")
}

func (o scaledDGLU) Infer(in []*graph.Value) ([]graph.Spec, error) {
	c, end := in[gradC], scaledDGLUB+o.Weights.count()
	ops := scaledOperands{a: in[gradDD], sfa: in[scaledDGLUSFA], norm: in[scaledDGLUNorm], global: in[scaledDGLUGlobalA:scaledDGLUB], b: in[scaledDGLUB:end], sfb: in[end:]}
	if err := o.Scaled.checkPresence(ops, o.Weights); err != nil {
		return nil, err
	}
	rows, experts, err := checkC(c, in[gradOffsets], in[gradCounts], in[gradProb], o.Align)
	if err != nil {
		return nil, err
	}
	if isWide(c.DType()) {
		return nil, graph.BadDType("c", c.DType(), "bf16, f16 or f32")
	}
	if err := checkBlockAlignment(o.Align); err != nil {
		return nil, err
	}
	f, m, n, _, err := o.Scaled.check(ops, o.Weights, experts)
	if err != nil {
		return nil, err
	}
	if c.Dim(0) != m || c.Dim(1) != 2*n {
		return nil, graph.BadShape("c", c.Text(), "(%d,%d): the rows of a, and twice the width %d of b", m, 2*n, n)
	}
	if err := checkStat("alpha", in[dgluAlpha], experts, dtype.Float32); err != nil {
		return nil, err
	}
	if err := checkStat("beta", in[gradBeta], experts, dtype.Float32); err != nil {
		return nil, err
	}
	if err := o.Scaled.checkOut("dc", o.DC, f.Values(), ops.norm, 2*n); err != nil {
		return nil, err
	}
	if err := checkOut("act", o.ActType, dtype.Float32, n); err != nil {
		return nil, err
	}
	s := append(dgluSpecs(c, rows, experts, o.DC, o.ActType), make([]graph.Spec, 3)...)
	s[scaledDCCol], s[scaledSFDCRow], s[scaledSFDCCol] = quantizedSpecs(o.DC, f, m, 2*n, rows)
	if !has16(o.DC) {
		s[dgluAmax] = graph.Spec{}
	}
	return s, o.Launch.check()
}

// Flops implements graph.Coster.
func (o scaledDGLU) Flops(n *graph.Node) int64 {
	_, shape := codesOf(n.In(gradDD))
	return int64(shape[0]) * int64(shape[1]) * int64(n.In(gradC).Dim(1))
}

// Scratch implements graph.Scratcher.
func (o scaledDGLU) Scratch(n *graph.Node) int64 { return dgluScratch(n) }

func (o scaledDGLU) Host(c *graph.Call) func() error {
	a, sfa, offsets := c.In[gradDD], c.In[scaledDGLUSFA], c.In[gradOffsets]
	n := c.In[gradC].Shape[1] / 2
	f := o.Scaled.formatOf(a, sfa)
	p := scaledProductOf(c, f, o.Weights, n, a, sfa, c.In[dgluAlpha], offsets, c.In[scaledDGLUB:])
	p.groups = newGroups(offsets, c.In[gradCounts], a.Shape[0], o.Align, dgluTile, a, c.In[gradC], c.In[gradProb])
	p.groups.blocks = true
	p.global = c.In[scaledDGLUGlobalA:scaledDGLUB]
	x := newBackward[float32](c, &o.Act, o.Layout)
	if narrow(o.DC) {
		x.quant = newScaledOut(c, f, o.Scaled, o.DC, 2*n, a.Shape[0], p.groups,
			c.Out[dgluDC], c.Out[scaledDCCol], c.Out[scaledSFDCRow], c.Out[scaledSFDCCol], nil, c.In[scaledDGLUNorm])
	}
	return x.run(p.groups, p.read, func(w *graph.Worker, e, first, mid, col, nt int) []float32 {
		return p.multiply(w, 0, e, first, mid, p.b.matrix(e, col), nt)
	})
}

// fuseScaled is Fuse where G comes from a product p of block-scaled operands; in are the operands up to alpha.
func (o gluGrad) fuseScaled(s, p *graph.Step, gemm scaledGEMM, in []*graph.Value) (fused, absorbed *graph.Step) {
	values, _ := codesOf(p.In[gemmA])
	if gemm.Align != o.Align || p.Out[scaledAmax] != nil || narrow(gemm.D) || o.DC == dtype.Float32 && values != dtype.E2M1 {
		return nil, nil
	}
	op := scaledDGLU{Act: o.Act, Align: o.Align, DC: o.DC, ActType: o.ActType, Layout: o.Layout, Scaled: gemm.Scaled, Weights: gemm.Weights, Launch: gemm.Launch}
	out := append(append([]*graph.Value(nil), s.Out...), nil, nil, nil)
	return &graph.Step{Op: op, In: append(in, p.In[scaledSFA:]...), Out: out}, p
}
