package dtype

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Encode rounds src into dst in format dt, as the format's scalar function does. dst must be exactly
// dt.Bytes(len(src)) bytes long, else the error wraps ErrLength; formats that hold no real numbers give
// ErrFormat. The unused nibble behind an odd number of E2M1 codes is written as 0.
func Encode(dt DType, dst []byte, src []float32) error {
	if err := check("encode", dt, len(dst), len(src)); err != nil {
		return err
	}
	switch dt {
	case Float64:
		for i, f := range src {
			binary.LittleEndian.PutUint64(dst[8*i:], math.Float64bits(float64(f)))
		}
	case Float32:
		encodeF32(dst, floatBits(src))
	case Float16:
		for i, b := range floatBits(src) {
			code := uint16(NaN16)
			if !isNaN(b) {
				code = f16Code(b)
			}
			binary.LittleEndian.PutUint16(dst[2*i:], code)
		}
	case BFloat16:
		encodeBF16Bytes(dst, src)
	case E4M3:
		encodeE4M3(dst, src)
	case E5M2:
		encodeE5M2(dst, src)
	case E8M0:
		for i, f := range src {
			dst[i] = E8M0Encode(f)
		}
	case E2M1:
		encodeE2M1(dst, src)
	}
	return nil
}

// Decode reads len(dst) values of format dt from src. src must be exactly dt.Bytes(len(dst)) bytes
// long, else the error wraps ErrLength; formats that hold no real numbers give ErrFormat. Only Float64
// is rounded, once, to nearest even; every other format is exact in float32.
func Decode(dt DType, dst []float32, src []byte) error {
	if err := check("decode", dt, len(src), len(dst)); err != nil {
		return err
	}
	switch dt {
	case Float64:
		for i := range dst {
			dst[i] = float32(math.Float64frombits(binary.LittleEndian.Uint64(src[8*i:])))
		}
	case Float32:
		decodeF32(floatBits(dst), src)
	case Float16:
		for i := range dst {
			dst[i] = F16Decode(binary.LittleEndian.Uint16(src[2*i:]))
		}
	case BFloat16:
		decodeBF16Bytes(dst, src)
	case E4M3:
		decodeBytes(dst, src, &e4m3Values)
	case E5M2:
		decodeBytes(dst, src, &e5m2Values)
	case E8M0:
		for i := range dst {
			dst[i] = E8M0Decode(src[i])
		}
	case E2M1:
		for i := range len(dst) / 2 {
			pair := (*[2]float32)(dst[2*i:])
			pair[0], pair[1] = e2m1Values[src[i]&15], e2m1Values[src[i]>>4]
		}
		if n := len(dst); n%2 == 1 {
			dst[n-1] = E2M1Decode(src[n/2])
		}
	}
	return nil
}

// check refuses formats without real numbers and byte counts that are not those of n elements.
func check(op string, dt DType, numBytes, n int) error {
	if !dt.IsFloat() {
		return fmt.Errorf("%w: %s: got %v, want a floating format", ErrFormat, op, dt)
	}
	if want := dt.Bytes(n); numBytes != want {
		return fmt.Errorf("%w: %s %v: got %d bytes for %d elements, want %d", ErrLength, op, dt, numBytes, n, want)
	}
	return nil
}

// encodeF32 stores bits two at a time; dst is four times as long.
func encodeF32(dst []byte, bits []uint32) {
	for len(bits) >= 2 && len(dst) >= 8 {
		b := (*[2]uint32)(bits)
		binary.LittleEndian.PutUint64(dst, uint64(b[0])|uint64(b[1])<<32)
		bits, dst = bits[2:], dst[8:]
	}
	for i, b := range bits {
		binary.LittleEndian.PutUint32(dst[4*i:], b)
	}
}

// decodeF32 loads bits two at a time; src is four times as long.
func decodeF32(bits []uint32, src []byte) {
	for len(bits) >= 2 && len(src) >= 8 {
		b, pair := (*[2]uint32)(bits), binary.LittleEndian.Uint64(src)
		b[0], b[1] = uint32(pair), uint32(pair>>32)
		bits, src = bits[2:], src[8:]
	}
	for i := range bits {
		bits[i] = binary.LittleEndian.Uint32(src[4*i:])
	}
}

// encodeE4M3 is E4M3Encode over a slice; dst is as long as src. Like the two functions below it repeats
// the NaN test of the scalar function, which is too large to be inlined as a whole.
func encodeE4M3(dst []byte, src []float32) {
	bits := floatBits(src)[:len(dst)]
	for i := range dst {
		if b := bits[i]; isNaN(b) {
			dst[i] = NaN8
		} else {
			dst[i] = e4m3Code(b)
		}
	}
}

func encodeE5M2(dst []byte, src []float32) {
	bits := floatBits(src)[:len(dst)]
	for i := range dst {
		if b := bits[i]; isNaN(b) {
			dst[i] = NaN8
		} else {
			dst[i] = e5m2Code(b)
		}
	}
}

// encodeE2M1 packs two codes a byte; the nibble behind an odd number of codes is 0.
func encodeE2M1(dst []byte, src []float32) {
	bits := floatBits(src)
	for i := range dst {
		var packed uint8
		for half, b := range bits[2*i : min(2*i+2, len(bits))] {
			code := uint8(NaNE2M1)
			if !isNaN(b) {
				code = e2m1Code(b)
			}
			packed |= code << (4 * half)
		}
		dst[i] = packed
	}
}

// decodeBytes looks every code up. src is as long as dst.
func decodeBytes(dst []float32, src []byte, values *[256]float32) {
	src = src[:len(dst)]
	for i := range dst {
		dst[i] = values[src[i]]
	}
}
