//go:build emulate

package nodes

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// TestEmulate_Quantize runs the kernels of Quantize and Dequantize beside the host code: every byte agrees, those that
// neither writes too.
func TestEmulate_Quantize(t *testing.T) {
	e := newEmulator(t)
	for i, c := range quantCases() {
		t.Run(c.name, func(t *testing.T) {
			m := newEmulation(uint64(i))
			m.exact = true
			op, in := c.build(m)
			m.run(t, e, op, in...)
		})
	}
}

type quantCase struct {
	name  string
	build func(m *emulation) (graph.Op, []*graph.Value)
}

func quantCases() (all []quantCase) {
	add := func(name string, build func(m *emulation) (graph.Op, []*graph.Value)) {
		all = append(all, quantCase{name, build})
	}
	// hostile spreads what blocks may hold over a matrix of normal numbers.
	hostile := func(m *emulation, dt dtype.DType, dims ...int) *graph.Value {
		v := m.g.Input("shape", dt, dims...)
		x := hostileNumbers(m.rand, v.Elems(), dims[len(dims)-1])
		return m.value("x", dt, x, dims...)
	}
	for _, f := range allBlockFormats {
		for _, axis := range []Axis{AlongRow, AlongCol, AlongBoth} {
			for _, transpose := range []bool{false, true} {
				if transpose && axis == AlongRow {
					continue
				}
				for _, s := range [][2]int{{128, 128}, {130, 200}, {66, 36}} {
					dt := []dtype.DType{dtype.BFloat16, dtype.Float16, dtype.Float32}[(int(f)+s[0])%3]
					add(fmt.Sprintf("%s/%s,transpose=%v,%s,%dx%d", f, axis, transpose, dt, s[0], s[1]), func(m *emulation) (graph.Op, []*graph.Value) {
						return quantize{Format: f, Axis: axis, Transpose: transpose, Align: 256}, []*graph.Value{hostile(m, dt, s[0], s[1]), nil, nil, nil, nil, nil}
					})
				}
			}
		}
		add(fmt.Sprintf("%s/groups", f), func(m *emulation) (graph.Op, []*graph.Value) {
			x := hostile(m, dtype.BFloat16, 1024, 136)
			return quantize{Format: f, Axis: AlongBoth, Align: 128, Discrete: true, Transpose: true},
				[]*graph.Value{x, m.ints("offsets", []int32{128, 256, 384, 640, 640, 896}), m.ints("counts", []int32{1, 127, 128, 129, 0, 200}), nil, nil, nil}
		})
		add(fmt.Sprintf("%s/groups,norm", f), func(m *emulation) (graph.Op, []*graph.Value) {
			x := hostile(m, dtype.Float32, 1024, 100)
			return quantize{Format: f, Axis: AlongBoth, Align: 256},
				[]*graph.Value{x, m.ints("offsets", []int32{256, 256, 768}), nil, m.value("norm", dtype.Float32, []float32{3.7}, 1), nil, nil}
		})
		add(fmt.Sprintf("%s/random", f), func(m *emulation) (graph.Op, []*graph.Value) {
			x, draw := hostile(m, dtype.BFloat16, 130, 134), m.g.Input("draw", dtype.Uint64, 2)
			m.data[draw] = []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}
			return quantize{Format: f, Axis: AlongBoth, Transpose: true, Align: 256, Salt: 77}, []*graph.Value{x, nil, nil, nil, nil, draw}
		})
		add(fmt.Sprintf("%s/unit", f), func(m *emulation) (graph.Op, []*graph.Value) {
			return quantize{Format: f, Axis: AlongBoth, Unit: true, Align: 256}, []*graph.Value{hostile(m, dtype.BFloat16, 3, 40, 72), nil, nil, nil, nil, nil}
		})
		add(fmt.Sprintf("%s/rows in use", f), func(m *emulation) (graph.Op, []*graph.Value) {
			return quantize{Format: f, Axis: AlongBoth, Transpose: true, Align: 256},
				[]*graph.Value{m.counted("x", dtype.BFloat16, 151, 300, 264), nil, nil, nil, nil, nil}
		})
		add(fmt.Sprintf("%s/whole tiles", f), func(m *emulation) (graph.Op, []*graph.Value) { // of blocks that are all normal
			return quantize{Format: f, Axis: AlongBoth, Transpose: true, Align: 256},
				[]*graph.Value{m.normals("x", dtype.BFloat16, 256, 256), nil, nil, nil, nil, nil}
		})
		for _, norm := range []float32{0, -2, 1e-30, 1e30} {
			add(fmt.Sprintf("%s/norm=%v", f, norm), func(m *emulation) (graph.Op, []*graph.Value) {
				return quantize{Format: f, Axis: AlongBoth, Transpose: true, Align: 256},
					[]*graph.Value{hostile(m, dtype.BFloat16, 130, 136), nil, nil, m.value("norm", dtype.Float32, []float32{norm}, 1), nil, nil}
			})
		}
	}
	for _, each := range []bool{false, true} {
		add(fmt.Sprintf("nvfp4/auto_norm,per_expert=%v", each), func(m *emulation) (graph.Op, []*graph.Value) {
			return quantize{Format: NVFP4, Axis: AlongBoth, Align: 128, Auto: true, PerExpert: each},
				[]*graph.Value{hostile(m, dtype.BFloat16, 768, 72), m.ints("offsets", []int32{128, 128, 512}), m.ints("counts", []int32{100, 0, 200}), nil, nil, nil}
		})
		add(fmt.Sprintf("nvfp4/auto_norm,stack,per_expert=%v", each), func(m *emulation) (graph.Op, []*graph.Value) {
			return quantize{Format: NVFP4, Axis: AlongRow, Align: 256, Auto: true, PerExpert: each},
				[]*graph.Value{m.normals("x", dtype.Float32, 3, 100, 72), nil, nil, nil, nil, nil}
		})
	}
	add("nvfp4/global_scale", func(m *emulation) (graph.Op, []*graph.Value) {
		return quantize{Format: NVFP4, Axis: AlongBoth, Align: 256},
			[]*graph.Value{hostile(m, dtype.BFloat16, 2, 40, 72), nil, nil, nil, m.value("scale", dtype.Float32, []float32{0.3, 7}, 2), nil}
	})
	return all
}

