package nodes

import (
	"fmt"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// Gradients of products of block-scaled operands, straight through the rounding. Each product gets operands that are
// quantized along the axis it sums over:
//
//	dA = alpha * q(dG) B,    over N: dG quantized along its rows, the weights anew along N
//	dB = alpha * q(dG)^T A,  over tokens: dG and A quantized down their columns
//
// so what the forward pass quantized is quantized once more from what it was made of. Where that node quantizes along
// both axes it is one pass, and a graph without gradients makes no column copy.

// quantSource returns the node that quantized v along its rows, nil where v comes from elsewhere.
func quantSource(v *graph.Value) *graph.Node {
	n := v.Producer()
	if n == nil || n.Out(quantRow) != v {
		return nil
	}
	if _, ok := n.Op().(quantize); !ok {
		return nil
	}
	return n
}

// columnsOf returns what node n quantized, quantized down its columns, in groups where offsets are given.
func columnsOf(n *graph.Node, offsets, counts *graph.Value, transpose bool) Quantized {
	op, _ := n.Op().(quantize)
	discrete := offsets != nil
	if op.Axis != AlongBoth || op.Transpose != transpose || op.Discrete != discrete || n.In(quantOffsets) != offsets || n.In(quantCounts) != counts {
		op.Axis, op.Transpose, op.Discrete = AlongCol, transpose, discrete
		type key struct {
			op              quantize
			x               *graph.Value
			version         int
			offsets, counts *graph.Value
		}
		g := n.Graph()
		codes := g.Memo(key{op, n.In(quantX), g.Version(n.In(quantX)), offsets, counts}, func() *graph.Value {
			return graph.ApplyAs("quantize_cols", op, n.In(quantX), offsets, counts, n.In(quantNorm), n.In(quantGlobal), n.In(quantDraw))[quantCol]
		})
		if n = codes.Producer(); n == nil {
			return Quantized{Col: codes, ColSF: codes}
		}
	}
	return Quantized{Col: n.Out(quantCol), ColSF: n.Out(quantColSF)}
}

// scaledGrad makes the gradients of one product of block-scaled operands.
type scaledGrad struct {
	n       *graph.Node
	weights weightKind
	align   int
	launch  Launch
	draw    *graph.Value
	format  BlockFormat
	a       *graph.Node   // that quantized A, nil if none
	b       []*graph.Node // that quantized the weights
	err     error
}

func newScaledGrad(n *graph.Node, s scaledKind, k weightKind, align int, l Launch, draw *graph.Value) *scaledGrad {
	dt, _ := codesOf(n.In(gemmA))
	d := &scaledGrad{n: n, weights: k, align: align, launch: l, draw: draw, a: quantSource(n.In(gemmA))}
	d.format, d.err = s.format(dt, n.In(scaledSFA).DType())
	for i := range k.count() {
		b := quantSource(n.In(scaledB + i))
		if b == nil {
			d.b = nil
			break
		}
		d.b = append(d.b, b)
	}
	if d.err == nil && (d.a == nil) != (d.b == nil) {
		operand := "b"
		if d.a == nil {
			operand = "a"
		}
		d.err = graph.Unsupported(operand, "codes that no Quantize node of the graph made beside codes that one made",
			"a Quantize node: gradients need the operand quantized along its other axis")
	}
	if d.err == nil && d.a != nil {
		d.err = d.checkNorms()
	}
	if d.err != nil {
		n.Graph().Fail(fmt.Errorf("%s %q: gradient: %w", n.Op().Kind(), n.Name(), d.err))
	}
	return d
}

// checkNorms requires that the node undoes by its global scales what Quantize multiplied by, since the products of the
// gradient undo it anew. What is folded into alpha cannot be told apart.
func (d *scaledGrad) checkNorms() error {
	for i, sources := range [][]*graph.Node{{d.a}, d.b} {
		name := [2]string{"global_scale_a", "global_scale_b"}[i]
		for _, q := range sources {
			if q.In(quantNorm) != nil {
				return graph.Unsupported("norm_const", "of Quantize node "+q.Name(), "none where gradients flow")
			}
		}
		if d.format == NVFP4 && d.n.In(scaledGlobalA+i) == nil {
			return graph.Misuse(name, "none", "(E,) in f32, which gradients of nvfp4 need")
		}
	}
	return nil
}

// wanted says whether gradients flow to A and the weights.
func (d *scaledGrad) wanted() bool { return d.err == nil && d.a != nil }

// quantized quantizes dG along both axes.
func (d *scaledGrad) quantized(dG *graph.Value) Quantized {
	nv := d.format == NVFP4
	op, _ := d.a.Op().(quantize)
	d.n.Graph().NameNext("quantize_grad")
	return Quantize{X: dG, PaddedOffsets: d.n.In(gemmOffsets), Counts: d.n.In(gemmCounts), Format: d.format, Axis: AlongBoth, Alignment: d.align,
		DiscreteColSF: true, TransposeCol: d.transposed(), AutoNorm: nv, PerExpert: nv, UnitFactors: op.Unit, Draw: d.draw}.Apply()
}

// transposed says whether WGrad takes tokens contiguous: fp4 only so.
func (d *scaledGrad) transposed() bool { return d.format.Values() == dtype.E2M1 }

// outType is the format of A's gradient: that of what A was quantized from, where these operands can make it.
func (d *scaledGrad) outType() dtype.DType {
	dt := d.a.In(quantX).DType()
	if dt == dtype.Float32 && d.format.Values() != dtype.E2M1 {
		return dtype.BFloat16
	}
	return dt
}

// dA returns alpha * dG B from the quantized dG.
func (d *scaledGrad) dA(q Quantized) *graph.Value {
	w := Weights{}
	for _, b := range d.b {
		c := columnsOf(b, nil, nil, true)
		if d.weights.Discrete == 0 {
			w.Dense, w.SF = c.Col, c.ColSF
		} else {
			w.Discrete, w.DiscreteSF = append(w.Discrete, c.Col), append(w.DiscreteSF, c.ColSF)
		}
	}
	d.n.Graph().NameNext("dgrad")
	return GroupedGEMM{A: q.Row, B: w, PaddedOffsets: d.n.In(gemmOffsets), Counts: d.n.In(gemmCounts), Alpha: d.n.In(gemmAlpha),
		Scales:    Scales{SFA: q.RowSF, SFVec: d.format.Vec(), GlobalScaleA: q.GlobalScale, GlobalScaleB: d.n.In(scaledGlobalB)},
		Alignment: d.align, DType: d.outType(), Launch: d.launch}.ApplyScaled().D
}

// dB puts alpha * dG^T A into out, for the operands of the weights.
func (d *scaledGrad) dB(q Quantized, out []*graph.Value) {
	offsets, counts := d.n.In(gemmOffsets), d.n.In(gemmCounts)
	a := columnsOf(d.a, offsets, counts, d.transposed())
	w := WGrad{A: q.Col, B: a.Col, SFA: q.ColSF, SFB: a.ColSF, SFVec: d.format.Vec(), GlobalScaleA: q.GlobalScale, GlobalScaleB: d.n.In(scaledGlobalA),
		Offsets: offsets, Counts: counts, Alpha: d.n.In(gemmAlpha), AMajorM: !d.transposed(), BMajorK: d.transposed(), Alignment: d.align,
		DType: gradType(d.b[0].In(quantX)), Discrete: d.weights.Discrete > 0, Launch: d.launch}
	d.n.Graph().NameNext("wgrad")
	copy(out[scaledB:], w.Apply())
}

// refuseStats refuses gradients of outputs other than those listed.
func refuseStats(n *graph.Node, grads []*graph.Value, has ...int) bool {
	for i, g := range grads {
		ok := g == nil
		for _, j := range has {
			ok = ok || i == j
		}
		if !ok {
			n.Graph().Fail(fmt.Errorf("%s %q: %w", n.Op().Kind(), n.Name(), graph.Unsupported(n.Op().Outputs()[i], "a gradient", "a gradient of d in bf16, f16 or f32")))
			return true
		}
	}
	return false
}

func (o scaledGEMM) Gradient(n *graph.Node, grads []*graph.Value) []*graph.Value {
	out := make([]*graph.Value, len(o.Operands()))
	if narrow(o.D) {
		refuseStats(n, grads)
		return out
	}
	if refuseStats(n, grads, scaledD) {
		return out
	}
	prob, bias, dD := n.In(gemmProb), n.In(gemmBias), grads[scaledD]
	rows := groupRows{offsets: n.In(gemmOffsets), counts: n.In(gemmCounts), align: o.Align}
	d := newScaledGrad(n, o.Scaled, o.Weights, o.Align, o.Launch, o.GradDraw)
	switch {
	case bias != nil: // D = ref + prob * bias
		out[gemmBias] = rows.sum(dD, prob, bias.DType())
		if prob != nil {
			out[gemmProb] = rows.dotBias(dD, bias)
		}
	case prob != nil: // D = prob * ref: dprob[m] = sum_k X[m,k] A[m,k] with X = alpha dD B, and dA = prob X
		if !d.wanted() {
			n.Graph().Fail(fmt.Errorf("%s %q: gradient: %w", n.Op().Kind(), n.Name(), graph.Unsupported("prob", "a gradient beside codes that no Quantize node made", "codes of a Quantize node")))
			return out
		}
		x := d.dA(d.quantized(dD))
		out[gemmProb] = rows.dot(x, d.a.In(quantX))
		out[gemmA] = rows.scale(x, prob, x.DType())
		d.dB(d.quantized(rows.scale(dD, prob, dD.DType())), out)
		return out
	}
	if d.wanted() {
		q := d.quantized(dD)
		out[gemmA] = d.dA(q)
		d.dB(q, out)
	}
	return out
}

func (o scaledGLU) Gradient(n *graph.Node, grads []*graph.Value) []*graph.Value {
	out := make([]*graph.Value, len(o.Operands()))
	if narrow(o.D) && refuseStats(n, grads, scaledC) || refuseStats(n, grads, scaledD, scaledC) {
		return out
	}
	offsets, counts, prob, bias := n.In(gemmOffsets), n.In(gemmCounts), n.In(gemmProb), n.In(gemmBias)
	rows := groupRows{offsets: offsets, counts: counts, align: o.Align}
	var dC, dBias *graph.Value
	if grads[scaledD] != nil {
		g := graph.Apply(gluGrad{Act: o.Act, Align: o.Align, DC: o.C, ActType: o.C, Layout: o.Layout},
			grads[scaledD], offsets, counts, prob, nil, n.Out(scaledC))
		dC, dBias = g[dgluDC], g[dgluDBias]
		if prob != nil {
			out[gemmProb] = g[dgluDProb]
		}
	}
	if grads[scaledC] != nil {
		extra := columnOrder(as(n.Graph(), grads[scaledC], o.C), o.Layout)
		dC = addNonNil(dC, extra)
		if bias != nil {
			dBias = addNonNil(dBias, rows.sum(extra, nil, dtype.Float32))
		}
	}
	if bias != nil {
		out[gemmBias] = Cast(dBias, bias.DType())
	}
	if d := newScaledGrad(n, o.Scaled, o.Weights, o.Align, o.Launch, o.GradDraw); d.wanted() {
		q := d.quantized(dC)
		out[gemmA] = d.dA(q)
		d.dB(q, out)
	}
	return out
}
