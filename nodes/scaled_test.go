package nodes

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/host"
)

// scaledBed is a graph with quantized operands of a grouped GEMM, and the same operands dequantized for a plain one.
type scaledBed struct {
	g               *graph.Graph
	f               BlockFormat
	a, w            Quantized
	plainA, plainW  *graph.Value
	offsets, counts *graph.Value
	prob, bias      *graph.Value
	alpha, norm     *graph.Value
	in              map[*graph.Value]any
}

const bedRows, bedExperts = 640, 4

func newScaledBed(f BlockFormat, n, k int) *scaledBed {
	b := &scaledBed{g: graph.New("g"), f: f, in: map[*graph.Value]any{}}
	input := func(name string, data any, dt dtype.DType, shape ...int) *graph.Value {
		v := b.g.Input(name, dt, shape...)
		b.in[v] = data
		return v
	}
	x := input("x", noise(1, bedRows*k), dtype.Float32, bedRows, k)
	w := input("w", noise(2, bedExperts*n*k), dtype.Float32, bedExperts, n, k)
	b.offsets = input("offsets", []int32{128, 128, 384, 512}, dtype.Int32, bedExperts)
	b.counts = input("counts", []int32{100, 0, 200, 128}, dtype.Int32, bedExperts)
	b.prob = input("prob", noise(3, bedRows), dtype.Float32, bedRows)
	b.bias = input("bias", noise(4, bedExperts*n), dtype.Float32, bedExperts, n)
	b.alpha = input("alpha", []float32{1, 0.5, 2, 0.75}, dtype.Float32, bedExperts)
	b.norm = input("norm", []float32{0.75}, dtype.Float32, 1)
	b.a = Quantize{X: x, Format: f, PaddedOffsets: b.offsets, Counts: b.counts, Alignment: 128}.Apply()
	b.w = Quantize{X: w, Format: f}.Apply()
	b.plainA = Dequantize{X: b.a.Row, SF: b.a.RowSF, Format: f}.Apply()
	b.plainW = Dequantize{X: b.w.Row, SF: b.w.RowSF, Format: f}.Apply()
	return b
}

func (b *scaledBed) weights() Weights { return Weights{Dense: b.w.Row, SF: b.w.RowSF} }

// sameBytes runs the graph and compares pairs of outputs over the rows in use, byte by byte.
func (b *scaledBed) sameBytes(t *testing.T, what string, pairs map[string][2]*graph.Value) {
	t.Helper()
	for name, p := range pairs {
		for i, v := range p {
			b.g.Output(fmt.Sprint(name, i), v)
		}
	}
	must(t, b.g.Err())
	e := start(t, b.g, nil, b.in)
	must(t, e.Replay(t.Context()))
	for name, p := range pairs {
		var got [2][]byte
		for i, v := range p {
			got[i] = make([]byte, v.Bytes())
			_, err := readCodes(e, v, got[i])
			must(t, err)
		}
		if !bytes.Equal(got[0], got[1]) {
			t.Errorf("%s: %s: fused and separate bytes differ", what, name)
		}
	}
}

// readCodes reads a value's bytes as they are.
func readCodes(e *graph.Exec, v *graph.Value, dst []byte) (int, error) {
	switch v.DType().Bits() {
	case 32:
		return e.Read(v, graph.View[float32](dst))
	case 16:
		return e.Read(v, graph.View[uint16](dst))
	}
	return e.Read(v, dst)
}

