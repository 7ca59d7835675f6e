package nodes

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// tryClip clips the gradients x1, x2, ... of a sum by inputs that are those gradients.
func tryClip(t *testing.T, maxNorm float64, dts []dtype.DType, shapes [][]int) (tr *trial, in []*graph.Value, clipped *graph.Grads, norm *graph.Value) {
	t.Helper()
	g := graph.New("clip")
	var of []*graph.Value
	for i, dt := range dts {
		in = append(in, g.Input(fmt.Sprintf("g%d", i), dt, shapes[i]...))
		of = append(of, g.Input(fmt.Sprintf("x%d", i), dt, shapes[i]...))
	}
	grads := g.GradientsFrom(of, in, of...)
	clipped, norm = ClipGlobalNorm(grads, maxNorm)
	tr = try(t, g, nil, nil, append(append([]*graph.Value{norm}, clipped.Value...), grads.Value...)...)
	return tr, in, clipped, norm
}

func TestClipGlobalNorm_Host(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 1))
	for _, dts := range [][]dtype.DType{{dtype.Float64, dtype.Float64}, {dtype.Float32, dtype.Float32}, {dtype.BFloat16, dtype.Float32}, {dtype.Float16, dtype.BFloat16}} {
		for _, shapes := range [][][]int{{{1}, {1, 1}}, {{7, 5}, {graph.UpTo(9), 3}}, {{300, 70}, {40000}}} {
			for _, maxNorm := range []float64{0.5, 3, 1e9, math.Inf(1)} {
				tr, in, clipped, norm := tryClip(t, maxNorm, dts, shapes)
				for round := range 3 {
					var squares float64
					values := make([][]float64, 2)
					for i, v := range in {
						n := v.Elems()
						if v.Rows() != nil {
							n -= 3 * (2 * round) // fewer rows than capacity
						}
						values[i] = random(r, dts[i], n)
						tr.check(tr.exec.Write(v, values[i]))
						for _, x := range values[i] {
							squares += x * x
						}
					}
					tr.run()
					want := math.Sqrt(squares)
					what := fmt.Sprintf("%v %v max %g", dts, shapes, maxNorm)
					near(t, what+" norm", statType(dts[0]), tr.floats(norm), []float64{want}, slack(dts[0]))
					coef := math.Min(1, maxNorm/(want+1e-6))
					for i := range values {
						for j := range values[i] {
							values[i][j] *= coef
						}
						tol := slack(dts[0])
						if coef == 1 {
							tol = 0 // unchanged to the bit
						}
						near(t, what, dts[i], tr.floats(clipped.Value[i]), values[i], tol)
					}
				}
			}
		}
	}
}

// TestClipGlobalNorm_Torch: clip_grad_norm_ by hand, and its ways with norms that are not finite.
func TestClipGlobalNorm_Torch(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for _, c := range []struct{ in, want []float64 }{
		{[]float64{3, 4}, []float64{3 / (5 + 1e-6), 4 / (5 + 1e-6)}},
		{[]float64{0.3, -0.4}, []float64{0.3, -0.4}},
		{[]float64{0, 0}, []float64{0, 0}},
		{[]float64{nan, 1}, []float64{nan, nan}},
		{[]float64{-inf, 1}, []float64{nan, 0}},
		{[]float64{3e38, 3e38}, []float64{0, 0}}, // the norm, 4.2e38, is infinite in float32
		{[]float64{1e-30, 0}, []float64{1e-30, 0}},
	} {
		tr, in, clipped, _ := tryClip(t, 1, []dtype.DType{dtype.Float32}, [][]int{{2}})
		tr.check(tr.exec.Write(in[0], c.in))
		tr.run()
		near(t, fmt.Sprint(c.in), dtype.Float32, tr.floats(clipped.Value[0]), c.want, 1e-7)
	}
}

func TestClipGlobalNorm_Refuses(t *testing.T) {
	for _, maxNorm := range []float64{0, -1, math.NaN()} {
		g, vars := graph.New("refuses"), graph.NewVars(1)
		w := vars.Param("w", 3)
		ClipGlobalNorm(g.GradientsFrom([]*graph.Value{g.Use(w)}, nil, w), maxNorm)
		refuses(t, fmt.Sprint(maxNorm), g, graph.ErrShape, "max_norm")
	}
	g := graph.New("refuses")
	a, b := g.Input("a", dtype.Float32, 3), g.Input("b", dtype.Float64, 3)
	ClipGlobalNorm(g.GradientsFrom([]*graph.Value{a, b}, nil, a, b), 1)
	refuses(t, "f64 beside f32", g, graph.ErrDType, "x2")
	if _, norm := ClipGlobalNorm(nil, 1); !errors.Is(norm.Err(), graph.ErrUsage) {
		t.Errorf("no gradients: got %v", norm.Err())
	}
}
