package nodes

import (
	"github.com/moegraph/moegraph/graph"
)

// crop gives s, which has all rows of the capacity, the rows of like.
type crop struct{}

func (crop) Kind() string              { return "crop" }
func (crop) Operands() []graph.Operand { return []graph.Operand{{Name: "like"}, {Name: "s"}} }
func (crop) Outputs() []string         { return []string{"y"} }

func (crop) Infer(in []*graph.Value) ([]graph.Spec, error) {
	s := in[0].Spec()
	s.DType = in[1].DType()
	return []graph.Spec{s}, nil
}

func (crop) Host(c *graph.Call) func() error {
	return func() error {
		n := c.Out[0].DType.Bytes(c.Out[0].Rows() * c.Out[0].Width())
		copy(c.Out[0].Data[:n], c.In[1].Data[:n])
		return nil
	}
}

// firstRows keeps as many rows as the device says: the last element of n.
type firstRows struct{}

func (firstRows) Kind() string              { return "first_rows" }
func (firstRows) Operands() []graph.Operand { return []graph.Operand{{Name: "x"}, {Name: "n"}} }
func (firstRows) Outputs() []string         { return []string{"y"} }

func (firstRows) Infer(in []*graph.Value) ([]graph.Spec, error) {
	s := in[0].Spec()
	s.Rows = in[1]
	return []graph.Spec{s}, nil
}

func (o firstRows) Gradient(_ *graph.Node, grads []*graph.Value) []*graph.Value {
	return []*graph.Value{graph.Apply(allRows{}, grads[0])[0], nil}
}

func (firstRows) Host(c *graph.Call) func() error {
	return func() error {
		copy(c.Out[0].Data[:c.Out[0].DType.Bytes(c.Out[0].Rows()*c.Out[0].Width())], c.In[0].Data)
		return nil
	}
}

// allRows fills the rows that are not in use with zeros.
type allRows struct{}

func (allRows) Kind() string              { return "all_rows" }
func (allRows) Operands() []graph.Operand { return []graph.Operand{{Name: "x"}} }
func (allRows) Outputs() []string         { return []string{"y"} }

func (allRows) Infer(in []*graph.Value) ([]graph.Spec, error) {
	s := in[0].Spec()
	s.Rows = nil
	return []graph.Spec{s}, nil
}

func (allRows) Host(c *graph.Call) func() error {
	return func() error {
		n := c.In[0].DType.Bytes(c.In[0].Rows() * c.In[0].Width())
		clear(c.Out[0].Data[copy(c.Out[0].Data, c.In[0].Data[:n]):])
		return nil
	}
}

// square is y = x*x, with a gradient of Factor*x*dy: right for 2.
type square struct{ Factor float64 }

func (square) Kind() string { return "square" }
func (square) Operands() []graph.Operand {
	return []graph.Operand{{Name: "x"}, {Name: "dy", Optional: true}}
}
func (square) Outputs() []string { return []string{"y"} }

func (square) Infer(in []*graph.Value) ([]graph.Spec, error) { return []graph.Spec{in[0].Spec()}, nil }

func (o square) Gradient(n *graph.Node, grads []*graph.Value) []*graph.Value {
	return []*graph.Value{Scale(graph.Apply(o, n.In(0), grads[0])[0], o.Factor), nil}
}

func (square) Host(c *graph.Call) func() error {
	return elementwise(c, func(_ *graph.Worker, at, n int) {
		x, y := graph.View[float64](c.In[0].Data), graph.View[float64](c.Out[0].Data)
		for i := at; i < at+n; i++ {
			if y[i] = x[i] * x[i]; c.In[1] != nil {
				y[i] = x[i] * graph.View[float64](c.In[1].Data)[i]
			}
		}
	})
}

// ramp is y = max(x, 0) - min(x, 0)/4: a kink at 0.
type ramp struct{}

func (ramp) Kind() string { return "ramp" }
func (ramp) Operands() []graph.Operand {
	return []graph.Operand{{Name: "x"}, {Name: "dy", Optional: true}}
}
func (ramp) Outputs() []string { return []string{"y"} }

func (ramp) Infer(in []*graph.Value) ([]graph.Spec, error) { return []graph.Spec{in[0].Spec()}, nil }

func (o ramp) Gradient(n *graph.Node, grads []*graph.Value) []*graph.Value {
	return []*graph.Value{graph.Apply(o, n.In(0), grads[0])[0], nil}
}

func (ramp) Host(c *graph.Call) func() error {
	return elementwise(c, func(_ *graph.Worker, at, n int) {
		x, y := graph.View[float64](c.In[0].Data), graph.View[float64](c.Out[0].Data)
		for i := at; i < at+n; i++ {
			slope, factor := 1.0, x[i]
			if x[i] < 0 {
				slope = -0.25
			}
			if c.In[1] != nil {
				factor = graph.View[float64](c.In[1].Data)[i]
			}
			y[i] = slope * factor
		}
	})
}
