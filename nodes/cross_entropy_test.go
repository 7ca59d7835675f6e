package nodes

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/host"
)

// naiveCrossEntropy returns the loss, each row's largest logit and log-sum, and the gradient of up*loss, in float64.
func naiveCrossEntropy(x []float64, labels []int32, vocab, ignore int, up float64) (loss float64, stats, dx []float64) {
	n := 0
	dx = make([]float64, len(x))
	for _, l := range labels {
		if int(l) != ignore {
			n++
		}
	}
	for t, l := range labels {
		row := x[t*vocab : (t+1)*vocab]
		top := row[0]
		for _, v := range row {
			top = math.Max(top, v)
		}
		var sum float64
		for _, v := range row {
			sum += math.Exp(v - top)
		}
		stats = append(stats, top, math.Log(sum))
		if int(l) == ignore {
			continue
		}
		loss += (top - row[l] + math.Log(sum)) / float64(n)
		for j, v := range row {
			dx[t*vocab+j] = math.Exp(v-top) / sum
			if j == int(l) {
				dx[t*vocab+j]--
			}
			dx[t*vocab+j] *= up / float64(n)
		}
	}
	if n == 0 {
		loss = math.NaN()
	}
	return loss, stats, dx
}

func TestCrossEntropy_Host(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 1))
	for _, dt := range formats {
		for _, s := range []struct{ t, v, ignore int }{{1, 1, -100}, {7, 10, 3}, {300, 100, -100}, {50, 3000, 0}} {
			g := graph.New("cross entropy")
			logits := g.Input("logits", dt, graph.UpTo(s.t), s.v)
			labels := g.Input("labels", dtype.Int32, graph.UpTo(s.t))
			loss := CrossEntropy(logits, labels, CrossEntropyConfig{IgnoreIndex: &s.ignore})
			stats := loss.Producer().Out(1)
			dlogits := g.Gradients(loss.Scale(0.5), logits).Value[0]
			tr := try(t, g, nil, nil, loss, stats, dlogits)
			for _, rows := range rowCounts(s.t) {
				xv, lv := random(r, dt, rows*s.v), randomIDs(r, rows, s.v)
				for i := range lv {
					if i%5 == 3 {
						lv[i] = int32(s.ignore)
					}
				}
				tr.check(tr.exec.Write(logits, xv))
				tr.check(tr.exec.Write(labels, lv))
				tr.run()
				wl, we, wd := naiveCrossEntropy(xv, lv, s.v, s.ignore, 0.5)
				what := fmt.Sprintf("%v rows %d ", s, rows)
				near(t, what+"loss", statType(dt), tr.floats(loss), []float64{wl}, slack(dt))
				near(t, what+"stats", statType(dt), tr.floats(stats), we, slack(dt))
				got := tr.floats(dlogits)
				near(t, what+"dlogits", dt, got, wd, slack(dt))
				for i, l := range lv {
					for j := range s.v {
						if x := got[i*s.v+j]; int(l) == s.ignore && (x != 0 || math.Signbit(x)) {
							t.Fatalf("%s: ignored row %d: got %v, want 0", what, i, x)
						}
					}
				}
			}
		}
	}
}

// TestCrossEntropy_Range: huge logits, all ignored, a NaN in one row.
func TestCrossEntropy_Range(t *testing.T) {
	inf, nan := math.Inf(1), math.NaN()
	for _, c := range []struct {
		name   string
		x      []float64
		labels []int32
		loss   float64
		dx     []float64
	}{
		{"huge", []float64{1e30, -1e30, 88.5, 88.5}, []int32{0, 1}, math.Ln2 / 2, []float64{0, 0, 0.25, -0.25}},
		{"all ignored", []float64{1, 2, 3, 4}, []int32{-100, -100}, nan, []float64{0, 0, 0, 0}},
		{"impossible", []float64{0, -inf, 0, 0}, []int32{0, 0}, math.Ln2 / 2, []float64{0, 0, -0.25, 0.25}},
		{"NaN", []float64{nan, 0, 0, 0}, []int32{0, 0}, nan, []float64{nan, nan, -0.25, 0.25}},
		{"ignored NaN", []float64{nan, 0, 0, 0}, []int32{-100, 0}, math.Ln2, []float64{0, 0, -0.5, 0.5}},
	} {
		g := graph.New("range")
		logits, labels := g.Input("logits", dtype.Float32, 2, 2), g.Input("labels", dtype.Int32, 2)
		loss := CrossEntropy(logits, labels)
		dlogits := g.Gradients(loss, logits).Value[0]
		tr := try(t, g, nil, data{logits: c.x, labels: c.labels}, loss, dlogits).run()
		near(t, c.name, dtype.Float32, tr.floats(loss), []float64{c.loss}, 1e-6)
		near(t, c.name, dtype.Float32, tr.floats(dlogits), c.dx, 1e-6)
	}
}