// TestScaled_FusedBytes: what the epilogues write is what Quantize makes of the float32 accumulator, which the plain
// product of the dequantized operands is.
func TestScaled_FusedBytes(t *testing.T) {
	for _, out := range []dtype.DType{dtype.E4M3, dtype.E5M2, dtype.E2M1} {
		for _, discrete := range []bool{false, true} {
			for _, bias := range []bool{false, true} {
				what := fmt.Sprintf("%s, discrete %v, bias %v", out, discrete, bias)
				separate := func(b *scaledBed, d *graph.Value) Quantized {
					return Quantize{X: d, Format: quantizedFormat(out, b.f), Axis: AlongBoth, PaddedOffsets: b.offsets, Counts: b.counts, NormConst: b.norm,
						Alignment: 128, DiscreteColSF: discrete}.Apply()
				}
				pairs := func(d, col, sfRow, sfCol *graph.Value, q Quantized) map[string][2]*graph.Value {
					return map[string][2]*graph.Value{"row": {d, q.Row}, "col": {col, q.Col}, "sf row": {sfRow, q.RowSF}, "sf col": {sfCol, q.ColSF}}
				}
				b := newScaledBed(MXFP8, 160, 96)
				o := GroupedGEMM{A: b.a.Row, B: b.weights(), PaddedOffsets: b.offsets, Counts: b.counts, Alpha: b.alpha, Prob: b.prob, Alignment: 128,
					DType: out, Scales: Scales{SFA: b.a.RowSF, NormConst: b.norm, DiscreteColSF: discrete}}
				p := GroupedGEMM{A: b.plainA, B: Dense(b.plainW), PaddedOffsets: b.offsets, Counts: b.counts, Alpha: b.alpha, Prob: b.prob, Alignment: 128}
				if bias {
					o.Bias, p.Bias = b.bias, b.bias
				}
				s := o.ApplyScaled()
				d, _ := p.Apply()
				b.sameBytes(t, "grouped_gemm "+what, pairs(s.D, s.DCol, s.SFDRow, s.SFDCol, separate(b, d)))

				for _, layout := range []Layout{LayoutInterleaved32, LayoutConcat, LayoutPairs} {
					b = newScaledBed(MXFP8, 192, 96)
					og := GroupedGEMMGLU{A: b.a.Row, B: b.weights(), PaddedOffsets: b.offsets, Counts: b.counts, Alpha: b.alpha, Prob: b.prob, Alignment: 128,
						DType: out, Layout: layout, CType: dtype.Float32, Scales: o.Scales}
					og.SFA, og.NormConst = b.a.RowSF, b.norm
					pg := GroupedGEMMGLU{A: b.plainA, B: Dense(b.plainW), PaddedOffsets: b.offsets, Counts: b.counts, Alpha: b.alpha, Prob: b.prob, Alignment: 128, Layout: layout}
					if bias {
						og.Bias, pg.Bias = b.bias, b.bias
					}
					s = og.ApplyScaled()
					d, c := pg.Apply()
					all := pairs(s.D, s.DCol, s.SFDRow, s.SFDCol, separate(b, d))
					all["c"] = [2]*graph.Value{s.C, c}
					b.sameBytes(t, fmt.Sprintf("grouped_gemm_glu %s, %s", what, layout), all)

					b = newScaledBed(MXFP8, 96, 64)
					cc := b.g.Input("c", dtype.Float32, bedRows, 192)
					b.in[cc] = noise(7, bedRows*192)
					od := GroupedGEMMdGLU{A: b.a.Row, B: b.weights(), C: cc, PaddedOffsets: b.offsets, Counts: b.counts, Alpha: b.alpha, Prob: b.prob, Beta: b.alpha,
						Alignment: 128, DType: out, Layout: layout, Scales: Scales{SFA: b.a.RowSF, NormConst: b.norm, DiscreteColSF: discrete}}
					r := od.Apply()
					od.A, od.B, od.DType, od.Scales = b.plainA, Dense(b.plainW), dtype.Float32, Scales{}
					pr := od.Apply()
					all = pairs(r.DC, r.DCCol, r.SFDCRow, r.SFDCCol, separate(b, pr.DC))
					all["dprob"], all["dbias"], all["act"] = [2]*graph.Value{r.DProb, pr.DProb}, [2]*graph.Value{r.DBias, pr.DBias}, [2]*graph.Value{r.Act, pr.Act}
					b.sameBytes(t, fmt.Sprintf("grouped_gemm_dglu %s, %s", what, layout), all)
				}
			}
		}
	}
}

