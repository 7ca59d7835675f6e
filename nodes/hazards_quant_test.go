package nodes

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// TestHazard02_EmptyExpertsInWGradQuant is "counts 5,0,7,0 in WGrad, output filled with 0xFF" with block-scaled
// operands: overwriting, experts 1 and 3 are exactly zero; accumulating, those two are unchanged to the bit.
func TestHazard02_EmptyExpertsInWGradQuant(t *testing.T) {
	const rows, h, in = 256, 32, 64
	for _, f := range []BlockFormat{MXFP8, NVFP4} {
		for _, accumulate := range []bool{false, true} {
			g, vars := graph.New("g"), graph.NewVars(1)
			offsets, counts := g.Input("offsets", dtype.Int32, 4), g.Input("counts", dtype.Int32, 4)
			a, b := g.Input("a", dtype.Float32, rows, h), g.Input("b", dtype.Float32, rows, in)
			nv := f == NVFP4
			q := func(x *graph.Value) Quantized {
				return Quantize{X: x, Format: f, Axis: AlongCol, PaddedOffsets: offsets, Counts: counts, Alignment: 128, DiscreteColSF: true, TransposeCol: nv, AutoNorm: nv, PerExpert: nv}.Apply()
			}
			qa, qb := q(a), q(b)
			w := WGrad{A: qa.Col, B: qb.Col, SFA: qa.ColSF, SFB: qb.ColSF, GlobalScaleA: qa.GlobalScale, GlobalScaleB: qb.GlobalScale,
				Offsets: offsets, Counts: counts, AMajorM: !nv, BMajorK: nv, Alignment: 128, DType: dtype.Float32}
			old := float32(0)
			if accumulate {
				old = 0.1
				w.Into = []*graph.Value{vars.State("w", dtype.Float32, graph.Const(0.1), 4, h, in)}
			}
			out := w.Into
			if got := w.Apply(); !accumulate {
				out = got
				g.Output("w", out[0])
			}
			x, y := ones(rows*h), ones(rows*in)
			for i := range x {
				if r := i / h; r >= 5 && r < 128 || r >= 135 {
					x[i] = float32(math.NaN())
				}
			}
			e := start(t, g, vars, map[*graph.Value]any{a: x, b: y, offsets: []int32{128, 128, 256, 256}, counts: []int32{5, 0, 7, 0}})
			must(t, e.Replay(t.Context()))
			for i, v := range fetch[float32](t, e, out[0]) {
				n := []float32{5, 0, 7, 0}[i/(h*in)]
				if n == 0 && math.Float32bits(v) != math.Float32bits(old) || math.Abs(float64(v-old-n)) > 1e-5 {
					t.Fatalf("%s, accumulate %v, expert %d: got %v, want %v", f, accumulate, i/(h*in), v, old+n)
				}
			}
		}
	}
}

