package nodes

import (
	"fmt"
	"unsafe"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// Weights are the weights of a grouped GEMM: dense, as one tensor; discrete, as one tensor an expert; or
// discrete by addresses. Exactly one of Dense, Discrete and Ptrs is set.
type Weights struct {
	Dense    *graph.Value   // (E,N,K), or (E,K,N) with NMajor
	Discrete []*graph.Value // one (N,K) an expert, or (K,N) with NMajor
	// Ptrs is uint64 (E,): addresses on the device of contiguous (N,K) or (K,N) matrices, each 16-byte
	// aligned. N and DType describe them. They are the caller's to keep alive and unchanged until a
	// replay is done; other addresses take effect at the next replay.
	Ptrs  *graph.Value
	N     int
	DType dtype.DType
	// NMajor says that N is the contiguous axis: the weights are stored transposed.
	NMajor bool

	// Factors of block-scaled weights, which are K-major, as those of Dense, of Discrete or of Ptrs: flat, in the
	// order of dtype.FactorLayout; of Dense one array of E batches, else one batch an expert.
	SF         *graph.Value
	DiscreteSF []*graph.Value
	SFPtrs     *graph.Value // uint64 (E,)

	// WeightOnly says that the weights alone are block-scaled, in this format: A is bf16, f16 or f32, and the codes are
	// decoded, exactly, on the way into the product, without a decoded copy of all weights. They may be used along
	// either axis: with NMajor the blocks run along N. Nothing flows to them.
	WeightOnly BlockFormat
}

// Dense returns dense weights, K-major: (E,N,K).
func Dense(b *graph.Value) Weights { return Weights{Dense: b} }

// weightKind is how weights reach an operator: part of its identity.
type weightKind struct {
	Discrete int         // number of discrete operands; 0: one operand
	Ptrs     bool        // the one operand is b_ptrs
	N        int         // with Ptrs
	DType    dtype.DType // with Ptrs
	NMajor   bool
	Only     BlockFormat // of WeightOnly weights, whose factors follow them
}

// operands checks which weights are given and returns their kind and the operands.
func (w Weights) operands() (weightKind, []*graph.Value, error) {
	given := 0
	for _, set := range []bool{w.Dense != nil, len(w.Discrete) > 0, w.Ptrs != nil} {
		if set {
			given++
		}
	}
	if given != 1 {
		return weightKind{}, nil, graph.Misuse("b", fmt.Sprintf("%d kinds of weights", given), "either dense b, discrete b.0, b.1, ..., or b_ptrs")
	}
	k := weightKind{NMajor: w.NMajor, Only: w.WeightOnly}
	b := w.Discrete
	switch {
	case w.Dense != nil:
		b = []*graph.Value{w.Dense}
	case w.Ptrs != nil:
		k.Ptrs, k.N, k.DType = true, w.N, w.DType
		b = []*graph.Value{w.Ptrs}
	default:
		k.Discrete = len(w.Discrete)
	}
	if k.Only == NoBlockFormat {
		return k, b, nil
	}
	if !k.Only.known() {
		return k, nil, graph.Unsupported("b", k.Only, "mxfp8, mxfp8_e5m2, mxfp4, mxfp4_vec16 or nvfp4")
	}
	sf, err := w.factors(k)
	for e, v := range sf {
		if v == nil && err == nil {
			err = graph.Misuse(k.factorNames()[e].Name, "none", "the factors of b, which %s has", k.Only)
		}
	}
	return k, append(append([]*graph.Value(nil), b...), sf...), err
}

// names lists the weight operands.
func (k weightKind) names() []graph.Operand { return k.named("b", false) }

// operands lists the weight operands, and the factors of weights that are block-scaled alone.
func (k weightKind) operands() []graph.Operand {
	if k.Only == NoBlockFormat {
		return k.names()
	}
	return append(k.names(), k.named("sfb", false)...)
}

// factorNames lists the factors' operands, of which there are as many.
func (k weightKind) factorNames() []graph.Operand { return k.named("sfb", true) }

func (k weightKind) named(name string, optional bool) []graph.Operand {
	switch {
	case k.Ptrs:
		return []graph.Operand{{Name: name + "_ptrs", Optional: optional}}
	case k.Discrete == 0:
		return []graph.Operand{{Name: name, Optional: optional}}
	}
	ops := make([]graph.Operand, k.Discrete)
	for e := range ops {
		ops[e] = graph.Operand{Name: fmt.Sprintf("%s.%d", name, e), Optional: optional}
	}
	return ops
}

// count is the number of weight operands.
func (k weightKind) count() int { return max(1, k.Discrete) }

// scaled says whether factors are given.
func (w Weights) scaled() bool {
	return w.WeightOnly == NoBlockFormat && (w.SF != nil || len(w.DiscreteSF) > 0 || w.SFPtrs != nil)
}

// factors returns the operands of the factors of weights of kind k, nil where they are missing.
func (w Weights) factors(k weightKind) ([]*graph.Value, error) {
	kinds := []string{"sfb", "sfb.0, sfb.1, ...", "sfb_ptrs"}
	want := 0
	if k.Discrete > 0 {
		want = 1
	} else if k.Ptrs {
		want = 2
	}
	for i, given := range []bool{w.SF != nil, len(w.DiscreteSF) > 0, w.SFPtrs != nil} {
		if given && i != want {
			return nil, graph.Misuse("sfb", kinds[i], "%s, as the weights are given", kinds[want])
		}
	}
	switch want {
	case 1:
		if n := len(w.DiscreteSF); n != 0 && n != k.Discrete {
			return nil, graph.Misuse("sfb", fmt.Sprintf("%d arrays", n), "one for each of %d experts", k.Discrete)
		}
		return append(append([]*graph.Value(nil), w.DiscreteSF...), make([]*graph.Value, k.Discrete-len(w.DiscreteSF))...), nil
	case 2:
		return []*graph.Value{w.SFPtrs}, nil
	}
	return []*graph.Value{w.SF}, nil
}

// checkFactors checks the factors of (N,K) weights in format f.
func (k weightKind) checkFactors(sf []*graph.Value, f BlockFormat, experts, n, red int) error {
	if k.Ptrs {
		if sf[0].DType() != dtype.Uint64 || sf[0].Rank() != 1 || sf[0].Dim(0) != experts || sf[0].Rows() != nil {
			return graph.BadShape("sfb_ptrs", sf[0].Text(), "uint64 (%d,)", experts)
		}
		return nil
	}
	batches := experts
	if k.Discrete > 0 {
		batches = 1
	}
	for e, v := range sf {
		if err := checkFactors(k.factorNames()[e].Name, v, f, n, red, batches); err != nil {
			return err
		}
	}
	return nil
}

// dtype returns the weights' format.
func (k weightKind) dtype(b []*graph.Value) dtype.DType {
	if k.Ptrs {
		return k.DType
	}
	dt, _ := codesOf(b[0])
	return dt
}

// check checks the weights, and factors of those that are block-scaled alone, against e experts and a reduction of red
// elements in format dt; it returns N.
func (k weightKind) check(b []*graph.Value, experts, red int, dt dtype.DType) (n int, err error) {
	if k.Only == NoBlockFormat {
		return k.checkAs(b, experts, red, dt)
	}
	if isWide(dt) {
		return 0, graph.BadDType("a", dt, "bf16, f16 or f32 beside weights in %s", k.Only)
	}
	count := k.count()
	if n, err = k.checkAs(b[:count], experts, red, k.Only.Values()); err != nil {
		return 0, err
	}
	rows, cols := n, red
	if k.NMajor {
		rows, cols = red, n
	}
	return n, k.checkFactors(b[count:], k.Only, experts, rows, cols)
}

// checkAs is check for weights in format dt.
func (k weightKind) checkAs(b []*graph.Value, experts, red int, dt dtype.DType) (n int, err error) {
	nAxis, kAxis := 0, 1
	if k.NMajor {
		nAxis, kAxis = 1, 0
	}
	dim := func(v *graph.Value, axis int) int {
		_, shape := codesOf(v)
		return shape[axis]
	}
	switch {
	case k.Ptrs:
		if b[0].DType() != dtype.Uint64 || b[0].Rank() != 1 || b[0].Dim(0) != experts || b[0].Rows() != nil {
			return 0, graph.BadShape("b_ptrs", b[0].Text(), "uint64 (%d,)", experts)
		}
		n = k.N
	case k.Discrete == 0:
		if b[0].Rank() != 3 || b[0].Dim(0) != experts {
			return 0, graph.BadShape("b", b[0].Text(), "(E,N,K), or (E,K,N) with b_major n, E = %d as in padded_offsets", experts)
		}
		n = dim(b[0], 1+nAxis)
	default:
		if k.Discrete != experts {
			return 0, graph.Misuse("b", fmt.Sprintf("%d discrete weights", k.Discrete), "one for each of %d experts", experts)
		}
		if b[0].Rank() != 2 {
			return 0, graph.BadShape("b.0", b[0].Text(), "a matrix of its own")
		}
		n = dim(b[0], nAxis)
	}
	like := dt.String() + " as a"
	if k.Only != NoBlockFormat {
		like = fmt.Sprintf("%s, the values of %s", dt, k.Only)
	}
	if k.dtype(b) != dt {
		return 0, graph.BadDType("b", k.dtype(b), "%s", like)
	}
	for e, v := range b {
		if k.Ptrs {
			break
		}
		name := k.names()[e].Name
		off := v.Rank() - 2
		if v.Rank() != 2 && k.Discrete > 0 || v.Rows() != nil {
			return 0, graph.BadShape(name, v.Text(), "a matrix of its own")
		}
		if got, _ := codesOf(v); got != dt {
			return 0, graph.BadDType(name, v.DType(), "%s", like)
		}
		if got := dim(v, off+kAxis); got != red {
			return 0, &graph.OperandError{Operand: "K", Got: fmt.Sprintf("%d in %s %s", got, name, v.Text()), Want: fmt.Sprintf("%d as in a", red), Kind: graph.ErrShape}
		}
		if got := dim(v, off+nAxis); got != n {
			return 0, graph.BadShape(name, fmt.Sprintf("N = %d", got), "N = %d as the first", n)
		}
	}
	if k.NMajor {
		return n, check16("b", "N", dt, n)
	}
	return n, check16("b", "K", dt, red)
}

// hostWeights reads the weights in one Call.
type hostWeights struct {
	kind   weightKind
	t      []*graph.Tensor
	n, red int
	ptrs   []graph.Tensor // views of raw addresses, renewed at each run

	format BlockFormat // of codes with factors
	layout dtype.FactorLayout
	sf     []*graph.Tensor
	sfPtrs []graph.Tensor
}

// withFactors says that the weights are codes with the factors sf.
func (w *hostWeights) withFactors(f BlockFormat, sf []*graph.Tensor) {
	w.format, w.sf = f, sf
	w.layout = factorLayout(w.n, w.red, f)
	if w.kind.NMajor {
		w.layout = factorLayout(w.red, w.n, f)
	}
	if w.kind.Ptrs {
		w.sfPtrs = make([]graph.Tensor, len(w.ptrs))
	}
}

// factors returns those of expert e.
func (w *hostWeights) factors(e int) factorView {
	v := factorView{format: w.format, layout: w.layout}
	switch {
	case w.format == NoBlockFormat:
	case w.kind.Ptrs:
		v.data = w.sfPtrs[e].Data
	case w.kind.Discrete > 0:
		v.data = w.sf[e].Data
	default:
		v.data = w.sf[0].Data[e*w.layout.Bytes():]
	}
	return v
}

func newHostWeights(k weightKind, t []*graph.Tensor, experts, n, red int) *hostWeights {
	w := &hostWeights{kind: k, t: t[:k.count()], n: n, red: red}
	if k.Ptrs {
		w.ptrs = make([]graph.Tensor, experts)
	}
	if k.Only != NoBlockFormat {
		w.withFactors(k.Only, t[k.count():])
	}
	return w
}

// read takes in this run's addresses.
func (w *hostWeights) read() error {
	if !w.kind.Ptrs {
		return nil
	}
	if err := readAddresses("b_ptrs", w.ptrs, w.t[0], w.kind.DType, w.kind.DType.Bytes(w.n*w.red)); err != nil {
		return err
	}
	if w.format == NoBlockFormat {
		return nil
	}
	return readAddresses("sfb_ptrs", w.sfPtrs, w.sf[0], w.format.Factor(), w.layout.Bytes())
}

// readAddresses makes views of size bytes each of the addresses in t.
func readAddresses(operand string, views []graph.Tensor, t *graph.Tensor, dt dtype.DType, size int) error {
	for e, p := range graph.View[uint64](t.Data) {
		if p == 0 || p%16 != 0 {
			return graph.Misuse(operand, fmt.Sprintf("address %#x for expert %d", p, e), "an address that is not null and 16-byte aligned")
		}
		views[e].DType, views[e].Data = dt, bytesAt(p, size)
	}
	return nil
}

// bytesAt views n bytes at an address that the caller vouches for.
func bytesAt(p uint64, n int) []byte {
	addr := uintptr(p)
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&addr)), n)
}

// matrix returns expert e's weight as the second factor (K,N) of a product, from column col on.
func (w *hostWeights) matrix(e, col int) matrix {
	m := matrix{ld: w.red, trans: true, sf: w.factors(e)}
	if w.kind.NMajor {
		m.ld, m.trans = w.n, false
	}
	switch {
	case w.kind.Ptrs:
		m.t = &w.ptrs[e]
	case w.kind.Discrete > 0:
		m.t = w.t[e]
	default:
		m.t, m.at = w.t[0], e*w.n*w.red
	}
	return m.block(0, col)
}
