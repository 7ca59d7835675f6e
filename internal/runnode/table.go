package runnode

import (
	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/nodes"
)

// Attributes that several nodes share.

func intAttr(name string, def any, note, want string, ok func(n int) bool) Attr {
	return Attr{Name: name, Kind: Int, Default: def, Note: note, want: want, ok: func(v any) bool { return ok(v.(int)) }}
}

func flagAttr(name string) Attr { return Attr{Name: name, Kind: Flag, Default: 0} }

// numberAttr may be infinite: a clamp at infinity is none.
func numberAttr(name string, def float64) Attr { return Attr{Name: name, Kind: Float, Default: def} }

func choiceAttr(name, def string, choices ...string) Attr {
	a := Attr{Name: name, Kind: Text, Default: def, Choices: choices}
	if def == "" {
		a.Default, a.Note = nil, required
	}
	return a
}

// formatAttr is the format of an output.
func formatAttr(name string, def dtype.DType) Attr {
	return choiceAttr(name, def.String(), "bf16", "f16", "f32", "f64", "e4m3", "e5m2", "e2m1")
}

func alignmentAttr() Attr {
	return intAttr("alignment", nodes.DefaultAlignment, "", "a power of two from 1 to 256", func(n int) bool {
		return n >= 1 && n <= 256 && n&(n-1) == 0
	})
}

func positiveAttr(name string) Attr {
	return intAttr(name, nil, required, "an integer of at least 1", func(n int) bool { return n >= 1 })
}

func vecAttr() Attr {
	return intAttr("sf_vec_size", nil, "32 for fp8, 16 for fp4", "16 or 32", func(n int) bool { return n == 16 || n == 32 })
}

func orderAttr() Attr {
	return choiceAttr("order", "softmax_topk", "softmax_topk", "topk_softmax", "sigmoid")
}

// launchAttrs change nothing that is computed.
func launchAttrs() []Attr {
	pair := func(name, like string) Attr {
		return Attr{Name: name, Kind: Text, Note: "chosen", want: "two numbers, such as " + like, ok: func(v any) bool {
			_, err := parsePair(v.(string))
			return err == nil
		}}
	}
	chosen := func(name string, choices ...string) Attr {
		return Attr{Name: name, Kind: Text, Note: "chosen", Choices: choices}
	}
	return []Attr{pair("tile", "128x256"), pair("cluster", "2x1"), chosen("scheduler", "static", "dynamic"), chosen("family", "portable", "hopper")}
}

func activationAttrs() []Attr {
	return []Attr{choiceAttr("act_func", "swiglu", "swiglu", "geglu"), numberAttr("linear_offset", 1), numberAttr("geglu_alpha", 1.702),
		numberAttr("glu_clamp_max", 7), numberAttr("glu_clamp_min", -7)}
}