// TestCrossEntropy_OutOfRange: an error in debug mode; else NaN in the loss and in that row's gradient.
func TestCrossEntropy_OutOfRange(t *testing.T) {
	for _, bad := range []int32{-1, 2, 1 << 30, -1 << 31} {
		for _, debug := range []bool{true, false} {
			g := graph.New("range")
			logits, labels := g.Input("logits", dtype.BFloat16, 2, 2), g.Input("labels", dtype.Int32, 2)
			loss := g.Output("loss", CrossEntropy(logits, labels))
			dlogits := g.Output("dlogits", g.Gradients(loss, logits).Value[0])
			prog, err := g.Compile(host.Device{}, graph.Options{Debug: graph.Debug{Offsets: debug, Poison: true}})
			if err != nil {
				t.Fatal(err)
			}
			exec, err := prog.Exec(nil)
			if err != nil {
				t.Fatal(err)
			}
			defer exec.Close()
			tr := &trial{t: t, exec: exec}
			tr.check(exec.Write(logits, []float64{1, 1, 1, 1}))
			tr.check(exec.Write(labels, []int32{1, bad}))
			if debug {
				err := exec.Replay(context.Background())
				if !errors.Is(err, graph.ErrShape) || !strings.Contains(err.Error(), fmt.Sprintf(`cross_entropy "cross_entropy": labels: got %d in row 1`, bad)) {
					t.Errorf("label %d: got error %v, want one that names the node, the row and the label", bad, err)
				}
				continue
			}
			tr.run()
			nan := math.NaN()
			near(t, "loss", dtype.Float32, tr.floats(loss), []float64{nan}, 0)
			near(t, "dlogits", dtype.BFloat16, tr.floats(dlogits), []float64{0.25, -0.25, nan, nan}, 1e-6)
		}
	}
}

func TestCrossEntropy_Grad(t *testing.T) {
	vars := graph.NewVars(6)
	x := vars.ParamOf("x", dtype.Float64, graph.Normal(2), 6, 5)
	checkGrads(t, vars, func(g *graph.Graph) []*graph.Value {
		n := g.Input("n", dtype.Int32, 1)
		logits := graph.Apply(firstRows{}, g.Use(x), n)[0]
		labels := graph.Apply(firstRows{}, g.Input("labels", dtype.Int32, 6), n)[0]
		all := CrossEntropy(g.Use(x), g.Input("all", dtype.Int32, 6), CrossEntropyConfig{IgnoreIndex: new(0)})
		return []*graph.Value{CrossEntropy(logits, labels), all.Scale(3)}
	}, map[string]any{"n": []int32{4}, "labels": []int32{3, -100, 0, 4, 9, 9}, "all": []int32{0, 1, 2, 3, 4, 0}})
}

func TestCrossEntropy_Refuses(t *testing.T) {
	for _, c := range []struct {
		what    string
		kind    error
		operand string
		build   func(g *graph.Graph, x *graph.Value)
	}{
		{"rank", graph.ErrShape, "logits", func(g *graph.Graph, _ *graph.Value) {
			CrossEntropy(g.Input("y", dtype.Float32, 4), g.Input("l", dtype.Int32, 4))
		}},
		{"no classes", graph.ErrShape, "logits", func(g *graph.Graph, _ *graph.Value) {
			CrossEntropy(g.Input("y", dtype.Float32, 4, 0), g.Input("l", dtype.Int32, 4))
		}},
		{"integers", graph.ErrDType, "logits", func(g *graph.Graph, _ *graph.Value) {
			CrossEntropy(g.Input("y", dtype.Int32, 4, 2), g.Input("l", dtype.Int32, 4))
		}},
		{"int64 labels", graph.ErrDType, "labels", func(g *graph.Graph, x *graph.Value) { CrossEntropy(x, g.Input("l", dtype.Int64, 4)) }},
		{"labels", graph.ErrShape, "labels", func(g *graph.Graph, x *graph.Value) { CrossEntropy(x, g.Input("l", dtype.Int32, 5)) }},
		{"label matrix", graph.ErrShape, "labels", func(g *graph.Graph, x *graph.Value) { CrossEntropy(x, g.Input("l", dtype.Int32, 4, 1)) }},
		{"counted labels", graph.ErrShape, "labels", func(g *graph.Graph, x *graph.Value) {
			CrossEntropy(x, g.Input("l", dtype.Int32, graph.UpTo(4)))
		}},
		{"ignore_index", graph.ErrShape, "ignore_index", func(g *graph.Graph, x *graph.Value) {
			CrossEntropy(x, g.Input("l", dtype.Int32, 4), CrossEntropyConfig{IgnoreIndex: new(1 << 40)})
		}},
		{"gradient of stats", graph.ErrUnsupported, "gradient", func(g *graph.Graph, x *graph.Value) {
			g.GradientsFrom([]*graph.Value{CrossEntropy(x, g.Input("l", dtype.Int32, 4)).Producer().Out(1)}, nil, x)
		}},
	} {
		g := graph.New("refuses")
		c.build(g, g.Input("x", dtype.Float32, 4, 6))
		refuses(t, c.what, g, c.kind, c.operand)
	}
}
