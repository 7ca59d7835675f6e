package nodes

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// TestExperts_SameAsLayer: given the choice of a layer's own router, Experts computes what the layer computes, with
// the same parameters, and its gradients of the experts' weights.
func TestExperts_SameAsLayer(t *testing.T) {
	for _, dt := range []dtype.DType{dtype.Float32, dtype.BFloat16} {
		g, vars := graph.New("g"), graph.NewVars(4)
		x := g.Input("x", dt, graph.UpTo(20), 16)
		cfg := MoE{Experts: 5, TopK: 2, Intermediate: 32, Alignment: 4, Bias: true, Shared: 32, Order: Sigmoid}
		y, aux := MoELayer(x, vars.Scope("moe"), cfg)
		cfg.TopK, cfg.Order = 0, SoftmaxTopK
		z, routing := Experts(x, aux.TopKIdx, aux.TopKProb, vars.Scope("moe"), cfg)
		fc1, fc2 := vars.Lookup("moe/fc1"), vars.Lookup("moe/fc2")
		dy := g.GradientsFrom([]*graph.Value{y}, nil, fc1, fc2).Value
		dz := g.GradientsFrom([]*graph.Value{z}, nil, fc1, fc2).Value
		outs := slices.Concat([]*graph.Value{y, aux.Counts}, dy, []*graph.Value{z, routing.Counts}, dz)
		for _, v := range outs {
			g.Output(v.Name(), v)
		}
		e := start(t, g, vars, map[*graph.Value]any{x: noise(3, 17*16)})
		must(t, e.Replay(t.Context()))
		for i, v := range outs[:4] {
			if i == 1 {
				if !slices.Equal(fetch[int32](t, e, v), fetch[int32](t, e, outs[5])) {
					t.Error("counts differ")
				}
				continue
			}
			if !slices.Equal(fetch[float32](t, e, v), fetch[float32](t, e, outs[4+i])) {
				t.Errorf("%s differs from %s", outs[4+i].Name(), v.Name())
			}
		}
	}
}

// TestExperts_Grad checks the gradients of x, the probabilities and the weights, with dropped and invalid ids.
func TestExperts_Grad(t *testing.T) {
	for _, cfg := range []MoE{
		{Experts: 4, Intermediate: 32, Alignment: 2},
		{Experts: 4, TopK: 3, Intermediate: 32, Alignment: 1, Bias: true, Shared: 32, Activation: Activation{Func: "geglu"}, Capacity: 6},
	} {
		vars := graph.NewVars(8)
		checkGrads(t, vars, func(g *graph.Graph) []*graph.Value {
			y, _ := Experts(g.Use(wide(vars, "x", 3, 4)), g.Input("ids", dtype.Int32, 3, 3), g.Use(wide(vars, "p", 3, 3)), vars.Scope("moe"), cfg)
			return []*graph.Value{y}
		}, map[string]any{"ids": []int32{0, 1, -1, 2, 2, 0, 9, 3, 1}})
	}
}

func TestExperts_Refuses(t *testing.T) {
	good := MoE{Experts: 4, Intermediate: 32}
	for _, tc := range []struct {
		name   string
		change func(g *graph.Graph, x, idx, prob **graph.Value, cfg *MoE)
		kind   error
		want   string
	}{
		{"no ids", func(_ *graph.Graph, _, idx, _ **graph.Value, _ *MoE) { *idx = nil }, graph.ErrDType, "topk_idx"},
		{"no probabilities", func(_ *graph.Graph, _, _, prob **graph.Value, _ *MoE) { *prob = nil }, graph.ErrDType, "topk_prob"},
		{"ids of 64 bits", func(g *graph.Graph, _, idx, _ **graph.Value, _ *MoE) { *idx = g.Input("i", dtype.Int64, 6, 2) }, graph.ErrDType, "topk_idx"},
		{"ids of one dimension", func(g *graph.Graph, _, idx, _ **graph.Value, _ *MoE) { *idx = g.Input("i", dtype.Int32, 6) }, graph.ErrShape, "topk_idx"},
		{"tokens", func(g *graph.Graph, _, idx, _ **graph.Value, _ *MoE) { *idx = g.Input("i", dtype.Int32, 7, 2) }, graph.ErrShape, "topk_idx"},
		{"slots", func(g *graph.Graph, _, _, prob **graph.Value, _ *MoE) { *prob = g.Input("q", dtype.Float32, 6, 3) }, graph.ErrShape, "topk_prob"},
		{"bf16", func(g *graph.Graph, _, _, prob **graph.Value, _ *MoE) { *prob = g.Input("q", dtype.BFloat16, 6, 2) }, graph.ErrDType, "topk_prob"},
		{"TopK", func(_ *graph.Graph, _, _, _ **graph.Value, cfg *MoE) { cfg.TopK = 3 }, graph.ErrShape, "TopK: got 3, want 0, or 2"},
		{"experts", func(_ *graph.Graph, _, _, _ **graph.Value, cfg *MoE) { cfg.Experts = 0 }, graph.ErrShape, "Experts"},
		{"dropout", func(_ *graph.Graph, _, _, _ **graph.Value, cfg *MoE) { cfg.Dropout = 1 }, graph.ErrShape, "Dropout"},
		{"x of one dimension", func(g *graph.Graph, x, _, _ **graph.Value, _ *MoE) { *x = g.Input("y", dtype.Float32, 6) }, graph.ErrShape, "x:"},
	} {
		g, vars := graph.New("g"), graph.NewVars(1)
		x, idx, prob, cfg := g.Input("x", dtype.Float32, 6, 4), g.Input("idx", dtype.Int32, 6, 2), g.Input("prob", dtype.Float32, 6, 2), good
		tc.change(g, &x, &idx, &prob, &cfg)
		y, _ := Experts(x, idx, prob, vars.Scope("moe"), cfg)
		if err := g.Err(); !errors.Is(err, tc.kind) || !strings.Contains(err.Error(), tc.want) || y.Err() == nil {
			t.Errorf("%s: got %v, want a %v error that says %q", tc.name, err, tc.kind, tc.want)
		}
		if len(vars.All()) > 0 {
			t.Errorf("%s: the refused layer left variables", tc.name)
		}
	}
}

