package graph

import (
	"fmt"
	"unsafe"

	"github.com/moegraph/moegraph/dtype"
	"gorgonia.org/tensor"
)

// hostData is what a caller gave or wants filled: a slice, or a dense tensor.
type hostData struct {
	bytes []byte
	dt    dtype.DType // Invalid for 16- and 8-bit integers that may hold the bits of several formats
	size  int         // bytes an element
	shape []int       // nil for a slice
	what  string
}

func (d hostData) elems() int { return len(d.bytes) / d.size }

// elemsOf is the number of elements of format dt: bytes hold two fp4 codes each.
func (d hostData) elemsOf(dt dtype.DType) int {
	if dt == dtype.E2M1 && d.size == 1 {
		return 2 * len(d.bytes)
	}
	return d.elems()
}

func (d hostData) describe() string {
	if d.shape != nil {
		return d.what + " " + shapeString(d.shape, false)
	}
	return fmt.Sprintf("%s of %d", d.what, d.elems())
}

// fits says whether the bytes are those of format dt as they are.
func (d hostData) fits(dt dtype.DType) bool {
	if d.dt != dtype.Invalid {
		return d.dt == dt
	}
	if d.size == 1 {
		return dt.Bits() <= 8
	}
	return dt == dtype.BFloat16 || dt == dtype.Float16
}

// into writes the data in format dt to dst, converting floats.
func (d hostData) into(dt dtype.DType, dst []byte) error {
	if d.fits(dt) {
		copy(dst, d.bytes)
		return nil
	}
	if d.converts(dt) {
		return dtype.Convert(dt, dst, d.dt, d.bytes)
	}
	return BadDType("data", d.what, "%s", goTypes(dt))
}

// converts says whether the data can be converted to format dt and back.
func (d hostData) converts(dt dtype.DType) bool {
	return d.dt != dtype.Invalid && d.dt.IsFloat() && dt.IsFloat()
}

// goTypes says which Go slices carry a format.
func goTypes(dt dtype.DType) string {
	switch {
	case dt == dtype.BFloat16 || dt == dtype.Float16:
		return "[]uint16 (bits of " + dt.String() + "), []float32 or []float64"
	case dt.IsFloat() && dt.Bits() <= 8:
		codes := "codes of "
		if dt == dtype.E2M1 {
			codes = "two codes a byte of "
		}
		return "[]uint8 (" + codes + dt.String() + "), []float32 or []float64"
	case dt.IsFloat():
		return "[]float32 or []float64"
	case dt == dtype.Uint8:
		return "[]uint8"
	}
	return "[]" + dt.String()
}

func sliceBytes[T any](s []T) []byte {
	if len(s) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&s[0])), len(s)*int(unsafe.Sizeof(s[0])))
}

func f32Bytes(s []float32) []byte { return sliceBytes(s) }

// dataOf views a slice or a dense tensor as bytes, without a copy.
func dataOf(x any) (hostData, error) {
	switch s := x.(type) {
	case []float32:
		return hostData{sliceBytes(s), dtype.Float32, 4, nil, "[]float32"}, nil
	case []float64:
		return hostData{sliceBytes(s), dtype.Float64, 8, nil, "[]float64"}, nil
	case []int32:
		return hostData{sliceBytes(s), dtype.Int32, 4, nil, "[]int32"}, nil
	case []int64:
		return hostData{sliceBytes(s), dtype.Int64, 8, nil, "[]int64"}, nil
	case []uint64:
		return hostData{sliceBytes(s), dtype.Uint64, 8, nil, "[]uint64"}, nil
	case []uint16:
		return hostData{sliceBytes(s), dtype.Invalid, 2, nil, "[]uint16"}, nil
	case []uint8:
		return hostData{s, dtype.Invalid, 1, nil, "[]uint8"}, nil
	case *tensor.Dense:
		return denseData(s)
	}
	return hostData{}, BadDType("data", fmt.Sprintf("%T", x), "a slice of float32, float64, int32, int64, uint64, uint16 or uint8, or a *tensor.Dense")
}

func denseData(t *tensor.Dense) (hostData, error) {
	switch {
	case t == nil:
		return hostData{}, Misuse("data", "a nil *tensor.Dense", "a tensor")
	case !t.IsNativelyAccessible():
		return hostData{}, Misuse("data", "a tensor that Go cannot reach", "one in host memory")
	case t.IsMasked():
		return hostData{}, Unsupported("data", "a masked tensor", "one without a mask: fill what is masked first")
	case t.RequiresIterator() || t.DataOrder().IsColMajor() || t.DataOrder().IsTransposed():
		return hostData{}, BadShape("data", "a tensor with strides "+fmt.Sprint(t.Strides()), "contiguous rows: materialize the view or the transpose first")
	case t.IsScalar():
		return hostData{}, BadShape("data", "a scalar tensor", "a tensor of shape (1,)")
	}
	d, err := dataOf(t.Data())
	if err != nil {
		return hostData{}, err
	}
	d.shape, d.what = append([]int{}, t.Shape()...), "tensor.Dense "+t.Dtype().String()
	return d, nil
}

// copyOut copies the first n elements of data, in format dt, to dst and returns n.
func copyOut(name string, dst any, dt dtype.DType, shape []int, n int, data []byte) (int, error) {
	out, err := dataOf(dst)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	if out.elemsOf(dt) < n {
		return 0, fmt.Errorf("%s: %w", name, BadShape("data", out.describe(), "room for %d elements", n))
	}
	if out.shape != nil && len(shape) > 0 && shapeString(out.shape[1:], false) != shapeString(shape[1:], false) {
		return 0, fmt.Errorf("%s: %w", name, BadShape("data", out.describe(), "rows of shape %s", shapeString(shape[1:], false)))
	}
	src := data[:dt.Bytes(n)]
	switch {
	case out.fits(dt):
		copy(out.bytes, src)
	case out.converts(dt):
		if err := dtype.Convert(out.dt, out.bytes[:out.dt.Bytes(n)], dt, src); err != nil {
			return 0, err
		}
	default:
		return 0, fmt.Errorf("%s: %w", name, BadDType("data", out.what, "%s", goTypes(dt)))
	}
	return n, nil
}
