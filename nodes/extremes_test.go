package nodes

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/host"
)

// trainingStep is a small model with every kind of loss, its gradients clipped, and an update of all parameters.
type trainingStep struct {
	exec              *graph.Exec
	vars              *graph.Vars
	ids, labels       *graph.Value
	loss, balance, z  *graph.Value
	norm, logits, out *graph.Value
	grads             []*graph.Value
}

func newTrainingStep(t *testing.T, cfg MoE, tokens int) *trainingStep {
	g, vars := graph.New("step"), graph.NewVars(3)
	s := &trainingStep{vars: vars}
	rows := graph.UpTo(max(tokens, 1))
	if tokens == 0 {
		rows = 0
	}
	s.ids, s.labels = g.Input("ids", dtype.Int32, rows), g.Input("labels", dtype.Int32, rows)
	x := Embedding(s.ids, vars.ParamOf("table", dtype.Float32, graph.Normal(1), 16, 8))
	var aux Aux
	s.out, aux = MoELayer(RMSNorm(x, vars.ParamOf("norm", dtype.Float32, graph.Const(1), 8)), vars.Scope("moe"), cfg)
	s.logits = Linear(Add(x, s.out), vars.Param("head", 16, 8))
	s.loss, s.balance, s.z = CrossEntropy(s.logits, s.labels), aux.Balance, aux.ZLoss
	gr := g.Gradients(Add(s.loss, Scale(s.balance, 0.1), Scale(s.z, 0.1)), vars.All()...)
	s.grads = gr.Value
	gr, s.norm = ClipGlobalNorm(gr, 1)
	AdamW(gr, AdamWConfig{Rate: 0.01})
	for i, v := range slices.Concat(s.grads, []*graph.Value{s.loss, s.balance, s.z, s.norm, s.logits, s.out}) {
		g.Output(fmt.Sprint(i), v)
	}
	s.exec = start(t, g, vars, nil)
	return s
}

func (s *trainingStep) step(t *testing.T, tokens int) {
	t.Helper()
	ids := make([]int32, tokens)
	for i := range ids {
		ids[i] = int32(i*7) % 16
	}
	must(t, s.exec.Write(s.ids, ids))
	must(t, s.exec.Write(s.labels, ids))
	must(t, s.exec.Replay(t.Context()))
}

func (s *trainingStep) scalar(t *testing.T, v *graph.Value) float64 {
	t.Helper()
	x, err := s.exec.Scalar(v)
	must(t, err)
	return x
}

// TestExtremes_NoTokens: a training step without tokens, between ones with tokens and in a graph that never has any,
// leaves the cross-entropy NaN (as PyTorch), the router's losses 0, all gradients 0, and the parameters finite.
func TestExtremes_NoTokens(t *testing.T) {
	for _, cfg := range []MoE{
		{Experts: 4, TopK: 2, Intermediate: 32, Alignment: 4, Bias: true, LogitBias: true, Shared: 32},
		{Experts: 3, TopK: 3, Intermediate: 32, Alignment: 1, Order: Sigmoid, SelectBias: true, RouterJitter: 0.1, Dropout: 0.1},
		{Experts: 4, TopK: 1, Intermediate: 32, Alignment: 8, Order: TopKSoftmax, Compute: dtype.BFloat16, Params: dtype.BFloat16, Layout: LayoutPairs},
	} {
		for _, tokens := range []int{9, 0} {
			s := newTrainingStep(t, cfg, tokens)
			s.step(t, tokens)
			s.step(t, 0)
			if loss := s.scalar(t, s.loss); !math.IsNaN(loss) {
				t.Errorf("%+v: cross-entropy of no tokens is %v, want NaN", cfg, loss)
			}
			for _, v := range []*graph.Value{s.balance, s.z, s.norm} {
				if x := s.scalar(t, v); x != 0 {
					t.Errorf("%+v: %s of no tokens is %v, want 0", cfg, v.Name(), x)
				}
			}
			for _, v := range s.grads {
				for _, x := range fetch[float32](t, s.exec, v) {
					if x != 0 {
						t.Fatalf("%+v: %s without tokens has an element %v, want 0", cfg, v.Name(), x)
					}
				}
			}
			if rows := len(fetch[float32](t, s.exec, s.out)); rows != 0 {
				t.Errorf("%+v: %d elements of output without tokens", cfg, rows)
			}
			s.step(t, tokens)
			for _, p := range s.vars.All() {
				x := make([]float32, p.Elems())
				must(t, s.vars.Read(p, x))
				if i := slices.IndexFunc(x, func(v float32) bool { return math.IsNaN(float64(v)) }); i >= 0 {
					t.Errorf("%+v: element %d of %s is NaN after a step without tokens", cfg, i, p.Name())
				}
			}
		}
	}
}

