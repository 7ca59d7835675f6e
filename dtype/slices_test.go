package dtype

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// values16 are inputs of every kind, in no order that a table or a branch predictor could like.
func values16(n int) []float32 {
	rng := rand.New(rand.NewPCG(1, 2))
	v := make([]float32, n)
	for i := range v {
		switch i % 3 {
		case 0:
			v[i] = math.Float32frombits(rng.Uint32())
		case 1:
			v[i] = float32(rng.NormFloat64())
		default:
			v[i] = float32(rng.NormFloat64() * 0x1p-14)
		}
	}
	return v
}

// TestSlices_EqualScalars runs every length around the unrolled steps.
func TestSlices_EqualScalars(t *testing.T) {
	for _, n := range []int{0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 1000, 1023} {
		src := values16(n)
		for _, r := range references {
			b := make([]byte, r.dt.Bytes(n))
			for i := range b {
				b[i] = 0xa5 // what was there must not show
			}
			if err := Encode(r.dt, b, src); err != nil {
				t.Fatal(err)
			}
			dst := make([]float32, n)
			if err := Decode(r.dt, dst, b); err != nil {
				t.Fatal(err)
			}
			for i, f := range src {
				code := codeAt(r.dt, b, i)
				if want := r.encode(f); code != want {
					t.Fatalf("%v n=%d: code %d of %g: got %#x, want %#x", r.dt, n, i, f, code, want)
				}
				if want := r.decode(code); math.Float32bits(dst[i]) != math.Float32bits(want) {
					t.Fatalf("%v n=%d: value %d of code %#x: got %g, want %g", r.dt, n, i, code, dst[i], want)
				}
			}
			if r.dt == E2M1 && n%2 == 1 && b[n/2]>>4 != 0 {
				t.Errorf("e2m1 n=%d: the unused nibble is %#x, want 0", n, b[n/2]>>4)
			}
		}
		checkTyped(t, "bf16", src, EncodeBF16, DecodeBF16, BF16Encode, BF16Decode)
		checkTyped(t, "f16", src, EncodeF16, DecodeF16, F16Encode, F16Decode)
	}
}

// checkTyped compares the functions over slices of codes; src is longer than dst by one where it can be.
func checkTyped(t *testing.T, name string, src []float32, encode func([]uint16, []float32),
	decode func([]float32, []uint16), encode1 func(float32) uint16, decode1 func(uint16) float32) {
	t.Helper()
	n := max(len(src)-1, 0)
	codes, values := make([]uint16, n), make([]float32, n)
	encode(codes, src)
	decode(values, codes)
	for i, code := range codes {
		if want := encode1(src[i]); code != want {
			t.Fatalf("%s n=%d: code %d: got %#x, want %#x", name, n, i, code, want)
		}
		if want := decode1(code); math.Float32bits(values[i]) != math.Float32bits(want) {
			t.Fatalf("%s n=%d: value %d: got %g, want %g", name, n, i, values[i], want)
		}
	}
}

// TestDecode_EveryCodeInSlices covers codes that no encoding writes, E5M2's Inf for one.
func TestDecode_EveryCodeInSlices(t *testing.T) {
	for _, r := range references {
		codes := r.allCodes()
		b := make([]byte, r.dt.Bytes(len(codes)))
		for i, c := range codes {
			switch r.dt.Bits() {
			case 4:
				b[i/2] |= byte(c << (4 * (i % 2)))
			case 8:
				b[i] = byte(c)
			default:
				b[2*i], b[2*i+1] = byte(c), byte(c>>8)
			}
		}
		dst, wide := make([]float32, len(codes)), make([]float64, len(codes))
		if err := Decode(r.dt, dst, b); err != nil {
			t.Fatal(err)
		}
		if err := Float64s(r.dt, wide, b); err != nil {
			t.Fatal(err)
		}
		for i, c := range codes {
			if want := r.wantDecode(c); !sameFloat(float64(dst[i]), want) || !sameFloat(wide[i], want) {
				t.Errorf("%v code %#x: got %g and %g, want %g", r.dt, c, dst[i], wide[i], want)
			}
		}
	}
}

