package nodes

import (
	"encoding/json"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/host"
	"github.com/moegraph/moegraph/internal/safetensors"
)

// TestLoadMoE_Refuses wants an error that names what is wrong and what is wanted, and no variables.
func TestLoadMoE_Refuses(t *testing.T) {
	type change func(c *loadCase, cfg *LoadConfig)
	set := func(key string, value any) change {
		return func(c *loadCase, cfg *LoadConfig) { c.config[key] = value }
	}
	drop := func(key string) change {
		return func(c *loadCase, cfg *LoadConfig) { delete(c.config, key) }
	}
	for _, x := range []struct {
		model  string
		change change
		kind   error
		want   []string
	}{
		{"mixtral", func(c *loadCase, cfg *LoadConfig) { delete(c.shapes, "experts.4.w3.weight") }, graph.ErrUsage, []string{"experts.4.w3.weight", "[64 48]"}},
		{"mixtral", func(c *loadCase, cfg *LoadConfig) { delete(c.shapes, "gate.weight") }, graph.ErrUsage, []string{"block_sparse_moe.gate.weight"}},
		{"mixtral", func(c *loadCase, cfg *LoadConfig) { c.shapes["experts.4.w3.weight"] = []int{48, 64} }, graph.ErrShape, []string{"experts.4.w3.weight", "[48 64]", "[64 48]"}},
		{"mixtral", func(c *loadCase, cfg *LoadConfig) {
			c.shapes["experts.6.w1.weight"], c.values["experts.6.w1.weight"] = []int{1}, []float64{0}
		}, graph.ErrUnsupported, []string{"experts.6.w1.weight"}},
		{"mixtral", func(c *loadCase, cfg *LoadConfig) {
			c.shapes["experts.0.w1.bias"], c.values["experts.0.w1.bias"] = []int{1}, []float64{0}
		}, graph.ErrUnsupported, []string{"experts.0.w1.bias"}},
		{"gpt_oss", func(c *loadCase, cfg *LoadConfig) {
			delete(c.shapes, "experts.gate_up_proj")
			c.shapes["experts.gate_up_proj_blocks"], c.values["experts.gate_up_proj_blocks"] = []int{1}, []float64{0}
		}, graph.ErrDType, []string{"experts.gate_up_proj_blocks", "MXFP4", "U8"}},
		{"olmoe", func(c *loadCase, cfg *LoadConfig) { cfg.Layer = 1 }, graph.ErrUsage, []string{"layers.1.mlp"}},
		{"olmoe", func(c *loadCase, cfg *LoadConfig) { cfg.Layer = -1 }, graph.ErrShape, []string{"Layer", "-1"}},
		{"olmoe", func(c *loadCase, cfg *LoadConfig) {
			c.shapes, c.values = map[string][]int{"gate_proj.weight": {1}}, map[string][]float64{"gate_proj.weight": {1}}
		}, graph.ErrUsage, []string{"dense"}},
		{"olmoe", func(c *loadCase, cfg *LoadConfig) { cfg.Params = dtype.Float16 }, graph.ErrDType, []string{"Params", "f16"}},
		{"olmoe", func(c *loadCase, cfg *LoadConfig) { cfg.Params = dtype.E4M3 }, graph.ErrDType, []string{"Params", "e4m3"}},
		{"olmoe", func(c *loadCase, cfg *LoadConfig) { cfg.Layout = 9 }, graph.ErrUnsupported, []string{"Layout"}},
		{"olmoe", func(c *loadCase, cfg *LoadConfig) { cfg.Config = "absent.json" }, fs.ErrNotExist, []string{"absent.json"}},
		{"olmoe", func(c *loadCase, cfg *LoadConfig) { cfg.Config = t.TempDir() }, nil, []string{"folder"}},
		{"olmoe", set("model_type", "llama"), graph.ErrUnsupported, []string{`"llama"`, "mixtral", "qwen3_moe", "olmoe", "gpt_oss", "deepseek_v3"}},
		{"olmoe", drop("model_type"), graph.ErrShape, []string{"model_type"}},
		{"olmoe", drop("num_experts"), graph.ErrShape, []string{"num_local_experts", "none"}},
		{"olmoe", set("num_experts", nil), graph.ErrShape, []string{"num_local_experts", "none"}},
		{"olmoe", set("num_experts", -6), graph.ErrShape, []string{"num_experts", "-6"}},
		{"olmoe", set("num_experts", 1e9), graph.ErrShape, []string{"num_experts", "1000000000", "1024"}},
		{"olmoe", set("num_experts", 6.5), graph.ErrShape, []string{"num_experts", "6.5"}},
		{"olmoe", set("num_experts", "6"), graph.ErrShape, []string{"num_experts"}},
		{"olmoe", set("num_experts_per_tok", 7), graph.ErrShape, []string{"num_experts_per_tok", "7", "6"}},
		{"olmoe", set("hidden_size", json.RawMessage("99999999999999999999")), graph.ErrShape, []string{"hidden_size"}},
		{"olmoe", set("hidden_size", 1<<23), graph.ErrShape, []string{"gate.weight", "[6 48]", "[6 8388608]"}},
		{"olmoe", set("intermediate_size", 48), graph.ErrShape, []string{"intermediate_size", "48", "32"}},
		{"olmoe", set("norm_topk_prob", 1), graph.ErrShape, []string{"norm_topk_prob", "true"}},
		{"olmoe", drop("norm_topk_prob"), graph.ErrShape, []string{"norm_topk_prob"}},
		{"olmoe", set("hidden_act", "gelu"), graph.ErrUnsupported, []string{"hidden_act", "gelu", "silu"}},
		{"gpt_oss", set("swiglu_limit", -7), graph.ErrShape, []string{"swiglu_limit", "-7"}},
		{"deepseek_v3", set("routed_scaling_factor", 0), graph.ErrShape, []string{"routed_scaling_factor"}},
		{"deepseek_v3", drop("routed_scaling_factor"), graph.ErrShape, []string{"routed_scaling_factor"}},
		{"deepseek_v3", set("n_group", 4), graph.ErrShape, []string{"n_group", "4", "6 experts"}},
		{"deepseek_v3", set("n_group", 6), graph.ErrShape, []string{"n_group", "at most 3"}},
		{"deepseek_v3", set("n_group", 3), graph.ErrShape, []string{"topk_group", "1 groups of 2", "3 experts"}},
		{"deepseek_v3", set("topk_group", 2), graph.ErrShape, []string{"topk_group", "from 1 to the 1 groups"}},
		{"deepseek_v3", drop("n_group"), graph.ErrShape, []string{"n_group"}},
		{"deepseek_v3", set("scoring_func", "softmax"), graph.ErrUnsupported, []string{"scoring_func"}},
		{"deepseek_v3", set("n_shared_experts", 1<<20), graph.ErrShape, []string{"n_shared_experts"}},
		{"deepseek_v3", set("n_shared_experts", 1), graph.ErrShape, []string{"shared_experts.gate_proj.weight"}},
		{"deepseek_v3", set("n_shared_experts", 0), graph.ErrUnsupported, []string{"shared_experts."}},
	} {
		c := newLoadCase(x.model)
		var probe LoadConfig
		x.change(c, &probe)
		cfg := c.write(t, "F32", 1)
		cfg.Config, cfg.Layer, cfg.Params, cfg.Layout = probe.Config, probe.Layer, probe.Params, probe.Layout
		vars := graph.NewVars(1)
		_, err := LoadMoE(vars, cfg)
		if err == nil {
			t.Errorf("%s: loaded, want an error with %q", x.model, x.want)
			continue
		}
		if x.kind != nil && !errors.Is(err, x.kind) {
			t.Errorf("%v: want kind %v", err, x.kind)
		}
		for _, w := range append(x.want, "load_moe") {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%v: want it to say %q", err, w)
			}
		}
		if len(vars.All())+len(vars.States()) > 0 || vars.Err() != nil {
			t.Errorf("%v: left variables (%v)", err, vars.Err())
		}
	}
}