// TestHazard13_MasterWeightsChange is "master weights changed between replays": the next replay uses the new weights
// in every quantized copy, forward and backward, whether Vars.Write or an optimizer in the graph has changed them.
func TestHazard13_MasterWeightsChange(t *testing.T) {
	const tokens, h = 64, 64
	cfg := MoE{Experts: 4, TopK: 2, Intermediate: 64, Alignment: 128, Precision: NVFP4}
	run := func(vars *graph.Vars, change func(e *graph.Exec)) (y, dx []float32) {
		g := graph.New("g")
		x := g.Input("x", dtype.Float32, tokens, h)
		out, _ := MoELayer(x, vars, cfg)
		gr := g.GradientsFrom([]*graph.Value{out}, nil, x)
		g.Output("y", out)
		g.Output("dx", gr.Value[0])
		e := start(t, g, vars, map[*graph.Value]any{x: noise(3, tokens*h)})
		must(t, e.Replay(t.Context()))
		change(e)
		return fetch[float32](t, e, out), fetch[float32](t, e, gr.Value[0])
	}
	vars := graph.NewVars(1)
	y, dx := run(vars, func(e *graph.Exec) {
		for i, name := range []string{"fc1", "fc2"} {
			w := vars.Lookup(name)
			must(t, vars.Write(w, noise(uint64(20+i), w.Elems())))
		}
		must(t, e.Replay(t.Context()))
	})
	fresh := graph.NewVars(1)
	first, _ := run(fresh, func(*graph.Exec) {
		for i, name := range []string{"fc1", "fc2"} {
			w := fresh.Lookup(name)
			must(t, fresh.Write(w, noise(uint64(20+i), w.Elems())))
		}
	})
	// first is of the old weights: run replays before it changes them.
	if bytes.Equal(bytesOf(y), bytesOf(first)) {
		t.Error("the second replay used the old weights")
	}
	wantY, wantDX := run(fresh, func(*graph.Exec) {})
	if !bytes.Equal(bytesOf(y), bytesOf(wantY)) || !bytes.Equal(bytesOf(dx), bytesOf(wantDX)) {
		t.Error("a replay after a change of the weights differs from a fresh program's")
	}
	// An optimizer inside the graph: the replay after a step quantizes what the step wrote.
	g := graph.New("train")
	x := g.Input("x", dtype.Float32, tokens, h)
	out, _ := MoELayer(x, fresh, cfg)
	g.Output("y", out)
	SGD(g.GradientsFrom([]*graph.Value{out}, nil, fresh.Lookup("fc1"), fresh.Lookup("fc2")), SGDConfig{Rate: 0.1})
	e := start(t, g, fresh, map[*graph.Value]any{x: noise(3, tokens*h)})
	must(t, e.Replay(t.Context()))
	if !bytes.Equal(bytesOf(fetch[float32](t, e, out)), bytesOf(wantY)) {
		t.Error("the first step's forward pass differs")
	}
	after, _ := run(fresh, func(*graph.Exec) {})
	must(t, e.Replay(t.Context()))
	if got := fetch[float32](t, e, out); !bytes.Equal(bytesOf(got), bytesOf(after)) || bytes.Equal(bytesOf(got), bytesOf(wantY)) {
		t.Error("the second step did not use the weights that the first one wrote")
	}
}

// TestHazard18_ZeroAndTinyBlocks is "one block all zero, one of 1e4, one of subnormals", in rows, columns and epilogues.
func TestHazard18_ZeroAndTinyBlocks(t *testing.T) {
	for _, f := range allBlockFormats {
		vec := f.Vec()
		x := make([]float32, 128*4*vec)
		for r := range 128 {
			for j := range vec {
				at := r*4*vec + j
				x[at] = float32(math.Copysign(0, float64(j%2)-0.5)) // zeros of both signs
				x[at+vec] = 1e4
				x[at+2*vec] = math.Float32frombits(uint32(1 + r*j)) // subnormals
				x[at+3*vec] = 1
			}
		}
		got := runQuantize(t, Quantize{Format: f}, dtype.Float32, []int{128, 4 * vec}, x, nil)
		layout := dtype.FactorLayout{Rows: 128, Cols: 4, Batches: 1}
		for r := range 128 {
			for b := range 4 {
				top := float32(0)
				for j := range vec {
					top = max(top, x[r*4*vec+b*vec+j])
				}
				code, s := refFactor(f, top, 1)
				if g := got.rowSF[layout.Index(0, r, b)]; g != code {
					t.Fatalf("%s: row %d, block %d: factor %#x, want %#x", f, r, b, g, code)
				}
				for j := range vec {
					at := r*4*vec + b*vec + j
					if g, want := codeAt(f, got.row, at), refCode(f, x[at], s); g != want {
						t.Fatalf("%s: row %d, block %d, element %d: code %#x, want %#x", f, r, b, j, g, want)
					}
				}
			}
		}
		// Down the columns of the transpose the same.
		tall := make([]float32, len(x))
		for i, v := range x {
			tall[i%(4*vec)*128+i/(4*vec)] = v
		}
		down := runQuantize(t, Quantize{Format: f, Axis: AlongCol, TransposeCol: true}, dtype.Float32, []int{4 * vec, 128}, tall, nil)
		if !bytes.Equal(down.col, got.row) || !bytes.Equal(down.colSF, got.rowSF) {
			t.Errorf("%s: columns differ from rows", f)
		}
	}
	// In an epilogue: D[m,n] is prob[m] where n is m's one column, so a row's maximum is its prob.
	epilogueMaxima(t, []float32{0, 1e4, 1e-40, math.SmallestNonzeroFloat32, 1e30, 0x1p-126})
}

