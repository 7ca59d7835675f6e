package gorgop

import (
	"context"
	"math"
	"strings"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/nodes"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// input is a node with numbers.
func input(g *G.ExprGraph, name string, seed uint64, shape ...int) *G.Node {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return G.NewTensor(g, tensor.Float32, len(shape), G.WithShape(shape...), G.WithName(name),
		G.WithValue(tensorOf(tensor.Float32, numbers(seed, n, 1), shape...)))
}

// once runs a graph whose cost is the mean square of y and returns y's value and the gradients.
func once(t testing.TB, lisp bool, y *G.Node, wrt ...*G.Node) (value []float64, grads [][]float64) {
	t.Helper()
	cost := G.Must(G.Mean(G.Must(G.Square(y))))
	var vm G.VM
	if lisp {
		vm = G.NewLispMachine(y.Graph())
	} else {
		_, err := G.Grad(cost, wrt...)
		must(t, err)
		vm = G.NewTapeMachine(y.Graph())
	}
	defer vm.Close()
	must(t, vm.RunAll())
	for _, n := range wrt {
		v, err := n.Grad()
		must(t, err)
		grads = append(grads, floats(t, v))
	}
	return floats(t, y.Value()), grads
}

// TestLayer_TwiceInOneGraph: a layer applied twice with the same weight nodes, one after the other, gives what one
// Program of the two layers gives, gradients added up.
func TestLayer_TwiceInOneGraph(t *testing.T) {
	z := small
	for _, lisp := range []bool{false, true} {
		t.Run(vmName(lisp), func(t *testing.T) {
			l, _ := newLayer(t, z, Config{})
			g := G.NewGraph()
			x := input(g, "x", 3, z.rows, z.hidden)
			ws, err := l.Weights(g, tensor.Float32)
			must(t, err)
			y, err := l.Apply(append(G.Nodes{x}, ws...)...)
			must(t, err)
			y2, err := l.Apply(append(G.Nodes{y}, ws...)...)
			must(t, err)
			got, grads := once(t, lisp, y2, append(G.Nodes{x}, ws...)...)
			if f, b := l.Replays(); f != 2 || b != 2 {
				t.Errorf("got %d forward and %d backward replays, want 2 of each", f, b)
			}

			vars := graph.NewVars(7) // the same numbers
			both := graph.New("both")
			in := both.Input("x", dtype.Float32, graph.UpTo(z.rows), z.hidden)
			v1, _ := nodes.MoELayer(in, vars.Scope("moe"), z.moe())
			v2, _ := nodes.MoELayer(v1, vars.Scope("moe"), z.moe())
			one, err := New(open(t), vars, v2, Config{})
			must(t, err)
			cleanup(t, one, vars)
			h := G.NewGraph()
			x1 := input(h, "x", 3, z.rows, z.hidden)
			ws1, err := one.Weights(h, tensor.Float32)
			must(t, err)
			w2, err := one.Apply(append(G.Nodes{x1}, ws1...)...)
			must(t, err)
			want, wants := once(t, lisp, w2, append(G.Nodes{x1}, ws1...)...)
			if d := apart(got, want); !(d < 1e-6) {
				t.Errorf("output: %g apart", d)
			}
			for i := range wants {
				if d := apart(grads[i], wants[i]); !(d < 1e-5) {
					t.Errorf("gradient %d: %g apart", i, d)
				}
			}
		})
	}
}

// TestLayer_TwiceWithProgramWeights: where the first backward replay would change the weights under the second, that is
// an error, also of two layers that share weights. Frozen weights may be used as often as wanted.
func TestLayer_TwiceWithProgramWeights(t *testing.T) {
	sgd := func(gr *graph.Grads) { nodes.SGD(gr, nodes.SGDConfig{Rate: 0.5}) }
	for _, c := range []struct {
		name          string
		first, second func(*graph.Grads)
		tied          bool // two layers
		refused       bool
	}{
		{"frozen", nil, nil, false, false},
		{"one layer", sgd, sgd, false, true},
		{"tied", sgd, sgd, true, true},
		{"tied to a frozen one", nil, sgd, true, true},
	} {
		for _, lisp := range []bool{false, true} {
			vars := graph.NewVars(7)
			t.Cleanup(func() { must(t, vars.Free()) })
			layer := func(opt func(*graph.Grads)) *Layer {
				l, err := MoE(open(t), vars.Scope("moe"), small.rows, small.moe(), Config{Weights: ProgramWeights, Optimizer: opt})
				must(t, err)
				t.Cleanup(func() { must(t, l.Close()) })
				return l
			}
			first := layer(c.first)
			second := first
			if c.tied {
				second = layer(c.second)
			}
			g := G.NewGraph()
			x := input(g, "x", 3, small.rows, small.hidden)
			y, err := first.Apply(x)
			must(t, err)
			y, err = second.Apply(y)
			must(t, err)
			cost := G.Must(G.Mean(G.Must(G.Square(y))))
			var vm G.VM
			if lisp {
				vm = G.NewLispMachine(g)
			} else {
				_, err := G.Grad(cost, x)
				must(t, err)
				vm = G.NewTapeMachine(g)
			}
			err = vm.RunAll()
			vm.Close()
			refused := err != nil && strings.Contains(err.Error(), "updated the weights")
			if refused != c.refused || !refused && err != nil {
				t.Errorf("%s, %s: got %v, want an error: %v", c.name, vmName(lisp), err, c.refused)
			}
		}
	}
}

// TestLayer_TwoLayersTwoGraphs: two layers with other weights in one graph, and the same two in a second graph with
// fewer rows, run in turns, as alone. Nothing is compiled anew.
func TestLayer_TwoLayersTwoGraphs(t *testing.T) {
	z := small
	a, _ := newLayer(t, z, Config{})
	vars := graph.NewVars(99)
	b, err := MoE(open(t), vars, z.rows, z.moe(), Config{})
	must(t, err)
	cleanup(t, b, vars)
	apply := func(l *Layer, x *G.Node) (*G.Node, G.Nodes) {
		ws, err := l.Weights(x.Graph(), tensor.Float32)
		must(t, err)
		y, err := l.Apply(append(G.Nodes{x}, ws...)...)
		must(t, err)
		return y, ws
	}
	type side struct {
		vm G.VM
		y  [2]*G.Node
		dw [2]G.Nodes
	}
	build := func(rows int, layers ...*Layer) side {
		var s side
		g := G.NewGraph()
		x := input(g, "x", 5, rows, z.hidden)
		var wrt G.Nodes
		var sum *G.Node
		for i, l := range layers {
			if l == nil {
				continue
			}
			y, ws := apply(l, x)
			s.y[i], s.dw[i] = y, ws
			wrt = append(wrt, ws...)
			cost := G.Must(G.Mean(G.Must(G.Square(y))))
			if sum == nil {
				sum = cost
			} else {
				sum = G.Must(G.Add(sum, cost))
			}
		}
		_, err := G.Grad(sum, wrt...)
		must(t, err)
		s.vm = G.NewTapeMachine(g)
		t.Cleanup(func() { s.vm.Close() })
		return s
	}
	big, few := build(z.rows, a, b), build(5, a, b)
	for range 3 {
		must(t, big.vm.RunAll())
		must(t, few.vm.RunAll())
		for _, s := range []struct {
			side
			rows int
		}{{big, z.rows}, {few, 5}} {
			for i, layers := range [][]*Layer{{a, nil}, {nil, b}} {
				alone := build(s.rows, layers...)
				must(t, alone.vm.RunAll())
				if d := apart(floats(t, s.y[i].Value()), floats(t, alone.y[i].Value())); d != 0 {
					t.Errorf("%d rows, layer %d: %g apart", s.rows, i, d)
				}
				for k := range s.dw[i] {
					got, err := s.dw[i][k].Grad()
					must(t, err)
					want, err := alone.dw[i][k].Grad()
					must(t, err)
					if d := apart(floats(t, got), floats(t, want)); d != 0 {
						t.Errorf("%d rows, layer %d, gradient %d: %g apart", s.rows, i, k, d)
					}
				}
			}
		}
		big.vm.Reset()
		few.vm.Reset()
	}
}

// TestLayer_EvalMode: a machine in evaluation mode gives the same output and keeps no activations; asking it for a
// gradient is an error that says what to do.
func TestLayer_EvalMode(t *testing.T) {
	l, _ := newLayer(t, small, Config{})
	m := withLayer(t, l, small, tensor.Float32, small.rows)
	m.batch(t, 0)
	s := m.y.Op().(awaitOp).s
	vm := G.NewTapeMachine(m.g, G.EvalMode())
	defer vm.Close()
	must(t, vm.RunAll())
	y := floats(t, m.y.Value())
	if s.noGrad == nil || s.fwd != nil {
		t.Error("evaluation keeps activations")
	}
	kept := func(p *graph.Program) int { return len(p.Outputs()) }
	if kept(l.eval) != 1 || kept(l.train) < 4 {
		t.Errorf("got %d and %d outputs of the forward Programs, want 1, and what backward reads", kept(l.eval), kept(l.train))
	}
	lisp := G.NewLispMachine(m.g, G.EvalMode())
	err := lisp.RunAll()
	lisp.Close()
	if err == nil || !strings.Contains(err.Error(), "EvalMode") {
		t.Errorf("a gradient in evaluation mode: got %v", err)
	}

	again := withLayer(t, l, small, tensor.Float32, small.rows)
	k := newMachine(t, again, false, nil)
	again.batch(t, 0)
	k.run(t)
	if d := apart(floats(t, again.y.Value()), y); d != 0 {
		t.Errorf("training and evaluation give outputs %g apart", d)
	}
}

// TestFromProgram: a compiled Program that trains by itself becomes an op of its logits, and of its loss, which is a
// scalar; in float64, the gradient is that of finite differences.
func TestFromProgram(t *testing.T) {
	const rows, width, classes = 6, 5, 4
	vars := graph.NewVars(3)
	g := graph.New("classifier")
	x := g.Input("x", dtype.Float64, graph.UpTo(16), width)
	labels := g.Input("labels", dtype.Int32, graph.UpTo(16))
	head := vars.ParamOf("head", dtype.Float64, graph.Init{}, classes, width)
	logits := g.Output("logits", nodes.Linear(x, head))
	loss := g.Output("loss", nodes.CrossEntropy(logits, labels))
	nodes.SGD(g.Gradients(loss, head), nodes.SGDConfig{Rate: 1})
	p, err := g.Compile(open(t), graph.Options{})
	must(t, err)

	l, err := FromProgram(p, "loss", vars, Config{})
	must(t, err)
	cleanup(t, l, vars)
	h := G.NewGraph()
	xs := numbers(4, rows*width, 1)
	xn := G.NewMatrix(h, tensor.Float64, G.WithShape(rows, width), G.WithName("x"), G.WithValue(tensorOf(tensor.Float64, xs, rows, width)))
	ids := tensor.New(tensor.WithShape(rows), tensor.WithBacking([]int32{0, 1, 2, 3, 1, 0}))
	ln := G.NewVector(h, tensor.Int32, G.WithShape(rows), G.WithName("labels"), G.WithValue(ids))
	ws, err := l.Weights(h, tensor.Float64)
	must(t, err)
	cost, err := l.Apply(xn, ln, ws[0])
	must(t, err)
	if !cost.IsScalar() {
		t.Fatalf("got a loss of shape %v, want a scalar", cost.Shape())
	}
	double := G.Must(G.Mul(cost, G.NewConstant(2.0)))
	_, err = G.Grad(double, xn, ws[0])
	must(t, err)
	vm := G.NewTapeMachine(h)
	defer vm.Close()
	run := func() float64 {
		vm.Reset()
		must(t, vm.RunAll())
		return floats(t, double.Value())[0]
	}
	for _, n := range []*G.Node{xn, ws[0]} {
		run() // the gradients as the data is
		v, err := n.Grad()
		must(t, err)
		got := floats(t, v)
		data := n.Value().Data().([]float64)
		for _, i := range []int{0, 3, len(data) - 1} {
			const eps = 1e-5
			was := data[i]
			data[i] = was + eps
			up := run()
			data[i] = was - eps
			down := run()
			data[i] = was
			if want := (up - down) / (2 * eps); math.Abs(got[i]-want) > 1e-8 {
				t.Errorf("gradient of %s[%d]: got %v, want %v", n.Name(), i, got[i], want)
			}
		}
	}
	// The Program still trains: its head, not the op's copy.
	e, err := p.Exec(vars)
	must(t, err)
	defer e.Close()
	must(t, e.Write(x, xs))
	must(t, e.Write(labels, ids))
	must(t, e.Replay(context.Background()))
	before := floats(t, ws[0].Value())
	after := make([]float64, len(before))
	must(t, vars.Read(vars.Lookup("head"), after))
	if apart(before, after) == 0 {
		t.Error("the Program's own step did nothing")
	}
}

// TestLayer_Dropout: the backward half uses the forward one's random numbers, new ones in every step.
func TestLayer_Dropout(t *testing.T) {
	vars := graph.NewVars(3)
	g := graph.New("dropout")
	x := g.Input("x", dtype.Float32, 8, 16)
	y := nodes.Dropout(x, nodes.NewRandom(vars, "random", 5).Draw(g), 0.5)
	l, err := New(open(t), vars, y, Config{})
	must(t, err)
	cleanup(t, l, vars)
	h := G.NewGraph()
	xn := input(h, "x", 1, 8, 16)
	yn, err := l.Apply(xn)
	must(t, err)
	_, err = G.Grad(G.Must(G.Sum(yn)), xn)
	must(t, err)
	vm := G.NewTapeMachine(h)
	defer vm.Close()
	seen := map[string]bool{}
	for range 3 {
		must(t, vm.RunAll())
		v, err := xn.Grad()
		must(t, err)
		out, dx, xs, pattern := floats(t, yn.Value()), floats(t, v), floats(t, xn.Value()), ""
		for i := range dx {
			if math.Abs(dx[i]*xs[i]-out[i]) > 1e-6 || dx[i] != 0 && dx[i] != 2 {
				t.Fatalf("element %d: gradient %v, x %v, y %v", i, dx[i], xs[i], out[i])
			}
			pattern += map[bool]string{true: "x", false: "."}[dx[i] == 0]
		}
		seen[pattern] = true
		vm.Reset()
	}
	if len(seen) != 3 {
		t.Errorf("got %d patterns in 3 steps", len(seen))
	}
}
