package nodes

import (
	"cmp"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

func init() {
	graph.Register(graph.Info{
		Example: groupedGEMMdGLU{Act: defaultAct, Align: DefaultAlignment, DC: dtype.BFloat16, ActType: dtype.BFloat16},
		Doc:     "G = alpha[g] dY_g B_g, then dC, dprob, amax, dbias and the activation from G and C",
		Options: []string{"act_func = swiglu", "linear_offset = 1", "geglu_alpha = 1.702", "glu_clamp_max = 7", "glu_clamp_min = -7",
			"b_major = k", "alignment = 256", "dc_dtype = that of c", "act_dtype = that of c", "tile, cluster, scheduler, family = chosen"},
		NoGrad: "it makes gradients; their gradients are not needed for training",
	})
}

// GroupedGEMMdGLU are the operands and options of the backward of FC1's activation, fused with the matrix product
// that makes its gradient (contracts, section 6).
//
//	G = alpha[g] * A_g B_g ;  gate, up = deinterleave(beta[g] * C)
//	dprob[m] = sum_n act * G ;  dC = prob * G * (derivatives of act)
//	dbias[g] = sum over the rows of g of dC ;  amax[g] = max |dgate|, max |dup|, before rounding
//
// A is dY (M,K); B is FC2's weight as stored, (E,K,n), with Weights.NMajor; C is (M,2n) in blocks of 32. dC is
// the gradient with respect to beta[g]*C. What nobody uses is not computed. A and B may be block-scaled, B then
// (E,n,K), quantized along K, and dC quantized.
type GroupedGEMMdGLU struct {
	A             *graph.Value // dY (M,K)
	B             Weights
	C             *graph.Value // (M,2n)
	PaddedOffsets *graph.Value // int32 (E,)
	Counts        *graph.Value // int32 (E,), optional
	Alpha         *graph.Value // f32 (E,), optional: 1
	Prob          *graph.Value // f32 (M,), optional: 1
	Beta          *graph.Value // f32 (E,), optional: 1
	Scales                     // of block-scaled operands

	Activation Activation
	Layout     Layout      // of dC and dbias; C is always in blocks of 32
	Alignment  int         // of the groups; default 256
	DType      dtype.DType // of dC; default that of C
	ActType    dtype.DType // of Act; default that of C
	Launch     Launch
}

// DGLU are the outputs of GroupedGEMMdGLU.
type DGLU struct {
	DC    *graph.Value // (M,2n)
	DProb *graph.Value // f32 (M,)
	Amax  *graph.Value // f32 (E,2)
	DBias *graph.Value // f32 (E,2n)
	Act   *graph.Value // (M,n): prob times the recomputed activation

	DCCol, SFDCRow, SFDCCol *graph.Value // of a quantized dC: as those of ScaledGEMM
}

// Apply appends the node and returns its outputs.
func (o GroupedGEMMdGLU) Apply() DGLU {
	fail := func(err error) DGLU {
		v := failIn(groupedGEMMdGLU{}.Kind(), o.A, err)
		return DGLU{v, v, v, v, v, nil, nil, nil}
	}
	a, err := o.Activation.resolve()
	if err != nil {
		return fail(err)
	}
	if o.Scales.given(o.A, o.B) {
		return o.applyScaled(a, fail)
	}
	kind, b, err := o.B.operands()
	if err != nil {
		return fail(err)
	}
	o.DType = cmp.Or(o.DType, o.C.DType())
	o.ActType = cmp.Or(o.ActType, o.C.DType())
	op := groupedGEMMdGLU{Act: a, Align: alignment(o.Alignment), DC: o.DType, ActType: o.ActType, Layout: o.Layout, Weights: kind, Launch: o.Launch}
	out := graph.Apply(op, append([]*graph.Value{o.A, o.PaddedOffsets, o.Counts, o.Prob, o.Beta, o.C, o.Alpha}, b...)...)
	return DGLU{out[dgluDC], out[dgluDProb], out[dgluAmax], out[dgluDBias], out[dgluAct], nil, nil, nil}
}

type groupedGEMMdGLU struct {
	Act         act
	Align       int
	DC, ActType dtype.DType
	Layout      Layout
	Weights     weightKind
	Launch      Launch
}

// Positions of groupedGEMMdGLU's operands beyond those of gluGrad; weights follow.
const (
	dgluAlpha = gradC + 1
	dgluB     = gradC + 2
)

func (o groupedGEMMdGLU) Kind() string { return "grouped_gemm_dglu" }

func (o groupedGEMMdGLU) Operands() []graph.Operand {
	return append([]graph.Operand{{Name: "a"}, {Name: "padded_offsets"}, {Name: "counts", Optional: true}, {Name: "prob", Optional: true},
		{Name: "beta", Optional: true}, {Name: "c"}, {Name: "alpha", Optional: true}}, o.Weights.operands()...)
}

func (o groupedGEMMdGLU) Outputs() []string { return dgluOutputs }

func (o groupedGEMMdGLU) Infer(in []*graph.Value) ([]graph.Spec, error) {
	a, c := in[gradDD], in[gradC]
	if a.Rank() != 2 {
		return nil, graph.BadShape("a", a.Text(), "(M,K)")
	}
	if !plain(a.DType()) {
		return nil, graph.BadDType("a", a.DType(), "bf16, f16 or f32 (f64 with everything f64)")
	}
	rows, experts, err := checkC(c, in[gradOffsets], in[gradCounts], in[gradProb], o.Align)
	if err != nil {
		return nil, err
	}
	if isWide(c.DType()) != isWide(a.DType()) {
		return nil, graph.BadDType("c", c.DType(), "bf16, f16 or f32 (f64 with everything f64)")
	}
	if c.Dim(0) != a.Dim(0) {
		return nil, graph.BadShape("c", c.Text(), "%d rows as in a", a.Dim(0))
	}
	if err := check16("a", "K", a.DType(), a.Dim(1)); err != nil {
		return nil, err
	}
	n, err := o.Weights.check(in[dgluB:], experts, a.Dim(1), a.DType())
	if err != nil {
		return nil, err
	}
	if c.Dim(1) != 2*n {
		return nil, graph.BadShape("c", c.Text(), "(%d,%d): twice the width %d of b", a.Dim(0), 2*n, n)
	}
	if err := checkStat("alpha", in[dgluAlpha], experts, a.DType()); err != nil {
		return nil, err
	}
	if err := checkStat("beta", in[gradBeta], experts, a.DType()); err != nil {
		return nil, err
	}
	if err := checkOut("dc", o.DC, a.DType(), 2*n); err != nil {
		return nil, err
	}
	if err := checkOut("act", o.ActType, a.DType(), n); err != nil {
		return nil, err
	}
	return dgluSpecs(c, rows, experts, o.DC, o.ActType), o.Launch.check()
}

// Flops implements graph.Coster.
func (o groupedGEMMdGLU) Flops(n *graph.Node) int64 {
	return int64(n.In(gradDD).Dim(0)) * int64(n.In(gradDD).Dim(1)) * int64(n.In(gradC).Dim(1))
}

// Fuse implements graph.Fuser: a GLU gradient whose G comes from a grouped GEMM without prob, bias or another
// reader takes the product in, and G is never rounded or stored.
func (o gluGrad) Fuse(s *graph.Step, producer func(int) (*graph.Step, bool)) (fused, absorbed *graph.Step) {
	p, sole := producer(gradDD)
	if p == nil || !sole || s.In[gradOffsets] == nil {
		return nil, nil
	}
	if kind := p.Op.Kind(); kind != (groupedGEMM{}).Kind() && kind != (scaledGEMM{}).Kind() {
		return nil, nil
	}
	if p.In[gemmProb] != nil || p.In[gemmBias] != nil || p.Out[0] != s.In[gradDD] || p.In[gemmOffsets] != s.In[gradOffsets] || p.In[gemmCounts] != s.In[gradCounts] {
		return nil, nil
	}
	in := []*graph.Value{p.In[gemmA], s.In[gradOffsets], s.In[gradCounts], s.In[gradProb], s.In[gradBeta], s.In[gradC], p.In[gemmAlpha]}
	switch gemm := p.Op.(type) {
	case groupedGEMM:
		if p.Out[1] != nil || gemm.Align != o.Align {
			return nil, nil
		}
		op := groupedGEMMdGLU{Act: o.Act, Align: o.Align, DC: o.DC, ActType: o.ActType, Layout: o.Layout, Weights: gemm.Weights, Launch: gemm.Launch}
		return &graph.Step{Op: op, In: append(in, p.In[gemmB:]...), Out: append([]*graph.Value(nil), s.Out...)}, p
	case scaledGEMM:
		return o.fuseScaled(s, p, gemm, in)
	}
	return nil, nil
}
