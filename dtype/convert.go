package dtype

import (
	"encoding/binary"
	"fmt"
	"math"
)

// convertChunk is how many values Convert holds as float32 at once: 4 KiB, on the stack. Even, so that
// chunks of E2M1 start on whole bytes.
const convertChunk = 1024

// Convert reads src in format srcType and writes the same values to dst in dstType, both floating.
// A format to itself copies bits, NaN payloads included. Float64 to a narrower format rounds twice, to
// float32 first: contracts define those formats from float32. Other pairs round once or not at all.
//
// Both slices must hold the same number of elements, else the error wraps ErrLength. Where one side is
// E2M1 the other one says how many; where both are, whole bytes are copied.
func Convert(dstType DType, dst []byte, srcType DType, src []byte) error {
	if !dstType.IsFloat() || !srcType.IsFloat() {
		return fmt.Errorf("%w: convert %v to %v: want floating formats", ErrFormat, srcType, dstType)
	}
	n := len(src) / max(srcType.Bits()/8, 1)
	if srcType == E2M1 && dstType != E2M1 {
		n = len(dst) / (dstType.Bits() / 8)
	}
	if srcType == E2M1 && dstType == E2M1 {
		n = 2 * len(src)
	}
	if len(src) != srcType.Bytes(n) || len(dst) != dstType.Bytes(n) {
		return fmt.Errorf("%w: convert %v to %v: got %d bytes to %d, want the same number of elements",
			ErrLength, srcType, dstType, len(src), len(dst))
	}
	if srcType == dstType {
		copy(dst, src)
		return nil
	}
	var buf [convertChunk]float32
	for n > 0 {
		m := min(n, convertChunk)
		numSrc, numDst := srcType.Bytes(m), dstType.Bytes(m)
		if err := Decode(srcType, buf[:m], src[:numSrc]); err != nil {
			return err
		}
		if err := Encode(dstType, dst[:numDst], buf[:m]); err != nil {
			return err
		}
		src, dst, n = src[numSrc:], dst[numDst:], n-m
	}
	return nil
}

// Float64s decodes src into float64 without any rounding: dst[i] is the exact value of element i. src
// must be dt.Bytes(len(dst)) bytes long. Comparisons use it, where Decode would round Float64.
func Float64s(dt DType, dst []float64, src []byte) error {
	if err := check("decode", dt, len(src), len(dst)); err != nil {
		return err
	}
	if dt == Float64 {
		for i := range dst {
			dst[i] = math.Float64frombits(binary.LittleEndian.Uint64(src[8*i:]))
		}
		return nil
	}
	var buf [convertChunk]float32
	for len(dst) > 0 {
		m := min(len(dst), convertChunk)
		numSrc := dt.Bytes(m)
		if err := Decode(dt, buf[:m], src[:numSrc]); err != nil {
			return err
		}
		for i, f := range buf[:m] {
			dst[i] = float64(f)
		}
		dst, src = dst[m:], src[numSrc:]
	}
	return nil
}
