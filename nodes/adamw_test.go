package nodes

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// optTrial is a graph that updates a parameter w from gradients that the test writes.
type optTrial struct {
	*trial
	vars *graph.Vars
	w    *graph.Value
	grad *graph.Value
	step *graph.Value
}

// tryOptimizer builds it; w starts with start, and gradients come in the format gradType.
func tryOptimizer(t *testing.T, dt, gradType dtype.DType, start []float64, update func(grads *graph.Grads) *graph.Value) *optTrial {
	t.Helper()
	o := &optTrial{vars: graph.NewVars(1)}
	o.w = o.vars.ParamOf("w", dt, graph.Const(0), len(start))
	if err := o.vars.Write(o.w, start); err != nil {
		t.Fatal(err)
	}
	g := graph.New("optimizer")
	o.grad = g.Input("grad", gradType, len(start))
	o.step = update(g.GradientsFrom([]*graph.Value{o.w}, []*graph.Value{o.grad}, o.w))
	o.trial = try(t, g, o.vars, nil, o.step)
	return o
}

// apply replays with a gradient and returns the step and w.
func (o *optTrial) apply(grad []float64) (step int, w []float64) {
	o.t.Helper()
	o.check(o.exec.Write(o.grad, grad))
	o.run()
	n, err := o.exec.Scalar(o.step)
	o.check(err)
	return int(n), o.variable("w")
}

func (o *optTrial) variable(name string) []float64 {
	o.t.Helper()
	v := o.vars.Lookup(name)
	if v == nil {
		o.t.Fatalf("there is no variable %q", name)
	}
	x := make([]float64, v.Elems())
	o.check(o.vars.Read(v, x))
	return x
}

// torchAdamW is the algorithm box of torch.optim.AdamW, in float64.
type torchAdamW struct {
	lr, b1, b2, eps, decay float64
	maximize               bool
	m, v                   []float64
	t                      float64
}

func (a *torchAdamW) step(w, grad []float64) {
	if a.m == nil {
		a.m, a.v = make([]float64, len(w)), make([]float64, len(w))
	}
	a.t++
	for i, g := range grad {
		if a.maximize {
			g = -g
		}
		w[i] -= a.lr * a.decay * w[i]
		a.m[i] = a.b1*a.m[i] + (1-a.b1)*g
		a.v[i] = a.b2*a.v[i] + (1-a.b2)*g*g
		mHat := a.m[i] / (1 - math.Pow(a.b1, a.t))
		vHat := a.v[i] / (1 - math.Pow(a.b2, a.t))
		w[i] -= a.lr * mHat / (math.Sqrt(vHat) + a.eps)
	}
}

func TestAdamW_Torch(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 1))
	for _, c := range []struct {
		cfg  AdamWConfig
		want torchAdamW
	}{
		{AdamWConfig{}, torchAdamW{lr: 1e-3, b1: 0.9, b2: 0.999, eps: 1e-8, decay: 0.01}},
		{AdamWConfig{Rate: 3e-4}, torchAdamW{lr: 3e-4, b1: 0.9, b2: 0.999, eps: 1e-8, decay: 0.01}},
		{AdamWConfig{Rate: 0.1, Beta1: new(0.8), Beta2: new(0.95), Eps: 1e-3, WeightDecay: new(0.3), Maximize: true},
			torchAdamW{lr: 0.1, b1: 0.8, b2: 0.95, eps: 1e-3, decay: 0.3, maximize: true}},
		{AdamWConfig{Beta1: new(0.0), Beta2: new(0.0), WeightDecay: new(0.0)}, torchAdamW{lr: 1e-3, eps: 1e-8}},
		{AdamWConfig{Schedule: Schedule{Rate: 0.02}, Name: "other"}, torchAdamW{lr: 0.02, b1: 0.9, b2: 0.999, eps: 1e-8, decay: 0.01}},
	} {
		for _, dt := range []dtype.DType{dtype.Float64, dtype.Float32} {
			n := 40000 // more than one piece of a loop
			w, want := random(r, dt, n), c.want
			o := tryOptimizer(t, dt, dt, w, func(gr *graph.Grads) *graph.Value { return AdamW(gr, c.cfg) })
			for step := 1; step <= 6; step++ {
				grad := random(r, dt, n)
				grad[0] = 0
				got, gotW := o.apply(grad)
				want.step(w, grad)
				if got != step {
					t.Fatalf("got step %d, want %d", got, step)
				}
				near(t, fmt.Sprintf("%+v step %d", c.cfg, step), dt, gotW, w, 10*slack(dt))
			}
			name := c.cfg.Name
			if name == "" {
				name = "adamw"
			}
			near(t, "m", dt, o.variable("w/"+name+".m"), want.m, 10*slack(dt))
			near(t, "v", dt, o.variable("w/"+name+".v"), want.v, 10*slack(dt))
		}
	}
}

