//go:build !amd64

package gemm

// hasAsm is false: every processor but amd64 runs the Go kernel, and nothing below is called.
var hasAsm = false

const noAsm = "gemm: no assembly on this processor"

func kernel6x16(k int, a *float32, rsA int, b *float32, rsB int, c *float32, ldc int, alpha float32, add bool) {
	panic(noAsm)
}

func kernel4x16(k int, a *float32, rsA int, b *float32, rsB int, c *float32, ldc int, alpha float32, add bool) {
	panic(noAsm)
}

func copy16F32(dst *float32, ldDst, step int, src *float32, ldSrc, rows, pieces int) { panic(noAsm) }
func copy16BF16(dst *float32, ldDst, step int, src *uint16, ldSrc, rows, pieces int) { panic(noAsm) }
func copy16F16(dst *float32, ldDst, step int, src *uint16, ldSrc, rows, pieces int)  { panic(noAsm) }
func trans8F32(dst *float32, ldDst int, src *float32, ldSrc int, n int)              { panic(noAsm) }
func trans8BF16(dst *float32, ldDst int, src *uint16, ldSrc int, n int)              { panic(noAsm) }
func trans8F16(dst *float32, ldDst int, src *uint16, ldSrc int, n int)               { panic(noAsm) }
