package npz

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Kinds of errors, for errors.Is.
var (
	// ErrInvalid says that a file or an array is not what this package reads or writes.
	ErrInvalid = errors.New("invalid array file")
	// ErrTooLarge says that the arrays of a file exceed Options.MaxBytes.
	ErrTooLarge = errors.New("array file too large")
)

const (
	maxDims = 64      // NumPy's own limit on dimensions
	maxDim  = 1 << 56 // of one dimension, which matters where another is 0: sizes in bits stay within 64
)

// Array is one array of a file.
type Array struct {
	Name  string // the key: the member's name without ".npy"
	DType string // NumPy's descr: "<f4", "|u1", "<U12"; see itemSizes
	Shape []int  // nil or empty: a scalar
	Data  []byte // C order, little endian; exactly the product of Shape times the item size
}

// itemSizes are the types read and written, with the bytes of an element. Unicode strings, "<U" and a
// number of code points of 4 bytes each, come on top.
var itemSizes = map[string]int{
	"<f2": 2, "<f4": 4, "<f8": 8,
	"|i1": 1, "<i4": 4, "<i8": 8,
	"|u1": 1, "<u2": 2, "<u4": 4, "<u8": 8,
	"|b1": 1,
}

// itemSize is the number of bytes of an element of a type, or an error that says what is wrong with it.
func itemSize(descr string) (int, error) {
	if n, ok := itemSizes[descr]; ok {
		return n, nil
	}
	if digits, ok := strings.CutPrefix(descr, "<U"); ok {
		n, err := strconv.Atoi(digits)
		if err == nil && n >= 0 && n <= math.MaxInt32/4 && strconv.Itoa(n) == digits {
			return 4 * n, nil
		}
	}
	reason := "want one of <f2 <f4 <f8 |i1 <i4 <i8 |u1 <u2 <u4 <u8 |b1 or <U with a length"
	if strings.HasPrefix(descr, ">") {
		reason = "want little endian (the type is big endian)"
	}
	return 0, fmt.Errorf("%w: dtype: got %q, %s", ErrInvalid, descr, reason)
}

// dataSize is the number of bytes of an array, or an error for shapes that cannot exist. Dimensions other
// than zero must not overflow together, even where a zero makes the array empty.
func dataSize(descr string, shape []int) (int64, error) {
	item, err := itemSize(descr)
	if err != nil {
		return 0, err
	}
	if len(shape) > maxDims {
		return 0, fmt.Errorf("%w: shape: got %d dimensions, want at most %d", ErrInvalid, len(shape), maxDims)
	}
	size, empty := int64(max(item, 1)), item == 0
	for _, d := range shape {
		switch {
		case d < 0:
			return 0, fmt.Errorf("%w: shape: got dimension %d in %v, want none negative", ErrInvalid, d, shape)
		case d == 0:
			empty = true
		case int64(d) > maxDim:
			return 0, fmt.Errorf("%w: shape: got dimension %d, want at most %d", ErrInvalid, d, int64(maxDim))
		case size > math.MaxInt64/int64(d):
			return 0, fmt.Errorf("%w: shape: got %v of %s, its bytes overflow 64 bits", ErrInvalid, shape, descr)
		default:
			size *= int64(d)
		}
	}
	if empty {
		return 0, nil
	}
	return size, nil
}

// Len is the number of elements: 1 for a scalar. The array must pass Check.
func (a Array) Len() int {
	n := 1
	for _, d := range a.Shape {
		n *= d
	}
	return n
}

// Check says whether type, shape and bytes of an array belong together.
func (a Array) Check() error {
	want, err := dataSize(a.DType, a.Shape)
	if err != nil {
		return err
	}
	if int64(len(a.Data)) != want {
		return fmt.Errorf("%w: data: got %d bytes, want %d (shape %v of %s)", ErrInvalid, len(a.Data), want, a.Shape, a.DType)
	}
	return nil
}

// Text reads a scalar of type "<U". Trailing NUL code points are NumPy's padding and are cut off.
func (a Array) Text() (string, error) {
	if !strings.HasPrefix(a.DType, "<U") || len(a.Shape) != 0 {
		return "", fmt.Errorf("%w: %q: got %s of shape %v, want a scalar string", ErrInvalid, a.Name, a.DType, a.Shape)
	}
	if err := a.Check(); err != nil {
		return "", fmt.Errorf("%q: %w", a.Name, err)
	}
	var b strings.Builder
	for i := 0; i < len(a.Data); i += 4 {
		point := binary.LittleEndian.Uint32(a.Data[i:])
		if point > utf8.MaxRune || !utf8.ValidRune(rune(point)) {
			return "", fmt.Errorf("%w: %q: code point %#x at %d is no character", ErrInvalid, a.Name, point, i/4)
		}
		b.WriteRune(rune(point))
	}
	return strings.TrimRight(b.String(), "\x00"), nil
}

// Text makes a scalar string. Invalid UTF-8 becomes U+FFFD, a character a byte.
func Text(name, s string) Array {
	var data []byte
	for _, r := range s {
		data = binary.LittleEndian.AppendUint32(data, uint32(r))
	}
	if len(data) == 0 {
		data = make([]byte, 4) // as NumPy, which has no string of length 0
	}
	return Array{Name: name, DType: "<U" + strconv.Itoa(len(data)/4), Data: data}
}

// Int32s makes an array of int32. It panics where shape and values do not belong together, for its callers
// write both.
func Int32s(name string, shape []int, values ...int32) Array {
	var data []byte
	for _, v := range values {
		data = binary.LittleEndian.AppendUint32(data, uint32(v))
	}
	return must(Array{Name: name, DType: "<i4", Shape: shape, Data: data})
}

// Float32s makes an array of float32, on Int32s's terms.
func Float32s(name string, shape []int, values ...float32) Array {
	var data []byte
	for _, v := range values {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
	}
	return must(Array{Name: name, DType: "<f4", Shape: shape, Data: data})
}

func must(a Array) Array {
	if err := a.Check(); err != nil {
		panic(fmt.Sprintf("npz: array %q: %v", a.Name, err))
	}
	return a
}
