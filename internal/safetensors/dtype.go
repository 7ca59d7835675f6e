package safetensors

import (
	"fmt"
	"math"
	"math/bits"
)

// dtypeBits is the size of one element in bits, for every element type of the format (version 0.8 of
// the reference implementation). Sub-byte elements are packed, so a tensor's size must come out in
// whole bytes.
var dtypeBits = map[string]uint64{
	"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
	"BOOL": 8, "U8": 8, "I8": 8,
	"F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
	"U16": 16, "I16": 16, "F16": 16, "BF16": 16,
	"U32": 32, "I32": 32, "F32": 32,
	"U64": 64, "I64": 64, "F64": 64, "C64": 64,
}

// byteSize is the number of bytes of a tensor. The error says what is wrong with dtype or shape.
func byteSize(dtype string, shape []int) (int, error) {
	elemBits, ok := dtypeBits[dtype]
	if !ok {
		return 0, fmt.Errorf("dtype: got %s, want one of the format's, such as F32, BF16, F8_E4M3, I64",
			quote(dtype))
	}
	numElems := uint64(1)
	for i, dim := range shape {
		if dim < 0 {
			return 0, fmt.Errorf("shape: got %d at axis %d, want 0 or more", dim, i)
		}
		hi, lo := bits.Mul64(numElems, uint64(dim))
		if hi != 0 {
			return 0, fmt.Errorf("shape: got %s, whose product overflows 64 bits", formatShape(shape))
		}
		numElems = lo
	}
	hi, numBits := bits.Mul64(numElems, elemBits)
	if hi != 0 || numBits/8 > math.MaxInt {
		return 0, fmt.Errorf("shape: got %s of %s, more bytes than can be addressed", formatShape(shape), dtype)
	}
	if numBits%8 != 0 {
		return 0, fmt.Errorf("shape: got %s of %s, %d bits, want whole bytes", formatShape(shape), dtype, numBits)
	}
	return int(numBits / 8), nil
}

// formatShape prints a shape for an error; a hostile one may have millions of axes.
func formatShape(shape []int) string {
	const most = 8
	if len(shape) > most {
		return fmt.Sprintf("%d axes beginning %v", len(shape), shape[:most])
	}
	return fmt.Sprint(shape)
}

// quote is %q for text out of a file, cut to a length that fits an error.
func quote(s string) string {
	const most = 100
	if len(s) > most {
		return fmt.Sprintf("%q...", s[:most])
	}
	return fmt.Sprintf("%q", s)
}

// cut prints a value out of a file without quotes, as short.
func cut(value any) string {
	const most = 40
	s := fmt.Sprint(value)
	if len(s) > most {
		return s[:most] + "..."
	}
	return s
}
