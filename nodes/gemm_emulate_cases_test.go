//go:build emulate

package nodes

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// grouping is rows of groups: full, empty and short ones, and rows past the last.
type grouping struct {
	offsets, counts []int32
	m               int
}

var (
	smallGroups = grouping{offsets: []int32{64, 64, 336, 352}, counts: []int32{50, 0, 270, 0}, m: 400}
	noRows      = grouping{offsets: []int32{0, 0, 0, 0}, counts: []int32{0, 0, 0, 0}, m: 64}
	hostile     = grouping{offsets: []int32{-5, 80, 16, 900}, counts: []int32{-1, 200, 3, 100}, m: 208}
)

// groups makes the inputs; without counts every row is real.
func (m *emulation) groups(g grouping, counts bool) (offsets, countsValue *graph.Value) {
	offsets = m.ints("padded_offsets", g.offsets)
	if counts {
		countsValue = m.ints("counts", g.counts)
	}
	return offsets, countsValue
}

// padding fills rows that hold nothing with 0xFF.
func (m *emulation) padding(g grouping, counts bool, vs ...*graph.Value) {
	at := 0
	for e, o := range g.offsets {
		end := min(max(int(o), at), g.m)
		real := end
		if counts {
			real = at + min(max(int(g.counts[e]), 0), end-at)
		}
		for _, v := range vs {
			m.spoil(v, real, end)
		}
		at = end
	}
	for _, v := range vs {
		m.spoil(v, at, g.m)
	}
}

// weights makes weights of each kind: dense, discrete, ptrs.
func (m *emulation) weights(kind string, dt dtype.DType, e, n, k int, nMajor bool) (weightKind, []*graph.Value) {
	w := weightKind{NMajor: nMajor}
	if nMajor {
		n, k = k, n
	}
	switch kind {
	case "dense":
		return w, []*graph.Value{m.normals("b", dt, e, n, k)}
	case "discrete":
		var vs []*graph.Value
		for i := range e {
			vs = append(vs, m.normals(fmt.Sprintf("b.%d", i), dt, n, k))
		}
		w.Discrete = e
		return w, vs
	}
	panic(kind)
}

func TestEmulate_GroupedGEMM(t *testing.T) {
	e := newEmulator(t)
	const bf16, f16, f32 = dtype.BFloat16, dtype.Float16, dtype.Float32
	for _, c := range []struct {
		name           string
		dt, d, c, bias dtype.DType // bias, c: Invalid for none
		groups         grouping
		counts         bool
		n, k           int
		weights        string
		nMajor         bool
		alpha, prob    bool
		tile           [2]int
	}{
		{"tile 128x256, tails", bf16, bf16, 0, 0, smallGroups, true, 296, 200, "dense", false, false, true, [2]int{128, 256}},
		{"tile 256x128, n-major", bf16, bf16, 0, 0, smallGroups, true, 296, 136, "dense", true, false, true, [2]int{256, 128}},
		{"tile 128x128, everything", bf16, f32, f16, bf16, smallGroups, true, 136, 192, "discrete", false, true, true, [2]int{128, 128}},
		{"tile 64x128", bf16, f16, 0, 0, smallGroups, false, 128, 64, "dense", false, true, false, [2]int{64, 128}},
		{"tile 128x64, n-major discrete", f16, f16, f32, f32, smallGroups, false, 72, 328, "discrete", true, false, true, [2]int{128, 64}},
		{"tile 64x64, hostile offsets", bf16, bf16, 0, 0, hostile, true, 40, 72, "dense", false, true, true, [2]int{64, 64}},
		{"chosen, no rows", bf16, bf16, 0, 0, noRows, true, 40, 72, "dense", false, true, true, [2]int{}},
		{"f32", f32, f32, f32, f32, smallGroups, true, 132, 100, "dense", false, true, true, [2]int{}},
		{"f32 n-major", f32, f32, 0, 0, smallGroups, false, 68, 36, "discrete", true, false, true, [2]int{64, 64}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newEmulation(3)
			m.sum = c.k
			if c.tile == [2]int{} {
				m.gpu = 1
			}
			m.want = func(i int) bool { return i == 0 || c.c != 0 }
			offsets, counts := m.groups(c.groups, c.counts)
			a := m.normals("a", c.dt, c.groups.m, c.k)
			w, b := m.weights(c.weights, c.dt, len(c.groups.offsets), c.n, c.k, c.nMajor)
			var alpha, prob, bias *graph.Value
			if c.alpha {
				alpha = m.normals("alpha", f32, len(c.groups.offsets))
			}
			switch {
			case c.prob && c.counts:
				prob = m.normals("prob", f32, c.groups.m)
			case c.prob: // whose rows in use end inside the third group
				prob = m.counted("prob", f32, 320, c.groups.m)
			}
			if c.bias != 0 {
				bias = m.normals("bias", c.bias, len(c.groups.offsets), c.n)
			}
			m.padding(c.groups, c.counts, a, prob)
			op := groupedGEMM{Weights: w, Align: 1, D: c.d, C: max(c.c, dtype.Float64), Launch: Launch{Tile: c.tile}}
			if c.c == 0 {
				op.C = c.d
			}
			m.run(t, e, op, append([]*graph.Value{a, offsets, counts, alpha, prob, bias}, b...)...)
		})
	}
}