// TestAdamW_Literals: what torch.optim.AdamW gives by hand. Step 1 moves by rate times the sign of the gradient,
// after the decay; step 2 with the opposite gradient has m = 0.09g - 0.1g.
func TestAdamW_Literals(t *testing.T) {
	o := tryOptimizer(t, dtype.Float64, dtype.Float64, []float64{1, -2}, func(gr *graph.Grads) *graph.Value { return AdamW(gr) })
	_, w := o.apply([]float64{0.5, -4})
	near(t, "step 1", dtype.Float64, w, []float64{1 - 1e-5 - 1e-3/(1+2e-8), -2 + 2e-5 + 1e-3/(1+0.25e-8)}, 1e-15)
	_, w2 := o.apply([]float64{-0.5, 4})
	move := 1e-3 * (0.09 - 0.1) / 0.19
	near(t, "step 2", dtype.Float64, w2, []float64{w[0]*(1-1e-5) - move, w[1]*(1-1e-5) + move}, 1e-10)
}

// TestAdamW_Master: a 16-bit parameter follows its float32 copy, so that small steps add up; writing the parameter
// renews the copy.
func TestAdamW_Master(t *testing.T) {
	for _, dt := range []dtype.DType{dtype.BFloat16, dtype.Float16} {
		start := []float64{1, -3, 0.5}
		cfg := AdamWConfig{Rate: 1e-4}
		o := tryOptimizer(t, dt, dt, start, func(gr *graph.Grads) *graph.Value { return AdamW(gr, cfg) })
		want := torchAdamW{lr: 1e-4, b1: 0.9, b2: 0.999, eps: 1e-8, decay: 0.01}
		run := func(w []float64, steps int) {
			for range steps {
				grad := []float64{1, 0.5, -0.25}
				want.step(w, grad)
				_, got := o.apply(grad)
				near(t, "master", dtype.Float32, o.variable("w/adamw.master"), w, 1e-5)
				near(t, "w", dt, got, o.variable("w/adamw.master"), 0)
			}
		}
		w := append([]float64(nil), start...)
		run(w, 100)
		if math.Abs(w[0]-0.99) > 1e-3 {
			t.Errorf("100 steps of 1e-4 from 1: got %v", w[0])
		}
		again := []float64{8, 4, 2}
		o.check(o.vars.Write(o.w, again))
		run(again, 3)
	}
}

// TestAdamW_MixedGrads: gradients of any format of at least 16 bits serve a parameter.
func TestAdamW_MixedGrads(t *testing.T) {
	o := tryOptimizer(t, dtype.Float32, dtype.BFloat16, []float64{1, 2}, func(gr *graph.Grads) *graph.Value { return AdamW(gr) })
	_, w := o.apply([]float64{1, -1})
	near(t, "w", dtype.Float32, w, []float64{1 - 1e-5 - 1e-3, 2 - 2e-5 + 1e-3}, 1e-7)
}