// TestLoadMoE_Quantized names the first tensor in a format that is not read.
func TestLoadMoE_Quantized(t *testing.T) {
	c := newLoadCase("deepseek_v3")
	cfg := c.write(t, "BF16", 1)
	list := c.tensors("BF16")
	for i, x := range list {
		if strings.HasSuffix(x.Name, "experts.2.up_proj.weight") {
			list[i].DType, list[i].Data = "F8_E4M3", x.Data[:len(x.Data)/2]
		}
	}
	if err := safetensors.WriteFile(filepath.Join(cfg.Weights, safetensors.SingleName), list, nil); err != nil {
		t.Fatal(err)
	}
	_, err := LoadMoE(graph.NewVars(1), cfg)
	if !errors.Is(err, graph.ErrDType) || !strings.Contains(err.Error(), "experts.2.up_proj.weight") || !strings.Contains(err.Error(), "F8_E4M3") {
		t.Errorf("got %v", err)
	}
}

// TestLoadMoE_Damaged cuts and changes a configuration and a file anywhere: an error or a layer, never a panic.
func TestLoadMoE_Damaged(t *testing.T) {
	c := newLoadCase("gpt_oss")
	cfg := c.write(t, "F32", 1)
	r := rand.New(rand.NewPCG(8, 9))
	for _, name := range []string{"config.json", safetensors.SingleName} {
		path := filepath.Join(cfg.Weights, name)
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for range 200 {
			raw := slices.Clone(whole)
			at := r.IntN(min(len(raw), 1500))
			if r.IntN(2) == 0 {
				raw = raw[:at]
			} else {
				raw[at] ^= byte(1 + r.IntN(255))
			}
			if err := os.WriteFile(path, raw, 0o666); err != nil {
				t.Fatal(err)
			}
			if l, err := LoadMoE(graph.NewVars(1), cfg); err == nil {
				l.Close()
			}
		}
		if err := os.WriteFile(path, whole, 0o666); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLoadMoE_Usage covers calls in the wrong order.
func TestLoadMoE_Usage(t *testing.T) {
	cfg := newLoadCase("qwen3_moe").write(t, "F32", 2)
	vars := graph.NewVars(1)
	layer, err := LoadMoE(vars, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := LoadMoE(vars, cfg); !errors.Is(err, graph.ErrUsage) {
		t.Errorf("variables exist: got %v", err)
	}
	for range 2 {
		if err := layer.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := vars.Read(vars.Lookup("fc1"), make([]float32, vars.Lookup("fc1").Elems())); !errors.Is(err, graph.ErrUsage) {
		t.Errorf("read of a closed checkpoint: got %v", err)
	}
	if err := layer.Save(filepath.Join(t.TempDir(), "x")); !errors.Is(err, graph.ErrUsage) {
		t.Errorf("save of a closed checkpoint: got %v", err)
	}
	g := graph.New("closed")
	y, _ := layer.Layer(g.Input("x", dtype.Float32, 4, loadH))
	g.Output("y", y)
	prog, err := g.Compile(host.Device{}, graph.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := prog.Exec(vars); !errors.Is(err, graph.ErrUsage) {
		t.Errorf("exec with a closed checkpoint: got %v", err)
	}
}
