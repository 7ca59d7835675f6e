package gemm

import (
	"fmt"
	"unsafe"
)

// Sizes of the blocks, in elements; doc.go tells how they were chosen.
const (
	tileRows    = 6   // of the larger kernel
	tileCols    = 16  // of every kernel: two AVX2 registers
	blockK      = 256 // steps of k that one kernel call sums up; a multiple of 8
	blockM      = 96  // rows of A packed at once; a multiple of tileRows
	blockN      = 512 // columns of B packed at once; a multiple of tileCols
	groupPanels = 8   // panels of B packed together: whole cache lines of a row before the next row
	inPlaceM    = 6   // rows of A, one tile, up to which a float32 B is read where it lies
	padA        = 16  // between rows of packed A: keeps a tile's rows out of each other's cache sets
)

// useAsm chooses the assembly; tests turn it off to run the Go kernel.
var useAsm = hasAsm

// Work holds the buffers that operands are packed into. The zero value is ready. It belongs to one
// goroutine at a time. Its buffers grow to what the largest product asked for, WorkBytes at most.
type Work struct {
	a, b []float32
	tile [tileRows * tileCols]float32 // see tiles.mulEdge
}

// WorkBytes is the most memory that the buffers of a Work take, in bytes (about 0.75 MiB).
const WorkBytes = 4 * (max((blockM+tileRows)*(blockK+padA), blockExternal*blockExternal) +
	max(blockN*(blockK+1), blockExternal*blockExternal) + 2*align)

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
//
// If all rows of A fit a block, that block serves every column, and B is packed few panels at a time,
// to be read while it is in a near cache, or, for very few rows, read where it lies.
func (w *Work) mulBlockK(m, n, p0, kc int, alpha float32, a, b *Operand, add bool, c []float32, ldc int) {
	inPlace := m <= inPlaceM && b.F32 != nil && !b.Trans
	nc := blockN
	if inPlace {
		nc = tileCols
	} else if m <= blockM {
		nc = groupPanels * tileCols
	}
	t := tiles{kc: kc, alpha: alpha, add: add, ldA: kc + padA, ldC: ldc}
	w.a = grow(w.a, (min(m, blockM)+tileRows)*t.ldA)
	w.b = grow(w.b, (min(n, nc)+tileCols-1)/tileCols*panelStride(kc))
	for j := 0; j < n; j += nc {
		cols := min(nc, n-j)
		if inPlace && cols == tileCols {
			t.b, t.ldB = b.F32[p0*b.LD+j:], b.LD
		} else {
			packB(w.b, b, p0, j, kc, cols)
			t.b, t.ldB = w.b, tileCols
		}
		for i := 0; i < m; i += blockM {
			rows := min(blockM, m-i)
			if j == 0 || m > blockM {
				packA(w.a, a, t.ldA, i, p0, rows, kc, paddedRows(rows))
			}
			t.a, t.c = w.a, c[i*ldc+j:]
			t.mul(rows, cols, &w.tile)
		}
	}
}

// grow returns at least n elements that start on a cache line.
func grow(buf []float32, n int) []float32 {
	if n <= len(buf) {
		return buf
	}
	buf = make([]float32, n+align-1)
	skip := -int(uintptr(unsafe.Pointer(&buf[0]))/4) & (align - 1)
	return buf[skip : skip+n]
}