// TestScaled_Gradients: each gradient is the plain product of the operands dequantized along its own axis, to the bit.
func TestScaled_Gradients(t *testing.T) {
	for _, f := range []BlockFormat{MXFP8, MXFP8E5M2, MXFP4, NVFP4} {
		const n, k = 96, 64
		g := graph.New("g")
		in := map[*graph.Value]any{}
		input := func(name string, data any, dt dtype.DType, shape ...int) *graph.Value {
			v := g.Input(name, dt, shape...)
			in[v] = data
			return v
		}
		x, w := input("x", noise(1, bedRows*k), dtype.Float32, bedRows, k), input("w", noise(2, bedExperts*n*k), dtype.Float32, bedExperts, n, k)
		seed := input("seed", noise(5, bedRows*n), dtype.Float32, bedRows, n)
		offsets, counts := input("offsets", []int32{128, 128, 384, 512}, dtype.Int32, bedExperts), input("counts", []int32{100, 0, 200, 128}, dtype.Int32, bedExperts)
		nv, fp4 := f == NVFP4, f.Values() == dtype.E2M1
		rows := Quantize{Format: f, Axis: AlongBoth, PaddedOffsets: offsets, Counts: counts, Alignment: 128, AutoNorm: nv, PerExpert: nv}
		quantizeRows := func(x *graph.Value) Quantized {
			q := rows
			q.X = x
			return q.Apply()
		}
		qx := quantizeRows(x)
		qw := Quantize{X: w, Format: f, Axis: AlongBoth, TransposeCol: true, AutoNorm: nv, PerExpert: nv}.Apply()
		dt := dtype.BFloat16
		if fp4 {
			dt = dtype.Float32
		}
		d := GroupedGEMM{A: qx.Row, B: Weights{Dense: qw.Row, SF: qw.RowSF}, PaddedOffsets: offsets, Counts: counts, Alignment: 128, DType: dt,
			Scales: Scales{SFA: qx.RowSF, SFVec: f.Vec(), GlobalScaleA: qx.GlobalScale, GlobalScaleB: qw.GlobalScale}}.ApplyScaled().D
		gr := g.GradientsFrom([]*graph.Value{d}, []*graph.Value{seed}, x, w)

		// The same by hand, on operands dequantized. With global scales the product of both multiplies each expert's sum.
		q := quantizeRows(seed)
		row := Dequantize{X: q.Row, SF: q.RowSF, Format: f}.Apply()
		col := Dequantize{X: q.Col, SF: q.ColSF, Format: f, Axis: AlongCol}.Apply()
		xCol := Dequantize{X: qx.Col, SF: qx.ColSF, Format: f, Axis: AlongCol}.Apply()
		wT := Dequantize{X: qw.Col, SF: qw.ColSF, Format: f}.Apply() // (E,K,N), along N
		da := GroupedGEMM{A: row, B: Dense(wT), PaddedOffsets: offsets, Counts: counts, Alignment: 128}
		dw := WGrad{A: col, B: xCol, Offsets: offsets, Counts: counts, AMajorM: true, Alignment: 128}
		if nv {
			da.Alpha, dw.Alpha = product(q.GlobalScale, qw.GlobalScale), product(q.GlobalScale, qx.GlobalScale)
		}
		wantA, _ := da.Apply()
		if !fp4 {
			wantA = Cast(Cast(wantA, dtype.BFloat16), dtype.Float32)
		}
		wantW := dw.Apply()[0]
		for i, v := range []*graph.Value{gr.Value[0], gr.Value[1], wantA, wantW} {
			g.Output(fmt.Sprint(i), v)
		}
		must(t, g.Err())
		e := start(t, g, nil, in)
		must(t, e.Replay(t.Context()))
		for i, v := range []*graph.Value{wantA, wantW} {
			want, got := fetch[float32](t, e, v), fetch[float32](t, e, gr.Value[i])
			valid := len(want)
			if i == 0 {
				valid = 512 * k
			}
			for j := range want[:valid] {
				if math.Float32bits(want[j]) != math.Float32bits(got[j]) {
					t.Fatalf("%s: gradient of %s, element %d: got %v, want %v", f, []string{"x", "w"}[i], j, got[j], want[j])
				}
			}
		}
	}
}

