package nodes

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// torchSGD is the algorithm box of torch.optim.SGD, in float64.
func torchSGD(c SGDConfig, w, grad []float64, b *[]float64) {
	first := *b == nil
	if first {
		*b = make([]float64, len(w))
	}
	for i, g := range grad {
		if c.Maximize {
			g = -g
		}
		g += c.WeightDecay * w[i]
		if c.Momentum != 0 {
			if first {
				(*b)[i] = g
			} else {
				(*b)[i] = c.Momentum*(*b)[i] + (1-c.Dampening)*g
			}
			if c.Nesterov {
				g += c.Momentum * (*b)[i]
			} else {
				g = (*b)[i]
			}
		}
		w[i] -= c.Rate * g
	}
}

func TestSGD_Torch(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 2))
	for _, cfg := range []SGDConfig{
		{},
		{Rate: 0.5},
		{Rate: 0.1, WeightDecay: 0.2, Maximize: true},
		{Rate: 0.1, Momentum: 0.9},
		{Rate: 0.1, Momentum: 0.9, Dampening: 0.3, WeightDecay: 0.1},
		{Rate: 0.1, Momentum: 0.7, Nesterov: true, Maximize: true, Name: "other"},
	} {
		for _, dt := range []dtype.DType{dtype.Float64, dtype.Float32, dtype.BFloat16} {
			wide := statType(dt)
			w := random(r, dt, 50)
			var b []float64
			want := cfg
			if want.Rate == 0 {
				want.Rate = 1e-3
			}
			name := cfg.Name
			if name == "" {
				name = "sgd"
			}
			o := tryOptimizer(t, dt, dt, w, func(gr *graph.Grads) *graph.Value { return SGD(gr, cfg) })
			for step := 1; step <= 5; step++ {
				grad := random(r, dt, 50)
				torchSGD(want, w, grad, &b)
				got, gotW := o.apply(grad)
				if got != step {
					t.Fatalf("got step %d, want %d", got, step)
				}
				if dt.Bits() == 16 {
					near(t, "rounded", dt, gotW, o.variable("w/"+name+".master"), 0)
					gotW = o.variable("w/" + name + ".master")
				}
				near(t, fmt.Sprintf("%+v step %d", cfg, step), wide, gotW, w, 10*slack(dt))
			}
			if has := o.vars.Lookup("w/"+name+".momentum") != nil; has != (cfg.Momentum != 0) {
				t.Errorf("%+v: momentum state: %v", cfg, has)
			}
		}
	}
}

func TestSGD_Literals(t *testing.T) {
	o := tryOptimizer(t, dtype.Float64, dtype.Float64, []float64{1}, func(gr *graph.Grads) *graph.Value {
		return SGD(gr, SGDConfig{Rate: 0.5, Momentum: 0.5, Dampening: 0.25})
	})
	// b: 2, then 0.5*2 + 0.75*4 = 4, then 0.5*4 + 0.75*0 = 2; w: 0, -2, -3.
	for i, want := range []float64{0, -2, -3} {
		_, w := o.apply([]float64{[]float64{2, 4, 0}[i]})
		near(t, fmt.Sprint("step ", i+1), dtype.Float64, w, []float64{want}, 0)
	}
}

// TestSGD_Restart: a second Exec of the Vars goes on where the first stopped.
func TestSGD_Restart(t *testing.T) {
	vars := graph.NewVars(1)
	w := vars.ParamOf("w", dtype.Float64, graph.Const(1), 1)
	for step := 1; step <= 4; step++ {
		g := graph.New("restart")
		n := SGD(g.GradientsFrom([]*graph.Value{g.Use(w)}, nil, w), SGDConfig{Rate: 1, Momentum: 1, Dampening: 1})
		tr := try(t, g, vars, nil, n).run()
		if got, err := tr.exec.Scalar(n); err != nil || int(got) != step {
			t.Fatalf("got step %v (%v), want %d", got, err, step)
		}
	}
	var x [1]float64
	if err := vars.Read(w, x[:]); err != nil || x[0] != -3 { // b stays 1: the momentum starts once
		t.Errorf("w: got %v (%v), want -3", x[0], err)
	}
}

func TestSGD_Refuses(t *testing.T) {
	for _, c := range []struct {
		operand string
		kind    error
		cfg     SGDConfig
	}{
		{"momentum", graph.ErrShape, SGDConfig{Momentum: -0.1}},
		{"dampening", graph.ErrShape, SGDConfig{Dampening: math.NaN()}},
		{"weight_decay", graph.ErrShape, SGDConfig{WeightDecay: -1}},
		{"rate", graph.ErrShape, SGDConfig{Rate: math.Inf(1)}},
		{"nesterov", graph.ErrUnsupported, SGDConfig{Nesterov: true}},
		{"nesterov", graph.ErrUnsupported, SGDConfig{Nesterov: true, Momentum: 0.9, Dampening: 0.1}},
	} {
		g, vars := graph.New("refuses"), graph.NewVars(1)
		w := vars.Param("w", 3)
		SGD(g.GradientsFrom([]*graph.Value{g.Use(w)}, nil, w), c.cfg)
		refuses(t, fmt.Sprintf("%+v", c.cfg), g, c.kind, c.operand)
	}
}