// epilogueMaxima makes products whose D has one element in each row, of the given magnitudes, and compares the
// factors and codes of the quantizing epilogue with Quantize's and with exact arithmetic.
func epilogueMaxima(t *testing.T, tops []float32) {
	t.Helper()
	const rows, n = 128, 64
	for _, out := range []dtype.DType{dtype.E4M3, dtype.E5M2, dtype.E2M1} {
		g := graph.New("g")
		a, sfa := g.Input("a", dtype.E4M3, rows, n), g.Input("sfa", dtype.E8M0, 512)
		w, sfb := g.Input("w", dtype.E4M3, 1, n, n), g.Input("sfb", dtype.E8M0, 512)
		offsets, prob, norm := g.Input("offsets", dtype.Int32, 1), g.Input("prob", dtype.Float32, rows), g.Input("norm", dtype.Float32, 1)
		d := g.Input("d", dtype.Float32, rows, n)
		s := GroupedGEMM{A: a, B: Weights{Dense: w, SF: sfb}, PaddedOffsets: offsets, Prob: prob, Alignment: 128, DType: out,
			Scales: Scales{SFA: sfa, NormConst: norm}}.ApplyScaled()
		f := quantizedFormat(out, MXFP8)
		q := Quantize{X: d, Format: f, Axis: AlongBoth}.Apply()
		pairs := [][2]*graph.Value{{s.D, q.Row}, {s.DCol, q.Col}, {s.SFDRow, q.RowSF}, {s.SFDCol, q.ColSF}}
		for i, p := range pairs {
			g.Output(fmt.Sprint("f", i), p[0])
			g.Output(fmt.Sprint("q", i), p[1])
		}
		eye, hot, probs, full := make([]byte, n*n), make([]byte, rows*n), make([]float32, rows), make([]float32, rows*n)
		for i := range n {
			eye[i*n+i] = 0x38 // 1
		}
		for r := range rows {
			hot[r*n+r%n] = 0x38
			probs[r] = tops[r%len(tops)]
			full[r*n+r%n] = probs[r]
		}
		unit := bytes.Repeat([]byte{127}, 512)
		e := start(t, g, nil, map[*graph.Value]any{a: hot, sfa: unit, w: eye, sfb: unit, offsets: []int32{rows}, prob: probs, norm: []float32{1}, d: full})
		must(t, e.Replay(t.Context()))
		var got [4][2][]byte
		for i, p := range pairs {
			for j, v := range p {
				got[i][j] = make([]byte, v.Bytes())
				_, err := e.Read(v, got[i][j])
				must(t, err)
			}
			if !bytes.Equal(got[i][0], got[i][1]) {
				t.Errorf("%s: output %d: the epilogue's bytes differ from Quantize's", out, i)
			}
		}
		layout := dtype.FactorLayout{Rows: rows, Cols: n / 32, Batches: 1}
		for r, top := range probs {
			code, scale := refFactor(f, top, 1)
			if c := got[2][0][layout.Index(0, r, r%n/32)]; c != code {
				t.Errorf("%s: maximum %v: factor %#x, want %#x", out, top, c, code)
			}
			if c, want := codeAt(f, got[0][0], r*n+r%n), refCode(f, top, scale); c != want {
				t.Errorf("%s: maximum %v: code %#x, want %#x", out, top, c, want)
			}
			// Rounding up never clips: what the code stands for is within half a step of the maximum.
			if v := valuesOf(out)[codeAt(f, got[0][0], r*n+r%n)] * math.Ldexp(1, int(code)-127); top > 0x1p-100 && math.Abs(v-float64(top)) > 0.26*float64(top) {
				t.Errorf("%s: maximum %v came out as %v", out, top, v)
			}
		}
	}
}

// TestHazard19_MaximaAtEdges is "block maxima 447, 448, 449, 150, 2^k(1 +- 2^-10), values just under a power of two".
func TestHazard19_MaximaAtEdges(t *testing.T) {
	tops := []float32{447, 448, 449, 150, 57343, 57344, 57345, 6, 5.99, 6.01}
	for k := -20; k <= 20; k += 5 {
		p := float32(math.Ldexp(1, k))
		tops = append(tops, p, p*(1+0x1p-10), p*(1-0x1p-10), math.Nextafter32(p, 0), 448*p, math.Nextafter32(448*p, 0), math.Nextafter32(448*p, 1e30))
	}
	epilogueMaxima(t, tops)
	for _, f := range allBlockFormats {
		x := make([]float32, len(tops)*f.Vec())
		for i, top := range tops {
			x[i*f.Vec()+i%f.Vec()] = -top
		}
		got := runQuantize(t, Quantize{Format: f}, dtype.Float32, []int{len(tops), f.Vec()}, x, nil)
		for i, top := range tops {
			code, s := refFactor(f, top, 1)
			if g := got.rowSF[dtype.FactorLayout{Rows: len(tops), Cols: 1, Batches: 1}.Index(0, i, 0)]; g != code {
				t.Errorf("%s: maximum %v: factor %#x, want %#x", f, top, g, code)
			}
			if g, want := codeAt(f, got.row, i*f.Vec()+i%f.Vec()), refCode(f, -top, s); g != want {
				t.Errorf("%s: maximum %v: code %#x, want %#x", f, top, g, want)
			}
		}
	}
}

