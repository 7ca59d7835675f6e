package nodes

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/safetensors"
)

// LoadConfig says which layer of which checkpoint LoadMoE loads. Weights must be given.
type LoadConfig struct {
	// Weights is a safetensors file, the index of a sharded checkpoint (a name that ends in ".index.json"), or a
	// folder that holds model.safetensors.index.json or model.safetensors.
	Weights string
	// Config is the model's configuration. Default: config.json in the folder of Weights.
	Config string
	Layer  int // counted from 0
	// Params is the format that the parameters are kept in: f32 (default), bf16 or f16. bf16 and f16 keep a
	// 16-bit checkpoint at its own size. Tensors in another format are rounded to bf16 once; f16, which has
	// less range, takes f16 alone.
	Params dtype.DType
	Layout Layout // of fc1 and fc1_bias; default LayoutInterleaved32
}

// LoadedMoE is a layer of a checkpoint: what MoELayer needs to build it, and how to save it. In MoE, fields that
// change no parameter may be set: Compute, Precision, Alignment, Capacity, Launch, RouterJitter, Dropout, Draw, Seed.
type LoadedMoE struct {
	MoE
	ModelType string // as the configuration says: "mixtral"
	Prefix    string // of the layer's tensors: "model.layers.0.mlp."

	vars    *graph.Vars
	params  []*loadParam
	tensors []*loadTensor
	source  *loadSource
}

// LoadMoE makes the variables of one MoE layer of a checkpoint in vars, for MoELayer with the MoE returned and
// the same vars. Files of Mixtral, Qwen3-MoE, OLMoE, gpt-oss and DeepSeek-V3 are known; the configuration's
// model_type tells them apart. Tensors are float32, bf16 or f16, each on its own.
//
//	ModelType    prob                                       experts
//	mixtral      softmax over all, chosen ones normalized   swiglu, w1 gate, w3 up, w2 down
//	qwen3_moe    softmax over all, norm_topk_prob           swiglu, gate_proj, up_proj, down_proj
//	olmoe        softmax over all, norm_topk_prob           as qwen3_moe
//	gpt_oss      softmax over the chosen, router bias       clamped geglu with biases, gate and up in pairs
//	deepseek_v3  sigmoid, selection bias, norm_topk_prob,   as qwen3_moe, shared expert
//	             routed_scaling_factor, n_group, topk_group
//
// Released gpt-oss files hold the experts' weights in MXFP4 (*_blocks and *_scales). They are kept so, bit for bit, as
// state fc1, fc1_sf, fc2 and fc2_sf (MoE.FrozenExperts): the layer runs on them, and everything else of it
// trains, without a decoded copy.
//
// Memory: the file is mapped. LoadMoE checks every tensor and copies none: an Exec that binds to a variable
// converts it, expert by expert, from the mapping into the variable's memory. Until then the file must stay
// whole and the LoadedMoE open; Close after the first Exec.
//
// Errors: a tensor that is missing, unknown, of a wrong shape or of another format (other quantized ones among
// them) and a configuration without a number or with a senseless one are named, with what is wanted. Nothing
// is added to vars then. The variables must not exist before.
func LoadMoE(vars *graph.Vars, cfg LoadConfig) (*LoadedMoE, error) {
	if cfg.Config == "" {
		cfg.Config = configBeside(cfg.Weights)
	}
	if err := cfg.check(); err != nil {
		return nil, loadError(cfg.Weights, err)
	}
	model, arch, err := readModel(cfg.Config)
	if err != nil {
		return nil, loadError(cfg.Config, err)
	}
	file, err := safetensors.Open(cfg.Weights)
	if err != nil {
		return nil, fmt.Errorf("load_moe: %w", err)
	}
	l := &LoadedMoE{MoE: model, ModelType: arch.modelType, vars: vars, source: &loadSource{file: file}}
	l.Params, l.Layout = cfg.Params, cfg.Layout
	if err := l.open(file, arch, cfg); err != nil {
		return nil, errors.Join(loadError(cfg.Weights, err), l.Close())
	}
	return l, nil
}

// configBeside returns the configuration in the folder of the weights.
func configBeside(weights string) string {
	dir := weights
	if ext := filepath.Ext(weights); ext == ".safetensors" || ext == ".json" {
		dir = filepath.Dir(weights)
	}
	return filepath.Join(dir, "config.json")
}

func (cfg *LoadConfig) check() error {
	cfg.Params = cmp.Or(cfg.Params, dtype.Float32)
	switch {
	case cfg.Weights == "":
		return graph.Misuse("Weights", "none", "a file, an index or a folder")
	case cfg.Layer < 0:
		return graph.BadShape("Layer", cfg.Layer, "a layer, counted from 0")
	case !plain(cfg.Params) || isWide(cfg.Params):
		return graph.BadDType("Params", cfg.Params, "f32, bf16 or f16")
	case cfg.Layout > LayoutPairs:
		return graph.Unsupported("Layout", cfg.Layout, "interleaved32, concat or pairs")
	}
	return nil
}

