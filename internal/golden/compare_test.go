package golden

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/internal/npz"
)

const testRows, testCols = 64, 64

// example is an expected output in a format, and float32 values that it was rounded from.
func example(t *testing.T, name string, dt dtype.DType) (Output, []float32) {
	t.Helper()
	rng := rand.New(rand.NewPCG(5, uint64(dt)))
	values := make([]float32, testRows*testCols)
	for i := range values {
		values[i] = float32(rng.NormFloat64())
	}
	return Output{Array: encoded(t, name, dt, values)}.named(), values
}

// named fills what the array says.
func (o Output) named() Output {
	o.Key = o.Array.Name
	o.Name, o.Format = splitOutput(o.Array)
	return o
}

func encoded(t *testing.T, name string, dt dtype.DType, values []float32) npz.Array {
	t.Helper()
	data := make([]byte, dt.Bytes(len(values)))
	if err := dtype.Encode(dt, data, values); err != nil {
		t.Fatal(err)
	}
	a, err := npz.NewOperand(name, npz.Dense, dt, []int{testRows, testCols}, data)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// changed is a copy of an array with its bytes edited.
func changed(a npz.Array, edit func(data []byte)) npz.Array {
	a.Data = append([]byte(nil), a.Data...)
	edit(a.Data)
	return a
}

// check compares one output and wants the verdict.
func check(t *testing.T, what string, o Output, got npz.Array, wantOK bool) {
	t.Helper()
	results := Compare(Case{Outputs: []Output{o}}, map[string]npz.Array{o.Key: got})
	if len(results) != 1 || results[0].OK != wantOK || results[0].Text == "" {
		t.Errorf("%s: got %v, want ok %v", what, results, wantOK)
	}
}

func TestCompare_SecondRounding(t *testing.T) {
	// A f32 result that went through f16 or bf16 on its way, and a 16-bit one through the other.
	for _, c := range []struct{ out, via dtype.DType }{
		{dtype.Float32, dtype.Float16}, {dtype.Float32, dtype.BFloat16}, {dtype.Float16, dtype.BFloat16},
		{dtype.BFloat16, dtype.E4M3}, {dtype.E4M3, dtype.E2M1},
	} {
		o, values := example(t, "d", c.out)
		check(t, "same", o, o.Array, true)
		twice := make([]byte, c.via.Bytes(len(values)))
		if err := dtype.Encode(c.via, twice, values); err != nil {
			t.Fatal(err)
		}
		rounded := make([]float32, len(values))
		if err := dtype.Decode(c.via, rounded, twice); err != nil {
			t.Fatal(err)
		}
		check(t, c.out.String()+" via "+c.via.String(), o, encoded(t, "d", c.out, rounded), false)
	}
	// A sum that is rounded to bf16 before bf16 is taken of something added to it.
	o, values := example(t, "d", dtype.BFloat16)
	again := make([]float32, len(values))
	for i, v := range values {
		const bias = 0.37
		again[i] = dtype.BF16Decode(dtype.BF16Encode(v-bias)) + bias
	}
	check(t, "bf16 rounded before a bias", o, encoded(t, "d", dtype.BFloat16, again), false)
}

func TestCompare_OneElement(t *testing.T) {
	for _, dt := range []dtype.DType{dtype.Float32, dtype.Float16, dtype.BFloat16} {
		o, values := example(t, "d", dt)
		off := append([]float32(nil), values...)
		off[77] *= 1.07
		got := encoded(t, "d", dt, off)
		// A tolerance of its own that lets the norm pass: then elements are not bounded either.
		check(t, dt.String()+": one element 7 % off", o, got, false)
		loose := o
		loose.Tol = 0.1
		check(t, dt.String()+": the same under a tolerance of its own", loose, got, true)
		mask := npz.Array{DType: "|b1", Shape: []int{testRows}, Data: make([]byte, testRows)}
		masked := o
		masked.Mask = &mask
		check(t, dt.String()+": the same outside the mask", masked, got, true)
		mask.Data[77/testCols] = 1
		check(t, dt.String()+": the same inside the mask", masked, got, false)
	}
	// Far elements alone: in bf16 three units of one element hardly move the norm.
	o, _ := example(t, "d", dtype.BFloat16)
	step := func(units uint16) npz.Array {
		return changed(o.Array, func(data []byte) {
			binary.LittleEndian.PutUint16(data[200:], binary.LittleEndian.Uint16(data[200:])+units)
		})
	}
	check(t, "one unit", o, step(1), true)
	check(t, "two units", o, step(2), true)
	check(t, "three units", o, step(3), false)
	equal := npz.Array{DType: "|b1", Shape: []int{testRows}, Data: make([]byte, testRows)}
	o.Equal = &equal
	check(t, "one unit where equality is not asked", o, step(1), true)
	equal.Data[100/testCols] = 1
	check(t, "one unit where equality is asked", o, step(1), false)
}

func TestCompare_NonFinite(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, dt := range []dtype.DType{dtype.Float32, dtype.Float16, dtype.BFloat16, dtype.E4M3, dtype.E5M2} {
		_, values := example(t, "d", dt)
		values[9], values[1000] = nan, inf
		o := Output{Array: encoded(t, "d", dt, values)}.named()
		check(t, dt.String()+": same", o, o.Array, true)
		edit := func(what string, ok bool, index int, v float32) {
			other := append([]float32(nil), values...)
			other[index] = v
			check(t, dt.String()+": "+what, o, encoded(t, "d", dt, other), ok)
		}
		edit("NaN gone", false, 9, values[8])
		edit("NaN more", false, 10, nan)
		edit("NaN in place of Inf", false, 1000, nan)
		if isFloat := tolerances[dt] != 0; isFloat {
			edit("Inf gone", false, 1000, 60000)
			edit("Inf of the other sign", false, 1000, -inf)
			edit("Inf in place of NaN", false, 9, inf)
		}
		size := dt.Bits() / 8
		payload := changed(o.Array, func(data []byte) { data[9*size+size-1] ^= 0x80 })
		check(t, dt.String()+": another NaN", o, payload, true)
		o.Exact = true
		check(t, dt.String()+": another NaN, exact", o, payload, true)
		check(t, dt.String()+": a bit, exact", o, changed(o.Array, func(data []byte) { data[size*500] ^= 1 }), false)
		zero := changed(o.Array, func(data []byte) { clear(data[:size]) })
		o.Array = zero
		check(t, dt.String()+": -0 for 0, exact", o, changed(zero, func(data []byte) { data[size-1] = 0x80 }), false)
		o.Exact = false
		check(t, dt.String()+": -0 for 0", o, changed(zero, func(data []byte) { data[size-1] = 0x80 }), true)
	}
	// E5M2's Inf, which no encoding writes.
	o, _ := example(t, "d", dtype.E5M2)
	o.Array.Data[3] = 0x7c
	check(t, "e5m2: Inf kept", o, o.Array, true)
	check(t, "e5m2: Inf became max", o, changed(o.Array, func(data []byte) { data[3] = 0x7b }), false)
}

func TestCompare_Codes(t *testing.T) {
	for _, dt := range []dtype.DType{dtype.E4M3, dtype.E5M2, dtype.E2M1} {
		o, _ := example(t, "d_row", dt)
		allowed := testRows * testCols / 1000
		// steps moves the first n codes of a middling magnitude away from zero or towards it.
		steps := func(n, by int) npz.Array {
			return changed(o.Array, func(data []byte) {
				for i := 0; n > 0; i++ {
					code := data[i] & 7
					if dt == dtype.E2M1 && code >= 2 && code <= 5 || dt != dtype.E2M1 && code == 3 {
						data[i] += byte(by)
						n--
					}
				}
			})
		}
		check(t, dt.String()+": as many steps as allowed", o, steps(allowed, 1), true)
		check(t, dt.String()+": one step more", o, steps(allowed+1, 1), false)
		check(t, dt.String()+": two steps in one element", o, steps(1, 2), false)
		equal := npz.Array{DType: "|b1", Shape: []int{testRows, testCols}, Data: make([]byte, testRows*testCols)}
		for i := range equal.Data {
			equal.Data[i] = 1
		}
		o.Equal = &equal
		check(t, dt.String()+": one step where equality is asked", o, steps(1, 1), false)
		o.Equal, o.Exact = nil, true
		check(t, dt.String()+": one step where all is exact", o, steps(1, 1), false)
	}
	// Nibbles are told apart: the mask keeps the even element of a byte only.
	o, _ := example(t, "d", dtype.E2M1)
	mask := npz.Array{DType: "|b1", Shape: []int{testRows, testCols}, Data: make([]byte, testRows*testCols)}
	mask.Data[0] = 1
	o.Mask = &mask
	check(t, "e2m1: high nibble, masked", o, changed(o.Array, func(data []byte) { data[0] ^= 0x40 }), true)
	check(t, "e2m1: low nibble", o, changed(o.Array, func(data []byte) { data[0] ^= 0x04 }), false)
}

func TestCompare_Exact(t *testing.T) {
	flip := func(data []byte) { data[len(data)-1] ^= 1 }
	for _, a := range []npz.Array{
		{Name: "sfd_row.e8m0", DType: "|u1", Shape: []int{512}, Data: make([]byte, 512)},
		{Name: "sfd_row.e4m3", DType: "|u1", Shape: []int{512}, Data: make([]byte, 512)},
		{Name: "y.e8m0", DType: "|u1", Shape: []int{512}, Data: make([]byte, 512)},
		npz.Int32s("topk_idx", []int{2, 2}, 1, 2, 3, 4),
		npz.Text("t", "abc"),
	} {
		o := Output{Array: a}.named()
		check(t, a.Name+": same", o, a, true)
		check(t, a.Name+": a byte off", o, changed(a, flip), false)
	}
}

func TestCompare_Refuses(t *testing.T) {
	o, _ := example(t, "d", dtype.Float32)
	other := o.Array
	other.Shape = []int{testCols * testRows}
	check(t, "another shape", o, other, false)
	other = o.Array
	other.DType = "<i4"
	check(t, "another dtype", o, other, false)
	other = o.Array
	other.Data = other.Data[:8]
	check(t, "short data", o, other, false)
	mask := npz.Array{DType: "|b1", Shape: []int{3}, Data: make([]byte, 3)}
	masked := o
	masked.Mask = &mask
	check(t, "a mask that does not fit", masked, o.Array, false)
	masked.Mask, masked.Equal = nil, &mask
	check(t, "an exact mask that does not fit", masked, o.Array, false)
	zeros := Output{Array: encoded(t, "d", dtype.Float32, make([]float32, testRows*testCols))}.named()
	check(t, "zeros", zeros, zeros.Array, true)
	check(t, "something where zeros are expected", zeros, changed(zeros.Array, func(d []byte) { d[3] = 1 }), false)

	got := map[string]npz.Array{"c": o.Array}
	if r := Compare(Case{Outputs: []Output{o}}, got); len(r) != 1 || r[0].OK || r[0].Text != "missing" {
		t.Errorf("a missing output: got %v", r)
	}
	if r := Compare(Case{ExpectError: []string{"a"}}, got); len(r) != 1 || r[0].OK {
		t.Errorf("outputs of a case to be refused: got %v", r)
	}
}
