package nodes

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// naiveRMSNorm returns y, rstd, and the gradients for dy, in float64.
func naiveRMSNorm(x, w, dy []float64, eps float64) (y, rstd, dx, dw []float64) {
	width := len(w)
	y, dx, dw = make([]float64, len(x)), make([]float64, len(x)), make([]float64, width)
	for at := 0; at < len(x); at += width {
		var sum, dot float64
		for j := range width {
			sum += x[at+j] * x[at+j]
		}
		rs := math.Pow(sum/float64(width)+eps, -0.5)
		rstd = append(rstd, rs)
		for j := range width {
			y[at+j] = x[at+j] * rs * w[j]
			dw[j] += dy[at+j] * x[at+j] * rs
			dot += dy[at+j] * w[j] * x[at+j]
		}
		for j := range width { // d rstd / dx_j = -rstd^3 x_j / H
			dx[at+j] = dy[at+j]*w[j]*rs - dot*math.Pow(rs, 3)*x[at+j]/float64(width)
		}
	}
	return y, rstd, dx, dw
}

func TestRMSNorm_Host(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 1))
	for _, dt := range formats {
		wide := statType(dt)
		for _, weightType := range []dtype.DType{dt, wide} {
			for _, s := range []struct{ t, h int }{{1, 4}, {3, 7}, {200, 96}, {65, 1030}} {
				g := graph.New("rmsnorm")
				x, dy := g.Input("x", dt, graph.UpTo(s.t), s.h), g.Input("dy", dt, graph.UpTo(s.t), s.h)
				w := g.Input("w", weightType, s.h)
				y := RMSNorm(x, w, RMSNormConfig{Eps: 1e-3})
				rstd := y.Producer().Out(1)
				z := RMSNorm(x, w, RMSNormConfig{Eps: 1e-3, DType: wide})
				grads := g.GradientsFrom([]*graph.Value{y}, []*graph.Value{dy}, x, w)
				if got := grads.Value[1].DType(); got != weightType {
					t.Errorf("dweight: got %s, want %s", got, weightType)
				}
				wv := random(r, weightType, s.h)
				tr := try(t, g, nil, data{w: wv}, y, rstd, z, grads.Value[0], grads.Value[1])
				for _, rows := range rowCounts(s.t) {
					xv, dv := random(r, dt, rows*s.h), random(r, dt, rows*s.h)
					tr.check(tr.exec.Write(x, xv))
					tr.check(tr.exec.Write(dy, dv))
					tr.run()
					wy, wr, wdx, wdw := naiveRMSNorm(xv, wv, dv, 1e-3)
					what := fmt.Sprintf("%v %s rows %d ", s, weightType, rows)
					near(t, what+"y", dt, tr.floats(y), wy, slack(dt))
					near(t, what+"y wide", wide, tr.floats(z), wy, slack(dt))
					near(t, what+"rstd", wide, tr.floats(rstd), wr, slack(dt))
					near(t, what+"dx", dt, tr.floats(grads.Value[0]), wdx, slack(dt))
					near(t, what+"dweight", weightType, tr.floats(grads.Value[1]), wdw, slack(dt))
				}
			}
		}
	}
}

// TestRMSNorm_Range: rows of zeros, huge and tiny rows have the values of the formula; a NaN stays in its row.
func TestRMSNorm_Range(t *testing.T) {
	g := graph.New("range")
	x := g.Input("x", dtype.Float32, 5, 2)
	y := RMSNorm(x, g.Input("w", dtype.Float32, 2))
	nan := math.NaN()
	tr := try(t, g, nil, data{x: []float64{0, 0, 1e30, 1e30, nan, 1, 3, 3, 1e-30, 0}, y.Producer().In(1): []float64{1, 2}}, y).run()
	near(t, "y", dtype.Float32, tr.floats(y), []float64{0, 0, 1, 2, nan, nan, 1, 2, 0, 0}, 1e-6)
}

func TestRMSNorm_Grad(t *testing.T) {
	vars := graph.NewVars(6)
	x := vars.ParamOf("x", dtype.Float64, graph.Normal(1), 6, 5)
	w := vars.ParamOf("w", dtype.Float64, graph.Normal(1), 5)
	checkGrads(t, vars, func(g *graph.Graph) []*graph.Value {
		cut := graph.Apply(firstRows{}, g.Use(x), g.Input("n", dtype.Int32, 1))[0]
		y := RMSNorm(cut, w)
		return []*graph.Value{y, RMSNorm(g.Use(x), w, RMSNormConfig{Eps: 0.5}), graph.Apply(square{Factor: 2}, y)[0]}
	}, map[string]any{"n": []int32{4}})
}

func TestRMSNorm_Refuses(t *testing.T) {
	for _, c := range []struct {
		what    string
		kind    error
		operand string
		build   func(g *graph.Graph, x, w *graph.Value)
	}{
		{"rank", graph.ErrShape, "x", func(_ *graph.Graph, _, w *graph.Value) { RMSNorm(w, w) }},
		{"width", graph.ErrShape, "weight", func(g *graph.Graph, x, _ *graph.Value) { RMSNorm(x, g.Input("v", dtype.Float32, 4)) }},
		{"f64 weight", graph.ErrDType, "weight", func(g *graph.Graph, x, _ *graph.Value) { RMSNorm(x, g.Input("v", dtype.Float64, 6)) }},
		{"integers", graph.ErrDType, "x", func(g *graph.Graph, _, w *graph.Value) { RMSNorm(g.Input("i", dtype.Int32, 4, 6), w) }},
		{"output", graph.ErrDType, "dtype", func(_ *graph.Graph, x, w *graph.Value) { RMSNorm(x, w, RMSNormConfig{DType: dtype.E4M3}) }},
		{"eps", graph.ErrShape, "eps", func(_ *graph.Graph, x, w *graph.Value) { RMSNorm(x, w, RMSNormConfig{Eps: -1}) }},
		{"eps NaN", graph.ErrShape, "eps", func(_ *graph.Graph, x, w *graph.Value) { RMSNorm(x, w, RMSNormConfig{Eps: math.NaN()}) }},
		{"gradient of rstd", graph.ErrUnsupported, "gradient", func(g *graph.Graph, x, w *graph.Value) {
			g.GradientsFrom([]*graph.Value{RMSNorm(x, w).Producer().Out(1)}, nil, x)
		}},
	} {
		g := graph.New("refuses")
		c.build(g, g.Input("x", dtype.Float32, 4, 6), g.Input("w", dtype.Float32, 6))
		refuses(t, c.what, g, c.kind, c.operand)
	}
}
