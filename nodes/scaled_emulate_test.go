//go:build emulate

package nodes

import (
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// scaledGroups has groups of a multiple of 128 rows: short, empty and full ones, and rows past the last.
var scaledGroups = grouping{offsets: []int32{128, 128, 384, 512}, counts: []int32{100, 0, 201, 128}, m: 640}

// roomyGroups are the same with room for more, so that operands are decoded ahead.
var roomyGroups = grouping{offsets: scaledGroups.offsets, counts: scaledGroups.counts, m: 4*256 + 128}

// thinGroups have few rows each, in groups of 128 rows: the thin kernel multiplies them.
var thinGroups = grouping{offsets: []int32{128, 256, 384, 384, 512, 640, 768, 896}, counts: []int32{1, 8, 16, 0, 17, 40, 64, 65}, m: 1024}

// codes makes an input of random codes, NaN and Inf aside.
func (m *emulation) codes(name string, dt dtype.DType, dims ...int) *graph.Value {
	v := m.g.Input(name, dt, dims...)
	b := make([]byte, dt.Bytes(v.Elems()))
	for i := range b {
		b[i] = byte(m.rand.UintN(256))
		if dt == dtype.E4M3 && b[i]&0x7f == 0x7f || dt == dtype.E5M2 && b[i]&0x7c == 0x7c {
			b[i] = 0x38
		}
		if dt == dtype.E5M2 { // of moderate size
			b[i] = b[i]&0x8f | 0x30
		}
	}
	m.data[v] = b
	return v
}

// factors makes an input of factors for batches matrices of rows by k, by code; unused bytes are 0xFF.
func (m *emulation) factors(name string, f BlockFormat, rows, k, batches int, code func() byte) *graph.Value {
	l := dtype.FactorLayout{Rows: rows, Cols: dtype.FactorCols(k, f.Vec()), Batches: batches}
	v := m.g.Input(name, f.Factor(), l.Bytes())
	b := make([]byte, l.Bytes())
	for i := range b {
		b[i] = 0xff
	}
	for i := range batches {
		for r := range rows {
			for c := range l.Cols {
				b[l.Index(i, r, c)] = code()
			}
		}
	}
	m.data[v] = b
	return v
}

// near makes factors about 1.
func (m *emulation) near(f BlockFormat) func() byte {
	return func() byte {
		if f.Factor() == dtype.E4M3 {
			return byte(0x30 + m.rand.UintN(16))
		}
		return byte(125 + m.rand.UintN(4))
	}
}

// spoilFactors fills the factors of padding rows with NaN.
func (m *emulation) spoilFactors(g grouping, f BlockFormat, k int, v *graph.Value) {
	l := dtype.FactorLayout{Rows: g.m, Cols: dtype.FactorCols(k, f.Vec()), Batches: 1}
	at := 0
	for e, o := range g.offsets {
		for r := at + int(g.counts[e]); r < int(o); r++ {
			for c := range l.Cols {
				m.data[v][l.Index(0, r, c)] = 0xff
			}
		}
		at = int(o)
	}
	for r := at; r < g.m; r++ {
		for c := range l.Cols {
			m.data[v][l.Index(0, r, c)] = 0xff
		}
	}
}

// scaledWeights makes weights of each kind with their factors.
func (m *emulation) scaledWeights(kind string, f BlockFormat, e, n, k int, code func() byte) (weightKind, []*graph.Value) {
	if kind == "dense" {
		return weightKind{}, []*graph.Value{m.codes("b", f.Values(), e, n, k), m.factors("sfb", f, n, k, e, code)}
	}
	var codes, factors []*graph.Value
	for i := range e {
		codes = append(codes, m.codes(fmt.Sprintf("b.%d", i), f.Values(), n, k))
		factors = append(factors, m.factors(fmt.Sprintf("sfb.%d", i), f, n, k, 1, code))
	}
	return weightKind{Discrete: e}, append(codes, factors...)
}

func TestEmulate_GroupedGEMMQuant(t *testing.T) {
	const bf16, f32 = dtype.BFloat16, dtype.Float32
	e := newEmulator(t)
	for _, c := range []struct {
		f       BlockFormat
		d       dtype.DType
		groups  grouping
		counts  bool
		n, k    int
		weights string
		extras  bool // alpha, bias, global scales
		tile    [2]int
		gpu     int // of testGPUs: 1, without bulk copies
	}{
		{MXFP8, bf16, scaledGroups, true, 264, 208, "dense", false, [2]int{128, 128}, 0},
		{MXFP8, bf16, scaledGroups, true, 264, 448, "discrete", true, [2]int{256, 128}, 0},
		{MXFP8E5M2, dtype.Float16, scaledGroups, false, 136, 64, "dense", true, [2]int{128, 256}, 0},
		{MXFP4, f32, scaledGroups, true, 72, 352, "dense", false, [2]int{64, 64}, 0},
		{MXFP4Vec16, bf16, scaledGroups, true, 200, 160, "discrete", true, [2]int{64, 128}, 1},
		{NVFP4, bf16, scaledGroups, true, 264, 224, "dense", true, [2]int{128, 256}, 0},
		{NVFP4, f32, noRows, true, 72, 96, "dense", false, [2]int{}, 1},
		{MXFP8, bf16, thinGroups, true, 520, 208, "dense", false, [2]int{}, 0},
		{MXFP8, bf16, thinGroups, true, 72, 160, "dense", false, [2]int{}, 1}, // a word of factors ends in the slot after its first
		{MXFP8E5M2, bf16, thinGroups, true, 72, 512, "discrete", true, [2]int{}, 0},
		{MXFP4, bf16, thinGroups, true, 264, 416, "dense", true, [2]int{}, 0},
		{MXFP4Vec16, bf16, thinGroups, true, 256, 160, "discrete", false, [2]int{}, 1},
		{NVFP4, bf16, thinGroups, true, 328, 224, "dense", true, [2]int{}, 0},
		{NVFP4, f32, thinGroups, false, 64, 64, "dense", false, [2]int{}, 0},
		{MXFP8, bf16, hostile, true, 72, 96, "dense", false, [2]int{128, 64}, 0},
		{MXFP8, bf16, roomyGroups, true, 264, 208, "discrete", true, [2]int{128, 128}, 0},
		{MXFP8E5M2, bf16, roomyGroups, false, 72, 96, "dense", false, [2]int{64, 64}, 0},
		{MXFP4Vec16, f32, roomyGroups, true, 200, 160, "dense", false, [2]int{64, 128}, 1},
		{NVFP4, bf16, roomyGroups, true, 264, 224, "discrete", true, [2]int{256, 128}, 0},
		{MXFP8, bf16, roomyGroups, true, 200, 256, "dense", true, [2]int{128, 128}, 0}, // whole words of factors
		{MXFP8E5M2, bf16, roomyGroups, true, 72, 128, "dense", false, [2]int{64, 64}, 1},
		{NVFP4, bf16, roomyGroups, true, 72, 192, "discrete", false, [2]int{64, 128}, 0},
	} {
		t.Run(fmt.Sprintf("%s/%v,m=%d,K=%d,%d", c.f, c.tile, c.groups.m, c.k, c.gpu), func(t *testing.T) {
			m := newEmulation(31)
			m.sum = c.k
			m.gpu = c.gpu
			if c.groups.m%128 != 0 {
				c.groups.m = (c.groups.m + 127) / 128 * 128
			}
			offsets, counts := m.groups(c.groups, c.counts)
			a := m.codes("a", c.f.Values(), c.groups.m, c.k)
			sfa := m.factors("sfa", c.f, c.groups.m, c.k, 1, m.near(c.f))
			experts := len(c.groups.offsets)
			w, b := m.scaledWeights(c.weights, c.f, experts, c.n, c.k, m.near(c.f))
			prob := m.normals("prob", f32, c.groups.m)
			var alpha, bias, ga, gb *graph.Value
			if c.extras {
				alpha, bias = m.normals("alpha", f32, experts), m.normals("bias", bf16, experts, c.n)
				if c.f == NVFP4 {
					ga, gb = m.normals("global_scale_a", f32, experts), m.normals("global_scale_b", f32, experts)
				}
			}
			if c.counts && c.groups.m%128 == 0 && len(c.groups.counts) > 0 && c.groups.m >= scaledGroups.m {
				m.padding(c.groups, true, a, prob)
				m.spoilFactors(c.groups, c.f, c.k, sfa)
			}
			op := scaledGEMM{Weights: w, Align: 128, D: c.d, Launch: Launch{Tile: c.tile}}
			if c.f == MXFP4 {
				op.Scaled.Vec = 32
			}
			m.run(t, e, op, append([]*graph.Value{a, offsets, counts, alpha, prob, bias, sfa, nil, ga, gb}, b...)...)
		})
	}
}

// TestEmulate_ThinExtremes: the tiles of the thin kernel with factors of the weights that it does not multiply by, those of zero
// codes and of others, NaN and Inf; neighbours have none of it.
func TestEmulate_ThinExtremes(t *testing.T) {
	e := newEmulator(t)
	for _, f := range []BlockFormat{MXFP8, MXFP8E5M2, MXFP4, MXFP4Vec16, NVFP4} {
		t.Run(f.String(), func(t *testing.T) {
			m := newEmulation(43)
			m.rows = true
			const n, k = 264, 320
			experts := len(thinGroups.offsets)
			offsets, counts := m.groups(thinGroups, true)
			a := m.codes("a", f.Values(), thinGroups.m, k)
			sfa := m.factors("sfa", f, thinGroups.m, k, 1, m.near(f))
			cols, at := dtype.FactorCols(k, f.Vec()), 0
			near := m.near(f)
			w, b := m.scaledWeights("dense", f, experts, n, k, func() byte {
				expert, row, col := at/(n*cols), at/cols%n, at%cols
				at++
				switch {
				case f.Factor() == dtype.E4M3:
					if expert == 1 && row == 9 && col == 3 {
						return 0xff
					}
					return near()
				case row%7 == 3 && col == 1: // codes of zero
					return []byte{0, 1, 34, 41}[row/7%4]
				case expert == 2 && row == 17:
					return 20
				case expert == 3 || expert == 5 && row == 260 && col == cols-1:
					return 200
				case expert == 6 && row == 8 && col == 0:
					return 0xff
				}
				return near()
			})
			codes := m.data[b[0]]
			perByte := 8 / f.Values().Bits()
			for r := 3; r < experts*n; r++ {
				if r%n%7 == 3 {
					for i := f.Vec(); i < 2*f.Vec(); i++ {
						codes[(r*k+i)/perByte] = byte(r % 2 * 0x88 & (0x80 | 0x08*(perByte-1)))
					}
				}
			}
			if f.Values() != dtype.E2M1 {
				codes[(7*n+70)*k+5], m.data[a][(128*4+3)*k+9] = 0x7f, 0xff
				if f == MXFP8E5M2 {
					codes[(4*n+1)*k] = 0xfc
				}
			}
			op := scaledGEMM{Weights: w, Align: 128, D: dtype.BFloat16}
			op.Scaled.Vec = f.Vec()
			m.run(t, e, op, append([]*graph.Value{a, offsets, counts, nil, nil, nil, sfa, nil, nil, nil}, b...)...)
		})
	}
}

// TestEmulate_ScaledExtremes: factors at the ends of their format, NaN codes and NaN factors.
func TestEmulate_ScaledExtremes(t *testing.T) {
	e := newEmulator(t)
	for _, f := range []BlockFormat{MXFP8, MXFP8E5M2, MXFP4, NVFP4} {
		for i := range 6 {
			far, groups, k := i%2 == 1, []grouping{scaledGroups, roomyGroups, roomyGroups}[i/2], []int{96, 96, 128}[i/2]
			t.Run(fmt.Sprintf("%s/far=%v/m=%d,K=%d", f, far, groups.m, k), func(t *testing.T) {
				m := newEmulation(37)
				m.rows = true
				const n = 72
				offsets, counts := m.groups(groups, true)
				a := m.codes("a", f.Values(), groups.m, k)
				row, col := 0, 0
				// Rows of A take factors in turn, rows of B one that brings some of the products back.
				sfa := m.factors("sfa", f, groups.m, k, 1, func() byte {
					row++
					switch r := (row - 1) / dtype.FactorCols(k, f.Vec()); {
					case r%61 == 7:
						return 0xff
					case f.Factor() == dtype.E4M3:
						return []byte{0, 1, 2, 0x7e, 0xb8, 0x40}[r%6]
					case far:
						return []byte{0, 1, 2, 3, 9, 10, 11, 254}[r%8]
					default:
						return []byte{100, 130, 150, 11}[r%4]
					}
				})
				w, b := m.scaledWeights("dense", f, 4, n, k, func() byte {
					col++
					switch {
					case f.Factor() == dtype.E4M3:
						return 0x40
					case far && (col-1)/(n*dtype.FactorCols(k, f.Vec()))%2 == 0: // every other expert's
						return 240
					}
					return 127
				})
				for r := 0; r < groups.m; r += 5 { // zeros, whatever their factor
					clear(m.data[a][f.Values().Bytes(r*k):f.Values().Bytes(r*k+64)])
				}
				if f.Values() != dtype.E2M1 {
					x, y := m.data[a], m.data[b[0]]
					x[5*k+3], x[300*k+64], y[33*k+7], y[n*k+9] = 0x7f, 0xff, 0xff, 0x7f
					if f == MXFP8E5M2 {
						x[7*k+3], y[40*k] = 0x7c, 0xfc // Inf
					}
				}
				m.padding(groups, true, a)
				m.spoilFactors(groups, f, k, sfa)
				op := scaledGEMM{Weights: w, Align: 128, D: dtype.BFloat16}
				op.Scaled.Vec = f.Vec()
				m.run(t, e, op, append([]*graph.Value{a, offsets, counts, nil, nil, nil, sfa, nil, nil, nil}, b...)...)
			})
		}
	}
}

func TestEmulate_GroupedGEMMGLUQuant(t *testing.T) {
	e := newEmulator(t)
	for _, c := range []struct {
		f      BlockFormat
		layout Layout
		act    act
		tile   [2]int
		bias   dtype.DType
		groups grouping
	}{
		{MXFP8, LayoutConcat, geglu(), [2]int{128, 256}, dtype.BFloat16, scaledGroups},
		{MXFP4, LayoutConcat, defaultAct, [2]int{64, 64}, 0, scaledGroups},
		{NVFP4, LayoutInterleaved32, defaultAct, [2]int{256, 128}, dtype.Float32, scaledGroups},
		{MXFP8E5M2, LayoutPairs, defaultAct, [2]int{128, 64}, dtype.Float16, scaledGroups},
		{MXFP8, LayoutConcat, geglu(), [2]int{128, 128}, dtype.BFloat16, roomyGroups},
		{NVFP4, LayoutPairs, defaultAct, [2]int{64, 128}, dtype.Float32, roomyGroups},
		{MXFP8, LayoutConcat, defaultAct, [2]int{}, 0, scaledGroups},
		{NVFP4, LayoutPairs, geglu(), [2]int{}, dtype.BFloat16, scaledGroups},
	} {
		t.Run(fmt.Sprintf("%s/%s/%v,m=%d", c.f, c.layout, c.tile, c.groups.m), func(t *testing.T) {
			m := newEmulation(41)
			const n, k = 320, 160
			offsets, counts := m.groups(c.groups, true)
			a, sfa := m.codes("a", c.f.Values(), c.groups.m, k), m.factors("sfa", c.f, c.groups.m, k, 1, m.near(c.f))
			w, b := m.scaledWeights("dense", c.f, 4, n, k, m.near(c.f))
			prob, alpha := m.normals("prob", dtype.Float32, c.groups.m), m.value("alpha", dtype.Float32, []float32{0.01, -0.02, 0.015, 0.01}, 4)
			var bias, ga, gb *graph.Value
			if c.bias != 0 {
				bias = m.normals("bias", c.bias, 4, n)
			}
			if c.f == NVFP4 {
				ga, gb = m.value("global_scale_a", dtype.Float32, []float32{1, 2, -1.5, 0.5}, 4), m.value("global_scale_b", dtype.Float32, []float32{0.3, 2, 1.1, 0.7}, 4)
			}
			m.padding(c.groups, true, a, prob)
			m.spoilFactors(c.groups, c.f, k, sfa)
			op := scaledGLU{Act: c.act, Layout: c.layout, Weights: w, Align: 128, D: dtype.BFloat16, C: dtype.Float32, Launch: Launch{Tile: c.tile}}
			op.Scaled.Vec = c.f.Vec()
			m.run(t, e, op, append([]*graph.Value{a, offsets, counts, alpha, prob, bias, sfa, nil, ga, gb}, b...)...)
		})
	}
}

func TestEmulate_GroupedGEMMdGLUQuant(t *testing.T) {
	e := newEmulator(t)
	for _, c := range []struct {
		f      BlockFormat
		layout Layout
		dt     dtype.DType
		tile   [2]int
		groups grouping
	}{
		{MXFP8, LayoutInterleaved32, dtype.BFloat16, [2]int{128, 128}, scaledGroups},
		{NVFP4, LayoutPairs, dtype.Float32, [2]int{64, 128}, scaledGroups},
		{MXFP8, LayoutConcat, dtype.BFloat16, [2]int{128, 128}, roomyGroups},
		{MXFP8, LayoutConcat, dtype.BFloat16, [2]int{}, scaledGroups},
	} {
		t.Run(fmt.Sprintf("%s/%s/%v,m=%d", c.f, c.layout, c.tile, c.groups.m), func(t *testing.T) {
			m := newEmulation(43)
			const n, k = 352, 96
			offsets, counts := m.groups(c.groups, true)
			a, sfa := m.codes("a", c.f.Values(), c.groups.m, k), m.factors("sfa", c.f, c.groups.m, k, 1, m.near(c.f))
			w, b := m.scaledWeights("discrete", c.f, 4, n, k, m.near(c.f))
			cc, prob := m.normals("c", dtype.BFloat16, c.groups.m, 2*n), m.normals("prob", dtype.Float32, c.groups.m)
			alpha, beta := m.value("alpha", dtype.Float32, []float32{0.01, -0.02, 0.015, 0.01}, 4), m.normals("beta", dtype.Float32, 4)
			m.padding(c.groups, true, a, cc, prob)
			m.spoilFactors(c.groups, c.f, k, sfa)
			op := scaledDGLU{Act: geglu(), Align: 128, DC: c.dt, ActType: dtype.BFloat16, Layout: c.layout, Weights: w, Launch: Launch{Tile: c.tile}}
			op.Scaled.Vec = c.f.Vec()
			m.run(t, e, op, append([]*graph.Value{a, offsets, counts, prob, beta, cc, alpha, sfa, nil, nil, nil}, b...)...)
		})
	}
}

// TestEmulate_WeightOnly: weights alone in codes, along either axis.
func TestEmulate_WeightOnly(t *testing.T) {
	e := newEmulator(t)
	for _, c := range []struct {
		f      BlockFormat
		dt     dtype.DType // of A
		nMajor bool
		op     string
		k      int
		tile   [2]int
	}{
		{MXFP4, dtype.BFloat16, false, "gemm", 224, [2]int{128, 128}},
		{MXFP4, dtype.BFloat16, true, "gemm", 200, [2]int{128, 64}},
		{NVFP4, dtype.BFloat16, true, "gemm", 72, [2]int{128, 256}},
		{MXFP4Vec16, dtype.BFloat16, false, "glu", 96, [2]int{64, 128}},
		{MXFP4, dtype.BFloat16, true, "glu", 136, [2]int{64, 64}},
		{MXFP8, dtype.BFloat16, true, "gemm", 136, [2]int{256, 128}},
		{MXFP8, dtype.BFloat16, false, "dglu", 112, [2]int{64, 64}},
		{MXFP4, dtype.BFloat16, true, "dglu", 112, [2]int{64, 128}},
		{MXFP4, dtype.Float16, true, "gemm", 72, [2]int{}},
		{MXFP4, dtype.Float32, false, "glu", 64, [2]int{}},
		{MXFP8, dtype.BFloat16, false, "gemm", 208, [2]int{}},
		{NVFP4, dtype.BFloat16, false, "glu", 160, [2]int{}},
		{MXFP4, dtype.BFloat16, false, "dglu", 352, [2]int{}},
	} {
		t.Run(fmt.Sprintf("%s/%s/%s/nmajor=%v,%v", c.op, c.f, c.dt, c.nMajor, c.tile), func(t *testing.T) {
			m := newEmulation(47)
			const n = 320
			offsets, counts := m.groups(smallGroups, true)
			a, prob := m.normals("a", c.dt, smallGroups.m, c.k), m.normals("prob", dtype.Float32, smallGroups.m)
			rows, cols := n, c.k
			if c.nMajor {
				rows, cols = cols, rows
			}
			w, b := m.scaledWeights("dense", c.f, 4, rows, cols, m.near(c.f))
			w.NMajor, w.Only = c.nMajor, c.f
			m.padding(smallGroups, true, a, prob)
			l := Launch{Tile: c.tile}
			switch c.op {
			case "gemm":
				m.run(t, e, groupedGEMM{Weights: w, Align: 1, D: c.dt, C: dtype.Float32, Launch: l}, append([]*graph.Value{a, offsets, counts, nil, prob, nil}, b...)...)
			case "glu":
				alpha := m.value("alpha", dtype.Float32, []float32{0.1, 0.2, 0.1, 0.1}, 4)
				m.run(t, e, groupedGEMMGLU{Act: defaultAct, Layout: LayoutConcat, Weights: w, Align: 1, D: c.dt, C: dtype.Float32, Launch: l},
					append([]*graph.Value{a, offsets, counts, alpha, prob, nil}, b...)...)
			default:
				cc := m.normals("c", c.dt, smallGroups.m, 2*n)
				m.padding(smallGroups, true, cc)
				op := groupedGEMMdGLU{Act: defaultAct, Align: 1, DC: c.dt, ActType: c.dt, Layout: LayoutInterleaved32, Weights: w, Launch: l}
				m.run(t, e, op, append([]*graph.Value{a, offsets, counts, prob, nil, cc, nil}, b...)...)
			}
		})
	}
}

func TestEmulate_WGradQuant(t *testing.T) {
	e := newEmulator(t)
	odd := grouping{offsets: []int32{128, 128, 512, 640}, counts: []int32{101, 0, 261, 0}, m: 768}
	for _, c := range []struct {
		f     BlockFormat
		op    wgrad
		tile  [2]int
		far   bool
		roomy bool
	}{
		{MXFP8, wgrad{AMajorM: true}, [2]int{128, 128}, false, false},
		{MXFP8, wgrad{}, [2]int{256, 128}, false, false},
		{MXFP8E5M2, wgrad{AMajorM: true, BMajorK: true, Discrete: 4}, [2]int{64, 64}, false, false},
		{MXFP8, wgrad{AMajorM: true, Accumulate: true}, [2]int{64, 128}, true, false},
		{MXFP8, wgrad{BMajorK: true, Ragged: true, Accumulate: true}, [2]int{64, 64}, true, false},
		{MXFP8, wgrad{BMajorK: true, Ragged: true}, [2]int{128, 256}, false, false},
		{MXFP4, wgrad{BMajorK: true}, [2]int{128, 128}, false, false},
		{MXFP4Vec16, wgrad{BMajorK: true, Ragged: true}, [2]int{128, 64}, false, false},
		{NVFP4, wgrad{BMajorK: true, Accumulate: true}, [2]int{64, 128}, false, false},
		{MXFP8, wgrad{AMajorM: true}, [2]int{128, 128}, false, true},
		{MXFP8E5M2, wgrad{AMajorM: true, BMajorK: true, Discrete: 4}, [2]int{64, 64}, false, true},
		{MXFP8, wgrad{BMajorK: true, Ragged: true, Accumulate: true}, [2]int{64, 64}, true, true},
		{MXFP8, wgrad{AMajorM: true}, [2]int{64, 64}, true, true},
		{NVFP4, wgrad{BMajorK: true, Ragged: true}, [2]int{64, 128}, false, true},
	} {
		op, odd := c.op, odd
		if c.roomy {
			odd.m = roomyGroups.m
		}
		t.Run(fmt.Sprintf("%s/m=%v,k=%v,ragged=%v,acc=%v,far=%v,roomy=%v", c.f, op.AMajorM, op.BMajorK, op.Ragged, op.Accumulate, c.far, c.roomy), func(t *testing.T) {
			m := newEmulation(53)
			m.sum = 512
			const hidden, inter = 208, 272
			offsets, counts := m.groups(odd, true)
			var in []*graph.Value
			for i, x := range []struct {
				rows  int
				major bool // tokens are rows
			}{{hidden, op.AMajorM}, {inter, !op.BMajorK}} {
				v := []int{x.rows, odd.m}
				if x.major {
					v = []int{odd.m, x.rows}
				}
				y := m.codes([]string{"a", "b"}[i], c.f.Values(), v...)
				if x.major {
					m.padding(odd, true, y)
				}
				in = append(in, y)
			}
			in = append(in, offsets, counts, m.normals("alpha", dtype.Float32, 4))
			for i, rows := range []int{hidden, inter} {
				in = append(in, m.tokenFactors([]string{"sfa", "sfb"}[i], c.f, rows, odd, c.far && i == 0))
			}
			in = append(in, nil, nil)
			if c.f == NVFP4 {
				in[len(in)-2], in[len(in)-1] = m.normals("global_scale_a", dtype.Float32, 4), m.normals("global_scale_b", dtype.Float32, 4)
			}
			op.Align, op.DType, op.Launch = 128, dtype.BFloat16, Launch{Tile: c.tile}
			if op.Accumulate {
				op.DType = dtype.Float32
				vars := graph.NewVars(1)
				v := m.g.Use(vars.State("w", dtype.Float32, graph.Const(0), 4, hidden, inter))
				m.data[v] = m.data[m.normals("old", dtype.Float32, 4, hidden, inter)]
				in = append(in, v)
			}
			m.run(t, e, scaledWGrad{WGrad: op, Vec: c.f.Vec()}, in...)
		})
	}
}

// tokenFactors makes the factors of an operand of WGrad, expert by expert; those past an expert's tokens are NaN.
func (m *emulation) tokenFactors(name string, f BlockFormat, rows int, g grouping, far bool) *graph.Value {
	total := dtype.FactorLayout{Rows: rows, Cols: dtype.FactorCols(g.m, f.Vec()), Batches: 1}
	v := m.g.Input(name, f.Factor(), total.Bytes())
	b := make([]byte, total.Bytes())
	for i := range b {
		b[i] = 0xff
	}
	code, at, base := m.near(f), 0, 0
	for e, o := range g.offsets {
		l := dtype.FactorLayout{Rows: rows, Cols: dtype.FactorCols(int(o)-at, f.Vec()), Batches: 1}
		for r := range rows {
			for c := range dtype.FactorCols(int(g.counts[e]), f.Vec()) {
				b[base+l.Index(0, r, c)] = code()
				if far && r%5 == 0 {
					b[base+l.Index(0, r, c)] = byte(c % 3)
				}
			}
		}
		base += l.Bytes()
		at = int(o)
	}
	m.data[v] = b
	return v
}

// quantizedCase is a product with an output in fp8 or fp4.
type quantizedCase struct {
	op     string
	dt     dtype.DType
	groups grouping
	n      int // columns of the product
	layout Layout
	tile   [2]int
	norm   float32
	option string // discrete, bias (of glu: and C), act (of dglu: in f32), far (for the kernel of floats), odd (NaN and Inf), or the only output
}

// TestEmulate_QuantizedOutputs: bytes as the host's, from sums that are exact in any order; behind an activation, whose last digits
// are not the host's, factors as the host's and few codes one step apart.
func TestEmulate_QuantizedOutputs(t *testing.T) {
	e := newEmulator(t)
	tall := grouping{offsets: []int32{256, 512, 512, 1024}, counts: []int32{3, 70, 0, 300}, m: 1280} // more padding than a warp has rows
	for _, c := range []quantizedCase{
		{"gemm", dtype.E4M3, scaledGroups, 96, 0, [2]int{}, 0.75, "discrete"},
		{"gemm", dtype.E2M1, scaledGroups, 96, 0, [2]int{}, 0.75, "bias"},
		{"gemm", dtype.E5M2, thinGroups, 336, 0, [2]int{}, -3, ""},
		{"gemm", dtype.E4M3, tall, 80, 0, [2]int{}, 0, "discrete"},
		{"gemm", dtype.E4M3, roomyGroups, 144, 0, [2]int{128, 128}, 1e-3, "bias"},
		{"gemm", dtype.E2M1, roomyGroups, 160, 0, [2]int{64, 64}, 0.75, "discrete"},
		{"gemm", dtype.E5M2, scaledGroups, 272, 0, [2]int{256, 128}, 0.75, "far"},
		{"gemm", dtype.E4M3, scaledGroups, 80, 0, [2]int{}, 0.75, "far"},
		{"gemm", dtype.E4M3, roomyGroups, 112, 0, [2]int{64, 128}, 0.75, "odd"},
		{"gemm", dtype.E2M1, scaledGroups, 96, 0, [2]int{}, float32(math.Inf(1)), "odd"},
		{"gemm", dtype.E4M3, scaledGroups, 80, 0, [2]int{128, 64}, 0.75, "d"},
		{"gemm", dtype.E4M3, scaledGroups, 80, 0, [2]int{}, 0.75, "sfd_row"},
		{"gemm", dtype.E4M3, scaledGroups, 80, 0, [2]int{}, 0.75, "d_col"},
		{"gemm", dtype.E4M3, scaledGroups, 80, 0, [2]int{}, 0.75, "sfd_col"},
		{"glu", dtype.E4M3, scaledGroups, 192, LayoutConcat, [2]int{}, 0.75, "discrete"},
		{"glu", dtype.E5M2, tall, 320, LayoutInterleaved32, [2]int{}, 0.75, "bias"},
		{"glu", dtype.E2M1, roomyGroups, 192, LayoutPairs, [2]int{256, 128}, 0.75, "bias"},
		{"glu", dtype.E4M3, scaledGroups, 192, LayoutPairs, [2]int{64, 64}, 0.75, "far"},
		{"glu", dtype.E4M3, scaledGroups, 192, LayoutConcat, [2]int{}, 0.75, "c"},
		{"dglu", dtype.E4M3, scaledGroups, 96, LayoutConcat, [2]int{}, 0.75, "discrete"},
		{"dglu", dtype.E5M2, thinGroups, 352, LayoutInterleaved32, [2]int{}, 0.75, "act"},
		{"dglu", dtype.E2M1, tall, 160, LayoutPairs, [2]int{}, 0.75, ""},
		{"dglu", dtype.E4M3, roomyGroups, 160, LayoutPairs, [2]int{128, 128}, 0.75, "act"},
		{"dglu", dtype.E4M3, roomyGroups, 160, LayoutInterleaved32, [2]int{64, 64}, 0.75, "discrete"},
		{"dglu", dtype.E4M3, scaledGroups, 96, LayoutConcat, [2]int{128, 256}, 0.75, "far"},
		{"dglu", dtype.E4M3, scaledGroups, 96, LayoutConcat, [2]int{}, 0.75, "dprob"},
		{"dglu", dtype.E4M3, scaledGroups, 96, LayoutConcat, [2]int{}, 0.75, "dc_col"},
	} {
		t.Run(fmt.Sprintf("%s/%s/%s,N=%d/m=%d,%d/%v/%s", c.op, c.dt, c.layout, c.n, c.groups.m, len(c.groups.offsets), c.tile, c.option), func(t *testing.T) {
			c.run(t, e)
		})
	}
}

func (c quantizedCase) run(t *testing.T, e *emulator) {
	const k, f32 = 96, dtype.Float32
	m := newEmulation(59)
	experts := len(c.groups.offsets)
	offsets, counts := m.groups(c.groups, true)
	one := func() byte { return 127 }
	a, sfa := m.codes("a", dtype.E4M3, c.groups.m, k), m.factors("sfa", MXFP8, c.groups.m, k, 1, one)
	w, b := m.scaledWeights("dense", MXFP8, experts, c.n, k, one)
	for _, x := range [][]byte{m.data[a], m.data[b[0]]} {
		for i := range x {
			x[i] = x[i]&0x80 | 0x38 + x[i]&3<<2 // 1, 1.5, 2, 3
		}
	}
	norm := m.value("norm_const", f32, []float32{c.norm}, 1)
	if c.norm == 0 { // as where a Quantize without one has become the epilogue
		m.without = append(m.without, norm)
	}
	var bias *graph.Value
	prob := m.normals("prob", f32, c.groups.m)
	alphas := make([]float32, experts)
	for i := range alphas {
		alphas[i] = []float32{0.5, -0.25, 0.3, 0.7}[i%4]
		if c.op != "gemm" {
			alphas[i] /= 8
		}
	}
	alpha := m.value("alpha", f32, alphas, experts)
	switch c.option {
	case "bias":
		bias = m.normals("bias", dtype.BFloat16, experts, c.n)
	case "far": // one factor of a real row that bf16 does not reach
		l := dtype.FactorLayout{Rows: c.groups.m, Cols: dtype.FactorCols(k, 32), Batches: 1}
		for col := range l.Cols {
			m.data[sfa][l.Index(0, 5, col)] = 3
		}
	case "odd":
		m.data[a][7*k+3], m.data[a][40*k+50] = 0x7f, 0xff
		binary.LittleEndian.PutUint32(m.data[prob][4*9:], math.Float32bits(float32(math.Inf(-1))))
		binary.LittleEndian.PutUint32(m.data[prob][4*70:], math.Float32bits(math.MaxFloat32))
	}
	m.padding(c.groups, true, a, prob)
	var op graph.Op
	in := []*graph.Value{a, offsets, counts, alpha, prob, bias, sfa, norm, nil, nil}
	s := scaledKind{DiscreteCol: c.option == "discrete"}
	l := Launch{Tile: c.tile}
	switch c.op {
	case "gemm":
		op = scaledGEMM{Scaled: s, Weights: w, Align: 128, D: c.dt, Launch: l}
	case "glu":
		m.near1 = true
		op = scaledGLU{Act: defaultAct, Layout: c.layout, Scaled: s, Weights: w, Align: 128, D: c.dt, C: f32, Launch: l}
	default:
		m.near1 = true
		cc := m.normals("c", dtype.BFloat16, c.groups.m, 2*c.n)
		m.padding(c.groups, true, cc)
		in = []*graph.Value{a, offsets, counts, prob, nil, cc, alpha, sfa, norm, nil, nil}
		d := scaledDGLU{Act: geglu(), Layout: c.layout, Scaled: s, Weights: w, Align: 128, DC: c.dt, ActType: dtype.BFloat16, Launch: l}
		if c.option == "act" {
			d.ActType = f32
		}
		op = d
	}
	for i, name := range op.Outputs() {
		if name == c.option {
			m.want = func(j int) bool { return i == j }
		}
	}
	m.run(t, e, op, append(in, b...)...)
}
