package nodes

import (
	"cmp"
	"fmt"
	"math"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

func init() {
	graph.Register(graph.Info{Example: rmsNorm{Eps: rmsNormEps, DType: dtype.Float32},
		Doc:     "y = x / sqrt(mean(x^2) + eps) * weight, row by row",
		Options: []string{"eps = 1e-5", "y_dtype = that of x"}})
	graph.Register(graph.Info{Example: rmsNormGrad{DType: dtype.Float32},
		Doc: "the gradients of rmsnorm with respect to x and weight", NoGrad: "it makes gradients only"})
}

// RMSNormConfig are the options of RMSNorm.
type RMSNormConfig struct {
	Eps   float64     // added to the mean square; default 1e-5
	DType dtype.DType // of y; default that of x
}

const rmsNormEps = 1e-5

// RMSNorm divides each row by its root mean square and multiplies by a weight for each column.
//
//	rstd[t] = 1 / sqrt(mean_h x[t,h]^2 + eps)
//	y[t,h]  = x[t,h] * rstd[t] * weight[h]
//
// x is (T,H), its rows possibly counted; weight is (H,). Each is bf16, f16, f32 or f64, f64 only with f64:
// a float32 weight beside bf16 activations is used as it is. Sums in float64, the rest in float32, one
// rounding. The node's second output, y.Producer().Out(1), is rstd (T,) in f32; it is what the backward
// node reads. The gradient of weight is summed over blocks of rows in a fixed order; it has the weight's format.
func RMSNorm(x, weight *graph.Value, cfg ...RMSNormConfig) *graph.Value {
	var c RMSNormConfig
	if len(cfg) > 0 {
		c = cfg[0]
	}
	if c.Eps == 0 {
		c.Eps = rmsNormEps
	}
	c.DType = cmp.Or(c.DType, x.DType())
	return graph.Apply(rmsNorm(c), x, weight)[0]
}

type rmsNorm struct {
	Eps   float64
	DType dtype.DType
}

func (o rmsNorm) Kind() string              { return "rmsnorm" }
func (o rmsNorm) Operands() []graph.Operand { return []graph.Operand{{Name: "x"}, {Name: "weight"}} }
func (o rmsNorm) Outputs() []string         { return []string{"y", "rstd"} }

func (o rmsNorm) Infer(in []*graph.Value) ([]graph.Spec, error) {
	x, weight := in[0], in[1]
	switch {
	case x.Rank() != 2:
		return nil, graph.BadShape("x", x.Text(), "a matrix (T,H)")
	case !plain(x.DType()):
		return nil, graph.BadDType("x", x.DType(), floats)
	case !plain(o.DType) || isWide(o.DType) != isWide(x.DType()):
		return nil, graph.BadDType("dtype", o.DType, floats+", f64 only with f64")
	case !(o.Eps > 0) || o.Eps > math.MaxFloat32:
		return nil, graph.BadShape("eps", o.Eps, "a small number above 0")
	}
	if err := checkVector("weight", weight, x.Dim(1), x.DType()); err != nil {
		return nil, err
	}
	return []graph.Spec{
		{DType: o.DType, Shape: x.Shape(), Rows: x.Rows()},
		{DType: statType(x.DType()), Shape: []int{x.Dim(0)}, Rows: x.Rows()},
	}, nil
}

// Flops implements graph.Coster.
func (o rmsNorm) Flops(n *graph.Node) int64 { return 4 * int64(n.In(0).Elems()) }

func (o rmsNorm) Gradient(n *graph.Node, grads []*graph.Value) []*graph.Value {
	if grads[1] != nil {
		n.Graph().Fail(noGradient(n, "rstd", "y"))
		return make([]*graph.Value, 2)
	}
	op := rmsNormGrad{DType: gradType(n.In(1))}
	return graph.Apply(op, n.In(0), n.In(1), n.Out(1), grads[0])
}

// noGradient is the error of a gradient that flows into an output that is there for the backward nodes only.
func noGradient(n *graph.Node, output, main string) error {
	return fmt.Errorf("%s %q: %w", n.Op().Kind(), n.Name(),
		graph.Unsupported("gradient", "a gradient of "+output, "a loss that depends on %s only", main))
}

// rmsNormGrad computes, with n = x*rstd:
//
//	dx      = rstd * (weight*dy - n * mean_h(weight*dy*n))    in the format of x
//	dweight = sum_t dy*n                                      in DType
type rmsNormGrad struct{ DType dtype.DType }

func (o rmsNormGrad) Kind() string { return "rmsnorm_grad" }

func (o rmsNormGrad) Operands() []graph.Operand {
	return []graph.Operand{{Name: "x"}, {Name: "weight"}, {Name: "rstd"}, {Name: "dy"}}
}

func (o rmsNormGrad) Outputs() []string { return []string{"dx", "dweight"} }

func (o rmsNormGrad) Infer(in []*graph.Value) ([]graph.Spec, error) {
	x, weight, rstd, dy := in[0], in[1], in[2], in[3]
	if !plain(dy.DType()) || isWide(dy.DType()) != isWide(x.DType()) {
		return nil, graph.BadDType("dy", dy.DType(), floats+", f64 only with f64")
	}
	if err := sameShape("dy", x, dy); err != nil {
		return nil, err
	}
	if rstd.DType() != statType(x.DType()) {
		return nil, graph.BadDType("rstd", rstd.DType(), "%s", statType(x.DType()))
	}
	if err := graph.SameRows("rstd", x, rstd); err != nil {
		return nil, err
	}
	if err := checkVector("weight", weight, x.Dim(1), x.DType()); err != nil {
		return nil, err
	}
	return []graph.Spec{x.Spec(), {DType: o.DType, Shape: weight.Shape()}}, nil
}

// Flops implements graph.Coster.
func (o rmsNormGrad) Flops(n *graph.Node) int64 { return 9 * int64(n.In(0).Elems()) }

// Scratch is one sum of dweight for each block of rows.
func (o rmsNormGrad) Scratch(n *graph.Node) int64 {
	x := n.In(0)
	return int64(tiles(x.Dim(0), rmsNormBlock)*x.Dim(1)) * int64(statType(x.DType()).Bytes(1))
}

// rmsNormBlock is the number of rows whose contributions to dweight are added before the blocks' sums are.
const rmsNormBlock = 64
