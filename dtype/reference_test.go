package dtype

import (
	"encoding/binary"
	"fmt"
	"math"
	"sort"
)

// reference is a format spelled out a second time, from its definition: a table of values in float64
// and a search for the nearest. It shares nothing with the code under test.
type reference struct {
	dt       DType
	values   []float64 // of the non-negative finite codes, ascending; values[i] is the value of code i
	sign     uint32    // the sign bit of a code, 0 for e8m0
	nan      uint32    // the canonical NaN
	overflow uint32    // the code that magnitudes at or past limit take
	limit    float64
	roundUp  bool
	encode   func(float32) uint32
	decode   func(uint32) float32
}

// ieeeValues lists the non-negative codes below numCodes of a format with a hidden bit and subnormals.
func ieeeValues(numCodes, manBits, bias int) []float64 {
	v := make([]float64, numCodes)
	for code := range v {
		exp, man := code/(1<<manBits), float64(code%(1<<manBits))/float64(int(1)<<manBits)
		if exp == 0 {
			v[code] = man * math.Pow(2, float64(1-bias))
		} else {
			v[code] = (1 + man) * math.Pow(2, float64(exp-bias))
		}
	}
	return v
}

func powers() []float64 {
	v := make([]float64, 255)
	for code := range v {
		v[code] = math.Pow(2, float64(code-127))
	}
	return v
}

var references = []reference{
	{dt: BFloat16, values: ieeeValues(0x7f80, 7, 127), sign: 0x8000, nan: 0x7fff,
		overflow: 0x7f80, limit: (0x1.fep127 + 0x1p128) / 2,
		encode: func(f float32) uint32 { return uint32(BF16Encode(f)) },
		decode: func(c uint32) float32 { return BF16Decode(uint16(c)) }},
	{dt: Float16, values: ieeeValues(0x7c00, 10, 15), sign: 0x8000, nan: 0x7fff,
		overflow: 0x7c00, limit: 65520,
		encode: func(f float32) uint32 { return uint32(F16Encode(f)) },
		decode: func(c uint32) float32 { return F16Decode(uint16(c)) }},
	{dt: E4M3, values: ieeeValues(0x7f, 3, 7), sign: 0x80, nan: 0x7f,
		overflow: 0x7e, limit: 448,
		encode: func(f float32) uint32 { return uint32(E4M3Encode(f)) },
		decode: func(c uint32) float32 { return E4M3Decode(uint8(c)) }},
	{dt: E5M2, values: ieeeValues(0x7c, 2, 15), sign: 0x80, nan: 0x7f,
		overflow: 0x7b, limit: 57344,
		encode: func(f float32) uint32 { return uint32(E5M2Encode(f)) },
		decode: func(c uint32) float32 { return E5M2Decode(uint8(c)) }},
	{dt: E2M1, values: []float64{0, .5, 1, 1.5, 2, 3, 4, 6}, sign: 8, nan: 7,
		overflow: 7, limit: 6,
		encode: func(f float32) uint32 { return uint32(E2M1Encode(f)) },
		decode: func(c uint32) float32 { return E2M1Decode(uint8(c)) }},
	{dt: E8M0, values: powers(), nan: 0xff, overflow: 254, limit: 0x1p127, roundUp: true,
		encode: func(f float32) uint32 { return uint32(E8M0Encode(f)) },
		decode: func(c uint32) float32 { return E8M0Decode(uint8(c)) }},
}

// want is the code of f.
func (r *reference) want(f float32) uint32 {
	x := float64(f)
	if math.IsNaN(x) {
		return r.nan
	}
	var sign uint32
	if math.Signbit(x) {
		sign, x = r.sign, -x
	}
	if x >= r.limit {
		return sign | r.overflow
	}
	above := sort.SearchFloat64s(r.values, x) // the first code whose value is not below x
	if above == len(r.values) {               // between the largest value and the limit
		return sign | uint32(above-1)
	}
	if r.roundUp || above == 0 || r.values[above] == x {
		return sign | uint32(above)
	}
	up, down := r.values[above]-x, x-r.values[above-1]
	if up < down || up == down && above%2 == 0 {
		return sign | uint32(above)
	}
	return sign | uint32(above-1)
}

// allCodes are the codes of the format that differ, signs and NaN included.
func (r *reference) allCodes() []uint32 {
	codes := make([]uint32, 1<<r.dt.Bits())
	for i := range codes {
		codes[i] = uint32(i)
	}
	return codes
}

// wantDecode is the value of any code; a NaN stands for all NaN.
func (r *reference) wantDecode(code uint32) float64 {
	mag, sign := code, 1.0
	if code&r.sign != 0 {
		mag, sign = code&^r.sign, -1
	}
	switch {
	case int(mag) < len(r.values):
		return math.Copysign(r.values[mag], sign)
	case r.dt != E4M3 && r.dt != E8M0 && int(mag) == len(r.values):
		return math.Inf(int(sign))
	}
	return math.NaN()
}

// edges are the inputs at which a rounding can go wrong: every value and every midpoint between
// neighbours, each with the float32 below and above it, in both signs; the ends of the range; NaN.
func (r *reference) edges() []float32 {
	inf := float32(math.Inf(1))
	var e []float32
	add := func(x float64) {
		f := float32(x)
		if float64(f) != x {
			panic(fmt.Sprintf("%v: %g is no float32", r.dt, x))
		}
		for _, g := range []float32{f, math.Nextafter32(f, inf), math.Nextafter32(f, -inf)} {
			e = append(e, g, -g)
		}
	}
	for i, v := range r.values {
		add(v)
		if i+1 < len(r.values) {
			add((v + r.values[i+1]) / 2)
		}
	}
	add(r.limit)
	for _, b := range []uint32{0, 1, 2, 0x3fffff, 0x400000, 0x400001, 0x7fffff, 0x800000, 0x7f7fffff, 0x7f800000,
		0x7f800001, 0x7fbfffff, 0x7fc00000, 0x7fffffff} {
		e = append(e, math.Float32frombits(b), math.Float32frombits(b|0x80000000))
	}
	return e
}

// sameFloat is equality of bits, but any NaN equals any other.
func sameFloat(a, b float64) bool {
	return math.IsNaN(a) && math.IsNaN(b) || math.Float64bits(a) == math.Float64bits(b)
}

// codeAt reads code i of packed bytes.
func codeAt(dt DType, b []byte, i int) uint32 {
	switch dt.Bits() {
	case 4:
		return uint32(b[i/2]) >> (4 * (i % 2)) & 15
	case 8:
		return uint32(b[i])
	}
	return uint32(binary.LittleEndian.Uint16(b[2*i:]))
}
