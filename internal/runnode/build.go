package runnode

import (
	"fmt"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/npz"
	"github.com/moegraph/moegraph/nodes"
)

func encode(c *call) { c.out("y", nodes.Encode(c.value("x"), c.attr.dtype("format"))) }

// checkDecode holds the codes against the attribute that names their format.
func checkDecode(c *call) error {
	if x, from := c.in["x"][0], c.attr.dtype("format"); x.Format != from {
		return graph.BadDType("x", x.Format, "%s as format says", from)
	}
	return nil
}

func decode(c *call) { c.out("y", nodes.Decode(c.value("x"))) }

// blockFormat reads format and sf_vec_size.
func (c *call) blockFormat() nodes.BlockFormat {
	f, err := nodes.ParseBlockFormat(c.attr.text("format"), c.attr.int("sf_vec_size"))
	if err != nil {
		c.g.Fail(fmt.Errorf("%s: %w", c.node.Name, err))
	}
	return f
}

func (c *call) axis() nodes.Axis {
	a, err := nodes.ParseAxis(c.attr.text("axis"))
	if err != nil {
		c.g.Fail(fmt.Errorf("%s: %w", c.node.Name, err))
	}
	return a
}

func quantize(c *call) {
	transpose := c.attr.flag("transpose_col")
	o := nodes.Quantize{
		X: c.value("x"), PaddedOffsets: c.value("padded_offsets"), Counts: c.value("counts"), NormConst: c.value("norm_const"),
		GlobalScale: c.value("global_scale"), Format: c.blockFormat(), Axis: c.axis(), Alignment: c.attr.int("alignment"),
		DiscreteColSF: c.attr.flag("discrete_col_sfd"), TransposeCol: transpose,
		AutoNorm: c.attr.flag("auto_norm"), PerExpert: c.attr.flag("per_expert"),
	}.Apply()
	for _, out := range []struct {
		name string
		v    *graph.Value
	}{{"x_row", o.Row}, {"sfx_row", o.RowSF}, {"x_col", o.Col}, {"sfx_col", o.ColSF}, {"global_scale", o.GlobalScale}} {
		if out.v != nil {
			c.out(out.name, out.v)
		}
		if offsets := c.in["padded_offsets"]; out.v != nil && out.name == "x_col" && transpose && len(offsets) > 0 {
			if ends := graph.View[int32](offsets[0].Array.Data); len(ends) > 0 {
				valid := int(ends[len(ends)-1])
				c.outs[len(c.outs)-1].valid = &valid
			}
		}
	}
}

func dequantize(c *call) {
	c.out("y", nodes.Dequantize{X: c.value("x"), SF: c.value("sfx"), GlobalScale: c.value("global_scale"), Format: c.blockFormat(),
		Axis: c.axis(), DType: c.attr.dtype("y_dtype")}.Apply())
}

// weights reads b and its factors, dense or discrete.
func (c *call) weights() nodes.Weights {
	w := nodes.Weights{NMajor: c.attr.text("b_major") == "n"}
	if c.discrete("sfb") {
		w.DiscreteSF = c.v["sfb"]
	} else {
		w.SF = c.value("sfb")
	}
	if c.discrete("b") {
		w.Discrete = c.v["b"]
	} else {
		w.Dense = c.value("b")
	}
	return w
}

// scales reads what block-scaled operands bring.
func (c *call) scales() nodes.Scales {
	return nodes.Scales{SFA: c.value("sfa"), SFVec: c.attr.int("sf_vec_size"), NormConst: c.value("norm_const"), DiscreteColSF: c.attr.flag("discrete_col_sfd")}
}

// scaledOut marks output x of a product of block-scaled operands, or its quantized parts, and amax, where they exist.
func (c *call) scaledOut(x string, row, col, sfRow, sfCol, amax *graph.Value) {
	if col == nil {
		c.out(x, row)
	} else {
		c.out(x+"_row", row)
		c.out(x+"_col", col)
		c.out("sf"+x+"_row", sfRow)
		c.out("sf"+x+"_col", sfCol)
	}
	if amax != nil {
		c.out("amax", amax)
	}
}

func groupedGEMMQuant(c *call) {
	o := nodes.GroupedGEMM{
		A: c.value("a"), B: c.weights(), PaddedOffsets: c.value("padded_offsets"), Counts: c.value("counts"),
		Alpha: c.value("alpha"), Prob: c.value("prob"), Bias: c.value("bias"), Scales: c.scales(),
		Alignment: c.attr.int("alignment"), DType: c.attr.dtype("d_dtype"), Launch: c.launch(),
	}.ApplyScaled()
	c.scaledOut("d", o.D, o.DCol, o.SFDRow, o.SFDCol, o.Amax)
}

