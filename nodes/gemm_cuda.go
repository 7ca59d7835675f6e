package nodes

import (
	"fmt"
	"math"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// What the launches of matrix products share: row_product.cuh and group_product.cuh in kernels/cuda, the portable
// family (mma.sync and cp.async, sm_80 and later; plain multiply-adds for f32).
//
// The scheduler is static and clusters are ignored: thread blocks take tiles a grid apart.

// productTile are the constants of a product that say how a thread block works.
type productTile struct {
	TileM, TileN, WarpM int // outputs of a thread block; rows of a warp, whose columns are 64
	Stages              int // slots of the ring that copies fill ahead
	Band                int // row tiles that are taken column by column, for the L2 cache
	Blocks              int // thread blocks that a multiprocessor is to hold
	SharedBytes         int // dynamic shared memory: sizeof(RowSmem) and sizeof(GroupSmem)
}

// productTiles are the tiles that have kernels. rate is the speed of a full multiprocessor beside that of the
// largest: what is copied to and read from shared memory for each multiplication grows as a tile shrinks.
var productTiles = []struct {
	m, n, warpM, blocks int
	rate                float64
}{
	{256, 128, 64, 1, 1},
	{128, 256, 64, 1, 0.97},
	{128, 128, 64, 2, 0.92},
	{64, 128, 32, 2, 0.7},
	{128, 64, 32, 2, 0.7},
	{64, 64, 16, 3, 0.5},
}

const (
	productStages = 4
	// reservedShared is what the driver takes of each thread block's shared memory.
	reservedShared = 1024
	// stageBytes is what a warp's epilogue sorts its outputs in: 16 rows of 64 floats.
	stageBytes = 16 * 64 * 4
	// lineBytes is what a row of a tile takes of a slot.
	lineBytes = 128
	// quantRows are the rows of a tile of quant_epilogue.cuh, which a warp has whole.
	quantRows = 32
	// scaledDepth is the length of the reduction that a block of codes covers, columnBytes what a slot has for its column.
	scaledDepth, columnBytes = 64, 16
	// bandRows is how many rows of tiles make the operands of the thread blocks that run at once smallest: about as
	// many rows as columns of A and B on 132 multiprocessors.
	bandRows = 2048
)

func (t productTile) threads() int { return t.TileM / t.WarpM * (t.TileN / 64) * 32 }

// sharedBytes returns sizeof(RowSmem), or of ScaledRowSmem, for so many slots: tiles and ring, stages, three numbers a group
// and one.
func (t productTile) sharedBytes(stages int, s productSize) int {
	n := t.ringBytes(stages, s) + t.threads()/32*stageBytes + (3*s.groups+1)*4
	return tiles(n, 128) * 128
}

// ringBytes returns the size of a ring of so many slots; with weights alone in codes, that of the tiles that they are decoded
// to as well (ScaledShape).
func (t productTile) ringBytes(stages int, s productSize) int {
	tile := (t.TileM + t.TileN) * lineBytes
	switch {
	case s.plain():
		return stages * tile
	case s.dt == dtype.Float32: // decoded element by element
		return tile
	case s.thin:
		return thinTilesBytes(t.TileM) + stages*s.thinSlotBytes(t.TileM, t.TileN)
	}
	codes := t.TileN * scaledDepth * s.codes.b / 8
	factors := t.TileN * 4 // a word for each row
	if s.codes.alongOuter {
		factors = codes / 4 // or for each chunk
	}
	return 2*t.TileN*lineBytes + stages*tiles(t.TileM*lineBytes+codes+factors+columnBytes, 128)*128
}

// productSize is what the choice of a tile goes by.
type productSize struct {
	dt      dtype.DType // of the operands
	groups  int
	m, n    int  // of the outputs
	perRows bool // the groups share m rows, else each has an (m,n)
	codes   codeBits
	vec     int  // codes that share a factor
	thin    bool // the kernel for few rows (thin_cuda.go)
	decoded bool // codes are decoded in memory, and the product is the plain one (scaled_cuda.go)
	warpM   int  // fewest rows of a warp
}

// codeBits says which operands of a product are codes.
type codeBits struct {
	a, b       int  // bits of a code; 0: no codes
	alongOuter bool // factors of b run along its outer axis
}

// plain says whether the main loop is that of operands without codes.
func (s productSize) plain() bool { return s.codes == codeBits{} || s.decoded && s.dt != dtype.Float32 }

// stages are how many slots a ring has at most, and at least where thread blocks share a multiprocessor or not.
func (s productSize) stages() (most, shared, alone int) {
	if s.plain() {
		return productStages, 3, 2
	}
	return productStages + 1, 4, 3 // a block more is in decoding
}

// chooseTile returns the tile that the options ask for, else the fastest by a simple model: the tiles of the busiest
// multiprocessor times the work of one, at the tile's rate.
func chooseTile(l Launch, d graph.GPU, s productSize) (productTile, error) {
	if l.Family == "hopper" {
		return productTile{}, graph.Unsupported("family", l.Family, "portable for this node")
	}
	var best productTile
	least := math.Inf(1)
	for _, c := range productTiles {
		if l.Tile != [2]int{} && l.Tile != [2]int{c.m, c.n} {
			continue
		}
		if l.Tile == [2]int{} && s.dt == dtype.Float32 && c.warpM > 32 {
			continue // plain multiply-adds need the registers
		}
		t := productTile{TileM: c.m, TileN: c.n, WarpM: max(c.warpM, s.warpM), Band: max(1, bandRows/c.m), Blocks: c.blocks}
		if !t.fit(d, s) {
			continue
		}
		rows := s.groups * tiles(s.m, c.m)
		if s.perRows {
			rows = s.groups * max(1, tiles(tiles(s.m, s.groups), c.m))
		}
		cost := float64(tiles(rows*tiles(s.n, c.n), max(1, d.Units))) * float64(c.m*c.n) / c.rate
		if cost < least {
			best, least = t, cost
		}
	}
	if math.IsInf(least, 1) {
		return best, graph.Unsupported("tile", fmt.Sprintf("%dx%d", l.Tile[0], l.Tile[1]),
			"a smaller one: the device has %d bytes of shared memory for a thread block", d.SharedBytes)
	}
	return best, nil
}

// fit sets stages, blocks and shared memory to the most that the device has room for; false: not even the fewest stages.
func (t *productTile) fit(d graph.GPU, s productSize) bool {
	most, shared, alone := s.stages()
	for blocks := t.Blocks; blocks >= 1; blocks-- {
		room := min(d.SharedBytes, (d.SharedBytes+reservedShared)/blocks-reservedShared)
		least := shared
		if blocks == 1 {
			least = alone
		}
		for stages := most; stages >= least; stages-- {
			if n := t.sharedBytes(stages, s); n <= room {
				t.Stages, t.Blocks, t.SharedBytes = stages, blocks, n
				return true
			}
		}
	}
	return false
}

// launch describes the persistent kernel over at most work tiles.
func (t productTile) launch(d graph.GPU, name string, params any, work int, args ...any) graph.Launch {
	l := launchOf(name, name+".cuh", params, max(1, min(work, d.Units*t.Blocks)), t.threads(), args...)
	l.SharedBytes = t.SharedBytes
	return l
}

// maxRowTiles returns the most tiles of so many rows that groups over m rows can have.
func maxRowTiles(m, rows, groups int) int { return m/rows + groups }

// rowProduct are the constants of row_product.cuh.
type rowProduct struct {
	OperandType string
	E, K, N     int
	NMajor      bool
	Ptrs        bool // b holds addresses
	UpRow       int  // distance from a gate row of the weight to its up row, where the weight is [gate; up]
	productTile
}

// rowProductOf returns the constants of a grouped GEMM with m rows.
func rowProductOf(l Launch, d graph.GPU, w weightKind, dt dtype.DType, experts, m, k, n int) (rowProduct, error) {
	p := rowProduct{OperandType: elemType(dt), E: experts, K: k, N: n, NMajor: w.NMajor, Ptrs: w.Ptrs || w.Discrete > 0}
	var err error
	p.productTile, err = chooseTile(l, d, productSize{dt: dt, groups: experts, m: m, n: n, perRows: true})
	return p, err
}

// work returns the most tiles that the product over m rows can have.
func (p rowProduct) work(m int) int { return maxRowTiles(m, p.TileM, p.E) * tiles(p.N, p.TileN) }

// Addresses of discrete operands are gathered in the node's scratch, pointersPerLaunch at a time (pointers.cuh).
const pointersPerLaunch = 64

// pointerBytes returns the scratch that n discrete operands take, a multiple of 256 bytes.
func pointerBytes(n int) int64 { return int64(tiles(n*8, 256) * 256) }

// gatherPointers returns the launches that write the tensors' addresses to the scratch.
func gatherPointers(c *graph.KernelCall, ts []*graph.Tensor) []graph.Launch {
	return gatherPointersAt(c, 0, ts)
}

// gatherPointersAt is gatherPointers to offset bytes in the scratch.
func gatherPointersAt(c *graph.KernelCall, offset int64, ts []*graph.Tensor) []graph.Launch {
	var launches []graph.Launch
	for base := 0; base < len(ts); base += pointersPerLaunch {
		n := min(pointersPerLaunch, len(ts)-base)
		args := []any{scratchAt(c, int(offset)), int32(base), int32(n)}
		for i := range pointersPerLaunch {
			var t *graph.Tensor
			if i < n {
				t = ts[base+i]
			}
			args = append(args, ptr(t))
		}
		launches = append(launches, launchOf("pointers", "pointers.cuh", noParams{}, 1, pointersPerLaunch, args...))
	}
	return launches
}

// weightLaunches returns the argument of weights b, and the launches that must come before.
func (k weightKind) cuda(c *graph.KernelCall, b []*graph.Tensor) (graph.Pointer, []graph.Launch) {
	if k.Discrete == 0 {
		return ptr(b[0]), nil
	}
	return scratchAt(c, 0), gatherPointers(c, b)
}

// pointerScratch returns the scratch of discrete weights, and of what weights that are block-scaled alone take.
func (k weightKind) pointerScratch() int64 {
	if k.Only != NoBlockFormat {
		return k.scaledScratchCUDA()
	}
	return pointerBytes(k.Discrete)
}

// rowsOf is the argument for the rows in use of t.
func rowsOf(t *graph.Tensor) graph.Count { return graph.Count{T: t} }

// layoutName returns the constant of types.cuh.
func (l Layout) cuda() string { return [...]string{"kInterleaved32", "kConcat", "kPairs"}[l] }

// actParams are the constants of activation.cuh.
type actParams struct {
	GeGLU                           bool
	LinearOffset, Alpha, Cmax, Cmin float32
}

func (a act) cuda() actParams {
	finite := func(x float64) float32 { return float32(min(max(x, -math.MaxFloat32), math.MaxFloat32)) }
	return actParams{a.GeGLU, finite(a.LinearOffset), finite(a.Alpha), finite(a.Cmax), finite(a.Cmin)}
}
