package nodes

import (
	"fmt"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// Scales are what block-scaled operands bring beside the codes: the factors of A (those of B are in Weights), and
// what a quantized output needs. All of it is refused beside bf16, f16 and f32 operands.
type Scales struct {
	SFA       *graph.Value // factors of A, flat, in the order of dtype.FactorLayout
	SFVec     int          // elements a factor; default 32 for fp8, 16 for fp4
	NormConst *graph.Value // f32 (1,): required for an output in fp8 or fp4, refused for others
	// DiscreteColSF lays the column factors of a quantized output out expert by expert, as WGrad reads them.
	DiscreteColSF bool
	// Global scales of A and B, f32 (E,), NVFP4: the sum is multiplied by both, as Quantize's AutoNorm gives them; nil: 1,
	// or folded into alpha.
	GlobalScaleA, GlobalScaleB *graph.Value
	// GradDraw, uint64 (2,) by Random.Draw, makes the node's gradient rule round the gradients that it quantizes at
	// random; nil rounds them to nearest.
	GradDraw *graph.Value
}

// kind are the options among them.
func (s Scales) kind() scaledKind { return scaledKind{Vec: s.SFVec, DiscreteCol: s.DiscreteColSF} }

// scaledWeights returns the kind of block-scaled weights, and their operands: codes, then factors.
func scaledWeights(w Weights) (weightKind, []*graph.Value, error) {
	k, b, err := w.operands()
	if err == nil && k.Only != NoBlockFormat {
		err = graph.Unsupported("b", "weight-only "+k.Only.String()+" beside other scales", "a in bf16, f16 or f32 without factors")
	}
	if err != nil {
		return k, nil, err
	}
	sf, err := w.factors(k)
	return k, append(append([]*graph.Value(nil), b...), sf...), err
}

// given says whether this is a product of block-scaled operands, or of others with an argument that only they have.
func (s Scales) given(a *graph.Value, b Weights) bool {
	return narrow(a.DType()) || a.DType() == dtype.Uint8 || s != Scales{} || b.scaled()
}

// scaledKind are the options that the grouped GEMMs of block-scaled operands have in common: part of their
// identity.
type scaledKind struct {
	Vec         int // sf_vec_size as given
	DiscreteCol bool
}

// format returns the family of operands in format values with factors in format factor.
func (k scaledKind) format(values, factor dtype.DType) (BlockFormat, error) {
	return blockFormatOf(values, factor, k.Vec, "sfa")
}

// formatOf is format for tensors that a shape rule has accepted.
func (k scaledKind) formatOf(a, sfa *graph.Tensor) BlockFormat {
	f, _ := k.format(valuesFormat(a), sfa.DType)
	return f
}

// valuesFormat is the format of a tensor of codes, which for fp4 may be plain bytes.
func valuesFormat(t *graph.Tensor) dtype.DType {
	if t.DType == dtype.Uint8 {
		return dtype.E2M1
	}
	return t.DType
}

// codeWidth is the number of elements in a row of a matrix of codes.
func codeWidth(t *graph.Tensor) int {
	if t.DType == dtype.Uint8 {
		return 2 * t.Shape[len(t.Shape)-1]
	}
	return t.Shape[len(t.Shape)-1]
}

// scaleNames lists what Scales holds as operands, in the order of their positions.
func scaleNames() []graph.Operand {
	return []graph.Operand{{Name: "sfa", Optional: true}, {Name: "norm_const", Optional: true},
		{Name: "global_scale_a", Optional: true}, {Name: "global_scale_b", Optional: true}}
}

// operands are those of scaleNames.
func (s Scales) operands() []*graph.Value {
	return []*graph.Value{s.SFA, s.NormConst, s.GlobalScaleA, s.GlobalScaleB}
}

// scaledOperands are the operands of a product of block-scaled matrices by their roles.
type scaledOperands struct {
	a, sfa, norm *graph.Value
	global       []*graph.Value // of a and b
	b, sfb       []*graph.Value
}

// check checks formats, factors and weights of a product with a (M,K), and returns the family and the sizes.
func (k scaledKind) check(in scaledOperands, w weightKind, experts int) (f BlockFormat, m, n, red int, err error) {
	if err := k.checkPresence(in, w); err != nil {
		return 0, 0, 0, 0, err
	}
	dt, shape := codesOf(in.a)
	m, red = shape[0], shape[1]
	if w.NMajor {
		return 0, 0, 0, 0, graph.BadShape("b_major", "n", "k with block-scaled operands, which are quantized along k")
	}
	if got := w.dtype(in.b); got != dt {
		return 0, 0, 0, 0, graph.BadDType("b", got, "%s as a", dt)
	}
	if f, err = k.format(dt, in.sfa.DType()); err != nil {
		return 0, 0, 0, 0, err
	}
	if !w.Ptrs {
		for e, sfb := range in.sfb {
			if sfb.DType() != f.Factor() {
				return 0, 0, 0, 0, graph.BadDType(w.factorNames()[e].Name, sfb.DType(), "%s as sfa", f.Factor())
			}
		}
	}
	if err := check16("a", "K", dt, red); err != nil {
		return 0, 0, 0, 0, err
	}
	if n, err = w.check(in.b, experts, red, dt); err != nil {
		return 0, 0, 0, 0, err
	}
	if err := checkFactors("sfa", in.sfa, f, m, red, 1); err != nil {
		return 0, 0, 0, 0, err
	}
	for i, v := range in.global {
		name := [2]string{"global_scale_a", "global_scale_b"}[i]
		if v != nil && f != NVFP4 {
			return 0, 0, 0, 0, graph.Misuse(name, "an operand beside "+f.String(), "none: global scales go with nvfp4 only")
		}
		if err := checkStat(name, v, experts, dtype.Float32); err != nil {
			return 0, 0, 0, 0, err
		}
	}
	return f, m, n, red, w.checkFactors(in.sfb, f, experts, n, red)
}

// checkPresence checks that A is a matrix of codes that come with factors, or that plain operands come without.
func (k scaledKind) checkPresence(in scaledOperands, w weightKind) error {
	dt, _ := codesOf(in.a)
	if !narrow(dt) {
		const none = "none: scales go with e4m3, e5m2 and e2m1 only"
		got := "an operand beside a in " + dt.String()
		switch {
		case narrow(w.dtype(in.b)) || !plain(dt):
			return graph.BadDType("a", dt, "e4m3, e5m2 or e2m1, with factors sfa, and b alike")
		case in.sfa != nil:
			return graph.Misuse("sfa", got, none)
		case in.sfb[0] != nil:
			return graph.Misuse("sfb", got, none)
		case in.norm != nil:
			return graph.Misuse("norm_const", got, none)
		case in.global[0] != nil:
			return graph.Misuse("global_scale_a", got, none)
		case in.global[1] != nil:
			return graph.Misuse("global_scale_b", got, none)
		case k.Vec != 0:
			return graph.Misuse("sf_vec_size", k.Vec, none)
		}
		return graph.Misuse("discrete_col_sfd", 1, none)
	}
	if in.a.Rank() != 2 {
		return graph.BadShape("a", in.a.Text(), "(M,K)")
	}
	if in.sfa == nil {
		return graph.Misuse("sfa", "none", "the factors of a, which %s values need", dt)
	}
	for e, sfb := range in.sfb {
		if sfb == nil {
			return graph.Misuse(w.factorNames()[e].Name, "none", "the factors of b, which %s values need", dt)
		}
	}
	return nil
}

// checkOut checks the format of the main output, whose rows have n elements, against operands in format values, and
// what goes with it.
func (k scaledKind) checkOut(name string, out dtype.DType, values dtype.DType, norm *graph.Value, n int) error {
	allowed := []dtype.DType{dtype.Float16, dtype.BFloat16, dtype.E4M3, dtype.E5M2, dtype.E2M1}
	if values == dtype.E2M1 {
		allowed = []dtype.DType{dtype.Float16, dtype.BFloat16, dtype.Float32}
	}
	ok, text := false, ""
	for i, dt := range allowed {
		ok = ok || dt == out
		if i > 0 {
			text += ", "
		}
		text += dt.String()
	}
	switch quantized := narrow(out); {
	case !ok:
		return graph.BadDType(name+"_dtype", fmt.Sprintf("%s of %s operands", out, values), "one of %s", text)
	case quantized && norm == nil:
		return graph.Misuse("norm_const", "none", "(1,) in f32, which a quantized output needs (%s_dtype is %s)", name, out)
	case !quantized && norm != nil:
		return graph.Misuse("norm_const", "an operand", "none: %s_dtype is %s, which is not quantized", name, out)
	case !quantized && k.DiscreteCol:
		return graph.Misuse("discrete_col_sfd", 1, "0: %s_dtype is %s, which is not quantized", name, out)
	}
	if err := checkStat("norm_const", norm, 1, dtype.Float32); err != nil {
		return err
	}
	return check16(name, "N", out, n)
}

// quantizes says whether a product of operands in format values has an output in fp8 or fp4, rows of n elements.
func (k scaledKind) quantizes(out, values dtype.DType, n int) bool {
	return narrow(out) && values != dtype.E2M1 && check16("d", "N", out, n) == nil
}

// quantizedSpecs describes column codes and factors of a quantized output (m,n) with factors like those of f: none
// where it is not quantized.
func quantizedSpecs(out dtype.DType, f BlockFormat, m, n int, rows *graph.Value) (col, sfRow, sfCol graph.Spec) {
	if !narrow(out) {
		return
	}
	factors := func(rows, k int) graph.Spec {
		return graph.Spec{DType: f.Factor(), Shape: []int{dtype.FactorLayout{Rows: rows, Cols: dtype.FactorCols(k, f.Vec()), Batches: 1}.Bytes()}}
	}
	return graph.Spec{DType: out, Shape: []int{m, n}, Rows: rows}, factors(m, n), factors(n, m)
}

// quantizedFormat is the family of an output quantized beside operands of family f.
func quantizedFormat(out dtype.DType, f BlockFormat) BlockFormat {
	q, _ := blockFormatOf(out, f.Factor(), f.Vec(), "sfa")
	return q
}

// has16 says whether an output has an amax beside it: the 16-bit formats do.
func has16(dt dtype.DType) bool { return dt == dtype.BFloat16 || dt == dtype.Float16 }

// detail names the family of a product's operands for the listing of a plan.
func (k scaledKind) detail(a, sfa *graph.Value) string {
	dt, _ := codesOf(a)
	f, err := k.format(dt, sfa.DType())
	if err != nil {
		return ""
	}
	return f.String()
}

// Detail implements graph.Detailer: the family of the operands.
func (o scaledGEMM) Detail(in []*graph.Value) string {
	return o.Scaled.detail(in[gemmA], in[scaledSFA])
}

// Detail implements graph.Detailer: the family of the operands.
func (o scaledGLU) Detail(in []*graph.Value) string {
	return o.Scaled.detail(in[gemmA], in[scaledSFA])
}

// Detail implements graph.Detailer: the family of the operands.
func (o scaledDGLU) Detail(in []*graph.Value) string {
	return o.Scaled.detail(in[gradDD], in[scaledDGLUSFA])
}

// Detail implements graph.Detailer: the family of the operands.
func (o scaledWGrad) Detail(in []*graph.Value) string {
	return scaledKind{Vec: o.Vec}.detail(in[wgA], in[scaledWGSFA])
}

// Detail implements graph.Detailer: the family and the axes.
func (o quantize) Detail([]*graph.Value) string { return o.Format.String() + " " + o.Axis.String() }
