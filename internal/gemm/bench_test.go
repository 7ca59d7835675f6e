package gemm

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/gonum"
)

// BenchmarkMul reports GFLOP/s; run it with -cpu 1 to compare with gonum on one core.
func BenchmarkMul(b *testing.B) {
	shapes := [][3]int{{64, 192, 256}, {128, 512, 512}, {256, 1024, 1024}, {1024, 1024, 1024},
		{1, 1024, 1024}, {4, 1024, 1024}, {8, 1024, 1024}, {512, 8, 512}, {1024, 1024, 4}, {37, 83, 129}}
	rng := rand.New(rand.NewPCG(1, 2))
	for _, s := range shapes {
		m, n, k := s[0], s[1], s[2]
		c := make([]float32, m*n)
		run := func(name string, f func()) {
			b.Run(fmt.Sprintf("%dx%dx%d/%s", m, n, k, name), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					f()
				}
				b.ReportMetric(2*float64(m)*float64(n)*float64(k)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
			})
		}
		for _, transA := range []bool{false, true} {
			for _, transB := range []bool{false, true} {
				for _, kind := range []string{"f32", "bf16", "f16"} {
					var w Work
					x := randomOperand(rng, kind, m, k, 0, transA)
					y := randomOperand(rng, kind, k, n, 0, transB)
					name := fmt.Sprintf("%s/%c%c", kind, letter(transA), letter(transB))
					run(name, func() { w.Mul(m, n, k, 1, x, y, 0, c, n) })
				}
			}
		}
		x, y := randomOperand(rng, "f32", m, k, 0, false), randomOperand(rng, "f32", k, n, 0, false)
		run("gonum", func() {
			gonum.Implementation{}.Sgemm(blas.NoTrans, blas.NoTrans, m, n, k, 1, x.F32, x.LD, y.F32, y.LD, 0, c, n)
		})
	}
}

func letter(trans bool) rune {
	if trans {
		return 'T'
	}
	return 'N'
}
