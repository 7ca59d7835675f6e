package nodes

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// fuzzBuilder makes graphs out of a fuzzer's bytes: each byte is a choice. When the bytes are used up every choice is
// the first one.
type fuzzBuilder struct {
	bytes   []byte
	wild    bool // operands and options are at times what no sane caller gives
	noExec  bool // the graph must not run: it has addresses, or is too large
	g       *graph.Graph
	vars    *graph.Vars
	pool    []*graph.Value
	inputs  []fuzzInput
	foreign *graph.Value
	updated bool // variables change from replay to replay
	ragged  bool // inputs get numbers of rows of their own
	count   int  // of names

	dt                    dtype.DType
	t, h, i, e, k, m, pad int
}

// fuzzInput is an input with what it is to hold.
type fuzzInput struct {
	v    *graph.Value
	kind fuzzKind
	most int // of integers, exclusive
}

type fuzzKind uint8

const (
	fuzzNumbers fuzzKind = iota
	fuzzIDs              // from -1 on
	fuzzOffsets          // rising multiples of the alignment
)

func newFuzzBuilder(bytes []byte, wild bool) *fuzzBuilder {
	b := &fuzzBuilder{bytes: bytes, wild: wild, g: graph.New("fuzz"), vars: graph.NewVars(1)}
	b.dt = pick(b, dtype.Float32, dtype.BFloat16, dtype.Float64, dtype.Float16)
	b.t, b.h, b.i = pick(b, 5, 1, 8, 70), pick(b, 8, 16, 64), pick(b, 32, 64)
	b.e, b.pad = pick(b, 4, 1, 3, 9), pick(b, 8, 1, 2, 4, 256)
	b.k = 1 + b.choose(min(b.e, 3))
	b.m = (b.t*b.k + b.e*(b.pad-1) + b.pad - 1) / b.pad * b.pad
	b.foreign = graph.New("foreign").Input("x", b.dt, b.t, b.h)
	return b
}

// choose returns a number below n.
func (b *fuzzBuilder) choose(n int) int {
	if len(b.bytes) == 0 {
		return 0
	}
	x := b.bytes[0]
	b.bytes = b.bytes[1:]
	return int(x) % n
}

func pick[T any](b *fuzzBuilder, xs ...T) T { return xs[b.choose(len(xs))] }

// odd says, in wild graphs, now and then that something unusual is due.
func (b *fuzzBuilder) odd() bool { return b.wild && b.choose(16) == 15 }

func (b *fuzzBuilder) name() string {
	b.count++
	return fmt.Sprintf("v%d", b.count)
}

func (b *fuzzBuilder) stat() dtype.DType { return statType(b.dt) }

// input makes an input, its rows counted where counted is set.
func (b *fuzzBuilder) input(kind fuzzKind, most int, dt dtype.DType, counted bool, dims ...int) *graph.Value {
	if counted && len(dims) > 0 {
		dims = append([]int{graph.UpTo(dims[0])}, dims[1:]...)
	}
	v := b.g.Input(b.name(), dt, dims...)
	b.inputs = append(b.inputs, fuzzInput{v, kind, most})
	return v
}

// strange returns operands of all sorts: absent, failed, of another graph, of any format and shape.
func (b *fuzzBuilder) strange() *graph.Value {
	switch b.choose(6) {
	case 0:
		return nil
	case 1:
		return b.foreign
	case 2:
		return b.vars.ParamOf(b.name(), b.dt, graph.Init{}, b.strangeDims()...)
	case 3:
		return graph.NewVars(2).Param("other", 4, 4)
	case 4:
		if len(b.pool) > 0 {
			return b.pool[b.choose(len(b.pool))]
		}
	}
	formats := []dtype.DType{dtype.Float32, dtype.BFloat16, dtype.Float64, dtype.Float16, dtype.Int32, dtype.Int64, dtype.Uint64,
		dtype.Uint8, dtype.E4M3, dtype.E5M2, dtype.E2M1, dtype.E8M0, dtype.Invalid, dtype.DType(200)}
	return b.input(fuzzNumbers, 0, pick(b, formats...), false, b.strangeDims()...)
}