// product multiplies two vectors of one number an expert.
func product(a, b *graph.Value) *graph.Value { return graph.Apply(timesOp{}, a, b)[0] }

type timesOp struct{}

func (timesOp) Kind() string              { return "test_times" }
func (timesOp) Operands() []graph.Operand { return []graph.Operand{{Name: "a"}, {Name: "b"}} }
func (timesOp) Outputs() []string         { return []string{"y"} }
func (timesOp) Infer(in []*graph.Value) ([]graph.Spec, error) {
	return []graph.Spec{in[0].Spec()}, nil
}
func (timesOp) Host(c *graph.Call) func() error {
	return func() error {
		y, b := graph.View[float32](c.Out[0].Data), graph.View[float32](c.In[1].Data)
		for i, a := range graph.View[float32](c.In[0].Data) {
			y[i] = a * b[i]
		}
		return nil
	}
}

// TestMoELayer_Precision: gradients of a quantized layer are near those of the bf16 one, two replays agree to the bit
// without random rounding, and the plan shows that every grouped GEMM took quantized operands.
func TestMoELayer_Precision(t *testing.T) {
	const tokens, hidden = 96, 64
	run := func(cfg MoE) (all [][]float32, listing string) {
		g, vars := graph.New("g"), graph.NewVars(1)
		x := vars.ParamOf("x", dtype.Float32, graph.Normal(1), tokens, hidden)
		cfg.Experts, cfg.TopK, cfg.Intermediate, cfg.Alignment, cfg.Compute, cfg.Bias = 4, 2, 96, 128, dtype.BFloat16, true
		y, _ := MoELayer(g.Use(x), vars.Scope("moe"), cfg)
		seed := g.Input("seed", dtype.Float32, tokens, hidden)
		wrt := vars.All()
		gr := g.GradientsFrom([]*graph.Value{y}, []*graph.Value{seed}, wrt...)
		outs := append([]*graph.Value{y}, gr.Value...)
		for i, v := range outs {
			g.Output(fmt.Sprint(i), v)
		}
		must(t, g.Err())
		p, err := g.Compile(host.Device{}, graph.Options{Debug: graph.Debug{Poison: true}})
		must(t, err)
		e, err := p.Exec(vars)
		must(t, err)
		defer e.Close()
		must(t, e.Write(seed, noise(9, tokens*hidden)))
		must(t, e.Replay(t.Context()))
		for _, v := range outs {
			all = append(all, fetch[float32](t, e, v))
		}
		must(t, e.Replay(t.Context()))
		differ := 0
		for i, v := range outs {
			if !bytes.Equal(bytesOf(all[i]), bytesOf(fetch[float32](t, e, v))) {
				differ++
			}
		}
		if (differ > 0) != cfg.StochasticRounding {
			t.Errorf("%s, random %v: %d outputs differ between two replays", cfg.Precision, cfg.StochasticRounding, differ)
		}
		return all, p.String()
	}
	want, _ := run(MoE{})
	for _, c := range []struct {
		cfg   MoE
		bound float64
	}{{MoE{Precision: MXFP8}, 0.08}, {MoE{Precision: MXFP8, StochasticRounding: true}, 0.1}, {MoE{Precision: MXFP8, Layout: LayoutConcat}, 0}, {MoE{Precision: NVFP4}, 0.35},
		{MoE{Precision: NVFP4, StochasticRounding: true}, 0.45}, {MoE{Precision: MXFP4}, 0.5}, {MoE{Precision: MXFP8E5M2}, 0.2}} {
		got, listing := run(c.cfg)
		if c.cfg.StochasticRounding { // the same seed gives the same numbers
			again, _ := run(c.cfg)
			for i := range got {
				if !bytes.Equal(bytesOf(got[i]), bytesOf(again[i])) {
					t.Errorf("%s: output %d: the same seed gives other numbers", c.cfg.Precision, i)
				}
			}
		}
		for i := range got {
			var diff, norm float64
			for j, v := range want[i] {
				diff += math.Pow(float64(got[i][j]-v), 2)
				norm += math.Pow(float64(v), 2)
			}
			if rel := math.Sqrt(diff / norm); c.bound > 0 && (!(rel < c.bound) || rel == 0 && i != 6) { // 6: fc2_bias, of dy alone
				t.Errorf("%s, random %v: output %d: relative error %.3g, want above 0 and below %g", c.cfg.Precision, c.cfg.StochasticRounding, i, rel, c.bound)
			}
		}
		products := map[string]int{}
		for _, line := range strings.Split(listing, "\n") {
			for _, kind := range []string{"grouped_gemm", "grouped_gemm_glu", "grouped_gemm_dglu", "wgrad"} {
				if strings.Contains(line, " "+kind+" ") || strings.Contains(line, kind+"_quant ") && !strings.Contains(line, "_"+kind+"_quant") {
					if !strings.Contains(line, kind+"_quant "+c.cfg.Precision.String()+" ") {
						t.Errorf("%s: a product without quantized operands: %s", c.cfg.Precision, line)
					}
					products[kind]++
				}
			}
		}
		if fmt.Sprint(products) != "map[grouped_gemm:2 grouped_gemm_dglu:1 grouped_gemm_glu:1 wgrad:2]" {
			t.Errorf("%s: got products %v in\n%s", c.cfg.Precision, products, listing)
		}
	}
}

