package gemm

// dot4x4 sums acc[4*i+j] = A[i][p]*B[p][j] over ascending p, with A[i][p] at a[i*ldA+p] and B[p][j] at
// b[p*ldB+j]. Two rows at a time: more sums than that do not stay in the 16 registers of amd64.
func dot4x4[T float32 | float64](k int, a []T, ldA int, b []T, ldB int, acc *[16]T) {
	for i := 0; i < 4; i += 2 {
		a0, a1 := a[i*ldA:][:k], a[(i+1)*ldA:][:k]
		var c00, c01, c02, c03, c10, c11, c12, c13 T
		at := 0
		for p, x := range a0 {
			row := b[at : at+4 : at+4]
			at += ldB
			b0, b1, b2, b3 := row[0], row[1], row[2], row[3]
			c00 += x * b0
			c01 += x * b1
			c02 += x * b2
			c03 += x * b3
			x = a1[p]
			c10 += x * b0
			c11 += x * b1
			c12 += x * b2
			c13 += x * b3
		}
		*(*[8]T)(acc[4*i:]) = [8]T{c00, c01, c02, c03, c10, c11, c12, c13}
	}
}

// goTile is the kernel in Go: a tile of 4 rows and tileCols columns, for processors without assembly.
func goTile(k int, a []float32, ldA int, b []float32, ldB int, c []float32, ldc int, alpha float32, add bool) {
	var acc [16]float32
	for j := 0; j < tileCols; j += 4 {
		dot4x4(k, a, ldA, b[j:], ldB, &acc)
		for i := range 4 {
			row := c[i*ldc+j:][:4]
			for t := range row {
				if add {
					row[t] += alpha * acc[4*i+t]
				} else {
					row[t] = alpha * acc[4*i+t]
				}
			}
		}
	}
}
