package nodes

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// allBlockFormats are the five families.
var allBlockFormats = []BlockFormat{MXFP8, MXFP8E5M2, MXFP4, MXFP4Vec16, NVFP4}

// valuesOf lists the finite magnitudes of a narrow format in rising order, straight from the definition.
func valuesOf(dt dtype.DType) []float64 {
	var manBits, bias, top int
	switch dt {
	case dtype.E4M3:
		manBits, bias, top = 3, 7, 126
	case dtype.E5M2:
		manBits, bias, top = 2, 15, 123
	case dtype.E2M1:
		manBits, bias, top = 1, 1, 7
	}
	var vs []float64
	for code := 0; code <= top; code++ {
		exp, man := code>>manBits, code&(1<<manBits-1)
		if exp == 0 {
			vs = append(vs, math.Ldexp(float64(man), 1-bias-manBits))
		} else {
			vs = append(vs, math.Ldexp(float64(man+1<<manBits), exp-bias-manBits))
		}
	}
	return vs
}

// nearestCode is encoding by search: the nearest value, of two the one with the even code, saturating.
func nearestCode(vs []float64, x float64) int {
	x = math.Abs(x)
	best := 0
	for code, v := range vs {
		d, old := math.Abs(v-x), math.Abs(vs[best]-x)
		if d < old || d == old && code%2 == 0 {
			best = code
		}
	}
	if x > vs[len(vs)-1] {
		best = len(vs) - 1
	}
	return best
}

// f32 rounds an exact number to float32 by math/big: to nearest even, subnormals too, Inf past the range.
func asF32(x *big.Float) float32 {
	v, _ := x.Float32()
	return v
}

func exactly(x float32) *big.Float { return new(big.Float).SetPrec(400).SetFloat64(float64(x)) }

func bigProduct(x, y float32) float32 {
	if math.IsNaN(float64(x)) || math.IsNaN(float64(y)) || math.IsInf(float64(x), 0) || math.IsInf(float64(y), 0) {
		return float32(float64(x) * float64(y)) // exact or not finite
	}
	if x == 0 || y == 0 {
		return float32(float64(x) * float64(y))
	}
	return asF32(new(big.Float).SetPrec(400).Mul(exactly(x), exactly(y)))
}

func bigQuotient(x, y float32) float32 {
	if y == 0 || math.IsInf(float64(y), 0) || math.IsNaN(float64(y)) {
		return float32(float64(x) / float64(y))
	}
	return asF32(new(big.Float).SetPrec(400).Quo(exactly(x), exactly(y)))
}

// refFactor is the formula of contracts, section 7, in numbers of any precision rounded step by step: the factor's
// code and what elements are multiplied by.
func refFactor(f BlockFormat, top, norm float32) (code uint8, s float32) {
	vs := valuesOf(f.Values())
	t := bigProduct(bigProduct(top, norm), bigQuotient(1, float32(vs[len(vs)-1])))
	var decoded float32
	if f.Factor() == dtype.E8M0 {
		switch {
		case t != t:
			code = 255
		default:
			if t > 0 { // a lower bound: the power of two at or below t
				_, exp := math.Frexp(float64(t))
				code = uint8(min(max(exp-1+127, 0), 254))
			}
			for code < 254 && math.Ldexp(1, int(code)-127) < float64(t) {
				code++
			}
		}
		decoded = float32(math.Ldexp(1, int(code)-127))
	} else {
		codes := valuesOf(dtype.E4M3)
		if t != t {
			code = 127
		} else {
			code = uint8(nearestCode(codes, float64(t)))
			decoded = float32(codes[code])
		}
	}
	if t != t {
		return code, t
	}
	s = bigProduct(norm, bigQuotient(1, decoded))
	if float64(s) > math.MaxFloat32 {
		s = math.MaxFloat32
	}
	return code, s
}

// refCode encodes x*s, not for NaN.
func refCode(f BlockFormat, x, s float32) uint8 {
	p := bigProduct(x, s)
	code := uint8(nearestCode(valuesOf(f.Values()), float64(p)))
	if math.Signbit(float64(p)) {
		code |= map[bool]uint8{true: 8, false: 128}[f.Values() == dtype.E2M1]
	}
	return code
}

