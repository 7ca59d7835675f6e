package nodes

import (
	"cmp"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

func init() {
	graph.Register(graph.Info{
		Example: groupedGEMM{Align: DefaultAlignment, D: dtype.BFloat16, C: dtype.BFloat16},
		Doc:     "C = alpha[g] A_g B_g^T (+ prob bias[g]); D = prob C without a bias, else C",
		Options: []string{"b_major = k", "alignment = 256", "d_dtype = that of a", "c_dtype = that of d", "tile, cluster, scheduler, family = chosen"},
	})
}

// GroupedGEMM are the operands and options of a grouped matrix product (contracts, section 4).
//
//	G = alpha[g] * A_g B_g^T
//	no bias:  C = G,                  D = prob * G
//	bias:     C = G + prob * bias[g], D = C
//
// A is (M,K), its rows those of the experts one after the other as PaddedOffsets says; B is (E,N,K) or
// discrete. A and B are both bf16, f16 or f32 (f64 with everything f64). Accumulation in float32; every output
// comes from the float32 sum and is rounded once. Rows at or past the last offset are neither read nor
// written; with Counts padding rows are read as zeros and written as zeros.
//
// With A and B in e4m3, e5m2 or e2m1 and their factors, Scales.SFA and Weights.SF, this is the product of block-scaled
// operands (contracts, section 7); ApplyScaled returns what a quantized D consists of.
//
// Gradients flow to A, B, Prob and Bias.
type GroupedGEMM struct {
	A             *graph.Value // (M,K)
	B             Weights
	PaddedOffsets *graph.Value // int32 (E,)
	Counts        *graph.Value // int32 (E,), optional
	Alpha         *graph.Value // f32 (E,), optional: 1
	Prob          *graph.Value // f32 (M,), optional: 1
	Bias          *graph.Value // (E,N), optional
	Scales                     // of block-scaled operands

	Alignment    int         // of the groups; default 256
	DType, CType dtype.DType // of D and C; default that of A, that of D
	Launch       Launch
}

// Apply appends the node and returns D and C, both (M,N). C costs nothing where nobody uses it; with block-scaled
// operands there is none.
func (o GroupedGEMM) Apply() (d, c *graph.Value) {
	if o.Scales.given(o.A, o.B) {
		return o.ApplyScaled().D, nil
	}
	o.DType = cmp.Or(o.DType, o.A.DType())
	o.CType = cmp.Or(o.CType, o.DType)
	kind, b, err := o.B.operands()
	if err != nil {
		v := failIn(groupedGEMM{}.Kind(), o.A, err)
		return v, v
	}
	op := groupedGEMM{Weights: kind, Align: alignment(o.Alignment), D: o.DType, C: o.CType, Launch: o.Launch}
	out := graph.Apply(op, append([]*graph.Value{o.A, o.PaddedOffsets, o.Counts, o.Alpha, o.Prob, o.Bias}, b...)...)
	return out[0], out[1]
}

// failIn keeps a mistake made before a node could be built.
func failIn(kind string, v *graph.Value, err error) *graph.Value {
	g := v.Graph()
	if oe, ok := err.(*graph.OperandError); ok {
		oe.Op, oe.Node = kind, kind
	}
	return g.Fail(err)
}

type groupedGEMM struct {
	Weights weightKind
	Align   int
	D, C    dtype.DType
	Launch  Launch
}

// Positions of the operands of the grouped GEMMs; weights follow.
const (
	gemmA = iota
	gemmOffsets
	gemmCounts
	gemmAlpha
	gemmProb
	gemmBias
	gemmB
)

func gemmOperands(k weightKind) []graph.Operand {
	return append([]graph.Operand{{Name: "a"}, {Name: "padded_offsets"}, {Name: "counts", Optional: true},
		{Name: "alpha", Optional: true}, {Name: "prob", Optional: true}, {Name: "bias", Optional: true}}, k.operands()...)
}

func (o groupedGEMM) Kind() string              { return "grouped_gemm" }
func (o groupedGEMM) Operands() []graph.Operand { return gemmOperands(o.Weights) }
func (o groupedGEMM) Outputs() []string         { return []string{"d", "c"} }

func (o groupedGEMM) Infer(in []*graph.Value) ([]graph.Spec, error) {
	m, n, err := checkGEMM(in, o.Weights, o.Align, o.Launch)
	if err != nil {
		return nil, err
	}
	for _, out := range []struct {
		name string
		dt   dtype.DType
	}{{"d", o.D}, {"c", o.C}} {
		if err := checkOut(out.name, out.dt, in[gemmA].DType(), n); err != nil {
			return nil, err
		}
	}
	shape := []int{m, n}
	return []graph.Spec{{DType: o.D, Shape: shape, Rows: in[gemmOffsets]}, {DType: o.C, Shape: shape, Rows: in[gemmOffsets]}}, nil
}

// checkGEMM checks what the grouped GEMMs of sections 4 and 5 have in common.
func checkGEMM(in []*graph.Value, k weightKind, align int, l Launch) (m, n int, err error) {
	a := in[gemmA]
	if a.Rank() != 2 {
		return 0, 0, graph.BadShape("a", a.Text(), "(M,K)")
	}
	if !plain(a.DType()) {
		return 0, 0, graph.BadDType("a", a.DType(), "bf16, f16 or f32 (f64 with everything f64)")
	}
	m = a.Dim(0)
	experts, err := checkGroups("padded_offsets", in[gemmOffsets], in[gemmCounts], m, align)
	if err != nil {
		return 0, 0, err
	}
	if err := check16("a", "K", a.DType(), a.Dim(1)); err != nil {
		return 0, 0, err
	}
	if n, err = k.check(in[gemmB:], experts, a.Dim(1), a.DType()); err != nil {
		return 0, 0, err
	}
	if err := checkStat("alpha", in[gemmAlpha], experts, a.DType()); err != nil {
		return 0, 0, err
	}
	if err := checkProb(in[gemmProb], m, a.DType()); err != nil {
		return 0, 0, err
	}
	if err := checkBias(in[gemmBias], experts, n, a.DType()); err != nil {
		return 0, 0, err
	}
	return m, n, l.check()
}

// checkBias checks an optional bias beside operands of format dt.
func checkBias(bias *graph.Value, experts, n int, dt dtype.DType) error {
	switch {
	case bias == nil:
		return nil
	case bias.Rank() != 2 || bias.Dim(0) != experts || bias.Dim(1) != n || bias.Rows() != nil:
		return graph.BadShape("bias", bias.Text(), "(%d,%d)", experts, n)
	case !plain(bias.DType()) || isWide(bias.DType()) != isWide(dt):
		return graph.BadDType("bias", bias.DType(), "bf16, f16 or f32 (f64 with everything f64)")
	}
	return nil
}

// checkStat checks an optional vector of n float32 (float64 beside float64).
func checkStat(operand string, v *graph.Value, n int, dt dtype.DType) error {
	if v != nil && v.Rows() != nil {
		return graph.BadShape(operand, v.Text(), "(%d,)", n)
	}
	return checkStatRows(operand, v, n, dt)
}

// checkProb checks an optional prob over m rows; as those of other operands they may be counted.
func checkProb(v *graph.Value, m int, dt dtype.DType) error { return checkStatRows("prob", v, m, dt) }

func checkStatRows(operand string, v *graph.Value, n int, dt dtype.DType) error {
	switch {
	case v == nil:
		return nil
	case v.DType() != statType(dt):
		return graph.BadDType(operand, v.DType(), "%s", statType(dt))
	case v.Rank() != 1 || v.Dim(0) != n:
		return graph.BadShape(operand, v.Text(), "(%d,)", n)
	}
	return nil
}

// checkOut checks the format of an output with rows of n elements beside operands of format dt.
func checkOut(name string, out, dt dtype.DType, n int) error {
	if !plain(out) || isWide(out) != isWide(dt) {
		return graph.BadDType(name+"_dtype", out, "bf16, f16 or f32 (f64 with everything f64)")
	}
	return check16(name, "N", out, n)
}

// Flops implements graph.Coster.
func (o groupedGEMM) Flops(n *graph.Node) int64 { return gemmFlops(n) }

func gemmFlops(n *graph.Node) int64 {
	for i := range n.Op().Outputs() {
		if v := n.Out(i); v.Rank() == 2 {
			return 2 * int64(v.Dim(0)) * int64(v.Dim(1)) * int64(n.In(gemmA).Dim(1))
		}
	}
	return 0
}

func (o groupedGEMM) Gradient(n *graph.Node, grads []*graph.Value) []*graph.Value {
	a, offsets, counts, alpha, prob, bias := n.In(gemmA), n.In(gemmOffsets), n.In(gemmCounts), n.In(gemmAlpha), n.In(gemmProb), n.In(gemmBias)
	out := make([]*graph.Value, len(o.Operands()))
	rows := groupRows{offsets: offsets, counts: counts, align: o.Align}
	dG, dC := grads[0], grads[1]
	if bias != nil { // D = C = G + prob*bias
		dG = addNonNil(dG, dC)
		out[gemmBias] = rows.sum(dG, prob, bias.DType())
		if prob != nil {
			out[gemmProb] = rows.dotBias(dG, bias)
		}
	} else {
		if prob != nil && dG != nil {
			return o.probGradient(n, rows, dG, dC, out)
		}
		dG = addNonNil(dG, dC)
	}
	dG = as(n.Graph(), dG, a.DType())
	gemmGradients(n, o.Weights, o.Align, o.Launch, dG, alpha, out)
	return out
}

// probGradient is the gradient of D = prob * G. With X = alpha * dD B, in float32, dprob[m] = sum_k X[m,k] A[m,k],
// which is sum_n dD[m,n] G[m,n] without a rounded G, and dA = prob * X.
func (o groupedGEMM) probGradient(n *graph.Node, rows groupRows, dD, dC *graph.Value, out []*graph.Value) []*graph.Value {
	a, prob, alpha := n.In(gemmA), n.In(gemmProb), n.In(gemmAlpha)
	x := o.dgrad(n, as(n.Graph(), dD, a.DType()), alpha, statType(a.DType()))
	out[gemmProb] = rows.dot(x, a)
	dA := rows.scale(x, prob, a.DType())
	dG := addNonNil(rows.scale(dD, prob, a.DType()), dC)
	if dC != nil {
		dA = Add(dA, o.dgrad(n, as(n.Graph(), dC, a.DType()), alpha, a.DType()))
	}
	gemmGradients(n, o.Weights, o.Align, o.Launch, as(n.Graph(), dG, a.DType()), alpha, out)
	out[gemmA] = dA // what gemmGradients made for A is not used, and so not computed
	return out
}

// dgrad returns alpha * dG B in format dt.
func (o groupedGEMM) dgrad(n *graph.Node, dG, alpha *graph.Value, dt dtype.DType) *graph.Value {
	t := o.Weights
	t.NMajor, t.N = !t.NMajor, n.In(gemmA).Dim(1)
	n.Graph().NameNext("dgrad")
	return graph.Apply(groupedGEMM{Weights: t, Align: o.Align, D: dt, C: dt, Launch: o.Launch},
		append([]*graph.Value{dG, n.In(gemmOffsets), n.In(gemmCounts), alpha, nil, nil}, weightsOf(n)...)...)[0]
}

// weightsOf returns the weight operands of a grouped GEMM.
func weightsOf(n *graph.Node) []*graph.Value {
	var b []*graph.Value
	for i := gemmB; n.In(i) != nil; i++ {
		b = append(b, n.In(i))
	}
	return b
}

// gemmGradients appends dA = alpha * dG B and dB = alpha * dG^T A, for G = alpha A B^T.
func gemmGradients(n *graph.Node, k weightKind, align int, l Launch, dG, alpha *graph.Value, out []*graph.Value) {
	g, a := n.Graph(), n.In(gemmA)
	offsets, counts, b := n.In(gemmOffsets), n.In(gemmCounts), weightsOf(n)
	out[gemmA] = groupedGEMM{Weights: k, Align: align, Launch: l}.dgrad(n, dG, alpha, a.DType())
	if k.Ptrs || k.Only != NoBlockFormat {
		return // addresses and codes have no gradient
	}
	w := WGrad{A: dG, B: a, Offsets: offsets, Counts: counts, Alpha: alpha, AMajorM: true, Alignment: align,
		DType: gradType(b[0]), Discrete: k.Discrete > 0, Launch: l}
	if k.NMajor {
		w.A, w.B = a, dG
	}
	g.NameNext("wgrad")
	copy(out[gemmB:], w.Apply())
}

// addNonNil returns the sum of two gradients of which either may be absent.
func addNonNil(a, b *graph.Value) *graph.Value {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	return Add(a, b)
}