func (c *call) launch() nodes.Launch {
	return nodes.Launch{Tile: c.attr.pair("tile"), Cluster: c.attr.pair("cluster"), Scheduler: c.attr.text("scheduler"), Family: c.attr.text("family")}
}

func (c *call) activation() nodes.Activation {
	number := func(name string) *float64 {
		x := c.attr.float(name)
		return &x
	}
	return nodes.Activation{Func: c.attr.text("act_func"), LinearOffset: number("linear_offset"), Alpha: number("geglu_alpha"),
		ClampMax: number("glu_clamp_max"), ClampMin: number("glu_clamp_min")}
}

// cType is the format of C where it is asked for; else the node chooses, for the rules on C's rows do not matter.
func (c *call) cType() dtype.DType {
	if !c.attr.flag("generate_c") {
		return dtype.Invalid
	}
	return c.attr.dtype("c_dtype")
}

func groupedGEMM(c *call) {
	d, cc := nodes.GroupedGEMM{
		A: c.value("a"), B: c.weights(), PaddedOffsets: c.value("padded_offsets"), Counts: c.value("counts"),
		Alpha: c.value("alpha"), Prob: c.value("prob"), Bias: c.value("bias"),
		Alignment: c.attr.int("alignment"), DType: c.attr.dtype("d_dtype"), CType: c.cType(), Launch: c.launch(),
	}.Apply()
	c.out("d", d)
	if c.attr.flag("generate_c") {
		c.out("c", cc)
	}
}

// scaled says whether operand a holds codes.
func (c *call) scaled() bool {
	dt := c.in["a"][0].Format
	return dt.Bits() <= 8
}

func groupedGEMMGLU(c *call) {
	layout, err := nodes.ParseLayout(c.attr.text("weight_layout"))
	if err != nil {
		c.g.Fail(err)
	}
	o := nodes.GroupedGEMMGLU{
		A: c.value("a"), B: c.weights(), PaddedOffsets: c.value("padded_offsets"), Counts: c.value("counts"),
		Alpha: c.value("alpha"), Prob: c.value("prob"), Bias: c.value("bias"), Scales: c.scales(),
		Activation: c.activation(), Layout: layout, Alignment: c.attr.int("alignment"),
		DType: c.attr.dtype("d_dtype"), CType: c.cType(), Launch: c.launch(),
	}
	var cc *graph.Value
	if c.scaled() {
		s := o.ApplyScaled()
		c.scaledOut("d", s.D, s.DCol, s.SFDRow, s.SFDCol, s.Amax)
		cc = s.C
	} else {
		var d *graph.Value
		d, cc = o.Apply()
		c.out("d", d)
	}
	if c.attr.flag("generate_c") {
		c.out("c", cc)
	}
}

func groupedGEMMdGLU(c *call) {
	dc := c.attr.dtype("dc_dtype")
	o := nodes.GroupedGEMMdGLU{
		A: c.value("a"), B: c.weights(), C: c.value("c"), PaddedOffsets: c.value("padded_offsets"), Counts: c.value("counts"),
		Alpha: c.value("alpha"), Prob: c.value("prob"), Beta: c.value("beta"), Scales: c.scales(),
		Activation: c.activation(), Alignment: c.attr.int("alignment"), DType: dc, ActType: c.attr.dtype("act_dtype"), Launch: c.launch(),
	}.Apply()
	var amax *graph.Value
	if dc.Bits() == 16 {
		amax = o.Amax
	}
	c.scaledOut("dc", o.DC, o.DCCol, o.SFDCRow, o.SFDCCol, amax)
	c.out("dprob", o.DProb)
	if c.attr.flag("generate_dbias") {
		c.out("dbias", o.DBias)
	}
	if c.attr.flag("generate_act") {
		c.out("act", o.Act)
	}
}

func glu(c *call) {
	c.out("d", nodes.GLU{C: c.value("c"), Prob: c.value("prob"), PaddedOffsets: c.value("padded_offsets"), Counts: c.value("counts"),
		Activation: c.activation(), Alignment: c.attr.int("alignment"), DType: c.attr.dtype("d_dtype")}.Apply())
}

