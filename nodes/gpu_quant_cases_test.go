//go:build gpu

package nodes

import (
	"bytes"
	"fmt"
	"math"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// codecCases are conversions of all codes, and of numbers near and between them.
func codecCases() []gpuCase {
	var all []gpuCase
	for _, to := range []dtype.DType{dtype.BFloat16, dtype.Float16, dtype.E4M3, dtype.E5M2, dtype.E2M1, dtype.E8M0} {
		all = append(all, gpuCase{"encode/" + to.String(), func(b *gpuGraph) {
			b.tol.exact = true
			const n = 1 << 16
			var all []float32
			for i := range uint32(n) { // every bf16 number, its neighbours in float32, and others at random
				all = append(all, math.Float32frombits(i<<16), math.Float32frombits(i<<16+1), math.Float32frombits(i<<16-1), math.Float32frombits(b.rand.Uint32()))
			}
			x := b.give(b.g.Input("x", f32, 4, n), all)
			odd := b.counted("odd", f32, 37, 64, 1026)
			b.out(Encode(x, to), Encode(odd, to))
		}}, gpuCase{"decode/" + to.String(), func(b *gpuGraph) {
			b.tol.exact = true
			x := b.g.Input("x", to, 256, 512)
			if to.Bits() == 16 {
				codes := make([]uint16, x.Elems())
				for i := range codes {
					codes[i] = uint16(i)
				}
				b.give(x, codes)
			} else {
				codes := make([]byte, to.Bytes(x.Elems()))
				for i := range codes {
					codes[i] = byte(i)
				}
				b.give(x, codes)
			}
			b.out(Decode(x))
		}})
	}
	return all
}

// hostile is an input of numbers that blocks may meet.
func (b *gpuGraph) hostile(name string, dt dtype.DType, dims ...int) *graph.Value {
	v := b.g.Input(name, dt, dims...)
	return b.give(v, hostileNumbers(b.rand, v.Elems(), dims[len(dims)-1]))
}

// quant marks all outputs of a Quantize.
func (b *gpuGraph) quant(o Quantize) Quantized {
	q := o.Apply()
	b.out(q.Row, q.RowSF, q.Col, q.ColSF, q.GlobalScale)
	return q
}

// blockGroups are the groups of contracts' hard list: rows 1, 127, 128, 129, 0 and 200, with rows to spare.
func (b *gpuGraph) blockGroups(align int) (offsets, counts *graph.Value, m int) {
	return b.groups(gpuGrouping{counts: []int{1, 127, 128, 129, 0, 200}, align: align, extra: align})
}

// quantizeCases hold every byte of Quantize to the host's.
func quantizeCases() []gpuCase {
	var all []gpuCase
	for _, f := range allBlockFormats {
		add := func(name string, build func(b *gpuGraph)) {
			all = append(all, gpuCase{fmt.Sprintf("quantize/%s/%s", f, name), build})
		}
		for _, dt := range gpuFormats {
			// Sizes that cut vectors of 8 evenly, and for one format others: off blocks, off quads of factors.
			sizes := [][2]int{{128, 128}, {300, 264}, {2, 8}, {128, 1000}, {1000, 72}}
			if dt == dtype.Float16 {
				sizes = [][2]int{{130, 100}, {2, 2}, {66, 36}, {514, 330}}
			}
			for _, o := range []Quantize{{Axis: AlongRow}, {Axis: AlongBoth}, {Axis: AlongBoth, TransposeCol: true}, {Axis: AlongCol}} {
				if o.Axis == AlongCol && dt != dtype.Float16 {
					continue
				}
				add(fmt.Sprintf("%s,%s,transpose=%v", dt, o.Axis, o.TransposeCol), func(b *gpuGraph) {
					for i, s := range sizes {
						o.X, o.Format = b.hostile(fmt.Sprint("x", i), dt, s[0], s[1]), f
						b.quant(o)
					}
				})
			}
		}
		add("every bf16 number is a block's largest", func(b *gpuGraph) {
			vec := f.Vec()
			x := make([]uint16, 1<<16*vec)
			for i := range 1 << 16 {
				for j := range vec {
					x[i*vec+j] = uint16(b.rand.IntN(1<<15))%uint16(max(i&0x7fff, 1)) | uint16(b.rand.IntN(2))<<15
				}
				x[i*vec+b.rand.IntN(vec)] = uint16(i)
			}
			b.quant(Quantize{X: b.give(b.g.Input("x", bf16, 1<<16, vec), x), Format: f})
			down := make([]uint16, len(x))
			for i, v := range x {
				down[i%vec<<16+i/vec] = v
			}
			b.quant(Quantize{X: b.give(b.g.Input("down", bf16, vec, 1<<16), down), Format: f, Axis: AlongCol})
		})
		for _, align := range []int{128, 256} {
			add(fmt.Sprintf("groups,alignment=%d", align), func(b *gpuGraph) {
				offsets, counts, m := b.blockGroups(align)
				x, norm := b.hostile("x", bf16, m, 136), b.give(b.g.Input("norm", f32, 1), []float32{1.7})
				o := Quantize{X: x, PaddedOffsets: offsets, Format: f, Axis: AlongBoth, Alignment: align, NormConst: norm}
				b.quant(o)
				o.Counts, o.DiscreteColSF, o.TransposeCol = counts, true, true
				b.quant(o)
			})
		}
		add("rows in use", func(b *gpuGraph) {
			for i, rows := range []int{0, 1, 127, 151, 300} {
				b.quant(Quantize{X: b.counted(fmt.Sprint("x", i), bf16, rows, 300, 136), Format: f, Axis: AlongBoth})
			}
		})
		add("stack", func(b *gpuGraph) {
			x := b.hostile("x", f32, 3, 130, 72)
			b.quant(Quantize{X: x, Format: f, Axis: AlongBoth})
			b.quant(Quantize{X: x, Format: f, Axis: AlongBoth, TransposeCol: true, UnitFactors: true})
		})
		add("norms", func(b *gpuGraph) {
			x := b.hostile("x", bf16, 130, 136)
			for i, norm := range []float32{0, -2, 1e-30, 1e30, float32(math.Inf(1)), float32(math.NaN())} {
				n := b.give(b.g.Input(fmt.Sprint("norm", i), f32, 1), []float32{norm})
				b.quant(Quantize{X: x, Format: f, Axis: AlongBoth, NormConst: n})
			}
		})
		add("random", func(b *gpuGraph) {
			draw := NewRandom(b.vars, "random", 3).Draw(b.g)
			b.quant(Quantize{X: b.hostile("x", bf16, 130, 136), Format: f, Axis: AlongBoth, TransposeCol: true, Draw: draw})
			b.quant(Quantize{X: b.hostile("y", dtype.Float16, 66, 102), Format: f, Axis: AlongBoth, Draw: draw})
		})
	}
	for _, each := range []bool{false, true} {
		all = append(all, gpuCase{fmt.Sprintf("quantize/nvfp4/auto_norm,per_expert=%v", each), func(b *gpuGraph) {
			b.tol.exact = true
			offsets, counts, m := b.blockGroups(128)
			o := Quantize{X: b.hostile("x", bf16, m, 136), PaddedOffsets: offsets, Counts: counts, Alignment: 128, Format: NVFP4, Axis: AlongBoth, AutoNorm: true, PerExpert: each}
			b.quant(o)
			b.out(Quantize{X: b.counted("y", f32, 100, 300, 72), Format: NVFP4, AutoNorm: true}.Apply().GlobalScale)
			o = Quantize{X: b.floats("w", f32, 4, 130, 72), Format: NVFP4, AutoNorm: true, PerExpert: each}
			q := b.quant(o)
			if each {
				b.quant(Quantize{X: o.X, Format: NVFP4, GlobalScale: q.GlobalScale})
			}
			b.quant(Quantize{X: b.give(b.g.Input("zeros", f32, 8, 32), make([]float32, 256)), Format: NVFP4, AutoNorm: true})
		}})
	}
	return all
}

// dequantizeCases are all codes times all factors, and the way back from Quantize.
func dequantizeCases() []gpuCase {
	var all []gpuCase
	for _, f := range allBlockFormats {
		for _, to := range gpuFormats {
			all = append(all, gpuCase{fmt.Sprintf("dequantize/%s/%s", f, to), func(b *gpuGraph) {
				b.tol.exact = true
				// Row r has factor r everywhere, and every code in its columns; transposed with the factors down the columns.
				const n = 256
				codes, down := make([]byte, f.Values().Bytes(n*n)), make([]byte, f.Values().Bytes(n*n))
				for i := range codes {
					codes[i] = byte(i)
					down[i] = byte(i / (len(codes) / n))
				}
				layout := factorLayout(n, n, f)
				sf := make([]byte, layout.Bytes())
				for r := range n {
					for c := range layout.Cols {
						sf[layout.Index(0, r, c)] = byte(r)
					}
				}
				x, factors := b.give(b.g.Input("x", f.Values(), n, n), codes), b.give(b.g.Input("sf", f.Factor(), len(sf)), sf)
				y := b.give(b.g.Input("y", f.Values(), n, n), down)
				b.out(Dequantize{X: x, SF: factors, Format: f, DType: to}.Apply(), Dequantize{X: y, SF: factors, Format: f, Axis: AlongCol, DType: to}.Apply())
				for i, s := range [][]int{{130, 100}, {1, 66}, {3, 40, 72}, {1, 40, 72}} {
					q := Quantize{X: b.floats(fmt.Sprint("v", i), f32, s...), Format: f, Axis: AlongBoth}.Apply()
					b.out(Dequantize{X: q.Row, SF: q.RowSF, Format: f, DType: to}.Apply(), Dequantize{X: q.Col, SF: q.ColSF, Format: f, Axis: AlongCol, DType: to}.Apply())
				}
				if f == NVFP4 {
					scale := b.give(b.g.Input("scale", f32, 1), []float32{0.3})
					b.out(Dequantize{X: x, SF: factors, GlobalScale: scale, Format: f, DType: to}.Apply())
					stack := b.give(b.g.Input("stack", dtype.E2M1, 4, 64, 256), bytes.Clone(codes))
					sfs := b.give(b.g.Input("sfs", dtype.E4M3, 4*512*4), bytes.Repeat(sf, 2))
					scales := b.give(b.g.Input("scales", f32, 4), []float32{0.3, -7, 1e-9, 1e38})
					b.out(Dequantize{X: stack, SF: sfs, GlobalScale: scales, Format: f, DType: to}.Apply())
				}
				used := b.g.Input("used", f.Values(), graph.UpTo(200), 64)
				b.give(used, make([]byte, f.Values().Bytes(77*64)))
				l := factorLayout(200, 64, f)
				b.out(Dequantize{X: used, SF: b.give(b.g.Input("used_sf", f.Factor(), l.Bytes()), make([]byte, l.Bytes())), Format: f, DType: to}.Apply())
			}})
		}
	}
	return all
}
