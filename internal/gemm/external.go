package gemm

import (
	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas32"
	"gonum.org/v1/gonum/blas/gonum"
)

// blockExternal is the side of the blocks that 16-bit operands are decoded in for an external BLAS, in
// elements.
const blockExternal = 256

// External says whether the program plugged another BLAS in with blas32.Use, which Mul then calls.
func External() bool {
	_, own := blas32.Implementation().(gonum.Implementation)
	return !own
}

// mulExternal hands the product to the plugged-in Sgemm. Operands of 16 bits are decoded block by
// block, in the layout as stored; float32 operands are passed where they lie.
func (w *Work) mulExternal(m, n, k int, alpha float32, a, b *Operand, beta float32, c []float32, ldc int) {
	sgemm := blas32.Implementation().Sgemm
	if a.F32 != nil && b.F32 != nil {
		sgemm(transpose(a), transpose(b), m, n, k, alpha, a.F32, a.LD, b.F32, b.LD, beta, c, ldc)
		return
	}
	for p := 0; p < k; p += blockExternal {
		steps := min(blockExternal, k-p)
		for j := 0; j < n; j += blockExternal {
			cols := min(blockExternal, n-j)
			var bBlock, aBlock []float32
			var ldB, ldA int
			w.b, bBlock, ldB = b.stored(w.b, p, j, steps, cols)
			for i := 0; i < m; i += blockExternal {
				rows := min(blockExternal, m-i)
				w.a, aBlock, ldA = a.stored(w.a, i, p, rows, steps)
				sgemm(transpose(a), transpose(b), rows, cols, steps, alpha, aBlock, ldA, bBlock, ldB,
					beta, c[i*ldc+j:], ldc)
			}
		}
		beta = 1
	}
}

// stored gives the block of op(X) from (row, col) on as float32 in the layout as stored, with its
// stride: where it lies, or decoded into buf, which is returned grown.
func (o *Operand) stored(buf []float32, row, col, rows, cols int) (grown, block []float32, ld int) {
	if o.Trans {
		row, col, rows, cols = col, row, cols, rows
	}
	if o.F32 != nil {
		return buf, o.F32[row*o.LD+col:], o.LD
	}
	buf = grow(buf, rows*cols)
	o.copyTo(buf, cols, row, col, rows, cols)
	return buf, buf, cols
}

func transpose(o *Operand) blas.Transpose {
	if o.Trans {
		return blas.Trans
	}
	return blas.NoTrans
}