func TestEmulate_Ptrs(t *testing.T) {
	e, m := newEmulator(t), newEmulation(5)
	offsets, counts := m.groups(smallGroups, true)
	a := m.normals("a", dtype.BFloat16, smallGroups.m, 64)
	m.padding(smallGroups, true, a)
	b := m.normals("dense", dtype.BFloat16, 4, 40, 64)
	ptrs := m.g.Input("b_ptrs", dtype.Uint64, 4)
	m.data[ptrs] = make([]byte, 32)
	op := groupedGEMM{Weights: weightKind{Ptrs: true, N: 40, DType: dtype.BFloat16}, Align: 1, D: dtype.BFloat16, C: dtype.BFloat16}
	out := graph.Apply(op, a, offsets, counts, nil, nil, nil, ptrs)
	must(t, m.g.Err())
	// The dense weight is the reference; the addresses are those of its pieces on the device.
	n := graph.Apply(groupedGEMM{Align: 1, D: dtype.BFloat16, C: dtype.BFloat16}, a, offsets, counts, nil, nil, nil, b)[0].Producer()
	var want []byte
	run := func(n *graph.Node, kind string) {
		tensors, ar := map[*graph.Value]*graph.Tensor{}, &arena{at: map[*graph.Tensor]int{}}
		tensor := func(v *graph.Value) *graph.Tensor {
			if v != nil && tensors[v] == nil {
				x := &graph.Tensor{DType: v.DType(), Shape: v.Shape(), Data: make([]byte, v.DType().Bytes(v.Elems()))}
				copy(x.Data, m.data[v])
				ar.place(x, x.Data)
				tensors[v] = x
			}
			return tensors[v]
		}
		c := &graph.KernelCall{Op: n.Op(), GPU: testGPUs[0]}
		dense := tensor(b)
		for i := range n.Op().Operands() {
			c.In = append(c.In, tensor(n.In(i)))
		}
		c.Out = []*graph.Tensor{tensor(n.Out(0)), nil}
		if p := tensors[ptrs]; p != nil {
			for i := range 4 {
				binary.LittleEndian.PutUint64(ar.data[ar.at[p]+8*i:], arenaBase+uint64(ar.at[dense]+i*40*64*2))
			}
		}
		launches, err := n.Op().(graph.CUDAOp).CUDA(c)
		must(t, err)
		got := ar.launch(t, e, launches, true, testGPUs[0])[ar.at[c.Out[0]]:][:len(c.Out[0].Data)]
		if want == nil {
			want = got
		} else if string(want) != string(got) {
			t.Errorf("%s: other bits than with dense weights", kind)
		}
	}
	run(n, "dense")
	run(out[0].Producer(), "b_ptrs")
}

