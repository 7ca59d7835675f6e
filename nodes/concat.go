package nodes

import (
	"fmt"

	"github.com/moegraph/moegraph/graph"
)

func init() {
	graph.Register(graph.Info{Example: concat{N: 2}, Doc: "y = the matrices x1, ..., xn side by side"})
	graph.Register(graph.Info{Example: sliceCols{From: 0, To: 1}, Doc: "y = columns [from, to) of x", Options: []string{"from", "to"}})
	graph.Register(graph.Info{Example: padCols{From: 0, Total: 2}, Doc: "y = x as columns [from, from + its width) of a matrix of zeros",
		Options: []string{"from", "total"}})
}

// Concat puts matrices side by side.
//
//	y[t] = [x1[t], x2[t], ...]
//
// Each x is (T,Ci), all in one format of at least 8 bits and with the same rows, possibly counted; y is
// (T, sum of Ci). The gradient of each is its columns of the output's.
func Concat(xs ...*graph.Value) *graph.Value {
	switch len(xs) {
	case 0:
		return (*graph.Graph)(nil).Fail(fmt.Errorf("concat: %w", graph.Misuse("x", "none", "at least one operand")))
	case 1:
		return xs[0]
	}
	return graph.Apply(concat{N: len(xs)}, xs...)[0]
}

// Columns returns columns [from, to) of the matrix x, to exclusive. Its gradient is the output's with zeros
// in the other columns.
func Columns(x *graph.Value, from, to int) *graph.Value {
	if x.Err() == nil && x.Rank() == 2 && from == 0 && to == x.Dim(1) {
		return x
	}
	return graph.Apply(sliceCols{From: from, To: to}, x)[0]
}

type concat struct{ N int }

func (o concat) Kind() string              { return "concat" }
func (o concat) Operands() []graph.Operand { return numbered(o.N) }
func (o concat) Outputs() []string         { return []string{"y"} }

// numbered are operands x1 to xn.
func numbered(n int) []graph.Operand {
	ops := make([]graph.Operand, n)
	for i := range ops {
		ops[i].Name = fmt.Sprintf("x%d", i+1)
	}
	return ops
}

func (o concat) Infer(in []*graph.Value) ([]graph.Spec, error) {
	width := 0
	for i, x := range in {
		name := fmt.Sprintf("x%d", i+1)
		if err := checkMatrix(name, x); err != nil {
			return nil, err
		}
		if x.DType() != in[0].DType() {
			return nil, graph.BadDType(name, x.DType(), "%s as x1", in[0].DType())
		}
		if err := graph.SameRows(name, in[0], x); err != nil {
			return nil, err
		}
		width += x.Dim(1)
	}
	s := in[0].Spec()
	s.Shape[1] = width
	return []graph.Spec{s}, nil
}

// checkMatrix checks a matrix whose elements are whole bytes.
func checkMatrix(operand string, x *graph.Value) error {
	switch {
	case x.Rank() != 2:
		return graph.BadShape(operand, x.Text(), "a matrix")
	case x.DType().Bits() < 8:
		return graph.BadDType(operand, x.DType(), "a format of at least 8 bits")
	}
	return nil
}

func (o concat) Gradient(n *graph.Node, grads []*graph.Value) []*graph.Value {
	out := make([]*graph.Value, o.N)
	at := 0
	for i := range out {
		width := n.In(i).Dim(1)
		out[i] = gradAs(n.In(i), Columns(grads[0], at, at+width))
		at += width
	}
	return out
}

func (o concat) Host(c *graph.Call) func() error {
	y := c.Out[0]
	to := y.DType.Bytes(y.Shape[1])
	return rowsLoop(c, func(row int) {
		dst := y.Data[row*to : (row+1)*to]
		for _, x := range c.In {
			size := x.DType.Bytes(x.Shape[1])
			copy(dst, x.Data[row*size:(row+1)*size])
			dst = dst[size:]
		}
	})
}

// rowsLoop runs body for each row in use of the first output.
func rowsLoop(c *graph.Call, body func(row int)) func() error {
	y := c.Out[0]
	loop := c.NewLoop(func(_ *graph.Worker, lo, hi int) {
		for row := lo; row < hi; row++ {
			body(row)
		}
	})
	return func() error {
		loop.Run(y.Rows(), rowGrain(y.Width()))
		return nil
	}
}

type sliceCols struct{ From, To int }

func (o sliceCols) Kind() string              { return "slice_cols" }
func (o sliceCols) Operands() []graph.Operand { return []graph.Operand{{Name: "x"}} }
func (o sliceCols) Outputs() []string         { return []string{"y"} }

func (o sliceCols) Infer(in []*graph.Value) ([]graph.Spec, error) {
	if err := checkMatrix("x", in[0]); err != nil {
		return nil, err
	}
	if o.From < 0 || o.To < o.From || o.To > in[0].Dim(1) {
		return nil, graph.BadShape("columns", fmt.Sprintf("[%d,%d)", o.From, o.To), "a part of the %d columns of x", in[0].Dim(1))
	}
	s := in[0].Spec()
	s.Shape[1] = o.To - o.From
	return []graph.Spec{s}, nil
}

func (o sliceCols) Gradient(n *graph.Node, grads []*graph.Value) []*graph.Value {
	pad := padCols{From: o.From, Total: n.In(0).Dim(1)}
	return []*graph.Value{gradAs(n.In(0), graph.Apply(pad, grads[0])[0])}
}

func (o sliceCols) Host(c *graph.Call) func() error {
	x, y := c.In[0], c.Out[0]
	from, width, to := x.DType.Bytes(o.From), x.DType.Bytes(x.Shape[1]), y.DType.Bytes(y.Shape[1])
	return rowsLoop(c, func(row int) {
		copy(y.Data[row*to:(row+1)*to], x.Data[row*width+from:])
	})
}

// padCols is the inverse of sliceCols: the other columns are zero.
type padCols struct{ From, Total int }

func (o padCols) Kind() string              { return "pad_cols" }
func (o padCols) Operands() []graph.Operand { return []graph.Operand{{Name: "x"}} }
func (o padCols) Outputs() []string         { return []string{"y"} }

func (o padCols) Infer(in []*graph.Value) ([]graph.Spec, error) {
	if err := checkMatrix("x", in[0]); err != nil {
		return nil, err
	}
	if o.From < 0 || o.From+in[0].Dim(1) > o.Total {
		return nil, graph.BadShape("from", o.From, "0 to %d", o.Total-in[0].Dim(1))
	}
	s := in[0].Spec()
	s.Shape[1] = o.Total
	return []graph.Spec{s}, nil
}

func (o padCols) Gradient(n *graph.Node, grads []*graph.Value) []*graph.Value {
	return []*graph.Value{gradAs(n.In(0), Columns(grads[0], o.From, o.From+n.In(0).Dim(1)))}
}

func (o padCols) Host(c *graph.Call) func() error {
	x, y := c.In[0], c.Out[0]
	from, width, to := x.DType.Bytes(o.From), x.DType.Bytes(x.Shape[1]), y.DType.Bytes(y.Shape[1])
	return rowsLoop(c, func(row int) {
		dst := y.Data[row*to : (row+1)*to]
		clear(dst)
		copy(dst[from:], x.Data[row*width:(row+1)*width])
	})
}
