package nodes

import (
	"math"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// Tiles of Quantize on the host: whole blocks in both axes.
const (
	quantTileRows = 128
	quantTileCols = 512
)

// nvfp4Top is what auto_norm spreads the largest element to: the largest factor times the largest value.
const nvfp4Top = 448 * 6

// Scratch implements graph.Scratcher: auto_norm's maxima of all tiles, and its norms.
func (o quantize) Scratch(n *graph.Node) int64 {
	if !o.Auto {
		return 0
	}
	batches, rows, cols := o.dims(n.In(quantX).Shape())
	groups := batches
	if v := n.In(quantOffsets); v != nil {
		groups = v.Dim(0)
	}
	return 4 * int64((batches*tiles(rows, quantTileRows)+groups)*tiles(cols, quantTileCols)+groups)
}

// quantTiles walks the tiles of Quantize's operand.
type quantTiles struct {
	groups              *groups       // nil without offsets
	x                   *graph.Tensor // whose rows in use count without offsets
	batches, rows, down int           // without offsets: tiles down one matrix
	across, cols        int
	vec                 int
	sfBase              []int // of each group's column factors, in bytes
}

func (t *quantTiles) read() {
	if t.groups == nil {
		rows := t.rows
		if t.batches == 1 && len(t.x.Shape) == 2 {
			rows = t.x.Rows()
		}
		t.rows, t.down = rows, tiles(rows, quantTileRows)
		return
	}
	t.groups.read()
	columnFactorBases(t.sfBase, t.groups, t.cols, t.vec)
}

// columnFactorBases sets the first byte of each group's own column factors of a matrix with cols columns.
func columnFactorBases(base []int, g *groups, cols, vec int) {
	at := 0
	for e := range g.begin {
		base[e] = at
		at += dtype.FactorLayout{Rows: cols, Cols: dtype.FactorCols(g.end[e]-g.begin[e], vec), Batches: 1}.Bytes()
	}
}

func (t *quantTiles) n() int {
	if t.groups != nil {
		return t.groups.tiles() * t.across
	}
	return t.batches * t.down * t.across
}

// at returns tile i: its group, or matrix, its rows [lo,hi) in the matrix, real ones before mid, and its columns.
func (t *quantTiles) at(i int) (e, lo, mid, hi, col, nt int, g quantGroup) {
	col = i % t.across * quantTileCols
	nt = min(quantTileCols, t.cols-col)
	if t.groups != nil {
		e, lo, mid, hi = t.groups.at(i / t.across)
		return e, lo, mid, hi, col, nt, quantGroup{begin: t.groups.begin[e], rows: t.groups.end[e] - t.groups.begin[e], sfBase: t.sfBase[e]}
	}
	e = i / t.across / t.down
	lo = i / t.across % t.down * quantTileRows
	hi = min(lo+quantTileRows, t.rows)
	return e, lo, hi, hi, col, nt, quantGroup{rows: t.rows, batch: e}
}

func (o quantize) Host(c *graph.Call) func() error {
	x := c.In[quantX]
	batches, rows, cols := o.dims(x.Shape)
	t := &quantTiles{x: x, batches: batches, rows: rows, cols: cols, across: tiles(cols, quantTileCols), vec: o.Format.Vec()}
	experts := batches
	if offsets := c.In[quantOffsets]; offsets != nil {
		experts = offsets.Shape[0]
		t.groups = newGroups(offsets, c.In[quantCounts], rows, o.Align, quantTileRows, x)
		t.groups.blocks = true
		t.sfBase = make([]int, experts)
	}
	q := newBlockQuantizer(o.Format, rows, cols, batches)
	q.row, q.col = quantAxis{c.Out[quantRow], c.Out[quantRowSF]}, quantAxis{c.Out[quantCol], c.Out[quantColSF]}
	q.transpose, q.discrete = o.Transpose, o.Discrete
	if o.Unit {
		q.scale.unit()
	}
	q.rounding = stochastic{draw: c.In[quantDraw], salt: o.Salt}
	norms := make([]float32, experts)
	auto := o.autoNorm(c, t, norms)
	loop := c.NewLoop(func(w *graph.Worker, first, last int) {
		for i := first; i < last; i++ {
			e, lo, mid, hi, col, nt, g := t.at(i)
			block := w.Float32(0, (hi-lo)*nt)
			for r := lo; r < mid; r++ {
				loadInto(block[(r-lo)*nt:(r-lo+1)*nt], x, (g.batch*rows+r)*cols+col)
			}
			clear(block[(mid-lo)*nt:])
			q.tile(w, block, nt, lo, col, hi-lo, nt, norms[e], g)
		}
	})
	return func() error {
		t.rows = rows
		t.read()
		q.clearFactors()
		auto()
		loop.Run(t.n(), 1)
		return nil
	}
}

// autoNorm returns the function that sets the norms, and the output global_scale, from the operands or the maxima.
func (o quantize) autoNorm(c *graph.Call, t *quantTiles, norms []float32) func() {
	if !o.Auto {
		return func() {
			for e := range norms {
				norms[e] = 1
				if norm := c.In[quantNorm]; norm != nil {
					norms[e] = scalar[float32](norm, 0)
				} else if scale := c.In[quantGlobal]; scale != nil {
					norms[e] = 1 / scalar[float32](scale, min(e, scale.Shape[0]-1))
				}
			}
		}
	}
	x := c.In[quantX]
	_, rows, cols := o.dims(x.Shape)
	tops := graph.View[uint32](c.Scratch) // of the finite elements of each tile
	loop := c.NewLoop(func(w *graph.Worker, first, last int) {
		for i := first; i < last; i++ {
			_, lo, mid, _, col, nt, g := t.at(i)
			top := uint32(0)
			for r := lo; r < mid; r++ {
				for _, v := range load[float32](w, 0, x, (g.batch*rows+r)*cols+col, nt) {
					if m := magnitude(v); m > top && m < math.Float32bits(float32(math.Inf(1))) {
						top = m
					}
				}
			}
			tops[i] = top
		}
	})
	return func() {
		loop.Run(t.n(), 1)
		clear(norms)
		for i := range t.n() {
			e, _, _, _, _, _, _ := t.at(i)
			norms[e] = max(norms[e], math.Float32frombits(tops[i]))
		}
		if !o.PerExpert {
			all := float32(0)
			for _, top := range norms {
				all = max(all, top)
			}
			for e := range norms {
				norms[e] = all
			}
		}
		for e, top := range norms {
			norm := float32(nvfp4Top / top)
			if top == 0 || norm > math.MaxFloat32 || o.Unit {
				norm = 1
			}
			norms[e] = norm
			if out := c.Out[quantScale]; out != nil && e < out.Shape[0] {
				graph.View[float32](out.Data)[e] = 1 / norm
			}
		}
	}
}
