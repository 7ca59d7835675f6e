package nodes

import (
	"fmt"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

func init() {
	graph.Register(graph.Info{Example: permute{}, Doc: "a[row] = x[token of row] (times prob of its slot), zeros in padding rows"})
	graph.Register(graph.Info{Example: combine{Y: dtype.BFloat16}, Doc: "y[t] = sum over slots of (prob times) d[row of slot], in slot order, float32", Options: []string{"y_dtype = that of d"}})
	graph.Register(graph.Info{Example: permuteProb{}, Doc: "prob[row] = topk_prob[slot of row], zero in padding rows"})
	graph.Register(graph.Info{Example: slotGather{}, Doc: "y[t,s] = x[row of slot], zero where the slot has no row"})
	graph.Register(graph.Info{Example: slotDot{}, Doc: "y[t,s] = sum over h of x[t,h] d[row of slot,h], zero where the slot has no row", NoGrad: "it makes gradients of probabilities only"})
}

// Permute gathers the rows of tokens into the row layout of r.
//
//	a[row,:] = x[token of row,:] ; padding rows are zero
//
// x is (T,H), the result (M,H) in the same format. The gradient of x sums over a token's slots as Combine does.
func (r Routing) Permute(x *graph.Value) *graph.Value { return r.permute(x, nil) }

func (r Routing) permute(x, prob *graph.Value) *graph.Value {
	return graph.Apply(permute{}, x, r.SlotMap, r.RowMap, r.PaddedOffsets, prob)[0]
}

// PermuteProb gathers the probabilities of slots into the row layout: (T,k) to (M,), zero in padding rows.
func (r Routing) PermuteProb(prob *graph.Value) *graph.Value {
	return graph.Apply(permuteProb{}, prob, r.SlotMap, r.RowMap, r.PaddedOffsets)[0]
}

// Combine sums the rows of each token's slots, in slot order, in float32, and rounds once.
//
//	y[t,:] = sum over s of (prob[t,s] *) d[row of slot (t,s),:]
//
// d is (M,H); prob, (T,k), may be nil where something before has applied it. Slots without a row add nothing.
// The result is (T,H) in format dt. Gradients flow to d and prob.
func (r Routing) Combine(d, prob *graph.Value, dt dtype.DType) *graph.Value {
	return graph.Apply(combine{Y: dt}, d, r.RowMap, r.SlotMap, r.PaddedOffsets, prob)[0]
}

// routingOf rebuilds what the gradients need from a node's operands.
func routingOf(slotMap, rowMap, offsets *graph.Value) Routing {
	return Routing{SlotMap: slotMap, RowMap: rowMap, PaddedOffsets: offsets}
}

// checkMaps checks the maps: row_map (T,k) always, slot_map (M,) and padded_offsets where given.
func checkMaps(rowMap, slotMap, offsets *graph.Value) error {
	for _, m := range []struct {
		name string
		v    *graph.Value
		rank int
	}{{"row_map", rowMap, 2}, {"slot_map", slotMap, 1}, {"padded_offsets", offsets, 1}} {
		if m.v == nil {
			continue
		}
		if m.v.DType() != dtype.Int32 {
			return graph.BadDType(m.name, m.v.DType(), "int32")
		}
		if m.v.Rank() != m.rank {
			return graph.BadShape(m.name, m.v.Text(), "%d dimensions", m.rank)
		}
		if m.v != rowMap && m.v.Rows() != nil && m.v.Rows() != offsets {
			return graph.BadShape(m.name, m.v.Text(), "all rows in use, or those that padded_offsets counts")
		}
	}
	return nil
}

type permute struct{}

func (o permute) Kind() string { return "permute" }

func (o permute) Operands() []graph.Operand {
	return []graph.Operand{{Name: "x"}, {Name: "slot_map"}, {Name: "row_map"}, {Name: "padded_offsets"}, {Name: "topk_prob", Optional: true}}
}

func (o permute) Outputs() []string { return []string{"a"} }

func (o permute) Infer(in []*graph.Value) ([]graph.Spec, error) {
	x, slotMap, rowMap, offsets, prob := in[0], in[1], in[2], in[3], in[4]
	if x.Rank() != 2 || !plain(x.DType()) {
		return nil, graph.BadShape("x", x.Text(), "(T,H) in %s", floats)
	}
	if err := checkMaps(rowMap, slotMap, offsets); err != nil {
		return nil, err
	}
	if err := graph.SameRows("row_map", x, rowMap); err != nil {
		return nil, err
	}
	if prob != nil {
		if err := sameShape("topk_prob", rowMap, prob); err != nil {
			return nil, err
		}
	}
	return []graph.Spec{{DType: x.DType(), Shape: []int{slotMap.Dim(0), x.Dim(1)}, Rows: offsets}}, nil
}

func (o permute) Gradient(n *graph.Node, grads []*graph.Value) []*graph.Value {
	x, prob := n.In(0), n.In(4)
	r := routingOf(n.In(1), n.In(2), n.In(3))
	out := make([]*graph.Value, 5)
	out[0] = r.Combine(grads[0], prob, x.DType())
	if prob != nil {
		out[4] = graph.Apply(slotDot{}, x, grads[0], n.In(2))[0]
	}
	return out
}

func (o permute) Host(c *graph.Call) func() error {
	if isWide(c.In[0].DType) {
		return permuteHost[float64](c)
	}
	return permuteHost[float32](c)
}

func permuteHost[F float](c *graph.Call) func() error {
	x, slotMap, rowMap, prob, a := c.In[0], c.In[1], c.In[2], c.In[4], c.Out[0]
	k, h := rowMap.Shape[1], x.Shape[1]
	size := x.DType.Bytes(h)
	loop := c.NewLoop(func(w *graph.Worker, lo, hi int) {
		slots, total := ints(slotMap), x.Rows()*k
		for row := lo; row < hi; row++ {
			s := int(slots[row])
			switch {
			case s < 0 || s >= total:
				zero(a, row*h, h)
			case prob == nil:
				copy(a.Data[row*size:(row+1)*size], x.Data[s/k*size:(s/k+1)*size])
			default:
				p, out := scalar[F](prob, s), target[F](w, 0, a, row*h, h)
				for i, v := range load[F](w, 1, x, s/k*h, h) {
					out[i] = p * v
				}
				store(a, row*h, out)
			}
		}
	})
	return func() error {
		loop.Run(a.Rows(), rowGrain(h))
		return nil
	}
}

type combine struct{ Y dtype.DType }

func (o combine) Kind() string { return "combine" }

func (o combine) Operands() []graph.Operand {
	return []graph.Operand{{Name: "d"}, {Name: "row_map"}, {Name: "slot_map", Optional: true}, {Name: "padded_offsets", Optional: true}, {Name: "topk_prob", Optional: true}}
}

func (o combine) Outputs() []string { return []string{"y"} }

func (o combine) Infer(in []*graph.Value) ([]graph.Spec, error) {
	d, rowMap, prob := in[0], in[1], in[4]
	if d.Rank() != 2 || !plain(d.DType()) {
		return nil, graph.BadShape("d", d.Text(), "(M,H) in %s", floats)
	}
	if err := checkMaps(rowMap, in[2], in[3]); err != nil {
		return nil, err
	}
	if !plain(o.Y) || isWide(o.Y) != isWide(d.DType()) {
		return nil, graph.BadDType("y_dtype", o.Y, "bf16, f16 or f32 (f64 with everything f64)")
	}
	if prob != nil {
		if prob.DType() != statType(d.DType()) {
			return nil, graph.BadDType("topk_prob", prob.DType(), "%s", statType(d.DType()))
		}
		if err := sameShape("topk_prob", rowMap, prob); err != nil {
			return nil, err
		}
	}
	return []graph.Spec{{DType: o.Y, Shape: []int{rowMap.Dim(0), d.Dim(1)}, Rows: rowMap.Rows()}}, nil
}

func (o combine) Gradient(n *graph.Node, grads []*graph.Value) []*graph.Value {
	d, prob := n.In(0), n.In(4)
	out := make([]*graph.Value, 5)
	if n.In(2) == nil || n.In(3) == nil {
		n.Graph().Fail(fmt.Errorf("combine %q: %w", n.Name(), graph.Misuse("slot_map", "none", "slot_map and padded_offsets, which the gradient needs")))
		return out
	}
	dy := as(n.Graph(), grads[0], d.DType())
	out[0] = routingOf(n.In(2), n.In(1), n.In(3)).permute(dy, prob)
	if prob != nil {
		out[4] = graph.Apply(slotDot{}, dy, d, n.In(1))[0]
	}
	return out
}

func (o combine) Host(c *graph.Call) func() error {
	if isWide(c.In[0].DType) {
		return combineHost[float64](c)
	}
	return combineHost[float32](c)
}

func combineHost[F float](c *graph.Call) func() error {
	d, rowMap, prob, y := c.In[0], c.In[1], c.In[4], c.Out[0]
	k, h := rowMap.Shape[1], d.Shape[1]
	loop := c.NewLoop(func(w *graph.Worker, lo, hi int) {
		rows, used := ints(rowMap), d.Rows()
		for t := lo; t < hi; t++ {
			out := target[F](w, 0, y, t*h, h)
			clear(out)
			for s := t * k; s < (t+1)*k; s++ {
				row := int(rows[s])
				if row < 0 || row >= used {
					continue
				}
				addScaled(out, load[F](w, 1, d, row*h, h), rowProb[F](prob, s))
			}
			store(y, t*h, out)
		}
	})
	return func() error {
		loop.Run(y.Rows(), rowGrain(k*h))
		return nil
	}
}
