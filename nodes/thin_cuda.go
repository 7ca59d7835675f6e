package nodes

import (
	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// scaled_thin.cuh is the main loop where experts have few rows, so that the copies of weights take the time:
// it reads them from memory once, but decodes them for each 64 rows.

const (
	// thinRows is the most rows of an expert, on average, with which the thin kernel is taken. How many there will be, only
	// the device knows; of the room for them half of what groups are padded to is taken to be padding.
	thinRows = 192
	// thinLine is what a block takes of each row of codes, in bytes; a slot of the ring has thinWide blocks.
	thinLine, thinWide = 32, 2
	// thinBlocks are the thread blocks of a multiprocessor, thinTileM the most rows of a tile; dGLU's epilogue takes more registers.
	thinBlocks, thinTileM, thinDGLUTileM = 2, 64, 32
	// thinStages are the most slots of its ring, thinLeast the fewest.
	thinStages, thinLeast = 4, 3
)

// thinTile returns the tile of the thin kernel for a product, false where another has to work.
func thinTile(x scaledShape, d graph.GPU, s productSize) (productTile, bool) {
	if x.l.Tile != [2]int{} || x.l.Family == "hopper" || x.w.NMajor || s.dt != dtype.BFloat16 || x.m-x.experts*x.align/2 > thinRows*x.experts {
		return productTile{}, false
	}
	s.thin = true
	rows := x.thin
	if d.Arch != 90 || x.k%(16*s.codes.b) != 0 || x.quant == dtype.E2M1 {
		rows = min(rows, 32) // the compiler spills there with 64
	}
	for blocks := thinBlocks; blocks >= 1; blocks-- {
		t := productTile{TileM: rows, TileN: 256, WarpM: rows, Band: 1, Blocks: blocks}
		room := min(d.SharedBytes, (d.SharedBytes+reservedShared)/blocks-reservedShared)
		for stages := thinStages; stages >= thinLeast; stages-- {
			if n := t.sharedBytes(stages, s); n <= room {
				t.Stages, t.SharedBytes = stages, n
				return t, true
			}
		}
	}
	return productTile{}, false
}

// thinTilesBytes is what A's decoded codes take, two steps of 64 of them a row (ThinShape).
func thinTilesBytes(tileM int) int { return 2 * tileM * 64 * 2 }

// thinSlotBytes is what a slot takes, with the words of factors that go with it, of 128 rows each (ThinShape).
func (s productSize) thinSlotBytes(tileM, tileN int) int {
	words := max(1, thinWide*thinLine*8/s.codes.b/(4*s.vec))
	n := thinWide*thinLine*tileN + words*tiles(tileN, 128)*512
	if s.codes.a == 0 {
		return n + thinWide*thinLine*tileM*16/s.codes.b
	}
	return n + thinWide*thinLine*tileM + words*tiles(tileM, 128)*512
}
