package gemm

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// TestMul sweeps shapes, transposes, strides and scalars against float64.
func TestMul(t *testing.T) {
	bothKernels(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(1, 1))
		var shapes [][3]int
		for s := 1; s <= 40; s++ {
			shapes = append(shapes, [3]int{s, 41 - s, (s*7)%40 + 1}, [3]int{s, s, s}, [3]int{(s*11)%40 + 1, s, (s*3)%40 + 1})
		}
		shapes = append(shapes, [3]int{97, 33, 257}, [3]int{101, 530, 129}, [3]int{195, 17, 600}, [3]int{7, 1025, 301})
		var w Work
		for _, s := range shapes {
			for variant := range 4 {
				testOne(t, &w, rng, s[0], s[1], s[2], variant&1 != 0, variant&2 != 0)
			}
		}
	})
}

// testOne checks one shape, with beta, alpha, strides and element types drawn at random.
func testOne(t *testing.T, w *Work, rng *rand.Rand, m, n, k int, transA, transB bool) {
	t.Helper()
	alpha := []float32{1, -0.75}[rng.IntN(2)]
	beta := []float32{0, 1, 0.5}[rng.IntN(3)]
	kindA, kindB := kinds[rng.IntN(3)], kinds[rng.IntN(3)]
	a := randomOperand(rng, kindA, m, k, rng.IntN(2)*3, transA)
	b := randomOperand(rng, kindB, k, n, rng.IntN(2)*5, transB)
	ldc := n + rng.IntN(2)*2
	c := filled(m*ldc, 1.5)
	if beta == 0 {
		c = filled(m*ldc, float32(math.NaN()))
	}
	ref, mag := reference(m, n, k, alpha, a, b, beta, c, ldc)
	before := slices.Clone(c)
	w.Mul(m, n, k, alpha, a, b, beta, c, ldc)
	name := fmt.Sprintf("%dx%dx%d trans %v %v, %s %s, alpha %v beta %v", m, n, k, transA, transB, kindA, kindB, alpha, beta)
	if at := firstFar(c, ldc, ref, mag, m, n, 2e-6); at >= 0 {
		t.Fatalf("%s: element (%d,%d): got %v, want %v", name, at/n, at%n, c[at/n*ldc+at%n], ref[at])
	}
	for i := range m {
		if !sameBits(c[i*ldc+n:(i+1)*ldc], before[i*ldc+n:(i+1)*ldc]) {
			t.Fatalf("%s: row %d: wrote between the end of the row and the next", name, i)
		}
	}

	// The same in float32 operands, and in the fewest rows and columns, to the bit.
	same := slices.Clone(before)
	w.Mul(m, n, k, alpha, decoded(a), decoded(b), beta, same, ldc)
	if !sameBits(c, same) {
		t.Fatalf("%s: differs from decoding first", name)
	}
	copy(same, before)
	i, j := rng.IntN(m), rng.IntN(n)
	mulCut(w, i, min(m, i+1+rng.IntN(9)), j, min(n, j+1+rng.IntN(20)), k, alpha, a, b, beta, same, ldc)
	mulCut(w, 0, i, 0, j, k, alpha, a, b, beta, same, ldc)
	for r := range m {
		for s := range n {
			if x := same[r*ldc+s]; math.Float32bits(x) != math.Float32bits(before[r*ldc+s]) &&
				math.Float32bits(x) != math.Float32bits(c[r*ldc+s]) {
				t.Fatalf("%s: element (%d,%d) depends on the cutting: got %v, want %v", name, r, s, x, c[r*ldc+s])
			}
		}
	}
}

// mulCut computes rows i0 to i1 and columns j0 to j1 of C, ends exclusive.
func mulCut(w *Work, i0, i1, j0, j1, k int, alpha float32, a, b Operand, beta float32, c []float32, ldc int) {
	if i0 >= i1 || j0 >= j1 {
		return
	}
	w.Mul(i1-i0, j1-j0, k, alpha, tail(a, i0, 0), tail(b, 0, j0), beta, c[i0*ldc+j0:], ldc)
}

// tail is op(X) from (row, col) on.
func tail(o Operand, row, col int) Operand {
	if o.Trans {
		row, col = col, row
	}
	at := row*o.LD + col
	switch {
	case o.F32 != nil:
		o.F32 = o.F32[at:]
	case o.BF16 != nil:
		o.BF16 = o.BF16[at:]
	default:
		o.F16 = o.F16[at:]
	}
	return o
}