// TestHazard20_ExtremeFactors is "factor codes 0, 1, 253, 254, 255" through a product: 2^-127 is no zero, 255 is NaN.
func TestHazard20_ExtremeFactors(t *testing.T) {
	const rows, n = 128, 32
	codes := []byte{0, 1, 253, 254, 255}
	g := graph.New("g")
	a, sfa := g.Input("a", dtype.E4M3, rows, n), g.Input("sfa", dtype.E8M0, 512)
	w, sfb := g.Input("w", dtype.E4M3, 1, n, n), g.Input("sfb", dtype.E8M0, 512)
	offsets := g.Input("offsets", dtype.Int32, 1)
	d := g.Output("d", GroupedGEMM{A: a, B: Weights{Dense: w, SF: sfb}, PaddedOffsets: offsets, Alignment: 128, Scales: Scales{SFA: sfa}}.ApplyScaled().D)
	eye, x, sf := make([]byte, n*n), bytes.Repeat([]byte{0x38}, rows*n), make([]byte, 512)
	for i := range n {
		eye[i*n+i] = 0x38
	}
	layout := dtype.FactorLayout{Rows: rows, Cols: 1, Batches: 1}
	for r := range rows {
		sf[layout.Index(0, r, 0)] = codes[r%len(codes)]
	}
	e := start(t, g, nil, map[*graph.Value]any{a: x, sfa: sf, w: eye, sfb: bytes.Repeat([]byte{127}, 512), offsets: []int32{rows}})
	must(t, e.Replay(t.Context()))
	for i, v := range fetch[float32](t, e, d) {
		want := math.Ldexp(1, int(codes[i/n%len(codes)])-127)
		if codes[i/n%len(codes)] == 255 {
			want = math.NaN()
		}
		if float64(v) != want && !(v != v && want != want) {
			t.Fatalf("row %d: got %g, want %g", i/n, v, want)
		}
	}
}

// TestHazard21_NonFinite is "one NaN first, in the middle, last in a block; one Inf": that block says so, amax says so,
// and neighbours are what they were.
func TestHazard21_NonFinite(t *testing.T) {
	for _, f := range allBlockFormats {
		vec := f.Vec()
		clean := noise(5, 32*4*vec)
		layout := dtype.FactorLayout{Rows: 32, Cols: 4, Batches: 1}
		want := runQuantize(t, Quantize{Format: f}, dtype.Float32, []int{32, 4 * vec}, clean, nil)
		nanCode, infCode := byte(0xff), byte(254)
		if f.Factor() == dtype.E4M3 {
			nanCode, infCode = 0x7f, 0x7e
		}
		for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
			for _, at := range []int{0, vec / 2, vec - 1} {
				x := append([]float32(nil), clean...)
				const row, block = 7, 2
				x[row*4*vec+block*vec+at] = float32(bad)
				got := runQuantize(t, Quantize{Format: f}, dtype.Float32, []int{32, 4 * vec}, x, nil)
				code := nanCode
				if bad == bad {
					code = infCode
				}
				for r := range 32 {
					for b := range 4 {
						i := layout.Index(0, r, b)
						if r == row && b == block {
							if got.rowSF[i] != code {
								t.Errorf("%s: %v at %d: factor %#x, want %#x", f, bad, at, got.rowSF[i], code)
							}
							continue
						}
						from, to := f.Values().Bytes(r*4*vec+b*vec), f.Values().Bytes(r*4*vec+(b+1)*vec)
						if got.rowSF[i] != want.rowSF[i] || !bytes.Equal(got.row[from:to], want.row[from:to]) {
							t.Errorf("%s: %v at %d: block (%d,%d) changed", f, bad, at, r, b)
						}
					}
				}
			}
		}
	}
	// amax of a product with a NaN in one group: that group's alone; an empty group's is 0.
	b := newScaledBed(MXFP8, 64, 64)
	for v, x := range b.in {
		if v.Name() == "x" {
			x.([]float32)[150*64+3] = float32(math.NaN()) // row 150 is in group 2
		}
	}
	s := GroupedGEMM{A: b.a.Row, B: b.weights(), PaddedOffsets: b.offsets, Counts: b.counts, Alignment: 128, Scales: Scales{SFA: b.a.RowSF}}.ApplyScaled()
	b.g.Output("amax", s.Amax)
	e := start(t, b.g, nil, b.in)
	must(t, e.Replay(t.Context()))
	if amax := fetch[float32](t, e, s.Amax); amax[2] == amax[2] || amax[1] != 0 || !(amax[0] > 0 && amax[3] > 0) {
		t.Errorf("amax: got %v, want numbers, 0, NaN, a number", amax)
	}
}

