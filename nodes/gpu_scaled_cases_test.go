//go:build gpu

package nodes

import (
	"fmt"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// scaledGroupings divide rows in multiples of 128 among experts.
var scaledGroupings = []gpuGrouping{
	{"one row", []int{0, 0, 1, 0}, 128, 0},
	{"tails", []int{5, 0, 130, 256}, 128, 128},
	{"all in one", []int{0, 700, 0, 0}, 128, 256},
	{"empty", []int{0, 0, 0, 0}, 128, 128},
}

// blockFormatsOnGPU are the formats that products of block-scaled operands take.
var blockFormatsOnGPU = []BlockFormat{MXFP8, MXFP8E5M2, MXFP4, MXFP4Vec16, NVFP4}

// scaledShapes are N and K: off the tiles, on them, and K that ends in half a word of factors.
var scaledShapes = [][2]int{{72, 96}, {264, 352}, {256, 512}}

// codes is an input of random codes of moderate size.
func (b *gpuGraph) codes(name string, f BlockFormat, dims ...int) *graph.Value {
	v := b.g.Input(name, f.Values(), dims...)
	x := make([]uint8, f.Values().Bytes(v.Elems()))
	for i := range x {
		x[i] = uint8(b.rand.UintN(256))
		switch {
		case f.Values() == dtype.E4M3 && x[i]&0x7f == 0x7f:
			x[i] = 0
		case f.Values() == dtype.E5M2:
			x[i] = x[i]&0x8f | 0x30
		}
	}
	return b.give(v, x)
}

// spoilCodes fills the padding rows of v, and those past the last group, with NaN or the largest codes.
func (b *gpuGraph) spoilCodes(v *graph.Value, s gpuGrouping) {
	x := b.dataOf(v)
	row := len(x) / v.Dim(0)
	fill := func(lo, hi int) {
		for i := lo * row; i < hi*row; i++ {
			x[i] = 0xff
		}
	}
	at := 0
	for _, n := range s.counts {
		end := at + (n+s.align-1)/s.align*s.align
		fill(at+n, end)
		at = end
	}
	fill(at, v.Dim(0))
}

// dataOf is the bytes that were given to v.
func (b *gpuGraph) dataOf(v *graph.Value) []uint8 {
	for _, in := range b.data {
		if in.v == v {
			return in.x.([]uint8)
		}
	}
	return nil
}

// factors is an input of factors of batches matrices (rows,k), each by code(row, column of factors).
func (b *gpuGraph) factors(name string, f BlockFormat, rows, k, batches int, code func(r, c int) uint8) *graph.Value {
	l := dtype.FactorLayout{Rows: rows, Cols: dtype.FactorCols(k, f.Vec()), Batches: batches}
	x := make([]uint8, l.Bytes())
	for i := range batches {
		for r := range rows {
			for c := range l.Cols {
				x[l.Index(i, r, c)] = code(r, c)
			}
		}
	}
	return b.give(b.g.Input(name, f.Factor(), l.Bytes()), x)
}

// near makes factors about 1.
func (b *gpuGraph) near(f BlockFormat) func(int, int) uint8 {
	return func(int, int) uint8 {
		if f.Factor() == dtype.E4M3 {
			return uint8(0x30 + b.rand.UintN(16))
		}
		return uint8(125 + b.rand.UintN(4))
	}
}

// farRow gives each row of A one of the factors at the ends of e8m0, and one row in 97 a NaN; farColumn gives each column of B
// one that makes a product with such a row moderate, zero, or Inf whatever the order of the sum.
func farRow(r, _ int) uint8 {
	if r%97 == 41 {
		return 255
	}
	return [...]uint8{0, 1, 2, 3, 10, 251, 253, 254}[r%8]
}

func farColumn(r, _ int) uint8 { return [...]uint8{252, 2}[r/48%2] }

// spoilFactors makes the factors of padding rows NaN.
func (b *gpuGraph) spoilFactors(v *graph.Value, f BlockFormat, s gpuGrouping, m, k int) {
	x, l, at := b.dataOf(v), dtype.FactorLayout{Rows: m, Cols: dtype.FactorCols(k, f.Vec()), Batches: 1}, 0
	for _, n := range s.counts {
		end := at + (n+s.align-1)/s.align*s.align
		for r := at + n; r < end; r++ {
			for c := range l.Cols {
				x[l.Index(0, r, c)] = 0xff
			}
		}
		at = end
	}
}

// scaledCase is the operands of a product of block-scaled operands.
type scaledCase struct {
	offsets, counts, a, sfa *graph.Value
	m, e                    int
}

// scaledA makes a grouping and A (M,K), whose padding is not to be read.
func (b *gpuGraph) scaledA(f BlockFormat, s gpuGrouping, k int, code func(r, c int) uint8) scaledCase {
	c := scaledCase{e: len(s.counts)}
	c.offsets, c.counts, c.m = b.groups(s)
	c.a, c.sfa = b.codes("a", f, c.m, k), b.factors("sfa", f, c.m, k, 1, code)
	b.spoilCodes(c.a, s)
	b.spoilFactors(c.sfa, f, s, c.m, k)
	return c
}

// scaledSweep calls add for every format with every gpuGrouping, and with every shape.
func scaledSweep(add func(name string, f BlockFormat, s gpuGrouping, n, k int)) {
	for _, f := range blockFormatsOnGPU {
		for i, s := range scaledGroupings {
			shapes := scaledShapes[:1]
			if i == 1 {
				shapes = scaledShapes
			}
			for _, shape := range shapes {
				add(fmt.Sprintf("%s/%s,N=%d,K=%d", f, s.name, shape[0], shape[1]), f, s, shape[0], shape[1])
			}
		}
	}
}

func scaledGEMMCases() []gpuCase {
	var all []gpuCase
	scaledSweep(func(name string, f BlockFormat, s gpuGrouping, n, k int) {
		all = append(all, gpuCase{"grouped_gemm_quant/" + name, func(b *gpuGraph) {
			b.tol = tolerance{sum: k, loose: 2}
			c := b.scaledA(f, s, k, b.near(f))
			alpha, prob, bias := b.floats("alpha", f32, c.e), b.floats("prob", f32, c.m), b.floats("bias", bf16, c.e, n)
			scales := Scales{SFA: c.sfa, SFVec: f.Vec()}
			w := Weights{Dense: b.codes("b", f, c.e, n, k), SF: b.factors("sfb", f, n, k, c.e, b.near(f))}
			o := GroupedGEMM{A: c.a, B: w, PaddedOffsets: c.offsets, Counts: c.counts, Prob: prob, Alignment: s.align, Scales: scales}
			d := o.ApplyScaled()
			b.out(d.D, d.Amax)
			o.B = Weights{}
			for i := range c.e {
				o.B.Discrete = append(o.B.Discrete, b.codes(fmt.Sprintf("b.%d", i), f, n, k))
				o.B.DiscreteSF = append(o.B.DiscreteSF, b.factors(fmt.Sprintf("sfb.%d", i), f, n, k, 1, b.near(f)))
			}
			if f == NVFP4 {
				o.GlobalScaleA, o.GlobalScaleB = b.floats("ga", f32, c.e), b.floats("gb", f32, c.e)
			}
			o.Alpha, o.Bias, o.DType = alpha, bias, dtype.Float16
			d = o.ApplyScaled()
			b.out(d.D, d.Amax)
		}})
	})
	return all
}

// scaledLargeCases have room for many rows, so that they get the tiles of large layers.
func scaledLargeCases() []gpuCase {
	var all []gpuCase
	for _, f := range blockFormatsOnGPU {
		all = append(all, gpuCase{"grouped_gemm_quant/large/" + f.String(), func(b *gpuGraph) {
			const n, k = 2048, 448
			s := gpuGrouping{"large", []int{300, 0, 77, 256}, 128, 32768}
			b.tol = tolerance{sum: k, loose: 2}
			c := b.scaledA(f, s, k, b.near(f))
			w := Weights{Dense: b.codes("b", f, c.e, n, k), SF: b.factors("sfb", f, n, k, c.e, b.near(f))}
			d := GroupedGEMM{A: c.a, B: w, PaddedOffsets: c.offsets, Counts: c.counts, Alignment: s.align, Scales: Scales{SFA: c.sfa, SFVec: f.Vec()}}.ApplyScaled()
			b.out(d.D)
		}})
	}
	return all
}

// scaledExtremeCases have NaNs among codes and factors, and (far) factors with which bf16 does not reach the values of fp8
// codes, and reaches those of fp4.
func scaledExtremeCases() []gpuCase {
	var all []gpuCase
	for _, f := range []BlockFormat{MXFP8, MXFP8E5M2, MXFP4} {
		for _, far := range []bool{false, true} {
			all = append(all, gpuCase{fmt.Sprintf("grouped_gemm_quant/extreme/%s,far=%v", f, far), func(b *gpuGraph) {
				const n, k = 136, 160
				s := scaledGroupings[1]
				b.tol = tolerance{sum: k, loose: 2}
				rows, cols := b.near(f), b.near(f)
				if far {
					rows, cols = farRow, farColumn
				}
				c := b.scaledA(f, s, k, rows)
				w := Weights{Dense: b.codes("b", f, c.e, n, k), SF: b.factors("sfb", f, n, k, c.e, cols)}
				for i, x := range [][]uint8{b.dataOf(c.a), b.dataOf(w.Dense)} {
					for at := 3 + 5*i; f.Values().Bits() == 8 && at < len(x); at += 4999 + 1000*i {
						x[at] = 0x7f
					}
				}
				d := GroupedGEMM{A: c.a, B: w, PaddedOffsets: c.offsets, Counts: c.counts, Alignment: s.align, Scales: Scales{SFA: c.sfa, SFVec: f.Vec()}}.ApplyScaled()
				b.out(d.D, d.Amax)
			}})
		}
	}
	return all
}
