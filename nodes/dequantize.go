package nodes

import (
	"cmp"
	"math"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/gemm"
)

func init() {
	graph.Register(graph.Info{
		Example: dequantize{Format: MXFP8, Y: dtype.Float32},
		Doc:     "y = code * factor (* global_scale), rounded once",
		Options: []string{"format", "sf_vec_size = that of the format", "axis = row", "y_dtype = f32"},
		NoGrad:  "codes have no gradient; that of Quantize is straight through",
	})
}

// Dequantize are the operands and options of the inverse of Quantize:
//
//	y = code * decode(factor) (* global_scale), rounded once
//
// X holds codes, (R,C) or a stack (E,R,C), SF their factors as Quantize writes them, without DiscreteColSF, for blocks
// along rows (Axis AlongRow) or columns (AlongCol). Code times factor is exact in float32; beyond its range it is
// Inf. GlobalScale is f32 (1,) or, of a stack, (E,), optional. Rows that X does not have in use are left alone.
type Dequantize struct {
	X, SF       *graph.Value
	GlobalScale *graph.Value // f32, NVFP4, optional: 1
	Format      BlockFormat
	Axis        Axis        // AlongRow or AlongCol
	DType       dtype.DType // of the result: f32 (default), bf16 or f16
}

// Apply appends the node and returns the result, in the shape of X.
func (o Dequantize) Apply() *graph.Value {
	op := dequantize{Format: o.Format, Axis: o.Axis, Y: cmp.Or(o.DType, dtype.Float32)}
	return graph.Apply(op, o.X, o.SF, o.GlobalScale)[0]
}

type dequantize struct {
	Format BlockFormat
	Axis   Axis
	Y      dtype.DType
}

func (o dequantize) Kind() string { return "dequantize" }
func (o dequantize) Operands() []graph.Operand {
	return []graph.Operand{{Name: "x"}, {Name: "sfx"}, {Name: "global_scale", Optional: true}}
}
func (o dequantize) Outputs() []string { return []string{"y"} }

func (o dequantize) Infer(in []*graph.Value) ([]graph.Spec, error) {
	x, scale := in[0], in[2]
	if !o.Format.known() {
		return nil, graph.Unsupported("format", o.Format, "mxfp8, mxfp8_e5m2, mxfp4, mxfp4_vec16 or nvfp4")
	}
	dt, shape := codesOf(x)
	if len(shape) != 2 && len(shape) != 3 || len(shape) == 3 && x.Rows() != nil {
		return nil, graph.BadShape("x", x.Text(), "(R,C), or (E,R,C) for a stack of matrices")
	}
	if dt != o.Format.Values() {
		return nil, graph.BadDType("x", x.DType(), "%s, the values of %s", o.Format.Values(), o.Format)
	}
	if o.Axis > AlongCol {
		return nil, graph.Unsupported("axis", o.Axis, "row or col")
	}
	if !plain(o.Y) || isWide(o.Y) {
		return nil, graph.BadDType("y_dtype", o.Y, "f32, bf16 or f16")
	}
	batches, rows, cols := quantize{}.dims(shape)
	r, k := rows, cols
	if o.Axis == AlongCol {
		r, k = cols, rows
	}
	if err := checkFactors("sfx", in[1], o.Format, r, k, batches); err != nil {
		return nil, err
	}
	if scale != nil && o.Format != NVFP4 {
		return nil, graph.Misuse("global_scale", "an operand beside "+o.Format.String(), "none: global scales go with nvfp4 only")
	}
	n := 1
	if scale != nil && scale.Dim(0) != 1 {
		n = batches
	}
	if err := checkStat("global_scale", scale, n, dtype.Float32); err != nil {
		return nil, err
	}
	return []graph.Spec{{DType: o.Y, Shape: shape, Rows: x.Rows()}}, nil
}

func (o dequantize) Host(c *graph.Call) func() error {
	x, sf, scale, y := c.In[0], c.In[1], c.In[2], c.Out[0]
	batches, rows, cols := quantize{}.dims(y.Shape)
	layout := dtype.FactorLayout{Rows: rows, Cols: dtype.FactorCols(cols, o.Format.Vec()), Batches: 1}
	if o.Axis == AlongCol {
		layout.Rows, layout.Cols = cols, dtype.FactorCols(rows, o.Format.Vec())
	}
	batch := layout.Bytes()
	loop := c.NewLoop(func(w *graph.Worker, lo, hi int) {
		for i := lo; i < hi; i++ {
			e, r := i/rows, i%rows
			m := gemm.Scaled{Codes: x.Data, Values: o.Format.Values(), At: e * rows * cols, Factors: sf.Data[e*batch:], Factor: o.Format.Factor(),
				Vec: o.Format.Vec(), Layout: layout, Down: o.Axis == AlongCol}
			line := target[float32](w, 0, y, i*cols, cols)
			m.Decode(line, cols, r, 0)
			if scale != nil {
				s := scalar[float32](scale, min(e, scale.Shape[0]-1))
				for j, v := range line {
					line[j] = timesOnce(v, s, o.Y)
				}
			}
			store(y, i*cols, line)
		}
	})
	return func() error {
		n := batches * rows
		if len(y.Shape) == 2 {
			n = min(n, y.Rows())
		}
		loop.Run(n, rowGrain(cols))
		return nil
	}
}

// timesOnce returns x*y in float32, such that rounding it to a 16-bit format rounds the product itself once: where
// the product is not exact and dt has 16 bits, the result is the neighbour whose last bit is odd, which no
// tie of a shorter format has.
func timesOnce(x, y float32, dt dtype.DType) float32 {
	p := float32(x * y)
	if dt == dtype.Float32 || p != p || math.IsInf(float64(p), 0) {
		return p
	}
	exact := float64(x) * float64(y) // 48 bits at most
	b := math.Float32bits(p)
	if float64(p) == exact || b&1 == 1 {
		return p
	}
	if math.Abs(exact) > math.Abs(float64(p)) {
		return math.Float32frombits(b + 1)
	}
	return math.Float32frombits(b - 1)
}
