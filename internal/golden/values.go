package golden

import (
	"fmt"
	"math"

	"github.com/moegraph/moegraph/dtype"
)

// lastPlace describes the spacing of a format: precision in bits, and the exponent of its smallest unit.
var lastPlace = map[dtype.DType]struct{ precision, minExp int }{
	dtype.Float32:  {24, -149},
	dtype.BFloat16: {8, -149},
	dtype.Float16:  {11, -24},
}

// unit is the last place of a format at the magnitude of x, no finer than float32's smallest normal
// number would have it.
func unit(format dtype.DType, x float64) float64 {
	_, exp := math.Frexp(max(math.Abs(x), 0x1p-126))
	p := lastPlace[format]
	return math.Ldexp(1, max(exp-p.precision, p.minExp))
}

// compareFloats bounds the relative Frobenius error over the kept finite elements by tol, or by the
// format's tolerance where tol is 0; then single elements of matrices are bounded, too. NaN and Inf must
// stand where they are expected.
func (p pair) compareFloats(tol float64) (bool, string) {
	want, got := make([]float64, len(p.keep)), make([]float64, len(p.keep))
	for _, side := range []struct {
		values []float64
		data   []byte
	}{{want, p.want}, {got, p.got}} {
		if err := dtype.Float64s(p.format, side.values, side.data); err != nil {
			return false, err.Error()
		}
	}
	boundElements := tol == 0 && len(p.shape) > 1
	if tol == 0 {
		tol = tolerances[p.format]
	}
	var nan, inf, off, mustEqual, far int
	var diff, norm float64 // sums of squares
	rowTop := 0.0
	width := p.shape[max(len(p.shape)-1, 0):]
	for i, a := range want {
		if boundElements && i%width[0] == 0 {
			rowTop = largest(want[i : i+width[0]])
		}
		if !p.keep[i] {
			continue
		}
		b := got[i]
		aNaN, bNaN := math.IsNaN(a), math.IsNaN(b)
		if p.equal[i] {
			mustEqual++
			if a != b && !(aNaN && bNaN) {
				off++
			}
		}
		switch {
		case aNaN || bNaN:
			if aNaN != bNaN {
				nan++
			}
		case math.IsInf(a, 0) || math.IsInf(b, 0):
			if a != b {
				inf++
			}
		default:
			diff += (b - a) * (b - a)
			norm += a * a
			bound := farUnits*unit(p.format, a) + farShare*tolerances[dtype.Float32]*rowTop
			if boundElements && math.Abs(b-a) > bound {
				far++
			}
		}
	}
	rel := 0.0
	if diff > 0 {
		rel = math.Sqrt(diff) / math.Sqrt(norm) // +Inf where all is expected to be zero
	}
	text := fmt.Sprintf("rel %.2e (at most %.1e)", rel, tol)
	text += count(far, " elements too far") + count(nan, " NaN astray") + count(inf, " Inf astray") +
		count(off, fmt.Sprintf(" of %d that must be equal differ", mustEqual))
	return rel <= tol && nan+inf+off+far == 0, text
}

// largest is the largest finite magnitude.
func largest(row []float64) float64 {
	top := 0.0
	for _, v := range row {
		if a := math.Abs(v); a > top && !math.IsInf(a, 0) {
			top = a
		}
	}
	return top
}

// count is a clause of a result's text, empty where there is nothing to tell.
func count(n int, what string) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(", %d%s", n, what)
}

// ordinal is a code of fp8 or fp4 as a signed step count: neighbours differ by one, +0 and -0 are equal.
func ordinal(format dtype.DType, code byte) (step int, isNaN, isInf bool) {
	sign := byte(0x80)
	if format == dtype.E2M1 {
		sign = 8
	}
	mag := code & (sign - 1)
	step = int(mag)
	if code&sign != 0 {
		step = -step
	}
	switch format {
	case dtype.E4M3:
		isNaN = mag == 0x7f
	case dtype.E5M2:
		isNaN, isInf = mag > 0x7c, mag == 0x7c
	}
	return step, isNaN, isInf
}

// compareCodes allows one step in stepsShare of the kept elements.
func (p pair) compareCodes() (bool, string) {
	var n, nan, inf, off, mustEqual, one, far int
	for i, keep := range p.keep {
		if !keep {
			continue
		}
		n++
		a, aNaN, aInf := ordinal(p.format, p.element(p.want, i)[0])
		b, bNaN, bInf := ordinal(p.format, p.element(p.got, i)[0])
		step := max(a-b, b-a)
		if aNaN || bNaN || aInf || bInf {
			step = 0
		}
		if p.equal[i] {
			mustEqual++
			if step != 0 {
				off++
			}
		}
		switch {
		case aNaN != bNaN:
			nan++
		case step == 1:
			one++
		case step > 1:
			far++
		}
		if aInf != bInf {
			inf++
		}
	}
	text := fmt.Sprintf("%d of %d one step apart (at most %d), %d further", one, n, int(stepsShare*float64(n)), far)
	text += count(nan, " NaN astray") + count(inf, " Inf astray") +
		count(off, fmt.Sprintf(" of %d that must be zero or equal differ", mustEqual))
	return far == 0 && float64(one) <= stepsShare*float64(n) && nan+inf+off == 0, text
}
