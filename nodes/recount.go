package nodes

import (
	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

func init() {
	graph.Register(graph.Info{Example: recount{}, Doc: "y = x in its rows in use, zero in those that another count, or none, adds", NoGrad: "it makes gradients only"})
}

// withRows returns x as a value whose rows in use are counted by rows (nil: all): rows that x does not have are
// zero. A gradient becomes one of an operand that has more rows than the node used.
func withRows(x, rows *graph.Value) *graph.Value {
	return graph.Apply(recount{}, x, rows)[0]
}

type recount struct{}

func (o recount) Kind() string { return "recount" }

func (o recount) Operands() []graph.Operand {
	return []graph.Operand{{Name: "x"}, {Name: "rows", Optional: true}}
}

func (o recount) Outputs() []string { return []string{"y"} }

func (o recount) Infer(in []*graph.Value) ([]graph.Spec, error) {
	if r := in[1]; r != nil && (r.DType() != dtype.Int32 || r.Rank() != 1) {
		return nil, graph.BadDType("rows", r.Text(), "int32 (n,)")
	}
	s := in[0].Spec()
	s.Rows = in[1]
	return []graph.Spec{s}, nil
}

func (o recount) Host(c *graph.Call) func() error {
	x, y := c.In[0], c.Out[0]
	size := y.DType.Bytes(y.Width())
	loop := c.NewLoop(func(_ *graph.Worker, lo, hi int) {
		have := min(max(x.Rows(), lo), hi)
		copy(y.Data[lo*size:have*size], x.Data[lo*size:have*size])
		clear(y.Data[have*size : hi*size])
	})
	return func() error {
		loop.Run(y.Rows(), rowGrain(y.Width()))
		return nil
	}
}