func TestSlices_Refuse(t *testing.T) {
	for _, c := range []struct {
		name string
		err  error
		want error
	}{
		{"encode short", Encode(BFloat16, make([]byte, 5), make([]float32, 3)), ErrLength},
		{"encode long", Encode(E2M1, make([]byte, 3), make([]float32, 3)), ErrLength},
		{"decode short", Decode(Float16, make([]float32, 2), make([]byte, 3)), ErrLength},
		{"decode long", Decode(E2M1, make([]float32, 1), make([]byte, 2)), ErrLength},
		{"encode int32", Encode(Int32, make([]byte, 4), make([]float32, 1)), ErrFormat},
		{"decode unknown", Decode(DType(99), make([]float32, 1), make([]byte, 1)), ErrFormat},
		{"float64s", Float64s(Float64, make([]float64, 1), make([]byte, 7)), ErrLength},
		{"float64s uint8", Float64s(Uint8, make([]float64, 1), make([]byte, 1)), ErrFormat},
		{"convert lengths", Convert(Float32, make([]byte, 8), BFloat16, make([]byte, 2)), ErrLength},
		{"convert odd bytes", Convert(Float32, make([]byte, 8), BFloat16, make([]byte, 5)), ErrLength},
		{"convert to invalid", Convert(Invalid, nil, BFloat16, nil), ErrFormat},
		{"convert from int", Convert(Float32, nil, Int64, nil), ErrFormat},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("%s: got error %v, want %v", c.name, c.err, c.want)
		}
	}
}

var benchFormats = []DType{Float64, Float32, Float16, BFloat16, E4M3, E5M2, E2M1, E8M0}

const benchElems = 1 << 14 // 64 KiB of float32: the second-level cache

func benchValues() []float32 {
	rng := rand.New(rand.NewPCG(3, 4))
	v := make([]float32, benchElems)
	for i := range v {
		v[i] = float32(rng.NormFloat64())
	}
	return v
}

func report(b *testing.B) {
	b.ReportMetric(float64(b.N)*benchElems/b.Elapsed().Seconds()/1e9, "Gelem/s")
}

func BenchmarkEncode(b *testing.B) {
	src := benchValues()
	for _, dt := range benchFormats {
		dst := make([]byte, dt.Bytes(len(src)))
		b.Run(fmt.Sprint(dt), func(b *testing.B) {
			for b.Loop() {
				if err := Encode(dt, dst, src); err != nil {
					b.Fatal(err)
				}
			}
			report(b)
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	values := benchValues()
	for _, dt := range benchFormats {
		src := make([]byte, dt.Bytes(len(values)))
		if err := Encode(dt, src, values); err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprint(dt), func(b *testing.B) {
			for b.Loop() {
				if err := Decode(dt, values, src); err != nil {
					b.Fatal(err)
				}
			}
			report(b)
		})
	}
}

func BenchmarkTyped(b *testing.B) {
	values, codes := benchValues(), make([]uint16, benchElems)
	for _, c := range []struct {
		name string
		run  func()
	}{
		{"EncodeBF16", func() { EncodeBF16(codes, values) }},
		{"DecodeBF16", func() { DecodeBF16(values, codes) }},
		{"EncodeF16", func() { EncodeF16(codes, values) }},
		{"DecodeF16", func() { DecodeF16(values, codes) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				c.run()
			}
			report(b)
		})
	}
}

// TestEncode_NaNInEveryPlace puts one NaN among ordinary values, at each place of the unrolled steps.
func TestEncode_NaNInEveryPlace(t *testing.T) {
	for place := range 16 {
		for _, nan := range []uint32{0x7f800001, 0xff800001, 0x7fffffff, 0xffffffff} {
			src := make([]float32, 16)
			for i := range src {
				src[i] = -math.MaxFloat32
			}
			src[place] = math.Float32frombits(nan)
			checkTyped(t, "bf16", append(src, 0), EncodeBF16, DecodeBF16, BF16Encode, BF16Decode)
			checkTyped(t, "f16", append(src, 0), EncodeF16, DecodeF16, F16Encode, F16Decode)
			for _, r := range references {
				b := make([]byte, r.dt.Bytes(len(src)))
				if err := Encode(r.dt, b, src); err != nil {
					t.Fatal(err)
				}
				for i, f := range src {
					if got, want := codeAt(r.dt, b, i), r.want(f); got != want {
						t.Fatalf("%v, NaN at %d: code %d is %#x, want %#x", r.dt, place, i, got, want)
					}
				}
			}
		}
	}
}
