package nodes

import (
	"fmt"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

func init() {
	graph.Register(graph.Info{
		Example: quantize{Format: MXFP8, Axis: AlongBoth, Align: DefaultAlignment},
		Doc:     "x_row, x_col = x in a block-scaled format, with the factors of each block",
		Options: []string{"format", "sf_vec_size = that of the format", "axis = row", "alignment = 256", "discrete_col_sfd = 0", "transpose_col = 0",
			"auto_norm = 0", "per_expert = 0", "unit_factors = 0"},
	})
}

// Axis says along which axes a matrix is quantized.
type Axis uint8

// The axes.
const (
	AlongRow  Axis = iota // blocks of consecutive columns
	AlongCol              // blocks of consecutive rows
	AlongBoth             // both copies, in one pass
)

// String returns the name that options use.
func (a Axis) String() string {
	if names := [...]string{"row", "col", "both"}; int(a) < len(names) {
		return names[a]
	}
	return fmt.Sprintf("axis(%d)", uint8(a))
}

// ParseAxis is the inverse of String.
func ParseAxis(name string) (Axis, error) {
	for a := AlongRow; a <= AlongBoth; a++ {
		if a.String() == name {
			return a, nil
		}
	}
	return 0, graph.Unsupported("axis", name, "row, col or both")
}

// Quantize are the operands and options of quantizing a matrix, or a stack of matrices, block by block (contracts,
// section 7), in float32, each operation rounded on its own:
//
//	SF = encode((max|block| * norm) * rcp),  rcp = float32(1/q_max);  s = norm * (1 / decode(SF)), at most FLT_MAX
//	code = encode(x * s);  code * decode(SF) / norm stands for x
//
// X is (R,C) in bf16, f16 or f32, or (E,R,C): E matrices, each quantized alone, such as dense weights. Row blocks run
// along C, column blocks along R; with PaddedOffsets a column block stays inside a group, rows past the last
// offset are not touched, and with Counts padding rows count as zeros. A last block may be short.
//
// The gradient is straight through: that of x is that of the row codes, since rounding has no derivative.
//
// Errors: a format of X that is no plain float, an odd width in fp4, groups whose alignment is not 128 or 256, more
// than one of NormConst, GlobalScale and AutoNorm, global scales of another format than NVFP4.
type Quantize struct {
	X             *graph.Value // (R,C) or (E,R,C)
	PaddedOffsets *graph.Value // int32 (E,), optional
	Counts        *graph.Value // int32 (E,), optional, with PaddedOffsets
	NormConst     *graph.Value // f32 (1,), optional: 1
	GlobalScale   *graph.Value // f32 (1,) or (E,), NVFP4: the same as NormConst = 1/GlobalScale

	Format    BlockFormat
	Axis      Axis // default AlongRow
	Alignment int  // of the groups; default 256
	// DiscreteColSF lays the column factors of each group out as a tensor of its own, one after the other, as WGrad
	// reads them. With PaddedOffsets.
	DiscreteColSF bool
	// TransposeCol gives the column codes transposed, (C,R) or (E,C,R), with R contiguous: the K-major operand of WGrad.
	TransposeCol bool
	// AutoNorm sets norm to 448*6 / max|x| over the finite elements, 1 where that is 0 or the quotient not finite
	// (NVFP4); PerExpert does it for each group, or each matrix of a stack, on its own.
	AutoNorm, PerExpert bool
	// UnitFactors is for experiments that show what the factors are worth: every factor is 1, as is norm of AutoNorm, and
	// what does not fit the values saturates or becomes zero.
	UnitFactors bool
	// Draw, uint64 (2,) by Random.Draw, rounds codes at random between their two neighbours, so that the mean is the
	// value; nil rounds to nearest even. The factors are the same.
	Draw *graph.Value
}

// Quantized are the outputs of Quantize. What nobody uses is not computed; what the options do not ask for is nil.
type Quantized struct {
	Row, RowSF  *graph.Value // codes in the shape of x; factors, flat in the order of dtype.FactorLayout
	Col, ColSF  *graph.Value // codes in the shape of x, or transposed; factors of a matrix with C rows
	GlobalScale *graph.Value // f32 (1,) or (E,): 1/norm, with AutoNorm
}

// Apply appends the node and returns its outputs.
func (o Quantize) Apply() Quantized {
	op := quantize{Format: o.Format, Axis: o.Axis, Align: alignment(o.Alignment), Discrete: o.DiscreteColSF, Transpose: o.TransposeCol,
		Auto: o.AutoNorm, PerExpert: o.PerExpert, Unit: o.UnitFactors}
	if g := o.X.Graph(); o.Draw != nil && g != nil {
		op.Salt = uint32(len(g.Nodes()))
	}
	out := graph.Apply(op, o.X, o.PaddedOffsets, o.Counts, o.NormConst, o.GlobalScale, o.Draw)
	return Quantized{out[quantRow], out[quantRowSF], out[quantCol], out[quantColSF], out[quantScale]}
}

type quantize struct {
	Format              BlockFormat
	Axis                Axis
	Align               int
	Discrete, Transpose bool
	Auto, PerExpert     bool
	Unit                bool
	Salt                uint32 // tells the random roundings of a graph's nodes apart
}

// Positions of quantize's operands and outputs.
const (
	quantX = iota
	quantOffsets
	quantCounts
	quantNorm
	quantGlobal
	quantDraw

	quantRow   = 0
	quantRowSF = 1
	quantCol   = 2
	quantColSF = 3
	quantScale = 4
)

func (o quantize) Kind() string { return "quantize" }

func (o quantize) Operands() []graph.Operand {
	return []graph.Operand{{Name: "x"}, {Name: "padded_offsets", Optional: true}, {Name: "counts", Optional: true},
		{Name: "norm_const", Optional: true}, {Name: "global_scale", Optional: true}, {Name: "draw", Optional: true}}
}

func (o quantize) Outputs() []string {
	return []string{"x_row", "sfx_row", "x_col", "sfx_col", "global_scale"}
}

// dims returns the matrices' number and sizes.
func (o quantize) dims(x []int) (batches, rows, cols int) {
	if len(x) == 3 {
		return x[0], x[1], x[2]
	}
	return 1, x[0], x[1]
}

func (o quantize) Infer(in []*graph.Value) ([]graph.Spec, error) {
	x := in[quantX]
	if x.Rank() != 2 && x.Rank() != 3 {
		return nil, graph.BadShape("x", x.Text(), "(R,C), or (E,R,C) for a stack of matrices")
	}
	if !plain(x.DType()) || isWide(x.DType()) {
		return nil, graph.BadDType("x", x.DType(), "bf16, f16 or f32")
	}
	if !o.Format.known() {
		return nil, graph.Unsupported("format", o.Format, "mxfp8, mxfp8_e5m2, mxfp4, mxfp4_vec16 or nvfp4")
	}
	if o.Axis > AlongBoth {
		return nil, graph.Unsupported("axis", o.Axis, "row, col or both")
	}
	experts, err := o.checkGroups(in)
	if err != nil {
		return nil, err
	}
	if err := o.checkNorm(in, experts); err != nil {
		return nil, err
	}
	batches, rows, cols := o.dims(x.Shape())
	if o.Format.Values() == dtype.E2M1 {
		switch {
		case cols%2 != 0 && !(o.Axis == AlongCol && o.Transpose):
			return nil, graph.BadShape("x", x.Text(), "an even number of columns: fp4 keeps two codes a byte")
		case rows%2 != 0 && o.Axis != AlongRow && o.Transpose:
			return nil, graph.BadShape("x", x.Text(), "an even number of rows: transposed fp4 keeps two codes of a column a byte")
		}
	}
	return o.specs(in, batches, rows, cols, experts), nil
}

// checkGroups checks offsets and counts and returns the number of groups, or of matrices in a stack; 0 for one
// matrix without groups.
func (o quantize) checkGroups(in []*graph.Value) (experts int, err error) {
	x, offsets, counts := in[quantX], in[quantOffsets], in[quantCounts]
	switch {
	case x.Rank() == 3 && offsets != nil:
		return 0, graph.Misuse("padded_offsets", "groups of "+x.Text(), "none: each matrix of a stack is quantized alone")
	case x.Rank() == 3 && x.Rows() != nil:
		return 0, graph.BadShape("x", x.Text(), "a stack of matrices that are all in use")
	case offsets == nil && counts != nil:
		return 0, graph.Misuse("counts", "counts without padded_offsets", "both or neither")
	case offsets == nil && o.Discrete:
		return 0, graph.Misuse("discrete_col_sfd", "1 without padded_offsets", "padded_offsets: the factors are those of each expert")
	case o.Axis == AlongRow && (o.Discrete || o.Transpose):
		return 0, graph.Misuse(map[bool]string{true: "discrete_col_sfd", false: "transpose_col"}[o.Discrete], "1 with axis row", "axis col or both")
	case x.Rank() == 3:
		return x.Dim(0), nil
	case offsets == nil:
		return 0, nil
	}
	if experts, err = checkGroups("padded_offsets", offsets, counts, x.Dim(0), o.Align); err != nil {
		return 0, err
	}
	return experts, checkBlockAlignment(o.Align)
}

// checkNorm checks where norm comes from.
func (o quantize) checkNorm(in []*graph.Value, experts int) error {
	norm, scale := in[quantNorm], in[quantGlobal]
	switch {
	case scale != nil && o.Format != NVFP4:
		return graph.Misuse("global_scale", "an operand beside "+o.Format.String(), "none: global scales go with nvfp4 only")
	case o.Auto && o.Format != NVFP4:
		return graph.Unsupported("auto_norm", "1 with "+o.Format.String(), "0: global scales go with nvfp4 only")
	case scale != nil && norm != nil:
		return graph.Misuse("global_scale", "an operand beside norm_const", "one of the two")
	case o.Auto && (scale != nil || norm != nil):
		return graph.Misuse("auto_norm", "1 beside norm_const or global_scale", "one of the three")
	case o.PerExpert && !o.Auto:
		return graph.Misuse("per_expert", "1 without auto_norm", "0, or auto_norm 1")
	case o.PerExpert && experts == 0:
		return graph.Misuse("per_expert", "1 without padded_offsets", "padded_offsets: there are no experts otherwise")
	case in[quantDraw] != nil && checkDraw("draw", in[quantDraw]) != nil:
		return checkDraw("draw", in[quantDraw])
	}
	if err := checkStat("norm_const", norm, 1, dtype.Float32); err != nil {
		return err
	}
	if scale != nil && scale.Dim(0) != 1 && experts > 0 {
		return checkStat("global_scale", scale, experts, dtype.Float32)
	}
	return checkStat("global_scale", scale, 1, dtype.Float32)
}

func (o quantize) specs(in []*graph.Value, batches, rows, cols, experts int) []graph.Spec {
	x, count := in[quantX], in[quantX].Rows()
	if in[quantOffsets] != nil {
		count = in[quantOffsets]
	}
	f := o.Format
	factors := func(rows, k int) graph.Spec {
		return graph.Spec{DType: f.Factor(), Shape: []int{dtype.FactorLayout{Rows: rows, Cols: dtype.FactorCols(k, f.Vec()), Batches: batches}.Bytes()}}
	}
	s := make([]graph.Spec, len(o.Outputs()))
	if o.Axis != AlongCol {
		s[quantRow] = graph.Spec{DType: f.Values(), Shape: x.Shape(), Rows: count}
		s[quantRowSF] = factors(rows, cols)
	}
	if o.Axis != AlongRow {
		s[quantCol] = graph.Spec{DType: f.Values(), Shape: x.Shape(), Rows: count}
		if o.Transpose {
			shape := append(x.Shape()[:x.Rank()-2], cols, rows)
			s[quantCol] = graph.Spec{DType: f.Values(), Shape: shape}
		}
		s[quantColSF] = factors(cols, rows)
	}
	if o.Auto {
		s[quantScale] = graph.Spec{DType: dtype.Float32, Shape: []int{1}}
		if o.PerExpert {
			s[quantScale].Shape[0] = experts
		}
	}
	return s
}

// Gradient is straight through: rounding has no derivative, and the codes stand for x itself.
func (o quantize) Gradient(n *graph.Node, grads []*graph.Value) []*graph.Value {
	out := make([]*graph.Value, len(o.Operands()))
	for i, name := range o.Outputs() {
		if i != quantRow && grads[i] != nil {
			n.Graph().Fail(fmt.Errorf("quantize %q: %w", n.Name(), graph.Unsupported(name, "a gradient", "a gradient of x_row alone")))
			return out
		}
	}
	out[quantX] = gradAs(n.In(quantX), grads[quantRow])
	return out
}