// TestMoELayer_PrecisionRefuses holds what a quantized layer asks for.
func TestMoELayer_PrecisionRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		cfg  MoE
		dt   dtype.DType
		h    int
		want string
	}{
		"alignment":  {MoE{Precision: MXFP8, Alignment: 64}, dtype.Float32, 64, "Alignment"},
		"compute":    {MoE{Precision: MXFP8, Compute: dtype.Float32}, dtype.Float32, 64, "Compute"},
		"width":      {MoE{Precision: NVFP4}, dtype.Float32, 48, "Hidden"},
		"f64":        {MoE{Precision: NVFP4}, dtype.Float64, 64, "x: "},
		"stochastic": {MoE{StochasticRounding: true}, dtype.Float32, 64, "StochasticRounding"},
		"format":     {MoE{Precision: 77}, dtype.Float32, 64, "Precision"},
	} {
		g := graph.New("g")
		c.cfg.Experts, c.cfg.TopK, c.cfg.Intermediate = 4, 2, 64
		MoELayer(g.Input("x", c.dt, 32, c.h), graph.NewVars(1), c.cfg)
		if err := g.Err(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got error %v, want one that names %q", name, err, c.want)
		}
	}
}

// aligned returns n bytes at a multiple of 16.
func aligned(n int) []byte {
	b := make([]byte, n+16)
	skip := -int(addressOf(b)) & 15
	return b[skip : skip+n]
}

func addressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(&b[0]))) }