// TestHazard22_FactorPlaces is "rows per expert 1,127,128,129,0,200, factor columns not a multiple of 4": every factor
// stands where contracts, section 3, puts it, row factors and each expert's own column factors; foreign strides
// are refused.
func TestHazard22_FactorPlaces(t *testing.T) {
	counts := []int32{1, 127, 128, 129, 0, 200}
	offsets := make([]int32, len(counts))
	at := int32(0)
	for e, n := range counts {
		at += (n + 127) / 128 * 128
		offsets[e] = at
	}
	rows, cols := int(at), 32*6 // 6 factors a row
	x := make([]float32, rows*cols)
	for i := range x {
		r, c := i/cols, i%cols
		x[i] = float32(math.Ldexp(1, (r*7+c/32*3)%40-20)) // a power of two of its own for each block
	}
	got := runQuantize(t, Quantize{Format: MXFP8, Axis: AlongBoth, Alignment: 128, DiscreteColSF: true}, dtype.Float32, []int{rows, cols}, x,
		map[string]any{"padded_offsets": offsets, "counts": counts})
	sfByte := func(row, col, colBlocks int) int { // of section 3, spelled out
		return (row/128*colBlocks+col/4)*512 + row%32*16 + row%128/32*4 + col%4
	}
	seen := map[int]bool{}
	begin, base := 0, 0
	colSeen := map[int]bool{}
	for e, end := range offsets {
		real := begin + int(counts[e])
		for r := begin; r < int(end); r++ {
			for c := range 6 {
				want := byte(0)
				if r < real {
					want, _ = refFactor(MXFP8, x[r*cols+c*32], 1)
				}
				i := sfByte(r, c, 2)
				seen[i] = true
				if got.rowSF[i] != want {
					t.Fatalf("expert %d, row %d, factor %d: got %#x, want %#x", e, r, c, got.rowSF[i], want)
				}
			}
		}
		blocks := (int(end) - begin) / 32
		for c := range cols {
			for k := range blocks {
				top := float32(0)
				for r := begin + 32*k; r < min(begin+32*k+32, real); r++ {
					top = max(top, x[r*cols+c])
				}
				want, _ := refFactor(MXFP8, top, 1)
				i := base + sfByte(c, k, (blocks+3)/4)
				colSeen[i] = true
				if got.colSF[i] != want {
					t.Fatalf("expert %d, column %d, block %d: got %#x, want %#x", e, c, k, got.colSF[i], want)
				}
			}
		}
		base += 512 * ((cols + 127) / 128) * ((blocks + 3) / 4)
		begin = int(end)
	}
	for i, b := range got.rowSF {
		if !seen[i] && b != 0 {
			t.Fatalf("unused byte %d of the row factors holds %#x", i, b)
		}
	}
	for i, b := range got.colSF {
		if !colSeen[i] && b != 0 {
			t.Fatalf("unused byte %d of the column factors holds %#x", i, b)
		}
	}
	g := graph.New("g")
	Dequantize{X: g.Input("x", dtype.E4M3, rows, cols), SF: g.Input("sf", dtype.E8M0, 32, 4, rows/128, 4, 2), Format: MXFP8}.Apply()
	if err := g.Err(); err == nil || !strings.Contains(err.Error(), "sfx") {
		t.Errorf("factors in another order: got error %v", err)
	}
}
