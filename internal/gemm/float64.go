package gemm

import "fmt"

// Blocks of MulFloat64, in elements.
const (
	steps64 = 256 // of k
	side64  = 64  // rows of A and columns of B; a multiple of 4
)

// MulFloat64 is Mul in float64, for checking gradients: C = alpha * op(A) op(B) + beta * C.
//
// Shapes, beta == 0, k == 0 and the spreading of NaN and Inf are as in Mul, as is the independence of
// an element from m and n. It is plain Go (some 3 GFLOP/s on a Zen 3 core) and allocates up to 256 KiB a call.
func MulFloat64(transA, transB bool, m, n, k int, alpha float64, a []float64, lda int,
	b []float64, ldb int, beta float64, c []float64, ldc int) {
	if m < 0 || n < 0 || k < 0 {
		panic(fmt.Sprintf("gemm: got m=%d n=%d k=%d, want no negative size", m, n, k))
	}
	rsA, csA, rsB, csB := lda, 1, ldb, 1
	if transA {
		checkMatrix("A", len(a), k, m, lda)
		rsA, csA = 1, lda
	} else {
		checkMatrix("A", len(a), m, k, lda)
	}
	if transB {
		checkMatrix("B", len(b), n, k, ldb)
		rsB, csB = 1, ldb
	} else {
		checkMatrix("B", len(b), k, n, ldb)
	}
	checkMatrix("C", len(c), m, n, ldc)
	for i := range m {
		row := c[i*ldc:][:n]
		for j := range row {
			if beta == 0 {
				row[j] = 0
			} else {
				row[j] *= beta
			}
		}
	}
	kc := min(k, steps64)
	aBuf := make([]float64, (min(m, side64)+3)/4*4*kc)
	bBuf := make([]float64, (min(n, side64)+3)/4*4*kc)
	for p := 0; p < k; p += steps64 {
		kc := min(steps64, k-p)
		for j := 0; j < n; j += side64 {
			cols := min(side64, n-j)
			pack64(bBuf, b[p*rsB+j*csB:], csB, rsB, cols, kc, true)
			for i := 0; i < m; i += side64 {
				rows := min(side64, m-i)
				pack64(aBuf, a[i*rsA+p*csA:], rsA, csA, rows, kc, false)
				mulBlock64(rows, cols, kc, alpha, aBuf, bBuf, c[i*ldc+j:], ldc)
			}
		}
	}
}

// pack64 writes groups of 4 lines of kc elements, element (line, p) of the source at
// src[line*ls+p*ps]: one line after the other, or all four interleaved. Lines missing from the last
// group are zeros.
func pack64(dst, src []float64, ls, ps, lines, kc int, interleave bool) {
	for line := 0; line < (lines+3)&^3; line++ {
		at, step := line*kc, 1
		if interleave {
			at, step = line&^3*kc+line&3, 4
		}
		for p := range kc {
			var x float64
			if line < lines {
				x = src[line*ls+p*ps]
			}
			dst[at+p*step] = x
		}
	}
}

// mulBlock64 adds the product of packed blocks to C, tile by tile.
func mulBlock64(rows, cols, kc int, alpha float64, a, b, c []float64, ldc int) {
	var acc [16]float64
	for j := 0; j < cols; j += 4 {
		for i := 0; i < rows; i += 4 {
			dot4x4(kc, a[i*kc:], kc, b[j*kc:], 4, &acc)
			for s := range min(4, rows-i) {
				row := c[(i+s)*ldc+j:]
				for t := range min(4, cols-j) {
					row[t] += alpha * acc[4*s+t]
				}
			}
		}
	}
}
