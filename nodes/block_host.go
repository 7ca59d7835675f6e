package nodes

import (
	"math"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// The block quantizer: what Quantize and every quantizing epilogue make their bytes with.

// blockScale is the arithmetic of one block in float32, every operation rounded on its own (contracts, section 7):
//
//	SF = encode((max * norm) * rcp),  rcp = float32(1/q_max)
//	s  = norm * (1 / decode(SF)), at most FLT_MAX; a NaN stays
//	code = encode(x * s)
type blockScale struct {
	rcp    float32
	encode func(float32) uint8
	decode *[256]float32
}

var (
	e8m0Decoded = decodeTable(dtype.E8M0Decode)
	e4m3Decoded = decodeTable(dtype.E4M3Decode)
)

func decodeTable(decode func(uint8) float32) (t [256]float32) {
	for code := range t {
		t[code] = decode(uint8(code))
	}
	return t
}

// blockScaleOf returns the arithmetic of blocks of values with factors in a format.
func blockScaleOf(values, factor dtype.DType) blockScale {
	top := map[dtype.DType]float64{dtype.E4M3: 448, dtype.E5M2: 57344, dtype.E2M1: 6}[values]
	if factor == dtype.E8M0 {
		return blockScale{float32(1 / top), dtype.E8M0Encode, &e8m0Decoded}
	}
	return blockScale{float32(1 / top), dtype.E4M3Encode, &e4m3Decoded}
}

// unit makes every factor 1.
func (b *blockScale) unit() {
	one := b.encode(1)
	b.encode = func(float32) uint8 { return one }
}

// of returns the factor of a block with that largest magnitude, and what its elements are multiplied by.
func (b *blockScale) of(top, norm float32) (code uint8, s float32) {
	t := float32(top * norm)
	code = b.encode(float32(t * b.rcp))
	inv := float32(1 / b.decode[code])
	s = float32(norm * inv)
	if s > math.MaxFloat32 {
		s = math.MaxFloat32
	}
	return code, s
}

// magnitude is |x| as bits, whose order as integers is that of the magnitudes, with NaN on top: a maximum of them
// keeps a NaN.
func magnitude(x float32) uint32 { return math.Float32bits(x) &^ (1 << 31) }

// quantAxis is one quantized copy of a matrix: codes and factors along one axis.
type quantAxis struct {
	codes, sf *graph.Tensor // nil: not wanted
}

func (a quantAxis) wanted() bool { return a.codes != nil || a.sf != nil }

// blockQuantizer quantizes a float32 matrix (rows,cols), batch by batch, tile by tile, along its rows and its
// columns. Tiles begin at multiples of the block in both axes, and end there or where the rows' group or the
// columns do.
type blockQuantizer struct {
	scale      blockScale
	values     dtype.DType
	vec        int
	rows, cols int // of a batch, at capacity
	batches    int
	row, col   quantAxis
	transpose  bool // the column codes are (cols,rows)
	discrete   bool // each group's column factors are a tensor of their own
	rounding   stochastic
}

// stochastic rounds codes at random instead of to nearest.
type stochastic struct {
	draw *graph.Tensor // uint64 (2,): key and counter; nil: round to nearest
	salt uint32
}

// quantGroup is where a tile's group of rows lies.
type quantGroup struct {
	begin, rows int // of the group, in the batch
	sfBase      int // first byte of its column factors, with discrete ones
	batch       int
}

func newBlockQuantizer(f BlockFormat, rows, cols, batches int) *blockQuantizer {
	return &blockQuantizer{scale: blockScaleOf(f.Values(), f.Factor()), values: f.Values(), vec: f.Vec(), rows: rows, cols: cols, batches: batches}
}

// clearFactors sets all factors to 0, unused bytes and those of rows without data among them.
func (q *blockQuantizer) clearFactors() {
	for _, t := range []*graph.Tensor{q.row.sf, q.col.sf} {
		if t != nil {
			clear(t.Data)
		}
	}
}

// quantBuffers are a worker's buffers of the quantizer.
type quantBuffers struct {
	scaled []float32
	top    []uint32
	s      []float32
	line   []float32
}

type quantBuffersKey struct{}

func quantBuffersOf(w *graph.Worker, n, cols, vec int) *quantBuffers {
	b := w.Keep(quantBuffersKey{}, func() any { return new(quantBuffers) }).(*quantBuffers)
	if len(b.scaled) < n {
		b.scaled = make([]float32, n)
	}
	if len(b.top) < cols {
		b.top, b.s = make([]uint32, cols), make([]float32, cols)
	}
	if len(b.line) < vec {
		b.line = make([]float32, vec)
	}
	return b
}

// tile quantizes n columns of m rows, row r of the tile at x[r*ld:], which stand at (row,col) of the batch.
func (q *blockQuantizer) tile(w *graph.Worker, x []float32, ld, row, col, m, n int, norm float32, g quantGroup) {
	if m <= 0 || n <= 0 {
		return
	}
	if q.row.wanted() {
		q.alongRows(w, x, ld, row, col, m, n, norm, g)
	}
	if q.col.wanted() {
		for at := 0; at < m; at += q.vec {
			q.columnBlock(w, x[at*ld:], ld, row+at, col, min(q.vec, m-at), n, norm, g)
		}
	}
}

func (q *blockQuantizer) alongRows(w *graph.Worker, x []float32, ld, row, col, m, n int, norm float32, g quantGroup) {
	b := quantBuffersOf(w, n, 0, 0)
	layout := dtype.FactorLayout{Rows: q.rows, Cols: dtype.FactorCols(q.cols, q.vec), Batches: q.batches}
	for r := range m {
		line, out := x[r*ld:r*ld+n], b.scaled[:n]
		for at := 0; at < n; at += q.vec {
			block := line[at:min(at+q.vec, n)]
			top := uint32(0)
			for _, v := range block {
				top = max(top, magnitude(v))
			}
			code, s := q.scale.of(math.Float32frombits(top), norm)
			if q.row.sf != nil {
				q.row.sf.Data[layout.Index(g.batch, row+r, (col+at)/q.vec)] = code
			}
			for j, v := range block {
				out[at+j] = float32(v * s)
			}
		}
		if q.row.codes != nil {
			at := (g.batch*q.rows+row+r)*q.cols + col
			q.rounding.apply(q.values, out, at, 0)
			encodeAt(q.row.codes, q.values, at, out)
		}
	}
}

// columnBlock quantizes one block of m rows down its columns.
func (q *blockQuantizer) columnBlock(w *graph.Worker, x []float32, ld, row, col, m, n int, norm float32, g quantGroup) {
	b := quantBuffersOf(w, m*n, n, m)
	top, s := b.top[:n], b.s[:n]
	clear(top)
	for r := range m {
		for j, v := range x[r*ld : r*ld+n] {
			top[j] = max(top[j], magnitude(v))
		}
	}
	layout, base, batch, line := dtype.FactorLayout{Rows: q.cols, Cols: dtype.FactorCols(q.rows, q.vec), Batches: q.batches}, 0, g.batch, row/q.vec
	if q.discrete {
		layout, base, batch, line = dtype.FactorLayout{Rows: q.cols, Cols: dtype.FactorCols(g.rows, q.vec), Batches: 1}, g.sfBase, 0, (row-g.begin)/q.vec
	}
	for j := range n {
		var code uint8
		code, s[j] = q.scale.of(math.Float32frombits(top[j]), norm)
		if q.col.sf != nil {
			q.col.sf.Data[base+layout.Index(batch, col+j, line)] = code
		}
	}
	if q.col.codes == nil {
		return
	}
	for r := range m {
		out := b.scaled[r*n : (r+1)*n]
		for j, v := range x[r*ld : r*ld+n] {
			out[j] = float32(v * s[j])
		}
		at := (g.batch*q.rows+row+r)*q.cols + col
		q.rounding.apply(q.values, out, at, 1)
		if !q.transpose {
			encodeAt(q.col.codes, q.values, at, out)
		}
	}
	if !q.transpose {
		return
	}
	for j := range n {
		for r := range m {
			b.line[r] = b.scaled[r*n+j]
		}
		encodeAt(q.col.codes, q.values, (g.batch*q.cols+col+j)*q.rows+row, b.line[:m])
	}
}

// encodeAt writes codes of src from element at on, which is even for fp4, as is every row's length.
func encodeAt(t *graph.Tensor, values dtype.DType, at int, src []float32) {
	from := values.Bytes(at)
	_ = dtype.Encode(values, t.Data[from:from+values.Bytes(len(src))], src)
}

// apply replaces each value by one of its two neighbours in the format, the nearer the likelier, so that the mean is
// the value. Element i of a copy uses 24 bits of word i%4 of Philox at (i/4, counter, salt), as randomScale
// does; the second copy of a matrix has numbers of its own.
func (s stochastic) apply(values dtype.DType, x []float32, at, copy int) {
	if s.draw == nil {
		return
	}
	draw := graph.View[uint64](s.draw.Data)
	top, minExp, mantissa := narrowOf(values)
	var four [4]uint32
	for i, v := range x {
		if e := uint64(at + i); i == 0 || e%4 == 0 {
			four = philox(draw[0], e/4, uint32(draw[1]), (2*s.salt+uint32(copy))^uint32(draw[1]>>32)*0x9E3779B9)
		}
		x[i] = roundAtRandom(v, top, minExp, mantissa, four[(at+i)%4]>>8)
	}
}

// narrowOf returns the largest value, the exponent of the smallest normal one and the bits of the mantissa.
func narrowOf(values dtype.DType) (top float32, minExp, mantissa int) {
	switch values {
	case dtype.E4M3:
		return 448, -6, 3
	case dtype.E5M2:
		return 57344, -14, 2
	}
	return 6, 0, 1
}

// roundAtRandom rounds v away from zero with the probability that its distance from the neighbour nearer zero asks
// for; r is uniform in [0, 2^24). A NaN stays.
func roundAtRandom(v, top float32, minExp, mantissa int, r uint32) float32 {
	m := math.Float32frombits(magnitude(v))
	if m != m {
		return v
	}
	m = min(m, top)
	exp := max(int(math.Float32bits(m)>>23)-127, minExp)
	unit := math.Float32frombits(uint32(exp-mantissa+127) << 23)
	steps := m / unit // exact: a power of two
	whole := float32(int32(steps))
	if float32(r)*(1.0/(1<<24)) < steps-whole {
		whole++
	}
	return float32(math.Copysign(float64(whole*unit), float64(v)))
}
