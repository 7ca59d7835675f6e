package nodes

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/host"
)

// TestAccumulate_Step: n micro-batches give the parameters, moments and steps, to the bit, of one step with the mean of
// the gradients; between, nothing moves.
func TestAccumulate_Step(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 9))
	updates := map[string]func(gr *graph.Grads) *graph.Value{
		"adamw": func(gr *graph.Grads) *graph.Value { return AdamW(gr, AdamWConfig{Rate: 0.1}) },
		"sgd":   func(gr *graph.Grads) *graph.Value { return SGD(gr, SGDConfig{Rate: 0.1, Momentum: 0.9}) },
		"clipped": func(gr *graph.Grads) *graph.Value {
			clipped, _ := ClipGlobalNorm(gr, 0.5)
			return AdamW(clipped, AdamWConfig{Schedule: Schedule{Kind: LinearDecay, Rate: 0.1, Total: 5}})
		},
	}
	for name, update := range updates {
		for _, dts := range [][2]dtype.DType{{dtype.Float64, dtype.Float64}, {dtype.Float32, dtype.Float32}, {dtype.BFloat16, dtype.BFloat16}, {dtype.Float32, dtype.BFloat16}} {
			const elems, every = 20000, 3
			wide := statType(dts[0])
			start := random(r, dts[0], elems)
			many := tryOptimizer(t, dts[0], dts[1], start, func(gr *graph.Grads) *graph.Value { return update(Accumulate(gr, every)) })
			one := tryOptimizer(t, dts[0], wide, start, update)
			for step := 1; step <= 3; step++ {
				mean := make([]float64, elems)
				for micro := range every {
					grad := random(r, dts[1], elems)
					for i, x := range grad {
						mean[i] = roundTo(wide, mean[i]+x)
					}
					before := state(many)
					n, _ := many.apply(grad)
					if micro < every-1 {
						if n != step-1 || !slices.EqualFunc(before, state(many), bytes.Equal) {
							t.Fatalf("%s %v: micro-batch %d of step %d: the optimizer acted (step %d)", name, dts, micro, step, n)
						}
					} else if n != step {
						t.Fatalf("%s %v: got step %d, want %d", name, dts, n, step)
					}
				}
				for i := range mean {
					mean[i] = roundTo(wide, mean[i]/every)
				}
				one.apply(mean)
				if !slices.EqualFunc(state(many), state(one), bytes.Equal) {
					t.Fatalf("%s %v: step %d: accumulated and single step differ", name, dts, step)
				}
			}
		}
	}
}

func roundTo(dt dtype.DType, x float64) float64 {
	if dt == dtype.Float64 {
		return x
	}
	return float64(float32(x))
}

// state returns the contents of all variables but those of the accumulation.
func state(o *optTrial) [][]byte {
	var all [][]byte
	for _, v := range append(o.vars.All(), o.vars.States()...) {
		switch {
		case v.Name() == "accum/micro" || v.Name() == "w/accum":
		case v.DType() == dtype.Int32:
			n := make([]int32, v.Elems())
			o.check(o.vars.Read(v, n))
			all = append(all, fmt.Append(nil, n))
		default:
			all = append(all, slices.Clone(bytesOf(o.variable(v.Name()))))
		}
	}
	return all
}

// TestAccumulate_Outputs: the gradients themselves stay what they are, the mean is the mean so far, and a result that
// the caller keeps is the caller's.
func TestAccumulate_Outputs(t *testing.T) {
	g, vars := graph.New("outputs"), graph.NewVars(1)
	w := vars.Param("w", 2)
	in := g.Input("grad", dtype.Float32, 2)
	grads := g.GradientsFrom([]*graph.Value{Add(g.Use(w), w)}, []*graph.Value{in}, w)
	acc := Accumulate(grads, 2)
	AdamW(acc)
	tr := try(t, g, vars, nil, grads.Value[0], acc.Value[0], acc.Ready)
	var kept [][]float64
	for i, c := range []struct {
		grad, mean []float64
		ready      float64
	}{{[]float64{1, 2}, []float64{2, 4}, 0}, {[]float64{3, 0}, []float64{4, 2}, 1}, {[]float64{5, 5}, []float64{10, 10}, 0}, {[]float64{0, 0}, []float64{5, 5}, 1}} {
		tr.check(tr.exec.Write(in, c.grad))
		tr.run()
		kept = append(kept, tr.floats(grads.Value[0]))
		near(t, fmt.Sprint("gradient ", i), dtype.Float32, kept[i], []float64{2 * c.grad[0], 2 * c.grad[1]}, 0)
		near(t, fmt.Sprint("mean ", i), dtype.Float32, tr.floats(acc.Value[0]), c.mean, 0)
		if ready, err := tr.exec.Scalar(acc.Ready); err != nil || ready != c.ready {
			t.Errorf("replay %d: ready: got %v (%v), want %v", i, ready, err, c.ready)
		}
	}
	near(t, "kept", dtype.Float32, kept[0], []float64{2, 4}, 0)
}

