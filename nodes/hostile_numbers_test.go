//go:build gpu || emulate

package nodes

import (
	"math"
	"math/rand/v2"
)

// hostileNumbers makes n numbers of a matrix of so many columns, normal ones but for areas of 32 by 32 elements
// that hold what blocks may meet: zeros of both signs, NaN and Inf, subnormals, large numbers and the maxima at which
// factors and codes turn.
func hostileNumbers(r *rand.Rand, n, cols int) []float32 {
	tops := []float32{447, 448, 449, 150, 57343, 57344, 57345, 6, 5.99, 6.01, 1 + 0x1p-10, 1 - 0x1p-10, 4 + 0x1p-8, 1e4, 1e30, 3e-39, 0x1p-126, 0x1p-149, math.MaxFloat32}
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
		area := i/cols/32*7 + i%cols/32*5
		switch area % 9 {
		case 1:
			x[i] = float32(math.Copysign(0, float64(i%2)-0.5))
		case 2:
			x[i] *= tops[(i/cols+i%cols*3)%len(tops)] // of a magnitude of its own
		case 3:
			x[i] = tops[area%len(tops)] * float32(1-i%3) // the largest itself, its opposite and 0
		case 4:
			x[i] = math.Float32frombits(uint32(r.IntN(1<<23)) | uint32(i&1)<<31)
		case 5:
			if i/cols%32 == i%cols%32 && i%3 == 0 {
				x[i] = float32(math.NaN())
			}
		case 6:
			if i/cols%32 == i%cols%32 && i%2 == 0 {
				x[i] = float32(math.Inf(1 - i%4))
			}
		}
	}
	return x
}
