package gemm

// tiles is a product of two packed blocks, computed tile by tile.
type tiles struct {
	kc    int
	alpha float32
	add   bool      // to C; false: store
	a     []float32 // row-major; rows up to paddedRows exist
	ldA   int
	b     []float32 // panels of kc rows of tileCols elements; ldB other than tileCols: a single panel
	ldB   int
	c     []float32
	ldC   int
}

// nextTile is the height of the tile to take where left rows are left: 6, or 4 where that wastes less.
func nextTile(left int) int {
	if !useAsm || left <= 4 || left == 7 || left == 8 {
		return 4
	}
	return tileRows
}

// paddedRows is where the last tile ends.
func paddedRows(rows int) int {
	end := 0
	for end < rows {
		end += nextTile(rows - end)
	}
	return end
}

// mul computes rows x cols of C. A panel of B stays in the first-level cache while A streams from the
// second.
func (t *tiles) mul(rows, cols int, edge *[tileRows * tileCols]float32) {
	for j := 0; j < cols; j += tileCols {
		b, width := t.b[j/tileCols*panelStride(t.kc):], min(tileCols, cols-j)
		for i := 0; i < rows; {
			height := nextTile(rows - i)
			a, c := t.a[i*t.ldA:], t.c[i*t.ldC+j:]
			if valid := min(height, rows-i); valid == height && width == tileCols {
				t.kernel(height, a, b, c, t.ldC)
			} else {
				t.mulEdge(height, a, b, c, valid, width, edge)
			}
			i += height
		}
	}
}

// mulEdge runs a whole tile beside C and moves the part that lies inside: rows x cols.
func (t *tiles) mulEdge(height int, a, b, c []float32, rows, cols int, edge *[tileRows * tileCols]float32) {
	if t.add {
		for i := range rows {
			copy(edge[i*tileCols:], c[i*t.ldC:i*t.ldC+cols])
		}
	}
	t.kernel(height, a, b, edge[:], tileCols)
	for i := range rows {
		copy(c[i*t.ldC:i*t.ldC+cols], edge[i*tileCols:])
	}
}

// kernel computes one whole tile.
func (t *tiles) kernel(height int, a, b, c []float32, ldC int) {
	switch {
	case !useAsm:
		goTile(t.kc, a, t.ldA, b, t.ldB, c, ldC, t.alpha, t.add)
	case height == tileRows:
		kernel6x16(t.kc, &a[0], t.ldA, &b[0], t.ldB, &c[0], ldC, t.alpha, t.add)
	default:
		kernel4x16(t.kc, &a[0], t.ldA, &b[0], t.ldB, &c[0], ldC, t.alpha, t.add)
	}
}
