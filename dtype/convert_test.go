package dtype

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"testing"
)

// TestConvert_EqualsDecodeEncode covers every pair and lengths past one chunk.
func TestConvert_EqualsDecodeEncode(t *testing.T) {
	for _, n := range []int{0, 1, 3, convertChunk, 2*convertChunk + 7} {
		values := values16(n)
		for _, from := range benchFormats {
			src := make([]byte, from.Bytes(n))
			if err := Encode(from, src, values); err != nil {
				t.Fatal(err)
			}
			mid := make([]float32, n)
			if err := Decode(from, mid, src); err != nil {
				t.Fatal(err)
			}
			for _, to := range benchFormats {
				want := make([]byte, to.Bytes(n))
				if err := Encode(to, want, mid); err != nil {
					t.Fatal(err)
				}
				if from == to {
					want = src
				}
				got := make([]byte, to.Bytes(n))
				if err := Convert(to, got, from, src); err != nil {
					t.Fatalf("%v to %v, n=%d: %v", from, to, n, err)
				}
				if !bytes.Equal(got, want) {
					t.Errorf("%v to %v, n=%d: bytes differ from decode and encode", from, to, n)
				}
			}
		}
	}
}

// TestFloat64_IsNotNarrowed shows that f64 to f64 keeps what float32 cannot hold.
func TestFloat64_IsNotNarrowed(t *testing.T) {
	const x = 1 + 0x1p-40
	src, dst := make([]byte, 8), make([]byte, 8)
	binary.LittleEndian.PutUint64(src, math.Float64bits(x))
	if err := Convert(Float64, dst, Float64, src); err != nil || !bytes.Equal(src, dst) {
		t.Errorf("convert: got %x and error %v, want %x", dst, err, src)
	}
	var wide [1]float64
	if err := Float64s(Float64, wide[:], src); err != nil || wide[0] != x {
		t.Errorf("float64s: got %v and error %v, want %v", wide[0], err, x)
	}
}

func TestDType_Names(t *testing.T) {
	bits := map[DType]int{Float64: 64, Float32: 32, Float16: 16, BFloat16: 16, Int32: 32, Int64: 64, Uint8: 8,
		Uint64: 64, E4M3: 8, E5M2: 8, E2M1: 4, E8M0: 8}
	if len(bits) != len(formats)-1 {
		t.Errorf("the test knows %d formats, the table %d", len(bits), len(formats)-1)
	}
	for d, want := range bits {
		if d.Bits() != want {
			t.Errorf("%v: got %d bits, want %d", d, d.Bits(), want)
		}
		if got, err := Parse(d.String()); got != d || err != nil {
			t.Errorf("parse %q: got %v, error %v", d.String(), got, err)
		}
		isInt := d == Int32 || d == Int64 || d == Uint8 || d == Uint64
		if d.IsFloat() == isInt {
			t.Errorf("%v: IsFloat is %v", d, d.IsFloat())
		}
		if d != E2M1 && d.Bytes(7) != 7*want/8 {
			t.Errorf("%v: 7 elements take %d bytes", d, d.Bytes(7))
		}
	}
	for n, want := range []int{0, 1, 1, 2, 2, 3} {
		if got := E2M1.Bytes(n); got != want {
			t.Errorf("e2m1: %d elements take %d bytes, want %d", n, got, want)
		}
	}
	for _, name := range []string{"", "invalid", "F32", "float32", "bf16 "} {
		if _, err := Parse(name); !errors.Is(err, ErrFormat) {
			t.Errorf("parse %q: got error %v, want ErrFormat", name, err)
		}
	}
	if d := DType(99); d.Bits() != 0 || d.IsFloat() || d.String() != "dtype(99)" || Invalid.Bytes(3) != 0 {
		t.Errorf("unknown formats: got %v, %d bits", d, d.Bits())
	}
}

// TestEncode_WideFormats compares f32 and f64, which have no reference table, with encoding/binary.
func TestEncode_WideFormats(t *testing.T) {
	for n := range 10 {
		values := values16(n)
		if n > 4 {
			values[4] = math.Float32frombits(0xff800001) // f32 keeps a payload
		}
		var narrow, wide []byte
		for _, f := range values {
			narrow = binary.LittleEndian.AppendUint32(narrow, math.Float32bits(f))
			wide = binary.LittleEndian.AppendUint64(wide, math.Float64bits(float64(f)))
		}
		for dt, want := range map[DType][]byte{Float32: narrow, Float64: wide} {
			got, back := make([]byte, len(want)), make([]float32, n)
			if err := Encode(dt, got, values); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%v n=%d: got %x, error %v, want %x", dt, n, got, err, want)
			}
			if err := Decode(dt, back, got); err != nil {
				t.Fatal(err)
			}
			for i, f := range back {
				if math.Float32bits(f) != math.Float32bits(values[i]) && f == f {
					t.Errorf("%v n=%d: value %d is %g, want %g", dt, n, i, f, values[i])
				}
			}
		}
	}
}