func TestEmulate_GroupedGEMMGLU(t *testing.T) {
	e := newEmulator(t)
	for _, c := range []struct {
		layout Layout
		nMajor bool
		act    act
		dt     dtype.DType
		tile   [2]int
		bias   dtype.DType
		c      bool
	}{
		{LayoutInterleaved32, false, defaultAct, dtype.BFloat16, [2]int{128, 256}, 0, true},
		{LayoutConcat, false, geglu(), dtype.BFloat16, [2]int{128, 256}, dtype.BFloat16, true},
		{LayoutConcat, true, defaultAct, dtype.BFloat16, [2]int{128, 128}, dtype.Float32, false},
		{LayoutPairs, false, defaultAct, dtype.Float16, [2]int{64, 128}, dtype.Float16, true},
		{LayoutPairs, true, geglu(), dtype.Float32, [2]int{}, dtype.Float32, true},
		{LayoutConcat, false, defaultAct, dtype.Float32, [2]int{64, 64}, 0, true},
	} {
		t.Run(fmt.Sprintf("%s/%s/nmajor=%v/%v", c.layout, c.dt, c.nMajor, c.tile), func(t *testing.T) {
			m := newEmulation(7)
			m.want = func(i int) bool { return i == 0 || c.c }
			const n, k = 320, 72
			offsets, counts := m.groups(smallGroups, true)
			a, prob := m.normals("a", c.dt, smallGroups.m, k), m.normals("prob", dtype.Float32, smallGroups.m)
			w, b := m.weights("dense", c.dt, 4, n, k, c.nMajor)
			var bias *graph.Value
			if c.bias != 0 {
				bias = m.normals("bias", c.bias, 4, n)
			}
			m.padding(smallGroups, true, a, prob)
			op := groupedGEMMGLU{Act: c.act, Layout: c.layout, Weights: w, Align: 1, D: c.dt, C: dtype.Float32, Launch: Launch{Tile: c.tile}}
			m.run(t, e, op, append([]*graph.Value{a, offsets, counts, nil, prob, bias}, b...)...)
		})
	}
}

// geglu clamps a good part of normal numbers.
func geglu() act { return act{GeGLU: true, LinearOffset: 0.5, Alpha: 1.702, Cmax: 0.75, Cmin: -0.5} }

func TestEmulate_GroupedGEMMdGLU(t *testing.T) {
	e := newEmulator(t)
	for _, c := range []struct {
		layout Layout
		act    act
		dt     dtype.DType
		tile   [2]int
		all    bool
		groups grouping
	}{
		{LayoutInterleaved32, defaultAct, dtype.BFloat16, [2]int{128, 256}, true, smallGroups},
		{LayoutConcat, geglu(), dtype.BFloat16, [2]int{128, 128}, true, smallGroups},
		{LayoutPairs, defaultAct, dtype.BFloat16, [2]int{64, 64}, true, hostile},
		{LayoutInterleaved32, defaultAct, dtype.Float16, [2]int{64, 128}, false, smallGroups},
		{LayoutPairs, geglu(), dtype.Float32, [2]int{}, true, smallGroups},
		{LayoutInterleaved32, defaultAct, dtype.Float32, [2]int{}, true, noRows},
	} {
		t.Run(fmt.Sprintf("%s/%s/%v", c.layout, c.dt, c.tile), func(t *testing.T) {
			m := newEmulation(9)
			m.want = func(i int) bool { return c.all || i == dgluDC || i == dgluDProb }
			const n, k = 352, 72 // a block of 64 columns that is half full
			offsets, counts := m.groups(c.groups, true)
			a, cc := m.normals("a", c.dt, c.groups.m, k), m.normals("c", c.dt, c.groups.m, 2*n)
			prob := m.normals("prob", dtype.Float32, c.groups.m)
			w, b := m.weights("dense", c.dt, 4, n, k, true)
			m.padding(c.groups, true, a, cc, prob)
			var alpha, beta *graph.Value
			if c.all {
				alpha, beta = m.normals("alpha", dtype.Float32, 4), m.normals("beta", dtype.Float32, 4)
			}
			op := groupedGEMMdGLU{Act: c.act, Align: 1, DC: c.dt, ActType: c.dt, Layout: c.layout, Weights: w, Launch: Launch{Tile: c.tile}}
			m.run(t, e, op, append([]*graph.Value{a, offsets, counts, prob, beta, cc, alpha}, b...)...)
		})
	}
}

