package npz

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/moegraph/moegraph/dtype"
)

func TestParseKey(t *testing.T) {
	for key, want := range map[string]Key{
		"a":             {Name: "a", Expert: Dense},
		"a.bf16":        {Name: "a", Expert: Dense, Suffix: dtype.BFloat16},
		"b.0.e4m3":      {Name: "b", Expert: 0, Suffix: dtype.E4M3},
		"sfb.1023.e8m0": {Name: "sfb", Expert: 1023, Suffix: dtype.E8M0},
		"wgrad.7":       {Name: "wgrad", Expert: 7},
		"x.e2m1":        {Name: "x", Expert: Dense, Suffix: dtype.E2M1},
		"d_row.e5m2":    {Name: "d_row", Expert: Dense, Suffix: dtype.E5M2},
		"attr.top_k":    {Name: "top_k", Expert: Dense, Attr: true},
		"global_scale":  {Name: "global_scale", Expert: Dense},
	} {
		got, err := ParseKey(key)
		if err != nil || got != want {
			t.Errorf("%q: got %+v, error %v, want %+v", key, got, err, want)
		}
		if got.String() != key {
			t.Errorf("%q: printed as %q", key, got)
		}
	}
	for _, key := range []string{"", ".", "a.", ".bf16", "A", "a b", "1a", "a.f32", "a.x", "a.-1", "a.+1", "a.01", "a.1024",
		"a.99999999999999999999", "a.bf16.0", "a.0.0", "a.0.bf16.bf16", "attr.", "attr.a.b", "attr.X", "größe"} {
		if got, err := ParseKey(key); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), `"`+key+`"`) {
			t.Errorf("%q: got %+v, error %v, want one that quotes the key", key, got, err)
		}
	}
}

func TestKey_Format(t *testing.T) {
	for _, c := range []struct {
		key, descr string
		want       dtype.DType
	}{
		{"a", "<f4", dtype.Float32}, {"a", "<f2", dtype.Float16}, {"a", "<f8", dtype.Float64}, {"a", "<i4", dtype.Int32},
		{"a", "<i8", dtype.Int64}, {"a", "|u1", dtype.Uint8}, {"a", "<u8", dtype.Uint64}, {"a.bf16", "<u2", dtype.BFloat16},
		{"a.e4m3", "|u1", dtype.E4M3}, {"a.0.e2m1", "|u1", dtype.E2M1},
		{"a", "<u2", dtype.Invalid}, {"a", "<U3", dtype.Invalid}, {"a", "|b1", dtype.Invalid}, {"a", "|i1", dtype.Invalid},
		{"a.bf16", "<f4", dtype.Invalid}, {"a.e4m3", "<u2", dtype.Invalid}, {"a.e2m1", "|i1", dtype.Invalid},
	} {
		k, err := ParseKey(c.key)
		if err != nil {
			t.Fatal(err)
		}
		got, err := k.Format(Array{DType: c.descr})
		if got != c.want || (err == nil) != (c.want != dtype.Invalid) {
			t.Errorf("%s stored as %s: got %v, error %v, want %v", c.key, c.descr, got, err, c.want)
		}
	}
}

func TestSplit(t *testing.T) {
	fp4, err := NewOperand("a", Dense, dtype.E2M1, []int{2, 4}, make([]byte, 4))
	if err != nil {
		t.Fatal(err)
	}
	bf16, err := NewOperand("b", 1, dtype.BFloat16, []int{3}, make([]byte, 6))
	if err != nil {
		t.Fatal(err)
	}
	operands, attrs, err := Split([]Array{Text("attr.order", "sigmoid"), fp4, Int32s("attr.n", nil, -3), bf16,
		Float32s("attr.eps", nil, .5)})
	if err != nil {
		t.Fatal(err)
	}
	want := []Operand{
		{Name: "a", Expert: Dense, Format: dtype.E2M1, Shape: []int{2, 4}, Array: fp4},
		{Name: "b", Expert: 1, Format: dtype.BFloat16, Shape: []int{3}, Array: bf16},
	}
	if diff := cmp.Diff(want, operands); diff != "" {
		t.Errorf("operands: want (-), got (+):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]any{"order": "sigmoid", "n": -3, "eps": .5}, attrs); diff != "" {
		t.Errorf("attributes: want (-), got (+):\n%s", diff)
	}
	if fp4.Name != "a.e2m1" || fp4.Shape[1] != 2 || bf16.Name != "b.1.bf16" {
		t.Errorf("made %q of shape %v and %q", fp4.Name, fp4.Shape, bf16.Name)
	}
	for _, a := range []Array{Int32s("attr.n", []int{1}, 1), {Name: "attr.n", DType: "|u1", Data: []byte{1}},
		{Name: "x.y"}, {Name: "x", DType: "|b1", Data: []byte{1}}, {Name: "attr.n", DType: "<i4"}} {
		if _, _, err := Split([]Array{a}); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: got error %v", a, err)
		}
	}
	for _, shape := range [][]int{{}, {3}, {2, 3}} {
		if _, err := NewOperand("a", Dense, dtype.E2M1, shape, nil); !errors.Is(err, ErrInvalid) {
			t.Errorf("e2m1 of shape %v: got error %v", shape, err)
		}
	}
	if _, err := NewOperand("a", Dense, dtype.Float32, []int{2}, make([]byte, 4)); !errors.Is(err, ErrInvalid) {
		t.Errorf("short data: got error %v", err)
	}
	if _, err := NewOperand("a", Dense, dtype.Invalid, []int{2}, nil); !errors.Is(err, ErrInvalid) {
		t.Errorf("no format: got error %v", err)
	}
}

func TestCheckOperands(t *testing.T) {
	op := func(name string, expert int, dt dtype.DType) Operand {
		return Operand{Name: name, Expert: expert, Format: dt}
	}
	const bf16, f32 = dtype.BFloat16, dtype.Float32
	good := []Operand{op("a", Dense, bf16), op("b", 1, bf16), op("b", 0, bf16), op("sfb", 0, f32)}
	if err := CheckOperands(good); err != nil {
		t.Error(err)
	}
	for name, bad := range map[string][]Operand{
		"two formats":       {op("b", Dense, bf16), op("b", Dense, f32)},
		"dense, discrete":   {op("b", Dense, bf16), op("b", 0, bf16)},
		"discrete, dense":   {op("b", 0, bf16), op("b", Dense, bf16)},
		"expert twice":      {op("b", 0, bf16), op("b", 0, bf16)},
		"experts' formats":  {op("b", 0, bf16), op("b", 1, f32)},
		"expert 0 missing":  {op("b", 1, bf16)},
		"expert in between": {op("b", 0, bf16), op("b", 2, bf16)},
	} {
		if err := CheckOperands(bad); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), `operand "b"`) {
			t.Errorf("%s: got error %v, want one about operand b", name, err)
		}
	}
}
