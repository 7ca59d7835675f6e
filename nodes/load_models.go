package nodes

import (
	"fmt"
	"slices"
	"strings"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/safetensors"
)

// architecture is how one family of models names and computes its MoE layers.
type architecture struct {
	modelType string
	block     string // name of the layer's MoE part
	config    func(c *modelConfig) MoE
	tensors   func(b *loadBuilder)
}

// architectures are those that LoadMoE knows. What the configurations mean is taken from the models' code in
// https://github.com/huggingface/transformers, whose class names begin with Mixtral, Qwen3Moe, Olmoe, GptOss
// and DeepseekV3.
var architectures = []*architecture{
	{"mixtral", "block_sparse_moe", mixtralConfig, func(b *loadBuilder) { b.separate("w1", "w3", "w2") }},
	{"qwen3_moe", "mlp", qwen3Config, projections},
	{"olmoe", "mlp", olmoeConfig, projections},
	{"gpt_oss", "mlp", gptOSSConfig, gptOSSTensors},
	{"deepseek_v3", "mlp", deepseekConfig, deepseekTensors},
}

// commonConfig reads what all have, with the experts' width under the given name.
func commonConfig(c *modelConfig, intermediate string) MoE {
	c.is("hidden_act", "silu")
	cfg := MoE{Experts: c.experts(), TopK: c.topK()}
	cfg.Hidden, cfg.Intermediate = c.width("hidden_size"), c.gluWidth(intermediate)
	return cfg
}

func mixtralConfig(c *modelConfig) MoE {
	cfg, normalize := commonConfig(c, "intermediate_size"), true
	cfg.Normalize = &normalize
	return cfg
}

func qwen3Config(c *modelConfig) MoE {
	cfg, normalize := commonConfig(c, "moe_intermediate_size"), c.flag("norm_topk_prob")
	cfg.Normalize = &normalize
	return cfg
}

func olmoeConfig(c *modelConfig) MoE {
	cfg, normalize := commonConfig(c, "intermediate_size"), c.flag("norm_topk_prob")
	cfg.Normalize = &normalize
	return cfg
}

func gptOSSConfig(c *modelConfig) MoE {
	cfg := commonConfig(c, "intermediate_size")
	alpha, limit, offset := c.positive("swiglu_alpha", 1.702), c.positive("swiglu_limit", 7), 1.0
	low := -limit
	cfg.Order, cfg.LogitBias, cfg.Bias = TopKSoftmax, true, true
	cfg.Activation = Activation{Func: "geglu", Alpha: &alpha, LinearOffset: &offset, ClampMax: &limit, ClampMin: &low}
	return cfg
}

func deepseekConfig(c *modelConfig) MoE {
	cfg, normalize := commonConfig(c, "moe_intermediate_size"), c.flag("norm_topk_prob")
	c.is("scoring_func", "sigmoid")
	c.is("topk_method", "noaux_tc")
	cfg.Order, cfg.Normalize, cfg.SelectBias = Sigmoid, &normalize, true
	cfg.Scale = c.positive("routed_scaling_factor", 0)
	if _, v := c.find("n_shared_experts"); v != nil {
		cfg.Shared = cfg.Intermediate * c.number(0, MaxExperts, "n_shared_experts")
	}
	groups, chosen := c.number(1, MaxExperts, "n_group"), c.number(1, MaxExperts, "topk_group")
	if groups != 1 || chosen != 1 {
		cfg.Groups, cfg.TopKGroups = groups, chosen
	}
	if c.err == nil {
		c.err = checkLimit("n_group", "topk_group", cfg.Experts, cfg.TopK, cfg.Groups, cfg.TopKGroups)
	}
	return cfg
}

func projections(b *loadBuilder) { b.separate("gate_proj", "up_proj", "down_proj") }

func deepseekTensors(b *loadBuilder) {
	projections(b)
	b.add("select_bias", graph.State, dtype.Float32, []int{b.Experts}, 1, b.Experts,
		[]loadPart{b.whole("gate.e_score_correction_bias", 1, b.Experts)})
	if s := b.Shared; s > 0 {
		gate := b.whole("shared_experts.gate_proj.weight", s, s, b.Hidden)
		up := b.whole("shared_experts.up_proj.weight", s, s, b.Hidden)
		gate.row = func(j int) int { return LayoutInterleaved32.gate(j, s) }
		up.row = func(j int) int { return LayoutInterleaved32.up(j, s) }
		b.param("shared_fc1", []int{2 * s, b.Hidden}, 2*s, b.Hidden, []loadPart{gate, up})
		b.param("shared_fc2", []int{b.Hidden, s}, b.Hidden, s,
			[]loadPart{b.whole("shared_experts.down_proj.weight", b.Hidden, b.Hidden, s)})
	}
}

