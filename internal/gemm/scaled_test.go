package gemm

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/moegraph/moegraph/dtype"
)

// TestMul_Scaled multiplies block-scaled operands in every orientation and compares with the float32 product of the
// same numbers decoded one by one: equal bits.
func TestMul_Scaled(t *testing.T) {
	const m, n, k = 37, 70, 96
	r := rand.New(rand.NewPCG(1, 2))
	for _, f := range []struct {
		values, factor dtype.DType
		vec            int
	}{{dtype.E4M3, dtype.E8M0, 32}, {dtype.E5M2, dtype.E8M0, 32}, {dtype.E2M1, dtype.E8M0, 16}, {dtype.E2M1, dtype.E4M3, 16}} {
		// operand makes rows x cols as stored, a view that begins at (32,32) of a larger matrix.
		operand := func(rows, cols int, trans, down bool) (Operand, []float32) {
			bigRows, bigCols := rows+32, cols+32+cols%2
			codes := make([]byte, f.values.Bytes(bigRows*bigCols))
			for i := range codes {
				codes[i] = byte(r.IntN(256))
				if f.values != dtype.E2M1 {
					codes[i] &= 0xbf // no NaN, no Inf
				}
			}
			layout := dtype.FactorLayout{Rows: bigRows, Cols: dtype.FactorCols(bigCols, f.vec), Batches: 1}
			if down {
				layout.Rows, layout.Cols = bigCols, dtype.FactorCols(bigRows, f.vec)
			}
			factors := make([]byte, layout.Bytes())
			for i := range factors {
				factors[i] = byte(120 + r.IntN(8))
				if f.factor == dtype.E4M3 {
					factors[i] = byte(0x30 + r.IntN(16))
				}
			}
			decoded := make([]float32, rows*cols)
			for i := range rows {
				for j := range cols {
					row, col := i+32, j+32
					at := row*bigCols + col
					code := codes[at*f.values.Bits()/8]
					var v float32
					switch f.values {
					case dtype.E4M3:
						v = dtype.E4M3Decode(code)
					case dtype.E5M2:
						v = dtype.E5M2Decode(code)
					default:
						v = dtype.E2M1Decode(code >> (4 * (at % 2)))
					}
					fr, fc := row, col/f.vec
					if down {
						fr, fc = col, row/f.vec
					}
					factor := factors[layout.Index(0, fr, fc)]
					if f.factor == dtype.E8M0 {
						v *= dtype.E8M0Decode(factor)
					} else {
						v *= dtype.E4M3Decode(factor)
					}
					decoded[i*cols+j] = v
				}
			}
			return Operand{LD: bigCols, Trans: trans, Scaled: Scaled{Codes: codes, Values: f.values, At: 32*bigCols + 32, Factors: factors, Factor: f.factor,
				Vec: f.vec, Layout: layout, Row: 32, Col: 32, Down: down}}, decoded
		}
		for bits := range 16 {
			transA, downA, transB, downB := bits&1 > 0, bits&2 > 0, bits&4 > 0, bits&8 > 0
			t.Run(fmt.Sprintf("%s,%s,%d", f.values, f.factor, bits), func(t *testing.T) {
				am, ak, bk, bn := m, k, k, n
				if transA {
					am, ak = k, m
				}
				if transB {
					bk, bn = n, k
				}
				a, plainA := operand(am, ak, transA, downA)
				b, plainB := operand(bk, bn, transB, downB)
				got, want := make([]float32, m*n), make([]float32, m*n)
				var w Work
				w.Mul(m, n, k, 0.5, a, b, 0, got, n)
				w.Mul(m, n, k, 0.5, Operand{F32: plainA, LD: ak, Trans: transA}, Operand{F32: plainB, LD: bn, Trans: transB}, 0, want, n)
				for i := range want {
					if got[i] != want[i] {
						t.Fatalf("element %d: got %v, want %v", i, got[i], want[i])
					}
				}
			})
		}
	}
}
