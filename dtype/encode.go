package dtype

import "math"

// Bits of float32 that several encodings compare against.
const (
	signMask = 0x80000000 // of a float32
	infBits  = 0x7f800000 // +Inf; a magnitude above it is a NaN
)

// Canonical NaN codes: what every NaN encodes to. E2M1 has no NaN and takes its largest value.
const (
	NaN16   = 0x7fff // of BFloat16 and Float16
	NaN8    = 0x7f   // of E4M3 and E5M2
	NaNE2M1 = 0x7    // +6
	NaNE8M0 = 0xff
)

// isNaN reports whether the bits are those of a float32 NaN.
func isNaN(b uint32) bool { return b&^signMask > infBits }

// BF16Encode rounds to nearest even. Values beyond the largest finite code become Inf, NaN 0x7fff.
func BF16Encode(f float32) uint16 {
	b := math.Float32bits(f)
	if isNaN(b) {
		return NaN16
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// F16Encode rounds to nearest even. From 65520 on, half a unit above the largest finite code, values
// become Inf; NaN becomes 0x7fff.
func F16Encode(f float32) uint16 {
	b := math.Float32bits(f)
	if isNaN(b) {
		return NaN16
	}
	return f16Code(b)
}

// f16Code is F16Encode of bits that are no NaN.
func f16Code(b uint32) uint16 {
	const (
		infinite  = 0x47800000 // 65536, which the code of Inf would stand for
		minNormal = 0x38800000 // 2^-14
	)
	return uint16(b>>16&0x8000 | roundNarrow(min(b&^signMask, infinite), minNormal, 10))
}

// E4M3Encode rounds to nearest even and saturates to +-448, Inf included. NaN becomes 0x7f.
func E4M3Encode(f float32) uint8 {
	b := math.Float32bits(f)
	if isNaN(b) {
		return NaN8
	}
	return e4m3Code(b)
}

// e4m3Code is E4M3Encode of bits that are no NaN.
func e4m3Code(b uint32) uint8 {
	const (
		maxValue  = 0x43e00000 // 448
		minNormal = 0x3c800000 // 2^-6
	)
	return uint8(b>>24&0x80 | roundNarrow(min(b&^signMask, maxValue), minNormal, 3))
}

// E5M2Encode rounds to nearest even and saturates to +-57344, Inf included. NaN becomes 0x7f.
func E5M2Encode(f float32) uint8 {
	b := math.Float32bits(f)
	if isNaN(b) {
		return NaN8
	}
	return e5m2Code(b)
}

// e5m2Code is E5M2Encode of bits that are no NaN.
func e5m2Code(b uint32) uint8 {
	const (
		maxValue  = 0x47600000 // 57344
		minNormal = 0x38800000 // 2^-14
	)
	return uint8(b>>24&0x80 | roundNarrow(min(b&^signMask, maxValue), minNormal, 2))
}

// E2M1Encode rounds to nearest even and saturates to +-6, Inf included. The code is in the low nibble;
// the high one is 0. NaN becomes +6 whatever its sign.
func E2M1Encode(f float32) uint8 {
	b := math.Float32bits(f)
	if isNaN(b) {
		return NaNE2M1
	}
	return e2m1Code(b)
}

// e2m1Code is E2M1Encode of bits that are no NaN.
func e2m1Code(b uint32) uint8 {
	const (
		maxValue  = 0x40c00000 // 6
		minNormal = 0x3f800000 // 1
	)
	return uint8(b>>28&0x8 | roundNarrow(min(b&^signMask, maxValue), minNormal, 1))
}

// E8M0Encode rounds the magnitude up to a power of two, so that a block divided by its factor never
// exceeds the range the factor was made for. It clamps to codes 0 (2^-127, zero too) and 254 (2^127, Inf
// too); the sign is dropped. NaN becomes 0xff.
func E8M0Encode(f float32) uint8 {
	mag := math.Float32bits(f) &^ signMask
	switch {
	case mag <= 0x00400000: // 2^-127, a subnormal of float32
		return 0
	case mag > infBits:
		return NaNE8M0
	case mag >= 0x7f000000: // 2^127
		return 254
	}
	return uint8((mag + 0x7fffff) >> 23)
}

// roundNarrow returns the code, without sign, of a magnitude in a format of manBits mantissa bits whose
// smallest normal number is minNormal; mag and minNormal are bits of float32, mag at most 2^16.
//
// One unit is the last place of the format at the magnitude's exponent, or that of the subnormals below
// minNormal. Adding 2^23 units puts a unit at the last place of float32, so the addition itself rounds to
// nearest even. Consecutive binades are 2^manBits codes apart, and a carry into the next binade is the
// code that follows: one formula serves subnormal, normal and carried results, without a branch.
func roundNarrow(mag, minNormal uint32, manBits int) uint32 {
	exp := max(mag&infBits, minNormal)
	magic := exp + uint32(23-manBits)<<23 // 2^23 units
	units := math.Float32bits(math.Float32frombits(mag)+math.Float32frombits(magic)) - magic
	return (exp-minNormal)>>(23-manBits) + units
}
