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
	var ms [][3]int
	for _, n := range []int{1024, 1040} {
		for _, m := range []int{1, 4, 6, 12, 24, 48} {
			ms = append(ms, [3]int{m, n, n})
		}
	}
	ms = append(ms, [3]int{1, 4096, 4096}, [3]int{4, 4096, 4096}, [3]int{12, 4096, 4096})
	for _, s := range ms {
		m, n, k := s[0], s[1], s[2]
		c := make([]float32, m*n)
		fmt.Printf("%v", s)
		for _, kind := range []string{"f32", "bf16"} {
			for _, tr := range []int{0, 2} {
				x := randomOperand(rng, kind, m, k, 0, tr&1 != 0)
				y := randomOperand(rng, kind, k, n, 0, tr&2 != 0)
				for _, nc := range []int{512, 256, 128, 64, 32, 0} {
					if nc == 0 && (kind != "f32" || tr != 0) {
						continue
					}
					var w Work
					smallN, direct = nc, nc == 0
					if direct {
						smallN = 512
					}
					fmt.Printf(" %.1f", best(2*float64(m)*float64(n)*float64(k), func() { w.Mul(m, n, k, 1, x, y, 0, c, n) }))
				}
				fmt.Print("  |")
			}
		}
		fmt.Println()
	}
}
