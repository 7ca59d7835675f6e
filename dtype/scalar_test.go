package dtype

import (
	"math"
	"testing"
)

func TestDecode_EveryCode(t *testing.T) {
	for _, r := range references {
		for _, code := range r.allCodes() {
			if got, want := float64(r.decode(code)), r.wantDecode(code); !sameFloat(got, want) {
				t.Errorf("%v decode %#x: got %g, want %g", r.dt, code, got, want)
			}
		}
	}
}

func TestEncode_GivesDecodedCodesBack(t *testing.T) {
	for _, r := range references {
		for _, code := range r.allCodes() {
			value, want := r.wantDecode(code), code
			if math.IsNaN(value) {
				want = r.nan
			}
			if r.dt == E5M2 && math.IsInf(value, 0) {
				want = code - 1 // the largest finite code of that sign
			}
			if got := r.encode(r.decode(code)); got != want {
				t.Errorf("%v encode(decode(%#x)): got %#x, want %#x", r.dt, code, got, want)
			}
		}
	}
}

func TestEncode_EveryBoundary(t *testing.T) {
	for _, r := range references {
		for _, f := range r.edges() {
			if got, want := r.encode(f), r.want(f); got != want {
				t.Errorf("%v encode %g (%#x): got %#x, want %#x", r.dt, f, math.Float32bits(f), got, want)
			}
		}
	}
}

// TestEncode_Stride walks all of float32 with a stride that no exponent or mantissa pattern divides.
func TestEncode_Stride(t *testing.T) {
	stride := uint64(40961)
	if testing.Short() {
		stride *= 16
	}
	for _, r := range references {
		for b := uint64(0); b < 1<<32; b += stride {
			f := math.Float32frombits(uint32(b))
			if got, want := r.encode(f), r.want(f); got != want {
				t.Fatalf("%v encode %g (%#x): got %#x, want %#x", r.dt, f, b, got, want)
			}
		}
	}
}

// TestEncode_Literals states by hand what the reference would otherwise be trusted with.
func TestEncode_Literals(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	negZero := float32(math.Copysign(0, -1))
	negNaN := math.Float32frombits(0xff800001)
	for _, c := range []struct {
		dt   DType
		in   float32
		want uint32
	}{
		{BFloat16, 1, 0x3f80}, {BFloat16, 1 + 0x1p-8, 0x3f80}, {BFloat16, 1 + 0x3p-8, 0x3f82},
		{BFloat16, math.MaxFloat32, 0x7f80}, {BFloat16, -inf, 0xff80}, {BFloat16, negNaN, 0x7fff},
		{BFloat16, negZero, 0x8000}, {BFloat16, 0x1p-133, 0x0001}, {BFloat16, 0x1p-134, 0x0000},
		{Float16, 1, 0x3c00}, {Float16, 65504, 0x7bff}, {Float16, 65519.996, 0x7bff}, {Float16, 65520, 0x7c00},
		{Float16, -65520, 0xfc00}, {Float16, negNaN, 0x7fff}, {Float16, 0x1p-24, 1}, {Float16, 0x1p-25, 0},
		{Float16, 0x1.000002p-25, 1}, {Float16, negZero, 0x8000}, {Float16, 0x1.ffep-15, 0x0400},
		{E4M3, 448, 0x7e}, {E4M3, 449, 0x7e}, {E4M3, inf, 0x7e}, {E4M3, -1e30, 0xfe}, {E4M3, nan, 0x7f},
		{E4M3, negNaN, 0x7f}, {E4M3, 1, 0x38}, {E4M3, 0x1p-9, 1}, {E4M3, 0x1p-10, 0}, {E4M3, 0x3p-10, 2},
		{E4M3, 1.0625, 0x38}, {E4M3, 1.1875, 0x3a}, {E4M3, negZero, 0x80}, {E4M3, 432, 0x7e}, {E4M3, 431, 0x7d},
		{E5M2, 57344, 0x7b}, {E5M2, 61440, 0x7b}, {E5M2, inf, 0x7b}, {E5M2, -inf, 0xfb}, {E5M2, negNaN, 0x7f},
		{E5M2, 1, 0x3c}, {E5M2, 1.125, 0x3c}, {E5M2, 1.375, 0x3e}, {E5M2, 0x1p-16, 1}, {E5M2, 0x1p-17, 0},
		{E2M1, .25, 0}, {E2M1, .75, 2}, {E2M1, 1.25, 2}, {E2M1, 1.75, 4}, {E2M1, 2.5, 4}, {E2M1, 3.5, 6},
		{E2M1, 5, 6}, {E2M1, 5.0000005, 7}, {E2M1, inf, 7}, {E2M1, -7, 15}, {E2M1, negNaN, 7}, {E2M1, negZero, 8},
		{E8M0, 0, 0}, {E8M0, negZero, 0}, {E8M0, 1, 127}, {E8M0, -1, 127}, {E8M0, 1.0000001, 128},
		{E8M0, 0x1p-149, 0}, {E8M0, 0x1p-127, 0}, {E8M0, 0x1.000004p-127, 1}, {E8M0, 0x1p127, 254},
		{E8M0, math.MaxFloat32, 254}, {E8M0, -inf, 254}, {E8M0, negNaN, 255},
	} {
		for _, r := range references {
			if r.dt != c.dt {
				continue
			}
			if got := r.encode(c.in); got != c.want {
				t.Errorf("%v encode %g: got %#x, want %#x", c.dt, c.in, got, c.want)
			}
			if got := r.want(c.in); got != c.want {
				t.Errorf("%v: the reference gives %#x for %g, want %#x", c.dt, got, c.in, c.want)
			}
		}
	}
}

// TestDecode_KeepsPayloads pins the bits of 16-bit NaN codes.
func TestDecode_KeepsPayloads(t *testing.T) {
	for _, code := range []uint16{0x7f81, 0x7fc1, 0x7fff, 0xff81, 0xffff} {
		if got, want := math.Float32bits(BF16Decode(code)), uint32(code)<<16; got != want {
			t.Errorf("bf16 %#x: got bits %#x, want %#x", code, got, want)
		}
	}
	for code, want := range map[uint16]uint32{0x7c01: 0x7f802000, 0x7e00: 0x7fc00000, 0xffff: 0xffffe000} {
		if got := math.Float32bits(F16Decode(code)); got != want {
			t.Errorf("f16 %#x: got bits %#x, want %#x", code, got, want)
		}
	}
}

func FuzzEncode(f *testing.F) {
	for _, b := range []uint32{0, 1, 0x3f800000, 0x7f800000, 0x7f800001, 0xff7fffff, 0x00400000, 0x477ff000} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b uint32) {
		x := math.Float32frombits(b)
		for _, r := range references {
			got := r.encode(x)
			if want := r.want(x); got != want {
				t.Errorf("%v encode %g (%#x): got %#x, want %#x", r.dt, x, b, got, want)
			}
			if again := r.encode(r.decode(got)); again != got {
				if inf := r.dt == E5M2 && got&0x7f == 0x7c; !inf {
					t.Errorf("%v: code %#x decodes and encodes to %#x", r.dt, got, again)
				}
			}
		}
	})
}
