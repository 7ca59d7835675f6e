package nodes

import "github.com/moegraph/moegraph/graph"

// normParams are the constants of rmsnorm.cuh.
type normParams struct {
	XType, YType, WeightType, DYType, DWeightType string
	Team                                          int // threads of a row: a warp or a block
	Held                                          int // vectors of a thread that stay in registers; 0: the row is read again
	Elems                                         int // of a vector
}

// shape sets Team, Held and Elems for rows of width elements.
func (p *normParams) shape(width, elems int) {
	vectors := tiles(width, elems)
	most := min(8, 16/elems) // vectors that a thread has registers for
	p.Elems, p.Team = elems, min(1024, max(32, ceilPow2(tiles(vectors, most))))
	if p.Held = max(1, tiles(vectors, p.Team)); p.Held > most {
		p.Held = 0
	}
}

// block returns the threads of a block.
func (p *normParams) block() int {
	if p.Team > 32 {
		return p.Team
	}
	return blockThreads
}

// blocks returns the grid over rows with so many threads a multiprocessor (resident in rmsnorm.cuh).
func (p *normParams) blocks(d graph.GPU, rows, threads int) int {
	return strided(d, rows, p.block()/p.Team, max(1, threads/p.block()))
}

func (o rmsNorm) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	x, weight, y, rstd := c.In[0], c.In[1], c.Out[0], c.Out[1]
	p := normParams{typeOf(x), typeOf(y), typeOf(weight), "float", "float", 0, 0, 0}
	p.shape(x.Shape[1], rowVector(x.Shape[1], x, weight, y))
	return []graph.Launch{launchOf("rmsnorm", "rmsnorm.cuh", p, p.blocks(c.GPU, x.Shape[0], 1536), p.block(),
		ptr(y), ptr(rstd), ptr(x), ptr(weight), counted(x), int32(x.Shape[1]), o.Eps)}, refuseRows(c)
}

// gradShape returns what kernel, scratch and launch of rmsnorm_grad go by: the number of partial sums of dweight.
func (p *normParams) partials(d graph.GPU, rows, width int) int {
	if p.Held > 0 {
		return p.blocks(d, rows, 768)
	}
	return columnGridOf(d, rows, width, p.Elems, 32).y
}

// CUDAScratch is the partial sums of dweight, for whatever vector the formats allow.
func (o rmsNormGrad) CUDAScratch(n *graph.Node, d graph.GPU) int64 {
	rows, width := n.In(0).Dim(0), n.In(0).Dim(1)
	var most int64
	for elems := 1; elems <= 8; elems *= 2 {
		var p normParams
		p.shape(width, elems)
		most = max(most, 4*int64(p.partials(d, rows, width))*int64(width))
	}
	return most
}

func (o rmsNormGrad) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	x, weight, rstd, dy, dx, dweight := c.In[0], c.In[1], c.In[2], c.In[3], c.Out[0], c.Out[1]
	rows, width := x.Shape[0], x.Shape[1]
	p := normParams{typeOf(x), "float", typeOf(weight), typeOf(dy), typeOf(dweight), 0, 0, 0}
	p.shape(width, rowVector(width, x, weight, dy))
	const source = "rmsnorm.cuh"
	partial := graph.Pointer{}
	if dweight != nil {
		partial = scratchAt(c, 0)
	}
	var launches []graph.Launch
	if dx != nil || p.Held > 0 {
		launches = append(launches, launchOf("rmsnorm_grad", source, p, p.blocks(c.GPU, rows, 768), p.block(),
			ptr(dx), partial, ptr(x), ptr(weight), ptr(rstd), ptr(dy), counted(x), int32(width)))
	}
	if dweight != nil && p.Held == 0 {
		launches = append(launches, columnsLaunch("rmsnorm_grad_columns", source, p, columnGridOf(c.GPU, rows, width, p.Elems, 32),
			partial, ptr(x), ptr(rstd), ptr(dy), counted(x), int32(width)))
	}
	if dweight != nil {
		launches = append(launches, finishColumns("rmsnorm_grad_finish", source, p, width, p.partials(c.GPU, rows, width), ptr(dweight), partial))
	}
	return launches, refuseRows(c)
}
