package nodes

import (
	"unsafe"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/gemm"
)

// float is what host code computes in: float32, or float64 for graphs whose floats are all float64.
type float interface{ float32 | float64 }

// isWide says whether host code for operands of format dt computes in float64.
func isWide(dt dtype.DType) bool { return dt == dtype.Float64 }

// statType is the format of statistics, probabilities and losses beside data of format dt: float32, or float64
// beside float64.
func statType(dt dtype.DType) dtype.DType {
	if isWide(dt) {
		return dtype.Float64
	}
	return dtype.Float32
}

// same turns a slice of S into one of F where they are the same type.
func same[F, S float](s []S) []F {
	return unsafe.Slice((*F)(unsafe.Pointer(unsafe.SliceData(s))), len(s))
}

func is64[F float]() bool {
	var zero F
	return unsafe.Sizeof(zero) == 8
}

// buffer returns a worker's buffer of F.
func buffer[F float](w *graph.Worker, slot, n int) []F {
	if is64[F]() {
		return same[F](w.Float64(slot, n))
	}
	return same[F](w.Float32(slot, n))
}

// load returns elements [at, at+n) of t as F: the memory itself where the format is F, else decoded into the
// worker's buffer slot.
func load[F float](w *graph.Worker, slot int, t *graph.Tensor, at, n int) []F {
	if direct[F](t) {
		return graph.View[F](t.Data)[at : at+n : at+n]
	}
	out := buffer[F](w, slot, n)
	loadInto(out, t, at)
	return out
}

// direct says whether t's memory is a slice of F.
func direct[F float](t *graph.Tensor) bool {
	return t.DType == dtype.Float64 && is64[F]() || t.DType == dtype.Float32 && !is64[F]()
}

// loadInto decodes len(dst) elements of t from at on.
func loadInto[F float](dst []F, t *graph.Tensor, at int) {
	n := len(dst)
	if is64[F]() {
		wide := same[float64](dst)
		switch t.DType {
		case dtype.Float64:
			copy(wide, graph.View[float64](t.Data)[at:at+n])
		case dtype.Float32:
			for i, x := range graph.View[float32](t.Data)[at : at+n] {
				wide[i] = float64(x)
			}
		default:
			size := t.DType.Bytes(1)
			_ = dtype.Convert(dtype.Float64, bytesOf(wide), t.DType, t.Data[at*size:(at+n)*size])
		}
		return
	}
	narrow := same[float32](dst)
	switch t.DType {
	case dtype.Float32:
		copy(narrow, graph.View[float32](t.Data)[at:at+n])
	case dtype.BFloat16:
		dtype.DecodeBF16(narrow, graph.View[uint16](t.Data)[at:at+n])
	case dtype.Float16:
		dtype.DecodeF16(narrow, graph.View[uint16](t.Data)[at:at+n])
	default:
		size := t.DType.Bytes(1)
		_ = dtype.Convert(dtype.Float32, bytesOf(narrow), t.DType, t.Data[at*size:(at+n)*size])
	}
}

// target returns where to compute elements [at, at+n) of t: its memory where the format is F, else the
// worker's buffer slot. store then encodes them.
func target[F float](w *graph.Worker, slot int, t *graph.Tensor, at, n int) []F {
	if direct[F](t) {
		return graph.View[F](t.Data)[at : at+n : at+n]
	}
	return buffer[F](w, slot, n)
}

// store rounds src, which target gave or anybody, into elements from at on.
func store[F float](t *graph.Tensor, at int, src []F) {
	n := len(src)
	switch {
	case n == 0:
	case direct[F](t):
		dst := graph.View[F](t.Data)[at : at+n]
		if &dst[0] != &src[0] {
			copy(dst, src)
		}
	case is64[F]():
		size := t.DType.Bytes(1)
		_ = dtype.Convert(t.DType, t.Data[at*size:(at+n)*size], dtype.Float64, bytesOf(same[float64](src)))
	case t.DType == dtype.BFloat16:
		dtype.EncodeBF16(graph.View[uint16](t.Data)[at:at+n], same[float32](src))
	case t.DType == dtype.Float16:
		dtype.EncodeF16(graph.View[uint16](t.Data)[at:at+n], same[float32](src))
	default:
		size := t.DType.Bytes(1)
		_ = dtype.Convert(t.DType, t.Data[at*size:(at+n)*size], dtype.Float32, bytesOf(same[float32](src)))
	}
}