// TestScaled_Ptrs gives weights and factors by addresses, with the bytes of the dense ones.
func TestScaled_Ptrs(t *testing.T) {
	const n, k = 64, 64
	codes, sf := make([][]byte, bedExperts), make([][]byte, bedExperts)
	whole := runQuantize(t, Quantize{Format: MXFP8}, dtype.Float32, []int{bedExperts * n, k}, noise(2, bedExperts*n*k), nil)
	plain := make([]byte, bedExperts*n*k/32)
	must(t, dtype.FactorLayout{Rows: bedExperts * n, Cols: k / 32, Batches: 1}.Unpack(plain, whole.rowSF))
	layout := dtype.FactorLayout{Rows: n, Cols: k / 32, Batches: 1}
	cPtr, sPtr := make([]uint64, bedExperts), make([]uint64, bedExperts)
	for e := range bedExperts {
		codes[e], sf[e] = aligned(n*k), aligned(layout.Bytes())
		copy(codes[e], whole.row[e*n*k:])
		must(t, layout.Pack(sf[e], plain[e*n*k/32:(e+1)*n*k/32]))
		cPtr[e], sPtr[e] = addressOf(codes[e]), addressOf(sf[e])
	}
	b := newScaledBed(MXFP8, n, k)
	c, s := b.g.Input("codes", dtype.Uint64, bedExperts), b.g.Input("sf", dtype.Uint64, bedExperts)
	b.in[c], b.in[s] = cPtr, sPtr
	o := GroupedGEMM{A: b.a.Row, B: b.weights(), PaddedOffsets: b.offsets, Counts: b.counts, Alignment: 128, Scales: Scales{SFA: b.a.RowSF}}
	dense := o.ApplyScaled()
	o.B = Weights{Ptrs: c, SFPtrs: s, N: n, DType: dtype.E4M3}
	byPtr := o.ApplyScaled()
	b.sameBytes(t, "addresses", map[string][2]*graph.Value{"d": {dense.D, byPtr.D}, "amax": {dense.Amax, byPtr.Amax}})
	runtime.KeepAlive([][][]byte{codes, sf})
}