// TestMoELayer_RefusesOutsideAGraph: without a graph that could keep it, the mistake is the result's.
func TestMoELayer_RefusesOutsideAGraph(t *testing.T) {
	vars := graph.NewVars(1)
	cfg := MoE{Experts: 4, TopK: 2, Intermediate: 32}
	for name, x := range map[string]*graph.Value{"nil": nil, "a variable": vars.Param("x", 4, 8)} {
		y, aux := MoELayer(x, vars, cfg)
		z, routing := Experts(x, x, x, vars, cfg)
		for _, v := range []*graph.Value{y, aux.Counts, aux.Balance, z, routing.Counts} {
			if !errors.Is(v.Err(), graph.ErrUsage) {
				t.Errorf("x is %s: got error %v, want one of usage", name, v.Err())
			}
		}
	}
	g := graph.New("g")
	if MoELayer(g.Input("x", dtype.Float32, 4, 8), nil, cfg); !errors.Is(g.Err(), graph.ErrUsage) {
		t.Errorf("no vars: got %v", g.Err())
	}
}

// randomLayer is a training graph of a layer with jitter and dropout, and the same layer without.
type randomLayer struct {
	exec    *graph.Exec
	x       *graph.Value
	y, dx   *graph.Value
	logits  *graph.Value
	dFC2    *graph.Value
	vars    *graph.Vars
	dropout float64
}

func newRandomLayer(t *testing.T, seed uint64, jitter, dropout float64) *randomLayer {
	g, vars := graph.New("random"), graph.NewVars(3)
	cfg := MoE{Experts: 4, TopK: 2, Intermediate: 32, Alignment: 4, RouterJitter: jitter, Dropout: dropout, Seed: seed}
	l := &randomLayer{x: g.Input("x", dtype.Float32, graph.UpTo(40), 16), vars: vars, dropout: dropout}
	var aux Aux
	l.y, aux = MoELayer(l.x, vars.Scope("moe"), cfg)
	l.logits = aux.Logits
	gr := g.GradientsFrom([]*graph.Value{l.y}, nil, l.x, vars.Lookup("moe/fc2"))
	l.dx, l.dFC2 = gr.Value[0], gr.Value[1]
	for i, v := range []*graph.Value{l.y, l.dx, l.logits, l.dFC2} {
		g.Output([]string{"y", "dx", "logits", "dfc2"}[i], v)
	}
	l.exec = start(t, g, vars, map[*graph.Value]any{l.x: noise(5, 37*16)})
	return l
}

func (l *randomLayer) replay(t *testing.T) (y, dx, logits []float32) {
	must(t, l.exec.Replay(t.Context()))
	return fetch[float32](t, l.exec, l.y), fetch[float32](t, l.exec, l.dx), fetch[float32](t, l.exec, l.logits)
}