// put rounds x into element at.
func put[F float](w *graph.Worker, t *graph.Tensor, at int, x F) {
	one := target[F](w, 7, t, at, 1)
	one[0] = x
	store(t, at, one)
}

// bytesOf views floats as bytes.
func bytesOf[F float](s []F) []byte {
	var zero F
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(zero)))
}

// zero sets elements [at, at+n) of t to +0.
func zero(t *graph.Tensor, at, n int) {
	clear(t.Data[t.DType.Bytes(at):t.DType.Bytes(at+n)])
}

// ints views an int32 operand.
func ints(t *graph.Tensor) []int32 { return graph.View[int32](t.Data) }

// scalar returns element i of t.
func scalar[F float](t *graph.Tensor, i int) F {
	var one [1]F
	loadInto(one[:], t, i)
	return one[0]
}

// rowGrain returns how many rows of width elements make a piece of a loop worth handing out.
func rowGrain(width int) int { return max(1, elemGrain/max(1, width)) }

// elemGrain is the number of elements of a piece of an elementwise loop.
const elemGrain = 1 << 14

// matrix is a 2-d operand of a product: rows by cols as stored, from element at on, rows ld apart.
type matrix struct {
	t     *graph.Tensor
	at    int
	ld    int
	trans bool // the product uses the transpose
	sf    factorView
}

// factorView are the factors of a matrix of block-scaled codes; the zero value has none.
type factorView struct {
	format   BlockFormat
	data     []byte // from the first factor of the matrix on
	layout   dtype.FactorLayout
	row, col int  // of the stored matrix, in elements: where the view begins
	down     bool // blocks run down the stored columns
}

// block returns the matrix that begins r rows and c columns into the product's view of m.
func (m matrix) block(r, c int) matrix {
	if m.trans {
		r, c = c, r
	}
	m.at += r*m.ld + c
	m.sf.row, m.sf.col = m.sf.row+r, m.sf.col+c
	return m
}

func (m matrix) operand() gemm.Operand {
	o := gemm.Operand{LD: m.ld, Trans: m.trans}
	if f := m.sf.format; f != NoBlockFormat {
		o.Scaled = gemm.Scaled{Codes: m.t.Data, Values: f.Values(), At: m.at, Factors: m.sf.data, Factor: f.Factor(), Vec: f.Vec(),
			Layout: m.sf.layout, Row: m.sf.row, Col: m.sf.col, Down: m.sf.down}
		return o
	}
	switch m.t.DType {
	case dtype.BFloat16:
		o.BF16 = tail(graph.View[uint16](m.t.Data), m.at)
	case dtype.Float16:
		o.F16 = tail(graph.View[uint16](m.t.Data), m.at)
	default:
		o.F32 = tail(graph.View[float32](m.t.Data), m.at)
	}
	return o
}

// tail returns s from element at on, nothing where s ends before it: a caller's operand without rows is empty.
func tail[T any](s []T, at int) []T { return s[min(at, len(s)):] }

// multiply computes c = alpha*a*b + beta*c, c (m,n) with rows ldc apart, in F.
func multiply[F float](w *graph.Worker, m, n, k int, alpha F, a, b matrix, beta F, c []F, ldc int) {
	if is64[F]() {
		av, bv := graph.View[float64](a.t.Data), graph.View[float64](b.t.Data)
		gemm.MulFloat64(a.trans, b.trans, m, n, k, float64(alpha), tail(av, a.at), a.ld, tail(bv, b.at), b.ld, float64(beta), same[float64](c), ldc)
		return
	}
	packing(w).Mul(m, n, k, float32(alpha), a.operand(), b.operand(), float32(beta), same[float32](c), ldc)
}

type packingKey struct{}

// packing returns the worker's packing buffers of matrix products.
func packing(w *graph.Worker) *gemm.Work {
	return w.Keep(packingKey{}, func() any { return new(gemm.Work) }).(*gemm.Work)
}

// Tiles of a matrix product on the host: what one goroutine computes at a time.
const (
	tileM = 128
	tileN = 512
)

// tiles returns how many tiles of size cut n.
func tiles(n, size int) int { return (n + size - 1) / size }
