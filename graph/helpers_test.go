package graph_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/nodes"
)

// copyOp copies float32 rows, after a pause; it stands for any slow node.
type copyOp struct{ Pause time.Duration }

func (copyOp) Kind() string              { return "test_copy" }
func (copyOp) Operands() []graph.Operand { return []graph.Operand{{Name: "x"}} }
func (copyOp) Outputs() []string         { return []string{"y", "twice"} }

func (copyOp) Infer(in []*graph.Value) ([]graph.Spec, error) {
	return []graph.Spec{in[0].Spec(), in[0].Spec()}, nil
}

func (o copyOp) Host(c *graph.Call) func() error {
	return func() error {
		time.Sleep(o.Pause)
		n := c.In[0].Rows() * c.In[0].Width()
		x := graph.View[float32](c.In[0].Data)[:n]
		for i, out := range c.Out {
			if out == nil {
				continue
			}
			for j, v := range x {
				graph.View[float32](out.Data)[j] = v * float32(i+1)
			}
		}
		return nil
	}
}

// bumpOp adds by to a float32 variable in place.
type bumpOp struct{ By float32 }

func (bumpOp) Kind() string { return "test_bump" }
func (bumpOp) Operands() []graph.Operand {
	return []graph.Operand{{Name: "v", Update: true}, {Name: "after", Optional: true}}
}
func (bumpOp) Outputs() []string                          { return nil }
func (bumpOp) Infer([]*graph.Value) ([]graph.Spec, error) { return nil, nil }

func (o bumpOp) Host(c *graph.Call) func() error {
	return func() error {
		for i := range graph.View[float32](c.In[0].Data) {
			graph.View[float32](c.In[0].Data)[i] += o.By
		}
		return nil
	}
}

// failOp fails when its input's first element is negative, and panics when it is NaN.
type failOp struct{}

func (failOp) Kind() string              { return "test_fail" }
func (failOp) Operands() []graph.Operand { return []graph.Operand{{Name: "x"}} }
func (failOp) Outputs() []string         { return []string{"y"} }

func (failOp) Infer(in []*graph.Value) ([]graph.Spec, error) { return []graph.Spec{in[0].Spec()}, nil }

func (failOp) Host(c *graph.Call) func() error {
	return func() error {
		x := graph.View[float32](c.In[0].Data)
		switch {
		case x[0] < 0:
			return graph.BadShape("x", x[0], "no negative number")
		case x[0] != x[0]:
			panic("a NaN")
		}
		copy(graph.View[float32](c.Out[0].Data), x)
		return nil
	}
}

func host(t testing.TB) graph.Device {
	t.Helper()
	dev, err := graph.Open("host")
	if err != nil {
		t.Fatal(err)
	}
	return dev
}

func compile(t testing.TB, g *graph.Graph, opt graph.Options) *graph.Program {
	t.Helper()
	p, err := g.Compile(host(t), opt)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func open(t testing.TB, p *graph.Program, vars *graph.Vars) *graph.Exec {
	t.Helper()
	e, err := p.Exec(vars)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func replay(t testing.TB, e *graph.Exec) {
	t.Helper()
	check(t, e.Replay(context.Background()))
}

func read(t testing.TB, e *graph.Exec, v *graph.Value) []float32 {
	t.Helper()
	dst := make([]float32, v.Elems())
	rows, err := e.Read(v, dst)
	check(t, err)
	width := 1
	if v.Rank() > 0 && v.Dim(0) > 0 {
		width = v.Elems() / v.Dim(0)
	}
	return dst[:rows*width]
}

func normal(seed uint64, n int) []float32 {
	r := rand.New(rand.NewPCG(seed, 7))
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

// layer is a whole MoE layer, forward and backward, with the gradients as outputs.
type layer struct {
	g     *graph.Graph
	vars  *graph.Vars
	x, dy *graph.Value
	outs  []*graph.Value
}

const layerWidth = 32

func newLayer(rows int, compute dtype.DType) *layer {
	l := &layer{g: graph.New("layer"), vars: graph.NewVars(3)}
	l.x = l.g.Input("x", dtype.Float32, graph.UpTo(rows), layerWidth)
	l.dy = l.g.Input("dy", dtype.Float32, graph.UpTo(rows), layerWidth)
	y, aux := nodes.MoELayer(l.x, l.vars.Scope("moe"), nodes.MoE{Experts: 6, TopK: 2, Intermediate: 64, Alignment: 8, Compute: compute})
	l.outs = append(l.outs, l.g.Output("y", y), l.g.Output("balance", aux.Balance))
	gr := l.g.GradientsFrom([]*graph.Value{y, aux.Balance}, []*graph.Value{l.dy, nil}, append(l.vars.All(), l.x)...)
	for i, v := range gr.Value {
		l.outs = append(l.outs, l.g.Output(fmt.Sprintf("grad%d", i), v))
	}
	return l
}

// run writes rows random rows, replays, and returns all outputs.
func (l *layer) run(t testing.TB, e *graph.Exec, seed uint64, rows int) [][]float32 {
	t.Helper()
	check(t, e.Write(l.x, normal(seed, rows*layerWidth)))
	check(t, e.Write(l.dy, normal(seed+1, rows*layerWidth)))
	replay(t, e)
	return l.read(t, e)
}

func (l *layer) read(t testing.TB, e *graph.Exec) [][]float32 {
	t.Helper()
	var all [][]float32
	for _, v := range l.outs {
		all = append(all, read(t, e, v))
	}
	return all
}

// relative is the relative Frobenius distance of a from b.
func relative(a, b []float32) float64 {
	if len(a) != len(b) {
		return math.Inf(1)
	}
	var d, n float64
	for i := range a {
		d += float64(a[i]-b[i]) * float64(a[i]-b[i])
		n += float64(b[i]) * float64(b[i])
	}
	if d == 0 {
		return 0
	}
	return math.Sqrt(d / n)
}