func TestEmulate_GLU(t *testing.T) {
	e := newEmulator(t)
	const n = 352
	for _, groups := range []bool{true, false} {
		for _, dt := range []dtype.DType{dtype.BFloat16, dtype.Float32} {
			t.Run(fmt.Sprintf("groups=%v/%s", groups, dt), func(t *testing.T) {
				for _, grad := range []bool{false, true} {
					m := newEmulation(11)
					var offsets, counts, beta, c, d *graph.Value
					prob := m.normals("prob", dtype.Float32, smallGroups.m)
					if groups {
						offsets, counts = m.groups(smallGroups, true)
						beta = m.normals("beta", dtype.Float32, 4)
						c, d = m.normals("c", dt, smallGroups.m, 2*n), m.normals("dd", dt, smallGroups.m, n)
						m.padding(smallGroups, true, c, d, prob)
					} else {
						c, d = m.counted("c", dt, 77, smallGroups.m, 2*n), m.normals("dd", dt, smallGroups.m, n)
					}
					if grad {
						m.want = func(i int) bool { return groups || i == dgluDC || i == dgluDProb || i == dgluAct }
						m.run(t, e, gluGrad{Act: geglu(), Align: 1, DC: dt, ActType: dt, Layout: LayoutPairs}, d, offsets, counts, prob, beta, c)
					} else {
						m.run(t, e, glu{Act: defaultAct, Align: 1, D: dt}, c, offsets, counts, prob)
					}
				}
			})
		}
	}
}

func TestEmulate_WGrad(t *testing.T) {
	e := newEmulator(t)
	aligned := grouping{offsets: []int32{64, 64, 336, 352}, counts: []int32{50, 0, 267, 0}, m: 400}
	for _, c := range []struct {
		op     wgrad
		dt     dtype.DType
		tile   [2]int
		groups grouping
		counts bool
	}{
		{wgrad{AMajorM: true}, dtype.BFloat16, [2]int{128, 256}, smallGroups, true},
		{wgrad{AMajorM: true, Accumulate: true}, dtype.BFloat16, [2]int{256, 128}, smallGroups, false},
		{wgrad{}, dtype.BFloat16, [2]int{128, 128}, aligned, true},
		{wgrad{BMajorK: true, Ragged: true, Discrete: 4}, dtype.Float16, [2]int{64, 128}, aligned, true},
		{wgrad{AMajorM: true, BMajorK: true, Accumulate: true, Discrete: 4}, dtype.BFloat16, [2]int{64, 64}, aligned, true},
		{wgrad{AMajorM: true}, dtype.Float32, [2]int{}, hostile, true},
		{wgrad{BMajorK: true}, dtype.Float32, [2]int{}, aligned, true},
		{wgrad{AMajorM: true}, dtype.BFloat16, [2]int{}, noRows, true},
	} {
		op := c.op
		t.Run(fmt.Sprintf("%s/m=%v,k=%v,ragged=%v,acc=%v,discrete=%d/%v", c.dt, op.AMajorM, op.BMajorK, op.Ragged, op.Accumulate, op.Discrete, c.tile), func(t *testing.T) {
			m := newEmulation(13)
			const hidden, inter = 200, 264
			offsets, counts := m.groups(c.groups, c.counts)
			var a, b *graph.Value
			if op.AMajorM {
				a = m.normals("a", c.dt, c.groups.m, hidden)
				m.padding(c.groups, c.counts, a)
			} else {
				a = m.normals("a", c.dt, hidden, c.groups.m)
			}
			if op.BMajorK {
				b = m.normals("b", c.dt, inter, c.groups.m)
			} else {
				b = m.normals("b", c.dt, c.groups.m, inter)
				m.padding(c.groups, c.counts, b)
			}
			alpha := m.normals("alpha", dtype.Float32, 4)
			in := []*graph.Value{a, b, offsets, counts, alpha}
			op.Align, op.DType, op.Launch = 8, c.dt, Launch{Tile: c.tile}
			if op.Accumulate {
				vars, shape := graph.NewVars(1), []int{4, hidden, inter}
				if op.Discrete > 0 {
					shape = shape[1:]
				}
				for i := range max(1, op.Discrete) {
					v := m.g.Use(vars.State(fmt.Sprint("w", i), c.dt, graph.Const(0), shape...))
					m.data[v] = m.data[m.normals(fmt.Sprint("old", i), c.dt, shape...)]
					in = append(in, v)
				}
			}
			m.run(t, e, op, in...)
		})
	}
}

