package nodes

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

func TestSharedExpert_Grad(t *testing.T) {
	const tokens = 5
	for _, act := range []string{"swiglu", "geglu"} {
		build := func(g *graph.Graph, vars *graph.Vars) []*graph.Value {
			x := Add(vars.ParamOf("x", dtype.Float64, graph.Normal(1), tokens, 6), g.Input("zero", dtype.Float64, tokens, 6))
			return []*graph.Value{SharedExpert{X: x, Activation: Activation{Func: act},
				FC1: vars.ParamOf("fc1", dtype.Float64, graph.Init{}, 64, 6),
				FC2: vars.ParamOf("fc2", dtype.Float64, graph.Init{}, 6, 32)}.Apply()}
		}
		vars := graph.NewVars(3)
		checkGrads(t, vars, func(g *graph.Graph) []*graph.Value { return build(g, vars) },
			map[string]any{"zero": make([]float64, tokens*6)})
	}
}

func TestMoELayer_SharedGrad(t *testing.T) {
	const tokens = 7
	vars := graph.NewVars(5)
	cfg := MoE{Experts: 3, TopK: 2, Intermediate: 32, Shared: 32, Alignment: 8, SelectBias: true, Order: Sigmoid, Scale: 2.5}
	checkGrads(t, vars, func(g *graph.Graph) []*graph.Value {
		x := Add(vars.ParamOf("x", dtype.Float64, graph.Normal(1), tokens, 4), g.Input("zero", dtype.Float64, tokens, 4))
		y, _ := MoELayer(x, vars.Scope("moe"), cfg)
		return []*graph.Value{y}
	}, map[string]any{"zero": make([]float64, tokens*4)})
}

// TestMoELayer_Params keeps parameters in 16 bits: the result is that of float32 parameters of the same values,
// and gradients have the parameters' format.
func TestMoELayer_Params(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, x := range []dtype.DType{dtype.BFloat16, dtype.Float32} {
		for _, params := range []dtype.DType{dtype.BFloat16, dtype.Float16, dtype.Float32} {
			values := random(r, x, 6*32)
			narrow, wide := graph.NewVars(1), graph.NewVars(2)
			run := func(vars *graph.Vars, dt dtype.DType) []float64 {
				g := graph.New("params")
				cfg := MoE{Experts: 4, TopK: 2, Intermediate: 32, Shared: 32, Bias: true, LogitBias: true, Params: dt}
				in := g.Input("x", x, graph.UpTo(9), 32)
				y, _ := MoELayer(in, vars, cfg)
				grads := g.GradientsFrom([]*graph.Value{g.Output("y", y)}, nil, vars.All()...)
				for i, v := range grads.Value {
					if of := grads.Of[i]; of.DType() != dt || v.DType() != dt {
						t.Errorf("x %s: parameter %s, gradient %s, want %s", x, of, v, dt)
					}
					g.Output(grads.Of[i].Name(), v)
				}
				if len(vars.All()) != 8 {
					t.Errorf("got parameters %v", vars.All())
				}
				return try(t, g, vars, data{in: values}, y).run().floats(y)
			}
			first := run(narrow, params)
			for _, p := range narrow.All() {
				value := make([]float32, p.Elems())
				if err := narrow.Read(p, value); err != nil {
					t.Fatal(err)
				}
				if err := wide.Write(wide.Param(p.Name(), p.Shape()...), value); err != nil {
					t.Fatal(err)
				}
			}
			if second := run(wide, dtype.Float32); !slices.Equal(first, second) {
				t.Errorf("x %s, parameters %s: the result differs from that of the same values in f32", x, params)
			}
		}
	}
}

func TestMoELayer_SharedRefuses(t *testing.T) {
	for _, x := range []struct {
		cfg  MoE
		kind error
	}{
		{MoE{Shared: -32}, graph.ErrShape},
		{MoE{Shared: 48}, graph.ErrShape},
		{MoE{Params: dtype.Int32}, graph.ErrDType},
		{MoE{Params: dtype.Float64}, graph.ErrDType},
	} {
		x.cfg.Experts, x.cfg.TopK, x.cfg.Intermediate = 4, 2, 32
		g := graph.New("refuses")
		MoELayer(g.Input("x", dtype.Float32, 4, 32), graph.NewVars(1), x.cfg)
		if !errors.Is(g.Err(), x.kind) {
			t.Errorf("%+v: got %v, want %v", x.cfg, g.Err(), x.kind)
		}
	}
}