// loadError puts the operation and the file into err.
func loadError(path string, err error) error {
	if oe, ok := err.(*graph.OperandError); ok {
		oe.Op, oe.Node = "load_moe", path
		return oe
	}
	return fmt.Errorf("load_moe %q: %w", path, err)
}

// open finds and checks the layer's tensors, then makes the variables.
func (l *LoadedMoE) open(file *safetensors.File, arch *architecture, cfg LoadConfig) error {
	prefix, err := findLayer(file.Names(), arch, cfg.Layer)
	if err != nil {
		return err
	}
	l.Prefix = prefix
	b := &loadBuilder{file: file, prefix: prefix, MoE: l.MoE, seen: map[string]bool{}}
	arch.tensors(b)
	if b.err == nil {
		b.err = b.checkRest()
	}
	if b.err != nil {
		return b.err
	}
	l.params, l.tensors, l.FrozenExperts = b.params, b.tensors, b.FrozenExperts
	for _, p := range l.params {
		if v := l.vars.Lookup(p.name); v != nil {
			got := fmt.Sprintf("variable %q, which exists already", v.Name())
			return graph.Misuse("vars", got, "to load before the layer is built")
		}
	}
	for _, p := range l.params {
		if err := p.make(l.vars, l.source); err != nil {
			return err
		}
	}
	return nil
}

// Layer builds the layer on x: MoELayer with the loaded configuration and variables.
func (l *LoadedMoE) Layer(x *graph.Value) (*graph.Value, Aux) { return MoELayer(x, l.vars, l.MoE) }

// Parameters returns the layer's parameters, those that have gradients.
func (l *LoadedMoE) Parameters() []*graph.Value {
	var vs []*graph.Value
	for _, p := range l.params {
		if p.kind == graph.Param {
			vs = append(vs, p.value)
		}
	}
	return vs
}

// Close lets go of the files. Variables that no Exec has bound to have no contents afterwards: to use them is
// an error. A second Close does nothing.
func (l *LoadedMoE) Close() error { return l.source.close() }

// loadSource is an open checkpoint that variables are filled from. Views of a closed file must not be read.
type loadSource struct {
	mu   sync.RWMutex
	file *safetensors.File // nil when closed
}

func (s *loadSource) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == nil {
		return nil
	}
	file := s.file
	s.file = nil
	return file.Close()
}

// use runs f while the file cannot be closed.
func (s *loadSource) use(f func() error) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.file == nil {
		return fmt.Errorf("%w: the checkpoint was closed before an Exec had bound to the layer's variables", graph.ErrUsage)
	}
	return f()
}

// loadParam is one variable of the layer: equal blocks, one for each expert or one in all, each a matrix that
// parts of the checkpoint's tensors cover.
type loadParam struct {
	name       string
	kind       graph.Kind
	dt         dtype.DType
	shape      []int
	rows, cols int          // of a block; of packed ones cols is bytes
	packed     int          // bytes of a block of codes or factors; 0: elements of dt
	blocks     [][]loadPart // the parts of each block cover it
	value      *graph.Value
}

// blockBytes is the size of a block in the variable.
func (p *loadParam) blockBytes() int {
	if p.packed > 0 {
		return p.packed
	}
	return p.dt.Bytes(p.rows * p.cols)
}

// make adds the variable to vars.
func (p *loadParam) make(vars *graph.Vars, source *loadSource) error {
	init := graph.From(len(p.blocks), func(block int, dst []byte) error {
		return source.use(func() error { return p.fill(block, dst) })
	})
	if p.kind == graph.State {
		p.value = vars.State(p.name, p.dt, init, p.shape...)
	} else {
		p.value = vars.ParamOf(p.name, p.dt, init, p.shape...)
	}
	return p.value.Err()
}

// fill converts a block from the checkpoint.
func (p *loadParam) fill(block int, dst []byte) error {
	for _, part := range p.blocks[block] {
		t := part.tensor
		if err := part.move(dst, p.dt, p.cols, t.data, t.dt, false); err != nil {
			return fmt.Errorf("tensor %q: %w", t.name, err)
		}
	}
	return nil
}

// names lists tensors for an error, the first few of them.
func names(list []string) string {
	const most = 4
	list = slices.Clone(list)
	if n := len(list); n > most {
		list = append(list[:most:most], fmt.Sprintf("and %d more", n-most))
	}
	s := ""
	for i, name := range list {
		if i > 0 {
			s += ", "
		}
		s += name
	}
	return s
}
