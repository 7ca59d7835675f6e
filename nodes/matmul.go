package nodes

import (
	"cmp"
	"fmt"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

func init() {
	graph.Register(graph.Info{
		Example: matmul{TransB: true, DType: dtype.Float32},
		Doc:     "y = op(a) op(b) (+ bias), op the matrix or its transpose; float32 accumulation",
		Options: []string{"trans_a = false", "trans_b = false", "dtype = that of a"},
	})
	graph.Register(graph.Info{Example: colSum{DType: dtype.Float32}, Doc: "y[j] = sum over rows i of x[i,j], in float32",
		NoGrad: "it makes gradients of biases only"})
}

// LinearConfig are the options of Linear.
type LinearConfig struct {
	Bias  *graph.Value // (N,), added before rounding; default none
	DType dtype.DType  // of the output; default that of x
}

// Linear returns x times the transpose of w, plus a bias if there is one.
//
//	y[t,n] = sum_k x[t,k] * w[n,k] (+ bias[n])
//
// x is (T,K), its rows possibly counted; w is (N,K) in the format of x, or a float32 variable, which is
// then cast once a step for all its uses. Formats bf16, f16, f32, f64. Accumulation in float32, one rounding.
// Gradients flow to x, w and bias; that of a cast variable is float32.
func Linear(x, w *graph.Value, cfg ...LinearConfig) *graph.Value {
	var c LinearConfig
	if len(cfg) > 0 {
		c = cfg[0]
	}
	c.DType = cmp.Or(c.DType, x.DType())
	if g := x.Graph(); g != nil && x.Err() == nil {
		w = compute(w, x)
		g.NameDefault("linear")
	}
	return graph.Apply(matmul{TransB: true, DType: c.DType}, x, w, c.Bias)[0]
}

// matmul is the product of two matrices. The rows of a, and with TransA those of b, may be counted.
type matmul struct {
	TransA, TransB bool
	DType          dtype.DType
}

func (o matmul) Kind() string { return "matmul" }

func (o matmul) Operands() []graph.Operand {
	return []graph.Operand{{Name: "a"}, {Name: "b"}, {Name: "bias", Optional: true}}
}

func (o matmul) Outputs() []string { return []string{"y"} }

func (o matmul) Infer(in []*graph.Value) ([]graph.Spec, error) {
	a, b, bias := in[0], in[1], in[2]
	for i, v := range in[:2] {
		name := o.Operands()[i].Name
		if v.Rank() != 2 {
			return nil, graph.BadShape(name, v.Text(), "a matrix")
		}
		if !plain(v.DType()) || v.DType() != a.DType() {
			return nil, graph.BadDType(name, v.DType(), "%s, a and b alike (a is %s)", floats, a.DType())
		}
	}
	if !plain(o.DType) || isWide(o.DType) != isWide(a.DType()) {
		return nil, graph.BadDType("dtype", o.DType, "%s, f64 only with f64", floats)
	}
	m, k, n := o.dims(a, b)
	if kb := b.Dim(o.axisB(0)); kb != k {
		return nil, graph.BadShape("b", fmt.Sprintf("%s with K = %d", b.Text(), kb), "K = %d as in a %s", k, a.Text())
	}
	if b.Rows() != nil && (!o.TransA || o.TransB) {
		return nil, graph.BadShape("b", b.Text(), "rows that are not counted, unless both operands are summed over them")
	}
	rows := a.Rows()
	if o.TransA {
		rows = nil
		if !o.TransB {
			if err := graph.SameRows("b", a, b); err != nil {
				return nil, err
			}
		}
	}
	if err := checkVector("bias", bias, n, a.DType()); err != nil {
		return nil, err
	}
	return []graph.Spec{{DType: o.DType, Shape: []int{m, n}, Rows: rows}}, nil
}

// checkVector checks an optional vector of n floats beside data of format dt.
func checkVector(operand string, v *graph.Value, n int, dt dtype.DType) error {
	switch {
	case v == nil:
		return nil
	case v.Rank() != 1 || v.Dim(0) != n || v.Rows() != nil:
		return graph.BadShape(operand, v.Text(), "(%d,)", n)
	case !plain(v.DType()) || isWide(v.DType()) != isWide(dt):
		return graph.BadDType(operand, v.DType(), "%s, f64 only with f64", floats)
	}
	return nil
}

func (o matmul) axisB(axis int) int {
	if o.TransB {
		return 1 - axis
	}
	return axis
}

func (o matmul) dims(a, b *graph.Value) (m, k, n int) {
	m, k = a.Dim(0), a.Dim(1)
	if o.TransA {
		m, k = k, m
	}
	return m, k, b.Dim(o.axisB(1))
}

// Flops implements graph.Coster.
func (o matmul) Flops(n *graph.Node) int64 {
	m, k, cols := o.dims(n.In(0), n.In(1))
	return 2 * int64(m) * int64(k) * int64(cols)
}

func (o matmul) Gradient(n *graph.Node, grads []*graph.Value) []*graph.Value {
	a, b, bias, dy := n.In(0), n.In(1), n.In(2), as(n.Graph(), grads[0], n.In(0).DType())
	if o.TransA {
		err := graph.Unsupported("gradient", "a product that sums over rows", "Linear, or a product of plain matrices")
		n.Graph().Fail(fmt.Errorf("%s %q: %w", o.Kind(), n.Name(), err))
		return make([]*graph.Value, 3)
	}
	out := make([]*graph.Value, 3)
	// y = a op(b): da = dy op(b)^T; with op the transpose db = dy^T a, else db = a^T dy.
	out[0] = graph.Apply(matmul{TransB: !o.TransB, DType: a.DType()}, dy, b)[0]
	if o.TransB {
		out[1] = graph.Apply(matmul{TransA: true, DType: gradType(b)}, dy, a)[0]
	} else {
		out[1] = graph.Apply(matmul{TransA: true, DType: gradType(b)}, a, dy)[0]
	}
	if bias != nil {
		out[2] = graph.Apply(colSum{DType: bias.DType()}, grads[0])[0]
	}
	return out
}

func (o matmul) Host(c *graph.Call) func() error {
	if isWide(c.In[0].DType) {
		return matmulHost[float64](o, c)
	}
	return matmulHost[float32](o, c)
}

func matmulHost[F float](o matmul, c *graph.Call) func() error {
	a, b, bias, y := c.In[0], c.In[1], c.In[2], c.Out[0]
	ma := matrix{t: a, ld: a.Shape[1], trans: o.TransA}
	mb := matrix{t: b, ld: b.Shape[1], trans: o.TransB}
	m, k, n := y.Shape[0], a.Shape[1], y.Shape[1]
	cols := tiles(n, tileN)
	loop := c.NewLoop(func(w *graph.Worker, lo, hi int) {
		for i := lo; i < hi; i++ {
			r, q := i/cols*tileM, i%cols*tileN
			mt, nt := min(tileM, m-r), min(tileN, n-q)
			acc := buffer[F](w, 0, mt*nt)
			multiply(w, mt, nt, k, 1, ma.block(r, 0), mb.block(0, q), 0, acc, nt)
			for j := range mt {
				row := acc[j*nt : (j+1)*nt]
				if bias != nil {
					for x, v := range load[F](w, 1, bias, q, nt) {
						row[x] += v
					}
				}
				store(y, (r+j)*n+q, row)
			}
		}
	})
	return func() error {
		if o.TransA {
			k = a.Rows()
		} else {
			m = a.Rows()
		}
		loop.Run(tiles(m, tileM)*cols, 1)
		return nil
	}
}

// colSum sums the rows in use. Each column is summed by one goroutine from the first row to the last.
type colSum struct{ DType dtype.DType }

func (o colSum) Kind() string              { return "col_sum" }
func (o colSum) Operands() []graph.Operand { return []graph.Operand{{Name: "x"}} }
func (o colSum) Outputs() []string         { return []string{"y"} }

func (o colSum) Infer(in []*graph.Value) ([]graph.Spec, error) {
	if in[0].Rank() != 2 {
		return nil, graph.BadShape("x", in[0].Text(), "a matrix")
	}
	if !plain(in[0].DType()) {
		return nil, graph.BadDType("x", in[0].DType(), floats)
	}
	return []graph.Spec{{DType: o.DType, Shape: []int{in[0].Dim(1)}}}, nil
}

func (o colSum) Host(c *graph.Call) func() error {
	if isWide(c.In[0].DType) {
		return colSumHost[float64](c)
	}
	return colSumHost[float32](c)
}

func colSumHost[F float](c *graph.Call) func() error {
	x, y := c.In[0], c.Out[0]
	width := x.Shape[1]
	loop := c.NewLoop(func(w *graph.Worker, lo, hi int) {
		acc := buffer[F](w, 0, hi-lo)
		clear(acc)
		for r := range x.Rows() {
			for j, v := range load[F](w, 1, x, r*width+lo, hi-lo) {
				acc[j] += v
			}
		}
		store(y, lo, acc)
	})
	return func() error {
		loop.Run(width, 64)
		return nil
	}
}