// TestAccumulate_Resume: a program that takes over in the middle of a step finishes it; one with fewer micro-batches
// starts anew.
func TestAccumulate_Resume(t *testing.T) {
	vars := graph.NewVars(1)
	w := vars.ParamOf("w", dtype.Float64, graph.Const(0), 1)
	for i, c := range []struct {
		every      int
		grad, want float64
	}{{3, 3, 0}, {3, 6, 0}, {3, 9, -6}, {4, 1, -6}, {4, 1, -6}, {4, 1, -6}, {2, 5, -6}, {2, 7, -12}} {
		g := graph.New("resume")
		in := g.Input("grad", dtype.Float64, 1)
		SGD(Accumulate(g.GradientsFrom([]*graph.Value{g.Use(w)}, []*graph.Value{in}, w), c.every), SGDConfig{Rate: 1})
		try(t, g, vars, data{in: []float64{c.grad}}).run()
		var got [1]float64
		if err := vars.Read(w, got[:]); err != nil || got[0] != c.want {
			t.Errorf("replay %d: got %v (%v), want %v", i, got[0], err, c.want)
		}
	}
}

func TestAccumulate_Refuses(t *testing.T) {
	for _, c := range []struct {
		what    string
		kind    error
		operand string
		build   func(gr *graph.Grads)
	}{
		{"every", graph.ErrShape, "every", func(gr *graph.Grads) { Accumulate(gr, 0) }},
		{"nested", graph.ErrUsage, "grads", func(gr *graph.Grads) { Accumulate(Accumulate(gr, 2), 2) }},
		{"twice", graph.ErrUsage, "grads", func(gr *graph.Grads) { Accumulate(gr, 2); Accumulate(gr, 2) }},
	} {
		g, vars := graph.New("refuses"), graph.NewVars(1)
		w := vars.Param("w", 3)
		c.build(g.GradientsFrom([]*graph.Value{g.Use(w)}, nil, w))
		refuses(t, c.what, g, c.kind, c.operand)
	}
	g, vars := graph.New("one"), graph.NewVars(1)
	w := vars.Param("w", 3)
	if gr := g.GradientsFrom([]*graph.Value{g.Use(w)}, nil, w); Accumulate(gr, 1) != gr {
		t.Error("one micro-batch a step: got other gradients")
	}
	if Accumulate(nil, 2) != nil {
		t.Error("no gradients: got some")
	}
}

// buildModel is a small language model with every operator of this group, in bf16 with float32 master copies of
// the head's weight.
func buildModel(g *graph.Graph, vars *graph.Vars) (tokens, labels, loss, norm *graph.Value) {
	tokens = g.Input("tokens", dtype.Int32, graph.UpTo(64), 4)
	labels = g.Input("labels", dtype.Int32, graph.UpTo(64))
	x := Embedding(tokens, vars.ParamOf("embed", dtype.BFloat16, graph.Normal(1), 32, 8))
	x = RMSNorm(x, vars.ParamOf("norm", dtype.Float32, graph.Const(1), 32))
	left := Linear(x, vars.Param("left", 24, 32), LinearConfig{Bias: vars.ParamOf("bias", dtype.Float32, graph.Const(0), 24)})
	x = Concat(left, Columns(x, 3, 11))
	logits := Linear(x, vars.ParamOf("head", dtype.BFloat16, graph.Normal(0.2), 32, 32), LinearConfig{DType: dtype.Float32})
	loss = g.Output("loss", CrossEntropy(logits, labels))
	grads := Accumulate(g.Gradients(loss, vars.All()...), 2)
	grads, norm = ClipGlobalNorm(grads, 1)
	AdamW(grads, AdamWConfig{Rate: 0.02, Schedule: Schedule{Warmup: 5, Total: 200, Kind: CosineDecay}})
	return tokens, labels, loss, g.Output("norm", norm)
}

// TestModel_Trains: the loss falls, replays allocate nothing, and streams, jitter and poison change no bit.
func TestModel_Trains(t *testing.T) {
	var first []float64
	for _, opt := range []graph.Options{
		{Streams: 1},
		{Streams: 4, ForceStreams: true, Debug: graph.Debug{Poison: true, Offsets: true}},
		{Streams: 3, ForceStreams: true, NoFuse: true, Debug: graph.Debug{Poison: true, Jitter: 7}},
	} {
		g, vars := graph.New("model"), graph.NewVars(11)
		tokens, labels, loss, norm := buildModel(g, vars)
		prog, err := g.Compile(host.Device{}, opt)
		if err != nil {
			t.Fatal(err)
		}
		exec, err := prog.Exec(vars)
		if err != nil {
			t.Fatal(err)
		}
		tr := &trial{t: t, exec: exec}
		r := rand.New(rand.NewPCG(1, 1))
		var curve []float64
		for range 80 {
			rows := 1 + r.IntN(64)
			ids, next := randomIDs(r, 4*rows, 32), make([]int32, rows)
			for i := range next {
				next[i] = ids[4*i+1]
			}
			tr.check(exec.Write(tokens, ids))
			tr.check(exec.Write(labels, next))
			tr.run()
			curve = append(curve, tr.floats(loss)[0], tr.floats(norm)[0])
		}
		if opt.Debug.Jitter == 0 && !raceEnabled {
			if n := testing.AllocsPerRun(50, func() { tr.check(exec.Replay(context.Background())) }); n > 0 {
				t.Errorf("%+v: a replay allocates %v times", opt, n)
			}
		}
		tr.check(exec.Close())
		if first == nil {
			first = curve
			if a, b := curve[0], curve[len(curve)-2]; !(b < a/2) {
				t.Errorf("the loss went from %v to %v", a, b)
			}
		} else if !slices.Equal(first, curve) {
			t.Errorf("%+v: other losses or norms than with one stream", opt)
		}
	}
}
