package nodes

import (
	"github.com/moegraph/moegraph/graph"
)

// permuteProb gathers probabilities of slots into rows; slotGather is its transpose.
type permuteProb struct{}

func (o permuteProb) Kind() string { return "permute_prob" }

func (o permuteProb) Operands() []graph.Operand {
	return []graph.Operand{{Name: "topk_prob"}, {Name: "slot_map"}, {Name: "row_map"}, {Name: "padded_offsets"}}
}

func (o permuteProb) Outputs() []string { return []string{"prob"} }

func (o permuteProb) Infer(in []*graph.Value) ([]graph.Spec, error) {
	p := in[0]
	if p.DType() != statType(p.DType()) {
		return nil, graph.BadDType("topk_prob", p.DType(), "f32 (f64 with everything f64)")
	}
	if err := checkMaps(in[2], in[1], in[3]); err != nil {
		return nil, err
	}
	return []graph.Spec{{DType: p.DType(), Shape: in[1].Shape(), Rows: in[3]}}, sameShape("topk_prob", in[2], p)
}

func (o permuteProb) Gradient(n *graph.Node, grads []*graph.Value) []*graph.Value {
	return []*graph.Value{graph.Apply(slotGather{}, grads[0], n.In(1), n.In(2), n.In(3))[0], nil, nil, nil}
}

func (o permuteProb) Host(c *graph.Call) func() error {
	p, slotMap, out := c.In[0], c.In[1], c.Out[0]
	size := p.DType.Bytes(1)
	loop := c.NewLoop(func(_ *graph.Worker, lo, hi int) {
		slots, total := ints(slotMap), p.Rows()*p.Width()
		for row := lo; row < hi; row++ {
			if s := int(slots[row]); s >= 0 && s < total {
				copy(out.Data[row*size:(row+1)*size], p.Data[s*size:(s+1)*size])
			} else {
				zero(out, row, 1)
			}
		}
	})
	return func() error {
		loop.Run(out.Rows(), elemGrain)
		return nil
	}
}

type slotGather struct{}

func (o slotGather) Kind() string { return "slot_gather" }

func (o slotGather) Operands() []graph.Operand {
	return []graph.Operand{{Name: "x"}, {Name: "slot_map"}, {Name: "row_map"}, {Name: "padded_offsets"}}
}

func (o slotGather) Outputs() []string { return []string{"y"} }

func (o slotGather) Infer(in []*graph.Value) ([]graph.Spec, error) {
	x, rowMap := in[0], in[2]
	if x.Rank() != 1 || x.DType() != statType(x.DType()) {
		return nil, graph.BadShape("x", x.Text(), "f32 (M,)")
	}
	return []graph.Spec{{DType: x.DType(), Shape: rowMap.Shape(), Rows: rowMap.Rows()}}, checkMaps(rowMap, in[1], in[3])
}

func (o slotGather) Gradient(n *graph.Node, grads []*graph.Value) []*graph.Value {
	return []*graph.Value{graph.Apply(permuteProb{}, grads[0], n.In(1), n.In(2), n.In(3))[0], nil, nil, nil}
}

func (o slotGather) Host(c *graph.Call) func() error {
	x, rowMap, out := c.In[0], c.In[2], c.Out[0]
	size := x.DType.Bytes(1)
	loop := c.NewLoop(func(_ *graph.Worker, lo, hi int) {
		rows, used := ints(rowMap), x.Rows()
		for s := lo; s < hi; s++ {
			if row := int(rows[s]); row >= 0 && row < used {
				copy(out.Data[s*size:(s+1)*size], x.Data[row*size:(row+1)*size])
			} else {
				zero(out, s, 1)
			}
		}
	})
	return func() error {
		loop.Run(out.Rows()*out.Width(), elemGrain)
		return nil
	}
}

type slotDot struct{}

func (o slotDot) Kind() string { return "slot_dot" }

func (o slotDot) Operands() []graph.Operand {
	return []graph.Operand{{Name: "x"}, {Name: "d"}, {Name: "row_map"}}
}

func (o slotDot) Outputs() []string { return []string{"y"} }

func (o slotDot) Infer(in []*graph.Value) ([]graph.Spec, error) {
	x, d, rowMap := in[0], in[1], in[2]
	if x.Rank() != 2 || d.Rank() != 2 || x.Dim(1) != d.Dim(1) {
		return nil, graph.BadShape("d", d.Text(), "rows as wide as those of x %s", x.Text())
	}
	return []graph.Spec{{DType: statType(x.DType()), Shape: rowMap.Shape(), Rows: rowMap.Rows()}}, checkMaps(rowMap, nil, nil)
}

func (o slotDot) Host(c *graph.Call) func() error {
	if isWide(c.In[0].DType) {
		return slotDotHost[float64](c)
	}
	return slotDotHost[float32](c)
}

func slotDotHost[F float](c *graph.Call) func() error {
	x, d, rowMap, out := c.In[0], c.In[1], c.In[2], c.Out[0]
	k, h := rowMap.Shape[1], x.Shape[1]
	loop := c.NewLoop(func(w *graph.Worker, lo, hi int) {
		rows, used := ints(rowMap), d.Rows()
		for t := lo; t < hi; t++ {
			v := load[F](w, 0, x, t*h, h)
			for s := t * k; s < (t+1)*k; s++ {
				var y F
				if row := int(rows[s]); row >= 0 && row < used {
					y = dot(v, load[F](w, 1, d, row*h, h))
				}
				put(w, out, s, y)
			}
		}
	})
	return func() error {
		loop.Run(out.Rows(), rowGrain(k*h))
		return nil
	}
}
