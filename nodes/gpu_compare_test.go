//go:build gpu

package nodes

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/moegraph/moegraph/dtype"
)

// result is one output or variable after a replay.
type result struct {
	name  string
	dt    dtype.DType
	width int       // of a row
	x     []float64 // the values of floats, rows in use only
	bits  []uint64  // of every element
}

// tolerance is how far a device may be from the host.
type tolerance struct {
	sum   int     // length of the longest sum
	loose float64 // times the bound of float32: above 1 for a chain of nodes
	rough float64 // at least this relative error is allowed, where 16-bit roundings lie between
	floor float64 // an error of this root mean square is allowed, where sums of numbers near 1 cancel
	exact bool    // nothing but the bits of a NaN may differ
}

// f32 is the relative error of a float32 output.
func (tol tolerance) f32() float64 {
	return 1e-6 * (1 + float64(tol.sum)/2048) * max(1, tol.loose)
}

// norm16 is the relative error, in norm, of a 16-bit output against one that was rounded too.
var norm16 = map[dtype.DType]float64{dtype.BFloat16: 1e-3, dtype.Float16: 1.3e-4}

// mantissa is the number of stored bits of the mantissa, lowest the exponent of the smallest normal number.
var mantissa = map[dtype.DType]int{dtype.BFloat16: 7, dtype.Float16: 10}
var lowest = map[dtype.DType]int{dtype.BFloat16: -126, dtype.Float16: -14}

// compare says how got differs from want, nil if it is near enough.
func compare(got, want result, tol tolerance) error {
	fail := func(format string, args ...any) error {
		return fmt.Errorf("%s: %s", want.name, fmt.Sprintf(format, args...))
	}
	if len(got.bits) != len(want.bits) {
		return fail("got %d elements, want %d", len(got.bits), len(want.bits))
	}
	if !want.dt.IsFloat() || want.dt.Bits() <= 8 {
		for i := range want.bits {
			if got.bits[i] != want.bits[i] {
				return fail("element %d: got %d, want %d", i, got.bits[i], want.bits[i])
			}
		}
		return nil
	}
	var diff, norm float64
	for i, w := range want.x {
		g := got.x[i]
		if math.IsNaN(w) || math.IsInf(w, 0) || math.IsNaN(g) || math.IsInf(g, 0) {
			if !(g == w || g != g && w != w) {
				return fail("element %d: got %v, want %v", i, g, w)
			}
			continue
		}
		if tol.exact && got.bits[i] != want.bits[i] {
			return fail("element %d: got %v, want %v and nothing else", i, g, w)
		}
		diff += (g - w) * (g - w)
		norm += w * w
	}
	bound := tol.f32()
	if limit, ok := norm16[want.dt]; ok {
		bound = max(bound, limit)
	}
	bound = max(bound, tol.rough)
	if diff == 0 || math.Sqrt(diff/float64(len(want.x))) <= tol.floor {
		return nil
	}
	if err := math.Sqrt(diff / norm); !(err <= bound) {
		return fail("relative error %.3g, want at most %.3g", err, bound)
	}
	if tol.rough > 0 {
		return nil
	}
	return compareElements(got, want, tol, fail)
}

// compareElements holds each element of a 16-bit output to 2 units in the last place and 64 times the float32 bound of
// its row's maximum.
func compareElements(got, want result, tol tolerance, fail func(string, ...any) error) error {
	bits, ok := mantissa[want.dt]
	if !ok {
		return nil
	}
	width := max(1, want.width)
	for lo := 0; lo < len(want.x); lo += width {
		row := want.x[lo:min(lo+width, len(want.x))]
		top := 0.0
		for _, w := range row {
			if !math.IsInf(w, 0) {
				top = math.Max(top, math.Abs(w))
			}
		}
		for i, w := range row {
			g := got.x[lo+i]
			_, e := math.Frexp(w)
			ulp := math.Ldexp(1, max(e-1, lowest[want.dt])-bits)
			if d := math.Abs(g - w); d > 2*ulp+64*tol.f32()*top {
				return fail("row %d, column %d: got %v, want %v, within 2 units of %v", lo/width, i, g, w, ulp)
			}
		}
	}
	return nil
}

