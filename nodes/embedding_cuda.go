package nodes

import (
	"math"
	"math/bits"

	"github.com/moegraph/moegraph/graph"
)

// gatherParams are the constants of embedding.cuh.
type gatherParams struct {
	Unit  int // bytes of a load
	Lanes int
}

func (embedding) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	ids, table, y := c.In[0], c.In[1], c.Out[0]
	bytes := table.DType.Bytes(table.Shape[1])
	p := gatherParams{Unit: copyUnit(bytes)}
	p.Lanes = rowLanes(bytes/p.Unit, 4)
	return []graph.Launch{rowLaunch(c, "embedding", "embedding.cuh", p, capacity(ids), p.Lanes,
		ptr(y), ptr(ids), ptr(table), counted(ids), int64(ids.Width()), int64(table.Shape[0]), int32(bytes))}, refuseRows(c)
}

// embeddingGradParams are the constants of embedding_grad.cuh.
type embeddingGradParams struct {
	DYType, DTableType string
	Bits               int // of a pass of the sort
	Elems              int // of a load
	Warps              int // that share the places of an id: 1, 8 or 32
}

// passes returns how many passes sort the ids, and the bits of each: at most 10.
func (o embeddingGrad) passes() (passes, width int) {
	total := max(1, bits.Len(uint(max(o.Vocab, 1)-1)))
	passes = tiles(total, 10)
	return passes, tiles(total, passes)
}

// embeddingGradScratch is where the sort's arrays lie, in bytes.
type embeddingGradScratch struct{ totals, kept, first, second, size int }

// layout cuts the scratch: the table of counts, totals, the number of places kept, and the places, twice where there are
// two passes or more.
func (o embeddingGrad) layout(d graph.GPU, places int) embeddingGradScratch {
	passes, width := o.passes()
	var s embeddingGradScratch
	s.totals = 4 * sortChunks(d, places) << width
	s.kept = s.totals + 4<<width
	s.first = s.kept + 16
	s.second = s.first + 4*places
	s.size = s.second
	if passes > 1 {
		s.size += 4 * places
	}
	return s
}

// CUDAScratch is what layout says.
func (o embeddingGrad) CUDAScratch(n *graph.Node, d graph.GPU) int64 {
	return int64(o.layout(d, n.In(0).Elems()).size)
}

func (o embeddingGrad) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	ids, dy, dtable := c.In[0], c.In[1], c.Out[0]
	places := capacity(ids)
	if places > math.MaxInt32 {
		return nil, graph.Unsupported("ids", places, "less than 2^31 on CUDA devices")
	}
	passes, width := o.passes()
	p := embeddingGradParams{DYType: typeOf(dy), DTableType: typeOf(dtable), Bits: width, Elems: rowVector(o.Width, dy, dtable), Warps: 1}
	switch perRow := places / max(1, o.Vocab); {
	case perRow > 64:
		p.Warps = 32
	case perRow > 4:
		p.Warps = 8
	}
	const source = "embedding_grad.cuh"
	at, chunks := o.layout(c.GPU, places), sortChunks(c.GPU, places)
	table, totals, kept := scratchAt(c, 0), scratchAt(c, at.totals), scratchAt(c, at.kept)
	from, to, other := graph.Pointer{}, scratchAt(c, at.first), scratchAt(c, at.second)
	given, keep := graph.Pointer{}, kept // of the first pass
	var launches []graph.Launch
	for pass := range passes {
		items := join(ptr(ids), from, int32(pass*width), int64(o.Vocab), given, counted(ids), int64(ids.Width()))
		place := launchOf("embedding_grad_place", source, p, chunks, blockThreads, to, keep, table, totals, items)
		place.SharedBytes = 4 * sortWarps << width
		launches = append(launches,
			launchOf("embedding_grad_count", source, p, chunks, blockThreads, table, items),
			scanLaunch("embedding_grad_scan", source, p, 1<<width, chunks, table, totals),
			place)
		from, to, other = to, other, to
		given, keep = kept, graph.Pointer{}
	}
	threads := max(blockThreads, 32*p.Warps)
	teams, work := threads/(32*p.Warps), o.Vocab
	if p.Warps > 1 {
		work *= tiles(o.Width, 32*p.Elems)
	}
	launches = append(launches, launchOf("embedding_grad_sum", source, p, strided(c.GPU, work, teams, 1024/threads), threads,
		ptr(dtable), ptr(dy), ptr(ids), from, kept, int64(o.Vocab), int32(o.Width)))
	return launches, refuseRows(c)
}
