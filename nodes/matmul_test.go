package nodes

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// naiveMatmul returns op(a) op(b) + bias in float64; a is (m,k) after op, b (k,n).
func naiveMatmul(transA, transB bool, m, k, n int, a, b, bias []float64) []float64 {
	y := make([]float64, m*n)
	for i := range m {
		for j := range n {
			for p := range k {
				x, z := i*k+p, p*n+j
				if transA {
					x = p*m + i
				}
				if transB {
					z = j*k + p
				}
				y[i*n+j] += a[x] * b[z]
			}
			if bias != nil {
				y[i*n+j] += bias[j]
			}
		}
	}
	return y
}

func TestLinear_Host(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	for _, dt := range formats {
		for _, s := range []struct{ t, k, n int }{{1, 1, 1}, {1, 8, 3}, {5, 7, 9}, {130, 33, 40}, {9, 260, 530}} {
			for _, bias := range []bool{false, true} {
				g := graph.New("linear")
				x := g.Input("x", dt, graph.UpTo(s.t), s.k)
				w := g.Input("w", dt, s.n, s.k)
				wide := dt
				if dt != dtype.Float64 {
					wide = dtype.Float32
				}
				in := data{w: random(r, dt, s.n*s.k)}
				cfg := LinearConfig{}
				var bv []float64
				if bias {
					cfg.Bias = g.Input("bias", wide, s.n)
					bv = random(r, wide, s.n)
					in[cfg.Bias] = bv
				}
				y := Linear(x, w, cfg)
				cfg.DType = wide
				z := Linear(x, w, cfg)
				tr := try(t, g, nil, in, y, z)
				for _, rows := range rowCounts(s.t) {
					xv := random(r, dt, rows*s.k)
					tr.check(tr.exec.Write(x, xv))
					tr.run()
					want := naiveMatmul(false, true, rows, s.k, s.n, xv, in[w].([]float64), bv)
					what := fmt.Sprintf("%v rows %d bias %v", s, rows, bias)
					near(t, what, dt, tr.floats(y), want, 2*slack(dt))
					near(t, what, wide, tr.floats(z), want, 2*slack(dt))
				}
			}
		}
	}
}

// TestMatmul_Host: every pair of transposes; with TransA the sum runs over the rows in use.
func TestMatmul_Host(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for _, dt := range formats {
		for _, op := range []matmul{{}, {TransB: true}, {TransA: true}, {TransA: true, TransB: true}} {
			op.DType = dt
			m, k, n := 140, 20, 530
			a, b := []int{m, k}, []int{k, n}
			if op.TransA {
				a = []int{graph.UpTo(k), m}
			}
			if op.TransB {
				b = []int{n, k}
			} else if op.TransA {
				b[0] = graph.UpTo(k)
			}
			g := graph.New("matmul")
			if op.TransA && op.TransB {
				a[0] = k
			}
			x, w := g.Input("a", dt, a...), g.Input("b", dt, b...)
			y := graph.Apply(op, x, w)[0]
			tr := try(t, g, nil, nil, y)
			counts := []int{k}
			if op.TransA && !op.TransB {
				counts = rowCounts(k)
			}
			for _, used := range counts {
				av, bv := random(r, dt, used*m), random(r, dt, used*n)
				tr.check(tr.exec.Write(x, av))
				tr.check(tr.exec.Write(w, bv))
				tr.run()
				near(t, fmt.Sprintf("%+v K %d", op, used), dt, tr.floats(y),
					naiveMatmul(op.TransA, op.TransB, m, used, n, av, bv, nil), 2*slack(dt))
			}
		}
	}
}

// TestLinear_Mixed: a float32 variable beside bf16 activations is cast once; its gradient is float32.
func TestLinear_Mixed(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 9))
	vars := graph.NewVars(2)
	w := vars.Param("w", 6, 8)
	bias := vars.ParamOf("bias", dtype.Float32, graph.Normal(1), 6)
	g := graph.New("mixed")
	x := g.Input("x", dtype.BFloat16, graph.UpTo(10), 8)
	dy := g.Input("dy", dtype.BFloat16, graph.UpTo(10), 6)
	y := Linear(x, w, LinearConfig{Bias: bias})
	grads := g.GradientsFrom([]*graph.Value{y, Linear(x, w)}, []*graph.Value{dy, dy}, x, w, bias)
	casts := 0
	for _, n := range g.Nodes() {
		if _, ok := n.Op().(cast); ok && n.In(0).Kind() == graph.Param {
			casts++
		}
	}
	if casts != 1 {
		t.Errorf("got %d casts of w for two products, want 1", casts)
	}
	xv, dv := random(r, dtype.BFloat16, 7*8), random(r, dtype.BFloat16, 7*6)
	tr := try(t, g, vars, data{x: xv, dy: dv}, grads.Value...).run()
	want := naiveMatmul(true, false, 6, 7, 8, dv, xv, nil)
	for i := range want {
		want[i] *= 2
	}
	near(t, "dw", dtype.Float32, tr.floats(grads.Value[1]), want, 1e-6)
	sums := make([]float64, 6)
	for i, v := range dv {
		sums[i%6] += v
	}
	near(t, "dbias", dtype.Float32, tr.floats(grads.Value[2]), sums, 1e-6)
	if got := grads.Value[0].DType(); got != dtype.BFloat16 {
		t.Errorf("dx: got %s, want bf16", got)
	}
}

