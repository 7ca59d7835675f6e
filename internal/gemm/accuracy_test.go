package gemm

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"
)

// TestMul_Accuracy bounds the relative Frobenius error for long k.
func TestMul_Accuracy(t *testing.T) {
	bothKernels(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(4, 4))
		const m, n = 12, 32
		for _, k := range []int{16, 100, 256, 257, 1024, 4096, 16384} {
			a, b := randomOperand(rng, "f32", m, k, 0, false), randomOperand(rng, "f32", k, n, 0, false)
			c := make([]float32, m*n)
			ref, _ := reference(m, n, k, 1, a, b, 0, c, n)
			new(Work).Mul(m, n, k, 1, a, b, 0, c, n)
			var num, den float64
			for i, want := range ref {
				d := float64(c[i]) - want
				num += d * d
				den += want * want
			}
			err := math.Sqrt(num / den)
			t.Logf("k=%d: relative error %.2g", k, err)
			if limit := 1e-6 * (1 + float64(k)/2048); err > limit {
				t.Errorf("k=%d: relative error: got %.3g, want at most %.3g", k, err, limit)
			}
		}
	})
}

// TestPack decodes every f16 and bf16 code in straight and transposing copies, of sizes that leave
// tails.
func TestPack(t *testing.T) {
	bothKernels(t, func(t *testing.T) {
		const side = 1 << 8
		codes := make([]uint16, side*side)
		for i := range codes {
			codes[i] = uint16(i)
		}
		for name, o := range map[string]Operand{"f16": {F16: codes, LD: side}, "bf16": {BF16: codes, LD: side}} {
			want := decoded(o).F32
			for _, size := range [][2]int{{side, side}, {side, 16}, {16, side}, {9, 21}, {5, 3}} {
				rows, cols, ld := size[0], size[1], side+1
				dst := filled(side*ld, 42)
				row, col := side-rows, side-cols
				for _, trans := range []bool{false, true} {
					stepRow, stepCol := ld, 1
					if trans {
						o.transTo(dst, ld, row, col, rows, cols)
						stepRow, stepCol = 1, ld
					} else {
						o.copyTo(dst, ld, row, col, rows, cols)
					}
					for i := range rows * cols {
						got, want := &dst[i/cols*stepRow+i%cols*stepCol], want[(row+i/cols)*side+col+i%cols]
						if *got != want && (*got == *got || want == want) {
							t.Fatalf("%s %v trans %v: element (%d,%d): got %v, want %v",
								name, size, trans, i/cols, i%cols, *got, want)
						}
						*got = 42
					}
					if i := slices.IndexFunc(dst, func(x float32) bool { return x != 42 }); i >= 0 {
						t.Fatalf("%s %v trans %v: wrote outside of the block, at %d", name, size, trans, i)
					}
				}
			}
		}
	})
}

// TestWork checks the promises about memory.
func TestWork(t *testing.T) {
	var w Work
	m, n, k := 2*blockM+5, 2*blockN+5, 3*blockK
	a := Operand{BF16: make([]uint16, m*k), LD: k}
	b := Operand{F32: make([]float32, k*n), LD: k, Trans: true}
	c := make([]float32, m*n)
	w.Mul(m, n, k, 1, a, b, 0, c, n)
	if got := 4 * (cap(w.a) + cap(w.b)); got > WorkBytes {
		t.Errorf("buffers: got %d B, want at most %d", got, WorkBytes)
	}
	if got := uintptr(unsafe.Pointer(&w.b[0])) % 64; got != 0 {
		t.Errorf("packed B starts %d bytes into a cache line", got)
	}
	if got := testing.AllocsPerRun(3, func() { w.Mul(m, n, k, 1, a, b, 0.5, c, n) }); got != 0 {
		t.Errorf("allocations: got %v, want 0", got)
	}
}

func TestMulFloat64(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	for _, s := range [][3]int{{1, 1, 1}, {3, 5, 7}, {4, 4, 256}, {66, 70, 259}, {130, 65, 30}, {0, 3, 2}, {3, 0, 2}, {2, 3, 0}} {
		for variant := range 8 {
			m, n, k := s[0], s[1], s[2]
			transA, transB := variant&1 != 0, variant&2 != 0
			a, b := random64(rng, m*k), random64(rng, k*n)
			lda, ldb, ldc := k, n, n+1
			if transA {
				lda = m
			}
			if transB {
				ldb = k
			}
			beta, old := 0.5, 3.0
			if variant&4 != 0 {
				beta, old = 0, math.NaN()
			}
			c := make([]float64, m*ldc)
			for i := range c {
				c[i] = old
			}
			MulFloat64(transA, transB, m, n, k, -2, a, lda, b, ldb, beta, c, ldc)
			for i := range m {
				for j := range n {
					var want float64
					for p := range k {
						want += at64(a, lda, transA, i, p) * at64(b, ldb, transB, p, j)
					}
					want *= -2
					if beta != 0 {
						want += beta * old
					}
					if got := c[i*ldc+j]; !(math.Abs(got-want) <= 1e-12*float64(k+1)) {
						t.Fatalf("%v variant %d: element (%d,%d): got %v, want %v", s, variant, i, j, got, want)
					}
				}
				if got := c[i*ldc+n]; got != old && got == got {
					t.Fatalf("%v: wrote after row %d", s, i)
				}
			}
		}
	}
}

// TestMulFloat64_NonFinite looks for 0*Inf in its row alone.
func TestMulFloat64_NonFinite(t *testing.T) {
	const m, n, k = 6, 7, 5
	a, b, c := make([]float64, m*k), make([]float64, k*n), make([]float64, m*n)
	a[4*k+3] = math.Inf(1)
	MulFloat64(false, false, m, n, k, 1, a, k, b, n, 0, c, n)
	for i, got := range c {
		if isRow := i/n == 4; math.IsNaN(got) != isRow || !isRow && got != 0 {
			t.Errorf("element (%d,%d): got %v", i/n, i%n, got)
		}
	}
}

func random64(rng *rand.Rand, n int) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = rng.NormFloat64()
	}
	return x
}

func at64(x []float64, ld int, trans bool, i, j int) float64 {
	if trans {
		i, j = j, i
	}
	return x[i*ld+j]
}
