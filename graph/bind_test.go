package graph_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/nodes"
)

// TestAlone_GroupedGEMM runs one operator on the caller's memory with other token counts from call to call: the
// Program stays the same, the output is written in place.
func TestAlone_GroupedGEMM(t *testing.T) {
	const capacity, n, k, experts = 64, 8, 8, 2
	var a, b, offsets, d *graph.Value
	e, err := graph.Alone(host(t), nil, graph.Options{}, func(g *graph.Graph) {
		a = g.Input("a", dtype.Float32, graph.UpTo(capacity), k)
		b = g.Input("b", dtype.Float32, experts, n, k)
		offsets = g.Input("padded_offsets", dtype.Int32, experts)
		d, _ = nodes.GroupedGEMM{A: a, B: nodes.Dense(b), PaddedOffsets: offsets, Alignment: 4}.Apply()
		g.Output("d", d)
	})
	check(t, err)
	defer e.Close()
	weights := normal(1, experts*n*k)
	out := make([]float32, capacity*n)
	check(t, e.Write(b, weights))
	check(t, e.Bind(d, out))
	for _, ends := range [][]int32{{8, 16}, {0, 4}, {64, 64}, {0, 0}} {
		x := normal(uint64(ends[1]), int(ends[1])*k)
		check(t, e.Write(a, x))
		check(t, e.Write(offsets, ends))
		for i := range out {
			out[i] = -7
		}
		replay(t, e)
		for r := range capacity {
			for j := range n {
				want := float32(-7)
				if r < int(ends[1]) {
					g := 0
					if r >= int(ends[0]) {
						g = 1
					}
					want = 0
					for i := range k {
						want += x[r*k+i] * weights[(g*n+j)*k+i]
					}
				}
				if got := out[r*n+j]; got-want > 1e-5 || want-got > 1e-5 {
					t.Fatalf("offsets %v: row %d, column %d: got %v, want %v", ends, r, j, got, want)
				}
			}
		}
	}
}

// TestAlone_Refuses says whether an operator is supported, and refuses more than one.
func TestAlone_Refuses(t *testing.T) {
	_, err := graph.Alone(host(t), nil, graph.Options{}, func(g *graph.Graph) {
		nodes.Linear(g.Input("x", dtype.Float32, 2, 3), g.Input("w", dtype.Float32, 2, 4))
	})
	if !errors.Is(err, graph.ErrShape) || !strings.Contains(err.Error(), "K = 4") {
		t.Errorf("got %v", err)
	}
	_, err = graph.Alone(host(t), nil, graph.Options{}, func(g *graph.Graph) {
		g.Output("y", g.Input("x", dtype.Float32, 2).Scale(2).Scale(3))
	})
	if !errors.Is(err, graph.ErrUsage) {
		t.Errorf("two nodes: %v", err)
	}
}

// TestAlone_Accumulates adds into a variable that lies in the caller's memory.
func TestAlone_Accumulates(t *testing.T) {
	vars := graph.NewVars(1)
	var a, b, offsets *graph.Value
	into := vars.State("wgrad", dtype.Float32, graph.Const(0), 2, 4, 4)
	e, err := graph.Alone(host(t), vars, graph.Options{}, func(g *graph.Graph) {
		a, b = g.Input("a", dtype.Float32, graph.UpTo(16), 4), g.Input("b", dtype.Float32, graph.UpTo(16), 4)
		offsets = g.Input("offsets", dtype.Int32, 2)
		nodes.WGrad{A: a, B: b, Offsets: offsets, AMajorM: true, Alignment: 4, Into: []*graph.Value{into}}.Apply()
	})
	check(t, err)
	defer e.Close()
	acc := make([]float32, 32)
	for i := range acc {
		acc[i] = 1
	}
	check(t, e.Bind(into, acc))
	ones := make([]float32, 4*4)
	for i := range ones {
		ones[i] = 1
	}
	check(t, e.Write(a, ones))
	check(t, e.Write(b, ones))
	check(t, e.Write(offsets, []int32{0, 4}))
	replay(t, e)
	replay(t, e)
	if acc[0] != 1 || acc[16] != 1+2*4 {
		t.Errorf("accumulators %v and %v, want 1 (an empty expert) and 9", acc[0], acc[16])
	}
}

// TestBind_Refuses goes through memory that cannot be bound.
func TestBind_Refuses(t *testing.T) {
	g := graph.New("g")
	x := g.Input("x", dtype.Float32, 8)
	hidden := x.Scale(2)
	y, z := g.Output("y", hidden.Scale(3)), g.Output("z", hidden.Scale(4))
	e := open(t, compile(t, g, graph.Options{}), nil)
	data := make([]float32, 32)
	check(t, e.Write(x, data[:8]))
	check(t, e.Bind(y, data[8:16]))
	for _, tc := range []struct {
		v    *graph.Value
		mem  any
		want string
	}{
		{z, data[8:16], "shares bytes"},
		{z, data[12:20], "shares bytes"},
		{z, data[0:8], "shares bytes"},
		{z, data[16:20], "32 bytes"},
		{z, data[17:25], "multiple of 16"},
		{z, make([]float64, 8), "float32"},
		{z, nil, "nil"},
		{x, data[16:24], "neither"},
		{hidden, data[16:24], "neither"},
		{nil, data[16:24], "neither"},
	} {
		if err := e.Bind(tc.v, tc.mem); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v: got %v, want an error that says %q", tc.v, err, tc.want)
		}
	}
	check(t, e.Bind(z, data[16:24]))
	if err := e.Write(x, data[20:28]); err == nil || !strings.Contains(err.Error(), "shares bytes") {
		t.Errorf("an input over a bound output: %v", err)
	}
	check(t, e.Write(x, data[:8]))
	data[0] = 5
	vars := graph.NewVars(1)
	v := vars.ParamOf("v", dtype.Float32, graph.Const(1), 8)
	g = graph.New("g")
	z = g.Input("z", dtype.Float32, 8)
	graph.Apply(bumpOp{By: 1}, v, z)
	other := open(t, compile(t, g, graph.Options{}), vars)
	check(t, other.Write(z, data[24:32]))
	if err := other.Bind(v, data[24:32]); err == nil || !strings.Contains(err.Error(), `param "v" shares bytes with input "z"`) {
		t.Errorf("an updated variable over an input: %v", err)
	}
	replay(t, e)
	if data[8] != 30 || data[16] != 40 {
		t.Errorf("got %v and %v", data[8], data[16])
	}
}

