package nodes

import "math"

// exp returns e^x. For float32 it is within 1 unit in the last place: a polynomial of degree 7 in float64
// on [-ln2/2, ln2/2], whose error is below 1e-8, scaled by a power of two.
func exp[F float](x F) F {
	if is64[F]() {
		return F(math.Exp(float64(x)))
	}
	d := float64(x)
	switch {
	case d != d:
		return x
	case d > 128:
		return F(math.Inf(1))
	case d < -150:
		return 0
	}
	k := math.Floor(d*math.Log2E + 0.5)
	r := d - k*math.Ln2
	p := 1 + r*(1+r*(1.0/2+r*(1.0/6+r*(1.0/24+r*(1.0/120+r*(1.0/720+r*(1.0/5040)))))))
	return F(p * math.Float64frombits(uint64(int64(k)+1023)<<52))
}

// sigmoid returns 1/(1+e^-x): 0 and 1 at the ends, NaN for NaN.
func sigmoid[F float](x F) F { return 1 / (1 + exp(-x)) }

// abs returns |x|.
func abs[F float](x F) F {
	if x < 0 {
		return -x
	}
	return x
}

// log returns the natural logarithm.
func log[F float](x F) F { return F(math.Log(float64(x))) }