// TestEmulate_Codec converts every code, and every bf16 number with its neighbours and others at random.
func TestEmulate_Codec(t *testing.T) {
	e := newEmulator(t)
	for _, dt := range []dtype.DType{dtype.BFloat16, dtype.Float16, dtype.E4M3, dtype.E5M2, dtype.E2M1, dtype.E8M0} {
		t.Run("encode/"+dt.String(), func(t *testing.T) {
			m := newEmulation(1)
			m.exact = true
			var x []float32
			for i := range uint32(1 << 16) {
				x = append(x, math.Float32frombits(i<<16), math.Float32frombits(i<<16+1), math.Float32frombits(i<<16-1), math.Float32frombits(m.rand.Uint32()))
			}
			m.run(t, e, encode{To: dt}, m.value("x", dtype.Float32, x, len(x)/2, 2))
		})
		t.Run("decode/"+dt.String(), func(t *testing.T) {
			m := newEmulation(1)
			m.exact = true
			x := m.g.Input("x", dt, 129, 510)
			m.data[x] = make([]byte, dt.Bytes(129*510))
			for i := range m.data[x] {
				m.data[x][i] = byte(i)
				if dt.Bits() == 16 {
					m.data[x][i] = byte(i / 2 >> (i % 2 * 8))
				}
			}
			m.run(t, e, decode{}, x)
		})
	}
}

// TestEmulate_Dequantize multiplies every code by every factor, with blocks along both axes.
func TestEmulate_Dequantize(t *testing.T) {
	e := newEmulator(t)
	for i, f := range allBlockFormats {
		for _, axis := range []Axis{AlongRow, AlongCol} {
			to := []dtype.DType{dtype.BFloat16, dtype.Float16, dtype.Float32}[(i+int(axis))%3]
			t.Run(fmt.Sprintf("%s/%s/%s", f, axis, to), func(t *testing.T) {
				m := newEmulation(1)
				m.exact = true
				bytesOf := func(name string, dt dtype.DType, b func(i int) byte, dims ...int) *graph.Value {
					v := m.g.Input(name, dt, dims...)
					m.data[v] = make([]byte, dt.Bytes(v.Elems()))
					for i := range m.data[v] {
						m.data[v][i] = b(i)
					}
					return v
				}
				const n = 256
				layout := factorLayout(n, n, f)
				factor := make([]byte, layout.Bytes())
				for r := range n {
					for c := range layout.Cols {
						factor[layout.Index(0, r, c)] = byte(r)
					}
				}
				row := f.Values().Bytes(n)
				x := bytesOf("x", f.Values(), func(i int) byte { return map[Axis]byte{AlongRow: byte(i), AlongCol: byte(i / row)}[axis] }, n, n)
				sf := bytesOf("sf", f.Factor(), func(i int) byte { return factor[i] }, len(factor))
				m.run(t, e, dequantize{Format: f, Axis: axis, Y: to}, x, sf, nil)

				for i, s := range [][]int{{130, 100}, {3, 40, 72}, {1, 41, 66}} {
					r, c := s[len(s)-2], s[len(s)-1]
					if axis == AlongCol {
						r, c = c, r
					}
					l := factorLayout(r, c, f)
					if len(s) == 3 {
						l.Batches = s[0]
					}
					y := bytesOf(fmt.Sprint("y", i), f.Values(), func(int) byte { return byte(m.rand.IntN(256)) }, s...)
					sfy := bytesOf(fmt.Sprint("sfy", i), f.Factor(), func(int) byte { return byte(m.rand.IntN(256)) }, l.Bytes())
					var scale *graph.Value
					if f == NVFP4 && len(s) == 3 {
						scale = m.value(fmt.Sprint("scale", i), dtype.Float32, []float32{0.3, -7, 1e-9}[:s[0]], s[0])
					}
					m.run(t, e, dequantize{Format: f, Axis: axis, Y: to}, y, sfy, scale)
				}
			})
		}
	}
}

// TestEmulate_ShortCodes tries the short way to encode with every number and every factor that it may meet, and
// that to decode four bits with every pattern.
func TestEmulate_ShortCodes(t *testing.T) {
	e := newEmulator(t)
	text, err := os.ReadFile("testdata/emulate/short_codes.cpp")
	must(t, err)
	must(t, os.WriteFile(filepath.Join(e.sources, "short_codes.cpp"), text, 0o644))
	out, err := exec.Command(e.build(t, "short_codes.cpp", fmt.Sprintf("short_codes%d", os.Getpid()))).CombinedOutput()
	t.Logf("%s", out)
	must(t, err)
}
