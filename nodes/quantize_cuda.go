package nodes

import (
	"math"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// quantizeParams are the constants of quantize.cuh.
type quantizeParams struct {
	amaxParams
	ValueType, FactorType string
	HasRow, HasCol        bool
	Transpose             bool
	Random                bool
	RowUnit, CodeUnit     int
	Stages                int
}

// amaxParams are those of quantize_amax.cuh, which knows the tiles alone.
type amaxParams struct {
	XType          string
	Vec            int
	Groups, Align  int
	Discrete       bool
	Norm           string
	NormEach, Unit bool
	Vector         bool
	PerUnit        int
}

// quantSide is a side of the tiles of quant_tiles.cuh.
const quantSide = 128

// params returns the constants for a call.
func (o quantize) params(c *graph.KernelCall) quantizeParams {
	x := c.In[quantX]
	_, rows, cols := o.dims(x.Shape)
	p := quantizeParams{
		amaxParams: amaxParams{
			XType: typeOf(x), Vec: o.Format.Vec(), Discrete: o.Discrete, Norm: "kNormOne", Unit: o.Unit, Vector: cols%8 == 0, PerUnit: 3,
		},
		ValueType: codeType(o.Format.Values()), FactorType: codeType(o.Format.Factor()),
		HasRow: c.Out[quantRow] != nil || c.Out[quantRowSF] != nil, HasCol: c.Out[quantCol] != nil || c.Out[quantColSF] != nil,
		Transpose: o.Transpose, Random: c.In[quantDraw] != nil, RowUnit: copyUnit(o.Format.Values().Bytes(cols)), CodeUnit: 1, Stages: 2,
	}
	if offsets := c.In[quantOffsets]; offsets != nil {
		p.Groups, p.Align = offsets.Shape[0], o.Align
	}
	switch scale := c.In[quantGlobal]; {
	case o.Auto:
		p.Norm, p.NormEach = "kNormAuto", o.PerExpert
	case scale != nil:
		p.Norm, p.NormEach = "kNormScale", scale.Shape[0] > 1
	case c.In[quantNorm] != nil:
		p.Norm = "kNormConst"
	}
	if x.DType == dtype.Float32 { // twice the registers and the shared memory
		p.PerUnit, p.Stages = 2, 1
	}
	if o.Transpose {
		p.CodeUnit = copyUnit(o.Format.Values().Bytes(rows))
	}
	return p
}

// owners is the number of maxima of auto_norm.
func (o quantize) owners(x, offsets []int) int {
	batches, _, _ := o.dims(x)
	switch {
	case !o.PerExpert:
		return 1
	case offsets != nil:
		return offsets[0]
	}
	return batches
}

// CUDAScratch implements graph.CUDAScratcher: auto_norm's maxima.
func (o quantize) CUDAScratch(n *graph.Node, _ graph.GPU) int64 {
	if !o.Auto {
		return 0
	}
	var offsets []int
	if v := n.In(quantOffsets); v != nil {
		offsets = v.Shape()
	}
	return 4 * int64(o.owners(n.In(quantX).Shape(), offsets))
}

func (o quantize) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	x, offsets, counts := c.In[quantX], c.In[quantOffsets], c.In[quantCounts]
	batches, rows, cols := o.dims(x.Shape)
	if cols > maxRowElems {
		return nil, graph.Unsupported("row", cols, "at most %d elements in a row on CUDA devices", maxRowElems)
	}
	p := o.params(c)
	norms, scale, scales := ptr(c.In[quantNorm]), c.Out[quantScale], 0
	if c.In[quantGlobal] != nil {
		norms = ptr(c.In[quantGlobal])
	}
	if scale != nil {
		scales = scale.Shape[0]
	}
	all := batches * tiles(rows, quantSide) * tiles(cols, quantSide)
	if all > math.MaxInt32 {
		return nil, graph.Unsupported("x", x.Shape, "less than 2^31 tiles of %[1]d rows by %[1]d columns on CUDA devices", quantSide)
	}
	blocks := strided(c.GPU, all, 1, p.PerUnit)
	in := []any{ptr(x), ptr(offsets), ptr(counts), graph.Count{T: x}}
	var launches []graph.Launch
	if o.Auto {
		norms = scratchAt(c, 0)
		var shape []int
		if offsets != nil {
			shape = offsets.Shape
		}
		n := o.owners(x.Shape, shape)
		launches = []graph.Launch{
			launchOf("fill", "fill.cuh", struct{ YType string }{"float"}, 1, blockThreads, norms, graph.Pointer{}, int64(1), int64(n), float32(0)),
			launchOf("quantize_amax", "quantize_amax.cuh", p.amaxParams, blocks, blockThreads, norms, in, int64(rows), int32(cols), int32(batches)),
		}
	}
	l := launchOf("quantize", "quantize.cuh", p, blocks, blockThreads,
		ptr(c.Out[quantRow]), ptr(c.Out[quantRowSF]), ptr(c.Out[quantCol]), ptr(c.Out[quantColSF]), ptr(scale), in, norms, ptr(c.In[quantDraw]),
		int64(rows), int32(cols), int32(batches), o.Salt, int32(scales))
	if p.HasRow || p.HasCol {
		l.SharedBytes = p.Stages * (quantSide*quantSide*x.DType.Bits()/8 + quantSide) // 16 bytes after every 16 rows
	}
	if p.HasCol {
		l.SharedBytes += 2 * quantSide * quantSide / p.Vec
	}
	return append(launches, l), nil
}

// dequantizeParams are the constants of dequantize.cuh.
type dequantizeParams struct {
	ValueType, FactorType, YType string
	Vec                          int
	Down, Scaled, Vector         bool
}

func (o dequantize) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	x, sf, scale, y := c.In[0], c.In[1], c.In[2], c.Out[0]
	batches, rows, cols := quantize{}.dims(y.Shape)
	if cols > maxRowElems {
		return nil, graph.Unsupported("row", cols, "at most %d elements in a row on CUDA devices", maxRowElems)
	}
	p := dequantizeParams{
		codeType(o.Format.Values()), codeType(o.Format.Factor()), typeOf(y), o.Format.Vec(), o.Axis == AlongCol, scale != nil, cols%8 == 0,
	}
	each := int32(0)
	if scale != nil && scale.Shape[0] > 1 {
		each = 1
	}
	const rowsPerThread = 8
	blocks := strided(c.GPU, batches*tiles(rows, rowsPerThread)*tiles(cols, 8), blockThreads, rowBlocks)
	return []graph.Launch{launchOf("dequantize", "dequantize.cuh", p, blocks, blockThreads,
		ptr(y), ptr(x), ptr(sf), ptr(scale), graph.Count{T: y}, int64(rows), int32(cols), int32(batches), each)}, nil
}
