package nodes

import (
	"cmp"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

func init() {
	options := []string{"sf_vec_size = 32 for fp8, 16 for fp4", "d_dtype = bf16", "discrete_col_sfd = 0", "alignment = 256", "tile, cluster, scheduler, family = chosen"}
	graph.Register(graph.Info{
		Example: scaledGEMM{Align: DefaultAlignment, D: dtype.BFloat16},
		Doc:     "D = prob alpha[g] A_g B_g^T of block-scaled operands (with a bias: + prob bias[g]), quantized where asked, with amax",
		Options: options,
	})
	graph.Register(graph.Info{
		Example: scaledGLU{Act: defaultAct, Align: DefaultAlignment, D: dtype.BFloat16, C: dtype.BFloat16},
		Doc:     "C = alpha[g] A_g B_g^T (+ bias[g]) of block-scaled operands; D = prob act(gate, up), quantized where asked, with amax",
		Options: append([]string{"act_func = swiglu", "linear_offset = 1", "geglu_alpha = 1.702", "glu_clamp_max = 7", "glu_clamp_min = -7",
			"weight_layout = interleaved32", "c_dtype = bf16"}, options...),
	})
}

// ScaledGEMM are the outputs of a grouped GEMM of block-scaled operands. What nobody uses is not computed; an output
// that the formats do not have is nil.
type ScaledGEMM struct {
	D *graph.Value // (M,N), of a GLU (M,N/2): the values, or the row codes of a quantized D

	DCol   *graph.Value // a quantized D's column codes, in its shape
	SFDRow *graph.Value // factors of (M, N/vec), flat
	SFDCol *graph.Value // factors of (N, M/vec), flat; with DiscreteColSF expert by expert
	Amax   *graph.Value // f32 (E,1) beside a D in bf16 or f16: max |D| of each group before rounding
	C      *graph.Value // (M,N), of a GLU: the pre-activation
}

// Positions of the operands of scaledGEMM and scaledGLU: those of the plain products, then these; after the weights
// come their factors, as many.
const (
	scaledSFA = gemmBias + 1 + iota
	scaledNorm
	scaledGlobalA
	scaledGlobalB
	scaledB
)

// Positions of the outputs of scaledGEMM and scaledGLU.
const (
	scaledD = iota
	scaledDCol
	scaledSFDRow
	scaledSFDCol
	scaledAmax
	scaledC // of scaledGLU
)

// ApplyScaled appends the node of block-scaled operands and returns all its outputs.
//
//	ref = alpha[g] * sum_k deq(A) deq(B), in float32
//	no bias:  D = prob * ref ;  bias:  D = ref + prob * bias[g]
//
// A (M,K) and B (E,N,K), dense or discrete, are in one family of BlockFormat, K-major. D is bf16 (default), f16, e4m3,
// e5m2 or e2m1 of fp8 operands, bf16, f16 or f32 of fp4 ones; in fp8 or fp4 it is quantized as Quantize does, along
// rows and columns, from the float32 D, with factors like those of A. Prob is optional: 1.
//
// The gradient is straight through to what Quantize made A and B of, by products of operands quantized along the
// axis that each sums over.
func (o GroupedGEMM) ApplyScaled() ScaledGEMM {
	kind, b, err := scaledWeights(o.B)
	if err != nil {
		v := failIn(scaledGEMM{}.Kind(), o.A, err)
		return ScaledGEMM{D: v}
	}
	op := scaledGEMM{Scaled: o.Scales.kind(), Weights: kind, Align: alignment(o.Alignment), D: cmp.Or(o.DType, dtype.BFloat16), Launch: o.Launch, GradDraw: o.GradDraw}
	out := graph.Apply(op, scaledArgs([]*graph.Value{o.A, o.PaddedOffsets, o.Counts, o.Alpha, o.Prob, o.Bias}, o.Scales, b)...)
	return ScaledGEMM{D: out[scaledD], DCol: out[scaledDCol], SFDRow: out[scaledSFDRow], SFDCol: out[scaledSFDCol], Amax: out[scaledAmax]}
}

// scaledArgs makes one list of operands.
func scaledArgs(in []*graph.Value, s Scales, b []*graph.Value) []*graph.Value {
	return append(append(in, s.operands()...), b...)
}

type scaledGEMM struct {
	Scaled   scaledKind
	Weights  weightKind
	Align    int
	D        dtype.DType
	Launch   Launch
	GradDraw *graph.Value // of the gradient rule: what this node computes does not depend on it
}

func scaledGEMMOperands(k weightKind) []graph.Operand {
	ops := append(gemmOperands(weightKind{})[:gemmB:gemmB], scaleNames()...)
	return append(append(ops, k.names()...), k.factorNames()...)
}

// scaledIn sorts the operands of scaledGEMM and scaledGLU by their roles.
func scaledIn(in []*graph.Value, k weightKind) scaledOperands {
	n := scaledB + k.count()
	return scaledOperands{a: in[gemmA], sfa: in[scaledSFA], norm: in[scaledNorm], global: in[scaledGlobalA:scaledB], b: in[scaledB:n], sfb: in[n:]}
}

func (o scaledGEMM) Kind() string              { return "grouped_gemm_quant" }
func (o scaledGEMM) Operands() []graph.Operand { return scaledGEMMOperands(o.Weights) }
func (o scaledGEMM) Outputs() []string {
	return []string{"d", "d_col", "sfd_row", "sfd_col", "amax"}
}

func (o scaledGEMM) Infer(in []*graph.Value) ([]graph.Spec, error) {
	f, m, n, experts, err := checkScaledGEMM(in, o.Scaled, o.Weights, o.Align, o.Launch)
	if err != nil {
		return nil, err
	}
	if err := o.Scaled.checkOut("d", o.D, f.Values(), in[scaledNorm], n); err != nil {
		return nil, err
	}
	return scaledSpecs(in, o.D, f, m, n, experts), nil
}

// scaledSpecs describes the outputs that scaledGEMM and scaledGLU share.
func scaledSpecs(in []*graph.Value, d dtype.DType, f BlockFormat, m, n, experts int) []graph.Spec {
	s := make([]graph.Spec, scaledAmax+1)
	s[scaledD] = graph.Spec{DType: d, Shape: []int{m, n}, Rows: in[gemmOffsets]}
	s[scaledDCol], s[scaledSFDRow], s[scaledSFDCol] = quantizedSpecs(d, f, m, n, in[gemmOffsets])
	if has16(d) {
		s[scaledAmax] = graph.Spec{DType: dtype.Float32, Shape: []int{experts, 1}}
	}
	return s
}

// checkScaledGEMM checks what the grouped GEMMs of sections 5 and 7 have in common with block-scaled operands.
func checkScaledGEMM(in []*graph.Value, s scaledKind, k weightKind, align int, l Launch) (f BlockFormat, m, n, experts int, err error) {
	ops := scaledIn(in, k)
	// What can be told of formats comes before what the groups are: a plain A has other alignments.
	if err := s.checkPresence(ops, k); err != nil {
		return 0, 0, 0, 0, err
	}
	if experts, err = checkGroups("padded_offsets", in[gemmOffsets], in[gemmCounts], in[gemmA].Dim(0), align); err != nil {
		return 0, 0, 0, 0, err
	}
	if err := checkBlockAlignment(align); err != nil {
		return 0, 0, 0, 0, err
	}
	if f, m, n, _, err = s.check(ops, k, experts); err != nil {
		return 0, 0, 0, 0, err
	}
	if err := checkStat("alpha", in[gemmAlpha], experts, dtype.Float32); err != nil {
		return 0, 0, 0, 0, err
	}
	if err := checkProb(in[gemmProb], m, dtype.Float32); err != nil {
		return 0, 0, 0, 0, err
	}
	if err := checkBias(in[gemmBias], experts, n, dtype.Float32); err != nil {
		return 0, 0, 0, 0, err
	}
	return f, m, n, experts, l.check()
}

// width is N of K-major weights whose first operand is b.
func (k weightKind) width(b *graph.Value) int {
	if k.Ptrs {
		return k.N
	}
	_, shape := codesOf(b)
	return shape[len(shape)-2]
}

// Flops implements graph.Coster.
func (o scaledGEMM) Flops(n *graph.Node) int64 {
	_, shape := codesOf(n.In(gemmA))
	return 2 * int64(shape[0]) * int64(shape[1]) * int64(o.Weights.width(n.In(scaledB)))
}

// ApplyScaled appends the node of block-scaled operands and returns all its outputs; D, (M,N/2), may be quantized as
// that of GroupedGEMM.ApplyScaled, C is bf16 (default), f16 or f32.
func (o GroupedGEMMGLU) ApplyScaled() ScaledGEMM {
	fail := func(err error) ScaledGEMM {
		v := failIn(scaledGLU{}.Kind(), o.A, err)
		return ScaledGEMM{D: v, C: v}
	}
	a, err := o.Activation.resolve()
	if err != nil {
		return fail(err)
	}
	kind, b, err := scaledWeights(o.B)
	if err != nil {
		return fail(err)
	}
	op := scaledGLU{Act: a, Layout: o.Layout, Scaled: o.Scales.kind(), Weights: kind, Align: alignment(o.Alignment), D: cmp.Or(o.DType, dtype.BFloat16),
		C: cmp.Or(o.CType, dtype.BFloat16), Launch: o.Launch, GradDraw: o.GradDraw}
	out := graph.Apply(op, scaledArgs([]*graph.Value{o.A, o.PaddedOffsets, o.Counts, o.Alpha, o.Prob, o.Bias}, o.Scales, b)...)
	return ScaledGEMM{out[scaledD], out[scaledDCol], out[scaledSFDRow], out[scaledSFDCol], out[scaledAmax], out[scaledC]}
}

type scaledGLU struct {
	Act      act
	Layout   Layout
	Scaled   scaledKind
	Weights  weightKind
	Align    int
	D, C     dtype.DType
	Launch   Launch
	GradDraw *graph.Value // as scaledGEMM
}

func (o scaledGLU) Kind() string              { return "grouped_gemm_glu_quant" }
func (o scaledGLU) Operands() []graph.Operand { return scaledGEMMOperands(o.Weights) }
func (o scaledGLU) Outputs() []string {
	return []string{"d", "d_col", "sfd_row", "sfd_col", "amax", "c"}
}

func (o scaledGLU) Infer(in []*graph.Value) ([]graph.Spec, error) {
	if o.Layout > LayoutPairs {
		return nil, graph.Unsupported("weight_layout", o.Layout, "interleaved32, concat or pairs")
	}
	f, m, n, experts, err := checkScaledGEMM(in, o.Scaled, o.Weights, o.Align, o.Launch)
	if err != nil {
		return nil, err
	}
	if err := checkGLUWidth("b", n); err != nil {
		return nil, err
	}
	if err := o.Scaled.checkOut("d", o.D, f.Values(), in[scaledNorm], n/2); err != nil {
		return nil, err
	}
	if err := checkOut("c", o.C, dtype.Float32, n); err != nil {
		return nil, err
	}
	return append(scaledSpecs(in, o.D, f, m, n/2, experts), graph.Spec{DType: o.C, Shape: []int{m, n}, Rows: in[gemmOffsets]}), nil
}

// Flops implements graph.Coster.
func (o scaledGLU) Flops(n *graph.Node) int64 { return scaledGEMM{Weights: o.Weights}.Flops(n) }
