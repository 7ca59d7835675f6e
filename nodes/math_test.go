package nodes

import (
	"math"
	"testing"
)

// TestExp compares with math.Exp over the whole range of float32, at its ends and beyond.
func TestExp(t *testing.T) {
	worst := 0.0
	for x := -104.0; x < 89; x += 0.00137 {
		want := math.Exp(x)
		worst = max(worst, math.Abs(quickExp(x)-want)/want)
	}
	if worst > 1e-8 {
		t.Errorf("relative error %.3g, want at most 1e-8", worst)
	}
	for _, x := range []float64{0, math.Copysign(0, -1), 1e-300, -1e-300, 699, -699, 701, -701, -745, 1e9, -1e9, math.Inf(1), math.Inf(-1), math.NaN()} {
		got, want := quickExp(x), math.Exp(x)
		if math.Abs(got-want) > 1e-8*want && !(math.IsNaN(got) && math.IsNaN(want)) {
			t.Errorf("e^%g: got %g, want %g", x, got, want)
		}
		if x32 := float32(x); !math.IsNaN(x) && exp(x32) != float32(quickExp(float64(x32))) {
			t.Errorf("exp(%g) differs from quickExp", x32)
		}
	}
}

// TestSigmoid: 0 and 1 at the ends, no NaN from a large negative number.
func TestSigmoid(t *testing.T) {
	for x, want := range map[float32]float32{0: 0.5, 1e4: 1, -1e4: 0, 90: 1, float32(math.Inf(1)): 1, float32(math.Inf(-1)): 0} {
		if got := sigmoid(x); got != want {
			t.Errorf("sigmoid(%g) = %g, want %g", x, got, want)
		}
	}
	if got := sigmoid(float32(-90)); !(got > 0 && got < 1e-38) {
		t.Errorf("sigmoid(-90) = %g", got)
	}
	if got := sigmoid(math.NaN()); got == got {
		t.Errorf("sigmoid(NaN) = %g", got)
	}
}

func BenchmarkExp(b *testing.B) {
	x := float32(0)
	for b.Loop() {
		for i := range 1024 {
			x += exp(float32(i) * -0.01)
		}
	}
	_ = x
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1024, "ns/exp")
}
