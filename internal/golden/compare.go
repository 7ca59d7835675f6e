package golden

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/internal/npz"
)

// Bounds of the comparison; ../shared/cases/README.md says why.
const (
	// stepsShare of the elements of fp8 and fp4 codes may be one step apart.
	stepsShare = 1e-3
	// farUnits in the last place, and farShare of the f32 bound of the row's maximum, bound an element.
	farUnits = 2
	farShare = 64
)

// tolerances are relative Frobenius errors against the rounded right answer: one rounding passes, a
// second one does not.
var tolerances = map[dtype.DType]float64{dtype.Float32: 2e-6, dtype.BFloat16: 1e-3, dtype.Float16: 1.3e-4}

// Result is the verdict on one output.
type Result struct {
	Key  string // of the expected output
	OK   bool
	Text string // what was measured, and the bound
}

// String is a line for a log.
func (r Result) String() string {
	verdict := "FAIL"
	if r.OK {
		verdict = "ok"
	}
	return fmt.Sprintf("%-4s %s: %s", verdict, r.Key, r.Text)
}

// Compare judges the outputs of a node, under their keys in a file, one Result an expected output in the
// file's order. Further outputs do no harm. A case that must be refused gives one Result that fails:
// outputs came where an error should have; Refused judges those.
func Compare(want Case, got map[string]npz.Array) []Result {
	if len(want.ExpectError) > 0 {
		return []Result{{Key: "expect_error", Text: "outputs, but the case must be refused"}}
	}
	results := make([]Result, len(want.Outputs))
	for i, o := range want.Outputs {
		results[i].Key = o.Key
		if g, ok := got[o.Key]; !ok {
			results[i].Text = "missing"
		} else {
			results[i].OK, results[i].Text = o.compare(g)
		}
	}
	return results
}

// Map indexes arrays by name, as Compare takes them.
func Map(arrays []npz.Array) map[string]npz.Array {
	m := make(map[string]npz.Array, len(arrays))
	for _, a := range arrays {
		m[a.Name] = a
	}
	return m
}

// compare picks the rule of an output: bits, floats or codes.
func (o Output) compare(got npz.Array) (bool, string) {
	if err := got.Check(); err != nil {
		return false, err.Error()
	}
	if got.DType != o.Array.DType {
		return false, fmt.Sprintf("dtype %s, want %s", got.DType, o.Array.DType)
	}
	if !slices.Equal(got.Shape, o.Array.Shape) {
		return false, fmt.Sprintf("shape %v, want %v", got.Shape, o.Array.Shape)
	}
	shape := npz.ValueShape(o.Format, o.Array.Shape)
	keep, err := spread(o.Mask, shape, true)
	if err != nil {
		return false, fmt.Sprintf("mask: %v", err)
	}
	equal, err := spread(o.Equal, shape, false)
	if err != nil {
		return false, fmt.Sprintf("exact: %v", err)
	}
	p := pair{shape: shape, keep: keep, equal: equal, format: o.Format, want: o.Array.Data, got: got.Data}
	_, isFloat := tolerances[o.Format]
	isCode := o.Format == dtype.E4M3 || o.Format == dtype.E5M2 || o.Format == dtype.E2M1
	switch {
	case !isFloat && !isCode || strings.HasPrefix(o.Name, "sf") || o.Exact:
		return p.compareBits()
	case isFloat:
		return p.compareFloats(o.Tol)
	}
	return p.compareCodes()
}

// spread widens a bool over leading axes to one of every element; without one, every element gets absent.
func spread(mask *npz.Array, shape []int, absent bool) ([]bool, error) {
	n := 1
	for _, d := range shape {
		n *= d
	}
	wide := make([]bool, n)
	if mask == nil {
		for i := range wide {
			wide[i] = absent
		}
		return wide, nil
	}
	if mask.DType != "|b1" || len(mask.Shape) > len(shape) || !slices.Equal(mask.Shape, shape[:len(mask.Shape)]) {
		return nil, fmt.Errorf("%s of shape %v does not fit %v", mask.DType, mask.Shape, shape)
	}
	for i := range wide {
		wide[i] = mask.Data[i/(n/len(mask.Data))] != 0
	}
	return wide, nil
}

// pair is two arrays of one shape under comparison.
type pair struct {
	shape       []int // in elements
	keep, equal []bool
	format      dtype.DType // Invalid where only bits are compared
	want, got   []byte
}

// compareBits wants the same bits in every element; a NaN of a known format may be any NaN.
func (p pair) compareBits() (bool, string) {
	n, bad := 0, 0
	for i, keep := range p.keep {
		if !keep {
			continue
		}
		n++
		if !bytes.Equal(p.element(p.want, i), p.element(p.got, i)) && !(p.isNaN(p.want, i) && p.isNaN(p.got, i)) {
			bad++
		}
	}
	return bad == 0, fmt.Sprintf("%d of %d differ (exact)", bad, n)
}

// element is element i as bytes; an E2M1 code is a byte of its own.
func (p pair) element(data []byte, i int) []byte {
	if p.format == dtype.E2M1 {
		return []byte{data[i/2] >> (4 * (i % 2)) & 15}
	}
	size := len(data) / len(p.keep)
	return data[i*size : (i+1)*size]
}

// isNaN reports whether element i is a NaN. The only NaN of e8m0 has one code, which bits tell.
func (p pair) isNaN(data []byte, i int) bool {
	switch p.format {
	case dtype.Float32, dtype.Float16, dtype.BFloat16, dtype.E4M3, dtype.E5M2:
		var v [1]float64
		err := dtype.Float64s(p.format, v[:], p.element(data, i))
		return err == nil && v[0] != v[0]
	}
	return false
}
