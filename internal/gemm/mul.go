package gemm

import (
	"fmt"
	"unsafe"
)

// Sizes of the blocks, in elements; doc.go tells how they were chosen.
const (
	tileRows = 6   // of the larger kernel
	tileCols = 16  // of every kernel: two AVX2 registers
	blockK   = 256 // steps of k that one kernel call sums up; a multiple of 8
	blockM   = 96
	blockN   = 512 // columns of B packed at once; a multiple of tileCols
	padA     = 16  // between rows of packed A: keeps a tile's rows out of each other's cache sets
)

// useAsm chooses the assembly; tests turn it off to run the Go kernel.
var useAsm = hasAsm

// Work holds the buffers that operands are packed into. The zero value is ready. It belongs to one
// goroutine at a time, and its buffers grow to what the largest product asked for, at most
// WorkBytes altogether (twice as much where External is true).
type Work struct {
	a, b []float32
	tile [tileRows * tileCols]float32 // of C, where the matrix ends inside a tile
}

// WorkBytes is the most memory that a Work holds, in bytes.
const WorkBytes = 4 * ((blockM+tileRows)*(blockK+padA) + blockK*blockN + 2*align)

const align = 16 // elements, a cache line

// Mul computes C = alpha * op(A) op(B) + beta * C in float32, with C (m, n) row-major with stride ldc,
// op(A) (m, k) and op(B) (k, n).
//
// beta == 0 does not read C, which may hold NaN; k == 0 leaves beta*C. No product is skipped: a NaN or
// Inf in a row of A (a column of B) reaches all of that row (column) of C and nothing else, whatever
// alpha is.
//
// An element is summed in blocks of k, inside a block in ascending order with fused multiply-adds
// where the processor has them. Its bits depend on its row of A, its column of B, k, alpha, beta and
// the old value alone, not on m, n or where it stands, so any cutting of the output gives the same
// result. That does not hold across processors, nor where External is true.
//
// Mul panics where an operand is shorter than the shapes ask for. It does not allocate once the
// buffers have grown. A, B and C must not overlap.
func (w *Work) Mul(m, n, k int, alpha float32, a, b Operand, beta float32, c []float32, ldc int) {
	if m < 0 || n < 0 || k < 0 {
		panic(fmt.Sprintf("gemm: got m=%d n=%d k=%d, want no negative size", m, n, k))
	}
	a.check("A", m, k)
	b.check("B", k, n)
	checkMatrix("C", len(c), m, n, ldc)
	if m == 0 || n == 0 {
		return
	}
	if k > 0 && External() {
		w.mulExternal(m, n, k, alpha, &a, &b, beta, c, ldc)
		return
	}
	if k == 0 || beta != 0 && beta != 1 {
		scale(m, n, beta, c, ldc)
	}
	kc := stepsOfK(k)
	for p := 0; p < k; p += kc {
		w.mulBlockK(m, n, p, min(kc, k-p), alpha, &a, &b, p > 0 || beta != 0, c, ldc)
	}
}

// stepsOfK is the length of the blocks that k is cut into: even ones, by k alone.
func stepsOfK(k int) int {
	numBlocks := max(1, (k+blockK-1)/blockK)
	return ((k+numBlocks-1)/numBlocks + 7) &^ 7
}

// scale is C = beta*C, zeros for beta 0.
func scale(m, n int, beta float32, c []float32, ldc int) {
	for i := range m {
		row := c[i*ldc : i*ldc+n]
		if beta == 0 {
			clear(row)
			continue
		}
		for j := range row {
			row[j] *= beta
		}
	}
}

// mulBlockK adds the products of steps p0 to p0+kc of k, or stores them where add is false.
func (w *Work) mulBlockK(m, n, p0, kc int, alpha float32, a, b *Operand, add bool, c []float32, ldc int) {
	ldA := kc + padA
	w.a = grow(w.a, (min(m, blockM)+tileRows)*ldA)
	blockN := smallN
	w.b = grow(w.b, (min(n, blockN)+tileCols-1)/tileCols*tileCols*kc)
	for j := 0; j < n; j += blockN {
		cols := min(blockN, n-j)
		dB:=direct&&b.F32 != nil && !b.Trans
		if !dB {
		packB(w.b, b, p0, j, kc, cols)
		}
		for i := 0; i < m; i += blockM {
			rows := min(blockM, m-i)
			if j == 0 || m > blockM { // else the block is still there
				packA(w.a, a, ldA, i, p0, rows, kc, paddedRows(rows))
			}
			w.mulBlock(rows, cols, kc, alpha, ldA, add, c[i*ldc+j:], ldc, dB, b, p0, j)
		}
	}
}

var smallN = 512
var direct bool

// grow returns at least n elements that start on a cache line.
func grow(buf []float32, n int) []float32 {
	if n <= len(buf) {
		return buf
	}
	buf = make([]float32, n+align-1)
	skip := -int(uintptr(unsafe.Pointer(&buf[0]))/4) & (align - 1)
	return buf[skip : skip+n]
}

// nextTile is the height of the tile to take where left rows are left: 6, or 4 where that wastes less.
func nextTile(left int) int {
	if !useAsm || left <= 4 || left == 7 || left == 8 {
		return 4
	}
	return tileRows
}

// paddedRows is where the last tile ends.
func paddedRows(rows int) int {
	end := 0
	for end < rows {
		end += nextTile(rows - end)
	}
	return end
}

// mulBlock multiplies the packed blocks. The panel of B stays in the first-level cache, A streams from
// the second.
func (w *Work) mulBlock(rows, cols, kc int, alpha float32, ldA int, add bool, c []float32, ldc int, dB bool, b *Operand, p0, j0 int) {
	for j := 0; j < cols; j += tileCols {
		panel := w.b[j*kc:]
		ldB := tileCols
		if dB {
			panel = b.F32[p0*b.LD+j0+j:]
			ldB = b.LD
		}
		width := min(tileCols, cols-j)
		for i := 0; i < rows; {
			height := nextTile(rows - i)
			valid := min(height, rows-i)
			if valid == height && width == tileCols {
				mulTile(height, kc, alpha, w.a[i*ldA:], ldA, panel, ldB, add, c[i*ldc+j:], ldc)
			} else {
				w.mulEdge(height, kc, alpha, w.a[i*ldA:], ldA, panel, ldB, add, c[i*ldc+j:], ldc, valid, width)
			}
			i += height
		}
	}
}

// mulEdge runs a whole tile beside C and moves the part that lies inside.
func (w *Work) mulEdge(height, kc int, alpha float32, a []float32, ldA int, b []float32, ldB int, add bool,
	c []float32, ldc, rows, cols int) {
	if add {
		for i := range rows {
			copy(w.tile[i*tileCols:], c[i*ldc:i*ldc+cols])
		}
	}
	mulTile(height, kc, alpha, a, ldA, b, ldB, add, w.tile[:], tileCols)
	for i := range rows {
		copy(c[i*ldc:i*ldc+cols], w.tile[i*tileCols:])
	}
}

// mulTile is one call of a kernel.
func mulTile(height, kc int, alpha float32, a []float32, ldA int, b []float32, ldB int, add bool, c []float32, ldc int) {
	switch {
	case !useAsm:
		goTile(kc, a, ldA, b, c, ldc, alpha, add)
	case height == tileRows:
		kernel6x16(kc, &a[0], ldA, &b[0], ldB, &c[0], ldc, alpha, add)
	default:
		kernel4x16(kc, &a[0], ldA, &b[0], ldB, &c[0], ldc, alpha, add)
	}
}
