package gemm

// Packing decodes a block of an operand to float32 in the layout that the kernels read.

// copyTo writes the stored block of rows x cols from (row, col) on to dst, element (i, j) at [i*ld+j].
func (o *Operand) copyTo(dst []float32, ld, row, col, rows, cols int) {
	wide := 0 // columns that the assembly takes
	if useAsm && o.Codes == nil && cols >= 16 {
		wide = cols &^ 15
		o.copy16(dst, ld, 16, row, col, rows, wide/16)
	}
	if wide < cols {
		for i := range rows {
			o.decode(dst[i*ld+wide:i*ld+cols], row+i, col+wide)
		}
	}
}

// transTo writes the transpose of the stored block: element (i, j) at [j*ld+i].
func (o *Operand) transTo(dst []float32, ld, row, col, rows, cols int) {
	i, wide := 0, cols&^7
	if useAsm && o.Codes == nil && wide > 0 {
		for ; i+8 <= rows; i += 8 {
			o.trans8(dst[i:], ld, row+i, col, wide/8)
		}
		if wide < cols {
			for t := range i {
				o.decodeColumn(dst[wide*ld+t:], ld, row+t, col+wide, cols-wide)
			}
		}
	}
	for ; i < rows; i++ {
		o.decodeColumn(dst[i:], ld, row+i, col, cols)
	}
}

// packA writes rows i0.. of op(A), columns p0.., row-major with stride ld, and zeros for the rows up
// to padded that the last tile reads beyond them.
func packA(dst []float32, a *Operand, ld, i0, p0, rows, kc, padded int) {
	if a.Trans {
		a.transTo(dst, ld, p0, i0, kc, rows)
	} else {
		a.copyTo(dst, ld, i0, p0, rows, kc)
	}
	clear(dst[rows*ld : padded*ld])
}

// panelStride is how far the panels of packed B lie apart, such that the same rows of several panels
// do not fall in one cache set.
func panelStride(kc int) int { return (kc + 1) * tileCols }

// packB writes columns j0.. of op(B), rows p0.., as panels of tileCols columns: kc rows of tileCols
// elements each, zeros in the columns missing from the last panel.
func packB(dst []float32, b *Operand, p0, j0, kc, cols int) {
	stride := panelStride(kc)
	j := 0
	if useAsm && !b.Trans && b.Codes == nil {
		for numPanels := cols / tileCols; numPanels > 0; {
			group := min(numPanels, groupPanels)
			b.copy16(dst[j/tileCols*stride:], tileCols, stride, p0, j0+j, kc, group)
			numPanels -= group
			j += group * tileCols
		}
	}
	for ; j < cols; j += tileCols {
		panel := dst[j/tileCols*stride:][:kc*tileCols]
		width := min(tileCols, cols-j)
		if width < tileCols {
			clear(panel)
		}
		if b.Trans {
			b.transTo(panel, tileCols, j0+j, p0, width, kc)
		} else {
			b.copyTo(panel, tileCols, p0, j0+j, kc, width)
		}
	}
}