// TestExtremes_Sizes compares the layer with the plain one at the ends of what is allowed: the most experts, all of
// them chosen, one column block, no padding.
func TestExtremes_Sizes(t *testing.T) {
	for _, s := range []layerShape{
		{3, 1024, 2, 8, 32, 1, "random"},
		{2, 1024, 1024, 8, 32, 1, "random"},
		{2, 1024, 8, 8, 32, 256, "random"},
		{1, 2, 2, 8, 32, 256, "all equal"},
	} {
		t.Run(s.String(), func(t *testing.T) {
			compareLayer(t, s, dtype.Float64, dtype.Float64, 1e-12)
			compareLayer(t, s, dtype.Float32, dtype.Float32, 3e-6)
		})
	}
}

// TestExtremes_NoRows: operators over groups whose capacity is 0 rows run and make gradients of zeros.
func TestExtremes_NoRows(t *testing.T) {
	for _, dt := range []dtype.DType{dtype.Float32, dtype.BFloat16, dtype.Float64} {
		g, vars := graph.New("g"), graph.NewVars(1)
		x, ids, p := g.Input("x", dt, 0, 16), g.Input("ids", dtype.Int32, 0, 2), g.Input("p", statType(dt), 0, 2)
		y, routing := Experts(x, ids, p, vars.Scope("moe"), MoE{Experts: 3, Intermediate: 32, Alignment: 1, Bias: true})
		if routing.SlotMap.Dim(0) != 0 {
			t.Fatalf("the capacity is %d", routing.SlotMap.Dim(0))
		}
		gr := g.GradientsFrom([]*graph.Value{y}, nil, append(vars.All(), x, p)...)
		for i, v := range append(gr.Value, y, routing.Overflow) {
			g.Output(fmt.Sprint(i), v)
		}
		e := start(t, g, vars, map[*graph.Value]any{x: []float32{}, ids: []int32{}, p: []float32{}})
		must(t, e.Replay(t.Context()))
		for _, v := range gr.Value {
			for i, d := range fetch[float64](t, e, v) {
				if d != 0 {
					t.Fatalf("%s: element %d of %s is %v", dt, i, v.Name(), d)
				}
			}
		}
	}
}

