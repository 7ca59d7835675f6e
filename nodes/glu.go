package nodes

import (
	"cmp"
	"fmt"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

func init() {
	opts := []string{"act_func = swiglu", "linear_offset = 1", "geglu_alpha = 1.702", "glu_clamp_max = 7", "glu_clamp_min = -7", "d_dtype = that of c"}
	graph.Register(graph.Info{Example: glu{Act: defaultAct, Align: DefaultAlignment, D: dtype.BFloat16}, Doc: "D = prob up gate sigmoid(gate), or clamped geglu, of a stored C in blocks of 32", Options: opts})
	graph.Register(graph.Info{Example: gluGrad{Act: defaultAct, Align: DefaultAlignment, DC: dtype.BFloat16, ActType: dtype.BFloat16},
		Doc: "dC, dprob, amax, dbias and the activation from dD and C", Options: append(opts[:5:5], "dc_dtype = that of c", "act_dtype = that of c"),
		NoGrad: "it makes gradients; their gradients are not needed for training"})
}

// gluBlock is the width of the blocks of C: 32 columns of gate, then 32 of up.
const gluBlock = 32

// Activation is the function between gate and up. The zero value is swiglu; Func "geglu" has options, whose
// nil means the default.
//
//	swiglu:  up * gate * sigmoid(gate)
//	geglu:   gate = min(gate, ClampMax); up = clamp(up, ClampMin, ClampMax)
//	         (up + LinearOffset) * gate * sigmoid(Alpha * gate)
type Activation struct {
	Func         string   // "swiglu" (default), "geglu"
	LinearOffset *float64 // default 1
	Alpha        *float64 // geglu_alpha, default 1.702
	ClampMax     *float64 // glu_clamp_max, default 7
	ClampMin     *float64 // glu_clamp_min, default -7
}

// act is an Activation with the defaults filled in.
type act struct {
	GeGLU                           bool
	LinearOffset, Alpha, Cmax, Cmin float64
}

var defaultAct = act{LinearOffset: 1, Alpha: 1.702, Cmax: 7, Cmin: -7}

func (a Activation) resolve() (act, error) {
	r := defaultAct
	for _, o := range []struct {
		to   *float64
		from *float64
	}{{&r.LinearOffset, a.LinearOffset}, {&r.Alpha, a.Alpha}, {&r.Cmax, a.ClampMax}, {&r.Cmin, a.ClampMin}} {
		if o.from != nil {
			*o.to = *o.from
		}
	}
	switch a.Func {
	case "", "swiglu":
		return defaultAct, nil
	case "geglu":
		r.GeGLU = true
	default:
		return r, graph.Unsupported("act_func", a.Func, "swiglu or geglu")
	}
	if !(r.Cmin <= r.Cmax) {
		return r, graph.BadShape("glu_clamp_min", r.Cmin, "at most glu_clamp_max = %v", r.Cmax)
	}
	return r, nil
}

// Layout is the order of gate and up on the N axis of weights and biases of FC1.
type Layout uint8

// The layouts. C itself is always LayoutInterleaved32.
const (
	LayoutInterleaved32 Layout = iota // blocks of 32 gate, 32 up
	LayoutConcat                      // all gate, then all up
	LayoutPairs                       // gate and up alternate
)

// ParseLayout returns the layout of a name.
func ParseLayout(name string) (Layout, error) {
	for l := LayoutInterleaved32; l <= LayoutPairs; l++ {
		if l.String() == name {
			return l, nil
		}
	}
	return 0, graph.Unsupported("weight_layout", name, "interleaved32, concat or pairs")
}

// String returns the layout's name.
func (l Layout) String() string {
	if l > LayoutPairs {
		return fmt.Sprintf("layout %d", uint8(l))
	}
	return [...]string{"interleaved32", "concat", "pairs"}[l]
}

// gate returns the column of gate j, up that of up j, where there are half of each.
func (l Layout) gate(j, half int) int {
	switch l {
	case LayoutConcat:
		return j
	case LayoutPairs:
		return 2 * j
	}
	return j/gluBlock*2*gluBlock + j%gluBlock
}

func (l Layout) up(j, half int) int {
	switch l {
	case LayoutConcat:
		return half + j
	case LayoutPairs:
		return 2*j + 1
	}
	return l.gate(j, half) + gluBlock
}

// GLU are the operands and options of the gated activation of a stored C (contracts, section 5).
//
//	D[m,j] = prob[m] * act(gate, up), gate and up de-interleaved from row m of C
//
// C is (M,N), N a multiple of 64, in blocks of 32 columns gate and 32 up; D is (M,N/2). PaddedOffsets and Counts,
// both or neither, say which rows are padding: read and written as zeros. Computed in float32 and rounded
// once. Gradients flow to C and Prob. A GLU of a grouped GEMM's C is fused into it.
type GLU struct {
	C                     *graph.Value
	Prob                  *graph.Value // f32 (M,), optional: 1
	PaddedOffsets, Counts *graph.Value // optional
	Activation            Activation
	Alignment             int // of the groups; default 256
	DType                 dtype.DType
}

// Apply appends the node and returns D.
func (o GLU) Apply() *graph.Value {
	a, err := o.Activation.resolve()
	if err != nil {
		return failIn("glu", o.C, err)
	}
	o.DType = cmp.Or(o.DType, o.C.DType())
	return graph.Apply(glu{Act: a, Align: alignment(o.Alignment), D: o.DType}, o.C, o.PaddedOffsets, o.Counts, o.Prob)[0]
}

type glu struct {
	Act   act
	Align int
	D     dtype.DType
}

// Positions of GLU's operands.
const (
	gluC = iota
	gluOffsets
	gluCounts
	gluProb
)

func (o glu) Kind() string { return "glu" }

func (o glu) Operands() []graph.Operand {
	return []graph.Operand{{Name: "c"}, {Name: "padded_offsets", Optional: true}, {Name: "counts", Optional: true}, {Name: "prob", Optional: true}}
}

func (o glu) Outputs() []string { return []string{"d"} }

func (o glu) Infer(in []*graph.Value) ([]graph.Spec, error) {
	c := in[gluC]
	rows, _, err := checkC(c, in[gluOffsets], in[gluCounts], in[gluProb], o.Align)
	if err != nil {
		return nil, err
	}
	if !plain(o.D) || isWide(o.D) != isWide(c.DType()) {
		return nil, graph.BadDType("d_dtype", o.D, "bf16, f16 or f32 (f64 with everything f64)")
	}
	return []graph.Spec{{DType: o.D, Shape: []int{c.Dim(0), c.Dim(1) / 2}, Rows: rows}}, nil
}

// checkC checks a stored C with its optional groups and prob. It returns what counts the rows and the number of
// experts, 0 without groups.
func checkC(c, offsets, counts, prob *graph.Value, align int) (rows *graph.Value, experts int, err error) {
	if c.Rank() != 2 {
		return nil, 0, graph.BadShape("c", c.Text(), "(M,N)")
	}
	if err := checkGLUWidth("c", c.Dim(1)); err != nil {
		return nil, 0, err
	}
	if !plain(c.DType()) {
		return nil, 0, graph.BadDType("c", c.DType(), "bf16, f16 or f32 (f64 with everything f64)")
	}
	if err := checkProb(prob, c.Dim(0), c.DType()); err != nil {
		return nil, 0, err
	}
	if offsets == nil {
		if counts != nil {
			return nil, 0, graph.Misuse("counts", "counts without padded_offsets", "both or neither")
		}
		if prob.Rows() != nil {
			err = graph.SameRows("prob", c, prob)
		}
		return c.Rows(), 0, err
	}
	experts, err = checkGroups("padded_offsets", offsets, counts, c.Dim(0), align)
	return offsets, experts, err
}

func checkGLUWidth(operand string, n int) error {
	if n%(2*gluBlock) != 0 {
		return graph.BadShape("N", fmt.Sprintf("%d in %s", n, operand), "a multiple of 64 (blocks of 32 gate and 32 up), such as %d", (n+63)/64*64)
	}
	return nil
}

func (o glu) Gradient(n *graph.Node, grads []*graph.Value) []*graph.Value {
	c, prob := n.In(gluC), n.In(gluProb)
	out := graph.Apply(gluGrad{Act: o.Act, Align: o.Align, DC: c.DType(), ActType: c.DType()},
		grads[0], n.In(gluOffsets), n.In(gluCounts), prob, nil, c)
	in := make([]*graph.Value, 4)
	in[gluC] = out[dgluDC]
	if prob != nil {
		in[gluProb] = out[dgluDProb]
	}
	return in
}

// gluGrad is the backward of GLU on a stored gradient; with the GEMM that makes the gradient it fuses into
// grouped_gemm_dglu, whose formulas it shares.
type gluGrad struct {
	Act         act
	Align       int
	DC, ActType dtype.DType
	Layout      Layout // of dC and dbias
}

// Positions of the operands that gluGrad and groupedGEMMdGLU share, after the gradient and groups.
const (
	gradDD = iota
	gradOffsets
	gradCounts
	gradProb
	gradBeta
	gradC
)

// Positions of the outputs of gluGrad and groupedGEMMdGLU.
const (
	dgluDC = iota
	dgluDProb
	dgluAmax
	dgluDBias
	dgluAct
)

func (o gluGrad) Kind() string { return "glu_grad" }

func (o gluGrad) Operands() []graph.Operand {
	return []graph.Operand{{Name: "dd"}, {Name: "padded_offsets", Optional: true}, {Name: "counts", Optional: true},
		{Name: "prob", Optional: true}, {Name: "beta", Optional: true}, {Name: "c"}}
}

func (o gluGrad) Outputs() []string { return dgluOutputs }

var dgluOutputs = []string{"dc", "dprob", "amax", "dbias", "act"}

func (o gluGrad) Infer(in []*graph.Value) ([]graph.Spec, error) {
	dd, c := in[gradDD], in[gradC]
	rows, experts, err := checkC(c, in[gradOffsets], in[gradCounts], in[gradProb], o.Align)
	if err != nil {
		return nil, err
	}
	if dd.Rank() != 2 || dd.Dim(0) != c.Dim(0) || 2*dd.Dim(1) != c.Dim(1) || !plain(dd.DType()) {
		return nil, graph.BadShape("dd", dd.Text(), "(%d,%d) in %s", c.Dim(0), c.Dim(1)/2, floats)
	}
	if in[gradBeta] != nil && experts == 0 {
		return nil, graph.Misuse("beta", "beta without padded_offsets", "both")
	}
	if err := checkStat("beta", in[gradBeta], experts, c.DType()); err != nil {
		return nil, err
	}
	return dgluSpecs(c, rows, experts, o.DC, o.ActType), nil
}

// dgluSpecs describes the outputs that gluGrad and groupedGEMMdGLU share. What is summed or compared over a
// group exists with groups only.
func dgluSpecs(c, rows *graph.Value, experts int, dc, actType dtype.DType) []graph.Spec {
	m, n := c.Dim(0), c.Dim(1)
	stat := statType(c.DType())
	s := []graph.Spec{
		dgluDC:    {DType: dc, Shape: []int{m, n}, Rows: rows},
		dgluDProb: {DType: stat, Shape: []int{m}, Rows: rows},
		dgluAct:   {DType: actType, Shape: []int{m, n / 2}, Rows: rows},
	}
	if experts > 0 {
		s[dgluAmax] = graph.Spec{DType: stat, Shape: []int{experts, 2}}
		s[dgluDBias] = graph.Spec{DType: stat, Shape: []int{experts, n}}
	}
	return s
}
