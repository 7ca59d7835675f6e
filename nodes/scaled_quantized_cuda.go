package nodes

import (
	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// quantOutput is the output of a product in fp8 or fp4, which its own epilogue quantizes (quant_epilogue.cuh); the zero value,
// an output that is not quantized. What nobody wants is nil.
type quantOutput struct {
	dt                           dtype.DType
	discrete                     bool // column factors are expert by expert
	norm, row, rowSF, col, colSF *graph.Tensor
}

// narrowOnly is dt if it is fp8 or fp4, else Invalid.
func narrowOnly(dt dtype.DType) dtype.DType {
	if narrow(dt) {
		return dt
	}
	return dtype.Invalid
}

// quantConsts are the constants of QuantOutput.
type quantConsts struct {
	HasRow, HasRowSF, HasCol, HasColSF, DiscreteCol bool
}

func (q quantOutput) consts() quantConsts {
	return quantConsts{q.row != nil, q.rowSF != nil, q.col != nil, q.colSF != nil, q.discrete}
}

// typeOf is that of the output, whose tensor is d unless it is quantized.
func (q quantOutput) typeOf(d *graph.Tensor) string {
	if q.row != nil || q.rowSF != nil || q.col != nil || q.colSF != nil {
		return codeType(q.dt)
	}
	return typeOf(d)
}

// args are the arguments beside the row codes.
func (q quantOutput) args() []any { return []any{ptr(q.norm), ptr(q.rowSF), ptr(q.col), ptr(q.colSF)} }