// separate is a layer whose experts have tensors of their own: gate and up (I,H), down (H,I).
func (b *loadBuilder) separate(gate, up, down string) {
	e, h, i := b.Experts, b.Hidden, b.Intermediate
	b.param("router", []int{e, h}, e, h, []loadPart{b.whole("gate.weight", e, e, h)})
	fc1, fc2 := make([][]loadPart, e), make([][]loadPart, e)
	for x := range e {
		name := func(m string) string { return fmt.Sprintf("experts.%d.%s.weight", x, m) }
		g, u := b.whole(name(gate), i, i, h), b.whole(name(up), i, i, h)
		g.row = func(j int) int { return b.Layout.gate(j, i) }
		u.row = func(j int) int { return b.Layout.up(j, i) }
		fc1[x] = []loadPart{g, u}
		fc2[x] = []loadPart{b.whole(name(down), h, h, i)}
	}
	b.param("fc1", []int{e, 2 * i, h}, 2*i, h, fc1...)
	b.param("fc2", []int{e, h, i}, h, i, fc2...)
}

// gptOSSTensors are one tensor for all experts, transposed, with gate and up in alternating columns.
func gptOSSTensors(b *loadBuilder) {
	e, h, i := b.Experts, b.Hidden, b.Intermediate
	b.param("router", []int{e, h}, e, h, []loadPart{b.whole("router.weight", e, e, h)})
	b.param("router_bias", []int{e}, 1, e, []loadPart{b.whole("router.bias", 1, e)})
	pairs := func(j int) int {
		if j%2 == 0 {
			return b.Layout.gate(j/2, i)
		}
		return b.Layout.up(j/2, i)
	}
	bias1, bias2 := b.tensor("experts.gate_up_proj_bias", e, 2*i), b.tensor("experts.down_proj_bias", e, h)
	share := func(t *loadTensor, rows, cols int, trans bool, row func(int) int) [][]loadPart {
		parts := make([][]loadPart, e)
		for x := range parts {
			parts[x] = []loadPart{{tensor: t, at: x * rows * cols, rows: rows, trans: trans, row: row}}
		}
		return parts
	}
	if _, ok := b.file.Tensor(b.prefix + "experts.gate_up_proj_blocks"); ok {
		b.FrozenExperts = MXFP4
		b.packed("fc1", "experts.gate_up_proj", 2*i, h, pairs)
		b.param("fc1_bias", []int{e, 2 * i}, 2*i, 1, share(bias1, 2*i, 1, false, pairs)...)
		b.packed("fc2", "experts.down_proj", h, i, nil)
		b.param("fc2_bias", []int{e, h}, 1, h, share(bias2, 1, h, false, nil)...)
		return
	}
	fc1, fc2 := b.tensor("experts.gate_up_proj", e, h, 2*i), b.tensor("experts.down_proj", e, i, h)
	b.param("fc1", []int{e, 2 * i, h}, 2*i, h, share(fc1, 2*i, h, true, pairs)...)
	b.param("fc1_bias", []int{e, 2 * i}, 2*i, 1, share(bias1, 2*i, 1, false, pairs)...)
	b.param("fc2", []int{e, h, i}, h, i, share(fc2, h, i, true, nil)...)
	b.param("fc2_bias", []int{e, h}, 1, h, share(bias2, 1, h, false, nil)...)
}

// packed adds the codes and the factors of (rows,k) matrices, one for each expert, in MXFP4: tensors name_blocks
// (E,rows,k/32,16), two codes a byte, the even one in the low nibble, and name_scales (E,rows,k/32), exponents with a
// bias of 127, which are E8M0. row is as in loadPart.
func (b *loadBuilder) packed(param, name string, rows, k int, row func(int) int) {
	e, f := b.Experts, MXFP4
	groups := k / f.Vec()
	layout := factorLayout(rows, k, f)
	add := func(param, name string, dt dtype.DType, shape []int, cols, size int, factors *dtype.FactorLayout, tensor ...int) {
		t := b.bytes(name, tensor...)
		parts := make([][]loadPart, e)
		for x := range parts {
			parts[x] = []loadPart{{tensor: t, at: x * rows * cols, rows: rows, row: row, factors: factors}}
		}
		b.params = append(b.params, &loadParam{name: param, kind: graph.State, dt: dt, shape: shape, rows: rows, cols: cols, packed: size, blocks: parts})
	}
	add(param, name+"_blocks", f.Values(), []int{e, rows, k}, k/2, rows*k/2, nil, e, rows, groups, f.Vec()/2)
	add(param+"_sf", name+"_scales", f.Factor(), []int{e * layout.Bytes()}, groups, layout.Bytes(), &layout, e, rows, groups)
	if k%f.Vec() != 0 && b.err == nil {
		b.err = graph.BadShape(fmt.Sprintf("tensor %q", b.prefix+name+"_blocks"), fmt.Sprintf("rows of %d", k), "a multiple of %d (blocks of MXFP4)", f.Vec())
	}
}