// TestHazard27_LayerUnderReplay is hazard 27 for the whole layer: two replays differ, the same seed reproduces both,
// another one does not; dropout leaves zeros and leaves the router alone; jitter is the router's alone.
func TestHazard27_LayerUnderReplay(t *testing.T) {
	plainY, _, plainLogits := newRandomLayer(t, 0, 0, 0).replay(t)
	for _, tc := range []struct{ jitter, dropout float64 }{{0.2, 0}, {0, 0.4}, {0.2, 0.4}} {
		a, b, c := newRandomLayer(t, 7, tc.jitter, tc.dropout), newRandomLayer(t, 7, tc.jitter, tc.dropout), newRandomLayer(t, 8, tc.jitter, tc.dropout)
		y1, dx1, l1 := a.replay(t)
		y2, dx2, l2 := a.replay(t)
		p1, q1, m1 := b.replay(t)
		p2, q2, m2 := b.replay(t)
		if slices.Equal(y1, y2) || slices.Equal(dx1, dx2) {
			t.Errorf("%v: two replays do not differ", tc)
		}
		for i, pair := range [][2][]float32{{y1, p1}, {dx1, q1}, {l1, m1}, {y2, p2}, {dx2, q2}, {l2, m2}} {
			if !slices.Equal(pair[0], pair[1]) {
				t.Errorf("%v: the same seed does not reproduce result %d", tc, i)
			}
		}
		if y, _, _ := c.replay(t); slices.Equal(y, y1) {
			t.Errorf("%v: another seed gives the same", tc)
		}
		if slices.Equal(l1, plainLogits) != (tc.jitter == 0) {
			t.Errorf("%v: logits are those without options: %v", tc, tc.jitter != 0)
		}
		zeros := 0
		for i, v := range y1 {
			if v == 0 {
				zeros++
			} else if scaled := float64(plainY[i]) / (1 - tc.dropout); tc.jitter == 0 && math.Abs(float64(v)-scaled) > 1e-6*math.Abs(scaled) {
				t.Fatalf("%v: element %d is %v, want %v", tc, i, v, scaled)
			}
		}
		if share := float64(zeros) / float64(len(y1)); math.Abs(share-tc.dropout) > 0.07 {
			t.Errorf("%v: %.3f of the output is zero", tc, share)
		}
		state := make([]uint64, 2)
		must(t, a.vars.Read(a.vars.Lookup("moe/random"), state))
		if state[1] != 2 {
			t.Errorf("%v: the counter is %d after two replays", tc, state[1])
		}
	}
}

// TestRandom_DrawOnce: a generator that several nodes and layers of a graph use advances once a replay.
func TestRandom_DrawOnce(t *testing.T) {
	g, vars := graph.New("g"), graph.NewVars(1)
	r := NewRandom(vars, "random", 1)
	x := g.Input("x", dtype.Float32, 8, 16)
	cfg := MoE{Experts: 4, TopK: 2, Intermediate: 32, RouterJitter: 0.1, Dropout: 0.1, Draw: r.Draw(g)}
	y, _ := MoELayer(x, vars.Scope("a"), cfg)
	y, _ = MoELayer(y, vars.Scope("b"), cfg)
	g.Output("y", Dropout(y, r.Draw(g), 0.5))
	e := start(t, g, vars, map[*graph.Value]any{x: noise(1, 8*16)})
	for range 3 {
		must(t, e.Replay(t.Context()))
	}
	state := make([]uint64, 2)
	must(t, vars.Read(vars.Lookup("random"), state))
	if state[1] != 3 || len(vars.States()) != 1 {
		t.Errorf("the counter is %d after three replays, with %d states", state[1], len(vars.States()))
	}
}

// TestMoELayer_RandomGrad: forward and backward use the same numbers. The draw is an input, so that the differences
// see the same ones.
func TestMoELayer_RandomGrad(t *testing.T) {
	vars := graph.NewVars(8)
	checkGrads(t, vars, func(g *graph.Graph) []*graph.Value {
		cfg := MoE{Experts: 4, TopK: 2, Intermediate: 32, Alignment: 2, Shared: 32, RouterJitter: 0.3, Dropout: 0.4, Draw: g.Input("draw", dtype.Uint64, 2)}
		y, aux := MoELayer(g.Use(wide(vars, "x", 5, 4)), vars.Scope("moe"), cfg)
		return []*graph.Value{y, aux.Balance, aux.ZLoss}
	}, map[string]any{"draw": []uint64{5, 6}})
}

func TestMoELayer_RandomRefuses(t *testing.T) {
	for _, p := range []float64{-0.1, 1, math.NaN()} {
		for name, cfg := range map[string]MoE{"RouterJitter": {RouterJitter: p}, "Dropout": {Dropout: p}} {
			g, vars := graph.New("g"), graph.NewVars(1)
			cfg.Experts, cfg.TopK, cfg.Intermediate = 4, 2, 32
			MoELayer(g.Input("x", dtype.Float32, 4, 8), vars, cfg)
			if err := g.Err(); !errors.Is(err, graph.ErrShape) || !strings.Contains(err.Error(), name) || len(vars.States()) > 0 {
				t.Errorf("%s = %v: got %v, %d states", name, p, err, len(vars.States()))
			}
		}
	}
	g, vars := graph.New("g"), graph.NewVars(1)
	MoELayer(g.Input("x", dtype.Float32, 4, 8), vars, MoE{Experts: 4, TopK: 2, Intermediate: 32, Dropout: 0.1, Draw: g.Input("draw", dtype.Float32, 2)})
	if err := g.Err(); err == nil || !strings.Contains(err.Error(), "draw") {
		t.Errorf("a draw of floats: got %v", err)
	}
}
