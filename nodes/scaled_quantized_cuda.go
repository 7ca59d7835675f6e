package nodes

import (
	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// quantizedOutput is an output of a product in fp8 or fp4: the product writes float32 into the node's scratch, and
// Quantize's own launches follow, so that the bytes are those of Quantize.
type quantizedOutput struct {
	c       *graph.KernelCall
	op      quantize
	in, out []*graph.Tensor // of quantize
	d       *graph.Tensor   // stands for the float32 matrix; nil where nobody wants any of the outputs
	at      int64           // of it in the scratch
}

// quantizedBytes is the scratch of a float32 output (m,n).
func quantizedBytes(dt dtype.DType, m, n int) int64 {
	if !narrow(dt) {
		return 0
	}
	return int64(m) * int64(n) * 4
}

// quantized describes output (M,n) in format dt, quantized beside the operands of x: codes and factors along rows, and along
// columns. at is a multiple of 256 in the scratch.
func (x scaledCall) quantized(dt dtype.DType, s scaledKind, n int, at int64, norm, row, rowSF, col, colSF *graph.Tensor, over ...*graph.Tensor) quantizedOutput {
	q := quantizedOutput{c: x.c, at: at, op: quantize{Format: quantizedFormat(dt, x.f), Axis: AlongBoth, Align: x.align, Discrete: s.DiscreteCol}}
	if row == nil && rowSF == nil && col == nil && colSF == nil {
		return q
	}
	q.d = &graph.Tensor{DType: dtype.Float32, Shape: []int{x.a.Shape[0], n}}
	for _, t := range over { // the rows in use, which are those of every operand over the rows
		if t != nil && t.Count != nil {
			q.d.Count = t.Count
		}
	}
	q.in, q.out = []*graph.Tensor{q.d, x.offsets, x.counts, norm, nil, nil}, []*graph.Tensor{row, rowSF, col, colSF, nil}
	return q
}

// after returns the launches that make d, those of quantize behind them, d's address filled in.
func (q quantizedOutput) after(launches []graph.Launch, err error) ([]graph.Launch, error) {
	if err != nil || q.d == nil {
		return launches, err
	}
	more, err := q.op.CUDA(&graph.KernelCall{Name: q.c.Name, Op: q.op, In: q.in, Out: q.out, GPU: q.c.GPU})
	launches = append(launches, more...)
	for _, l := range launches {
		for i, a := range l.Args {
			if p, ok := a.(graph.Pointer); ok && p.T == q.d {
				l.Args[i] = scratchAt(q.c, int(q.at))
			}
		}
	}
	return launches, err
}
