package gemm

import (
	"fmt"

	"github.com/moegraph/moegraph/dtype"
)

// Operand is a row-major matrix in memory, float32, 16-bit codes or block-scaled ones: exactly one of F32, BF16,
// F16 and Scaled.Codes is set (none may be, where the matrix has no elements).
type Operand struct {
	F32  []float32
	BF16 []uint16 // bfloat16 codes
	F16  []uint16 // IEEE half precision codes
	Scaled
	LD    int  // elements between the starts of rows as stored, at least the length of a row
	Trans bool // the product uses the transpose of what is stored
}

// check panics unless the operand holds op(X) of shape (rows, cols). The assembly relies on it.
func (o *Operand) check(name string, rows, cols int) {
	if o.Trans {
		rows, cols = cols, rows
	}
	numSet := 0
	for _, set := range [4]bool{o.F32 != nil, o.BF16 != nil, o.F16 != nil, o.Codes != nil} {
		if set {
			numSet++
		}
	}
	if numSet > 1 || numSet == 0 && rows*cols > 0 {
		panic(fmt.Sprintf("gemm: %s: got %d of F32, BF16, F16 and Codes set, want exactly one", name, numSet))
	}
	numElems := len(o.F32) + len(o.BF16) + len(o.F16)
	if o.Codes != nil {
		numElems = len(o.Codes)*8/o.Values.Bits() - o.At
	}
	checkMatrix(name, numElems, rows, cols, o.LD)
}

// checkMatrix panics unless numElems hold rows of cols elements whose starts are ld apart.
func checkMatrix(name string, numElems, rows, cols, ld int) {
	if rows == 0 || cols == 0 {
		return
	}
	if ld < cols {
		panic(fmt.Sprintf("gemm: %s: row stride: got %d, want at least %d (the length of a row as stored)",
			name, ld, cols))
	}
	if numElems < cols || rows-1 > (numElems-cols)/ld { // no product that could overflow
		panic(fmt.Sprintf("gemm: %s: got %d elements, want %d rows of %d with stride %d",
			name, numElems, rows, cols, ld))
	}
}

// The methods below take rows and columns as stored, whatever Trans says.

// decode writes len(dst) elements of a row, from column col on.
func (o *Operand) decode(dst []float32, row, col int) {
	i := row*o.LD + col
	switch {
	case o.Codes != nil:
		o.Scaled.Decode(dst, o.LD, row, col)
	case o.F32 != nil:
		copy(dst, o.F32[i:i+len(dst)])
	case o.BF16 != nil:
		for j, code := range o.BF16[i : i+len(dst)] {
			dst[j] = dtype.BF16Decode(code)
		}
	default:
		for j, code := range o.F16[i : i+len(dst)] {
			dst[j] = dtype.F16Decode(code)
		}
	}
}

// decodeColumn is decode with element j at dst[j*ld], for n elements.
func (o *Operand) decodeColumn(dst []float32, ld, row, col, n int) {
	i := row*o.LD + col
	switch {
	case o.Codes != nil:
		var buf [64]float32
		for j := 0; j < n; j += len(buf) {
			part := buf[:min(len(buf), n-j)]
			o.Scaled.Decode(part, o.LD, row, col+j)
			for t, x := range part {
				dst[(j+t)*ld] = x
			}
		}
	case o.F32 != nil:
		for j, x := range o.F32[i : i+n] {
			dst[j*ld] = x
		}
	case o.BF16 != nil:
		for j, code := range o.BF16[i : i+n] {
			dst[j*ld] = dtype.BF16Decode(code)
		}
	default:
		for j, code := range o.F16[i : i+n] {
			dst[j*ld] = dtype.F16Decode(code)
		}
	}
}

// copy16 decodes rows of pieces of 16 elements from (row, col) on, piece q of row i to dst[i*ldDst+q*step].
func (o *Operand) copy16(dst []float32, ldDst, step, row, col, rows, pieces int) {
	i := row*o.LD + col
	switch {
	case o.F32 != nil:
		copy16F32(&dst[0], ldDst, step, &o.F32[i], o.LD, rows, pieces)
	case o.BF16 != nil:
		copy16BF16(&dst[0], ldDst, step, &o.BF16[i], o.LD, rows, pieces)
	default:
		copy16F16(&dst[0], ldDst, step, &o.F16[i], o.LD, rows, pieces)
	}
}

// trans8 decodes 8 rows of 8*n elements to 8*n rows of 8.
func (o *Operand) trans8(dst []float32, ldDst, row, col, n int) {
	i := row*o.LD + col
	switch {
	case o.F32 != nil:
		trans8F32(&dst[0], ldDst, &o.F32[i], o.LD, n)
	case o.BF16 != nil:
		trans8BF16(&dst[0], ldDst, &o.BF16[i], o.LD, n)
	default:
		trans8F16(&dst[0], ldDst, &o.F16[i], o.LD, n)
	}
}
