package nodes

import "math"

// exp returns e^x: in float64 to the last digit or so, for float32 by quickExp, rounded once.
func exp[F float](x F) F {
	if is64[F]() {
		return F(math.Exp(float64(x)))
	}
	return F(quickExp(float64(x)))
}

// quickExp returns e^x with a relative error below 1e-8: a polynomial of degree 7 on [-ln2/2, ln2/2], scaled by a
// power of two. It is what float32 results need, at a third of math.Exp's time.
func quickExp(x float64) float64 {
	if !(x > -700 && x < 700) {
		return math.Exp(x)
	}
	const round = 0x1.8p52 // adding it leaves an integer in the low bits of the sum
	t := x*math.Log2E + round
	r := x - (t-round)*math.Ln2
	r2 := r * r
	p := (1 + r) + r2*((1.0/2+r*(1.0/6))+r2*((1.0/24+r*(1.0/120))+r2*(1.0/720+r*(1.0/5040))))
	return p * math.Float64frombits((math.Float64bits(t)+1023)<<52)
}

// expIn returns e^x for sums that end in a result of type F: quickly for float32.
func expIn[F float](x float64) float64 {
	if is64[F]() {
		return math.Exp(x)
	}
	return quickExp(x)
}

// sigmoid returns 1/(1+e^-x): 0 and 1 at the ends, NaN for NaN.
func sigmoid[F float](x F) F { return F(1 / (1 + expIn[F](-float64(x)))) }

// abs returns |x|.
func abs[F float](x F) F {
	if x < 0 {
		return -x
	}
	return x
}

// log returns the natural logarithm.
func log[F float](x F) F { return F(math.Log(float64(x))) }