// quantized runs Quantize once on (rows,cols) data and returns plain row-major codes and factors of both axes.
type quantized struct {
	row, rowSF, col, colSF []byte
	scale                  []float32
}

func runQuantize(t testing.TB, o Quantize, dt dtype.DType, shape []int, data any, extra map[string]any) quantized {
	t.Helper()
	g := graph.New("g")
	o.X = g.Input("x", dt, shape...)
	in := map[*graph.Value]any{o.X: data}
	add := func(name string, to **graph.Value, dt dtype.DType) {
		if d, ok := extra[name]; ok {
			n := 0
			switch d := d.(type) {
			case []float32:
				n = len(d)
			case []int32:
				n = len(d)
			case []uint64:
				n = len(d)
			}
			*to = g.Input(name, dt, n)
			in[*to] = d
		}
	}
	add("norm_const", &o.NormConst, dtype.Float32)
	add("global_scale", &o.GlobalScale, dtype.Float32)
	add("padded_offsets", &o.PaddedOffsets, dtype.Int32)
	add("counts", &o.Counts, dtype.Int32)
	add("draw", &o.Draw, dtype.Uint64)
	q := o.Apply()
	must(t, g.Err())
	var out quantized
	for i, v := range []*graph.Value{q.Row, q.RowSF, q.Col, q.ColSF, q.GlobalScale} {
		if v != nil {
			g.Output(fmt.Sprint(i), v)
		}
	}
	e := start(t, g, nil, in)
	must(t, e.Replay(t.Context()))
	read := func(v *graph.Value) []byte {
		if v == nil {
			return nil
		}
		b := make([]byte, v.Bytes())
		_, err := e.Read(v, b)
		must(t, err)
		return b
	}
	out.row, out.rowSF, out.col, out.colSF = read(q.Row), read(q.RowSF), read(q.Col), read(q.ColSF)
	if q.GlobalScale != nil {
		out.scale = fetch[float32](t, e, q.GlobalScale)
	}
	return out
}

func codeAt(f BlockFormat, codes []byte, i int) uint8 {
	if f.Values() == dtype.E2M1 {
		return codes[i/2] >> (4 * (i % 2)) & 15
	}
	return codes[i]
}

// TestQuantize_EveryBF16AsMaximum makes every finite bf16 magnitude the largest of a block, with smaller elements
// beside it, and compares every byte, along rows and columns, with the formula in exact arithmetic.
func TestQuantize_EveryBF16AsMaximum(t *testing.T) {
	const blocks = 0x7f80
	for _, f := range allBlockFormats {
		for _, norm := range []float32{1, 0.75} {
			vec := f.Vec()
			x := make([]float32, blocks*vec)
			r := rand.New(rand.NewPCG(1, uint64(f)))
			for b := range blocks {
				top := dtype.BF16Decode(uint16(b))
				x[b*vec+b%vec] = top
				for j := range 3 { // others take part of the range, exact in float32
					at := b*vec + (b+1+j)%vec
					x[at] = top * float32(r.Float64()*2-1)
				}
			}
			got := runQuantize(t, Quantize{Format: f, Axis: AlongRow}, dtype.Float32, []int{blocks / 8, 8 * vec}, x, map[string]any{"norm_const": []float32{norm}})
			layout := dtype.FactorLayout{Rows: blocks / 8, Cols: 8, Batches: 1}
			for b := range blocks {
				code, s := refFactor(f, dtype.BF16Decode(uint16(b)), norm)
				if g := got.rowSF[layout.Index(0, b/8, b%8)]; g != code {
					t.Fatalf("%s, norm %v, maximum %v: factor %#x, want %#x", f, norm, dtype.BF16Decode(uint16(b)), g, code)
				}
				for j := range 4 {
					at := b*vec + (b+j)%vec
					if g, want := codeAt(f, got.row, at), refCode(f, x[at], s); g != want {
						t.Fatalf("%s, norm %v, maximum %v, element %v: code %#x, want %#x", f, norm, dtype.BF16Decode(uint16(b)), x[at], g, want)
					}
				}
			}
			// The transpose quantized down its columns has the same codes and factors.
			tall := make([]float32, len(x))
			width := blocks / 8
			for i, v := range x {
				tall[i%(8*vec)*width+i/(8*vec)] = v
			}
			down := runQuantize(t, Quantize{Format: f, Axis: AlongCol, TransposeCol: true}, dtype.Float32, []int{8 * vec, width}, tall, map[string]any{"norm_const": []float32{norm}})
			if string(down.col) != string(got.row) || string(down.colSF) != string(got.rowSF) {
				t.Errorf("%s, norm %v: columns of the transpose differ from rows", f, norm)
			}
		}
	}
}