func TestEmulate_Matmul(t *testing.T) {
	e := newEmulator(t)
	for _, c := range []struct {
		ta, tb  bool
		dt      dtype.DType
		m, k, n int
		rows    int // in use of a
		bias    bool
	}{
		{false, true, dtype.BFloat16, 200, 136, 72, 150, true},
		{false, true, dtype.BFloat16, 100, 77, 33, 100, true},
		{false, false, dtype.BFloat16, 100, 77, 33, 70, false},
		{false, false, dtype.Float32, 90, 64, 40, 90, true},
		{false, true, dtype.Float32, 90, 33, 7, 1, true},
		{true, false, dtype.BFloat16, 72, 2100, 136, 2000, false},
		{true, false, dtype.BFloat16, 71, 300, 33, 211, true},
		{true, true, dtype.BFloat16, 64, 304, 40, 304, true},
		{true, true, dtype.Float16, 65, 303, 40, 303, false},
		{true, false, dtype.Float32, 65, 1100, 40, 1099, true},
	} {
		t.Run(fmt.Sprintf("ta=%v,tb=%v/%s/%dx%dx%d", c.ta, c.tb, c.dt, c.m, c.k, c.n), func(t *testing.T) {
			m := newEmulation(17)
			m.sum = c.k
			var a, b, bias *graph.Value
			if c.ta {
				a = m.counted("a", c.dt, c.rows, c.k, c.m)
			} else {
				a = m.counted("a", c.dt, c.rows, c.m, c.k)
			}
			switch {
			case c.ta && c.tb:
				b = m.normals("b", c.dt, c.n, c.k)
			case c.ta:
				// Rows as those of a.
				b = graph.Apply(recount{}, m.normals("b", c.dt, c.k, c.n), a.Rows())[0]
				m.data[b] = m.data[b.Producer().In(0)]
				m.spoil(b, c.rows, c.k)
			case c.tb:
				b = m.normals("b", c.dt, c.n, c.k)
			default:
				b = m.normals("b", c.dt, c.k, c.n)
			}
			if c.bias {
				bias = m.normals("bias", dtype.Float32, c.n)
			}
			m.run(t, e, matmul{TransA: c.ta, TransB: c.tb, DType: c.dt}, a, b, bias)
		})
	}
}

func TestEmulate_GroupRows(t *testing.T) {
	e := newEmulator(t)
	for _, n := range []int{296, 33} {
		for _, op := range []string{"scale_rows", "row_dot", "row_dot_bias", "group_sum"} {
			t.Run(fmt.Sprintf("%s/%d", op, n), func(t *testing.T) {
				m := newEmulation(19)
				offsets, counts := m.groups(smallGroups, true)
				x := m.normals("x", dtype.BFloat16, smallGroups.m, n)
				with := m.normals("prob", dtype.Float32, smallGroups.m)
				out := dtype.Float32
				switch op {
				case "scale_rows":
					out = dtype.BFloat16
				case "row_dot":
					with = m.normals("z", dtype.BFloat16, smallGroups.m, n)
				case "row_dot_bias":
					with = m.normals("bias", dtype.Float32, 4, n)
				}
				m.padding(smallGroups, true, x)
				if !strings.Contains(op, "bias") {
					m.padding(smallGroups, true, with)
				}
				m.run(t, e, groupMap{Op: op, Align: 1, DType: out}, x, offsets, counts, with)
			})
		}
	}
	for _, to := range []Layout{LayoutConcat, LayoutPairs} {
		t.Run("glu_layout/"+to.String(), func(t *testing.T) {
			m := newEmulation(23)
			m.run(t, e, relayoutOp{To: to}, m.counted("x", dtype.BFloat16, 60, 100, 192))
		})
	}
}
