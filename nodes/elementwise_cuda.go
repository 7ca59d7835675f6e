package nodes

import (
	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// sumParams are the constants of sum.cuh: the formats of its N operands, float for those that are not there.
type sumParams struct {
	YType                                                          string
	N                                                              int
	X0Type, X1Type, X2Type, X3Type, X4Type, X5Type, X6Type, X7Type string
}

// sumOperands is how many operands one launch adds.
const sumOperands = 8

// CUDAScratch is a float32 sum where one launch does not take all operands and the output cannot hold it.
func (o sum) CUDAScratch(n *graph.Node, _ graph.GPU) int64 {
	if o.N <= sumOperands || o.DType == dtype.Float32 {
		return 0
	}
	return 4 * int64(n.In(0).Elems())
}

func (o sum) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	if err := refuseWide(c); err != nil {
		return nil, err
	}
	y := c.Out[0]
	result := sumTerm{y.DType, ptr(y)}
	part := result // the float32 sum so far
	if y.DType != dtype.Float32 {
		part = sumTerm{dtype.Float32, scratchAt(c, 0)}
	}
	terms := make([]sumTerm, len(c.In))
	for i, x := range c.In {
		terms[i] = sumTerm{x.DType, ptr(x)}
	}
	var launches []graph.Launch
	for len(terms) > sumOperands {
		launches = append(launches, sumLaunch(c, part, terms[:sumOperands]))
		terms = append([]sumTerm{part}, terms[sumOperands:]...)
	}
	return append(launches, sumLaunch(c, result, terms)), nil
}

// sumTerm is what a launch adds or writes.
type sumTerm struct {
	dt dtype.DType
	at graph.Pointer
}

// sumLaunch adds up to sumOperands terms.
func sumLaunch(c *graph.KernelCall, out sumTerm, terms []sumTerm) graph.Launch {
	y := c.Out[0]
	var types [sumOperands]string
	var x [sumOperands]any
	like := []*graph.Tensor{{DType: out.dt}}
	for i := range x {
		types[i], x[i] = "float", graph.Pointer{}
		if i < len(terms) {
			types[i], x[i] = elemType(terms[i].dt), terms[i].at
			like = append(like, &graph.Tensor{DType: terms[i].dt})
		}
	}
	p := sumParams{elemType(out.dt), len(terms), types[0], types[1], types[2], types[3], types[4], types[5], types[6], types[7]}
	return elementwiseLaunch(c, "sum", "sum.cuh", p, y, like, out.at, counted(y), int64(y.Width()), x[:])
}

// mapParams are the constants of kernels that map one tensor to another.
type mapParams struct{ XType, YType string }

// mapLaunches launches y = f(x) with the arguments of elementwise.cuh's map_rows, then more.
func mapLaunches(c *graph.KernelCall, name, source string, more ...any) ([]graph.Launch, error) {
	x, y := c.In[0], c.Out[0]
	l := elementwiseLaunch(c, name, source, mapParams{typeOf(x), typeOf(y)}, y, []*graph.Tensor{x, y},
		ptr(y), ptr(x), counted(y), int64(y.Width()), more)
	return []graph.Launch{l}, refuseWide(c)
}

func (o scale) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	return mapLaunches(c, "scale", "scale.cuh", float32(o.Factor))
}

func (scaleBy) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	return mapLaunches(c, "scale_by", "scale.cuh", ptr(c.In[1]))
}

func (o cast) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	return mapLaunches(c, "cast", "cast.cuh")
}

func (o fill) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	y := c.Out[0]
	p := struct{ YType string }{typeOf(y)}
	l := elementwiseLaunch(c, "fill", "fill.cuh", p, y, []*graph.Tensor{y}, ptr(y), counted(y), int64(y.Width()), float32(o.Value))
	return []graph.Launch{l}, refuseWide(c)
}