// TestDequantize_EveryCodeAndFactor decodes every code with every factor and compares with exact products.
func TestDequantize_EveryCodeAndFactor(t *testing.T) {
	for _, f := range allBlockFormats {
		n := 256
		if f.Values() == dtype.E2M1 {
			n = 16
		}
		vec := f.Vec()
		cols := (n + vec - 1) / vec * vec
		layout := dtype.FactorLayout{Rows: 256, Cols: cols / vec, Batches: 1}
		sf, codes := make([]byte, layout.Bytes()), make([]byte, f.Values().Bytes(256*cols))
		for r := range 256 {
			for c := range cols / vec {
				sf[layout.Index(0, r, c)] = byte(r)
			}
			for j := range cols {
				if i := r*cols + j; n == 16 {
					codes[i/2] |= byte(j%16) << (4 * (i % 2))
				} else {
					codes[i] = byte(j)
				}
			}
		}
		g := graph.New("g")
		x, s := g.Input("x", f.Values(), 256, cols), g.Input("sf", f.Factor(), len(sf))
		y := g.Output("y", Dequantize{X: x, SF: s, Format: f}.Apply())
		e := start(t, g, nil, map[*graph.Value]any{x: codes, s: sf})
		must(t, e.Replay(t.Context()))
		vs, factors := valuesOf(f.Values()), valuesOf(dtype.E4M3)
		for i, got := range fetch[float32](t, e, y) {
			factor, code := i/cols, int(codeAt(f, codes, i))
			sign := code >= n/2
			mag := code % (n / 2)
			want := math.NaN()
			if mag < len(vs) {
				want = vs[mag]
			} else if f == MXFP8E5M2 && mag == 0x7c {
				want = math.Inf(1)
			}
			if sign {
				want = -want
			}
			switch {
			case f.Factor() == dtype.E8M0 && factor == 255:
				want = math.NaN()
			case f.Factor() == dtype.E8M0:
				want *= math.Ldexp(1, factor-127)
			case factor%128 == 127:
				want = math.NaN()
			case factor >= 128:
				want *= -factors[factor-128]
			default:
				want *= factors[factor]
			}
			if want != want && got != got {
				continue
			}
			// The product is exact in float32, or beyond its range.
			if math.Float32bits(float32(want)) != math.Float32bits(got) || !math.IsInf(float64(got), 0) && float64(got) != want {
				t.Fatalf("%s: code %#x, factor %#x: got %v, want %v", f, code, factor, got, want)
			}
		}
	}
}

// TestQuantize_StraightThrough: the gradient of x is what arrives at the row codes.
func TestQuantize_StraightThrough(t *testing.T) {
	g, vars := graph.New("g"), graph.NewVars(1)
	x := vars.Param("x", 128, 64)
	q := Quantize{X: g.Use(x), Format: MXFP8, Axis: AlongBoth}.Apply()
	seed := g.Input("seed", dtype.Float32, 128, 64)
	gr := g.GradientsFrom([]*graph.Value{q.Row}, []*graph.Value{seed}, x)
	g.Output("dx", gr.Value[0])
	want := noise(1, 128*64)
	e := start(t, g, vars, map[*graph.Value]any{seed: want})
	must(t, e.Replay(t.Context()))
	for i, v := range fetch[float32](t, e, gr.Value[0]) {
		if v != want[i] {
			t.Fatalf("element %d: got %v, want %v", i, v, want[i])
		}
	}
	g = graph.New("g")
	q = Quantize{X: g.Use(x), Format: MXFP8, Axis: AlongCol}.Apply()
	g.GradientsFrom([]*graph.Value{q.Col}, []*graph.Value{g.Input("seed", dtype.Float32, 128, 64)}, x)
	if err := g.Err(); !errors.Is(err, graph.ErrUnsupported) || !strings.Contains(err.Error(), "x_col") {
		t.Errorf("a gradient of the column codes: got %v", err)
	}
}

