package nodes

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/host"
	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/gonum"
)

// BenchmarkGroupedGEMM measures the host's grouped GEMM beside gonum's own Sgemm on the same shape, both on all
// cores: 8 experts with equal rows against one product of as many rows.
func BenchmarkGroupedGEMM(b *testing.B) {
	const e, m, n, k = 8, 1024, 512, 512
	flops := 2 * float64(m) * n * k
	r := rand.New(rand.NewPCG(1, 2))
	draw := func(n int) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(r.NormFloat64())
		}
		return x
	}
	a, w := draw(m*k), draw(e*n*k)
	report := func(b *testing.B) {
		b.ReportMetric(flops*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
	}
	for _, dt := range []dtype.DType{dtype.Float32, dtype.BFloat16} {
		b.Run(fmt.Sprint("moegraph/", dt), func(b *testing.B) {
			g := graph.New("gemm")
			va, vb := g.Input("a", dt, m, k), g.Input("b", dt, e, n, k)
			off := g.Input("offsets", dtype.Int32, e)
			d, _ := GroupedGEMM{A: va, B: Dense(vb), PaddedOffsets: off, DType: dtype.Float32}.Apply()
			g.Output("d", d)
			p, err := g.Compile(host.Device{}, graph.Options{})
			must(b, err)
			x, err := p.Exec(nil)
			must(b, err)
			defer x.Close()
			offsets := make([]int32, e)
			for i := range offsets {
				offsets[i] = int32((i + 1) * m / e)
			}
			must(b, x.Write(va, a))
			must(b, x.Write(vb, w))
			must(b, x.Write(off, offsets))
			b.ReportAllocs()
			for b.Loop() {
				must(b, x.Replay(b.Context()))
			}
			report(b)
		})
	}
	b.Run("gonum/f32", func(b *testing.B) {
		c := make([]float32, m*n)
		for b.Loop() {
			gonum.Implementation{}.Sgemm(blas.NoTrans, blas.Trans, m, n, k, 1, a, k, w[:n*k], k, 0, c, n)
		}
		report(b)
	})
}

// BenchmarkMoELayer measures a layer's forward and backward on the shapes that bench/anchors_cpu.py gives PyTorch.
func BenchmarkMoELayer(b *testing.B) {
	for _, s := range []struct{ e, k, h, i, t int }{{8, 2, 256, 512, 1024}, {8, 2, 512, 1024, 1024}, {32, 4, 256, 256, 2048}} {
		for _, dt := range []dtype.DType{dtype.Float32, dtype.BFloat16} {
			b.Run(fmt.Sprintf("E=%d,k=%d,H=%d,I=%d,T=%d/%s", s.e, s.k, s.h, s.i, s.t, dt), func(b *testing.B) {
				g := graph.New("layer")
				vars := graph.NewVars(1)
				x, dy := g.Input("x", dt, s.t, s.h), g.Input("dy", dt, s.t, s.h)
				y, _ := MoELayer(x, vars.Scope("moe"), MoE{Experts: s.e, TopK: s.k, Intermediate: s.i, Alignment: 8})
				gr := g.GradientsFrom([]*graph.Value{y}, []*graph.Value{dy}, append(vars.All(), x)...)
				g.Output("y", y)
				for i, v := range gr.Value {
					g.Output(fmt.Sprint(i), v)
				}
				p, err := g.Compile(host.Device{}, graph.Options{})
				must(b, err)
				e, err := p.Exec(vars)
				must(b, err)
				defer e.Close()
				r := rand.New(rand.NewPCG(1, 2))
				data := make([]float32, s.t*s.h)
				for i := range data {
					data[i] = float32(r.NormFloat64())
				}
				must(b, e.Write(x, data))
				must(b, e.Write(dy, data))
				b.ReportAllocs()
				for b.Loop() {
					must(b, e.Replay(b.Context()))
				}
				b.ReportMetric(18*float64(s.t*s.k)*float64(s.h*s.i)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
			})
		}
	}
}
