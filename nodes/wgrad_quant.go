package nodes

import (
	"fmt"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

func init() {
	graph.Register(graph.Info{
		Example: scaledWGrad{WGrad: wgrad{Align: DefaultAlignment, DType: dtype.BFloat16}},
		Doc:     "wgrad[e] = alpha[e] global_scale_a[e] global_scale_b[e] a[:, tokens of e] b[tokens of e, :] (+ wgrad[e]) of block-scaled operands",
		Options: []string{"sf_vec_size = 32 for fp8, 16 for fp4", "a_major = k", "b_major = n", "input_order = tensor2d", "output_mode = dense", "accumulate_on_output = 0", "alignment = 256", "wgrad_dtype = bf16", "tile, cluster, scheduler, family = chosen"},
		NoGrad:  "it makes gradients of weights; their gradients are not needed for training",
	})
}

// scaled says whether this is a WGrad of block-scaled operands, or of others with an argument that only they have.
func (o WGrad) scaled() bool {
	return narrow(o.A.DType()) || o.A.DType() == dtype.Uint8 || narrow(o.B.DType()) || o.SFA != nil || o.SFB != nil || o.SFVec != 0 ||
		o.GlobalScaleA != nil || o.GlobalScaleB != nil
}

// scaledWGrad is WGrad of block-scaled operands (contracts, section 8).
type scaledWGrad struct {
	WGrad wgrad
	Vec   int // sf_vec_size as given
}

// Positions of scaledWGrad's operands beyond those of wgrad; accumulators or addresses follow.
const (
	scaledWGSFA = wgAlpha + 1 + iota
	scaledWGSFB
	scaledWGGlobalA
	scaledWGGlobalB
	scaledWGInto
)

func (o scaledWGrad) Kind() string { return "wgrad_quant" }

func (o scaledWGrad) Operands() []graph.Operand {
	ops := wgrad{}.Operands()
	for _, name := range []string{"sfa", "sfb", "global_scale_a", "global_scale_b"} {
		ops = append(ops, graph.Operand{Name: name, Optional: true})
	}
	return append(ops, o.WGrad.into()...)
}

func (o scaledWGrad) Outputs() []string { return o.WGrad.Outputs() }

// Effect implements graph.Effecter.
func (o scaledWGrad) Effect() bool { return o.WGrad.Effect() }

func (o scaledWGrad) Infer(in []*graph.Value) ([]graph.Spec, error) {
	f, err := o.family(in)
	if err != nil {
		return nil, err
	}
	hidden, tokensA, tokensB, inter := o.WGrad.dims(in)
	if tokensA != tokensB {
		return nil, graph.BadShape("b", fmt.Sprintf("%d tokens in %s", tokensB, in[wgB].Text()), "the %d tokens of a %s", tokensA, in[wgA].Text())
	}
	experts, err := checkGroups("offsets", in[wgOffsets], in[wgCounts], tokensA, o.WGrad.Align)
	if err != nil {
		return nil, err
	}
	if err := checkBlockAlignment(o.WGrad.Align); err != nil {
		return nil, err
	}
	if f.Values() == dtype.E2M1 && (o.WGrad.AMajorM || !o.WGrad.BMajorK) {
		majors := map[bool]string{true: "tokens not contiguous", false: "k"}
		return nil, graph.BadShape("a_major and b_major", majors[o.WGrad.AMajorM]+" and "+majors[!o.WGrad.BMajorK], "k and k: e2m1 is packed along the tokens")
	}
	// The factors of all experts' tokens take what one matrix of that many tokens would.
	for i, rows := range []int{hidden, inter} {
		if err := checkFactors([]string{"sfa", "sfb"}[i], in[scaledWGSFA+i], f, rows, tokensA, 1); err != nil {
			return nil, err
		}
	}
	for i, operand := range []string{"global_scale_a", "global_scale_b"} {
		v := in[scaledWGGlobalA+i]
		if f == NVFP4 && v == nil {
			return nil, graph.Misuse(operand, "none", "(%d,) in f32, which nvfp4 needs", experts)
		} else if f != NVFP4 && v != nil {
			return nil, graph.Misuse(operand, "an operand beside "+f.String(), "none: global scales go with nvfp4 only")
		}
		if err := checkStat(operand, v, experts, dtype.Float32); err != nil {
			return nil, err
		}
	}
	if err := checkStat("alpha", in[wgAlpha], experts, dtype.Float32); err != nil {
		return nil, err
	}
	if err := o.WGrad.checkMajors(in, hidden, inter); err != nil {
		return nil, err
	}
	if err := checkOut("wgrad", o.WGrad.DType, dtype.Float32, inter); err != nil {
		return nil, err
	}
	if err := o.WGrad.Launch.check(); err != nil {
		return nil, err
	}
	return o.WGrad.specs(in[scaledWGInto:], experts, hidden, inter)
}

// family checks ranks and formats.
func (o scaledWGrad) family(in []*graph.Value) (BlockFormat, error) {
	dt, _ := codesOf(in[wgA])
	if !narrow(dt) {
		if b, _ := codesOf(in[wgB]); narrow(b) || !plain(dt) {
			return 0, graph.BadDType("a", dt, "e4m3, e5m2 or e2m1, with factors sfa, and b alike")
		}
		for i, name := range []string{"sfa", "sfb", "global_scale_a", "global_scale_b"} {
			if in[scaledWGSFA+i] != nil {
				return 0, graph.Misuse(name, "an operand beside a in "+dt.String(), "none: scales go with e4m3, e5m2 and e2m1 only")
			}
		}
		return 0, graph.Misuse("sf_vec_size", o.Vec, "none: scales go with e4m3, e5m2 and e2m1 only")
	}
	for i, v := range in[:2] {
		name := [2]string{"a", "b"}[i]
		if v.Rank() != 2 {
			return 0, graph.BadShape(name, v.Text(), "a matrix")
		}
		if got, _ := codesOf(v); got != dt {
			return 0, graph.BadDType(name, got, "%s as a", dt)
		}
		if in[scaledWGSFA+i] == nil {
			return 0, graph.Misuse([2]string{"sfa", "sfb"}[i], "none", "the factors of %s, which %s values need", name, dt)
		}
	}
	f, err := blockFormatOf(dt, in[scaledWGSFA].DType(), o.Vec, "sfa")
	if err == nil && in[scaledWGSFB].DType() != f.Factor() {
		err = graph.BadDType("sfb", in[scaledWGSFB].DType(), "%s as sfa", f.Factor())
	}
	return f, err
}

// Flops implements graph.Coster.
func (o scaledWGrad) Flops(n *graph.Node) int64 { return o.WGrad.Flops(n) }

// wgradScales are the factors and global scales of a WGrad in one Call.
type wgradScales struct {
	format BlockFormat
	sf     [2]*graph.Tensor // of a and b
	width  [2]int           // hidden, intermediate
	base   [2][]int         // of each expert's factors, in bytes
	scale  [2]*graph.Tensor // nil: 1
}

// read takes in the groups of this run.
func (s *wgradScales) read(g *groups) {
	for i := range s.base {
		columnFactorBases(s.base[i], g, s.width[i], s.format.Vec())
	}
}

// global is the product of expert e's global scales.
func (s *wgradScales) global(e int) float32 {
	p := float32(1)
	for _, t := range s.scale {
		if t != nil {
			p *= scalar[float32](t, e)
		}
	}
	return p
}

// view returns the factors of expert e of operand i; down says that its tokens are stored rows.
func (s *wgradScales) view(i, e int, g *groups, down bool) factorView {
	return factorView{format: s.format, data: s.sf[i].Data[s.base[i][e]:], layout: factorLayout(s.width[i], g.end[e]-g.begin[e], s.format), down: down}
}

func (o scaledWGrad) Host(c *graph.Call) func() error {
	a, b := c.In[wgA], c.In[wgB]
	f, _ := blockFormatOf(valuesFormat(a), c.In[scaledWGSFA].DType, o.Vec, "sfa")
	s := &wgradScales{format: f, sf: [2]*graph.Tensor(c.In[scaledWGSFA : scaledWGSFB+1]), scale: [2]*graph.Tensor(c.In[scaledWGGlobalA : scaledWGGlobalB+1])}
	s.width = [2]int{a.Shape[0], b.Shape[0]}
	if o.WGrad.AMajorM {
		s.width[0] = codeWidth(a)
	}
	if !o.WGrad.BMajorK {
		s.width[1] = codeWidth(b)
	}
	for i := range s.base {
		s.base[i] = make([]int, c.In[wgOffsets].Shape[0])
	}
	return wgradHost[float32](o.WGrad, c, c.In[scaledWGInto:], s)
}
