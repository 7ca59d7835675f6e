package nodes

import (
	"math/bits"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// What the launches of memory-bound operators share. The numbers of threads and blocks here are those that the
// headers elementwise.cuh, rows.cuh, columns.cuh and counting_sort.cuh in kernels/cuda state.

// elemType returns the C++ type of a float format (kernels/cuda/numeric.cuh).
func elemType(dt dtype.DType) string {
	switch dt {
	case dtype.BFloat16:
		return "bf16"
	case dtype.Float16:
		return "f16"
	}
	return "float"
}

// typeOf is elemType of a tensor, float where there is none.
func typeOf(t *graph.Tensor) string {
	if t == nil {
		return "float"
	}
	return elemType(t.DType)
}

// refuseWide refuses float64, which is for the host alone.
func refuseWide(c *graph.KernelCall) error {
	for i, t := range c.In {
		if t != nil && isWide(t.DType) {
			return wideError(c.Op.Operands()[i].Name)
		}
	}
	for i, t := range c.Out {
		if t != nil && isWide(t.DType) {
			return wideError(c.Op.Outputs()[i])
		}
	}
	return nil
}

func wideError(operand string) error {
	return graph.Unsupported(operand, dtype.Float64, "bf16, f16 or f32 on CUDA devices: f64 runs on the host alone")
}

// maxRowElems bounds rows whose columns a kernel counts in int32, with room for the step past the end.
const maxRowElems = 1 << 30

// refuseRows refuses float64 and rows too long for a row kernel.
func refuseRows(c *graph.KernelCall) error {
	for _, t := range append(append([]*graph.Tensor{}, c.In...), c.Out...) {
		if t != nil && t.Width() > maxRowElems {
			return graph.Unsupported("row", t.Width(), "at most %d elements in a row on CUDA devices", maxRowElems)
		}
	}
	return refuseWide(c)
}

// ptr is an argument: the address of t, null for none.
func ptr(t *graph.Tensor) graph.Pointer { return graph.Pointer{T: t} }

// scratchAt is an argument: an address in the node's scratch.
func scratchAt(c *graph.KernelCall, offset int) graph.Pointer {
	return graph.Pointer{T: c.Scratch, Offset: int64(offset)}
}

// capacityRows returns the size of the first dimension of t.
func capacityRows(t *graph.Tensor) int {
	if len(t.Shape) == 0 {
		return 1
	}
	return t.Shape[0]
}

// counted are the two arguments that tell a kernel the rows in use of t.
func counted(t *graph.Tensor) []any { return []any{graph.Count{T: t}, int64(capacityRows(t))} }

// join makes one list of arguments; a []any stands for its elements.
func join(args ...any) []any {
	var all []any
	for _, a := range args {
		if list, ok := a.([]any); ok {
			all = append(all, list...)
		} else {
			all = append(all, a)
		}
	}
	return all
}

// launchOf describes a launch in one dimension.
func launchOf(name, source string, params any, blocks, threads int, args ...any) graph.Launch {
	return graph.Launch{
		Kernel: graph.Kernel{Name: name, Source: source, Params: params},
		Grid:   [3]int{blocks, 1, 1}, Block: [3]int{threads, 1, 1}, Args: join(args...),
	}
}

// noParams is for kernels without constants.
type noParams struct{}

// oneThread launches a kernel that works on single numbers.
func oneThread(name, source string, args ...any) []graph.Launch {
	return []graph.Launch{launchOf(name, source, noParams{}, 1, 1, args...)}
}

// strided returns how many blocks a kernel gets that strides over its work, perBlock of which a block does at once:
// as many as the work asks for, at most perUnit a multiprocessor, all of which are resident.
func strided(d graph.GPU, work, perBlock, perUnit int) int {
	return max(1, min(tiles(work, perBlock), d.Units*perUnit))
}

// Threads of a block of most kernels, and blocks that a multiprocessor holds of elementwise and of row kernels.
const (
	blockThreads      = 256
	elementwiseBlocks = 4
	rowBlocks         = 3
	elementwiseUnroll = 4 // vectors of a thread in flight
)

// vectorElems returns the number of elements in 16 bytes of the narrowest of the formats (narrow_vector in common.cuh).
func vectorElems(ts ...*graph.Tensor) int {
	for _, t := range ts {
		if t != nil && t.DType.Bits() == 16 {
			return 8
		}
	}
	return 4
}

// rowVector is vectorElems for kernels over rows of width elements: the largest such vector that cuts rows evenly.
func rowVector(width int, ts ...*graph.Tensor) int {
	n := vectorElems(ts...)
	for width%n != 0 {
		n /= 2
	}
	return n
}

// elementwiseBlocksOf returns the grid of an elementwise kernel over n elements (elementwise.cuh).
func elementwiseBlocksOf(d graph.GPU, n int, ts ...*graph.Tensor) int {
	return strided(d, n, blockThreads*vectorElems(ts...)*elementwiseUnroll, elementwiseBlocks)
}

// elementwiseLaunch launches a kernel over the elements of the rows in use of t; ts are what it reads and writes.
func elementwiseLaunch(c *graph.KernelCall, name, source string, params any, t *graph.Tensor, ts []*graph.Tensor, args ...any) graph.Launch {
	return launchOf(name, source, params, elementwiseBlocksOf(c.GPU, capacity(t), ts...), blockThreads, args...)
}

// copyUnit returns the largest power of two up to 16 that divides all numbers of bytes: what one load or store moves.
func copyUnit(bytes ...int) int {
	unit := 16
	for _, b := range bytes {
		for b%unit != 0 {
			unit /= 2
		}
	}
	return unit
}

// rowLanes returns how many lanes take a row of so many vectors, perLane of which a lane has in flight: a power of two
// up to 32.
func rowLanes(vectors, perLane int) int {
	lanes := min(32, ceilPow2(tiles(vectors, perLane)))
	return max(lanes, min(4, ceilPow2(vectors)))
}

// ceilPow2 returns the smallest power of two of at least n.
func ceilPow2(n int) int { return 1 << bits.Len(uint(max(n, 1)-1)) }

// rowLaunch launches a kernel of rows.cuh over rows of lanes lanes each.
func rowLaunch(c *graph.KernelCall, name, source string, params any, rows, lanes int, args ...any) graph.Launch {
	return launchOf(name, source, params, strided(c.GPU, rows, blockThreads/lanes, rowBlocks), blockThreads, args...)
}

// columnsLaunch launches column_partials of columns.cuh: across threads of elems columns along a row.
func columnsLaunch(name, source string, params any, g columnGrid, args ...any) graph.Launch {
	l := launchOf(name, source, params, g.x, blockThreads, args...)
	l.Grid[1] = g.y
	return l
}

// columnGrid is the grid of column_partials: x blocks along a row, y down the rows. y is the number of partials.
type columnGrid struct{ x, y, across int }

func columnGridOf(d graph.GPU, rows, width, elems, across int) columnGrid {
	g := columnGrid{x: max(1, tiles(width, across*elems)), across: across}
	const rowsPerThread = 4 // at least, for a block to be worth its partials
	g.y = max(1, min(tiles(rows, rowsPerThread*blockThreads/across), max(1, elementwiseBlocks*d.Units/g.x)))
	return g
}

// finishColumns launches the sum of count partials of each column.
func finishColumns(name, source string, params any, width, count int, y, partial graph.Pointer) graph.Launch {
	l := launchOf(name, source, params, max(1, tiles(width, 32)), 32, y, partial, int32(count), int32(width))
	l.Block[1] = 32
	return l
}

// Launch shape of counting_sort.cuh.
const (
	sortWarps = blockThreads / 32
	sortChunk = 1024 // items of a chunk at least, where there are as many
)

// sortChunks returns the number of chunks that n items are sorted in.
func sortChunks(d graph.GPU, n int) int { return strided(d, n, sortChunk, 2) }

// scanLaunch launches the second step of a counting sort.
func scanLaunch(name, source string, params any, bins, chunks int, table, totals graph.Pointer) graph.Launch {
	l := launchOf(name, source, params, tiles(bins, 32), 32, table, totals, int32(chunks))
	l.Block[1] = 32
	return l
}
