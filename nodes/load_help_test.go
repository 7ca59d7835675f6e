package nodes

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/host"
	"github.com/moegraph/moegraph/internal/safetensors"
)

// loadCase is a small checkpoint made here.
type loadCase struct {
	config  map[string]any
	prefix  string
	shapes  map[string][]int
	values  map[string][]float64 // exact in bf16
	formats map[string]string    // of tensors that are not in the case's format
}

// The sizes of most cases: no two are alike.
const (
	loadE, loadK, loadH, loadI = 6, 3, 48, 64
	loadShared                 = 2 // shared experts of deepseek_v3
)

// loadModels are the configurations of the cases: what the model's class needs, without the rest.
var loadModels = map[string]map[string]any{
	"mixtral":   {"num_local_experts": loadE, "intermediate_size": loadI},
	"qwen3_moe": {"num_experts": loadE, "moe_intermediate_size": loadI, "intermediate_size": 7, "norm_topk_prob": true},
	"olmoe":     {"num_experts": loadE, "intermediate_size": loadI, "norm_topk_prob": false},
	"gpt_oss":   {"num_local_experts": loadE, "intermediate_size": loadI, "swiglu_limit": 1.5},
	"deepseek_v3": {"n_routed_experts": loadE, "moe_intermediate_size": loadI, "norm_topk_prob": true, "n_group": 1, "topk_group": 1,
		"routed_scaling_factor": 2.5, "n_shared_experts": loadShared, "scoring_func": "sigmoid", "topk_method": "noaux_tc"},
}

func newLoadCase(model string) *loadCase { return newLoadCaseOf(model, loadE, loadH, loadI) }

func newLoadCaseOf(model string, numExperts, hidden, width int) *loadCase {
	c := &loadCase{config: maps.Clone(loadModels[model]), prefix: "model.layers.0.mlp.", shapes: map[string][]int{},
		values: map[string][]float64{}, formats: map[string]string{}}
	maps.Copy(c.config, map[string]any{"model_type": model, "hidden_size": hidden, "num_experts_per_tok": loadK, "hidden_act": "silu"})
	for _, key := range []string{"num_local_experts", "num_experts", "n_routed_experts"} {
		if _, ok := c.config[key]; ok {
			c.config[key] = numExperts
		}
	}
	for _, key := range []string{"moe_intermediate_size", "intermediate_size"} { // the first that there is
		if _, ok := c.config[key]; ok {
			c.config[key] = width
			break
		}
	}
	mlp := func(of, gate, up, down string, i int) {
		c.shapes[of+gate+".weight"] = []int{i, hidden}
		c.shapes[of+up+".weight"] = []int{i, hidden}
		c.shapes[of+down+".weight"] = []int{hidden, i}
	}
	c.shapes["gate.weight"] = []int{numExperts, hidden}
	for e := range numExperts {
		of := fmt.Sprintf("experts.%d.", e)
		switch model {
		case "mixtral":
			c.prefix = "model.layers.0.block_sparse_moe."
			mlp(of, "w1", "w3", "w2", width)
		case "gpt_oss":
		default:
			mlp(of, "gate_proj", "up_proj", "down_proj", width)
		}
	}
	switch model {
	case "deepseek_v3":
		c.shapes["gate.e_score_correction_bias"] = []int{numExperts}
		c.formats["gate.e_score_correction_bias"] = "F32"
		mlp("shared_experts.", "gate_proj", "up_proj", "down_proj", loadShared*width)
	case "gpt_oss":
		c.shapes = map[string][]int{"router.weight": {numExperts, hidden}, "router.bias": {numExperts},
			"experts.gate_up_proj": {numExperts, hidden, 2 * width}, "experts.gate_up_proj_bias": {numExperts, 2 * width},
			"experts.down_proj": {numExperts, width, hidden}, "experts.down_proj_bias": {numExperts, hidden}}
	}
	r := rand.New(rand.NewPCG(7, uint64(len(model))))
	for _, name := range slices.Sorted(maps.Keys(c.shapes)) {
		n := 1
		for _, d := range c.shapes[name] {
			n *= d
		}
		v := make([]float64, n)
		for i := range v { // 128ths from -1/2 to 1/2: exact in bf16 and f16
			v[i] = float64(r.IntN(129)-64) / 128
		}
		c.values[name] = v
	}
	return c
}

// tensors are the case's tensors in a format.
func (c *loadCase) tensors(format string) []safetensors.Tensor {
	var list []safetensors.Tensor
	for _, name := range slices.Sorted(maps.Keys(c.shapes)) {
		f := format
		if own, ok := c.formats[name]; ok {
			f = own
		}
		dt := loadFormats[f]
		data := make([]byte, dt.Bytes(len(c.values[name])))
		narrow := make([]float32, len(c.values[name]))
		for i, v := range c.values[name] {
			narrow[i] = float32(v)
		}
		if err := dtype.Encode(dt, data, narrow); err != nil {
			panic(err)
		}
		list = append(list, safetensors.Tensor{Name: c.prefix + name, DType: f, Shape: c.shapes[name], Data: data})
	}
	return list
}

