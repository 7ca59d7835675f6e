package nodes

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

func TestConcat_Host(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 1))
	for _, dt := range formats {
		for _, widths := range [][]int{{1, 1}, {3, 5, 2}, {0, 4}, {700, 30, 1, 9}} {
			const capacity = 40
			g := graph.New("concat")
			total := 0
			var xs []*graph.Value
			for i, w := range widths {
				xs = append(xs, g.Input(fmt.Sprintf("x%d", i), dt, graph.UpTo(capacity), max(1, w)))
				if w == 0 {
					xs[i] = Columns(xs[i], 1, 1)
				}
				total += w
			}
			y := Concat(xs...)
			part := Columns(y, 1, total-1)
			back := graph.Apply(padCols{From: 1, Total: total}, part)[0]
			tr := try(t, g, nil, nil, y, part, back)
			for _, rows := range rowCounts(capacity) {
				var in [][]float64
				for i, w := range widths {
					in = append(in, random(r, dt, rows*w))
					x, v := xs[i], in[i]
					if w == 0 {
						x, v = x.Producer().In(0), random(r, dt, rows)
					}
					tr.check(tr.exec.Write(x, v))
				}
				tr.run()
				var want, wantPart, wantBack []float64
				for row := range rows {
					var line []float64
					for i, w := range widths {
						line = append(line, in[i][row*w:(row+1)*w]...)
					}
					want = append(want, line...)
					wantPart = append(wantPart, line[1:total-1]...)
					line[0], line[total-1] = 0, 0
					wantBack = append(wantBack, line...)
				}
				what := fmt.Sprintf("%v rows %d", widths, rows)
				near(t, what, dt, tr.floats(y), want, 0)
				near(t, what, dt, tr.floats(part), wantPart, 0)
				near(t, what, dt, tr.floats(back), wantBack, 0)
			}
		}
	}
}

func TestConcat_Grad(t *testing.T) {
	vars := graph.NewVars(4)
	a := vars.ParamOf("a", dtype.Float64, graph.Normal(1), 5, 3)
	b := vars.ParamOf("b", dtype.Float64, graph.Normal(1), 5, 2)
	checkGrads(t, vars, func(g *graph.Graph) []*graph.Value {
		n := g.Input("n", dtype.Int32, 1)
		cut := func(v *graph.Value) *graph.Value { return graph.Apply(firstRows{}, g.Use(v), n)[0] }
		x := cut(a)
		y := graph.Apply(square{Factor: 2}, Concat(x, cut(b), x))[0]
		return []*graph.Value{y, Columns(y, 2, 6), graph.Apply(padCols{From: 1, Total: 9}, y)[0]}
	}, map[string]any{"n": []int32{4}})
}

func TestConcat_Refuses(t *testing.T) {
	for _, c := range []struct {
		what    string
		kind    error
		operand string
		build   func(g *graph.Graph, x *graph.Value)
	}{
		{"rows", graph.ErrShape, "x2", func(g *graph.Graph, x *graph.Value) { Concat(x, g.Input("y", dtype.Float32, 5, 2)) }},
		{"counts", graph.ErrShape, "x2", func(g *graph.Graph, x *graph.Value) { Concat(x, g.Input("y", dtype.Float32, graph.UpTo(4), 2)) }},
		{"rank", graph.ErrShape, "x2", func(g *graph.Graph, x *graph.Value) { Concat(x, g.Input("y", dtype.Float32, 4)) }},
		{"format", graph.ErrDType, "x2", func(g *graph.Graph, x *graph.Value) { Concat(x, g.Input("y", dtype.BFloat16, 4, 2)) }},
		{"half bytes", graph.ErrDType, "x1", func(g *graph.Graph, _ *graph.Value) { y := g.Input("y", dtype.E2M1, 4, 2); Concat(y, y) }},
		{"beyond", graph.ErrShape, "columns", func(_ *graph.Graph, x *graph.Value) { Columns(x, 2, 7) }},
		{"backwards", graph.ErrShape, "columns", func(_ *graph.Graph, x *graph.Value) { Columns(x, 3, 2) }},
		{"negative", graph.ErrShape, "columns", func(_ *graph.Graph, x *graph.Value) { Columns(x, -1, 2) }},
		{"no place", graph.ErrShape, "from", func(_ *graph.Graph, x *graph.Value) { graph.Apply(padCols{From: 2, Total: 7}, x) }},
	} {
		g := graph.New("refuses")
		c.build(g, g.Input("x", dtype.Float32, 4, 6))
		refuses(t, c.what, g, c.kind, c.operand)
	}
	if err := Concat().Err(); !errors.Is(err, graph.ErrUsage) {
		t.Errorf("concat of nothing: got %v", err)
	}
	g := graph.New("whole")
	if x := g.Input("x", dtype.Float32, 4, 6); Columns(x, 0, 6) != x || Concat(x) != x {
		t.Error("all columns of x, or x alone, are x")
	}
}
