package nodes

import "github.com/moegraph/moegraph/graph"

func init() {
	graph.Register(graph.Info{Example: relayoutOp{To: LayoutConcat}, Doc: "y = x with columns in blocks of 32 gate and 32 up put into a weight layout",
		Options: []string{"to"}, NoGrad: "it makes gradients only"})
}

// columnOrder returns x, whose columns are in blocks of 32, in layout to.
func columnOrder(x *graph.Value, to Layout) *graph.Value {
	if to == LayoutInterleaved32 {
		return x
	}
	return graph.Apply(relayoutOp{To: to}, x)[0]
}

type relayoutOp struct{ To Layout }

func (o relayoutOp) Kind() string              { return "glu_layout" }
func (o relayoutOp) Operands() []graph.Operand { return []graph.Operand{{Name: "x"}} }
func (o relayoutOp) Outputs() []string         { return []string{"y"} }

func (o relayoutOp) Infer(in []*graph.Value) ([]graph.Spec, error) {
	x := in[0]
	if x.Rank() != 2 || !plain(x.DType()) {
		return nil, graph.BadShape("x", x.Text(), "(M,N) in %s", floats)
	}
	return []graph.Spec{x.Spec()}, checkGLUWidth("x", x.Dim(1))
}

func (o relayoutOp) Host(c *graph.Call) func() error {
	if isWide(c.In[0].DType) {
		return relayoutHost[float64](o, c)
	}
	return relayoutHost[float32](o, c)
}

func relayoutHost[F float](o relayoutOp, c *graph.Call) func() error {
	x, y := c.In[0], c.Out[0]
	n := x.Shape[1]
	return overRows(c, x, nil, nil, nil, 1, func(w *graph.Worker, _, m int) {
		out := buffer[F](w, 1, n)
		relayout(o.To, out, load[F](w, 0, x, m*n, n))
		store(y, m*n, out)
	})
}