// TestGPUCompare: the comparison fails where it must.
func TestGPUCompare(t *testing.T) {
	floats := func(dt dtype.DType, x ...float64) result {
		return result{name: "r", dt: dt, width: len(x), x: x, bits: make([]uint64, len(x))}
	}
	ints := func(x ...uint64) result { return result{name: "r", dt: dtype.Int32, bits: x} }
	nan, inf := math.NaN(), math.Inf(1)
	for _, c := range []struct {
		what      string
		got, want result
		tol       tolerance
		err       string
	}{
		{"equal", floats(dtype.Float32, 1, 2), floats(dtype.Float32, 1, 2), tolerance{}, ""},
		{"within", floats(dtype.Float32, 1+5e-7, 2), floats(dtype.Float32, 1, 2), tolerance{}, ""},
		{"beyond", floats(dtype.Float32, 1+5e-6, 2), floats(dtype.Float32, 1, 2), tolerance{}, "relative error"},
		{"long sum", floats(dtype.Float32, 1+5e-6, 2), floats(dtype.Float32, 1, 2), tolerance{sum: 16384}, ""},
		{"not zero", floats(dtype.Float32, 1e-30), floats(dtype.Float32, 0), tolerance{}, "relative error"},
		{"cancelled", floats(dtype.Float32, 1e-8), floats(dtype.Float32, 0), tolerance{floor: 1e-7}, ""},
		{"above the floor", floats(dtype.Float32, 1e-6), floats(dtype.Float32, 0), tolerance{floor: 1e-7}, "relative error"},
		{"zero", floats(dtype.Float32, 0), floats(dtype.Float32, 1e-3), tolerance{}, "relative error"},
		{"length", floats(dtype.Float32, 1), floats(dtype.Float32, 1, 2), tolerance{}, "got 1 elements"},
		{"NaN", floats(dtype.Float32, nan), floats(dtype.Float32, nan), tolerance{}, ""},
		{"a NaN", floats(dtype.Float32, nan, 1), floats(dtype.Float32, 1, 1), tolerance{}, "got NaN"},
		{"no NaN", floats(dtype.Float32, 1, 1), floats(dtype.Float32, nan, 1), tolerance{}, "want NaN"},
		{"sign of Inf", floats(dtype.Float32, inf), floats(dtype.Float32, -inf), tolerance{}, "got +Inf"},
		{"one unit", floats(dtype.BFloat16, 1+1./128, 100, 100), floats(dtype.BFloat16, 1, 100, 100), tolerance{}, ""},
		{"ten units", floats(dtype.BFloat16, 1+10./128, 100, 100), floats(dtype.BFloat16, 1, 100, 100), tolerance{}, "within 2 units"},
		{"all a unit off", floats(dtype.BFloat16, 1+1./128, 1-1./128), floats(dtype.BFloat16, 1, 1), tolerance{}, "relative error"},
		{"rough", floats(dtype.BFloat16, 1+1./128, 1-1./128), floats(dtype.BFloat16, 1, 1), tolerance{rough: 1e-2}, ""},
		{"integers", ints(1, 2), ints(1, 2), tolerance{}, ""},
		{"exact", floats(dtype.Float32, nan, 2), floats(dtype.Float32, nan, 2), tolerance{exact: true}, ""},
		{"not exact", result{name: "r", dt: dtype.Float32, width: 1, x: []float64{1 + 1e-7}, bits: []uint64{1}}, floats(dtype.Float32, 1), tolerance{exact: true}, "nothing else"},
		{"codes", result{name: "r", dt: dtype.E4M3, bits: []uint64{7}}, result{name: "r", dt: dtype.E4M3, bits: []uint64{8}}, tolerance{rough: 1}, "element 0: got 7, want 8"},
		{"other integers", ints(1, 3), ints(1, 2), tolerance{rough: 1}, "element 1: got 3, want 2"},
	} {
		err := compare(c.got, c.want, c.tol)
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: got %v, want %q", c.what, err, c.err)
		}
	}
}