func (b *fuzzBuilder) strangeDims() []int {
	dims := make([]int, b.choose(5))
	for i := range dims {
		dims[i] = pick(b, 0, 1, 2, b.t, b.h, b.m, b.e, 64, 7, -1, 1<<20, 1<<31, 1<<40, math.MaxInt, graph.UpTo(4), graph.UpTo(0), graph.UpTo(1<<40), math.MinInt)
		if dims[i] > 1<<16 {
			b.noExec = true
		}
	}
	return dims
}

// arg returns an operand of this format and shape: one that there is, an input or a parameter.
func (b *fuzzBuilder) arg(dt dtype.DType, counted bool, dims ...int) *graph.Value {
	if b.odd() {
		return b.strange()
	}
	if b.odd() { // rows counted by a count of its own
		counted, b.ragged = true, true
	}
	how := b.choose(4)
	if how > 1 {
		for n := range b.pool {
			v := b.pool[len(b.pool)-1-n]
			if v.DType() != dt || fmt.Sprint(v.Shape()) != fmt.Sprint(dims) || counted != (v.Rows() != nil) {
				continue
			}
			if how--; how == 1 {
				return v
			}
		}
	}
	if how == 1 && !counted && dt.IsFloat() {
		v := b.vars.ParamOf(b.name(), dt, graph.Init{}, dims...)
		b.pool = append(b.pool, v)
		return v
	}
	return b.keep(b.input(fuzzNumbers, 0, dt, counted, dims...))
}

// param returns a parameter.
func (b *fuzzBuilder) param(dt dtype.DType, dims ...int) *graph.Value {
	if b.odd() {
		return b.strange()
	}
	v := b.vars.ParamOf(b.name(), dt, graph.Init{}, dims...)
	b.pool = append(b.pool, v)
	return v
}

// maybe returns an optional operand.
func (b *fuzzBuilder) maybe(dt dtype.DType, dims ...int) *graph.Value {
	if b.choose(2) == 0 {
		return nil
	}
	return b.arg(dt, false, dims...)
}

func (b *fuzzBuilder) keep(vs ...*graph.Value) *graph.Value {
	for _, v := range vs {
		if v != nil && v.Err() == nil {
			b.pool = append(b.pool, v)
		}
	}
	return vs[0]
}

func (b *fuzzBuilder) ids(counted bool) *graph.Value {
	if b.odd() {
		return b.strange()
	}
	return b.input(fuzzIDs, b.e+1, dtype.Int32, counted || b.odd(), b.t, b.k)
}

func (b *fuzzBuilder) offsets() *graph.Value {
	if b.odd() {
		return b.strange()
	}
	return b.input(fuzzOffsets, b.m, dtype.Int32, b.odd(), b.e)
}

// number is an option that is a number: def, or at times a senseless one.
func (b *fuzzBuilder) number(def float64) float64 {
	if b.odd() {
		return pick(b, -1, math.NaN(), math.Inf(1), math.Inf(-1), 1e300, 1, 0, -1e-300)
	}
	return def
}

func (b *fuzzBuilder) integer(def int) int {
	if b.odd() {
		return pick(b, -1, 0, 1, 3, 1<<20, math.MaxInt, math.MinInt, 1023, 1025)
	}
	return def
}

func (b *fuzzBuilder) format(def dtype.DType) dtype.DType {
	if b.odd() {
		return pick(b, dtype.Invalid, dtype.E4M3, dtype.Int32, dtype.Float64, dtype.BFloat16, dtype.DType(77))
	}
	return def
}

func (b *fuzzBuilder) half() dtype.DType {
	if b.dt == dtype.Float64 {
		return b.dt
	}
	return pick(b, b.dt, dtype.BFloat16, dtype.Float32, dtype.Float16)
}

