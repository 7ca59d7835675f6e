//go:build gpu

package nodes

import (
	"fmt"
	"math"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

var (
	gpuFormats = []dtype.DType{dtype.Float32, dtype.BFloat16, dtype.Float16}
	bf16       = dtype.BFloat16
	f32        = dtype.Float32
)

// gpuCases are the graphs that a GPU is held to: every operator, in its formats, over swept shapes.
func gpuCases() []gpuCase {
	var all []gpuCase
	for _, f := range []func() []gpuCase{elementwiseCases, rowCases, lossCases, routerCases, routingCases, groupedGEMMCases, gluNodeCases, dgluCases, wgradCases, scaledGEMMCases, scaledLargeCases, scaledExtremeCases, scaledGLUCases, scaledDGLUCases, scaledWGradCases, scaledQuantizedCases, weightOnlyCases, optimizerCases, layerCases, codecCases, quantizeCases, dequantizeCases} {
		all = append(all, f()...)
	}
	return all
}

// rowSweep are numbers of rows, given and at most, and widths.
var rowSweep = []struct{ rows, capacity, width int }{{1, 1, 1}, {1, 8, 768}, {0, 5, 8}, {37, 64, 33}, {130, 130, 256}, {300, 512, 1024}}

func elementwiseCases() []gpuCase {
	var all []gpuCase
	for _, dt := range gpuFormats {
		for _, s := range rowSweep {
			name := fmt.Sprintf("%s/T=%d_of_%d,H=%d", dt, s.rows, s.capacity, s.width)
			all = append(all, gpuCase{"elementwise/" + name, func(b *gpuGraph) {
				x, z := b.counted("x", dt, s.rows, s.capacity, s.width), b.counted("z", dt, s.rows, s.capacity, s.width)
				b.out(Add(x, z), Add(x, z, x, z), Scale(x, 0.3), Concat(x, z, x), fillLike(x, 0.7))
				for _, to := range gpuFormats {
					if to != dt {
						b.out(Cast(x, to))
					}
				}
				from, to := s.width/3, max(s.width/2, s.width/3+1)
				c := Columns(x, from, to)
				b.out(c)
				if s.width > 1 {
					b.grads(dt, []*graph.Value{c}, x)
				}
			}})
		}
	}
	all = append(all, gpuCase{"recount", func(b *gpuGraph) {
		x, n := b.floats("x", f32, 16, 8), b.ints("n", []int32{3, 11}, 2)
		b.out(withRows(withRows(x, n), nil))
	}})
	all = append(all, gpuCase{"random", func(b *gpuGraph) {
		r := NewRandom(b.vars, "random", 3)
		for _, dt := range gpuFormats {
			x := b.counted("x"+dt.String(), dt, 37, 64, 33)
			y := Dropout(x, r.Draw(b.g), 0.3)
			b.out(y, Jitter(x, r.Draw(b.g), 0.1))
			b.out(b.g.GradientsFrom([]*graph.Value{y}, []*graph.Value{x}, x).Value...)
		}
	}})
	return all
}

// rowCases are the operators over rows outside of groups.
func rowCases() []gpuCase {
	var all []gpuCase
	for _, dt := range gpuFormats {
		for _, s := range rowSweep {
			if s.width < 8 {
				continue
			}
			name := fmt.Sprintf("%s/T=%d_of_%d,H=%d", dt, s.rows, s.capacity, s.width)
			all = append(all, gpuCase{"rmsnorm/" + name, func(b *gpuGraph) {
				b.tol = tolerance{sum: max(s.width, s.rows), loose: 4}
				x, w := b.counted("x", dt, s.rows, s.capacity, s.width), b.floats("w", f32, s.width)
				y := RMSNorm(x, w)
				b.out(y)
				dy := b.counted("dy", dt, s.rows, s.capacity, s.width)
				gr := b.g.GradientsFrom([]*graph.Value{y}, []*graph.Value{dy}, x, w)
				b.out(gr.Value...)
			}})
		}
		for _, s := range []struct{ rows, capacity, k, n int }{{1, 4, 8, 8}, {37, 64, 72, 40}, {0, 8, 16, 8}, {130, 256, 256, 136}, {257, 257, 128, 64}} {
			all = append(all, gpuCase{fmt.Sprintf("linear/%s/T=%d_of_%d,K=%d,N=%d", dt, s.rows, s.capacity, s.k, s.n), func(b *gpuGraph) {
				b.tol = tolerance{sum: max(s.k, s.rows, s.n), loose: 2}
				x, w, bias := b.counted("x", dt, s.rows, s.capacity, s.k), b.floats("w", dt, s.n, s.k), b.floats("bias", f32, s.n)
				y := Linear(x, w, LinearConfig{Bias: bias})
				b.out(y, Linear(x, w, LinearConfig{DType: f32}))
				dy := b.counted("dy", dt, s.rows, s.capacity, s.n)
				b.out(b.g.GradientsFrom([]*graph.Value{y}, []*graph.Value{dy}, x, w, bias).Value...)
			}})
		}
		all = append(all, gpuCase{"embedding/" + dt.String(), func(b *gpuGraph) {
			ids := b.g.Input("ids", dtype.Int32, graph.UpTo(64), 3)
			x := make([]int32, 3*41)
			for i := range x {
				x[i] = int32(b.rand.IntN(23)) - 1 // -1 stands for zeros
			}
			b.give(ids, x)
			table := b.floats("table", dt, 21, 24)
			y := Embedding(ids, table)
			b.out(y)
			dy := b.counted("dy", dt, 41, 64, 72)
			b.out(b.g.GradientsFrom([]*graph.Value{y}, []*graph.Value{dy}, table).Value...)
		}})
	}
	return all
}

func lossCases() []gpuCase {
	var all []gpuCase
	for _, dt := range gpuFormats {
		for _, s := range []struct{ rows, capacity, v int }{{1, 1, 2}, {37, 64, 257}, {300, 512, 1000}, {0, 4, 8}} {
			all = append(all, gpuCase{fmt.Sprintf("cross_entropy/%s/T=%d_of_%d,V=%d", dt, s.rows, s.capacity, s.v), func(b *gpuGraph) {
				b.tol = tolerance{loose: 4}
				x := b.counted("x", dt, s.rows, s.capacity, s.v)
				labels := b.g.Input("labels", dtype.Int32, graph.UpTo(s.capacity))
				l := make([]int32, s.rows)
				for i := range l {
					if l[i] = int32(b.rand.IntN(s.v)); i%5 == 1 {
						l[i] = ignoreIndex
					}
				}
				b.give(labels, l)
				loss := CrossEntropy(x, labels)
				b.out(loss)
				b.out(b.g.Gradients(loss, x).Value...)
			}})
		}
	}
	return all
}

func routerCases() []gpuCase {
	var all []gpuCase
	for _, order := range []Order{SoftmaxTopK, TopKSoftmax, Sigmoid} {
		for i, s := range []struct{ rows, capacity, e, k int }{{37, 64, 6, 2}, {1, 1, 6, 2}, {0, 4, 6, 2}, {1, 1, 1, 1}, {130, 256, 64, 8}, {300, 300, 128, 8}, {5, 8, 1024, 16}} {
			if i > 2 && order != Order(i%3) {
				continue // each size in one order
			}
			normalize := i%2 == 0
			all = append(all, gpuCase{fmt.Sprintf("topk/%s/T=%d_of_%d,E=%d,k=%d,normalize=%v", order, s.rows, s.capacity, s.e, s.k, normalize), func(b *gpuGraph) {
				b.tol = tolerance{loose: 16, floor: 1e-7}
				l, bias := b.counted("logits", f32, s.rows, s.capacity, s.e), b.floats("bias", f32, s.e)
				for _, o := range []TopK{{Logits: l}, {Logits: l, SelectBias: bias}} {
					o.K, o.Order, o.Normalize, o.Scale = s.k, order, &normalize, 1.5
					idx, prob := o.Apply()
					b.out(idx, prob)
					dp := b.counted(fmt.Sprintf("dp%d", len(b.outs)), f32, s.rows, s.capacity, s.k)
					b.out(b.g.GradientsFrom([]*graph.Value{prob}, []*graph.Value{dp}, l).Value...)
					r := Dispatch{TopKIdx: idx, Experts: s.e, Alignment: 8}.Apply()
					balance, z := RouterLosses{Logits: l, Counts: r.Assigned, K: s.k, Order: order}.Apply()
					b.out(balance, z)
					b.out(b.g.GradientsFrom([]*graph.Value{balance, z}, nil, l).Value...)
				}
			}})
		}
	}
	all = append(all, gpuCase{"topk/hostile", func(b *gpuGraph) {
		nan, inf := float32(math.NaN()), float32(math.Inf(1))
		l := b.g.Input("logits", f32, 5, 8)
		x := b.normals(40)
		for i := range 8 {
			x[i], x[8+i], x[16+i] = nan, -inf, 1
		}
		x[24], x[33] = nan, inf
		b.give(l, x)
		for _, order := range []Order{SoftmaxTopK, TopKSoftmax, Sigmoid} {
			idx, _ := TopK{Logits: l, K: 3, Order: order}.Apply()
			b.out(idx)
		}
	}})
	return all
}

// routingCases are dispatch and what moves rows by its maps.
func routingCases() []gpuCase {
	var all []gpuCase
	type routing struct {
		name                string
		rows, capacity      int
		e, k, align, places int // places: Dispatch.Capacity
		id                  func(b *gpuGraph, slot int) int
	}
	random := func(e int) func(b *gpuGraph, _ int) int {
		return func(b *gpuGraph, _ int) int { return b.rand.IntN(e) }
	}
	for _, s := range []routing{
		{"one token", 1, 1, 4, 2, 8, 0, func(_ *gpuGraph, s int) int { return s }},
		{"uniform", 130, 256, 64, 8, 16, 0, random(64)},
		{"one expert", 100, 128, 16, 2, 8, 0, func(*gpuGraph, int) int { return 5 }},
		{"half empty", 64, 64, 8, 2, 256, 0, func(b *gpuGraph, _ int) int { return 2 * b.rand.IntN(4) }},
		{"dropped", 50, 64, 8, 2, 4, 0, func(b *gpuGraph, _ int) int { return b.rand.IntN(10) - 1 }},
		{"all dropped", 9, 16, 8, 2, 4, 0, func(*gpuGraph, int) int { return -1 }},
		{"no tokens", 0, 16, 8, 2, 4, 0, random(8)},
		{"overflow", 60, 64, 4, 2, 8, 64, random(4)},
		{"many experts", 200, 256, 1024, 8, 1, 0, random(1024)},
		{"many tokens", 5000, 8192, 32, 4, 128, 0, random(32)},
	} {
		for _, dt := range gpuFormats {
			all = append(all, gpuCase{fmt.Sprintf("routing/%s/%s", s.name, dt), func(b *gpuGraph) {
				b.tol = tolerance{sum: s.k, loose: 2, floor: 1e-6}
				ids := make([]int32, s.rows*s.k)
				for i := range ids {
					ids[i] = int32(s.id(b, i))
				}
				idx := b.give(b.g.Input("ids", dtype.Int32, graph.UpTo(s.capacity), s.k), ids)
				const h = 40
				x, prob := b.counted("x", dt, s.rows, s.capacity, h), b.counted("prob", f32, s.rows, s.capacity, s.k)
				r := Dispatch{TopKIdx: idx, Experts: s.e, Alignment: s.align, Capacity: s.places}.Apply()
				b.out(r.Counts, r.PaddedOffsets, r.RowMap, r.SlotMap, r.Overflow, r.Invalid, r.Assigned)
				a, p := r.Permute(x), r.PermuteProb(prob)
				y, z := r.Combine(a, prob, dt), r.Combine(a, nil, f32)
				b.out(a, p, y, z)
				dy, dz := b.counted("dy", dt, s.rows, s.capacity, h), b.counted("dz", f32, s.rows, s.capacity, h)
				da := b.floats("da", dt, a.Shape()...)
				b.out(b.g.GradientsFrom([]*graph.Value{a}, []*graph.Value{da}, x).Value...)
				b.out(b.g.GradientsFrom([]*graph.Value{y}, []*graph.Value{dy}, a, prob).Value...)
				b.out(b.g.GradientsFrom([]*graph.Value{z}, []*graph.Value{dz}, a).Value...)
				b.out(b.g.GradientsFrom([]*graph.Value{p}, []*graph.Value{b.floats("dp", f32, p.Shape()...)}, prob).Value...)
			}})
		}
	}
	return all
}

// gpuGrouping is a division of rows among experts.
type gpuGrouping struct {
	name   string
	counts []int
	align  int
	extra  int // rows of the capacity beyond the last offset, a multiple of align
}

// gpuGroupings have equally many experts: another number is another kernel, which takes a while to compile.
var gpuGroupings = []gpuGrouping{
	{"one row", []int{0, 0, 1, 0, 0}, 8, 0},
	{"even", []int{64, 64, 64, 64, 64}, 8, 0},
	{"tails", []int{5, 0, 7, 130, 1}, 8, 24},
	{"all in one", []int{0, 300, 0, 0, 0}, 8, 256},
	{"empty", []int{0, 0, 0, 0, 0}, 8, 32},
	{"unaligned", []int{3, 129, 0, 17, 1}, 1, 5},
}

// groups gives the operands of a gpuGrouping: offsets, counts and the capacity.
func (b *gpuGraph) groups(s gpuGrouping) (offsets, counts *graph.Value, m int) {
	var ends, real []int32
	for _, n := range s.counts {
		m += (n + s.align - 1) / s.align * s.align
		ends, real = append(ends, int32(m)), append(real, int32(n))
	}
	return b.ints("offsets", ends, len(ends)), b.ints("counts", real, len(real)), m + s.extra
}

// gemmShapes are N and K: the smallest, off every tile, on tiles.
var gemmShapes = [][2]int{{8, 8}, {136, 72}, {64, 264}, {256, 192}}

// gemmSweep calls add for every gpuGrouping with one shape, every shape with one gpuGrouping, and every format.
func gemmSweep(add func(name string, dt dtype.DType, s gpuGrouping, n, k int)) {
	for _, dt := range gpuFormats {
		for i, s := range gpuGroupings {
			shape := gemmShapes[1]
			add(fmt.Sprintf("%s/%s,N=%d,K=%d", dt, s.name, shape[0], shape[1]), dt, gpuGroupings[i], shape[0], shape[1])
		}
		for _, shape := range gemmShapes {
			add(fmt.Sprintf("%s/%s,N=%d,K=%d", dt, gpuGroupings[2].name, shape[0], shape[1]), dt, gpuGroupings[2], shape[0], shape[1])
		}
	}
	add(fmt.Sprintf("%s/long sum", bf16), bf16, gpuGroupings[2], 64, 4096)
}

func groupedGEMMCases() []gpuCase {
	var all []gpuCase
	seen := map[string]bool{}
	gemmSweep(func(name string, dt dtype.DType, s gpuGrouping, n, k int) {
		if seen[name] {
			return
		}
		seen[name] = true
		all = append(all, gpuCase{"grouped_gemm/" + name, func(b *gpuGraph) {
			b.tol = tolerance{sum: k, loose: 2}
			offsets, counts, m := b.groups(s)
			e := len(s.counts)
			a, w, wt := b.floats("a", dt, m, k), b.floats("w", dt, e, n, k), b.floats("wt", dt, e, k, n)
			alpha, prob, bias := b.floats("alpha", f32, e), b.floats("prob", f32, m), b.floats("bias", f32, e, n)
			d, c := GroupedGEMM{A: a, B: Dense(w), PaddedOffsets: offsets, Counts: counts, Alpha: alpha, Prob: prob, Alignment: s.align, CType: f32}.Apply()
			b.out(d, c)
			d, _ = GroupedGEMM{A: a, B: Weights{Dense: wt, NMajor: true}, PaddedOffsets: offsets, Counts: counts, Prob: prob, Bias: bias, Alignment: s.align}.Apply()
			b.out(d)
			d, _ = GroupedGEMM{A: a, B: Dense(w), PaddedOffsets: offsets, Alignment: s.align, DType: f32}.Apply()
			b.out(d)
			var parts []*graph.Value
			for i := range e {
				parts = append(parts, b.floats(fmt.Sprintf("w.%d", i), dt, n, k))
			}
			d, _ = GroupedGEMM{A: a, B: Weights{Discrete: parts}, PaddedOffsets: offsets, Counts: counts, Alignment: s.align}.Apply()
			b.out(d)
		}})
	})
	// Every gradient of the product, with and without a bias, and the operators over groups that they take.
	for _, bias := range []bool{false, true} {
		all = append(all, gpuCase{fmt.Sprintf("grouped_gemm/gradients,bias=%v", bias), func(b *gpuGraph) {
			b.tol = tolerance{sum: 256, loose: 8}
			s := gpuGroupings[2]
			offsets, counts, m := b.groups(s)
			e, n, k := len(s.counts), 64, 40
			a, w, prob := b.floats("a", f32, m, k), b.floats("w", f32, e, n, k), b.floats("prob", f32, m)
			o := GroupedGEMM{A: a, B: Dense(w), PaddedOffsets: offsets, Counts: counts, Prob: prob, Alignment: s.align}
			wrt := []*graph.Value{a, w, prob}
			if bias {
				o.Bias = b.floats("bias", f32, e, n)
				wrt = append(wrt, o.Bias)
			}
			d, _ := o.Apply()
			b.grads(f32, []*graph.Value{d}, wrt...)
		}})
	}
	return all
}

func gluNodeCases() []gpuCase {
	var all []gpuCase
	for _, dt := range gpuFormats {
		for _, act := range []string{"swiglu", "geglu"} {
			all = append(all, gpuCase{fmt.Sprintf("glu/%s/%s", dt, act), func(b *gpuGraph) {
				b.tol = tolerance{loose: 8}
				s := gpuGroupings[2]
				offsets, counts, m := b.groups(s)
				c, prob := b.floats("c", dt, m, 192), b.floats("prob", f32, m)
				alpha := 0.5
				a := Activation{Func: act, Alpha: &alpha}
				d := GLU{C: c, Prob: prob, PaddedOffsets: offsets, Counts: counts, Activation: a, Alignment: s.align}.Apply()
				plainD := GLU{C: c, Activation: a, DType: f32}.Apply()
				b.out(d, plainD)
				b.grads(dt, []*graph.Value{d, plainD}, c, prob)
			}})
		}
	}
	for _, layout := range []Layout{LayoutInterleaved32, LayoutConcat, LayoutPairs} {
		for _, dt := range gpuFormats {
			for i, s := range gpuGroupings {
				if layout != LayoutInterleaved32 && i != 2 {
					continue
				}
				all = append(all, gpuCase{fmt.Sprintf("grouped_gemm_glu/%s/%s/%s", dt, layout, s.name), func(b *gpuGraph) {
					const k, n = 72, 192
					b.tol = tolerance{sum: k, loose: 16}
					offsets, counts, m := b.groups(s)
					e := len(s.counts)
					a, w, wt := b.floats("a", dt, m, k), b.floats("w", dt, e, n, k), b.floats("wt", dt, e, k, n)
					alpha, prob, bias := b.floats("alpha", f32, e), b.floats("prob", f32, m), b.floats("bias", f32, e, n)
					d, c := GroupedGEMMGLU{A: a, B: Dense(w), PaddedOffsets: offsets, Counts: counts, Alpha: alpha, Prob: prob, Layout: layout, Alignment: s.align}.Apply()
					b.out(d, c)
					d, _ = GroupedGEMMGLU{A: a, B: Weights{Dense: wt, NMajor: true}, PaddedOffsets: offsets, Counts: counts, Prob: prob, Bias: bias,
						Layout: layout, Activation: Activation{Func: "geglu"}, Alignment: s.align}.Apply()
					b.out(d)
				}})
			}
		}
		all = append(all, gpuCase{"grouped_gemm_glu/gradients," + layout.String(), func(b *gpuGraph) {
			const k, n = 40, 128
			b.tol = tolerance{sum: 256, loose: 32}
			s := gpuGroupings[2]
			offsets, counts, m := b.groups(s)
			e := len(s.counts)
			a, w, prob, bias := b.floats("a", f32, m, k), b.floats("w", f32, e, n, k), b.floats("prob", f32, m), b.floats("bias", f32, e, n)
			d, c := GroupedGEMMGLU{A: a, B: Dense(w), PaddedOffsets: offsets, Counts: counts, Prob: prob, Bias: bias, Layout: layout, Alignment: s.align}.Apply()
			b.grads(f32, []*graph.Value{d, c}, a, w, prob, bias)
		}})
	}
	return all
}

func dgluCases() []gpuCase {
	var all []gpuCase
	for _, dt := range gpuFormats {
		for i, s := range gpuGroupings {
			for _, act := range []string{"swiglu", "geglu"} {
				if act == "geglu" && i != 2 {
					continue
				}
				all = append(all, gpuCase{fmt.Sprintf("grouped_gemm_dglu/%s/%s/%s", dt, act, s.name), func(b *gpuGraph) {
					const k, n = 72, 96
					b.tol = tolerance{sum: max(k, 256), loose: 16}
					offsets, counts, m := b.groups(s)
					e := len(s.counts)
					o := GroupedGEMMdGLU{
						A: b.floats("dy", dt, m, k), B: Weights{Dense: b.floats("w", dt, e, k, n), NMajor: true}, C: b.floats("c", dt, m, 2*n),
						PaddedOffsets: offsets, Counts: counts, Prob: b.floats("prob", f32, m), Alignment: s.align,
						Activation: Activation{Func: act},
					}
					g := o.Apply()
					b.out(g.DC, g.DProb, g.Amax, g.DBias, g.Act)
					o.Alpha, o.Beta, o.Layout = b.floats("alpha", f32, e), b.floats("beta", f32, e), LayoutConcat
					g = o.Apply()
					b.out(g.DC, g.DProb)
				}})
			}
		}
	}
	return all
}

func wgradCases() []gpuCase {
	var all []gpuCase
	for _, dt := range gpuFormats {
		for i, s := range gpuGroupings {
			all = append(all, gpuCase{fmt.Sprintf("wgrad/%s/%s", dt, s.name), func(b *gpuGraph) {
				h, n := gemmShapes[1][0], gemmShapes[1][1]
				b.tol = tolerance{sum: 512, loose: 2}
				offsets, counts, m := b.groups(s)
				e := len(s.counts)
				a, x := b.floats("a", dt, m, h), b.floats("x", dt, m, n)
				alpha := b.floats("alpha", f32, e)
				for _, o := range []WGrad{
					{Counts: counts, Alpha: alpha, DType: f32}, {DType: dt}, {Counts: counts, DType: f32, Discrete: true},
					{Counts: counts, DType: f32, Into: []*graph.Value{b.vars.State("sum", f32, graph.Const(0.1), e, h, n)}},
				} {
					o.A, o.B, o.Offsets, o.AMajorM, o.Alignment = a, x, offsets, true, s.align
					b.out(o.Apply()...)
				}
			}})
			if i == 2 || i == 1 { // tokens as the contiguous axis take an alignment
				all = append(all, gpuCase{fmt.Sprintf("wgrad/%s/majors,%s", dt, s.name), func(b *gpuGraph) {
					h, n := gemmShapes[1][0], gemmShapes[1][1]
					b.tol = tolerance{sum: 512, loose: 2}
					offsets, counts, m := b.groups(s)
					a, at := b.floats("a", dt, m, h), b.floats("at", dt, h, m)
					x, xt := b.floats("x", dt, m, n), b.floats("xt", dt, n, m)
					for _, o := range []WGrad{{A: at, B: x}, {A: a, B: xt, AMajorM: true, BMajorK: true}, {A: at, B: xt, BMajorK: true}} {
						o.Offsets, o.Counts, o.Alignment, o.DType = offsets, counts, s.align, f32
						b.out(o.Apply()...)
					}
				}})
			}
		}
	}
	return all
}

func optimizerCases() []gpuCase {
	var all []gpuCase
	for _, dt := range gpuFormats {
		for _, n := range []int{1, 33, 5000} {
			model := func(b *gpuGraph) *graph.Grads {
				b.tol = tolerance{sum: n, loose: 16}
				w := b.vars.ParamOf("w", dt, graph.Normal(1), n)
				v := b.vars.ParamOf("v", f32, graph.Normal(1), 3, 8)
				// Gradients that are inputs scaled: what the optimizers do is all that is computed.
				return b.g.GradientsFrom([]*graph.Value{Scale(b.g.Use(w), 1), Scale(b.g.Use(v), 2)},
					[]*graph.Value{b.floats("dw", dt, n), b.floats("dv", f32, 3, 8)}, w, v)
			}
			name := fmt.Sprintf("%s/n=%d", dt, n)
			all = append(all,
				gpuCase{"adamw/" + name, func(b *gpuGraph) {
					gr, norm := ClipGlobalNorm(model(b), 0.5)
					b.out(norm)
					step := AdamW(gr, AdamWConfig{Rate: 1e-2, Schedule: Schedule{Kind: CosineDecay, Warmup: 1, Total: 10}})
					b.out(step, Rate(step, Schedule{Rate: 1, Kind: LinearDecay, Total: 5}))
				}},
				gpuCase{"sgd/" + name, func(b *gpuGraph) { b.out(SGD(model(b), SGDConfig{Momentum: 0.9, Nesterov: true, WeightDecay: 0.1})) }},
				gpuCase{"accumulate/" + name, func(b *gpuGraph) { b.out(AdamW(Accumulate(model(b), 2))) }})
		}
	}
	return all
}

// layerCases are whole layers. The ids are given where 16-bit roundings could turn a choice.
func layerCases() []gpuCase {
	layer := func(b *gpuGraph, dt dtype.DType, cfg MoE, rows, capacity, h int) {
		cfg.Compute = dt
		x, dy := b.counted("x", f32, rows, capacity, h), b.counted("dy", f32, rows, capacity, h)
		y, aux := MoELayer(x, b.vars.Scope("moe"), cfg)
		b.out(y, aux.Balance, aux.ZLoss, aux.Counts)
		b.out(b.g.GradientsFrom([]*graph.Value{y, aux.Balance}, []*graph.Value{dy, nil}, append(b.vars.All(), x)...).Value...)
	}
	experts := func(b *gpuGraph, dt dtype.DType, cfg MoE, rows, capacity, h int) {
		cfg.Compute = dt
		x, dy := b.counted("x", dt, rows, capacity, h), b.counted("dy", dt, rows, capacity, h)
		ids := make([]int32, rows*cfg.TopK)
		for i := range ids {
			ids[i] = int32(b.rand.IntN(cfg.Experts))
		}
		idx := b.give(b.g.Input("ids", dtype.Int32, graph.UpTo(capacity), cfg.TopK), ids)
		prob := b.counted("prob", f32, rows, capacity, cfg.TopK)
		y, _ := Experts(x, idx, prob, b.vars.Scope("moe"), cfg)
		b.out(y)
		b.out(b.g.GradientsFrom([]*graph.Value{y}, []*graph.Value{dy}, append(b.vars.All(), x)...).Value...)
	}
	cfg := MoE{Experts: 6, TopK: 2, Intermediate: 64, Alignment: 8}
	full := MoE{Experts: 8, TopK: 3, Intermediate: 96, Alignment: 16, Bias: true, Shared: 64, Layout: LayoutPairs, LogitBias: true, SelectBias: true,
		Activation: Activation{Func: "geglu"}}
	var all []gpuCase
	for _, s := range []struct{ rows, capacity, h int }{{1, 1, 32}, {24, 24, 32}, {37, 64, 72}} {
		name := fmt.Sprintf("T=%d_of_%d,H=%d", s.rows, s.capacity, s.h)
		all = append(all,
			gpuCase{"layer/f32/" + name, func(b *gpuGraph) {
				b.tol = tolerance{sum: 256, loose: 64}
				layer(b, f32, cfg, s.rows, s.capacity, s.h)
			}},
			gpuCase{"layer/f32,all options/" + name, func(b *gpuGraph) {
				b.tol = tolerance{sum: 256, loose: 64}
				layer(b, f32, full, s.rows, s.capacity, s.h)
			}})
		for _, dt := range []dtype.DType{bf16, dtype.Float16} {
			all = append(all, gpuCase{fmt.Sprintf("layer/%s/%s", dt, name), func(b *gpuGraph) {
				b.tol = tolerance{rough: map[dtype.DType]float64{bf16: 4e-3, dtype.Float16: 6e-4}[dt]}
				experts(b, dt, cfg, s.rows, s.capacity, s.h)
			}})
		}
	}
	return all
}
