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
	{"all in one", []int{0, 700, 0, 0}, 128, 512},
	{"empty", []int{0, 0, 0, 0}, 128, 128},
	{"roomy", []int{5, 0, 130, 256}, 128, 4 * 256}, // operands are decoded ahead
	{"few", []int{8, 16, 0, 64}, 128, 0},
	{"few, tails", []int{1, 17, 40, 65}, 128, 128},
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
			if i%3 == 1 {
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

// scaledLargeCases have room for many rows, so that they get the tiles of large layers; or long sums.
func scaledLargeCases() []gpuCase {
	var all []gpuCase
	for _, f := range blockFormatsOnGPU {
		for _, x := range []struct{ n, k, room int }{{2048, 448, 32768}, {264, 3328, 1024}, {136, 7168, 1024}} {
			s := gpuGrouping{"large", []int{300, 0, 77, 256}, 128, x.room}
			all = append(all, gpuCase{fmt.Sprintf("grouped_gemm_quant/large/%s,K=%d", f, x.k), func(b *gpuGraph) { b.scaledLarge(f, s, x.n, x.k, 1) }})
		}
	}
	return all
}

// scaledLarge adds so many products with one A.
func (b *gpuGraph) scaledLarge(f BlockFormat, s gpuGrouping, n, k, products int) {
	b.tol = tolerance{sum: k, loose: 2}
	c := b.scaledA(f, s, k, b.near(f))
	for i := range products {
		w := Weights{Dense: b.codes(fmt.Sprint("b", i), f, c.e, n, k), SF: b.factors(fmt.Sprint("sfb", i), f, n, k, c.e, b.near(f))}
		b.out(GroupedGEMM{A: c.a, B: w, PaddedOffsets: c.offsets, Counts: c.counts, Alignment: s.align, Scales: Scales{SFA: c.sfa, SFVec: f.Vec()}}.ApplyScaled().D)
	}
}

// scaledExtremeCases have NaNs among codes and factors, and (far) factors with which bf16 does not reach the values of fp8
// codes, and reaches those of fp4.
func scaledExtremeCases() []gpuCase {
	var all []gpuCase
	for _, f := range []BlockFormat{MXFP8, MXFP8E5M2, MXFP4} {
		for i := range 4 {
			far, group := i%2 == 1, []int{1, 4}[i/2]
			all = append(all, gpuCase{fmt.Sprintf("grouped_gemm_quant/extreme/%s/%s,far=%v", f, scaledGroupings[group].name, far), func(b *gpuGraph) {
				const n, k = 136, 256
				s := scaledGroupings[group]
				b.tol = tolerance{sum: k, loose: 2}
				rows, cols := b.near(f), b.near(f)
				if far {
					rows, cols = farRow, farColumn
				}
				c := b.scaledA(f, s, k, rows)
				w := Weights{Dense: b.codes("b", f, c.e, n, k), SF: b.factors("sfb", f, n, k, c.e, cols)}
				for i, x := range [][]uint8{b.dataOf(c.a), b.dataOf(w.Dense)} {
					for at := range x {
						if far { // no signs: Inf and -Inf in one sum are either of them or NaN, by the order
							x[at] &= map[int]uint8{8: 0x7f, 4: 0x77}[f.Values().Bits()]
						}
					}
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

func scaledGLUCases() []gpuCase {
	var all []gpuCase
	for i, f := range blockFormatsOnGPU {
		layout := []Layout{LayoutInterleaved32, LayoutConcat, LayoutPairs}[i%3]
		for j, s := range scaledGroupings {
			n, k := 192, 160
			if j == 2 {
				n, k = 1088, 544
			}
			all = append(all, gpuCase{fmt.Sprintf("grouped_gemm_glu_quant/%s/%s/%s", f, layout, s.name), func(b *gpuGraph) {
				b.tol = tolerance{sum: k, loose: 16}
				c := b.scaledA(f, s, k, b.near(f))
				alpha := b.give(b.g.Input("alpha", f32, c.e), []float32{0.01, -0.02, 0.005, 0.01})
				o := GroupedGEMMGLU{A: c.a, PaddedOffsets: c.offsets, Counts: c.counts, Alpha: alpha, Prob: b.floats("prob", f32, c.m), Layout: layout, Alignment: s.align,
					B:      Weights{Dense: b.codes("b", f, c.e, n, k), SF: b.factors("sfb", f, n, k, c.e, b.near(f))},
					Scales: Scales{SFA: c.sfa, SFVec: f.Vec()}}
				d := o.ApplyScaled()
				b.out(d.D, d.Amax, d.C)
				o.Bias, o.Activation = b.floats("bias", f32, c.e, n), Activation{Func: "geglu"}
				if f == NVFP4 {
					o.GlobalScaleA = b.floats("ga", f32, c.e)
				}
				d = o.ApplyScaled()
				b.out(d.D)
			}})
		}
	}
	return all
}

func scaledDGLUCases() []gpuCase {
	var all []gpuCase
	for i, f := range blockFormatsOnGPU {
		layout := []Layout{LayoutInterleaved32, LayoutConcat, LayoutPairs}[i%3]
		for j, s := range scaledGroupings {
			n, k := 96, 160
			if j == 2 {
				n, k = 544, 544
			}
			all = append(all, gpuCase{fmt.Sprintf("grouped_gemm_dglu_quant/%s/%s/%s", f, layout, s.name), func(b *gpuGraph) {
				b.tol = tolerance{sum: max(k, 700), loose: 16}
				c := b.scaledA(f, s, k, b.near(f))
				o := GroupedGEMMdGLU{A: c.a, PaddedOffsets: c.offsets, Counts: c.counts, C: b.floats("c", bf16, c.m, 2*n), Prob: b.floats("prob", f32, c.m),
					Alpha: b.give(b.g.Input("alpha", f32, c.e), []float32{0.01, -0.02, 0.005, 0.01}), Layout: layout, Alignment: s.align,
					B:      Weights{Dense: b.codes("b", f, c.e, n, k), SF: b.factors("sfb", f, n, k, c.e, b.near(f))},
					Scales: Scales{SFA: c.sfa, SFVec: f.Vec()}}
				g := o.Apply()
				b.out(g.DC, g.DProb, g.Amax, g.DBias, g.Act)
			}})
		}
	}
	return all
}

// tokenFactors are the factors of an operand of WGrad with so many rows: expert by expert, NaN where an expert has no tokens.
func (b *gpuGraph) tokenFactors(name string, f BlockFormat, rows, m int, s gpuGrouping, code func(r, c int) uint8) *graph.Value {
	total := dtype.FactorLayout{Rows: rows, Cols: dtype.FactorCols(m, f.Vec()), Batches: 1}
	x, base := make([]uint8, total.Bytes()), 0
	for i := range x {
		x[i] = 0xff
	}
	for _, n := range s.counts {
		l := dtype.FactorLayout{Rows: rows, Cols: dtype.FactorCols((n+s.align-1)/s.align*s.align, f.Vec()), Batches: 1}
		for r := range rows {
			for c := range dtype.FactorCols(n, f.Vec()) {
				x[base+l.Index(0, r, c)] = code(r, c)
			}
		}
		base += l.Bytes()
	}
	return b.give(b.g.Input(name, f.Factor(), total.Bytes()), x)
}

func scaledWGradCases() []gpuCase {
	var all []gpuCase
	add := func(name string, f BlockFormat, s gpuGrouping, h, n int, far bool, options ...WGrad) {
		all = append(all, gpuCase{fmt.Sprintf("wgrad_quant/%s/%s", f, name), func(b *gpuGraph) {
			b.tol = tolerance{sum: 1024, loose: 2}
			offsets, counts, m := b.groups(s)
			e := len(s.counts)
			alpha := b.floats("alpha", f32, e)
			rows := b.near(f)
			if far { // a few rows of a, so that the rest is of another size
				rows = func(r, c int) uint8 {
					if r%16 == 3 {
						return uint8(c % 3)
					}
					return 127
				}
			}
			sfa, sfb := b.tokenFactors("sfa", f, h, m, s, rows), b.tokenFactors("sfb", f, n, m, s, b.near(f))
			var ga, gb *graph.Value
			if f == NVFP4 {
				ga, gb = b.floats("ga", f32, e), b.floats("gb", f32, e)
			}
			a, at := b.codes("a", f, m, h), b.codes("at", f, h, m)
			x, xt := b.codes("x", f, m, n), b.codes("xt", f, n, m)
			b.spoilCodes(a, s)
			b.spoilCodes(x, s)
			for i, o := range options {
				o.A, o.B = at, x
				if o.AMajorM {
					o.A = a
				}
				if o.BMajorK {
					o.B = xt
				}
				o.SFA, o.SFB, o.SFVec, o.GlobalScaleA, o.GlobalScaleB = sfa, sfb, f.Vec(), ga, gb
				o.Offsets, o.Counts, o.Alpha, o.Alignment = offsets, counts, alpha, s.align
				if o.Into != nil {
					o.Into = []*graph.Value{b.vars.State(fmt.Sprint("sum", i), f32, graph.Const(0.1), e, h, n)}
					o.DType = f32
				}
				b.out(o.Apply()...)
			}
		}})
	}
	into := []*graph.Value{nil}
	for _, f := range blockFormatsOnGPU {
		for i, s := range scaledGroupings {
			h, n := 208, 272
			if i == 2 {
				h, n = 2048, 1088
			}
			if f.Values() == dtype.E2M1 {
				add(s.name, f, s, 224, 288, false, WGrad{BMajorK: true, DType: f32}, WGrad{BMajorK: true, Ragged: true}, WGrad{BMajorK: true, Into: into})
				continue
			}
			add(s.name, f, s, h, n, false, WGrad{AMajorM: true, DType: f32}, WGrad{}, WGrad{AMajorM: true, BMajorK: true, Discrete: true}, WGrad{BMajorK: true, Ragged: true, Into: into})
			if i%3 == 1 {
				add(s.name+"/extreme", f, s, h, n, true, WGrad{AMajorM: true, DType: f32}, WGrad{BMajorK: true, Into: into})
			}
		}
	}
	return all
}

// weightOnlyCases have weights alone in codes, along either axis.
func weightOnlyCases() []gpuCase {
	var all []gpuCase
	for _, f := range blockFormatsOnGPU {
		for _, dt := range gpuFormats {
			if dt != bf16 && f != MXFP4 {
				continue
			}
			for i, s := range gpuGroupings {
				if i != 2 && f != MXFP4 {
					continue
				}
				all = append(all, gpuCase{fmt.Sprintf("weight_only/%s/%s/%s", f, dt, s.name), func(b *gpuGraph) {
					const n, k = 320, 224
					b.tol = tolerance{sum: k, loose: 16}
					offsets, counts, m := b.groups(s)
					e := len(s.counts)
					a, prob := b.floats("a", dt, m, k), b.floats("prob", f32, m)
					alpha := b.give(b.g.Input("alpha", f32, e), []float32{0.1, -0.2, 0.1, 0.3, 0.1})
					w := Weights{Dense: b.codes("w", f, e, n, k), SF: b.factors("sf", f, n, k, e, b.near(f)), WeightOnly: f}
					t := Weights{Dense: b.codes("wt", f, e, k, n), SF: b.factors("sft", f, k, n, e, b.near(f)), WeightOnly: f, NMajor: true}
					var parts Weights
					parts.WeightOnly = f
					for i := range e {
						parts.Discrete = append(parts.Discrete, b.codes(fmt.Sprint("w.", i), f, n, k))
						parts.DiscreteSF = append(parts.DiscreteSF, b.factors(fmt.Sprint("sf.", i), f, n, k, 1, b.near(f)))
					}
					for _, w := range []Weights{w, t, parts} {
						o := GroupedGEMM{A: a, B: w, PaddedOffsets: offsets, Counts: counts, Alpha: alpha, Prob: prob, Alignment: s.align, CType: f32}
						d, c := o.Apply()
						b.out(d, c)
						for _, layout := range []Layout{LayoutInterleaved32, LayoutConcat} {
							o := GroupedGEMMGLU{A: a, B: w, PaddedOffsets: offsets, Counts: counts, Alpha: alpha, Prob: prob, Alignment: s.align, Layout: layout, CType: f32}
							d, c := o.Apply()
							b.out(d, c)
						}
						g := GroupedGEMMdGLU{A: a, B: w, C: b.floats(fmt.Sprint("c", len(b.outs)), dt, m, 2*n), PaddedOffsets: offsets, Counts: counts, Alpha: alpha, Prob: prob,
							Alignment: s.align}.Apply()
						b.out(g.DC, g.DProb, g.Amax, g.DBias)
					}
				}})
			}
		}
	}
	return all
}

// scaledQuantizedCases have outputs in fp8 and fp4: of sums that are exact in any order byte by byte, others after decoding.
func scaledQuantizedCases() []gpuCase {
	var all []gpuCase
	for _, dt := range []dtype.DType{dtype.E4M3, dtype.E5M2, dtype.E2M1} {
		for i, s := range scaledGroupings {
			of, layout := quantizedFormat(dt, MXFP8), Layout(i%3)
			l := Launch{Tile: map[string][2]int{"tails": {64, 64}, "all in one": {128, 128}, "roomy": {128, 128}}[s.name]}
			all = append(all, gpuCase{fmt.Sprintf("grouped_gemm_quant/quantized/%s/%s", dt, s.name), func(b *gpuGraph) {
				n, k := 160, 96
				if i%2 == 1 && dt != dtype.E2M1 {
					n = 336 // half a block more than whole ones
				}
				c := b.scaledA(MXFP8, s, k, func(int, int) uint8 { return 127 })
				w := Weights{Dense: b.codes("b", MXFP8, c.e, n, k), SF: b.factors("sfb", MXFP8, n, k, c.e, func(int, int) uint8 { return 128 })}
				for _, x := range [][]uint8{b.dataOf(c.a), b.dataOf(w.Dense)} {
					for i := range x {
						x[i] = x[i]&0x80 | 0x38 + x[i]&3<<2 // 1, 1.5, 2, 3
					}
				}
				b.spoilCodes(c.a, s)
				norm := b.give(b.g.Input("norm", f32, 1), []float32{0.75})
				o := GroupedGEMM{A: c.a, B: w, PaddedOffsets: c.offsets, Counts: c.counts, Prob: b.floats("prob", f32, c.m), Alignment: s.align, DType: dt, Launch: l,
					Scales: Scales{SFA: c.sfa, NormConst: norm, DiscreteColSF: i%2 == 0}}
				d := o.ApplyScaled()
				b.out(d.D, d.DCol, d.SFDRow, d.SFDCol)
			}}, gpuCase{fmt.Sprintf("grouped_gemm_glu_quant/quantized/%s/%s", dt, s.name), func(b *gpuGraph) {
				const n, k = 192, 96
				b.tol = tolerance{rough: 2e-2}
				c := b.scaledA(MXFP8, s, k, b.near(MXFP8))
				norm, alpha := b.give(b.g.Input("norm", f32, 1), []float32{0.75}), b.give(b.g.Input("alpha", f32, c.e), []float32{0.01, -0.02, 0.005, 0.01})
				w := Weights{Dense: b.codes("b", MXFP8, c.e, n, k), SF: b.factors("sfb", MXFP8, n, k, c.e, b.near(MXFP8))}
				prob, scales := b.floats("prob", f32, c.m), Scales{SFA: c.sfa, NormConst: norm}
				out := func(row, rowSF, col, colSF *graph.Value, more ...*graph.Value) {
					b.out(Dequantize{X: row, SF: rowSF, Format: of}.Apply(), Dequantize{X: col, SF: colSF, Format: of, Axis: AlongCol}.Apply())
					b.out(more...)
				}
				d := GroupedGEMMGLU{A: c.a, B: w, PaddedOffsets: c.offsets, Counts: c.counts, Alpha: alpha, Prob: prob, Alignment: s.align, DType: dt, Scales: scales,
					Layout: layout, Launch: l}.ApplyScaled()
				out(d.D, d.SFDRow, d.DCol, d.SFDCol, d.C)
				for _, cdt := range []dtype.DType{bf16, f32} {
					if cdt == f32 && l.Tile[0]*l.Tile[1] > 64*64 {
						continue // a C in f32 and exact sigmoids are short of five registers beside 64 rows a warp
					}
					g := GroupedGEMMdGLU{A: c.a, B: w, C: b.floats("c"+cdt.String(), cdt, c.m, 2*n), PaddedOffsets: c.offsets, Counts: c.counts, Alpha: alpha, Prob: prob,
						Alignment: s.align, DType: dt, Scales: scales, Layout: layout, Launch: l}.Apply()
					out(g.DC, g.SFDCRow, g.DCCol, g.SFDCCol, g.DProb, g.DBias, g.Act)
				}
			}})
		}
	}
	return all
}