func (b *fuzzBuilder) launch() (l Launch) {
	if b.odd() {
		l = Launch{Tile: [2]int{b.integer(64), b.integer(64)}, Cluster: [2]int{b.integer(1), b.integer(2)}, Scheduler: pick(b, "", "static", "x"), Family: pick(b, "", "portable", "y")}
	}
	return l
}

func (b *fuzzBuilder) activation() (a Activation) {
	if b.choose(2) == 1 {
		alpha, top := b.number(1.5), b.number(2)
		low := b.number(-2)
		a = Activation{Func: "geglu", Alpha: &alpha, ClampMax: &top, ClampMin: &low}
	}
	if b.odd() {
		a.Func = "relu"
	}
	return a
}

func (b *fuzzBuilder) layer() MoE {
	cfg := MoE{Experts: b.integer(b.e), TopK: b.integer(b.k), Intermediate: b.integer(b.i), Alignment: b.integer(b.pad),
		Order: Order(b.choose(3)), LogitBias: b.choose(2) == 1, SelectBias: b.choose(2) == 1, Bias: b.choose(2) == 1,
		Shared: b.integer(pick(b, 0, 32)), Layout: Layout(b.choose(3)), Activation: b.activation(), Launch: b.launch(), Scale: b.number(2)}
	if b.choose(3) == 2 {
		cfg.RouterJitter, cfg.Dropout = b.number(0.1), b.number(0.2)
		b.updated = true
	}
	if b.choose(4) == 3 {
		cfg.Groups, cfg.TopKGroups = b.integer(1), b.integer(1)
	}
	if b.choose(3) == 2 {
		cfg.Capacity = b.integer(b.pad * 2)
	}
	if b.dt != dtype.Float64 {
		cfg.Compute, cfg.Params = b.format(b.half()), b.format(pick(b, dtype.Float32, dtype.BFloat16))
	}
	if b.odd() {
		cfg.Order, cfg.Layout, cfg.Hidden, cfg.Draw = 7, 9, b.integer(b.h), b.strange()
	}
	return cfg
}

func (b *fuzzBuilder) weights(n, k int) (w Weights) {
	shape := []int{n, k}
	if w.NMajor = b.choose(2) == 1; w.NMajor {
		shape = []int{k, n}
	}
	switch {
	case b.wild && b.choose(8) == 7:
		w.Ptrs, w.N, w.DType = b.input(fuzzNumbers, 0, dtype.Uint64, false, b.e), b.integer(n), b.format(b.dt)
		b.noExec = true
	case b.choose(3) == 2:
		for range b.integer(b.e) % 16 {
			w.Discrete = append(w.Discrete, b.param(b.dt, shape...))
		}
	default:
		w.Dense = b.param(b.dt, append([]int{b.e}, shape...)...)
	}
	if b.odd() {
		w.Dense = b.strange()
	}
	return w
}

