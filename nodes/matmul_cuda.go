package nodes

import (
	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// A product over rows of a runs in row_product.cuh as one group. One that sums over rows is cut into splits of
// the rows, where its outputs are too few to fill the device.
const (
	maxSplits = 32
	splitRows = 512 // at least
)

// splits returns into how many the rows are cut, k at most.
func splits(d graph.GPU, work, k int) int {
	return max(1, min(d.Units/max(1, work), k/splitRows, maxSplits))
}

// spec is what the choice of a kernel goes by of an operand that may be absent.
type spec struct {
	exists bool
	dt     dtype.DType
	cols   int
}

func specOf(v *graph.Value) spec {
	if v == nil {
		return spec{dt: dtype.Float32}
	}
	return spec{true, v.DType(), v.Dim(v.Rank() - 1)}
}

func tensorSpec(t *graph.Tensor) spec {
	if t == nil {
		return spec{dt: dtype.Float32}
	}
	return spec{true, t.DType, t.Shape[len(t.Shape)-1]}
}

// vector says whether rows of n elements are multiples of 16 bytes.
func (s spec) vector(n int) bool { return n*s.dt.Bits()%128 == 0 }

// rowSums returns the constants of a product that sums over rows, and the tile. k is the capacity.
func (o matmul) rowSums(d graph.GPU, a, b, bias, y spec, m, k, n int) (groupProduct, error) {
	p := groupProduct{
		OperandType: elemType(a.dt), E: 1, M: m, N: n, RowsInnerB: o.TransB, VectorA: a.vector(m), VectorB: b.vector(b.cols),
		HasBias: bias.exists, BiasType: elemType(bias.dt), OutType: elemType(y.dt),
	}
	if err := p.choose(Launch{}, d, a.dt); err != nil {
		return p, err
	}
	s := splits(d, p.work(), k)
	if s == 1 {
		return p, nil
	}
	// The stage of groups grows with the splits: choose again.
	p.E, p.HasBias, p.BiasType, p.OutType = s, false, "float", "float"
	return p, p.choose(Launch{Tile: [2]int{p.TileM, p.TileN}}, d, a.dt)
}

// CUDAScratch is the products of the splits.
func (o matmul) CUDAScratch(n *graph.Node, d graph.GPU) int64 {
	if !o.TransA {
		return 0
	}
	m, k, cols := o.dims(n.In(0), n.In(1))
	p, err := o.rowSums(d, specOf(n.In(0)), specOf(n.In(1)), specOf(n.In(2)), spec{dt: o.DType}, m, k, cols)
	if err != nil || p.E == 1 {
		return 0
	}
	return int64(p.E) * int64(m) * int64(cols) * 4
}

func (o matmul) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	if err := refuseRows(c); err != nil {
		return nil, err
	}
	a, b, bias, y := c.In[0], c.In[1], c.In[2], c.Out[0]
	if o.TransA {
		return o.sumRows(c)
	}
	m, k, n := a.Shape[0], a.Shape[1], y.Shape[1]
	p := struct {
		rowProduct
		plainEpilogue
	}{rowProduct{OperandType: typeOf(a), E: 1, K: k, N: n, NMajor: !o.TransB},
		plainEpilogue{BiasType: typeOf(bias), DType: typeOf(y), CType: "float", HasBias: bias != nil, HasD: true}}
	var err error
	p.productTile, err = chooseTile(Launch{}, c.GPU, productSize{dt: a.DType, groups: 1, m: m, n: n})
	return []graph.Launch{p.launch(c.GPU, "matmul", p, p.work(m), ptr(a), ptr(b), rowsOf(a), ptr(bias), ptr(y), int32(m))}, err
}

func (o matmul) sumRows(c *graph.KernelCall) ([]graph.Launch, error) {
	a, b, bias, y := c.In[0], c.In[1], c.In[2], c.Out[0]
	k, m, n := a.Shape[0], a.Shape[1], y.Shape[1]
	p, err := o.rowSums(c.GPU, tensorSpec(a), tensorSpec(b), tensorSpec(bias), tensorSpec(y), m, k, n)
	if err != nil {
		return nil, err
	}
	if p.E == 1 {
		return []graph.Launch{p.launch(c.GPU, "matmul_rows", p, p.work(), ptr(a), ptr(b), rowsOf(a), ptr(bias), ptr(y), int32(k))}, nil
	}
	sum := struct {
		Splits, N       int
		YType, BiasType string
		HasBias         bool
	}{p.E, n, typeOf(y), typeOf(bias), bias != nil}
	return []graph.Launch{
		p.launch(c.GPU, "matmul_rows", p, p.work(), ptr(a), ptr(b), rowsOf(a), ptr(nil), scratchAt(c, 0), int32(k)),
		launchOf("split_sum", "split_sum.cuh", sum, strided(c.GPU, m*n, blockThreads, elementwiseBlocks), blockThreads,
			scratchAt(c, 0), ptr(bias), ptr(y), int64(m)*int64(n)),
	}, nil
}
