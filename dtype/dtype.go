package dtype

import (
	"errors"
	"fmt"
)

// Kinds of errors, for errors.Is.
var (
	// ErrFormat says that a name is no format, or that an operation does not take the format given.
	ErrFormat = errors.New("dtype: format not supported")
	// ErrLength says that the lengths of two slices do not belong together.
	ErrLength = errors.New("dtype: length mismatch")
)

// DType is the format of the elements of a tensor. The zero value is Invalid.
type DType uint8

// The formats. The package comment has a table of the narrow ones.
const (
	Invalid  DType = iota
	Float64        // IEEE 754 binary64
	Float32        // IEEE 754 binary32
	Float16        // IEEE 754 binary16
	BFloat16       // the upper half of a binary32
	Int32
	Int64
	Uint8
	Uint64 // addresses
	E4M3   // fp8, values of MXFP8 and factors of NVFP4
	E5M2   // fp8, values of MXFP8
	E2M1   // fp4, two per byte
	E8M0   // powers of two, factors of MXFP8 and MXFP4
)

// formats is the table that all methods of DType read, indexed by DType.
var formats = [...]struct {
	name    string
	bits    int
	isFloat bool
}{
	Invalid:  {"invalid", 0, false},
	Float64:  {"f64", 64, true},
	Float32:  {"f32", 32, true},
	Float16:  {"f16", 16, true},
	BFloat16: {"bf16", 16, true},
	Int32:    {"int32", 32, false},
	Int64:    {"int64", 64, false},
	Uint8:    {"uint8", 8, false},
	Uint64:   {"uint64", 64, false},
	E4M3:     {"e4m3", 8, true},
	E5M2:     {"e5m2", 8, true},
	E2M1:     {"e2m1", 4, true},
	E8M0:     {"e8m0", 8, true},
}

// String gives the name that options and files use: "f32", "bf16", "e4m3", "int32" and so on.
func (d DType) String() string {
	if int(d) < len(formats) {
		return formats[d].name
	}
	return fmt.Sprintf("dtype(%d)", uint8(d))
}

// Parse is the inverse of String. It takes the exact lower-case names and wraps ErrFormat otherwise.
func Parse(name string) (DType, error) {
	for i, f := range formats {
		if DType(i) != Invalid && f.name == name {
			return DType(i), nil
		}
	}
	return Invalid, fmt.Errorf("%w: got %q, want one of "+
		"f64, f32, f16, bf16, int32, int64, uint8, uint64, e4m3, e5m2, e2m1, e8m0", ErrFormat, name)
}

// Bits is the size of one element in bits: 4 for E2M1, 0 for Invalid.
func (d DType) Bits() int {
	if int(d) < len(formats) {
		return formats[d].bits
	}
	return 0
}

// IsFloat reports whether Encode and Decode take the format. E8M0 counts: it stores real numbers.
func (d DType) IsFloat() bool {
	return int(d) < len(formats) && formats[d].isFloat
}

// Bytes is the number of bytes that n elements take in a contiguous array. An odd number of E2M1 codes
// rounds up to a whole byte. n must not be negative.
func (d DType) Bytes(n int) int {
	if d == E2M1 {
		return n/2 + n%2
	}
	return n * (d.Bits() / 8)
}