func TestLinear_Grad(t *testing.T) {
	vars := graph.NewVars(3)
	normal := func(name string, shape ...int) *graph.Value {
		return vars.ParamOf(name, dtype.Float64, graph.Normal(1), shape...)
	}
	x, w, w2, bias := normal("x", 5, 4), normal("w", 3, 4), normal("w2", 4, 2), normal("bias", 3)
	checkGrads(t, vars, func(g *graph.Graph) []*graph.Value {
		cut := graph.Apply(firstRows{}, g.Use(x), g.Input("n", dtype.Int32, 1))[0]
		y := Linear(cut, w, LinearConfig{Bias: bias})
		z := graph.Apply(matmul{DType: dtype.Float64}, g.Use(x), w2)[0]
		return []*graph.Value{graph.Apply(square{Factor: 2}, y)[0], graph.Apply(square{Factor: 2}, z)[0]}
	}, map[string]any{"n": []int32{3}})
}

func TestLinear_Refuses(t *testing.T) {
	input := func(g *graph.Graph, name string, dt dtype.DType, dims ...int) *graph.Value {
		return g.Input(name, dt, dims...)
	}
	for _, c := range []struct {
		what    string
		kind    error
		operand string
		build   func(g *graph.Graph, x *graph.Value)
	}{
		{"K", graph.ErrShape, "b", func(g *graph.Graph, x *graph.Value) { Linear(x, input(g, "w", dtype.Float32, 3, 6)) }},
		{"rank", graph.ErrShape, "b", func(g *graph.Graph, x *graph.Value) { Linear(x, input(g, "w", dtype.Float32, 5)) }},
		{"rows of a weight", graph.ErrShape, "b", func(g *graph.Graph, x *graph.Value) { Linear(x, input(g, "w", dtype.Float32, graph.UpTo(3), 5)) }},
		{"format", graph.ErrDType, "b", func(g *graph.Graph, x *graph.Value) { Linear(x, input(g, "w", dtype.BFloat16, 3, 5)) }},
		{"integers", graph.ErrDType, "a", func(g *graph.Graph, _ *graph.Value) {
			Linear(input(g, "y", dtype.Int32, 2, 2), input(g, "w", dtype.Int32, 2, 2))
		}},
		{"output", graph.ErrDType, "dtype", func(g *graph.Graph, x *graph.Value) {
			Linear(x, input(g, "w", dtype.Float32, 3, 5), LinearConfig{DType: dtype.Float64})
		}},
		{"bias", graph.ErrShape, "bias", func(g *graph.Graph, x *graph.Value) {
			Linear(x, input(g, "w", dtype.Float32, 3, 5), LinearConfig{Bias: input(g, "b", dtype.Float32, 4)})
		}},
		{"no weight", graph.ErrUsage, "b", func(_ *graph.Graph, x *graph.Value) { Linear(x, nil) }},
	} {
		g := graph.New("refuses")
		c.build(g, g.Input("x", dtype.Float32, 4, 5))
		refuses(t, c.what, g, c.kind, c.operand)
	}
}

// TestMatmul_NoRows: a sum over no rows is zero, also where the caller's own empty slices are used in place.
func TestMatmul_NoRows(t *testing.T) {
	for _, empty := range []any{[]float32{}, []float64{}, []uint16{}} {
		dt := map[string]dtype.DType{"[]float32": dtype.Float32, "[]float64": dtype.Float64, "[]uint16": dtype.BFloat16}[fmt.Sprintf("%T", empty)]
		g := graph.New("no rows")
		a, b := g.Input("a", dt, graph.UpTo(4), 300), g.Input("b", dt, graph.UpTo(4), 530)
		y := graph.Apply(matmul{TransA: true, DType: dt}, a, b)[0]
		z := graph.Apply(colSum{DType: dt}, a)[0]
		tr := try(t, g, nil, data{a: empty, b: empty}, y, z).run()
		near(t, "y", dt, tr.floats(y), make([]float64, 300*530), 0)
		near(t, "z", dt, tr.floats(z), make([]float64, 300), 0)
	}
}