// TestScaled_Refuses: combinations that are not in the tables, each named.
func TestScaled_Refuses(t *testing.T) {
	plain := func(g *graph.Graph, o *GroupedGEMM) {
		o.A, o.B = g.Input("pa", dtype.BFloat16, 256, 64), Dense(g.Input("pb", dtype.BFloat16, 2, 32, 64))
		o.Scales = Scales{}
	}
	for name, c := range map[string]struct {
		change func(g *graph.Graph, o *GroupedGEMM)
		kind   error
		want   string
	}{
		"sfa beside bf16":      {func(g *graph.Graph, o *GroupedGEMM) { s := o.SFA; plain(g, o); o.SFA = s }, graph.ErrUsage, "sfa: "},
		"sfb beside bf16":      {func(g *graph.Graph, o *GroupedGEMM) { s := o.B.SF; plain(g, o); o.B.SF = s }, graph.ErrUsage, "sfb: "},
		"vec beside bf16":      {func(g *graph.Graph, o *GroupedGEMM) { plain(g, o); o.SFVec = 32 }, graph.ErrUsage, "sf_vec_size: "},
		"discrete beside bf16": {func(g *graph.Graph, o *GroupedGEMM) { plain(g, o); o.DiscreteColSF = true }, graph.ErrUsage, "discrete_col_sfd: "},
		"global beside mxfp8":  {func(g *graph.Graph, o *GroupedGEMM) { o.GlobalScaleA = g.Input("gs", dtype.Float32, 2) }, graph.ErrUsage, "global_scale_a: "},
		"no sfa":               {func(g *graph.Graph, o *GroupedGEMM) { o.SFA = nil; o.SFVec = 32 }, graph.ErrUsage, "sfa: "},
		"no sfb":               {func(g *graph.Graph, o *GroupedGEMM) { o.B.SF = nil }, graph.ErrUsage, "sfb: "},
		"b bf16":               {func(g *graph.Graph, o *GroupedGEMM) { o.B.Dense = g.Input("b2", dtype.BFloat16, 2, 32, 64) }, graph.ErrDType, "b: "},
		"b e5m2":               {func(g *graph.Graph, o *GroupedGEMM) { o.B.Dense = g.Input("b2", dtype.E5M2, 2, 32, 64) }, graph.ErrDType, "b: "},
		"n-major":              {func(g *graph.Graph, o *GroupedGEMM) { o.B.NMajor = true }, graph.ErrShape, "b_major: "},
		"alignment":            {func(g *graph.Graph, o *GroupedGEMM) { o.Alignment = 64 }, graph.ErrShape, "alignment: "},
		"vec 16":               {func(g *graph.Graph, o *GroupedGEMM) { o.SFVec = 16 }, graph.ErrShape, "sf_vec_size: "},
		"e4m3 factors":         {func(g *graph.Graph, o *GroupedGEMM) { o.SFA = g.Input("s2", dtype.E4M3, 1024) }, graph.ErrDType, "sfa: "},
		"f32 out":              {func(g *graph.Graph, o *GroupedGEMM) { o.DType = dtype.Float32 }, graph.ErrDType, "d_dtype: "},
		"no norm":              {func(g *graph.Graph, o *GroupedGEMM) { o.DType = dtype.E4M3 }, graph.ErrUsage, "norm_const: "},
		"norm":                 {func(g *graph.Graph, o *GroupedGEMM) { o.NormConst = g.Input("n", dtype.Float32, 1) }, graph.ErrUsage, "norm_const: "},
		"norm of two": {func(g *graph.Graph, o *GroupedGEMM) {
			o.DType, o.NormConst = dtype.E4M3, g.Input("n", dtype.Float32, 2)
		}, graph.ErrShape, "norm_const: "},
		"discrete of bf16": {func(g *graph.Graph, o *GroupedGEMM) { o.DiscreteColSF = true }, graph.ErrUsage, "discrete_col_sfd: "},
		"foreign factors":  {func(g *graph.Graph, o *GroupedGEMM) { o.SFA = g.Input("s2", dtype.E8M0, 32, 4, 2, 4, 1) }, graph.ErrShape, "sfa: "},
		"short factors":    {func(g *graph.Graph, o *GroupedGEMM) { o.B.SF = g.Input("s2", dtype.E8M0, 512) }, graph.ErrShape, "sfb: "},
		"discrete factors": {func(g *graph.Graph, o *GroupedGEMM) { o.B.DiscreteSF = []*graph.Value{o.B.SF} }, graph.ErrUsage, "sfb: "},
		"ragged K":         {func(g *graph.Graph, o *GroupedGEMM) { o.A = g.Input("a2", dtype.E4M3, 256, 40) }, graph.ErrShape, "K: "},
	} {
		g := graph.New("g")
		o := GroupedGEMM{A: g.Input("a", dtype.E4M3, 256, 64), B: Weights{Dense: g.Input("b", dtype.E4M3, 2, 32, 64), SF: g.Input("sfb", dtype.E8M0, 1024)},
			PaddedOffsets: g.Input("offsets", dtype.Int32, 2), Alignment: 128, Scales: Scales{SFA: g.Input("sfa", dtype.E8M0, 1024)}}
		c.change(g, &o)
		g.NameNext("fc2")
		o.ApplyScaled()
		err := g.Err()
		if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), `"fc2"`) && !strings.Contains(err.Error(), "grouped_gemm_quant") {
			t.Errorf("%s: got %v, want a %v error that says %q", name, err, c.kind, c.want)
		}
	}
}

