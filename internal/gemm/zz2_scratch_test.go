package gemm

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
)

func TestSweep(t *testing.T) {
	if os.Getenv("SCRATCH") == "" {
		t.Skip()
	}
	rng := rand.New(rand.NewPCG(1, 2))
	fmt.Printf("kc %d mc %d nc %d:", blockK, blockM, blockN)
	for _, s := range [][3]int{{128, 512, 512}, {256, 1024, 1024}, {256, 1040, 1040}, {1024, 1024, 1024}} {
		m, n, k := s[0], s[1], s[2]
		c := make([]float32, m*n)
		fmt.Printf("  %v", s)
		for _, kind := range []string{"f32", "bf16"} {
			for _, tr := range []int{0, 2} {
				var w Work
				x := randomOperand(rng, kind, m, k, 0, tr&1 != 0)
				y := randomOperand(rng, kind, k, n, 0, tr&2 != 0)
				fmt.Printf(" %.1f", best(2*float64(m)*float64(n)*float64(k), func() { w.Mul(m, n, k, 1, x, y, 0, c, n) }))
			}
		}
	}
	fmt.Println()
}
