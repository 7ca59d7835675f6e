package dtype

import "math"

// Values of every code of the narrow formats.
var (
	e4m3Values = e4m3Table()
	e5m2Values = e5m2Table()
	e2m1Values = [16]float32{0, 0.5, 1, 1.5, 2, 3, 4, 6,
		float32(math.Copysign(0, -1)), -0.5, -1, -1.5, -2, -3, -4, -6}
)

// BF16Decode is exact; NaN payloads are kept.
func BF16Decode(code uint16) float32 {
	return math.Float32frombits(uint32(code) << 16)
}

// F16Decode is exact, subnormals too; NaN payloads are kept.
func F16Decode(code uint16) float32 {
	sign := uint32(code&0x8000) << 16
	mag := uint32(code&0x7fff) << 13
	if mag >= 31<<23 { // Inf and NaN
		return math.Float32frombits(sign | infBits | mag)
	}
	// As a float32 the same exponent and mantissa stand for 2^-112 times the value, in subnormals too.
	return math.Float32frombits(sign | math.Float32bits(math.Float32frombits(mag)*0x1p112))
}

// E4M3Decode is exact; codes 0x7f and 0xff are NaN.
func E4M3Decode(code uint8) float32 { return e4m3Values[code] }

// E5M2Decode is exact; codes 0x7c and 0xfc are Inf, those above in magnitude NaN.
func E5M2Decode(code uint8) float32 { return e5m2Values[code] }

// E2M1Decode is exact. It reads the low nibble and ignores the high one.
func E2M1Decode(code uint8) float32 { return e2m1Values[code&15] }

// E8M0Decode gives 2^(code-127), for code 0 the float32 subnormal 2^-127, and NaN for code 0xff.
func E8M0Decode(code uint8) float32 {
	switch code {
	case 0:
		return 0x1p-127
	case NaNE8M0:
		return math.Float32frombits(0x7fc00000)
	}
	return math.Float32frombits(uint32(code) << 23)
}

// e4m3Table spells the format out: S.EEEE.MMM, bias 7.
func e4m3Table() (t [256]float32) {
	for code := range 128 {
		t[code] = miniFloat(code>>3, code&7, 3, 7)
	}
	t[0x7f] = float32(math.NaN())
	mirror(&t)
	return t
}

// e5m2Table spells the format out: S.EEEEE.MM, bias 15.
func e5m2Table() (t [256]float32) {
	for code := range 0x7c {
		t[code] = miniFloat(code>>2, code&3, 2, 15)
	}
	t[0x7c] = float32(math.Inf(1))
	for code := 0x7d; code < 128; code++ {
		t[code] = float32(math.NaN())
	}
	mirror(&t)
	return t
}

// miniFloat is the value of a finite code without sign.
func miniFloat(exp, man, manBits, bias int) float32 {
	if exp == 0 {
		return float32(math.Ldexp(float64(man), 1-bias-manBits))
	}
	return float32(math.Ldexp(float64(man+1<<manBits), exp-bias-manBits))
}

// mirror fills the negative half of a table from its positive half.
func mirror(t *[256]float32) {
	for code := range 128 {
		t[code+128] = math.Float32frombits(math.Float32bits(t[code]) | signMask)
	}
}
