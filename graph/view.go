package graph

import (
	"unsafe"

	"github.com/moegraph/moegraph/dtype"
)

// View returns the elements of host memory as a slice of T, whose size must be the format's element size.
// Bytes that are not aligned to T, which only a caller's own memory can be, are copied.
func View[T any](b []byte) []T {
	var zero T
	n := len(b) / int(unsafe.Sizeof(zero))
	if n == 0 {
		return nil
	}
	p := unsafe.Pointer(&b[0])
	if uintptr(p)%unsafe.Alignof(zero) != 0 {
		c := make([]T, n)
		copy(sliceBytes(c), b)
		return c
	}
	return unsafe.Slice((*T)(p), n)
}

// typed returns the first n elements as a Go slice, nil for formats that Go lacks or memory out of reach.
func typed(t *Tensor, n int) any {
	if t.Data == nil {
		return nil
	}
	b := t.Data[:t.DType.Bytes(n)]
	switch t.DType {
	case dtype.Float32:
		return View[float32](b)
	case dtype.Float64:
		return View[float64](b)
	case dtype.Int32:
		return View[int32](b)
	case dtype.Int64:
		return View[int64](b)
	case dtype.Uint64:
		return View[uint64](b)
	case dtype.Uint8:
		return b
	}
	return nil
}

// newSlice returns n elements that a format is read into: integers as they are, floats as float32.
func newSlice(dt dtype.DType, n int) any {
	switch dt {
	case dtype.Int32:
		return make([]int32, n)
	case dtype.Int64:
		return make([]int64, n)
	case dtype.Uint64:
		return make([]uint64, n)
	case dtype.Uint8:
		return make([]uint8, n)
	}
	return make([]float32, n)
}
