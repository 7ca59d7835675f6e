package gemm

// dot4x4 sums acc[4*i+j] = A[i][p]*B[p][j] over ascending p, with A[i][p] at a[i*ldA+p] and B[p][j] at
// b[p*ldB+j].
func dot4x4[T float32 | float64](k int, a []T, ldA int, b []T, ldB int, acc *[16]T) {
	a0, a1, a2, a3 := a[:k], a[ldA:][:k], a[2*ldA:][:k], a[3*ldA:][:k]
	var c00, c01, c02, c03, c10, c11, c12, c13 T
	var c20, c21, c22, c23, c30, c31, c32, c33 T
	for p := range k {
		row := b[p*ldB:][:4]
		b0, b1, b2, b3 := row[0], row[1], row[2], row[3]
		x := a0[p]
		c00 += x * b0
		c01 += x * b1
		c02 += x * b2
		c03 += x * b3
		x = a1[p]
		c10 += x * b0
		c11 += x * b1
		c12 += x * b2
		c13 += x * b3
		x = a2[p]
		c20 += x * b0
		c21 += x * b1
		c22 += x * b2
		c23 += x * b3
		x = a3[p]
		c30 += x * b0
		c31 += x * b1
		c32 += x * b2
		c33 += x * b3
	}
	*acc = [16]T{c00, c01, c02, c03, c10, c11, c12, c13, c20, c21, c22, c23, c30, c31, c32, c33}
}

// goTile is the kernel in Go: a tile of 4 rows and tileCols columns, for processors without assembly.
func goTile(k int, a []float32, ldA int, b []float32, c []float32, ldc int, alpha float32, add bool) {
	var acc [16]float32
	for j := 0; j < tileCols; j += 4 {
		dot4x4(k, a, ldA, b[j:], tileCols, &acc)
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
