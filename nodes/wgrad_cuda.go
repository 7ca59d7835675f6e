package nodes

import (
	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// groupProduct are the constants of group_product.cuh and of its epilogue.
type groupProduct struct {
	OperandType            string
	E, M, N                int
	RowsInnerA, RowsInnerB bool // the summed axis is contiguous
	VectorA, VectorB       bool // rows are multiples of 16 bytes
	Ragged                 bool // a RowsInner operand holds group after group
	Accumulate, Ptrs       bool
	HasAlpha, HasBias      bool
	BiasType, OutType      string
	productTile
}

// work returns the number of tiles.
func (p groupProduct) work() int { return p.E * tiles(p.M, p.TileM) * tiles(p.N, p.TileN) }

// choose sets the tile.
func (p *groupProduct) choose(l Launch, d graph.GPU, dt dtype.DType) (err error) {
	p.productTile, err = chooseTile(l, d, productSize{dt: dt, groups: p.E, m: p.M, n: p.N})
	return err
}

// CUDAScratch is the addresses of discrete gradients.
func (o wgrad) CUDAScratch(*graph.Node, graph.GPU) int64 { return pointerBytes(o.Discrete) }

func (o wgrad) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	if err := refuseWide(c); err != nil {
		return nil, err
	}
	a, b, offsets, alpha := c.In[wgA], c.In[wgB], c.In[wgOffsets], c.In[wgAlpha]
	hidden, tokens, inter := a.Shape[0], a.Shape[1], b.Shape[1]
	if o.AMajorM {
		hidden, tokens = tokens, hidden
	}
	if o.BMajorK {
		inter = b.Shape[0]
	}
	p := struct {
		groupProduct
		Unit int
	}{o.product(offsets.Shape[0], hidden, inter, typeOf(a), alpha), 1}
	if p.RowsInnerA || p.RowsInnerB {
		p.Unit = 128 / a.DType.Bits()
	}
	if err := p.choose(o.Launch, c.GPU, a.DType); err != nil {
		return nil, err
	}
	out, launches := o.output(c, wgInto)
	rowsA, rowsB := o.rows(a, b)
	return append(launches, p.launch(c.GPU, "wgrad", p, p.work(),
		ptr(a), ptr(b), ptr(offsets), ptr(c.In[wgCounts]), rowsA, rowsB, ptr(alpha), out, int32(tokens))), nil
}

// output returns the argument of the gradients, and the launches that must come before; they are operands from into on where
// they are updated or given by address.
func (o wgrad) output(c *graph.KernelCall, into int) (graph.Pointer, []graph.Launch) {
	outs := c.Out
	if o.Accumulate || o.Ptrs {
		outs = c.In[into:]
	}
	if o.Discrete > 0 {
		return scratchAt(c, 0), gatherPointers(c, outs)
	}
	return ptr(outs[0]), nil
}

// rows returns the rows in use, which bound the tokens only of an operand whose rows are tokens.
func (o wgrad) rows(a, b *graph.Tensor) (rowsA, rowsB graph.Count) {
	if o.AMajorM {
		rowsA = rowsOf(a)
	}
	if !o.BMajorK {
		rowsB = rowsOf(b)
	}
	return rowsA, rowsB
}

// product returns the constants that do not depend on what the operands hold.
func (o wgrad) product(experts, hidden, inter int, operand string, alpha *graph.Tensor) groupProduct {
	return groupProduct{
		OperandType: operand, E: experts, M: hidden, N: inter, RowsInnerA: !o.AMajorM, RowsInnerB: o.BMajorK, VectorA: true, VectorB: true,
		Ragged: o.Ragged, Accumulate: o.Accumulate, Ptrs: o.Ptrs || o.Discrete > 0, HasAlpha: alpha != nil, BiasType: "float", OutType: elemType(o.DType),
	}
}