// TestMul_Cut computes random rectangles of a product that spans several blocks in every direction.
func TestMul_Cut(t *testing.T) {
	bothKernels(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(2, 2))
		m, n, k := blockM+29, blockN+37, 2*blockK+11
		for variant := range 4 {
			a := randomOperand(rng, kinds[variant%3], m, k, 0, variant&1 != 0)
			b := randomOperand(rng, kinds[variant%3], k, n, 0, variant&2 != 0)
			var w Work
			want := filled(m*n, 0.25)
			w.Mul(m, n, k, 0.5, a, b, 0.5, want, n)
			for piece := range 150 {
				i, j := rng.IntN(m), rng.IntN(n)
				numRows, numCols := 1+rng.IntN(14), 1+rng.IntN(40)
				if piece%20 == 0 {
					numRows, numCols = m, n
				}
				iEnd, jEnd := min(m, i+numRows), min(n, j+numCols)
				got := filled(m*n, 0.25)
				mulCut(&w, i, iEnd, j, jEnd, k, 0.5, a, b, 0.5, got, n)
				for r := i; r < iEnd; r++ {
					if !sameBits(got[r*n+j:r*n+jEnd], want[r*n+j:r*n+jEnd]) {
						t.Fatalf("variant %d: rows %d:%d, columns %d:%d give other bits than the whole, in row %d",
							variant, i, iEnd, j, jEnd, r)
					}
				}
			}
		}
	})
}

// TestMul_NonFinite puts a NaN or Inf in A or B, against zeros in the other, and looks for it in its
// row or column of C and nowhere else.
func TestMul_NonFinite(t *testing.T) {
	bothKernels(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(3, 3))
		const m, n, k = 23, 37, 270
		for range 40 {
			i, j, p := rng.IntN(m), rng.IntN(n), rng.IntN(k)
			bad := []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))}[rng.IntN(3)]
			inA, transA, transB := rng.IntN(2) == 0, rng.IntN(2) == 0, rng.IntN(2) == 0
			a := randomOperand(rng, "f32", m, k, 0, transA)
			b := randomOperand(rng, "f32", k, n, 0, transB)
			if inA {
				clear(b.F32)
				set(a, i, p, bad)
			} else {
				clear(a.F32)
				set(b, p, j, bad)
			}
			c := filled(m*n, 7)
			new(Work).Mul(m, n, k, 1, a, b, 0, c, n)
			for r := range m {
				for s := range n {
					want := inA && r == i || !inA && s == j
					if got := c[r*n+s]; got != got != want || !want && got != 0 {
						t.Fatalf("%v in A %v at (%d,%d,%d): element (%d,%d): got %v", bad, inA, i, j, p, r, s, got)
					}
				}
			}
		}
	})
}

func set(o Operand, i, j int, x float32) {
	if o.Trans {
		i, j = j, i
	}
	o.F32[i*o.LD+j] = x
}

func TestMul_ZeroSizes(t *testing.T) {
	bothKernels(t, func(t *testing.T) {
		var w Work
		nan := float32(math.NaN())
		c := []float32{1, 2, 3, 4, 5, 6}
		w.Mul(0, 3, 2, 1, Operand{}, Operand{F32: make([]float32, 6), LD: 3}, 0, nil, 3)
		w.Mul(2, 0, 2, 1, Operand{F32: make([]float32, 4), LD: 2}, Operand{}, 0, nil, 0)
		w.Mul(2, 3, 0, 1, Operand{}, Operand{}, 0.5, c, 3)
		if want := []float32{0.5, 1, 1.5, 2, 2.5, 3}; !slices.Equal(c, want) {
			t.Errorf("k=0 beta=0.5: got %v, want %v", c, want)
		}
		c = []float32{nan, nan, 8, nan, nan, 9}
		w.Mul(2, 2, 0, 1, Operand{}, Operand{}, 0, c, 3)
		if want := []float32{0, 0, 8, 0, 0, 9}; !slices.Equal(c, want) {
			t.Errorf("k=0 beta=0: got %v, want %v", c, want)
		}
	})
}

func TestMul_Refuses(t *testing.T) {
	f := make([]float32, 100)
	ok := Operand{F32: f, LD: 10}
	for _, c := range []struct {
		name, want string
		m          int
		a, b       Operand
		ldc        int
	}{
		{"short A", "A: got 99 elements, want 10 rows of 10", 10, Operand{F32: f[:99], LD: 10}, ok, 10},
		{"huge stride", "B: got 100 elements", 10, ok, Operand{F32: f, LD: math.MaxInt / 2}, 10},
		{"small stride", "A: row stride: got 9, want at least 10", 10, Operand{F32: f, LD: 9}, ok, 10},
		{"C stride", "C: row stride: got 3", 10, ok, ok, 3},
		{"two kinds", "A: got 2 of F32, BF16, F16 and Codes set", 10, Operand{F32: f, BF16: []uint16{1}, LD: 10}, ok, 10},
		{"none", "B: got 0 of", 10, ok, Operand{LD: 10}, 10},
		{"negative", "m=-1", -1, ok, ok, 10},
	} {
		func() {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.Contains(got, c.want) {
					t.Errorf("%s: got %q, want %q in it", c.name, got, c.want)
				}
			}()
			new(Work).Mul(c.m, 10, 10, 1, c.a, c.b, 0, make([]float32, 100), c.ldc)
		}()
	}
}