// write puts the checkpoint and its configuration into a new folder, the tensors in the given number of shards.
func (c *loadCase) write(t *testing.T, format string, shards int) LoadConfig {
	t.Helper()
	dir := t.TempDir()
	list := c.tensors(format)
	cfg := LoadConfig{Weights: dir}
	config, err := json.Marshal(c.config)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "config.json"), config, 0o666)
	}
	index := map[string]string{}
	for s := 0; s < shards && err == nil; s++ {
		name := "model.safetensors"
		if shards > 1 {
			name = fmt.Sprintf("model-%05d-of-%05d.safetensors", s+1, shards)
		}
		var share []safetensors.Tensor
		for i, x := range list {
			if i%shards == s {
				share = append(share, x)
				index[x.Name] = name
			}
		}
		err = safetensors.WriteFile(filepath.Join(dir, name), share, map[string]string{"format": "pt"})
	}
	if shards > 1 && err == nil {
		var raw []byte
		raw, err = json.Marshal(map[string]any{"metadata": map[string]any{"total_size": 1}, "weight_map": index})
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, safetensors.IndexName), raw, 0o666)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// loadRun is a program of a loaded layer, forward and backward.
type loadRun struct {
	layer      *LoadedMoE
	exec       *graph.Exec
	y, dx, idx *graph.Value
	grads      *graph.Grads
	tokens     int
}

// newLoadRun loads and runs a layer.
func newLoadRun(t *testing.T, cfg LoadConfig, x, dy []float64) *loadRun {
	t.Helper()
	vars := graph.NewVars(1).Scope("layer")
	layer, err := LoadMoE(vars, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := layer.Close(); err != nil {
			t.Error(err)
		}
	})
	g := graph.New("load")
	r := &loadRun{layer: layer, tokens: len(x) / layer.Hidden}
	in := g.Input("x", dtype.Float32, graph.UpTo(r.tokens+3), layer.Hidden)
	seed := g.Input("dy", dtype.Float32, graph.UpTo(r.tokens+3), layer.Hidden)
	y, aux := layer.Layer(in)
	r.y, r.idx = g.Output("y", y), g.Output("idx", aux.TopKIdx)
	r.grads = g.GradientsFrom([]*graph.Value{y}, []*graph.Value{seed}, append([]*graph.Value{in}, layer.Parameters()...)...)
	for i, v := range r.grads.Value {
		g.Output(fmt.Sprintf("grad%d", i), v)
	}
	r.dx = r.grads.Value[0]
	prog, err := g.Compile(host.Device{}, graph.Options{Debug: graph.Debug{Poison: true, Offsets: true}})
	if err != nil {
		t.Fatal(err)
	}
	if r.exec, err = prog.Exec(vars); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.exec.Close() })
	for v, data := range map[*graph.Value][]float64{in: x, seed: dy} {
		if err := r.exec.Write(v, data); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.exec.Replay(context.Background()); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *loadRun) read(t *testing.T, v *graph.Value) []float64 {
	t.Helper()
	out := make([]float64, v.Elems())
	rows, err := r.exec.Read(v, out)
	if err != nil {
		t.Fatal(err)
	}
	return out[:rows*v.Elems()/max(v.Dim(0), 1)]
}

// gradients saves the gradients and reads the file: tensors by their names.
func (r *loadRun) gradients(t *testing.T) map[string][]float64 {
	t.Helper()
	path := filepath.Join(t.TempDir(), "grads.safetensors")
	if err := r.layer.SaveGradients(path, r.exec, r.grads); err != nil {
		t.Fatal(err)
	}
	return loadTensors(t, path)
}

// loadTensors reads all tensors of a file.
func loadTensors(t *testing.T, path string) map[string][]float64 {
	t.Helper()
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	out := map[string][]float64{}
	for _, name := range f.Names() {
		x, _ := f.Tensor(name)
		dt := loadFormats[x.DType]
		out[name] = make([]float64, len(x.Data)/dt.Bytes(1))
		if err := dtype.Float64s(dt, out[name], x.Data); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// loadDistance is the relative Frobenius error.
func loadDistance(got, want []float64) float64 {
	if len(got) != len(want) {
		return math.Inf(1)
	}
	var diff, norm float64
	for i := range want {
		diff += (got[i] - want[i]) * (got[i] - want[i])
		norm += want[i] * want[i]
	}
	if norm == 0 {
		return math.Sqrt(diff)
	}
	return math.Sqrt(diff / norm)
}

func loadNear(t *testing.T, what string, got, want []float64, limit float64) {
	t.Helper()
	if d := loadDistance(got, want); !(d <= limit) {
		t.Errorf("%s: relative error %.2g, want at most %.2g", what, d, limit)
	}
}