// checkWGrad holds accumulators against the attributes that ask for them.
func checkWGrad(c *call) error {
	accumulate, discrete := c.attr.flag("accumulate_on_output"), c.attr.text("output_mode") == "discrete"
	switch {
	case accumulate && !c.has("wgrad"):
		return graph.Misuse("wgrad", "none", "the gradient to accumulate on (accumulate_on_output is 1)")
	case !accumulate && c.has("wgrad"):
		return graph.Misuse("wgrad", "an operand", "none, or accumulate_on_output 1")
	case accumulate && c.discrete("wgrad") != discrete:
		return graph.Misuse("wgrad", map[bool]string{true: "one array an expert", false: "one array for all experts"}[c.discrete("wgrad")],
			"the other form: output_mode is %s", c.attr.text("output_mode"))
	}
	return nil
}

func wgrad(c *call) {
	o := nodes.WGrad{
		A: c.value("a"), B: c.value("b"), Offsets: c.value("offsets"), Counts: c.value("counts"), Alpha: c.value("alpha"),
		SFA: c.value("sfa"), SFB: c.value("sfb"), SFVec: c.attr.int("sf_vec_size"), GlobalScaleA: c.value("global_scale_a"), GlobalScaleB: c.value("global_scale_b"),
		AMajorM: c.attr.text("a_major") == "m", BMajorK: c.attr.text("b_major") == "k", Ragged: c.attr.text("input_order") == "tensor_ragged",
		Alignment: c.attr.int("alignment"), DType: c.attr.dtype("wgrad_dtype"), Launch: c.launch(),
		Discrete: c.attr.text("output_mode") == "discrete", Into: c.v["wgrad"],
	}
	grads := o.Apply()
	if len(o.Into) > 0 {
		grads = o.Into
	}
	for e, g := range grads {
		if !o.Discrete {
			e = npz.Dense
		}
		c.outExpert("wgrad", e, g)
	}
}

func (c *call) order() nodes.Order {
	order, err := nodes.ParseOrder(c.attr.text("order"))
	if err != nil {
		c.g.Fail(err)
	}
	return order
}

func router(c *call) {
	r := nodes.Router{X: c.value("x"), Weight: c.value("wr"), LogitBias: c.value("logit_bias"), SelectBias: c.value("bias"),
		K: c.attr.int("top_k"), Order: c.order(), Scale: c.attr.float("scale")}
	if c.attr.given["normalize"] {
		normalize := c.attr.flag("normalize")
		r.Normalize = &normalize
	}
	logits, idx, prob := r.Apply()
	c.out("logits", logits)
	c.out("topk_idx", idx)
	c.out("topk_prob", prob)
}

func dispatch(c *call) {
	r := nodes.Dispatch{TopKIdx: c.value("topk_idx"), Experts: c.attr.int("num_experts"), Alignment: c.attr.int("alignment"), Capacity: c.attr.int("capacity")}.Apply()
	c.out("counts", r.Counts)
	c.out("padded_offsets", r.PaddedOffsets)
	c.out("row_map", r.RowMap)
	c.out("slot_map", r.SlotMap)
	c.out("overflow", r.Overflow)
	c.out("invalid", r.Invalid)
	if x := c.value("x"); x != nil {
		c.out("a", r.Permute(x))
	}
	if prob := c.value("topk_prob"); prob != nil {
		c.out("prob", r.PermuteProb(prob))
	}
}

func routerLosses(c *call) {
	logits := c.value("logits")
	balance, z := nodes.RouterLosses{Logits: logits, Counts: c.value("counts"), K: c.attr.int("top_k"), Order: c.order()}.Apply()
	c.out("load_balance", balance)
	c.out("z_loss", z)
	if c.attr.flag("generate_dlogits") {
		c.out("dlogits_load_balance", c.g.Gradients(balance, logits).Value[0])
		c.out("dlogits_z_loss", c.g.Gradients(z, logits).Value[0])
	}
}

func combine(c *call) {
	c.out("y", nodes.Routing{RowMap: c.value("row_map")}.Combine(c.value("d"), c.value("topk_prob"), c.attr.dtype("y_dtype")))
}

func rmsNorm(c *call) {
	y := nodes.RMSNorm(c.value("x"), c.value("weight"), nodes.RMSNormConfig{Eps: c.attr.float("eps"), DType: c.attr.dtype("y_dtype")})
	c.out("y", y)
	if n := y.Producer(); n != nil { // nil where the node was refused
		c.out("rstd", n.Out(1))
	}
}

func crossEntropy(c *call) {
	ignore := c.attr.int("ignore_index")
	logits := c.value("logits")
	loss := nodes.CrossEntropy(logits, c.value("labels"), nodes.CrossEntropyConfig{IgnoreIndex: &ignore})
	c.out("loss", loss)
	if c.attr.flag("generate_dlogits") {
		c.out("dlogits", c.g.Gradients(loss, logits).Value[0])
	}
}
