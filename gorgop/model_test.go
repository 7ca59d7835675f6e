package gorgop

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sort"
	"testing"
	"time"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/asyncdev"
	"github.com/moegraph/moegraph/nodes"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// sizes of the model: tanh(x w0) -> MoE layer -> plus its input -> times w1, a mean squared error.
type sizes struct{ rows, in, hidden, inner, experts, topK, out int }

// small has experts of one block of 32 gates and 32 ups, so that the layout of fc1 is plain.
var small = sizes{rows: 24, in: 8, hidden: 16, inner: 32, experts: 4, topK: 2, out: 3}

func (z sizes) moe() nodes.MoE {
	return nodes.MoE{Experts: z.experts, TopK: z.topK, Hidden: z.hidden, Intermediate: z.inner, Compute: dtype.Float32}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// device is where the layers run. Tests of other devices set it.
var device = "host"

func open(t testing.TB) graph.Device {
	t.Helper()
	name := device
	if name == "async" {
		name = "host"
	}
	dev, err := graph.Open(name)
	must(t, err)
	if device == "async" {
		return asyncdev.New(dev, 50*time.Microsecond)
	}
	return dev
}

// numbers are n normal numbers of a standard deviation.
func numbers(seed uint64, n int, std float64) []float64 {
	r := rand.New(rand.NewPCG(seed, 1))
	xs := make([]float64, n)
	for i := range xs {
		xs[i] = std * r.NormFloat64()
	}
	return xs
}

// tensorOf makes a tensor of type dt.
func tensorOf(dt tensor.Dtype, xs []float64, shape ...int) *tensor.Dense {
	if dt == tensor.Float64 {
		return tensor.New(tensor.WithShape(shape...), tensor.WithBacking(append([]float64(nil), xs...)))
	}
	f := make([]float32, len(xs))
	for i, x := range xs {
		f[i] = float32(x)
	}
	return tensor.New(tensor.WithShape(shape...), tensor.WithBacking(f))
}

// floats returns a value's numbers.
func floats(t testing.TB, v G.Value) []float64 {
	t.Helper()
	switch x := v.Data().(type) {
	case float32:
		return []float64{float64(x)}
	case float64:
		return []float64{x}
	case []float32:
		return numbersOf(x)
	case []float64:
		return append([]float64(nil), x...)
	case []int32:
		return numbersOf(x)
	case []int64:
		return numbersOf(x)
	case []byte:
		return numbersOf(x)
	}
	t.Fatalf("%T is no float data", v.Data())
	return nil
}

func numbersOf[T float32 | int32 | int64 | byte](xs []T) []float64 {
	fs := make([]float64, len(xs))
	for i, x := range xs {
		fs[i] = float64(x)
	}
	return fs
}

// transpose turns (rows,cols) into (cols,rows).
func transpose(xs []float64, rows, cols int) []float64 {
	ys := make([]float64, len(xs))
	for r := range rows {
		for c := range cols {
			ys[c*rows+r] = xs[r*cols+c]
		}
	}
	return ys
}

// model is a gorgonia graph that trains.
type model struct {
	z       sizes
	dt      tensor.Dtype
	g       *G.ExprGraph
	x, want *G.Node
	mask    *G.Node // of the reference alone: 1 at the chosen experts, (rows,experts)
	h, y    *G.Node // the layer's input and output
	w0, w1  *G.Node
	layer   G.Nodes // the layer's weights
	cost    *G.Node
	steps   int
}

// learnables are what a solver updates.
func (m *model) learnables() G.Nodes {
	return append(G.Nodes{m.w0, m.w1}, m.layer...)
}

// begin makes what is before the layer. w0 and w1 have the same values in every model.
func begin(z sizes, dt tensor.Dtype, rows int) *model {
	g := G.NewGraph()
	m := &model{z: z, dt: dt, g: g}
	m.x = G.NewMatrix(g, dt, G.WithShape(rows, z.in), G.WithName("x"), G.WithValue(tensorOf(dt, make([]float64, rows*z.in), rows, z.in)))
	m.want = G.NewMatrix(g, dt, G.WithShape(rows, z.out), G.WithName("want"), G.WithValue(tensorOf(dt, make([]float64, rows*z.out), rows, z.out)))
	m.w0 = G.NewMatrix(g, dt, G.WithShape(z.in, z.hidden), G.WithName("w0"), G.WithValue(tensorOf(dt, numbers(1, z.in*z.hidden, 0.4), z.in, z.hidden)))
	m.w1 = G.NewMatrix(g, dt, G.WithShape(z.hidden, z.out), G.WithName("w1"), G.WithValue(tensorOf(dt, numbers(2, z.hidden*z.out, 0.3), z.hidden, z.out)))
	m.h = G.Must(G.Tanh(G.Must(G.Mul(m.x, m.w0))))
	return m
}

// end makes what is after the layer.
func (m *model) end(y *G.Node) *model {
	m.y = y
	out := G.Must(G.Mul(G.Must(G.Add(m.h, y)), m.w1))
	m.cost = G.Must(G.Mean(G.Must(G.Square(G.Must(G.Sub(out, m.want))))))
	return m
}

// withLayer is the model with a Layer.
func withLayer(t testing.TB, l *Layer, z sizes, dt tensor.Dtype, rows int) *model {
	t.Helper()
	m := begin(z, dt, rows)
	var err error
	m.layer, err = l.Weights(m.g, dt)
	must(t, err)
	y, err := l.Apply(append(G.Nodes{m.h}, m.layer...)...)
	must(t, err)
	return m.end(y)
}

// newLayer is the model's MoE layer, with weights of its own.
func newLayer(t testing.TB, z sizes, cfg Config) (*Layer, *graph.Vars) {
	t.Helper()
	vars := graph.NewVars(7)
	l, err := MoE(open(t), vars.Scope("moe"), z.rows, z.moe(), cfg)
	must(t, err)
	cleanup(t, l, vars)
	return l, vars
}

// cleanup frees a layer and its variables at the end of the test.
func cleanup(t testing.TB, l *Layer, vars *graph.Vars) {
	t.Cleanup(func() {
		must(t, l.Close())
		if vars != nil {
			must(t, vars.Free())
		}
	})
}

// reference is the same model of gorgonia's ops alone: every expert on every row, masked. Its layer's weights are the
// router as (hidden,experts), then gate, up (hidden,inner) and down (inner,hidden) of each expert.
func reference(t testing.TB, vars *graph.Vars, z sizes, dt tensor.Dtype) *model {
	t.Helper()
	m := begin(z, dt, z.rows)
	m.mask = G.NewMatrix(m.g, dt, G.WithShape(z.rows, z.experts), G.WithName("mask"), G.WithValue(tensorOf(dt, make([]float64, z.rows*z.experts), z.rows, z.experts)))
	weight := func(name string, xs []float64, rows, cols int) *G.Node {
		n := G.NewMatrix(m.g, dt, G.WithShape(cols, rows), G.WithName(name), G.WithValue(tensorOf(dt, transpose(xs, rows, cols), cols, rows)))
		m.layer = append(m.layer, n)
		return n
	}
	constant := func(name string, xs []float64, rows, cols int) *G.Node {
		return G.NewMatrix(m.g, dt, G.WithShape(rows, cols), G.WithName(name), G.WithValue(tensorOf(dt, xs, rows, cols)))
	}
	fill := func(n, from, to int) []float64 {
		xs := make([]float64, n)
		for i := from; i < to; i++ {
			xs[i] = 1
		}
		return xs
	}
	read := func(name string) []float64 {
		v := vars.Lookup("moe/" + name)
		xs := make([]float64, v.Elems())
		must(t, vars.Read(v, xs))
		return xs
	}
	router := weight("router", read("router"), z.experts, z.hidden)
	e := G.Must(G.Exp(G.Must(G.Mul(m.h, router))))
	prob := G.Must(G.HadamardDiv(e, G.Must(G.Mul(e, constant("ones", fill(z.experts*z.experts, 0, z.experts*z.experts), z.experts, z.experts)))))
	chosen := G.Must(G.HadamardProd(prob, m.mask))
	fc1, fc2 := read("fc1"), read("fc2")
	var y *G.Node
	for i := range z.experts {
		one := fc1[i*2*z.inner*z.hidden:]
		half := z.inner * z.hidden
		gate := G.Must(G.Mul(m.h, weight(fmt.Sprintf("gate%d", i), one[:half], z.inner, z.hidden)))
		up := G.Must(G.Mul(m.h, weight(fmt.Sprintf("up%d", i), one[half:2*half], z.inner, z.hidden)))
		act := G.Must(G.HadamardProd(G.Must(G.HadamardProd(gate, G.Must(G.Sigmoid(gate)))), up))
		down := G.Must(G.Mul(act, weight(fmt.Sprintf("down%d", i), fc2[i*half:(i+1)*half], z.hidden, z.inner)))
		spread := constant(fmt.Sprintf("spread%d", i), fill(z.experts*z.hidden, i*z.hidden, (i+1)*z.hidden), z.experts, z.hidden)
		part := G.Must(G.HadamardProd(down, G.Must(G.Mul(chosen, spread))))
		if y == nil {
			y = part
		} else {
			y = G.Must(G.Add(y, part))
		}
	}
	return m.end(y)
}

// batch gives the model its data. The mask follows from the weights as they are, by plain code.
func (m *model) batch(t testing.TB, step int) {
	t.Helper()
	z, rows := m.z, m.x.Shape()[0]
	x := numbers(uint64(100+step%7), rows*z.in, 1)
	want := make([]float64, rows*z.out)
	for r := range rows {
		for o := range z.out {
			a, b := x[r*z.in+o], x[r*z.in+o+1]
			want[r*z.out+o] = math.Sin(2*a) * b
		}
	}
	must(t, G.Let(m.x, tensorOf(m.dt, x, rows, z.in)))
	must(t, G.Let(m.want, tensorOf(m.dt, want, rows, z.out)))
	if m.mask == nil {
		return
	}
	h := product(x, floats(t, m.w0.Value()), rows, z.in, z.hidden)
	for i := range h {
		h[i] = math.Tanh(h[i])
	}
	logits := product(h, floats(t, m.layer[0].Value()), rows, z.hidden, z.experts)
	mask := make([]float64, len(logits))
	for r := range rows {
		row := logits[r*z.experts:][:z.experts]
		ids := make([]int, z.experts)
		for i := range ids {
			ids[i] = i
		}
		sort.SliceStable(ids, func(a, b int) bool { return row[ids[a]] > row[ids[b]] })
		for _, id := range ids[:z.topK] {
			mask[r*z.experts+id] = 1
		}
	}
	must(t, G.Let(m.mask, tensorOf(m.dt, mask, rows, z.experts)))
}

func product(a, b []float64, rows, inner, cols int) []float64 {
	c := make([]float64, rows*cols)
	for r := range rows {
		for k := range inner {
			for j := range cols {
				c[r*cols+j] += a[r*inner+k] * b[k*cols+j]
			}
		}
	}
	return c
}

// machine is a VM of gorgonia with what a training step needs.
type machine struct {
	m      *model
	lisp   bool
	vm     G.VM
	solver G.Solver
}

func newMachine(t testing.TB, m *model, lisp bool, solver G.Solver) *machine {
	t.Helper()
	k := &machine{m: m, lisp: lisp, solver: solver}
	if lisp {
		return k
	}
	_, err := G.Grad(m.cost, m.learnables()...)
	must(t, err)
	k.vm = G.NewTapeMachine(m.g, G.BindDualValues(m.learnables()...))
	t.Cleanup(func() { k.vm.Close() })
	return k
}

// run runs forward and backward once and returns the cost.
func (k *machine) run(t testing.TB) float64 {
	t.Helper()
	if k.lisp {
		// A LispMachine forgets what to differentiate with each run.
		k.vm = G.NewLispMachine(k.m.g)
		defer k.vm.Close()
	}
	must(t, k.vm.RunAll())
	cost := floats(t, k.m.cost.Value())[0]
	if !k.lisp {
		k.vm.Reset()
	}
	return cost
}

// step trains once.
func (k *machine) step(t testing.TB) float64 {
	t.Helper()
	k.m.batch(t, k.m.steps)
	k.m.steps++
	cost := k.run(t)
	must(t, k.solver.Step(G.NodesToValueGrads(k.m.learnables())))
	return cost
}
