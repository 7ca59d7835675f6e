package nodes

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/host"
	"github.com/moegraph/moegraph/internal/safetensors"
)

// packedCase is a gpt-oss checkpoint with experts in MXFP4, as released files have them, and the same one with the
// experts dequantized. Codes and exponents are those of an independent description: element 2j of a row in the low
// nibble of byte j, scale 2^(s-127) for 32 elements.
func packedCase(t *testing.T) (packed, plain LoadConfig) {
	t.Helper()
	const e, h, i = 5, 64, 96
	c := newLoadCaseOf("gpt_oss", e, h, i)
	r := noise(11, 1<<16)
	var list []safetensors.Tensor
	for _, w := range []struct {
		name    string
		rows, k int
	}{{"experts.gate_up_proj", 2 * i, h}, {"experts.down_proj", h, i}} {
		blocks, scales := make([]byte, e*w.rows*w.k/2), make([]byte, e*w.rows*w.k/32)
		values := make([]float64, e*w.rows*w.k) // transposed, as the dequantized file has them: (E,k,rows)
		for j := range scales {
			scales[j] = byte(120 + int(r[j%len(r)]*100)&3)
		}
		fp4 := []float64{0, .5, 1, 1.5, 2, 3, 4, 6, 0, -.5, -1, -1.5, -2, -3, -4, -6}
		for j := range values {
			code := int(r[(7*j)%len(r)]*1000) & 15
			blocks[j/2] |= byte(code) << (4 * (j % 2))
			x, row, col := j/(w.rows*w.k), j/w.k%w.rows, j%w.k
			scale := 1.0
			for s := int(scales[j/32]); s < 127; s++ {
				scale /= 2
			}
			values[(x*w.k+col)*w.rows+row] = fp4[code] * scale
		}
		c.values[w.name] = values
		list = append(list, safetensors.Tensor{Name: c.prefix + w.name + "_blocks", DType: "U8", Shape: []int{e, w.rows, w.k / 32, 16}, Data: blocks},
			safetensors.Tensor{Name: c.prefix + w.name + "_scales", DType: "U8", Shape: []int{e, w.rows, w.k / 32}, Data: scales})
	}
	plain = c.write(t, "F32", 1)
	for _, x := range c.tensors("F32") {
		if !strings.HasSuffix(x.Name, "_proj") {
			list = append(list, x)
		}
	}
	packed = c.write(t, "F32", 1)
	must(t, safetensors.WriteFile(filepath.Join(packed.Weights, safetensors.SingleName), list, saveMetadata))
	return packed, plain
}

