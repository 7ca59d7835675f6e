package nodes

import (
	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

func init() {
	why := "it makes gradients only"
	graph.Register(graph.Info{Example: groupMap{Op: "scale_rows", Align: DefaultAlignment}, Doc: "y[m,:] = prob[m] x[m,:] over the rows of groups", NoGrad: why})
	graph.Register(graph.Info{Example: groupMap{Op: "row_dot", Align: DefaultAlignment}, Doc: "y[m] = sum over n of x[m,n] z[m,n] over the rows of groups", NoGrad: why})
	graph.Register(graph.Info{Example: groupMap{Op: "row_dot_bias", Align: DefaultAlignment}, Doc: "y[m] = sum over n of x[m,n] bias[g,n] over the rows of group g", NoGrad: why})
	graph.Register(graph.Info{Example: groupMap{Op: "group_sum", Align: DefaultAlignment, DType: dtype.Float32}, Doc: "y[g,:] = sum over the rows m of group g of prob[m] x[m,:]", NoGrad: why})
}

// groupRows builds the elementwise nodes over the rows of groups that gradients of the grouped GEMMs need.
type groupRows struct {
	offsets, counts *graph.Value
	align           int
}

func (r groupRows) apply(o groupMap, x, with *graph.Value) *graph.Value {
	if x == nil {
		return nil
	}
	o.Align = r.align
	return graph.Apply(o, x, r.offsets, r.counts, with)[0]
}

// scale returns prob[m] * x[m,:] in format dt.
func (r groupRows) scale(x, prob *graph.Value, dt dtype.DType) *graph.Value {
	return r.apply(groupMap{Op: "scale_rows", DType: dt}, x, prob)
}

// dot returns the sum over n of x[m,n] z[m,n].
func (r groupRows) dot(x, z *graph.Value) *graph.Value {
	return r.apply(groupMap{Op: "row_dot", DType: statType(x.DType())}, x, z)
}

// dotBias returns the sum over n of x[m,n] bias[g,n].
func (r groupRows) dotBias(x, bias *graph.Value) *graph.Value {
	return r.apply(groupMap{Op: "row_dot_bias", DType: statType(x.DType())}, x, bias)
}

// sum returns the sum over the rows of each group of prob[m] x[m,:]; prob may be nil.
func (r groupRows) sum(x, prob *graph.Value, dt dtype.DType) *graph.Value {
	return r.apply(groupMap{Op: "group_sum", DType: dt}, x, prob)
}

// groupMap is one of four small operators over the rows of groups; Op is its kind. Its third operand is
// prob, z or bias.
type groupMap struct {
	Op    string
	Align int
	DType dtype.DType
}

func (o groupMap) Kind() string { return o.Op }

func (o groupMap) Operands() []graph.Operand {
	with := map[string]graph.Operand{
		"scale_rows": {Name: "prob"}, "row_dot": {Name: "z"}, "row_dot_bias": {Name: "bias"}, "group_sum": {Name: "prob", Optional: true},
	}[o.Op]
	return []graph.Operand{{Name: "x"}, {Name: "padded_offsets"}, {Name: "counts", Optional: true}, with}
}

func (o groupMap) Outputs() []string { return []string{"y"} }

func (o groupMap) Infer(in []*graph.Value) ([]graph.Spec, error) {
	x, with := in[0], in[3]
	if x.Rank() != 2 || !plain(x.DType()) {
		return nil, graph.BadShape("x", x.Text(), "(M,N) in %s", floats)
	}
	e, err := checkGroups("padded_offsets", in[1], in[2], x.Dim(0), o.Align)
	if err != nil {
		return nil, err
	}
	m, n := x.Dim(0), x.Dim(1)
	want := []int{m}
	switch o.Op {
	case "row_dot":
		want = []int{m, n}
	case "row_dot_bias":
		want = []int{e, n}
	}
	if with != nil && (with.Rank() != len(want) || with.Dim(0) != want[0] || with.Dim(1) != (append(want, 0))[1]) {
		return nil, graph.BadShape(o.Operands()[3].Name, with.Text(), "%v", want)
	}
	switch o.Op {
	case "scale_rows":
		return []graph.Spec{{DType: o.DType, Shape: []int{m, n}, Rows: in[1]}}, nil
	case "group_sum":
		return []graph.Spec{{DType: o.DType, Shape: []int{e, n}}}, nil
	}
	return []graph.Spec{{DType: o.DType, Shape: []int{m}, Rows: in[1]}}, nil
}

func (o groupMap) Host(c *graph.Call) func() error {
	wide := isWide(c.In[0].DType)
	switch {
	case o.Op == "group_sum" && wide:
		return groupSumHost[float64](o, c)
	case o.Op == "group_sum":
		return groupSumHost[float32](o, c)
	case wide:
		return groupMapHost[float64](o, c)
	}
	return groupMapHost[float32](o, c)
}

func groupMapHost[F float](o groupMap, c *graph.Call) func() error {
	x, with, y := c.In[0], c.In[3], c.Out[0]
	n := x.Shape[1]
	rows := []*graph.Tensor{x}
	if o.Op != "row_dot_bias" {
		rows = append(rows, with)
	}
	g := newGroups(c.In[1], c.In[2], x.Shape[0], o.Align, rowGrain(n), rows...)
	row := func(w *graph.Worker, e, m int) {
		v := load[F](w, 0, x, m*n, n)
		switch o.Op {
		case "scale_rows":
			s, out := scalar[F](with, m), target[F](w, 1, y, m*n, n)
			for i := range out {
				out[i] = s * v[i]
			}
			store(y, m*n, out)
			return
		case "row_dot":
			e = m
		}
		put(w, y, m, dot(v, load[F](w, 1, with, e*n, n)))
	}
	width := y.Width()
	loop := c.NewLoop(func(w *graph.Worker, lo, hi int) {
		for t := lo; t < hi; t++ {
			e, first, mid, last := g.at(t)
			for m := first; m < mid; m++ {
				row(w, e, m)
			}
			zero(y, mid*width, (last-mid)*width)
		}
	})
	return func() error {
		g.read()
		loop.Run(g.tiles(), 1)
		return nil
	}
}

// dot returns the inner product, in sums of 64 so that long rows lose little.
func dot[F float](x, y []F) F {
	var total F
	for len(x) > 0 {
		n := min(64, len(x))
		var part F
		for i := range n {
			part += x[i] * y[i]
		}
		total += part
		x, y = x[n:], y[n:]
	}
	return total
}

// sumBlock is how many rows are added up before the sum joins the total, so that long sums lose little.
const sumBlock = 64

func groupSumHost[F float](o groupMap, c *graph.Call) func() error {
	x, prob, y := c.In[0], c.In[3], c.Out[0]
	n := x.Shape[1]
	g := newGroups(c.In[1], c.In[2], x.Shape[0], o.Align, 1, x, prob)
	const piece = 64
	cols := tiles(n, piece)
	loop := c.NewLoop(func(w *graph.Worker, lo, hi int) {
		for t := lo; t < hi; t++ {
			e, col := t/cols, t%cols*piece
			nt := min(piece, n-col)
			total, part := buffer[F](w, 0, nt), buffer[F](w, 1, nt)
			clear(total)
			for b := g.begin[e]; b < g.real[e]; b += sumBlock {
				clear(part)
				for m := b; m < min(b+sumBlock, g.real[e]); m++ {
					addScaled(part, load[F](w, 2, x, m*n+col, nt), rowProb[F](prob, m))
				}
				addScaled(total, part, 1)
			}
			store(y, e*n+col, total)
		}
	})
	return func() error {
		g.read()
		loop.Run(len(g.begin)*cols, 1)
		return nil
	}
}
