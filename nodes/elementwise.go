package nodes

import (
	"fmt"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

func init() {
	graph.Register(graph.Info{Example: sum{N: 2, DType: dtype.Float32}, Doc: "y = x1 + ... + xn, added in float32, rounded once"})
	graph.Register(graph.Info{Example: scale{Factor: 0.5}, Doc: "y = factor * x", Options: []string{"factor"}})
	graph.Register(graph.Info{Example: cast{To: dtype.BFloat16}, Doc: "y = x in another float format, rounded once", Options: []string{"to"}})
	graph.Register(graph.Info{Example: fill{Value: 1}, Doc: "y = a constant in the shape of x", Options: []string{"value"},
		NoGrad: "the output does not depend on the operand's elements"})
	graph.SetArithmetic(graph.Arithmetic{Sum: Add, Scale: Scale, Fill: fillLike, WithRows: withRows})
}

// floats is what elementwise operators take.
const floats = "a float format of at least 16 bits (bf16, f16, f32, f64)"

// plain says whether elementwise host code reads and writes the format.
func plain(dt dtype.DType) bool { return dt.IsFloat() && dt.Bits() >= 16 }

// Add returns the sum of its operands, elementwise.
//
//	y = x1 + x2 + ...
//
// All operands have one shape and one row count. They are added in float32 (float64 for f64) from left to
// right and rounded once, to the format of the first. The gradient of each is the output's.
func Add(xs ...*graph.Value) *graph.Value {
	switch len(xs) {
	case 0:
		return (*graph.Graph)(nil).Fail(fmt.Errorf("sum: %w", graph.Misuse("x", "none", "at least one operand")))
	case 1:
		return xs[0]
	}
	return graph.Apply(sum{N: len(xs), DType: xs[0].DType()}, xs...)[0]
}

type sum struct {
	N     int
	DType dtype.DType
}

func (o sum) Kind() string { return "sum" }

func (o sum) Operands() []graph.Operand {
	ops := make([]graph.Operand, o.N)
	for i := range ops {
		ops[i].Name = fmt.Sprintf("x%d", i+1)
	}
	return ops
}

func (o sum) Outputs() []string { return []string{"y"} }

func (o sum) Infer(in []*graph.Value) ([]graph.Spec, error) {
	for i, x := range in {
		if !plain(x.DType()) || isWide(x.DType()) != isWide(in[0].DType()) {
			return nil, graph.BadDType(o.Operands()[i].Name, x.DType(), floats+", f64 only with f64")
		}
		if err := sameShape(o.Operands()[i].Name, in[0], x); err != nil {
			return nil, err
		}
	}
	s := in[0].Spec()
	s.DType = o.DType
	return []graph.Spec{s}, nil
}

// sameShape requires x to have the shape and the rows of like.
func sameShape(operand string, like, x *graph.Value) error {
	if fmt.Sprint(like.Shape()) != fmt.Sprint(x.Shape()) {
		return graph.BadShape(operand, x.Text(), "the shape of %s", like)
	}
	if like.Rank() == 0 {
		return nil
	}
	return graph.SameRows(operand, like, x)
}

func (o sum) Gradient(n *graph.Node, grads []*graph.Value) []*graph.Value {
	out := make([]*graph.Value, o.N)
	for i := range out {
		out[i] = gradAs(n.In(i), grads[0])
	}
	return out
}

// gradAs returns the gradient dy in the format of the operand it belongs to.
func gradAs(x, dy *graph.Value) *graph.Value {
	if x.DType() == dy.DType() {
		return dy
	}
	return Cast(dy, x.DType())
}

// InPlace allows the first operand, which host code and the first launch read before anything is written.
func (o sum) InPlace(*graph.Node, int) int { return 0 }

func (o sum) Host(c *graph.Call) func() error {
	if isWide(o.DType) {
		return sumHost[float64](c)
	}
	return sumHost[float32](c)
}

func sumHost[F float](c *graph.Call) func() error {
	return elementwise(c, func(w *graph.Worker, at, n int) {
		y := target[F](w, 0, c.Out[0], at, n)
		loadInto(y, c.In[0], at)
		for _, t := range c.In[1:] {
			for i, x := range load[F](w, 1, t, at, n) {
				y[i] += x
			}
		}
		store(c.Out[0], at, y)
	})
}

// elementwise runs body over all elements of the rows in use of the first output.
func elementwise(c *graph.Call, body func(w *graph.Worker, at, n int)) func() error {
	loop := c.NewLoop(func(w *graph.Worker, lo, hi int) { body(w, lo, hi-lo) })
	out := c.Out[0]
	return func() error {
		loop.Run(out.Rows()*out.Width(), elemGrain)
		return nil
	}
}

// Scale returns factor * x, computed in float32 (float64 for f64) and rounded once.
func Scale(x *graph.Value, factor float64) *graph.Value {
	return graph.Apply(scale{Factor: factor}, x)[0]
}

type scale struct{ Factor float64 }

func (o scale) Kind() string              { return "scale" }
func (o scale) Operands() []graph.Operand { return []graph.Operand{{Name: "x"}} }
func (o scale) Outputs() []string         { return []string{"y"} }

func (o scale) Infer(in []*graph.Value) ([]graph.Spec, error) {
	if !plain(in[0].DType()) {
		return nil, graph.BadDType("x", in[0].DType(), floats)
	}
	return []graph.Spec{in[0].Spec()}, nil
}

func (o scale) Gradient(n *graph.Node, grads []*graph.Value) []*graph.Value {
	return []*graph.Value{Scale(grads[0], o.Factor)}
}

// InPlace allows x: elementwise.
func (o scale) InPlace(*graph.Node, int) int { return 0 }

func (o scale) Host(c *graph.Call) func() error {
	if isWide(c.Out[0].DType) {
		return scaleHost[float64](c, o.Factor)
	}
	return scaleHost[float32](c, o.Factor)
}

func scaleHost[F float](c *graph.Call, factor float64) func() error {
	f := F(factor)
	return elementwise(c, func(w *graph.Worker, at, n int) {
		y := target[F](w, 0, c.Out[0], at, n)
		for i, x := range load[F](w, 1, c.In[0], at, n) {
			y[i] = f * x
		}
		store(c.Out[0], at, y)
	})
}

// Cast returns x in another float format, rounded once; x itself if it has that format already. The gradient
// is cast back, unless it is already in the format of x.
func Cast(x *graph.Value, to dtype.DType) *graph.Value {
	if x.DType() == to {
		return x
	}
	return graph.Apply(cast{To: to}, x)[0]
}

type cast struct{ To dtype.DType }

func (o cast) Kind() string              { return "cast" }
func (o cast) Operands() []graph.Operand { return []graph.Operand{{Name: "x"}} }
func (o cast) Outputs() []string         { return []string{"y"} }

func (o cast) Infer(in []*graph.Value) ([]graph.Spec, error) {
	if !plain(in[0].DType()) {
		return nil, graph.BadDType("x", in[0].DType(), floats)
	}
	if !plain(o.To) {
		return nil, graph.BadDType("to", o.To, floats)
	}
	s := in[0].Spec()
	s.DType = o.To
	return []graph.Spec{s}, nil
}

func (o cast) Gradient(n *graph.Node, grads []*graph.Value) []*graph.Value {
	return []*graph.Value{gradAs(n.In(0), grads[0])}
}

// InPlace allows x, where its format is as wide.
func (o cast) InPlace(*graph.Node, int) int { return 0 }

func (o cast) Host(c *graph.Call) func() error {
	if isWide(c.In[0].DType) {
		return castHost[float64](c)
	}
	return castHost[float32](c)
}

func castHost[F float](c *graph.Call) func() error {
	return elementwise(c, func(w *graph.Worker, at, n int) {
		store(c.Out[0], at, load[F](w, 0, c.In[0], at, n))
	})
}

type castKey struct {
	v       *graph.Value
	to      dtype.DType
	version int
}

// as returns x in format to. One cast of a variable serves all its readers in a graph until the variable
// is updated.
func as(g *graph.Graph, x *graph.Value, to dtype.DType) *graph.Value {
	if x == nil || x.Err() != nil || x.DType() == to {
		return x
	}
	if g == nil {
		return Cast(x, to)
	}
	x = g.Use(x)
	return g.Memo(castKey{x, to, g.Version(x)}, func() *graph.Value {
		return graph.ApplyAs("cast_"+to.String(), cast{To: to}, x)[0]
	})
}

// compute returns a float32 variable in the 16-bit format of the activations that it meets; other values
// as they are, for the shape rule to judge.
func compute(w, x *graph.Value) *graph.Value {
	if w == nil || x == nil || graph.VarsOf(w) == nil || w.DType() != dtype.Float32 || x.DType().Bits() != 16 {
		return w
	}
	return as(x.Graph(), w, x.DType())
}

// gradType is the format of a weight's gradient: that of the variable, where w is a variable's cast, so that
// the float32 sum is rounded no more than once.
func gradType(w *graph.Value) dtype.DType {
	if p := w.Producer(); p != nil {
		if _, ok := p.Op().(cast); ok {
			return p.In(0).DType()
		}
	}
	return w.DType()
}

// fillLike returns a constant in the shape and format of like.
func fillLike(like *graph.Value, value float64) *graph.Value {
	return graph.Apply(fill{Value: value}, like)[0]
}

type fill struct{ Value float64 }

func (o fill) Kind() string              { return "fill" }
func (o fill) Operands() []graph.Operand { return []graph.Operand{{Name: "like"}} }
func (o fill) Outputs() []string         { return []string{"y"} }

func (o fill) Infer(in []*graph.Value) ([]graph.Spec, error) {
	if !plain(in[0].DType()) {
		return nil, graph.BadDType("like", in[0].DType(), floats)
	}
	return []graph.Spec{in[0].Spec()}, nil
}

// InPlace allows like, of which only the shape matters.
func (o fill) InPlace(*graph.Node, int) int { return 0 }

func (o fill) Host(c *graph.Call) func() error {
	return elementwise(c, func(w *graph.Worker, at, n int) {
		y := w.Float64(0, n)
		for i := range y {
			y[i] = o.Value
		}
		store(c.Out[0], at, y)
	})
}
