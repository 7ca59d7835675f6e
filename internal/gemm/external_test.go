package gemm

import (
	"math/rand/v2"
	"testing"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas32"
	"gonum.org/v1/gonum/blas/gonum"
)

// counting stands for a BLAS that the program plugs in.
type counting struct {
	gonum.Implementation
	calls *int
}

func (c counting) Sgemm(tA, tB blas.Transpose, m, n, k int, alpha float32, a []float32, lda int,
	b []float32, ldb int, beta float32, cc []float32, ldc int) {
	*c.calls++
	c.Implementation.Sgemm(tA, tB, m, n, k, alpha, a, lda, b, ldb, beta, cc, ldc)
}

func TestExternal(t *testing.T) {
	if External() {
		t.Fatal("gonum's own implementation: got External true")
	}
	numCalls := 0
	blas32.Use(counting{calls: &numCalls})
	defer blas32.Use(gonum.Implementation{})
	if !External() {
		t.Fatal("another implementation: got External false")
	}
	rng := rand.New(rand.NewPCG(6, 6))
	var w Work
	for _, kindA := range kinds {
		for _, kindB := range kinds {
			for variant := range 4 {
				m, n, k := 20, blockExternal+9, blockExternal+3
				if variant&1 != 0 {
					m, n = n, m
				}
				a := randomOperand(rng, kindA, m, k, 0, variant&1 != 0)
				b := randomOperand(rng, kindB, k, n, 3, variant&2 != 0)
				c := filled(m*n, 2)
				ref, mag := reference(m, n, k, 2, a, b, 0.5, c, n)
				before := numCalls
				w.Mul(m, n, k, 2, a, b, 0.5, c, n)
				if at := firstFar(c, n, ref, mag, m, n, 2e-6); at >= 0 {
					t.Fatalf("%s %s variant %d: element %d: got %v, want %v", kindA, kindB, variant, at, c[at], ref[at])
				}
				want := 4 // blocks
				if kindA == "f32" && kindB == "f32" {
					want = 1
				}
				if got := numCalls - before; got != want {
					t.Fatalf("%s %s: calls of Sgemm: got %d, want %d", kindA, kindB, got, want)
				}
			}
		}
	}
	if got := 4 * (cap(w.a) + cap(w.b)); got > WorkBytes {
		t.Errorf("buffers: got %d B, want at most %d", got, WorkBytes)
	}
}