// TestLoadMoE_MXFP4 runs a layer on MXFP4 experts as released: outputs and gradients are those of the dequantized
// checkpoint to the bit, no workspace holds a decoded copy, an optimizer trains the rest, and Save gives the file
// back.
func TestLoadMoE_MXFP4(t *testing.T) {
	packed, plain := packedCase(t)
	const tokens, h = 40, 64
	type result struct {
		layer *LoadedMoE
		vars  *graph.Vars
		outs  map[string][]float32
		prog  *graph.Program
	}
	run := func(cfg LoadConfig, compute dtype.DType, layout Layout, train bool) result {
		cfg.Layout = layout
		vars := graph.NewVars(1)
		layer, err := LoadMoE(vars, cfg)
		must(t, err)
		t.Cleanup(func() { layer.Close() })
		layer.Compute, layer.Alignment = compute, 8
		g := graph.New("g")
		x, dy := g.Input("x", dtype.Float32, tokens, h), g.Input("dy", dtype.Float32, tokens, h)
		y, _ := layer.Layer(x)
		var wrt []*graph.Value
		for _, p := range layer.Parameters() {
			if name := p.Name(); name != "fc1" && name != "fc2" {
				wrt = append(wrt, p)
			}
		}
		gr := g.GradientsFrom([]*graph.Value{y}, []*graph.Value{dy}, append([]*graph.Value{x}, wrt...)...)
		outs := map[string]*graph.Value{"y": y, "dx": gr.Value[0]}
		for i, p := range wrt {
			outs["d "+p.Name()] = gr.Value[1+i]
		}
		for name, v := range outs {
			g.Output(name, v)
		}
		if train {
			SGD(g.GradientsFrom([]*graph.Value{y}, []*graph.Value{dy}, wrt...), SGDConfig{Rate: 0.1})
		}
		prog, err := g.Compile(host.Device{}, graph.Options{Debug: graph.Debug{Poison: true}})
		must(t, err)
		e, err := prog.Exec(vars)
		must(t, err)
		t.Cleanup(func() { e.Close() })
		must(t, e.Write(x, noise(1, tokens*h)))
		must(t, e.Write(dy, noise(2, tokens*h)))
		must(t, e.Replay(t.Context()))
		r := result{layer, vars, map[string][]float32{}, prog}
		for name, v := range outs {
			r.outs[name] = fetch[float32](t, e, v)
		}
		return r
	}
	for _, compute := range []dtype.DType{dtype.Float32, dtype.BFloat16} {
		for _, layout := range []Layout{LayoutInterleaved32, LayoutConcat, LayoutPairs} {
			got, want := run(packed, compute, layout, false), run(plain, compute, layout, false)
			if got.layer.FrozenExperts != MXFP4 || want.layer.FrozenExperts != NoBlockFormat {
				t.Fatalf("frozen experts: got %s and %s", got.layer.FrozenExperts, want.layer.FrozenExperts)
			}
			if len(got.outs) != 6 {
				t.Fatalf("got outputs %d, want y, dx and four gradients", len(got.outs))
			}
			for name, w := range want.outs {
				if !bytes.Equal(bytesOf(got.outs[name]), bytesOf(w)) {
					t.Errorf("%s, %s: %s differs from the dequantized checkpoint's", compute, layout, name)
				}
			}
			// Of 5 experts of 192 x 64 and 64 x 96 no copy in 16 bits fits beside what the program needs anyway.
			for _, s := range got.prog.Steps() {
				for _, v := range s.Out {
					if v != nil && v.Rank() == 3 {
						t.Errorf("step %q makes %s", s.Name, v.Text())
					}
				}
			}
			codes := got.vars.Lookup("fc1")
			if codes.DType() != dtype.E2M1 || codes.Bytes() != 5*192*64/2 {
				t.Errorf("fc1 is %s of %d bytes", codes.Text(), codes.Bytes())
			}
		}
	}
	r := run(packed, dtype.BFloat16, LayoutInterleaved32, true)
	path := filepath.Join(t.TempDir(), "saved.safetensors")
	must(t, r.layer.Save(path))
	was, err := safetensors.Open(filepath.Join(packed.Weights, safetensors.SingleName))
	must(t, err)
	defer was.Close()
	now, err := safetensors.Open(path)
	must(t, err)
	defer now.Close()
	if fmt.Sprint(was.Names()) != fmt.Sprint(now.Names()) {
		t.Fatalf("saved %v, want %v", now.Names(), was.Names())
	}
	for _, name := range was.Names() {
		a, _ := was.Tensor(name)
		b, _ := now.Tensor(name)
		frozen := strings.HasSuffix(name, "_blocks") || strings.HasSuffix(name, "_scales")
		if a.DType != b.DType || fmt.Sprint(a.Shape) != fmt.Sprint(b.Shape) || bytes.Equal(a.Data, b.Data) != frozen {
			t.Errorf("%s: %s %v, same bytes %v, want %s %v, same bytes %v", name, b.DType, b.Shape, bytes.Equal(a.Data, b.Data), a.DType, a.Shape, frozen)
		}
	}
}

// TestWeightOnly_Refuses: weight-only operands without factors, beside f64, or given as other scales.
func TestWeightOnly_Refuses(t *testing.T) {
	for name, c := range map[string]struct {
		dt   dtype.DType
		w    func(g *graph.Graph) Weights
		want string
	}{
		"no factors": {dtype.BFloat16, func(g *graph.Graph) Weights {
			return Weights{Dense: g.Input("b", dtype.E2M1, 2, 32, 64), WeightOnly: MXFP4}
		}, "sfb"},
		"f64": {dtype.Float64, func(g *graph.Graph) Weights {
			return Weights{Dense: g.Input("b", dtype.E2M1, 2, 32, 64), SF: g.Input("sf", dtype.E8M0, 1024), WeightOnly: MXFP4}
		}, "a: "},
		"other codes": {dtype.BFloat16, func(g *graph.Graph) Weights {
			return Weights{Dense: g.Input("b", dtype.E4M3, 2, 32, 64), SF: g.Input("sf", dtype.E8M0, 1024), WeightOnly: MXFP4}
		}, "b: "},
		"short factors": {dtype.BFloat16, func(g *graph.Graph) Weights {
			return Weights{Dense: g.Input("b", dtype.E2M1, 2, 32, 64), SF: g.Input("sf", dtype.E8M0, 512), WeightOnly: MXFP4}
		}, "sfb: "},
		"quantized a": {dtype.E2M1, func(g *graph.Graph) Weights {
			return Weights{Dense: g.Input("b", dtype.E2M1, 2, 32, 64), SF: g.Input("sf", dtype.E8M0, 1024), WeightOnly: MXFP4}
		}, "weight-only"},
	} {
		g := graph.New("g")
		GroupedGEMM{A: g.Input("a", c.dt, 256, 64), B: c.w(g), PaddedOffsets: g.Input("offsets", dtype.Int32, 2), Alignment: 128}.Apply()
		if err := g.Err(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got error %v, want one that names %q", name, err, c.want)
		}
	}
}