// TestQuantize_Stochastic: codes are neighbours of the value, the mean over draws is the value, the same draw gives
// the same codes, and factors are those of rounding to nearest.
func TestQuantize_Stochastic(t *testing.T) {
	const rows, cols, draws = 16, 64, 100
	x := noise(3, rows*cols)
	for _, f := range []BlockFormat{MXFP8, MXFP8E5M2, NVFP4} {
		nearest := runQuantize(t, Quantize{Format: f, Axis: AlongBoth}, dtype.Float32, []int{rows, cols}, x, nil)
		layout := dtype.FactorLayout{Rows: rows, Cols: cols / f.Vec(), Batches: 1}
		sum, vs := make([]float64, len(x)), valuesOf(f.Values())
		g := graph.New("g")
		in, draw := g.Input("x", dtype.Float32, rows, cols), g.Input("draw", dtype.Uint64, 2)
		q := Quantize{X: in, Draw: draw, Format: f, Axis: AlongBoth}.Apply()
		g.Output("row", q.Row)
		g.Output("sf", q.RowSF)
		g.Output("col", q.Col)
		d := []uint64{5, 0}
		e := start(t, g, nil, map[*graph.Value]any{in: x, draw: d})
		row, sf, first := make([]byte, q.Row.Bytes()), make([]byte, q.RowSF.Bytes()), ""
		for n := range draws {
			d[1] = uint64(n)
			must(t, e.Replay(t.Context()))
			_, err := e.Read(q.Row, row)
			must(t, err)
			_, err = e.Read(q.RowSF, sf)
			must(t, err)
			if string(sf) != string(nearest.rowSF) {
				t.Fatalf("%s: factors depend on the draw", f)
			}
			if n == 0 {
				first = string(row)
			}
			for i, v := range x {
				s := 1 / factorValue(f, sf[layout.Index(0, i/cols, i%cols/f.Vec())])
				code := codeAt(f, row, i)
				sign := map[bool]uint8{true: 8, false: 128}[f.Values() == dtype.E2M1]
				got := vs[code&^sign]
				exact := math.Abs(float64(v * s))
				lo := nearestBelow(vs, exact)
				if got != vs[lo] && (lo+1 >= len(vs) || got != vs[lo+1]) {
					t.Fatalf("%s: element %v: got %v, no neighbour of %v", f, v, got, exact)
				}
				sum[i] += got / float64(s)
			}
		}
		d[1] = 0
		must(t, e.Replay(t.Context()))
		_, err := e.Read(q.Row, row)
		must(t, err)
		if string(row) != first {
			t.Errorf("%s: the same draw gives other codes", f)
		}
		var bias, norm float64
		for i, v := range x {
			bias += sum[i]/draws - math.Abs(float64(v))
			norm += math.Abs(float64(v))
		}
		if math.Abs(bias) > 4e-3*norm {
			t.Errorf("%s: the mean is off by %g of the magnitude", f, bias/norm)
		}
	}
}

func factorValue(f BlockFormat, code byte) float32 {
	if f.Factor() == dtype.E8M0 {
		return float32(math.Ldexp(1, int(code)-127))
	}
	return float32(valuesOf(dtype.E4M3)[code])
}

func nearestBelow(vs []float64, x float64) int {
	at := 0
	for i, v := range vs {
		if v <= x {
			at = i
		}
	}
	return at
}
