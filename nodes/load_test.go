package nodes

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/golden"
	"github.com/moegraph/moegraph/internal/host"
	"github.com/moegraph/moegraph/internal/npz"
	"github.com/moegraph/moegraph/internal/safetensors"
)

// TestLoadMoE_Layers compares with what the models' own code computes, and saves every file back as it was.
func TestLoadMoE_Layers(t *testing.T) {
	dir := golden.Require(t, "layers")
	files, err := filepath.Glob(filepath.Join(dir, "*.io.npz"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no layers in %s (%v)", dir, err)
	}
	for _, file := range files {
		stem := strings.TrimSuffix(file, ".io.npz")
		t.Run(filepath.Base(stem), func(t *testing.T) {
			io := map[string][]float64{}
			var idx []byte
			arrays, err := npz.Options{}.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range arrays {
				if a.Name == "topk_idx" {
					idx = a.Data
					continue
				}
				io[a.Name] = make([]float64, a.Len())
				if err := dtype.Float64s(dtype.Float32, io[a.Name], a.Data); err != nil {
					t.Fatal(err)
				}
			}
			for _, layout := range []Layout{LayoutInterleaved32, LayoutConcat, LayoutPairs} {
				r := newLoadRun(t, LoadConfig{Weights: stem + ".safetensors", Config: stem + ".json", Layout: layout}, io["x"], io["dy"])
				got := make([]int32, r.idx.Elems())
				if _, err := r.exec.Read(r.idx, got); err != nil {
					t.Fatal(err)
				}
				checkSameChoice(t, got, idx, r.idx.Dim(1), r.tokens)
				loadNear(t, "y", r.read(t, r.y), io["y"], 1e-5)
				loadNear(t, "dx", r.read(t, r.dx), io["dx"], 1e-5)
				grads, want := r.gradients(t), loadTensors(t, stem+".grads.safetensors")
				for name := range want {
					loadNear(t, name, grads[name], want[name], 1e-5)
				}
				if len(grads) != len(want) {
					t.Errorf("got %d gradients, want %d", len(grads), len(want))
				}
				saved := filepath.Join(t.TempDir(), "saved.safetensors")
				if err := r.layer.Save(saved); err != nil {
					t.Fatal(err)
				}
				checkSameTensors(t, saved, stem+".safetensors")
			}
		})
	}
}

// checkSameChoice compares experts per token as sets: the models' code does not promise an order of slots.
func checkSameChoice(t *testing.T, got []int32, raw []byte, k, tokens int) {
	t.Helper()
	size := len(raw) / (tokens * k)
	for tok := range tokens {
		want := make([]int32, k)
		for s := range want {
			want[s] = int32(raw[(tok*k+s)*size])
		}
		have := slices.Clone(got[tok*k : (tok+1)*k])
		slices.Sort(want)
		slices.Sort(have)
		if !slices.Equal(have, want) {
			t.Errorf("experts of token %d: got %v, want %v", tok, have, want)
		}
	}
}

// checkSameTensors wants the same names, shapes, formats and bytes.
func checkSameTensors(t *testing.T, got, want string) {
	t.Helper()
	a, err := safetensors.Open(got)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b, err := safetensors.Open(want)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if !slices.Equal(a.Names(), b.Names()) {
		t.Fatalf("names: got %v, want %v", a.Names(), b.Names())
	}
	for _, name := range b.Names() {
		x, _ := a.Tensor(name)
		y, _ := b.Tensor(name)
		if x.DType != y.DType || !slices.Equal(x.Shape, y.Shape) || !bytes.Equal(x.Data, y.Data) {
			t.Errorf("tensor %s: got %s %v, other bytes or shape than %s %v", name, x.DType, x.Shape, y.DType, y.Shape)
		}
	}
}

// TestLoadMoE_Formats keeps 16-bit files in their own format or in float32, and saves both as they were.
func TestLoadMoE_Formats(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	x, dy := loadNormals(r, 5*loadH), loadNormals(r, 5*loadH)
	for model := range loadModels {
		for _, f := range []struct {
			file   string
			params dtype.DType
		}{{"BF16", 0}, {"BF16", dtype.BFloat16}, {"F16", 0}, {"F16", dtype.Float16}, {"F32", dtype.BFloat16}} {
			c := newLoadCase(model)
			cfg := c.write(t, f.file, 1)
			cfg.Params = f.params
			run := newLoadRun(t, cfg, x, dy)
			what := fmt.Sprintf("%s from %s in %s", model, f.file, f.params)
			for _, p := range run.layer.Parameters() {
				want := f.params
				if want == dtype.Invalid {
					want = dtype.Float32
				}
				if p.DType() != want {
					t.Errorf("%s: %s", what, p)
				}
			}
			loadNear(t, what, run.read(t, run.y), c.forward(x), 1e-6)
			saved := filepath.Join(t.TempDir(), "saved.safetensors")
			if err := run.layer.Save(saved); err != nil {
				t.Fatal(err)
			}
			checkSameTensors(t, saved, filepath.Join(cfg.Weights, safetensors.SingleName))
		}
	}
}

// TestLoadMoE_Update saves what a variable was set to, before and after an Exec has bound to it.
func TestLoadMoE_Update(t *testing.T) {
	for _, model := range []string{"mixtral", "gpt_oss"} {
		c := newLoadCase(model)
		cfg := c.write(t, "F32", 1)
		vars := graph.NewVars(1)
		layer, err := LoadMoE(vars, cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer layer.Close()
		name := c.prefix + "gate.weight"
		if model == "gpt_oss" {
			name = c.prefix + "router.weight"
		}
		path := filepath.Join(cfg.Weights, safetensors.SingleName) // the file that is mapped
		value := make([]float32, loadE*loadH)
		for i := range value {
			value[i] = float32(i)
		}
		if err := vars.Write(vars.Lookup("router"), value); err != nil {
			t.Fatal(err)
		}
		if err := layer.Save(path); err != nil {
			t.Fatal(err)
		}
		got := loadTensors(t, path)
		for n, v := range c.values {
			if c.prefix+n != name && !slices.Equal(got[c.prefix+n], v) {
				t.Errorf("%s changed", n)
			}
		}
		for i, v := range got[name] {
			if v != float64(i) {
				t.Fatalf("%s: got %v at %d", name, v, i)
			}
		}
	}
}

// TestLoadMoE_Layer finds a layer among others, whatever stands before its name.
func TestLoadMoE_Layer(t *testing.T) {
	for _, prefix := range []string{"model.layers.12.mlp.", "layers.12.mlp.", "language_model.model.layers.12.mlp."} {
		c := newLoadCase("olmoe")
		other := newLoadCase("olmoe")
		c.prefix = prefix
		other.prefix = strings.Replace(prefix, "12", "2", 1)
		cfg := c.write(t, "F32", 1)
		list := append(c.tensors("F32"), other.tensors("F32")...)
		list = append(list, safetensors.Tensor{Name: "model.layers.12.input_layernorm.weight", DType: "I64", Shape: []int{1}, Data: make([]byte, 8)})
		if err := safetensors.WriteFile(filepath.Join(cfg.Weights, safetensors.SingleName), list, nil); err != nil {
			t.Fatal(err)
		}
		cfg.Layer = 12
		layer, err := LoadMoE(graph.NewVars(1), cfg)
		if err != nil {
			t.Fatal(err)
		}
		if layer.Prefix != prefix {
			t.Errorf("prefix: got %q, want %q", layer.Prefix, prefix)
		}
		layer.Close()
	}
}

// TestLoadMoE_Memory measures what loading allocates: the variables once, and little else.
func TestLoadMoE_Memory(t *testing.T) {
	for _, model := range []string{"qwen3_moe", "gpt_oss"} {
		cfg := newLoadCaseOf(model, 8, 256, 128).write(t, "F32", 1)
		vars := graph.NewVars(1)
		var layer *LoadedMoE
		var err error
		loading := allocated(func() { layer, err = LoadMoE(vars, cfg) })
		if err != nil {
			t.Fatal(err)
		}
		defer layer.Close()
		var size uint64
		for _, p := range layer.Parameters() {
			size += uint64(p.Bytes())
		}
		if loading > size/16 {
			t.Errorf("%s: LoadMoE allocated %d bytes for parameters of %d", model, loading, size)
		}
		g := graph.New("memory")
		for _, p := range layer.Parameters() {
			g.Output(p.Name(), g.Use(p))
		}
		prog, err := g.Compile(host.Device{}, graph.Options{})
		if err != nil {
			t.Fatal(err)
		}
		binding := allocated(func() { _, err = prog.Exec(vars) })
		if err != nil {
			t.Fatal(err)
		}
		if binding < size || binding > size+size/4 {
			t.Errorf("%s: Exec allocated %d bytes for parameters of %d", model, binding, size)
		}
	}
}

func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// TestLoadPart_Covers moves every part of every block in and back: a block is covered once, a tensor comes back.
func TestLoadPart_Covers(t *testing.T) {
	for model := range loadModels {
		for _, layout := range []Layout{LayoutInterleaved32, LayoutConcat, LayoutPairs} {
			cfg := newLoadCase(model).write(t, "F32", 1)
			cfg.Layout = layout
			layer, err := LoadMoE(graph.NewVars(1), cfg)
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range layer.params {
				for i, parts := range p.blocks {
					rows := make([]int, p.rows)
					for _, part := range parts {
						for r := range part.rows {
							if part.row != nil {
								r = part.row(r)
							}
							rows[r]++
						}
					}
					if slices.Min(rows) != 1 || slices.Max(rows) != 1 {
						t.Errorf("%s %s block %d: rows are covered %v times", model, p.name, i, rows)
					}
				}
			}
			layer.Close()
		}
	}
}
