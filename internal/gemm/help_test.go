package gemm

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/moegraph/moegraph/dtype"
)

// kinds are the element types of an Operand.
var kinds = []string{"f32", "bf16", "f16"}

// randomOperand stores normal values so that op(X) is (rows, cols), with extra elements a row; those
// hold NaN, so that reading them shows.
func randomOperand(rng *rand.Rand, kind string, rows, cols, extra int, trans bool) Operand {
	if trans {
		rows, cols = cols, rows
	}
	ld := cols + extra
	vals := make([]float32, rows*ld)
	for i := range vals {
		vals[i] = float32(math.NaN())
		if i%max(1, ld) < cols {
			vals[i] = float32(rng.NormFloat64())
		}
	}
	return encode(kind, vals[:max(0, len(vals)-extra)], ld, trans)
}

// encode makes an operand of the kind from stored values.
func encode(kind string, vals []float32, ld int, trans bool) Operand {
	o := Operand{LD: ld, Trans: trans}
	codes := make([]uint16, len(vals))
	switch kind {
	case "f32":
		o.F32 = vals
		return o
	case "bf16":
		for i, x := range vals {
			codes[i] = dtype.BF16Encode(x)
		}
		o.BF16 = codes
	case "f16":
		for i, x := range vals {
			codes[i] = dtype.F16Encode(x)
		}
		o.F16 = codes
	}
	return o
}

// decoded is the same operand in float32.
func decoded(o Operand) Operand {
	vals := make([]float32, len(o.F32)+len(o.BF16)+len(o.F16))
	flat := o
	flat.LD = 0
	flat.decode(vals, 0, 0)
	return Operand{F32: vals, LD: o.LD, Trans: o.Trans}
}

// at is element (i, j) of op(X), exactly.
func (o *Operand) at(i, j int) float64 {
	if o.Trans {
		i, j = j, i
	}
	var x [1]float32
	o.decode(x[:], i, j)
	return float64(x[0])
}

// reference is the product in float64, and the sum of magnitudes that bounds its rounding error.
func reference(m, n, k int, alpha float32, a, b Operand, beta float32, c []float32, ldc int) (ref, mag []float64) {
	ref, mag = make([]float64, m*n), make([]float64, m*n)
	for i := range ref {
		if beta != 0 {
			ref[i] = float64(beta) * float64(c[i/n*ldc+i%n])
			mag[i] = math.Abs(ref[i])
		}
	}
	row := make([]float64, n)
	for p := range k {
		for j := range row {
			row[j] = b.at(p, j)
		}
		for i := range m {
			x := float64(alpha) * a.at(i, p)
			refRow, magRow := ref[i*n:][:n], mag[i*n:][:n]
			for j, y := range row {
				refRow[j] += x * y
				magRow[j] += math.Abs(x * y)
			}
		}
	}
	return ref, mag
}

// firstFar is the first element whose error exceeds rtol of its sum of magnitudes, or -1. NaN is far
// from everything.
func firstFar(got []float32, ldc int, ref, mag []float64, m, n int, rtol float64) int {
	for i := range m {
		for j := range n {
			if !(math.Abs(float64(got[i*ldc+j])-ref[i*n+j]) <= rtol*mag[i*n+j]) {
				return i*n + j
			}
		}
	}
	return -1
}

// sameBits compares bit patterns.
func sameBits(x, y []float32) bool {
	return slices.EqualFunc(x, y, func(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) })
}

// filled is n copies of x.
func filled(n int, x float32) []float32 { return slices.Repeat([]float32{x}, n) }

// bothKernels runs the test with the assembly, where there is one, and with the Go kernel.
func bothKernels(t *testing.T, test func(t *testing.T)) {
	if hasAsm {
		t.Run("asm", test)
	}
	t.Run("go", func(t *testing.T) {
		useAsm = false
		defer func() { useAsm = hasAsm }()
		test(t)
	})
}

func TestHelpers(t *testing.T) {
	nan := float32(math.NaN())
	ref, mag := []float64{1, 2}, []float64{1, 2}
	if got := firstFar([]float32{1, 2}, 2, ref, mag, 1, 2, 1e-6); got != -1 {
		t.Errorf("equal values: got far at %d", got)
	}
	if got := firstFar([]float32{1, 2.1}, 2, ref, mag, 1, 2, 1e-6); got != 1 {
		t.Errorf("a wrong value: got %d, want 1", got)
	}
	if got := firstFar([]float32{nan, 2}, 2, ref, mag, 1, 2, 1e-6); got != 0 {
		t.Errorf("NaN: got %d, want 0", got)
	}
	if sameBits([]float32{0}, []float32{float32(math.Copysign(0, -1))}) || !sameBits([]float32{nan}, []float32{nan}) {
		t.Error("sameBits does not compare bits")
	}
}