// TestExtremes_CapacityOfNothing: where no slot finds a row, the output is what dropped tokens get, 0, and so is
// every gradient of the experts.
func TestExtremes_CapacityOfNothing(t *testing.T) {
	g, vars := graph.New("g"), graph.NewVars(1)
	x := g.Input("x", dtype.Float32, 6, 8)
	ids := g.Input("ids", dtype.Int32, 6, 2)
	out := graph.Apply(dispatch{Experts: 3, Align: 1, Capacity: 0}, ids)
	r := Routing{TopKIdx: ids, Counts: out[0], PaddedOffsets: out[1], RowMap: out[2], SlotMap: out[3], Overflow: out[4], Invalid: out[5], Alignment: 1}
	w := vars.Param("w", 3, 8, 8)
	d, _ := GroupedGEMM{A: r.Permute(x), B: Dense(w), PaddedOffsets: r.PaddedOffsets, Counts: r.Counts, Alignment: 1}.Apply()
	y := r.Combine(d, nil, dtype.Float32)
	gr := g.GradientsFrom([]*graph.Value{y}, nil, x, w)
	for i, v := range append(gr.Value, y, r.Overflow) {
		g.Output(fmt.Sprint(i), v)
	}
	e := start(t, g, vars, map[*graph.Value]any{x: ones(48), ids: make([]int32, 12)})
	must(t, e.Replay(t.Context()))
	for _, v := range append(gr.Value, y) {
		if got := fetch[float32](t, e, v); slices.ContainsFunc(got, func(x float32) bool { return x != 0 }) {
			t.Errorf("%s is %v, want zeros", v.Name(), got)
		}
	}
	if got := fetch[int32](t, e, r.Overflow); got[0] != 12 {
		t.Errorf("%d slots overflow, want 12", got[0])
	}
}

// TestExtremes_SharedParameters: two layers with the same parameters are one layer applied twice; the gradients add
// up, as differences say.
func TestExtremes_SharedParameters(t *testing.T) {
	vars := graph.NewVars(8)
	cfg := MoE{Experts: 4, TopK: 2, Intermediate: 32, Alignment: 2, Bias: true, LogitBias: true, Shared: 32}
	checkGrads(t, vars, func(g *graph.Graph) []*graph.Value {
		y, _ := MoELayer(g.Use(wide(vars, "x", 5, 4)), vars.Scope("moe"), cfg)
		z, aux := MoELayer(Scale(y, 0.5), vars.Scope("moe"), cfg)
		return []*graph.Value{z, y, aux.Balance}
	})
}

// TestExtremes_SameValueEverywhere: one value as several operands of one node gets the sum of their gradients.
func TestExtremes_SameValueEverywhere(t *testing.T) {
	vars := graph.NewVars(8)
	checkGrads(t, vars, func(g *graph.Graph) []*graph.Value {
		x := g.Use(wide(vars, "x", 4, 4))
		offsets := g.Input("offsets", dtype.Int32, 4)
		stacked, p := g.Use(wide(vars, "w", 4, 4, 4)), g.Use(wide(vars, "p", 4))
		d, c := GroupedGEMM{A: x, B: Dense(stacked), PaddedOffsets: offsets, Prob: p, Bias: x, Alignment: 1}.Apply()
		discrete, _ := GroupedGEMM{A: x, B: Weights{Discrete: []*graph.Value{x, x, x, x}}, PaddedOffsets: offsets, Alignment: 1}.Apply()
		return []*graph.Value{Add(x, x, x), Linear(x, x, LinearConfig{Bias: p}), Concat(x, x), RMSNorm(x, p), d, c, discrete}
	}, map[string]any{"offsets": []int32{1, 1, 3, 4}})
}