// grads takes gradients of some values by some parameters and inputs, and may go on to update the parameters.
func (b *fuzzBuilder) grads() {
	some := func(most int, want func(v *graph.Value) bool) (vs []*graph.Value) {
		for range 1 + b.choose(most) {
			if b.odd() {
				vs = append(vs, b.strange())
			}
			for n := range b.pool {
				if v := b.pool[(n+b.choose(251))%len(b.pool)]; want(v) {
					vs = append(vs, v)
					break
				}
			}
		}
		return vs
	}
	of := some(3, func(v *graph.Value) bool {
		return v.DType().IsFloat() && v.Producer() != nil && (b.wild || differentiable(v.Producer()))
	})
	below := map[*graph.Value]bool{}
	for _, v := range of {
		reach(v, below)
	}
	var seeds []*graph.Value
	for _, v := range of {
		if b.choose(2) == 1 && v.Rows() == nil {
			seeds = append(seeds, b.arg(v.DType(), false, v.Shape()...))
		} else {
			seeds = append(seeds, nil)
		}
	}
	params := b.choose(4) > 0
	var wrt []*graph.Value
	for _, v := range some(4, func(v *graph.Value) bool {
		return (b.wild && !params || below[b.g.Use(v)]) && (!params || v.Kind() == graph.Param)
	}) {
		if b.wild || !slices.Contains(wrt, v) {
			wrt = append(wrt, v)
		}
	}
	if len(of) == 0 || len(wrt) == 0 {
		return
	}
	gr := b.g.GradientsFrom(of, seeds, wrt...)
	b.keep(append(gr.Value, nil)...)
	how := b.choose(6)
	if how < 2 || !params {
		return
	}
	switch how {
	case 2:
		gr, _ = ClipGlobalNorm(gr, b.number(1))
	case 3:
		gr = Accumulate(gr, b.integer(2))
	case 4:
		gr, _ = ClipGlobalNorm(Accumulate(gr, 3), 0.5)
	}
	b.updated = true
	if b.choose(2) == 1 {
		b.keep(AdamW(gr, AdamWConfig{Rate: b.number(0.1), Eps: b.number(0), Schedule: Schedule{Warmup: b.integer(0), Total: b.integer(10), Kind: pick(b, ConstantRate, CosineDecay, LinearDecay)}}))
	} else {
		b.keep(SGD(gr, SGDConfig{Momentum: b.number(0.5), Dampening: b.number(0), Nesterov: b.choose(2) == 1, WeightDecay: b.number(0)}))
	}
}

func differentiable(n *graph.Node) bool {
	_, ok := n.Op().(graph.Differentiable)
	return ok
}

// reach marks what gradients of v flow to.
func reach(v *graph.Value, below map[*graph.Value]bool) {
	if v == nil || below[v] {
		return
	}
	below[v] = true
	n := v.Producer()
	if n == nil || !differentiable(n) {
		return
	}
	for i := range n.Op().Operands() {
		if in := n.In(i); in != nil && in.DType().IsFloat() {
			reach(in, below)
		}
	}
}

// outputs marks some values, at least one.
func (b *fuzzBuilder) outputs() (outs []*graph.Value) {
	for n := range b.pool {
		v := b.pool[len(b.pool)-1-n]
		if n == 0 || b.choose(3) == 2 {
			outs = append(outs, v)
			b.g.Output(fmt.Sprintf("out%d", n), v)
		}
	}
	return outs
}

// write gives every input its data: the same for the same builder's bytes.
func (b *fuzzBuilder) write(e *graph.Exec, rows func(capacity int) int) error {
	for n, in := range b.inputs {
		if err := e.Write(in.v, b.data(in, uint64(n), rows)); err != nil {
			return err
		}
	}
	return nil
}

func (b *fuzzBuilder) data(in fuzzInput, seed uint64, rows func(capacity int) int) any {
	r := rand.New(rand.NewPCG(seed, 7))
	shape := in.v.Shape()
	if in.v.Rows() != nil {
		shape[0] = rows(shape[0])
	}
	n := 1
	for _, d := range shape {
		n *= d
	}
	dt := in.v.DType()
	switch {
	case in.kind == fuzzIDs:
		x := make([]int32, n)
		for i := range x {
			x[i] = int32(r.IntN(in.most+1)) - 1
		}
		return x
	case in.kind == fuzzOffsets:
		x := make([]int32, n)
		at := 0
		for i := range x {
			at = min(at+r.IntN(3)*b.pad, in.most)
			x[i] = int32(at)
		}
		return x
	case dt == dtype.Int32:
		return make([]int32, n)
	case dt == dtype.Int64:
		return make([]int64, n)
	case dt == dtype.Uint64:
		return make([]uint64, n)
	case dt.IsFloat() && dt.Bits() >= 16:
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(r.NormFloat64())
		}
		return x
	}
	return make([]byte, dt.Bytes(n))
}
