package nodes

import (
	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

func init() {
	graph.Register(graph.Info{
		Example: encode{To: dtype.E4M3},
		Doc:     "y = x rounded to a format",
		Options: []string{"format"},
		NoGrad:  "rounding has no derivative; Cast and Quantize have one that goes straight through",
	})
	graph.Register(graph.Info{
		Example: decode{},
		Doc:     "y = the exact values of codes, in f32",
		NoGrad:  "codes have no gradient",
	})
}

// codeFormats are the formats that Encode and Decode convert to and from.
const codeFormats = "bf16, f16, e4m3, e5m2, e2m1 or e8m0"

func isCode(dt dtype.DType) bool {
	return narrow(dt) || dt == dtype.E8M0 || dt == dtype.BFloat16 || dt == dtype.Float16
}

// Encode returns x, in f32, rounded to a format of package dtype with 16 bits or fewer: to nearest even, e8m0 up to the next
// power of two; a NaN becomes the format's canonical one. The last dimension of x is even with e2m1, which keeps two
// codes a byte. Encode has no gradient; Cast has, between the formats of 16 bits and more, and so has Quantize.
func Encode(x *graph.Value, to dtype.DType) *graph.Value {
	return graph.Apply(encode{To: to}, x)[0]
}

type encode struct{ To dtype.DType }

func (o encode) Kind() string              { return "encode" }
func (o encode) Operands() []graph.Operand { return []graph.Operand{{Name: "x"}} }
func (o encode) Outputs() []string         { return []string{"y"} }

func (o encode) Infer(in []*graph.Value) ([]graph.Spec, error) {
	x := in[0]
	if !isCode(o.To) {
		return nil, graph.Unsupported("format", o.To, codeFormats)
	}
	if x.DType() != dtype.Float32 {
		return nil, graph.BadDType("x", x.DType(), "f32")
	}
	s := x.Spec()
	s.DType = o.To
	return []graph.Spec{s}, checkPairs(x, o.To)
}

// checkPairs refuses rows of fp4 codes that end inside a byte.
func checkPairs(x *graph.Value, dt dtype.DType) error {
	if dt == dtype.E2M1 && (x.Rank() == 0 || x.Dim(-1)%2 != 0 || x.Rank() == 1 && x.Rows() != nil) {
		return graph.BadShape("x", x.Text(), "an even last dimension: e2m1 keeps two codes a byte")
	}
	return nil
}

func (o encode) Host(c *graph.Call) func() error {
	return elementwise(c, func(w *graph.Worker, at, n int) {
		x := load[float32](w, 0, c.In[0], at, n)
		encodeAt(c.Out[0], o.To, at, x) // elemGrain is even
	})
}

// Decode returns the values of the codes x, exact in f32, subnormals too. Decode has no gradient.
func Decode(x *graph.Value) *graph.Value {
	return graph.Apply(decode{}, x)[0]
}

type decode struct{}

func (o decode) Kind() string              { return "decode" }
func (o decode) Operands() []graph.Operand { return []graph.Operand{{Name: "x"}} }
func (o decode) Outputs() []string         { return []string{"y"} }

func (o decode) Infer(in []*graph.Value) ([]graph.Spec, error) {
	x := in[0]
	if !isCode(x.DType()) {
		return nil, graph.BadDType("x", x.DType(), codeFormats)
	}
	s := x.Spec()
	s.DType = dtype.Float32
	return []graph.Spec{s}, checkPairs(x, x.DType())
}

func (o decode) Host(c *graph.Call) func() error {
	x, y := c.In[0], c.Out[0]
	return elementwise(c, func(w *graph.Worker, at, n int) {
		from := x.DType.Bytes(at)
		_ = dtype.Decode(x.DType, target[float32](w, 0, y, at, n), x.Data[from:from+x.DType.Bytes(n)])
	})
}
