package cuda

import (
	"encoding/binary"
	"fmt"
	"math"
)

// MaxArgBytes is how many bytes of arguments a kernel may have on every device from sm_70 on.
const MaxArgBytes = 32764

// ArgBuffer packs a kernel's arguments one after the other, each at the next multiple of its alignment, as a C++
// compiler lays out the parameters. The zero value is empty. It may be used again after Reset without allocating.
type ArgBuffer struct{ b []byte }

// Reset empties the buffer.
func (a *ArgBuffer) Reset() { a.b = a.b[:0] }

// Len returns the bytes so far.
func (a *ArgBuffer) Len() int { return len(a.b) }

// Data returns the packed arguments, valid until the next change.
func (a *ArgBuffer) Data() []byte { return a.b }

// Ptr adds a device address.
func (a *ArgBuffer) Ptr(p uint64) { a.Uint64(p) }

// Uint8 adds an unsigned char or bool.
func (a *ArgBuffer) Uint8(v uint8) { a.b = append(a.b, v) }

// Int32 adds an int.
func (a *ArgBuffer) Int32(v int32) { a.Uint32(uint32(v)) }

// Uint32 adds an unsigned int.
func (a *ArgBuffer) Uint32(v uint32) { a.b = binary.LittleEndian.AppendUint32(a.align(4), v) }

// Int64 adds a long long.
func (a *ArgBuffer) Int64(v int64) { a.Uint64(uint64(v)) }

// Uint64 adds an unsigned long long.
func (a *ArgBuffer) Uint64(v uint64) { a.b = binary.LittleEndian.AppendUint64(a.align(8), v) }

// Float32 adds a float.
func (a *ArgBuffer) Float32(v float32) { a.Uint32(math.Float32bits(v)) }

// Float64 adds a double.
func (a *ArgBuffer) Float64(v float64) { a.Uint64(math.Float64bits(v)) }

// Struct adds a struct by its bytes, with the alignment that C++ gives it, a power of two.
func (a *ArgBuffer) Struct(b []byte, align int) { a.b = append(a.align(align), b...) }

// TensorMap adds a CUtensorMap, a const __grid_constant__ parameter.
func (a *ArgBuffer) TensorMap(m *TensorMap) { a.Struct(m[:], tensorMapAlign) }

// Add adds one value of the types above, by its Go type.
func (a *ArgBuffer) Add(v any) error {
	switch v := v.(type) {
	case uint8:
		a.Uint8(v)
	case int32:
		a.Int32(v)
	case uint32:
		a.Uint32(v)
	case int64:
		a.Int64(v)
	case uint64:
		a.Uint64(v)
	case float32:
		a.Float32(v)
	case float64:
		a.Float64(v)
	case *TensorMap:
		a.TensorMap(v)
	default:
		return fmt.Errorf("kernel argument: got a %T, want uint8, int32, uint32, int64, uint64, float32, float64 or *TensorMap", v)
	}
	return nil
}

// align returns the buffer padded with zeros to a multiple of n.
func (a *ArgBuffer) align(n int) []byte {
	if n <= 0 || n&(n-1) != 0 {
		panic(fmt.Sprintf("cuda: alignment of a kernel argument: got %d, want a power of two", n))
	}
	for len(a.b)%n != 0 {
		a.b = append(a.b, 0)
	}
	return a.b
}

// TensorMap is an encoded CUtensorMap: how the tensor memory accelerator of sm_90 and later finds a box of a tensor.
// It holds the tensor's address, so it is good as long as that is. See Device.EncodeTensorMap.
type TensorMap [128]byte

// tensorMapAlign is a CUtensorMap's alignment as a parameter.
const tensorMapAlign = 64
