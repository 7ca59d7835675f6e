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
	k := weightKind{NMajor: w.NMajor}
	switch {
	case w.Dense != nil:
		return k, []*graph.Value{w.Dense}, nil
	case w.Ptrs != nil:
		k.Ptrs, k.N, k.DType = true, w.N, w.DType
		return k, []*graph.Value{w.Ptrs}, nil
	}
	k.Discrete = len(w.Discrete)
	return k, w.Discrete, nil
}

// names lists the weight operands.
func (k weightKind) names() []graph.Operand {
	switch {
	case k.Ptrs:
		return []graph.Operand{{Name: "b_ptrs"}}
	case k.Discrete == 0:
		return []graph.Operand{{Name: "b"}}
	}
	ops := make([]graph.Operand, k.Discrete)
	for e := range ops {
		ops[e].Name = fmt.Sprintf("b.%d", e)
	}
	return ops
}

// dtype returns the weights' format.
func (k weightKind) dtype(b []*graph.Value) dtype.DType {
	if k.Ptrs {
		return k.DType
	}
	return b[0].DType()
}

// check checks the weights against e experts and a reduction of k elements in format dt; it returns N.
func (k weightKind) check(b []*graph.Value, experts, red int, dt dtype.DType) (n int, err error) {
	nAxis, kAxis := 0, 1
	if k.NMajor {
		nAxis, kAxis = 1, 0
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
		n = b[0].Dim(1 + nAxis)
	default:
		if k.Discrete != experts {
			return 0, graph.Misuse("b", fmt.Sprintf("%d discrete weights", k.Discrete), "one for each of %d experts", experts)
		}
		n = b[0].Dim(nAxis)
	}
	if k.dtype(b) != dt {
		return 0, graph.BadDType("b", k.dtype(b), "%s as a", dt)
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
		if v.DType() != dt {
			return 0, graph.BadDType(name, v.DType(), "%s as a", dt)
		}
		if got := v.Dim(off + kAxis); got != red {
			return 0, &graph.OperandError{Operand: "K", Got: fmt.Sprintf("%d in %s %s", got, name, v.Text()), Want: fmt.Sprintf("%d as in a", red), Kind: graph.ErrShape}
		}
		if got := v.Dim(off + nAxis); got != n {
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
}

func newHostWeights(k weightKind, t []*graph.Tensor, experts, n, red int) *hostWeights {
	w := &hostWeights{kind: k, t: t, n: n, red: red}
	if k.Ptrs {
		w.ptrs = make([]graph.Tensor, experts)
	}
	return w
}

// read takes in this run's addresses.
func (w *hostWeights) read() error {
	if !w.kind.Ptrs {
		return nil
	}
	size := w.kind.DType.Bytes(w.n * w.red)
	for e, p := range graph.View[uint64](w.t[0].Data) {
		if p == 0 || p%16 != 0 {
			return graph.Misuse("b_ptrs", fmt.Sprintf("address %#x for expert %d", p, e), "an address that is not null and 16-byte aligned")
		}
		w.ptrs[e] = graph.Tensor{DType: w.kind.DType, Shape: []int{w.n, w.red}, Data: bytesAt(p, size)}
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
	m := matrix{ld: w.red, trans: true}
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