// TestExtremes_Gradients: with respect to values between, twice, and of the same value twice.
func TestExtremes_Gradients(t *testing.T) {
	g := graph.New("g")
	x := g.Input("x", dtype.Float32, graph.UpTo(3), 2)
	y := Scale(x, 3)
	z := Scale(y, 5)
	type grad struct {
		name string
		v    *graph.Value
		want float32
	}
	one := func(of []*graph.Value, seeds []*graph.Value, wrt *graph.Value) *graph.Value {
		return g.GradientsFrom(of, seeds, wrt).Value[0]
	}
	both := g.GradientsFrom([]*graph.Value{z}, nil, x, y, z, x)
	cases := []grad{
		{"of a value between", one([]*graph.Value{z}, nil, y), 5},
		{"of the value itself", one([]*graph.Value{z}, nil, z), 1},
		{"taken again", one([]*graph.Value{z}, nil, x), 15},
		{"the value twice", one([]*graph.Value{z, z}, nil, x), 30},
		{"the value and one before it", one([]*graph.Value{z, y}, nil, x), 18},
		{"a seed that is the value", one([]*graph.Value{z, z}, []*graph.Value{z, nil}, y), 5 * 16},
		{"several at once", both.Value[0], 15}, {"several at once", both.Value[1], 5}, {"several at once", both.Value[2], 1}, {"one of them twice", both.Value[3], 15},
	}
	for i, c := range cases {
		g.Output(fmt.Sprint(i), c.v)
	}
	e := start(t, g, nil, map[*graph.Value]any{x: []float32{1, 1, 1, 1}})
	must(t, e.Replay(t.Context()))
	for _, c := range cases {
		if got := fetch[float32](t, e, c.v); !slices.Equal(got, slices.Repeat([]float32{c.want}, 4)) {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}

// TestExtremes_GradsMadeByHand: what takes gradients refuses those that no graph made, with a clear error.
func TestExtremes_GradsMadeByHand(t *testing.T) {
	for _, name := range []string{"nil", "empty", "by hand", "one too few", "one too many"} {
		for what, use := range map[string]func(gr *graph.Grads) *graph.Value{
			"AdamW":      func(gr *graph.Grads) *graph.Value { return AdamW(gr) },
			"SGD":        func(gr *graph.Grads) *graph.Value { return SGD(gr) },
			"Accumulate": func(gr *graph.Grads) *graph.Value { return SGD(Accumulate(gr, 2)) },
			"Clip": func(gr *graph.Grads) *graph.Value {
				gr, _ = ClipGlobalNorm(gr, 1)
				return SGD(gr)
			},
		} {
			g, vars := graph.New("g"), graph.NewVars(1)
			p := vars.Param("p", 2)
			made := g.GradientsFrom([]*graph.Value{Scale(g.Use(p), 2)}, nil, p)
			gr := map[string]*graph.Grads{
				"nil": nil, "empty": {}, "by hand": {Of: []*graph.Value{p}, Value: []*graph.Value{p}},
				"one too few": made.With(nil), "one too many": made.With(append(made.Value, made.Value...)),
			}[name]
			if v := use(gr); !errors.Is(v.Err(), graph.ErrUsage) {
				t.Errorf("%s of gradients %s: got error %v, want one of usage", what, name, v.Err())
			}
		}
	}
}

// TestWGrad_RefusesManyOutputs: the outputs of a dimension that no number of experts reaches are not even counted.
func TestWGrad_RefusesManyOutputs(t *testing.T) {
	g := graph.New("g")
	x := g.Input("x", dtype.Float32, 8, 8)
	WGrad{A: x, B: x, Offsets: g.Input("offsets", dtype.Int32, 1<<40), AMajorM: true, Discrete: true}.Apply()
	if !errors.Is(g.Err(), graph.ErrShape) {
		t.Errorf("got %v", g.Err())
	}
}

// TestEmbedding_NoIDs: tokens of no ids have no vectors, and the table a gradient of zeros.
func TestEmbedding_NoIDs(t *testing.T) {
	g, vars := graph.New("g"), graph.NewVars(1)
	table := vars.Param("table", 5, 3)
	y := Embedding(g.Input("ids", dtype.Int32, 4, 0), table)
	dtable := g.Output("dtable", g.GradientsFrom([]*graph.Value{y}, nil, table).Value[0])
	must(t, g.Err())
	p, err := g.Compile(host.Device{}, graph.Options{Debug: graph.Debug{Poison: true}})
	must(t, err)
	e, err := p.Exec(vars)
	must(t, err)
	defer e.Close()
	must(t, e.Write(y.Producer().In(0), []int32{}))
	must(t, e.Replay(t.Context()))
	if got := fetch[float32](t, e, dtable); !slices.Equal(got, make([]float32, 15)) {
		t.Errorf("the table's gradient is %v", got)
	}
}