// TestAdamW_TwoOptimizers: two of them in one graph need two names, and each keeps its own step and state.
func TestAdamW_TwoOptimizers(t *testing.T) {
	build := func(second string) (*graph.Graph, *graph.Vars) {
		vars, g := graph.NewVars(1), graph.New("two")
		a, b := vars.Param("a", 3), vars.Param("b", 3)
		grads := g.GradientsFrom([]*graph.Value{Add(g.Use(a), b)}, nil, a, b)
		of := func(i int) *graph.Grads {
			part := grads.With(grads.Value[i : i+1])
			part.Of = grads.Of[i : i+1]
			return part
		}
		AdamW(of(0))
		AdamW(of(1), AdamWConfig{Name: second})
		return g, vars
	}
	g, _ := build("")
	refuses(t, "two optimizers of one name", g, graph.ErrUsage, "name")
	g, vars := build("second")
	try(t, g, vars, nil).run().run()
	for _, name := range []string{"adamw/step", "second/step"} {
		var n [1]int32
		if err := vars.Read(vars.Lookup(name), n[:]); err != nil || n[0] != 2 {
			t.Errorf("%s: got %d (%v), want 2", name, n[0], err)
		}
	}
}

func TestAdamW_Refuses(t *testing.T) {
	for _, c := range []struct {
		what    string
		kind    error
		operand string
		build   func(g *graph.Graph, w *graph.Value, gr *graph.Grads)
	}{
		{"beta1", graph.ErrShape, "beta1", func(_ *graph.Graph, _ *graph.Value, gr *graph.Grads) { AdamW(gr, AdamWConfig{Beta1: new(1.0)}) }},
		{"beta2", graph.ErrShape, "beta2", func(_ *graph.Graph, _ *graph.Value, gr *graph.Grads) { AdamW(gr, AdamWConfig{Beta2: new(-0.1)}) }},
		{"eps", graph.ErrShape, "eps", func(_ *graph.Graph, _ *graph.Value, gr *graph.Grads) { AdamW(gr, AdamWConfig{Eps: math.NaN()}) }},
		{"decay", graph.ErrShape, "weight_decay", func(_ *graph.Graph, _ *graph.Value, gr *graph.Grads) {
			AdamW(gr, AdamWConfig{WeightDecay: new(-1.0)})
		}},
		{"rate", graph.ErrShape, "rate", func(_ *graph.Graph, _ *graph.Value, gr *graph.Grads) { AdamW(gr, AdamWConfig{Rate: -1}) }},
		{"two rates", graph.ErrUsage, "rate", func(_ *graph.Graph, _ *graph.Value, gr *graph.Grads) {
			AdamW(gr, AdamWConfig{Rate: 1, Schedule: Schedule{Rate: 2}})
		}},
		{"twice", graph.ErrUsage, "grads", func(g *graph.Graph, w *graph.Value, _ *graph.Grads) {
			AdamW(g.GradientsFrom([]*graph.Value{g.Use(w)}, nil, w, w))
		}},
		{"input", graph.ErrUsage, "grads", func(g *graph.Graph, w *graph.Value, _ *graph.Grads) {
			x := g.Input("x", dtype.Float32, 3)
			AdamW(g.GradientsFrom([]*graph.Value{Add(x, w)}, nil, x))
		}},
	} {
		g, vars := graph.New("refuses"), graph.NewVars(1)
		w := vars.Param("w", 3)
		c.build(g, w, g.GradientsFrom([]*graph.Value{g.Use(w)}, nil, w))
		refuses(t, c.what, g, c.kind, c.operand)
	}
	if err := AdamW(nil).Err(); !errors.Is(err, graph.ErrUsage) || !strings.Contains(err.Error(), "adamw: grads: got none") {
		t.Errorf("no gradients: got %v", err)
	}
	// A mistake made earlier comes through.
	g, vars := graph.New("earlier"), graph.NewVars(1)
	w := vars.Param("w", 3)
	y := Add(g.Use(w), g.Input("x", dtype.Float32, 4))
	if step := AdamW(g.Gradients(y, w)); !errors.Is(step.Err(), graph.ErrShape) || !strings.Contains(g.Err().Error(), "sum") {
		t.Errorf("got %v, want the error of sum", step.Err())
	}
}