// TestQuantize_Fuse: a Quantize behind a product becomes its epilogue, with the bytes of the float32 accumulator; with
// another reader, random rounding or a global scale it stays.
func TestQuantize_Fuse(t *testing.T) {
	build := func(kind string, q Quantize, second bool) (*scaledBed, Quantized, Quantized) {
		b := newScaledBed(MXFP8, 192, 96)
		o := GroupedGEMMGLU{A: b.a.Row, B: b.weights(), PaddedOffsets: b.offsets, Counts: b.counts, Prob: b.prob, Alignment: 128, Scales: Scales{SFA: b.a.RowSF}}
		p := GroupedGEMMGLU{A: b.plainA, B: Dense(b.plainW), PaddedOffsets: b.offsets, Counts: b.counts, Prob: b.prob, Alignment: 128}
		var d, plain *graph.Value
		if kind == "glu" {
			d, _ = o.Apply()
			plain, _ = p.Apply()
		} else {
			d, _ = GroupedGEMM{A: o.A, B: o.B, PaddedOffsets: o.PaddedOffsets, Counts: o.Counts, Prob: o.Prob, Alignment: 128, Scales: o.Scales}.Apply()
			plain, _ = GroupedGEMM{A: p.A, B: p.B, PaddedOffsets: o.PaddedOffsets, Counts: o.Counts, Prob: o.Prob, Alignment: 128}.Apply()
		}
		q.Axis, q.PaddedOffsets, q.Counts, q.Alignment = AlongBoth, b.offsets, b.counts, 128
		q.X = d
		fused := q.Apply()
		q.X = plain
		separate := q.Apply()
		if second {
			b.g.Output("d", d)
		}
		return b, fused, separate
	}
	for _, kind := range []string{"glu", "plain"} {
		for _, q := range []Quantize{{Format: MXFP8, DiscreteColSF: true}, {Format: MXFP8E5M2}, {Format: MXFP4}} {
			b, f, s := build(kind, q, false)
			b.sameBytes(t, kind+" "+q.Format.String(), map[string][2]*graph.Value{"row": {f.Row, s.Row}, "col": {f.Col, s.Col}, "row sf": {f.RowSF, s.RowSF}, "col sf": {f.ColSF, s.ColSF}})
			p, err := b.g.Compile(host.Device{}, graph.Options{})
			must(t, err)
			if !strings.Contains(p.String(), "\nfused ") {
				t.Errorf("%s %s: nothing fused in\n%s", kind, q.Format, p)
			}
		}
		for name, q := range map[string]Quantize{"two readers": {Format: MXFP8}, "vec": {Format: MXFP4Vec16}, "auto": {Format: NVFP4, AutoNorm: true}} {
			b, f, _ := build(kind, q, name == "two readers")
			b.g.Output("row", f.Row)
			p, err := b.g.Compile(host.Device{}, graph.Options{})
			must(t, err)
			if strings.Contains(p.String(), "\nfused ") {
				t.Errorf("%s, %s: fused in\n%s", kind, name, p)
			}
		}
	}
}

// TestScaled_Uint8: fp4 operands as plain bytes, two codes each, are what e2m1 operands are.
func TestScaled_Uint8(t *testing.T) {
	const n, k = 64, 64
	g := graph.New("g")
	codes := runQuantize(t, Quantize{Format: NVFP4}, dtype.Float32, []int{128, k}, noise(1, 128*k), nil)
	weights := runQuantize(t, Quantize{Format: NVFP4}, dtype.Float32, []int{2, n, k}, noise(2, 2*n*k), nil)
	sfa, sfb, offsets := g.Input("sfa", dtype.E4M3, len(codes.rowSF)), g.Input("sfb", dtype.E4M3, len(weights.rowSF)), g.Input("offsets", dtype.Int32, 2)
	in := map[*graph.Value]any{sfa: codes.rowSF, sfb: weights.rowSF, offsets: []int32{128, 128}}
	var outs []*graph.Value
	for _, dt := range []dtype.DType{dtype.E2M1, dtype.Uint8} {
		width := k
		if dt == dtype.Uint8 {
			width = k / 2
		}
		a, b := g.Input("a"+dt.String(), dt, 128, width), g.Input("b"+dt.String(), dt, 2, n, width)
		in[a], in[b] = codes.row, weights.row
		d := GroupedGEMM{A: a, B: Weights{Dense: b, SF: sfb}, PaddedOffsets: offsets, Alignment: 128, DType: dtype.Float32, Scales: Scales{SFA: sfa}}.ApplyScaled().D
		outs = append(outs, g.Output(dt.String(), d))
	}
	e := start(t, g, nil, in)
	must(t, e.Replay(t.Context()))
	if x, y := fetch[float32](t, e, outs[0]), fetch[float32](t, e, outs[1]); !bytes.Equal(bytesOf(x), bytesOf(y)) || x[0] == 0 {
		t.Error("bytes and codes give different products")
	}
}
