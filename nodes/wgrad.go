package nodes

import (
	"cmp"
	"fmt"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

func init() {
	graph.Register(graph.Info{
		Example: wgrad{Align: DefaultAlignment, DType: dtype.BFloat16},
		Doc:     "wgrad[e] = alpha[e] a[:, tokens of e] b[tokens of e, :] (+ wgrad[e])",
		Options: []string{"a_major = k", "b_major = n", "input_order = tensor2d", "output_mode = dense", "accumulate_on_output = 0", "alignment = 256", "wgrad_dtype = that of a", "tile, cluster, scheduler, family = chosen"},
		NoGrad:  "it makes gradients of weights; their gradients are not needed for training",
	})
}

// WGrad are the operands and options of the gradient of grouped weights (contracts, section 8).
//
//	wgrad[e] = alpha[e] * a[:, begin:end] b[begin:end, :] (+ wgrad[e] when accumulating)
//
// A is (hidden,tokens), B (tokens,intermediate), each stored in either major, both bf16, f16 or f32 (f64 with
// everything f64). Accumulation in float32; accumulating adds in float32 and rounds once. An expert
// without tokens gives zeros, or leaves the accumulator as it is. With Counts padding tokens are not read.
//
// A and B may be block-scaled in one family, with factors along the tokens: fp8 in either major, fp4 K-major, tokens
// contiguous. The groups' alignment is then 128 or 256.
type WGrad struct {
	A, B    *graph.Value
	Offsets *graph.Value // int32 (E,) over tokens
	Counts  *graph.Value // int32 (E,), optional
	Alpha   *graph.Value // f32 (E,), optional: 1

	// Of block-scaled operands: their factors, for each expert in order a matrix with hidden (intermediate) rows and
	// ceil(tokens/vec) columns in blocks of its own, flat, as Quantize's DiscreteColSF lays them out; and, of NVFP4,
	// the global scales, f32 (E,), which the sum is multiplied by.
	SFA, SFB                   *graph.Value
	SFVec                      int // elements a factor; default 32 for fp8, 16 for fp4
	GlobalScaleA, GlobalScaleB *graph.Value

	AMajorM   bool // A is stored (tokens,hidden); default (hidden,tokens)
	BMajorK   bool // B is stored (intermediate,tokens); default (tokens,intermediate)
	Ragged    bool // input order tensor_ragged: a token-contiguous operand holds expert after expert
	Alignment int  // of the groups; default 256
	DType     dtype.DType
	Launch    Launch

	// The output is dense, (E,hidden,intermediate), unless Discrete asks for one (hidden,intermediate) an
	// expert, or Ptrs gives their addresses: uint64 (E,), as Weights.Ptrs.
	Discrete bool
	Ptrs     *graph.Value
	// Into, if set, are the variables that are accumulated into, in place: one, or with Discrete one an expert.
	// With Ptrs, Accumulate says that what the addresses hold is accumulated into.
	Into       []*graph.Value
	Accumulate bool
}

// Apply appends the node and returns its outputs: the dense gradient, or one an expert; none with Ptrs or Into.
func (o WGrad) Apply() []*graph.Value {
	if len(o.Into) > 0 {
		o.DType = cmp.Or(o.DType, o.Into[0].DType())
	}
	scaled := o.scaled()
	if scaled {
		o.DType = cmp.Or(o.DType, dtype.BFloat16)
	}
	o.DType = cmp.Or(o.DType, o.A.DType())
	op := wgrad{AMajorM: o.AMajorM, BMajorK: o.BMajorK, Ragged: o.Ragged, Align: alignment(o.Alignment), DType: o.DType, Launch: o.Launch,
		Accumulate: len(o.Into) > 0 || o.Accumulate, Ptrs: o.Ptrs != nil}
	fail := func(err error) []*graph.Value { return []*graph.Value{failIn(op.Kind(), o.A, err)} }
	if o.Discrete {
		op.Discrete = o.Offsets.Dim(0)
	}
	switch {
	case op.Discrete > MaxExperts: // before anything counts to it
		return fail(graph.BadShape("offsets", o.Offsets.Text(), "(E,) with E from 1 to %d", MaxExperts))
	case op.Ptrs && (o.Discrete || len(o.Into) > 0):
		return fail(graph.Misuse("wgrad_ptrs", "addresses and another output", "one kind of output"))
	case o.Accumulate && !op.Ptrs && len(o.Into) == 0:
		return fail(graph.Misuse("wgrad", "none", "the old gradient when accumulating"))
	case len(o.Into) > 0 && len(o.Into) != max(1, op.Discrete):
		return fail(graph.Misuse("wgrad", fmt.Sprintf("%d variables", len(o.Into)), "%d", max(1, op.Discrete)))
	}
	in := []*graph.Value{o.A, o.B, o.Offsets, o.Counts, o.Alpha}
	var node graph.Op = op
	if scaled {
		in = append(in, o.SFA, o.SFB, o.GlobalScaleA, o.GlobalScaleB)
		node = scaledWGrad{WGrad: op, Vec: o.SFVec}
	}
	if op.Ptrs {
		in = append(in, o.Ptrs)
	}
	out := graph.Apply(node, append(in, o.Into...)...)
	if op.Accumulate || op.Ptrs {
		return nil
	}
	return out
}

type wgrad struct {
	AMajorM, BMajorK, Ragged bool
	Align                    int
	DType                    dtype.DType
	Discrete                 int // experts, for discrete outputs
	Ptrs, Accumulate         bool
	Launch                   Launch
}

// Positions of WGrad's operands; accumulators or addresses follow.
const (
	wgA = iota
	wgB
	wgOffsets
	wgCounts
	wgAlpha
	wgInto
)

func (o wgrad) Kind() string { return "wgrad" }

func (o wgrad) Operands() []graph.Operand {
	return append([]graph.Operand{{Name: "a"}, {Name: "b"}, {Name: "offsets"}, {Name: "counts", Optional: true}, {Name: "alpha", Optional: true}}, o.into()...)
}

// into lists what is written to that is no output.
func (o wgrad) into() (ops []graph.Operand) {
	switch {
	case o.Ptrs:
		ops = append(ops, graph.Operand{Name: "wgrad_ptrs"})
	case o.Accumulate:
		for _, name := range o.outputs() {
			ops = append(ops, graph.Operand{Name: name, Update: true})
		}
	}
	return ops
}

// outputs names the gradients, whether they are outputs or accumulators.
func (o wgrad) outputs() []string {
	if o.Discrete == 0 {
		return []string{"wgrad"}
	}
	names := make([]string, o.Discrete)
	for e := range names {
		names[e] = fmt.Sprintf("wgrad.%d", e)
	}
	return names
}

func (o wgrad) Outputs() []string {
	if o.Ptrs || o.Accumulate {
		return nil
	}
	return o.outputs()
}

// Effect implements graph.Effecter.
func (o wgrad) Effect() bool { return o.Ptrs }

// hidden, tokens and intermediate of the operands as stored.
func (o wgrad) dims(in []*graph.Value) (hidden, tokensA, tokensB, inter int) {
	_, a := codesOf(in[wgA])
	_, b := codesOf(in[wgB])
	hidden, tokensA = a[0], a[1]
	if o.AMajorM {
		hidden, tokensA = tokensA, hidden
	}
	tokensB, inter = b[0], b[1]
	if o.BMajorK {
		tokensB, inter = inter, tokensB
	}
	return
}

func (o wgrad) Infer(in []*graph.Value) ([]graph.Spec, error) {
	a := in[wgA]
	for i, v := range in[:2] {
		name := o.Operands()[i].Name
		if v.Rank() != 2 {
			return nil, graph.BadShape(name, v.Text(), "a matrix")
		}
		if !plain(v.DType()) || v.DType() != a.DType() {
			return nil, graph.BadDType(name, v.DType(), "bf16, f16 or f32, a and b alike (f64 with everything f64)")
		}
	}
	hidden, tokensA, tokensB, inter := o.dims(in)
	if tokensA != tokensB {
		return nil, graph.BadShape("b", fmt.Sprintf("%d tokens in %s", tokensB, in[wgB].Text()), "the %d tokens of a %s", tokensA, a.Text())
	}
	experts, err := checkGroups("offsets", in[wgOffsets], in[wgCounts], tokensA, o.Align)
	if err != nil {
		return nil, err
	}
	if err := checkStat("alpha", in[wgAlpha], experts, a.DType()); err != nil {
		return nil, err
	}
	if err := o.checkMajors(in, hidden, inter); err != nil {
		return nil, err
	}
	if err := checkOut("wgrad", o.DType, a.DType(), inter); err != nil {
		return nil, err
	}
	return o.specs(in[wgInto:], experts, hidden, inter)
}

// checkMajors checks the contiguous axis of each operand: 16-byte rows, and for tokens groups of 16 bytes.
func (o wgrad) checkMajors(in []*graph.Value, hidden, inter int) error {
	dt, _ := codesOf(in[wgA])
	unit := 128 / dt.Bits()
	if (!o.AMajorM || o.BMajorK) && o.Align%unit != 0 {
		return graph.BadShape("alignment", o.Align, "at least %d where tokens are contiguous (16 bytes of %s)", unit, dt)
	}
	if o.AMajorM {
		if err := check16("a", "hidden", dt, hidden); err != nil {
			return err
		}
	} else if in[wgA].Rows() != nil {
		return graph.BadShape("a", in[wgA].Text(), "rows that are not counted: they are the hidden axis")
	}
	if !o.BMajorK {
		return check16("b", "intermediate", dt, inter)
	} else if in[wgB].Rows() != nil {
		return graph.BadShape("b", in[wgB].Text(), "rows that are not counted: they are the intermediate axis")
	}
	return nil
}

// specs checks what is written to, into, and describes the outputs.
func (o wgrad) specs(into []*graph.Value, experts, hidden, inter int) ([]graph.Spec, error) {
	shape := []int{experts, hidden, inter}
	if o.Discrete > 0 {
		shape = shape[1:]
		if o.Discrete != experts {
			return nil, graph.Misuse("wgrad", fmt.Sprintf("%d discrete outputs", o.Discrete), "one for each of %d experts", experts)
		}
	}
	want := graph.Spec{DType: o.DType, Shape: shape}
	switch {
	case o.Ptrs:
		if p := into[0]; p.DType() != dtype.Uint64 || p.Rank() != 1 || p.Dim(0) != experts || p.Rows() != nil {
			return nil, graph.BadShape("wgrad_ptrs", p.Text(), "uint64 (%d,)", experts)
		}
		return nil, nil
	case o.Accumulate:
		for e, v := range into {
			if v.DType() != o.DType || fmt.Sprint(v.Shape()) != fmt.Sprint(shape) {
				return nil, graph.BadShape(o.outputs()[e], v.Text(), "%s %v", o.DType, shape)
			}
		}
		return nil, nil
	}
	specs := make([]graph.Spec, len(o.Outputs()))
	for i := range specs {
		specs[i] = want
	}
	return specs, nil
}

// Flops implements graph.Coster.
func (o wgrad) Flops(n *graph.Node) int64 {
	hidden, tokens, _, inter := o.dims([]*graph.Value{n.In(wgA), n.In(wgB)})
	return 2 * int64(hidden) * int64(tokens) * int64(inter)
}
