package nodes

import (
	"fmt"
	"math"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

func init() {
	graph.Register(graph.Info{Example: globalNorm{N: 2, MaxNorm: 1},
		Doc:     "norm = square root of the sum of all squares of x1, ..., xn; coef = min(1, max_norm/(norm + 1e-6))",
		Options: []string{"max_norm"}, NoGrad: "it works on gradients only"})
	graph.Register(graph.Info{Example: scaleBy{}, Doc: "y = s * x, s one number on the device", NoGrad: "it works on gradients only"})
}

// ClipGlobalNorm scales gradients so that their common norm is at most maxNorm, as PyTorch's clip_grad_norm_.
//
//	norm = sqrt(sum over all gradients and elements of g^2)
//	g'   = g * min(1, maxNorm / (norm + 1e-6))
//
// It returns the scaled gradients, each in its format, and the norm before scaling, (1,) in f32 (f64 for f64).
// Squares are added in float64, in blocks of fixed size and order. maxNorm is above 0; +Inf only measures.
// A norm that is not finite is no error: with a NaN all gradients become NaN, with an Inf they become 0,
// or NaN where they were Inf. The given gradients are unchanged.
func ClipGlobalNorm(grads *graph.Grads, maxNorm float64) (clipped *graph.Grads, norm *graph.Value) {
	g := grads.Graph()
	fail := func(err error) (*graph.Grads, *graph.Value) {
		v := g.Fail(err)
		if grads == nil {
			return nil, v
		}
		return grads, v
	}
	switch {
	case grads == nil || len(grads.Value) == 0:
		return fail(fmt.Errorf("global_norm: %w", graph.Misuse("grads", "none", "at least one gradient")))
	case g.Err() != nil:
		return fail(nil)
	}
	defer g.Scope("clip")()
	out := graph.Apply(globalNorm{N: len(grads.Value), MaxNorm: maxNorm}, grads.Value...)
	if out[0].Err() != nil {
		return grads, out[0]
	}
	values := make([]*graph.Value, len(grads.Value))
	for i, v := range grads.Value {
		values[i] = graph.Apply(scaleBy{}, v, out[1])[0]
	}
	return grads.With(values), out[0]
}

type globalNorm struct {
	N       int
	MaxNorm float64
}

func (o globalNorm) Kind() string              { return "global_norm" }
func (o globalNorm) Operands() []graph.Operand { return numbered(o.N) }
func (o globalNorm) Outputs() []string         { return []string{"norm", "coef"} }

func (o globalNorm) Infer(in []*graph.Value) ([]graph.Spec, error) {
	for i, x := range in {
		if !plain(x.DType()) || isWide(x.DType()) != isWide(in[0].DType()) {
			return nil, graph.BadDType(fmt.Sprintf("x%d", i+1), x.DType(), floats+", f64 only with f64")
		}
	}
	if !(o.MaxNorm > 0) {
		return nil, graph.BadShape("max_norm", o.MaxNorm, "a number above 0")
	}
	s := graph.Spec{DType: statType(in[0].DType()), Shape: []int{1}}
	return []graph.Spec{s, s}, nil
}

// Flops implements graph.Coster.
func (o globalNorm) Flops(n *graph.Node) int64 {
	var sum int64
	for i := range o.N {
		sum += 2 * int64(n.In(i).Elems())
	}
	return sum
}

// Scratch is one sum for each block of each operand.
func (o globalNorm) Scratch(n *graph.Node) int64 {
	var blocks int
	for i := range o.N {
		blocks += tiles(n.In(i).Elems(), elemGrain)
	}
	return 8 * int64(blocks)
}

func (o globalNorm) Host(c *graph.Call) func() error {
	if isWide(c.In[0].DType) {
		return globalNormHost[float64](o, c)
	}
	return globalNormHost[float32](o, c)
}

// globalNormHost sums the squares of each block, then the blocks in order.
func globalNormHost[F float](o globalNorm, c *graph.Call) func() error {
	sums := graph.View[float64](c.Scratch)
	loops := make([]graph.Loop, len(c.In))
	firsts := make([]int, len(c.In)) // where each operand's sums begin
	blocks := 0
	for i, x := range c.In {
		mine := sums[blocks:]
		firsts[i] = blocks
		blocks += tiles(capacity(x), elemGrain)
		loops[i] = c.NewLoop(func(w *graph.Worker, lo, hi int) {
			var sum float64
			for _, v := range load[F](w, 0, x, lo, hi-lo) {
				sum += float64(v) * float64(v)
			}
			mine[lo/elemGrain] = sum
		})
	}
	return func() error {
		var sum float64
		for i, x := range c.In {
			n := x.Rows() * x.Width()
			loops[i].Run(n, elemGrain)
			for _, s := range sums[firsts[i] : firsts[i]+tiles(n, elemGrain)] {
				sum += s
			}
		}
		norm := F(math.Sqrt(sum))
		if t := c.Out[0]; t != nil {
			graph.View[F](t.Data)[0] = norm
		}
		if t := c.Out[1]; t != nil {
			graph.View[F](t.Data)[0] = clipCoef(norm, F(o.MaxNorm))
		}
		return nil
	}
}

// capacity returns the number of elements of t when all rows are in use.
func capacity(t *graph.Tensor) int {
	n := t.Width()
	if len(t.Shape) > 0 {
		n *= t.Shape[0]
	}
	return n
}

// clipCoef keeps a NaN.
func clipCoef[F float](norm, maxNorm F) F {
	if coef := maxNorm / (norm + 1e-6); !(coef > 1) {
		return coef
	}
	return 1
}

// scaleBy multiplies by a number that the device knows.
type scaleBy struct{}

func (scaleBy) Kind() string              { return "scale_by" }
func (scaleBy) Operands() []graph.Operand { return []graph.Operand{{Name: "x"}, {Name: "s"}} }
func (scaleBy) Outputs() []string         { return []string{"y"} }

func (scaleBy) Infer(in []*graph.Value) ([]graph.Spec, error) {
	x, s := in[0], in[1]
	if !plain(x.DType()) {
		return nil, graph.BadDType("x", x.DType(), floats)
	}
	if err := checkOne("s", s, statType(x.DType())); err != nil {
		return nil, err
	}
	return []graph.Spec{x.Spec()}, nil
}

// checkOne checks an optional operand that is one number.
func checkOne(operand string, v *graph.Value, dt dtype.DType) error {
	switch {
	case v == nil:
		return nil
	case v.Elems() != 1 || v.Rows() != nil:
		return graph.BadShape(operand, v.Text(), "(1,)")
	case v.DType() != dt:
		return graph.BadDType(operand, v.DType(), "%s", dt)
	}
	return nil
}

// InPlace allows x: elementwise.
func (scaleBy) InPlace(*graph.Node, int) int { return 0 }

func (scaleBy) Host(c *graph.Call) func() error {
	if isWide(c.In[0].DType) {
		return scaleByHost[float64](c)
	}
	return scaleByHost[float32](c)
}

func scaleByHost[F float](c *graph.Call) func() error {
	return elementwise(c, func(w *graph.Worker, at, n int) {
		s := graph.View[F](c.In[1].Data)[0]
		y := target[F](w, 0, c.Out[0], at, n)
		for i, x := range load[F](w, 1, c.In[0], at, n) {
			y[i] = x * s
		}
		store(c.Out[0], at, y)
	})
}
