package nodes

import (
	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// fuzzOps build something and return what may be used further.
var fuzzOps = []func(b *fuzzBuilder) []*graph.Value{
	func(b *fuzzBuilder) []*graph.Value { // a layer
		y, aux := MoELayer(b.arg(b.dt, b.choose(2) == 1, b.t, b.h), b.vars.Scope(b.name()), b.layer())
		return []*graph.Value{y, aux.TopKProb, aux.Logits, aux.Balance, aux.ZLoss}
	},
	func(b *fuzzBuilder) []*graph.Value { // a layer without a router
		counted := b.choose(2) == 1
		y, _ := Experts(b.arg(b.dt, counted, b.t, b.h), b.ids(counted), b.arg(b.stat(), counted, b.t, b.k), b.vars.Scope(b.name()), b.layer())
		return []*graph.Value{y}
	},
	func(b *fuzzBuilder) []*graph.Value {
		counted := b.choose(2) == 1
		return []*graph.Value{Add(b.arg(b.dt, counted, b.t, b.h), b.arg(b.dt, counted, b.t, b.h), b.arg(b.dt, counted, b.t, b.h))}
	},
	func(b *fuzzBuilder) []*graph.Value {
		return []*graph.Value{Scale(b.arg(b.dt, b.choose(2) == 1, b.t, b.h), b.number(0.5))}
	},
	func(b *fuzzBuilder) []*graph.Value {
		x := b.arg(b.half(), b.choose(2) == 1, b.t, b.h)
		return []*graph.Value{Cast(x, b.format(b.dt))}
	},
	func(b *fuzzBuilder) []*graph.Value {
		counted := b.choose(2) == 1
		y := Concat(b.arg(b.dt, counted, b.t, b.h), b.arg(b.dt, counted, b.t, b.h), b.arg(b.dt, counted, b.t, 3))
		from := b.integer(2)
		return []*graph.Value{y, Columns(y, from, from+b.integer(b.h))}
	},
	func(b *fuzzBuilder) []*graph.Value {
		cfg := LinearConfig{Bias: b.maybe(b.stat(), b.h), DType: b.format(b.half())}
		return []*graph.Value{Linear(b.arg(b.dt, b.choose(2) == 1, b.t, b.h), b.param(b.dt, b.h, b.h), cfg)}
	},
	func(b *fuzzBuilder) []*graph.Value {
		cfg := RMSNormConfig{Eps: b.number(0), DType: b.format(b.half())}
		return []*graph.Value{RMSNorm(b.arg(b.dt, b.choose(2) == 1, b.t, b.h), b.param(b.stat(), b.h), cfg)}
	},
	func(b *fuzzBuilder) []*graph.Value {
		counted, ignore := b.choose(2) == 1, b.integer(-100)
		labels := b.input(fuzzIDs, b.h+1, dtype.Int32, counted, b.t)
		return []*graph.Value{CrossEntropy(b.arg(b.dt, counted, b.t, b.h), labels, CrossEntropyConfig{IgnoreIndex: &ignore})}
	},
	func(b *fuzzBuilder) []*graph.Value {
		ids := b.input(fuzzIDs, 8, dtype.Int32, b.choose(2) == 1, b.t, pick(b, 1, 2, 0))
		return []*graph.Value{Embedding(ids, b.param(b.dt, pick(b, 7, 0), b.h))}
	},
	func(b *fuzzBuilder) []*graph.Value {
		o := Router{X: b.arg(b.dt, b.choose(2) == 1, b.t, b.h), Weight: b.param(b.dt, b.e, b.h), LogitBias: b.maybe(b.stat(), b.e),
			SelectBias: b.maybe(b.stat(), b.e), K: b.integer(b.k), Order: Order(b.choose(3)), Scale: b.number(2)}
		if b.odd() {
			o.Groups, o.TopKGroups = b.integer(2), b.integer(1)
		}
		logits, idx, prob := o.Apply()
		balance, z := RouterLosses{Logits: logits, Counts: b.input(fuzzIDs, 9, dtype.Int32, false, b.e), K: o.K, Order: o.Order}.Apply()
		return []*graph.Value{prob, logits, balance, z, idx}
	},
	func(b *fuzzBuilder) []*graph.Value { // rows and back
		counted := b.choose(2) == 1
		r := Dispatch{TopKIdx: b.ids(counted), Experts: b.integer(b.e), Alignment: b.integer(b.pad), Capacity: b.integer(0)}.Apply()
		if b.choose(2) == 1 {
			r.Watch()
		}
		x, p := b.arg(b.dt, counted, b.t, b.h), b.arg(b.stat(), counted, b.t, b.k)
		prob := r.PermuteProb(p)
		a := r.Permute(x)
		w := b.weights(b.h, b.h)
		d, c := GroupedGEMM{A: a, B: w, PaddedOffsets: r.PaddedOffsets, Counts: r.Counts, Prob: prob, Alignment: b.integer(b.pad),
			Bias: b.maybe(b.stat(), b.e, b.h), DType: b.format(b.half()), Launch: b.launch()}.Apply()
		if b.choose(2) == 1 {
			p = nil
		}
		return []*graph.Value{r.Combine(d, p, b.format(b.half())), a, prob, d, c}
	},
	func(b *fuzzBuilder) []*graph.Value {
		d, c := GroupedGEMM{A: b.arg(b.dt, false, b.m, b.h), B: b.weights(b.h, b.h), PaddedOffsets: b.offsets(), Prob: b.maybe(b.stat(), b.m),
			Alpha: b.maybe(b.stat(), b.e), Bias: b.maybe(b.stat(), b.e, b.h), Alignment: b.integer(b.pad), CType: b.format(b.half())}.Apply()
		return []*graph.Value{d, c}
	},
	func(b *fuzzBuilder) []*graph.Value {
		d, c := GroupedGEMMGLU{A: b.arg(b.dt, false, b.m, b.h), B: b.weights(64, b.h), PaddedOffsets: b.offsets(), Prob: b.maybe(b.stat(), b.m),
			Alpha: b.maybe(b.stat(), b.e), Bias: b.maybe(b.stat(), b.e, 64), Alignment: b.integer(b.pad), Activation: b.activation(),
			Layout: Layout(b.integer(b.choose(3))), DType: b.format(b.half())}.Apply()
		return []*graph.Value{d, c}
	},
	func(b *fuzzBuilder) []*graph.Value { // a product and an activation, which fuse
		a, w, offsets := b.arg(b.dt, false, b.m, b.h), b.weights(64, b.h), b.offsets()
		bias := b.maybe(b.stat(), b.e, 64)
		d, c := GroupedGEMM{A: a, B: w, PaddedOffsets: offsets, Bias: bias, Alignment: b.pad}.Apply()
		x := pick(b, d, c)
		y := GLU{C: x, PaddedOffsets: offsets, Prob: b.maybe(b.stat(), b.m), Activation: b.activation(), Alignment: b.integer(b.pad)}.Apply()
		if b.choose(2) == 1 {
			return []*graph.Value{y, d, c}
		}
		return []*graph.Value{y}
	},
	func(b *fuzzBuilder) []*graph.Value {
		offsets := b.offsets()
		r := GroupedGEMMdGLU{A: b.arg(b.dt, false, b.m, b.h), B: b.weights(32, b.h), C: b.arg(b.half(), false, b.m, 64), PaddedOffsets: offsets,
			Alpha: b.maybe(b.stat(), b.e), Prob: b.maybe(b.stat(), b.m), Beta: b.maybe(b.stat(), b.e), Activation: b.activation(),
			Layout: Layout(b.integer(b.choose(3))), Alignment: b.integer(b.pad)}.Apply()
		return []*graph.Value{r.DC, r.DProb, r.Amax, r.DBias, r.Act}
	},
	func(b *fuzzBuilder) []*graph.Value {
		w := WGrad{A: b.arg(b.dt, false, b.m, b.h), B: b.arg(b.dt, false, b.m, b.h), Offsets: b.offsets(), Alpha: b.maybe(b.stat(), b.e),
			AMajorM: !b.odd(), BMajorK: b.odd(), Ragged: b.odd(), Alignment: b.integer(b.pad), DType: b.format(b.half()), Discrete: b.choose(3) == 2}
		if b.odd() {
			w.Into, w.Accumulate = []*graph.Value{b.strange()}, b.choose(2) == 1
			b.updated = true
		}
		if b.odd() {
			w.Ptrs, b.noExec = b.strange(), true
		}
		return w.Apply()
	},
	func(b *fuzzBuilder) []*graph.Value {
		return []*graph.Value{GLU{C: b.arg(b.dt, b.choose(2) == 1, b.t, 64), Prob: b.maybe(b.stat(), b.t), Activation: b.activation(), DType: b.format(b.half())}.Apply()}
	},
	func(b *fuzzBuilder) []*graph.Value {
		return []*graph.Value{SharedExpert{X: b.arg(b.dt, b.choose(2) == 1, b.t, b.h), FC1: b.param(b.dt, 64, b.h), FC2: b.param(b.dt, b.h, 32), DType: b.format(b.half())}.Apply()}
	},
	func(b *fuzzBuilder) []*graph.Value {
		draw := NewRandom(b.vars, "random", 1).Draw(b.g)
		b.updated = true
		if b.odd() {
			draw = b.strange()
		}
		x := b.arg(b.dt, b.choose(2) == 1, b.t, b.h)
		return []*graph.Value{Dropout(x, draw, b.number(0.3)), Jitter(x, draw, b.number(0.3))}
	},
}
