package nodes

import (
	"cmp"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

func init() {
	graph.Register(graph.Info{
		Example: groupedGEMMGLU{Act: defaultAct, Align: DefaultAlignment, D: dtype.BFloat16, C: dtype.BFloat16},
		Doc:     "C = alpha[g] A_g B_g^T (+ bias[g]); D = prob act(gate, up), gate and up from C",
		Options: []string{"act_func = swiglu", "linear_offset = 1", "geglu_alpha = 1.702", "glu_clamp_max = 7", "glu_clamp_min = -7",
			"weight_layout = interleaved32", "b_major = k", "alignment = 256", "d_dtype = that of a", "c_dtype = that of d", "tile, cluster, scheduler, family = chosen"},
	})
}

// GroupedGEMMGLU are the operands and options of FC1 with its gated activation (contracts, section 5).
//
//	C = alpha[g] * A_g B_g^T (+ bias[g]) ;  D = prob * act(gate, up)
//
// A is (M,K); the weights' N counts gate and up columns together and is a multiple of 64, in the order that Layout
// says; C is (M,N), always in blocks of 32 columns gate and 32 up; D is (M,N/2), computed from the float32 C.
// C is computed only where it is used: a graph without gradients writes none.
//
// A and B may be block-scaled, as those of GroupedGEMM, and D then quantized; C is not.
//
// Gradients flow to A, B, Prob and Bias; those of B and Bias are in Layout's order.
type GroupedGEMMGLU struct {
	A             *graph.Value // (M,K)
	B             Weights
	PaddedOffsets *graph.Value // int32 (E,)
	Counts        *graph.Value // int32 (E,), optional
	Alpha         *graph.Value // f32 (E,), optional: 1
	Prob          *graph.Value // f32 (M,), optional: 1
	Bias          *graph.Value // (E,N), optional
	Scales                     // of block-scaled operands

	Activation   Activation
	Layout       Layout      // of the N axis of B and Bias
	Alignment    int         // of the groups; default 256
	DType, CType dtype.DType // of D and C; default that of A, that of D
	Launch       Launch
}

// Apply appends the node and returns D and C.
func (o GroupedGEMMGLU) Apply() (d, c *graph.Value) {
	if o.Scales.given(o.A, o.B) {
		s := o.ApplyScaled()
		return s.D, s.C
	}
	fail := func(err error) (d, c *graph.Value) {
		v := failIn(groupedGEMMGLU{}.Kind(), o.A, err)
		return v, v
	}
	a, err := o.Activation.resolve()
	if err != nil {
		return fail(err)
	}
	kind, b, err := o.B.operands()
	if err != nil {
		return fail(err)
	}
	o.DType = cmp.Or(o.DType, o.A.DType())
	o.CType = cmp.Or(o.CType, o.DType)
	op := groupedGEMMGLU{Act: a, Layout: o.Layout, Weights: kind, Align: alignment(o.Alignment), D: o.DType, C: o.CType, Launch: o.Launch}
	out := graph.Apply(op, append([]*graph.Value{o.A, o.PaddedOffsets, o.Counts, o.Alpha, o.Prob, o.Bias}, b...)...)
	return out[0], out[1]
}

type groupedGEMMGLU struct {
	Act     act
	Layout  Layout
	Weights weightKind
	Align   int
	D, C    dtype.DType
	Launch  Launch
}

func (o groupedGEMMGLU) Kind() string              { return "grouped_gemm_glu" }
func (o groupedGEMMGLU) Operands() []graph.Operand { return gemmOperands(o.Weights) }
func (o groupedGEMMGLU) Outputs() []string         { return []string{"d", "c"} }

func (o groupedGEMMGLU) Infer(in []*graph.Value) ([]graph.Spec, error) {
	if o.Layout > LayoutPairs {
		return nil, graph.Unsupported("weight_layout", o.Layout, "interleaved32, concat or pairs")
	}
	m, n, err := checkGEMM(in, o.Weights, o.Align, o.Launch)
	if err != nil {
		return nil, err
	}
	if err := checkGLUWidth("b", n); err != nil {
		return nil, err
	}
	dt := in[gemmA].DType()
	if err := checkOut("d", o.D, dt, n/2); err != nil {
		return nil, err
	}
	if err := checkOut("c", o.C, dt, n); err != nil {
		return nil, err
	}
	return []graph.Spec{{DType: o.D, Shape: []int{m, n / 2}, Rows: in[gemmOffsets]}, {DType: o.C, Shape: []int{m, n}, Rows: in[gemmOffsets]}}, nil
}

// Flops implements graph.Coster.
func (o groupedGEMMGLU) Flops(n *graph.Node) int64 {
	a := n.In(gemmA)
	width := int64(n.Out(1).Dim(1))
	if width == 0 {
		width = 2 * int64(n.Out(0).Dim(1))
	}
	return 2 * int64(a.Dim(0)) * int64(a.Dim(1)) * width
}

func (o groupedGEMMGLU) Gradient(n *graph.Node, grads []*graph.Value) []*graph.Value {
	a, offsets, counts, prob, bias := n.In(gemmA), n.In(gemmOffsets), n.In(gemmCounts), n.In(gemmProb), n.In(gemmBias)
	out := make([]*graph.Value, len(o.Operands()))
	var dC, dBias *graph.Value
	if grads[0] != nil {
		g := graph.Apply(gluGrad{Act: o.Act, Align: o.Align, DC: a.DType(), ActType: a.DType(), Layout: o.Layout},
			grads[0], offsets, counts, prob, nil, n.Out(1))
		dC, dBias = g[dgluDC], g[dgluDBias]
		if prob != nil {
			out[gemmProb] = g[dgluDProb]
		}
	}
	if grads[1] != nil {
		extra := columnOrder(as(n.Graph(), grads[1], a.DType()), o.Layout)
		dC = addNonNil(dC, extra)
		if bias != nil {
			rows := groupRows{offsets: offsets, counts: counts, align: o.Align}
			dBias = addNonNil(dBias, rows.sum(extra, nil, statType(a.DType())))
		}
	}
	if bias != nil {
		out[gemmBias] = Cast(dBias, bias.DType())
	}
	gemmGradients(n, o.Weights, o.Align, o.Launch, dC, n.In(gemmAlpha), out)
	return out
}

// Fuse implements graph.Fuser: a GLU whose C comes from a grouped GEMM without prob, where the bias is
// alone, takes the product in, and D is computed from the unrounded C.
func (o glu) Fuse(s *graph.Step, producer func(int) (*graph.Step, bool)) (fused, absorbed *graph.Step) {
	p, _ := producer(gluC)
	if p == nil || s.In[gluOffsets] == nil {
		return nil, nil
	}
	gemm, ok := p.Op.(groupedGEMM)
	if !ok || p.In[gemmProb] != nil || p.In[gemmOffsets] != s.In[gluOffsets] || p.In[gemmCounts] != s.In[gluCounts] || gemm.Align != o.Align {
		return nil, nil
	}
	in := append([]*graph.Value(nil), p.In...)
	in[gemmProb] = s.In[gluProb]
	// C and D of a product without prob are the same numbers: the fused node makes the one that is read here.
	if p.Out[0] != nil && p.Out[1] != nil {
		return nil, nil
	}
	format := gemm.D
	if s.In[gluC] == p.Out[1] {
		format = gemm.C
	}
	op := groupedGEMMGLU{Act: o.Act, Weights: gemm.Weights, Align: o.Align, D: o.D, C: format, Launch: gemm.Launch}
	return &graph.Step{Op: op, In: in, Out: []*graph.Value{s.Out[0], s.In[gluC]}}, p
}