// squareOp is an operator of a package outside this module: a comparable struct, a shape rule, a gradient, host code
// and a cost, registered like any other.
type squareOp struct{ Factor float32 }

func (squareOp) Kind() string              { return "example_square" }
func (squareOp) Operands() []graph.Operand { return []graph.Operand{{Name: "x"}} }
func (squareOp) Outputs() []string         { return []string{"y"} }
func (squareOp) Flops(n *graph.Node) int64 { return 2 * int64(n.In(0).Elems()) }

func (squareOp) Infer(in []*graph.Value) ([]graph.Spec, error) {
	if in[0].DType() != dtype.Float32 {
		return nil, graph.BadDType("x", in[0].DType(), "f32")
	}
	return []graph.Spec{in[0].Spec()}, nil
}

func (o squareOp) Gradient(n *graph.Node, grads []*graph.Value) []*graph.Value {
	return []*graph.Value{graph.Apply(timesOp{2 * o.Factor}, n.In(0), grads[0])[0]}
}

func (o squareOp) Host(c *graph.Call) func() error {
	x, y := c.In[0], c.Out[0]
	loop := c.NewLoop(func(_ *graph.Worker, lo, hi int) {
		in, out := graph.View[float32](x.Data), graph.View[float32](y.Data)
		for i := lo; i < hi; i++ {
			out[i] = o.Factor * in[i] * in[i]
		}
	})
	return func() error {
		loop.Run(x.Rows()*x.Width(), 4096)
		return nil
	}
}

// timesOp is factor * a * b, the gradient of squareOp.
type timesOp struct{ Factor float32 }

func (timesOp) Kind() string              { return "example_times" }
func (timesOp) Operands() []graph.Operand { return []graph.Operand{{Name: "a"}, {Name: "b"}} }
func (timesOp) Outputs() []string         { return []string{"y"} }

func (timesOp) Infer(in []*graph.Value) ([]graph.Spec, error) {
	return []graph.Spec{in[0].Spec()}, graph.SameRows("b", in[0], in[1])
}

func (o timesOp) Host(c *graph.Call) func() error {
	return func() error {
		a, b, y := graph.View[float32](c.In[0].Data), graph.View[float32](c.In[1].Data), graph.View[float32](c.Out[0].Data)
		for i := range c.In[0].Rows() * c.In[0].Width() {
			y[i] = o.Factor * a[i] * b[i]
		}
		return nil
	}
}

func init() {
	graph.Register(graph.Info{Example: squareOp{1}, Doc: "y = factor x^2, elementwise", Options: []string{"factor"}})
	graph.Register(graph.Info{Example: timesOp{1}, Doc: "y = factor a b, elementwise", NoGrad: "it makes gradients only"})
}

// Example_operator registers an operator from outside the module (see squareOp in this file) and trains through it.
func Example_operator() {
	dev, _ := graph.Open("host")
	g := graph.New("outside")
	x := g.Input("x", dtype.Float32, graph.UpTo(4), 2)
	y := g.Output("y", graph.Apply(squareOp{Factor: 3}, x)[0].Scale(0.5))
	dx := g.Output("dx", g.GradientsFrom([]*graph.Value{y}, nil, x).Value[0])
	prog, err := g.Compile(dev, graph.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	exec, _ := prog.Exec(nil)
	defer exec.Close()
	if err := exec.Write(x, []float32{1, 2, 3, 4}); err != nil {
		fmt.Println(err)
	}
	if err := exec.Replay(context.Background()); err != nil {
		fmt.Println(err)
	}
	got := make([]float32, 8)
	rows, _ := exec.Read(y, got)
	fmt.Println(rows, got[:4])
	exec.Read(dx, got)
	fmt.Println(got[:4])
	// Output:
	// 2 [1.5 6 13.5 24]
	// [3 6 9 12]
}

// TestRegister_Mistakes panics at a second registration, an Op that cannot be compared and an empty Doc.
func TestRegister_Mistakes(t *testing.T) {
	for name, info := range map[string]graph.Info{
		"twice":    {Example: squareOp{2}, Doc: "again"},
		"no doc":   {Example: copyOp{}},
		"no equal": {Example: listOp{}, Doc: "a list"},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			graph.Register(info)
		})
	}
	found := false
	for _, info := range graph.Operators() {
		found = found || reflect.DeepEqual(info.Example, squareOp{1})
	}
	if !found {
		t.Error("the operator is not listed")
	}
}

type listOp struct {
	copyOp
	list []int
}

func (o listOp) Kind() string { return fmt.Sprint("test_list", len(o.list)) }