func join[T any](parts ...[]T) []T {
	var all []T
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

// Operands that several nodes share.
var (
	paddedOffsets = Operand{Name: "padded_offsets", Shape: "(E,)", Format: "int32"}
	counts        = Operand{Name: "counts", Shape: "(E,)", Format: "int32", Optional: true}
	alpha         = Operand{Name: "alpha", Shape: "(E,)", Format: "f32", Optional: true}
	prob          = Operand{Name: "prob", Shape: "(M,)", Format: "f32", Optional: true}
	bias          = Operand{Name: "bias", Shape: "(E,N)", Format: "bf16, f16, f32", Optional: true}
	normConst     = Operand{Name: "norm_const", Shape: "(1,)", Format: "f32", Optional: true}
	sfa           = Operand{Name: "sfa", Shape: "flat", Format: "e8m0, e4m3", Optional: true}
	sfb           = Operand{Name: "sfb", Shape: "flat", Format: "e8m0, e4m3", Optional: true, PerExpert: true}
)

const (
	plain     = "bf16, f16, f32"
	scaledToo = ", or e4m3, e5m2, e2m1 with factors"
)

func optional(o Operand) Operand { o.Optional = true; return o }

// gemmOperands are those of the grouped products, with a and b in the formats given.
func gemmOperands(formats string) []Operand {
	return []Operand{{Name: "a", Shape: "(M,K)", Format: formats}, {Name: "b", Shape: "(E,N,K); b_major n: (E,K,N)", Format: "as a", PerExpert: true},
		paddedOffsets, counts, alpha, prob, bias}
}

func layoutAttrs() []Attr { return []Attr{alignmentAttr(), choiceAttr("b_major", "k", "k", "n")} }

// quantizedOutputs are what stands for output x, of a shape, in an fp8 or fp4 format.
func quantizedOutputs(x, shape string) []Output {
	when := x + "_dtype fp8 or fp4"
	return []Output{{x + "_row", shape, x + "_dtype", when}, {x + "_col", shape, x + "_dtype", when},
		{"sf" + x + "_row", "flat", "as sfa", when}, {"sf" + x + "_col", "flat", "as sfa", when}}
}

// table holds every node. README files and help are printed from it; a test walks it.
var table = []*Node{
	{
		Name: "encode", Kinds: []string{"encode"}, Doc: "y = x rounded to a format", Example: "format=e4m3",
		Operands: []Operand{{Name: "x", Shape: "(n,)", Format: "f32"}},
		Attrs:    []Attr{choiceAttr("format", "", "bf16", "f16", "e4m3", "e5m2", "e2m1", "e8m0")},
		Outputs:  []Output{{"y", "(n,)", "format", ""}},
		build:    encode,
	},
	{
		Name: "decode", Kinds: []string{"decode"}, Doc: "y = the exact values of codes", Example: "format=e4m3",
		Operands: []Operand{{Name: "x", Shape: "(n,)", Format: "format"}},
		Attrs:    []Attr{choiceAttr("format", "", "bf16", "f16", "e4m3", "e5m2", "e2m1", "e8m0")},
		Outputs:  []Output{{"y", "(n,)", "f32", ""}},
		check:    checkDecode,
		build:    decode,
	},
	{
		Name: "quantize", Kinds: []string{"quantize"}, Doc: "x_row, x_col = x in a block-scaled format, with factors", Example: "format=mxfp8_e4m3 axis=both",
		Operands: []Operand{{Name: "x", Shape: "(M,K)", Format: "bf16, f32"}, optional(paddedOffsets), counts, normConst,
			{Name: "global_scale", Shape: "(1,) or (E,)", Format: "f32", Optional: true}},
		Attrs: []Attr{choiceAttr("format", "", nodes.BlockFamilies()...), vecAttr(), choiceAttr("axis", "row", "row", "col", "both"), alignmentAttr(),
			flagAttr("discrete_col_sfd"), flagAttr("transpose_col"), flagAttr("auto_norm"), flagAttr("per_expert")},
		Outputs: []Output{{"x_row", "(M,K)", "format", "axis row or both"}, {"sfx_row", "flat", "format", "axis row or both"},
			{"x_col", "(M,K)", "format", "axis col or both"}, {"sfx_col", "flat", "format", "axis col or both"},
			{"global_scale", "(1,) or (E,)", "f32", "auto_norm"}},
		build: quantize,
	},
	{
		Name: "dequantize", Kinds: []string{"dequantize"}, Doc: "y = code * factor (* global_scale)", Example: "format=nvfp4",
		Operands: []Operand{{Name: "x", Shape: "(M,K)", Format: "format"}, {Name: "sfx", Shape: "flat", Format: "format"},
			{Name: "global_scale", Shape: "(1,)", Format: "f32", Optional: true}},
		Attrs:   []Attr{choiceAttr("format", "", nodes.BlockFamilies()...), vecAttr(), choiceAttr("axis", "row", "row", "col"), formatAttr("y_dtype", dtype.Float32)},
		Outputs: []Output{{"y", "(M,K)", "y_dtype", ""}},
		build:   dequantize,
	},
	{
		Name: "grouped-gemm", Doc: "C = alpha[g] A_g B_g^T (+ prob bias[g]); D = prob C, with a bias C", Example: "d_dtype=f32 generate_c=1",
		Kinds:    []string{"grouped_gemm"},
		Operands: gemmOperands(plain),
		Attrs:    join(layoutAttrs(), []Attr{formatAttr("d_dtype", dtype.BFloat16), flagAttr("generate_c"), formatAttr("c_dtype", dtype.BFloat16)}, launchAttrs()),
		Outputs:  []Output{{"d", "(M,N)", "d_dtype", ""}, {"c", "(M,N)", "c_dtype", "generate_c"}},
		build:    groupedGEMM,
	},
	{
		Name: "grouped-gemm-quant", Kinds: []string{"grouped_gemm_quant"}, Doc: "D = prob alpha[g] A_g B_g^T of block-scaled operands, quantized where asked", Example: "d_dtype=e4m3",
		Operands: quantOperands(),
		Attrs:    join(layoutAttrs(), []Attr{vecAttr(), formatAttr("d_dtype", dtype.BFloat16), flagAttr("discrete_col_sfd")}, launchAttrs()),
		Outputs:  join([]Output{{"d", "(M,N)", "d_dtype", "d_dtype bf16, f16 or f32"}, {"amax", "(E,1)", "f32", "d_dtype bf16 or f16"}}, quantizedOutputs("d", "(M,N)")),
		build:    groupedGEMMQuant,
	},
	{
		Name: "grouped-gemm-glu", Doc: "C = alpha[g] A_g B_g^T (+ bias[g]); D = prob act(gate, up)", Example: "act_func=geglu generate_c=1",
		Kinds:    []string{"grouped_gemm_glu"},
		Operands: join(gemmOperands(plain+scaledToo), []Operand{sfa, sfb, normConst}),
		Attrs: join(activationAttrs(), []Attr{choiceAttr("weight_layout", "interleaved32", "interleaved32", "concat", "pairs")}, layoutAttrs(),
			[]Attr{formatAttr("d_dtype", dtype.BFloat16), flagAttr("generate_c"), formatAttr("c_dtype", dtype.BFloat16), vecAttr(), flagAttr("discrete_col_sfd")},
			launchAttrs()),
		Outputs: join([]Output{{"d", "(M,N/2)", "d_dtype", "d_dtype bf16, f16 or f32"}, {"c", "(M,N)", "c_dtype", "generate_c"},
			{"amax", "(E,1)", "f32", "fp8 or fp4 operands and d_dtype bf16 or f16"}}, quantizedOutputs("d", "(M,N/2)")),
		build: groupedGEMMGLU,
	},
	{
		Name: "grouped-gemm-dglu", Doc: "G = alpha[g] dY_g B_g; dC, dprob, amax, dbias and the activation from G and C", Example: "dc_dtype=f32 generate_dbias=1",
		Kinds: []string{"grouped_gemm_dglu", "grouped_gemm_dglu_quant"},
		Operands: []Operand{{Name: "a", Shape: "(M,K)", Format: plain + scaledToo}, {Name: "b", Shape: "(E,n,K); b_major n: (E,K,n)", Format: "as a", PerExpert: true},
			{Name: "c", Shape: "(M,2n)", Format: plain}, paddedOffsets, counts, alpha, prob,
			{Name: "beta", Shape: "(E,)", Format: "f32", Optional: true}, sfa, sfb, normConst},
		Attrs: join(activationAttrs(), layoutAttrs(), []Attr{formatAttr("dc_dtype", dtype.BFloat16), flagAttr("generate_dbias"), flagAttr("generate_act"),
			formatAttr("act_dtype", dtype.BFloat16), vecAttr(), flagAttr("discrete_col_sfd")}, launchAttrs()),
		Outputs: join([]Output{{"dc", "(M,2n)", "dc_dtype", "dc_dtype bf16, f16 or f32"}, {"dprob", "(M,)", "f32", ""}, {"amax", "(E,2)", "f32", "dc_dtype bf16 or f16"},
			{"dbias", "(E,2n)", "f32", "generate_dbias"}, {"act", "(M,n)", "act_dtype", "generate_act"}}, quantizedOutputs("dc", "(M,2n)")),
		build: groupedGEMMdGLU,
	},
	{
		Name: "glu", Doc: "D = prob act(gate, up) of a stored C", Example: "act_func=geglu",
		Kinds:    []string{"glu"},
		Operands: []Operand{{Name: "c", Shape: "(M,N)", Format: plain}, optional(paddedOffsets), counts, prob},
		Attrs:    join(activationAttrs(), []Attr{alignmentAttr(), formatAttr("d_dtype", dtype.BFloat16)}),
		Outputs:  []Output{{"d", "(M,N/2)", "d_dtype", ""}},
		build:    glu,
	},
	{
		Name: "wgrad", Doc: "wgrad[e] = alpha[e] a[:, tokens of e] b[tokens of e, :] (+ wgrad[e])", Example: "a_major=m wgrad_dtype=f32",
		Kinds: []string{"wgrad", "wgrad_quant"},
		Operands: []Operand{{Name: "a", Shape: "(hidden,tokens); a_major m: (tokens,hidden)", Format: plain + scaledToo},
			{Name: "b", Shape: "(tokens,intermediate); b_major k: (intermediate,tokens)", Format: "as a"},
			{Name: "offsets", Shape: "(E,)", Format: "int32"}, counts, alpha,
			{Name: "wgrad", Shape: "(E,hidden,intermediate)", Format: "wgrad_dtype", Optional: true, PerExpert: true, Update: true},
			sfa, {Name: "sfb", Shape: "flat", Format: "e8m0, e4m3", Optional: true},
			{Name: "global_scale_a", Shape: "(E,)", Format: "f32", Optional: true}, {Name: "global_scale_b", Shape: "(E,)", Format: "f32", Optional: true}},
		Attrs: join([]Attr{choiceAttr("a_major", "k", "k", "m"), choiceAttr("b_major", "n", "n", "k"), choiceAttr("input_order", "tensor2d", "tensor2d", "tensor_ragged"),
			choiceAttr("output_mode", "dense", "dense", "discrete"), flagAttr("accumulate_on_output"), alignmentAttr(), formatAttr("wgrad_dtype", dtype.BFloat16), vecAttr()},
			launchAttrs()),
		Outputs: []Output{{"wgrad", "(E,hidden,intermediate)", "wgrad_dtype", "output_mode dense"}, {"wgrad.0 ...", "(hidden,intermediate)", "wgrad_dtype", "output_mode discrete"}},
		check:   checkWGrad,
		build:   wgrad,
	},
	{
		Name: "router", Doc: "logits = x wr^T (+ logit_bias), the k experts of each token and their probabilities", Example: "top_k=2 order=sigmoid",
		Kinds: []string{"matmul", "topk"},
		Operands: []Operand{{Name: "x", Shape: "(T,H)", Format: "bf16, f32"}, {Name: "wr", Shape: "(E,H)", Format: "as x"},
			{Name: "logit_bias", Shape: "(E,)", Format: "f32", Optional: true}, {Name: "bias", Shape: "(E,)", Format: "f32", Optional: true}},
		Attrs: []Attr{positiveAttr("top_k"), orderAttr(), {Name: "normalize", Kind: Flag, Note: "0, 1 for sigmoid"},
			{Name: "scale", Kind: Float, Default: 1.0, want: "a finite number other than 0", ok: func(v any) bool { return finite(v) && v != 0.0 }}},
		Outputs: []Output{{"logits", "(T,E)", "f32", ""}, {"topk_idx", "(T,k)", "int32", ""}, {"topk_prob", "(T,k)", "f32", ""}},
		build:   router,
	},
	{
		Name: "dispatch", Doc: "counts, padded offsets and the maps between rows and slots, from expert ids", Example: "num_experts=8 alignment=128",
		Kinds: []string{"dispatch", "permute", "permute_prob"},
		Operands: []Operand{{Name: "topk_idx", Shape: "(T,k)", Format: "int32"}, {Name: "x", Shape: "(T,H)", Format: plain, Optional: true},
			{Name: "topk_prob", Shape: "(T,k)", Format: "f32", Optional: true}},
		Attrs: []Attr{positiveAttr("num_experts"), alignmentAttr(),
			intAttr("capacity", nil, "room for every slot", "an integer from 1 to 2^31-1", func(n int) bool { return n >= 1 && n < 1<<31 })},
		Outputs: []Output{{"counts", "(E,)", "int32", ""}, {"padded_offsets", "(E,)", "int32", ""}, {"row_map", "(T,k)", "int32", ""}, {"slot_map", "(M,)", "int32", ""},
			{"overflow", "(1,)", "int32", ""}, {"invalid", "(1,)", "int32", ""}, {"a", "(M,H)", "as x", "x"}, {"prob", "(M,)", "f32", "topk_prob"}},
		build: dispatch,
	},
	{
		Name: "router-losses", Doc: "load balance E sum_e f_e P_e and z-loss mean logsumexp(logits)^2, with gradients", Example: "top_k=2 generate_dlogits=1",
		Kinds:    []string{"router_losses", "router_losses_grad"},
		Operands: []Operand{{Name: "logits", Shape: "(T,E)", Format: "f32"}, {Name: "counts", Shape: "(E,)", Format: "int32"}},
		Attrs:    []Attr{positiveAttr("top_k"), orderAttr(), flagAttr("generate_dlogits")},
		Outputs: []Output{{"load_balance", "(1,)", "f32", ""}, {"z_loss", "(1,)", "f32", ""},
			{"dlogits_load_balance", "(T,E)", "f32", "generate_dlogits"}, {"dlogits_z_loss", "(T,E)", "f32", "generate_dlogits"}},
		build: routerLosses,
	},
	{
		Name: "combine", Doc: "y[t] = sum over slots of (topk_prob *) d[row of slot], in slot order", Example: "y_dtype=f32",
		Kinds: []string{"combine"},
		Operands: []Operand{{Name: "d", Shape: "(M,H)", Format: plain}, {Name: "row_map", Shape: "(T,k)", Format: "int32"},
			{Name: "topk_prob", Shape: "(T,k)", Format: "f32", Optional: true}},
		Attrs:   []Attr{formatAttr("y_dtype", dtype.BFloat16)},
		Outputs: []Output{{"y", "(T,H)", "y_dtype", ""}},
		build:   combine,
	},
	{
		Name: "rmsnorm", Doc: "y = x / sqrt(mean(x^2) + eps) * weight, row by row", Example: "eps=1e-6",
		Kinds:    []string{"rmsnorm"},
		Operands: []Operand{{Name: "x", Shape: "(T,H)", Format: plain}, {Name: "weight", Shape: "(H,)", Format: plain}},
		Attrs: []Attr{{Name: "eps", Kind: Float, Default: 1e-5, want: "a small number above 0", ok: func(v any) bool { return finite(v) && v.(float64) > 0 }},
			formatAttr("y_dtype", dtype.BFloat16)},
		Outputs: []Output{{"y", "(T,H)", "y_dtype", ""}, {"rstd", "(T,)", "f32", ""}},
		build:   rmsNorm,
	},
	{
		Name: "cross-entropy", Doc: "loss = mean over the labels that are not ignored, and its gradient", Example: "generate_dlogits=1",
		Kinds:    []string{"cross_entropy", "cross_entropy_grad"},
		Operands: []Operand{{Name: "logits", Shape: "(T,V)", Format: plain}, {Name: "labels", Shape: "(T,)", Format: "int32"}},
		Attrs:    []Attr{intAttr("ignore_index", -100, "", "a number that an int32 label can be", func(n int) bool { return int(int32(n)) == n }), flagAttr("generate_dlogits")},
		Outputs:  []Output{{"loss", "(1,)", "f32", ""}, {"dlogits", "(T,V)", "as logits", "generate_dlogits"}},
		build:    crossEntropy,
	},
}

// quantOperands are those of grouped-gemm-quant: factors and prob are required there.
func quantOperands() []Operand {
	ops := gemmOperands("e4m3, e5m2, e2m1")
	for i := range ops {
		if ops[i].Name == "prob" {
			ops[i].Optional = false
		}
	}
	a, b := sfa, sfb
	a.Optional, b.Optional = false, false
	return append(ops, a, b, normConst)
}
