package gorgop

import (
	"errors"
	"strings"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/nodes"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// TestDense: views and transposes are put in the order of their shape; what is contiguous is used in place.
func TestDense(t *testing.T) {
	base := func() *tensor.Dense {
		return tensor.New(tensor.WithShape(3, 4), tensor.WithBacking([]float32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}))
	}
	slice := func(s ...tensor.Slice) *tensor.Dense {
		v, err := base().Slice(s...)
		must(t, err)
		return v.(*tensor.Dense)
	}
	transposed := base()
	must(t, transposed.T())
	whole := base()
	for _, c := range []struct {
		name string
		v    G.Value
		want []float64
	}{
		{"plain", whole, []float64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}},
		{"rows", slice(G.S(1, 3)), []float64{4, 5, 6, 7, 8, 9, 10, 11}},
		{"columns", slice(nil, G.S(1, 3)), []float64{1, 2, 5, 6, 9, 10}},
		{"transpose", transposed, []float64{0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11}},
		{"scalar", G.NewF32(7), []float64{7}},
		{"int32", G.NewI32(7), []float64{7}},
		{"int64", tensor.New(tensor.FromScalar(int64(7))), []float64{7}},
		{"byte", G.NewU8(7), []float64{7}},
		{"scalar tensor", tensor.New(tensor.FromScalar(float64(3))), []float64{3}},
	} {
		d, err := dense(c.v)
		must(t, err)
		if got := floats(t, d); apart(got, c.want) != 0 || len(got) != len(c.want) {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
	if d, _ := dense(whole); d != whole {
		t.Error("a contiguous tensor is copied")
	}
	masked := tensor.New(tensor.WithShape(2), tensor.WithBacking([]float32{1, 2}, []bool{true, false}))
	for name, v := range map[string]G.Value{"masked": masked, "none": nil, "nil": (*tensor.Dense)(nil), "bool": G.NewB(true)} {
		if _, err := dense(v); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestLayer_InPlace: on the host a float32 graph shares memory with the layer: inputs, weights, output and gradients.
func TestLayer_InPlace(t *testing.T) {
	l, _ := newLayer(t, small, Config{})
	m := withLayer(t, l, small, tensor.Float32, 7)
	k := newMachine(t, m, false, nil)
	m.batch(t, 0)
	k.run(t)
	s := m.y.Op().(awaitOp).s
	same := func(what string, v G.Value, e *graph.Exec, x *graph.Value) {
		t.Helper()
		d, err := e.Dense(x)
		must(t, err)
		if &v.Data().([]float32)[0] != &d.Data().([]float32)[0] {
			t.Errorf("%s was copied", what)
		}
	}
	same("x", m.h.Value(), s.fwd, l.d.In[0])
	same("fc1", m.layer[1].Value(), s.fwd, l.d.In[2])
	same("x for backward", m.h.Value(), s.back, l.d.BackIn[0])
	same("y", m.y.Value(), s.fwd, l.d.Y)
	same("gradient of fc1", m.layer[1].Deriv().Value(), s.back, l.d.Grads[2])
}

// TestLayer_Transposed: a value that is a transpose reaches the layer in the order of its shape.
func TestLayer_Transposed(t *testing.T) {
	l, _ := newLayer(t, small, Config{})
	z := small
	xs := numbers(9, 6*z.hidden, 1)
	run := func(d *tensor.Dense) []float64 {
		g := G.NewGraph()
		x := G.NewMatrix(g, tensor.Float32, G.WithShape(6, z.hidden), G.WithName("x"), G.WithValue(d))
		ws, err := l.Weights(g, tensor.Float32)
		must(t, err)
		y, err := l.Apply(append(G.Nodes{x}, ws...)...)
		must(t, err)
		v, _ := once(t, false, y, x)
		return v
	}
	view := tensorOf(tensor.Float32, transpose(xs, 6, z.hidden), z.hidden, 6)
	must(t, view.T())
	if d := apart(run(view), run(tensorOf(tensor.Float32, xs, 6, z.hidden))); d != 0 {
		t.Errorf("%g apart", d)
	}
}

// TestLayer_Refuses: mistakes are errors that say what was given and what is allowed, at Apply where that can know.
func TestLayer_Refuses(t *testing.T) {
	l, vars := newLayer(t, small, Config{})
	owner, _ := newLayer(t, small, Config{Weights: ProgramWeights})
	z := small
	g := G.NewGraph()
	ws, err := l.Weights(g, tensor.Float32)
	must(t, err)
	with := func(x *G.Node) []*G.Node { return append(G.Nodes{x}, ws...) }
	wide := G.NewMatrix(g, tensor.Float64, G.WithShape(4, z.hidden), G.WithName("wide"))
	ints := G.NewMatrix(g, tensor.Int, G.WithShape(4, z.hidden), G.WithName("ints"))
	for _, c := range []struct {
		name  string
		nodes []*G.Node
		kind  error
		text  string
	}{
		{"rows", with(input(g, "many", 1, z.rows+1, z.hidden)), graph.ErrShape, "(<=24,16)"},
		{"width", with(input(g, "narrow", 1, 4, z.hidden-1)), graph.ErrShape, "(4, 15)"},
		{"rank", with(input(g, "vector", 1, z.hidden)), graph.ErrShape, "(<=24,16)"},
		{"count", ws, graph.ErrUsage, "want 4"},
		{"nil", with(nil), graph.ErrUsage, "none"},
		{"mixed types", with(wide), graph.ErrDType, "float64"},
		{"int", with(ints), graph.ErrDType, "int"},
	} {
		_, err := l.Apply(c.nodes...)
		if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: got %v, want %v with %q", c.name, err, c.kind, c.text)
		}
	}
	if _, err := l.Weights(g, tensor.Int); !errors.Is(err, graph.ErrDType) {
		t.Errorf("weights of ints: %v", err)
	}
	other := graph.NewVars(5)
	same, err := MoE(open(t), other.Scope("moe"), z.rows, z.moe(), Config{})
	must(t, err)
	cleanup(t, same, other)
	if _, err := same.Weights(g, tensor.Float32); !errors.Is(err, graph.ErrUsage) || !strings.Contains(err.Error(), "moe/router") {
		t.Errorf("another layer with the same names: %v", err)
	}
	if _, err := l.Weights(g, tensor.Float64); !errors.Is(err, graph.ErrDType) {
		t.Errorf("the same weights in another type: %v", err)
	}
	if again, err := l.Weights(g, tensor.Float32); err != nil || again[0] != ws[0] || len(again) != len(ws) {
		t.Errorf("the weights once more: %v, %v", again, err)
	}
	for name, f := range map[string]func() error{
		"Weights for no graph":   func() error { _, err := l.Weights(nil, tensor.Float32); return err },
		"Weights of no type":     func() error { _, err := l.Weights(g, tensor.Dtype{}); return err },
		"Store of nil":           func() error { return l.Store(make(G.Nodes, len(ws))) },
		"nodes of two graphs":    func() error { _, err := l.Apply(with(input(G.NewGraph(), "x", 1, 4, z.hidden))...); return err },
		"Handle for no graph":    func() error { _, err := owner.Handle(nil, tensor.Float32); return err },
		"Handle of another type": func() error { _, err := owner.Handle(g, tensor.Int); return err },
	} {
		if err := f(); !errors.Is(err, graph.ErrUsage) && !errors.Is(err, graph.ErrDType) || strings.Contains(err.Error(), "PANIC") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := l.Store(ws[:1]); !errors.Is(err, graph.ErrUsage) {
		t.Errorf("Store of one node: %v", err)
	}
	dev := open(t)
	if _, err := MoE(dev, vars.Scope("other"), 8, nodes.MoE{Experts: 2, TopK: 3, Hidden: 16, Intermediate: 32}, Config{}); !errors.Is(err, graph.ErrShape) {
		t.Errorf("more chosen than there are: %v", err)
	}
	if _, err := MoE(dev, vars.Scope("third"), 8, nodes.MoE{Experts: 2, TopK: 1, Hidden: 16, Intermediate: 32}, Config{Optimizer: func(*graph.Grads) {}}); !errors.Is(err, graph.ErrUsage) {
		t.Errorf("an optimizer with node weights: %v", err)
	}
	if _, err := MoE(dev, vars.Scope("fourth"), 8, nodes.MoE{Experts: 2, TopK: 1, Intermediate: 32}, Config{}); !errors.Is(err, graph.ErrShape) {
		t.Errorf("no width: %v", err)
	}
	if _, err := FromProgram(nil, "y", nil, Config{}); !errors.Is(err, graph.ErrUsage) {
		t.Errorf("no Program: %v", err)
	}
	p := graph.New("p")
	_, ids, _ := nodes.Router{X: p.Input("x", dtype.Float32, 4, 8), Weight: p.Input("w", dtype.Float32, 4, 8), K: 2}.Apply()
	y := p.Output("ids", ids)
	prog, err := p.Compile(dev, graph.Options{})
	must(t, err)
	if _, err := FromProgram(prog, "ids", nil, Config{}); !errors.Is(err, graph.ErrDType) {
		t.Errorf("an output of ids, %s: %v", y, err)
	}
	if _, err := FromProgram(prog, "nothing", nil, Config{}); !errors.Is(err, graph.ErrUsage) || !strings.Contains(err.Error(), "ids") {
		t.Errorf("no such output: %v", err)
	}
}

// TestLayer_Closed: a released application and a closed layer refuse to run; neither ends the process.
func TestLayer_Closed(t *testing.T) {
	l, _ := newLayer(t, small, Config{})
	m, other := withLayer(t, l, small, tensor.Float32, 4), withLayer(t, l, small, tensor.Float32, 4)
	k, k2 := newMachine(t, m, false, nil), newMachine(t, other, false, nil)
	m.batch(t, 0)
	other.batch(t, 0)
	k.run(t)
	k2.run(t)
	must(t, l.Release(m.g))
	if err := k.vm.RunAll(); !errors.Is(cause(err), graph.ErrUsage) && (err == nil || !strings.Contains(err.Error(), "released")) {
		t.Errorf("after Release: %v", err)
	}
	k2.run(t)
	must(t, l.Close())
	must(t, l.Close())
	if err := k2.vm.RunAll(); err == nil || !strings.Contains(err.Error(), "released") {
		t.Errorf("after Close: %v", err)
	}
	if _, err := l.Apply(append(G.Nodes{other.h}, other.layer...)...); !errors.Is(err, graph.ErrUsage) {
		t.Errorf("Apply after Close: %v", err)
	}
}

func cause(err error) error {
	for {
		c, ok := err.(interface{ Cause() error })
		if !ok {
			return err
		}
		err = c.Cause()
	}
}

// TestLayer_Hash: two applications are two ops, and one is the same op whenever it is asked.
func TestLayer_Hash(t *testing.T) {
	l, _ := newLayer(t, small, Config{})
	g := G.NewGraph()
	x := input(g, "x", 1, 4, small.hidden)
	ws, err := l.Weights(g, tensor.Float32)
	must(t, err)
	a, err := l.Apply(append(G.Nodes{x}, ws...)...)
	must(t, err)
	b, err := l.Apply(append(G.Nodes{x}, ws...)...)
	must(t, err)
	ha, hb, again := a.Op().Hashcode(), b.Op().Hashcode(), awaitOp{base{a.Op().(awaitOp).s, awaitKind, 0}}.Hashcode()
	if a == b || ha == hb || ha != again {
		t.Errorf("hashes %d and %d, of the first once more %d, nodes the same: %v", ha, hb, again, a == b)
	}
	if got := a.Shape(); !got.Eq(tensor.Shape{4, small.hidden}) || a.Type() != (G.TensorType{Dims: 2, Of: tensor.Float32}) {
		t.Errorf("got %v %v", a.Type(), got)
	}
}

// TestLayer_Scalars: one number in, one number out, as scalars of gorgonia, in both machines.
func TestLayer_Scalars(t *testing.T) {
	for _, shape := range [][]int{{}, {1}} {
		for _, lisp := range []bool{false, true} {
			for _, dt := range []tensor.Dtype{tensor.Float32, tensor.Float64} {
				g := graph.New("scalars")
				x := g.Input("x", dtype.Float32, shape...)
				l, err := New(open(t), nil, nodes.Scale(nodes.Add(x, x), 1.5), Config{})
				must(t, err)
				cleanup(t, l, nil)
				h := G.NewGraph()
				var three any = float32(3)
				if dt == tensor.Float64 {
					three = 3.0
				}
				xn := G.NewScalar(h, dt, G.WithName("x"), G.WithValue(three))
				y, err := l.Apply(xn)
				must(t, err)
				cost := G.Must(G.Square(y))
				var vm G.VM
				if lisp {
					vm = G.NewLispMachine(h)
				} else {
					_, err = G.Grad(cost, xn)
					must(t, err)
					vm = G.NewTapeMachine(h)
				}
				must(t, vm.RunAll())
				dx, err := xn.Grad()
				must(t, err)
				if y, d := floats(t, cost.Value())[0], floats(t, dx)[0]; y != 81 || d != 54 {
					t.Errorf("%s, %v, shape %v: got %v and gradient %v, want 81 and 54", vmName(lisp), dt, shape, y, d)
				}
				vm.Close()
			}
		}
	}
}

// TestLayer_IntScalar: one class is a scalar of gorgonia, as one of a batch is a vector.
func TestLayer_IntScalar(t *testing.T) {
	g := graph.New("classes")
	x, class := g.Input("x", dtype.Float32, 1, 4), g.Input("class", dtype.Int32, 1)
	l, err := New(open(t), nil, nodes.CrossEntropy(x, class), Config{})
	must(t, err)
	cleanup(t, l, nil)
	run := func(class func(h *G.ExprGraph) *G.Node) float64 {
		h := G.NewGraph()
		y, err := l.Apply(input(h, "x", 1, 1, 4), class(h))
		must(t, err)
		vm := G.NewTapeMachine(h)
		defer vm.Close()
		must(t, vm.RunAll())
		return floats(t, y.Value())[0]
	}
	scalar := run(func(h *G.ExprGraph) *G.Node {
		return G.NewScalar(h, tensor.Int32, G.WithName("class"), G.WithValue(int32(2)))
	})
	vector := run(func(h *G.ExprGraph) *G.Node {
		two := tensor.New(tensor.WithShape(1), tensor.WithBacking([]int32{2}))
		return G.NewVector(h, tensor.Int32, G.WithShape(1), G.WithName("class"), G.WithValue(two))
	})
	if scalar != vector || scalar == 0 {
		t.Errorf("got %v of a scalar, %v of a vector", scalar, vector)
	}
}

// TestLayer_UnbindAll: a LispMachine that gives its tensors back to gorgonia's pool does no harm to the layer's memory.
func TestLayer_UnbindAll(t *testing.T) {
	l, _ := newLayer(t, small, Config{})
	z := small
	g := G.NewGraph()
	x := input(g, "x", 3, z.rows, z.hidden)
	ws, err := l.Weights(g, tensor.Float32)
	must(t, err)
	y, err := l.Apply(append(G.Nodes{x}, ws...)...)
	must(t, err)
	cost := G.Must(G.Mean(G.Must(G.Square(y))))
	var first float64
	for i := range 20 {
		vm := G.NewLispMachine(g)
		must(t, vm.RunAll())
		c := floats(t, cost.Value())[0]
		if i == 0 {
			first = c
		}
		if c != first {
			t.Fatalf("run %d: got %v, want %v", i, c, first)
		}
		vm.UnbindAll()
		for range 8 { // what the pool gives next is somebody else's
			must(t, tensor.New(tensor.Of(tensor.Float32), tensor.WithShape(z.rows, z.hidden)).Memset(float32(1e9)))
		}
		vm.Close()
	}
}

// TestLayer_BFloat16Border: a Program whose inputs are bf16 takes and gives float32, rounded at the border.
func TestLayer_BFloat16Border(t *testing.T) {
	g := graph.New("low")
	x := g.Input("x", dtype.BFloat16, graph.UpTo(4), 2)
	l, err := New(open(t), nil, nodes.Scale(x, 2), Config{})
	must(t, err)
	cleanup(t, l, nil)
	h := G.NewGraph()
	xn := G.NewMatrix(h, tensor.Float32, G.WithShape(1, 2), G.WithName("x"),
		G.WithValue(tensor.New(tensor.WithShape(1, 2), tensor.WithBacking([]float32{1 + 1.0/256 + 1.0/1024, 3}))))
	y, err := l.Apply(xn)
	must(t, err)
	out, grads := once(t, false, y, xn)
	if out[0] != 2*(1+1.0/128) || out[1] != 6 {
		t.Errorf("got %v, want [2.015625 6]", out)
	}
	// The mean of two squares: the gradient of y is y, which has few bits.
	if grads[0][0] != 2*out[0] || grads[0][1] != 12 {
		t.Errorf("gradient: got %v", grads[0])
	}
}
