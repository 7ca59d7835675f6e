package nodes

import (
	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

func init() {
	graph.Register(graph.Info{Example: embedding{}, Doc: "y[t] = the table's rows of token t's ids, side by side"})
	graph.Register(graph.Info{Example: embeddingGrad{Vocab: 256, Width: 64, DType: dtype.Float32},
		Doc:    "dtable[v] = sum of the gradients of the places where id v stands, in the order of tokens",
		NoGrad: "it makes gradients only"})
}

// Embedding looks up rows of a table.
//
//	y[t, i*D:(i+1)*D] = table[ids[t,i]]
//
// ids is int32 (T,n) or (T,), its rows possibly counted; table is (V,D) in bf16, f16, f32 or f64; y is
// (T, n*D) in the format of the table: a token's n vectors side by side. An id outside [0,V) is an error
// in debug mode (Debug.Offsets); else it stands for a vector of zeros that has no gradient.
// The gradient of the table is summed in float32 (float64 for f64) in the order of tokens and
// rounded once, with 4*(V+1+T*n) bytes of workspace.
func Embedding(ids, table *graph.Value) *graph.Value {
	return graph.Apply(embedding{}, ids, table)[0]
}

type embedding struct{}

func (embedding) Kind() string              { return "embedding" }
func (embedding) Operands() []graph.Operand { return []graph.Operand{{Name: "ids"}, {Name: "table"}} }
func (embedding) Outputs() []string         { return []string{"y"} }

func (embedding) Infer(in []*graph.Value) ([]graph.Spec, error) {
	ids, table := in[0], in[1]
	if err := checkIDs(ids); err != nil {
		return nil, err
	}
	switch {
	case table.Rank() != 2 || table.Rows() != nil:
		return nil, graph.BadShape("table", table.Text(), "a matrix (V,D)")
	case !plain(table.DType()):
		return nil, graph.BadDType("table", table.DType(), floats)
	}
	return []graph.Spec{{DType: table.DType(), Shape: []int{ids.Dim(0), idsPerToken(ids) * table.Dim(1)}, Rows: ids.Rows()}}, nil
}

func checkIDs(ids *graph.Value) error {
	switch {
	case ids.DType() != dtype.Int32:
		return graph.BadDType("ids", ids.DType(), "int32")
	case ids.Rank() != 1 && ids.Rank() != 2:
		return graph.BadShape("ids", ids.Text(), "(T,) or (T,n)")
	}
	return nil
}

func idsPerToken(ids *graph.Value) int {
	if ids.Rank() == 1 {
		return 1
	}
	return ids.Dim(1)
}

func (embedding) Gradient(n *graph.Node, grads []*graph.Value) []*graph.Value {
	ids, table := n.In(0), n.In(1)
	op := embeddingGrad{Vocab: table.Dim(0), Width: table.Dim(1), DType: gradType(table)}
	return []*graph.Value{nil, graph.Apply(op, ids, grads[0])[0]}
}

// Host copies rows byte by byte.
func (embedding) Host(c *graph.Call) func() error {
	ids, table, y := c.In[0], c.In[1], c.Out[0]
	n, vocab, size := ids.Width(), table.Shape[0], table.DType.Bytes(table.Shape[1])
	loop := c.NewLoop(func(_ *graph.Worker, lo, hi int) {
		for i, id := range ints(ids)[lo*n : hi*n] {
			to := y.Data[(lo*n+i)*size : (lo*n+i+1)*size]
			if id < 0 || int(id) >= vocab {
				clear(to)
				continue
			}
			copy(to, table.Data[int(id)*size:])
		}
	})
	return func() error {
		rows := ids.Rows()
		loop.Run(rows, rowGrain(y.Shape[1]))
		return nil
	}
}

// embeddingGrad adds the rows of dy to those of the table that their ids name.
type embeddingGrad struct {
	Vocab, Width int // of the table
	DType        dtype.DType
}

func (o embeddingGrad) Kind() string { return "embedding_grad" }
func (o embeddingGrad) Operands() []graph.Operand {
	return []graph.Operand{{Name: "ids"}, {Name: "dy"}}
}
func (o embeddingGrad) Outputs() []string { return []string{"dtable"} }

func (o embeddingGrad) Infer(in []*graph.Value) ([]graph.Spec, error) {
	ids, dy := in[0], in[1]
	if err := checkIDs(ids); err != nil {
		return nil, err
	}
	n := idsPerToken(ids)
	switch {
	case dy.Rank() != 2 || dy.Dim(1) != n*o.Width:
		return nil, graph.BadShape("dy", dy.Text(), "(T,%d)", n*o.Width)
	case !plain(dy.DType()) || isWide(dy.DType()) != isWide(o.DType):
		return nil, graph.BadDType("dy", dy.DType(), floats+", f64 only with f64")
	}
	if err := graph.SameRows("dy", ids, dy); err != nil {
		return nil, err
	}
	return []graph.Spec{{DType: o.DType, Shape: []int{o.Vocab, o.Width}}}, nil
}

// Scratch is the places of each id, sorted: where each id's begin, and the places.
func (o embeddingGrad) Scratch(n *graph.Node) int64 {
	return 4 * int64(o.Vocab+1+n.In(0).Elems())
}

func (o embeddingGrad) Host(c *graph.Call) func() error {
	if isWide(o.DType) {
		return embeddingGradHost[float64](c)
	}
	return embeddingGradHost[float32](c)
}

// embeddingGradHost sorts the places by id, then sums each row of the table on its own.
func embeddingGradHost[F float](c *graph.Call) func() error {
	ids, dy, dtable := c.In[0], c.In[1], c.Out[0]
	vocab, width := dtable.Shape[0], dtable.Shape[1]
	scratch := graph.View[int32](c.Scratch)
	begin, places := scratch[:vocab+1], scratch[vocab+1:]
	loop := c.NewLoop(func(w *graph.Worker, lo, hi int) {
		for v := lo; v < hi; v++ {
			acc := target[F](w, 0, dtable, v*width, width)
			clear(acc)
			for _, p := range places[begin[v]:begin[v+1]] {
				for j, x := range load[F](w, 1, dy, int(p)*width, width) {
					acc[j] += x
				}
			}
			store(dtable, v*width, acc)
		}
	})
	perRow := 1 + ids.Shape[0]*ids.Width()/max(1, vocab)
	return func() error {
		used := ints(ids)[:ids.Rows()*ids.Width()]
		sortPlaces(used, begin, places)
		loop.Run(vocab, rowGrain(width*perRow))
		return nil
	}
}

// sortPlaces lists the places of each id v in rising order at places[begin[v]:begin[v+1]], without those of
// ids outside [0, len(begin)-1).
func sortPlaces(ids, begin, places []int32) {
	vocab := len(begin) - 1
	clear(begin)
	for _, id := range ids {
		if id >= 0 && int(id) < vocab {
			begin[id]++
		}
	}
	var sum int32
	for v, n := range begin {
		sum += n
		begin[v] = sum
	}
	for i := len(ids) - 1; i >= 0; i-- {
		if id := ids[i]; id >= 0 && int(id) < vocab {
			begin[id]--
			places[begin[id]] = int32(i)
		}
	}
}