// loadBuilder finds the tensors of a layer. The first mistake is kept in err.
type loadBuilder struct {
	MoE
	file    *safetensors.File
	prefix  string
	params  []*loadParam
	tensors []*loadTensor
	seen    map[string]bool
	err     error
}

// param adds a parameter in the format that parameters are kept in.
func (b *loadBuilder) param(name string, shape []int, rows, cols int, blocks ...[]loadPart) {
	b.add(name, graph.Param, b.Params, shape, rows, cols, blocks...)
}

// add adds a variable whose blocks are (rows,cols).
func (b *loadBuilder) add(
	name string, kind graph.Kind, dt dtype.DType, shape []int, rows, cols int, blocks ...[]loadPart,
) {
	p := &loadParam{name: name, kind: kind, dt: dt, shape: shape, rows: rows, cols: cols, blocks: blocks}
	b.params = append(b.params, p)
	for _, parts := range blocks {
		for _, p := range parts {
			if dt == dtype.Float16 && p.tensor.dt != dt && b.err == nil {
				b.err = graph.BadDType("Params", dt, "f32 or bf16, since tensor %q is in %s", p.tensor.name, p.tensor.dt)
			}
		}
	}
}

// whole is a tensor of the given shape as rows rows of a block.
func (b *loadBuilder) whole(name string, rows int, shape ...int) loadPart {
	return loadPart{tensor: b.tensor(name, shape...), rows: rows}
}

// loadFormats are the element types that are read, under the names of the file format.
var loadFormats = map[string]dtype.DType{"F32": dtype.Float32, "BF16": dtype.BFloat16, "F16": dtype.Float16}

// packedType is the file format's name of the bytes that codes and factors are stored as.
const packedType = "U8"

// tensor finds a tensor and checks its shape and format. After a mistake its data must not be used.
func (b *loadBuilder) tensor(name string, shape ...int) *loadTensor {
	return b.find(name, loadFormats, "F32, BF16 or F16: dequantize the checkpoint first", shape)
}

// bytes is tensor for codes and factors.
func (b *loadBuilder) bytes(name string, shape ...int) *loadTensor {
	return b.find(name, map[string]dtype.DType{packedType: dtype.Uint8}, packedType+", MXFP4 codes or scales", shape)
}

func (b *loadBuilder) find(name string, formats map[string]dtype.DType, wantType string, shape []int) *loadTensor {
	full := b.prefix + name
	b.seen[full] = true
	t := &loadTensor{name: full, shape: shape}
	if b.err != nil {
		return t
	}
	operand, want := fmt.Sprintf("tensor %q", full), fmt.Sprint(shape)
	found, ok := b.file.Tensor(full)
	if !ok {
		b.err = graph.Misuse(operand, "none", "one of shape %s", want)
		return t
	}
	if t.dt, ok = formats[found.DType]; !ok {
		b.err = graph.BadDType(operand, found.DType, "%s", wantType)
		return t
	}
	if !slices.Equal(found.Shape, shape) {
		got := fmt.Sprintf("shape %.100s", fmt.Sprint(found.Shape))
		b.err = graph.BadShape(operand, got, "%s, from the configuration", want)
		return t
	}
	t.data = found.Data
	b.tensors = append(b.tensors, t)
	return t
}

// checkRest refuses tensors of the layer that nothing reads: they would change what it computes.
func (b *loadBuilder) checkRest() error {
	var rest []string
	for _, name := range b.file.Names() {
		if strings.HasPrefix(name, b.prefix) && !b.seen[name] {
			rest = append(rest, name)
		}
	}
	if len(rest) > 0 {
		return graph.Unsupported("tensors", names(rest), "only those that model type and configuration call for")
	}
	return nil
}

// findLayer returns what the names of the layer's tensors begin with: whatever stands before "layers.N.BLOCK.".
func findLayer(tensors []string, a *architecture, layer int) (string, error) {
	want := fmt.Sprintf("layers.%d.%s.", layer, a.block)
	var found []string
	for _, name := range tensors {
		at := strings.Index(name, want)
		if at < 0 || at > 0 && name[at-1] != '.' {
			continue
		}
		if p := name[:at+len(want)]; !slices.Contains(found, p) {
			found = append(found, p)
		}
	}
	switch {
	case len(found) == 0:
		return "", graph.Misuse("Layer", fmt.Sprintf("no tensor %s*", want),
			"a layer that the %d tensors hold, such as %s", len(tensors), names(tensors))
	case len(found) > 1:
		return "", graph.Misuse("Layer", "several: "+names(found), "one layer %d in a checkpoint", layer)
	}
	if slices.Contains(tensors, found[0]+"gate_proj.weight") {
		return "", graph.Misuse("Layer", fmt.Sprintf("%d, a dense layer", layer), "a layer with experts")
	}
	return found[0], nil
}
