package nodes

import (
	"fmt"
	"strings"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// MaxExperts is the largest number of experts.
const MaxExperts = 1024

// DefaultAlignment is the alignment of groups where none is given.
const DefaultAlignment = 256

// checkAlignment checks the alignment of a row layout.
func checkAlignment(align int) error {
	if align < 1 || align > 256 || align&(align-1) != 0 {
		return graph.BadShape("alignment", align, "a power of two from 1 to 256")
	}
	return nil
}

// alignment replaces 0 by the default.
func alignment(a int) int {
	if a == 0 {
		return DefaultAlignment
	}
	return a
}

// checkGroups checks padded_offsets and counts over m rows and returns the number of experts.
func checkGroups(offsetsName string, offsets, counts *graph.Value, m, align int) (experts int, err error) {
	if offsets.DType() != dtype.Int32 {
		return 0, graph.BadDType(offsetsName, offsets.DType(), "int32")
	}
	if offsets.Rank() != 1 || offsets.Dim(0) < 1 || offsets.Dim(0) > MaxExperts || offsets.Rows() != nil {
		return 0, graph.BadShape(offsetsName, offsets.Text(), "(E,) with E from 1 to %d", MaxExperts)
	}
	experts = offsets.Dim(0)
	if counts != nil && counts.DType() != dtype.Int32 {
		return 0, graph.BadDType("counts", counts.DType(), "int32")
	}
	if counts != nil && (counts.Rank() != 1 || counts.Dim(0) != experts || counts.Rows() != nil) {
		return 0, graph.BadShape("counts", counts.Text(), "(%d,) as %s", experts, offsetsName)
	}
	if err := checkAlignment(align); err != nil {
		return 0, err
	}
	if m%align != 0 {
		axis := "M"
		if offsetsName == "offsets" { // of wgrad, over tokens
			axis = "tokens"
		}
		return 0, graph.BadShape(axis, m, "a multiple of the alignment %d, such as %d", align, (m+align-1)/align*align)
	}
	return experts, nil
}

// groups is the rows of each expert in one Call, cut into tiles of at most tile rows. A release run never
// trusts the offsets: they are kept inside [0, limit] and from decreasing.
type groups struct {
	offsets, counts *graph.Tensor
	capacity        int
	data            []*graph.Tensor // operands over the rows, nil for an absent one; their rows in use bound the groups
	tile            int
	align           int
	blocks          bool // block-scaled: offsets are cut to multiples of align, so that no factor block holds two experts

	begin, end, real []int // of each expert: its rows are [begin,end), those from real on are padding
	first            []int // of each expert: the number of its first tile; the last element counts all tiles
}

func newGroups(offsets, counts *graph.Tensor, capacity, align, tile int, data ...*graph.Tensor) *groups {
	e := offsets.Shape[0]
	return &groups{
		offsets: offsets, counts: counts, data: data, capacity: capacity, tile: tile, align: align,
		begin: make([]int, e), end: make([]int, e), real: make([]int, e), first: make([]int, e+1),
	}
}

// read takes in the offsets of this run.
func (g *groups) read() {
	limit := g.capacity
	for _, t := range g.data {
		if t != nil {
			limit = min(limit, t.Rows())
		}
	}
	offs := ints(g.offsets)
	var counts []int32
	if g.counts != nil {
		counts = ints(g.counts)
	}
	at := 0
	for e := range g.begin {
		end := min(max(int(offs[e]), at), limit)
		if g.blocks {
			end -= end % g.align // at is a multiple already
		}
		real := end
		if counts != nil {
			real = at + min(max(int(counts[e]), 0), end-at)
		}
		g.begin[e], g.end[e], g.real[e] = at, end, real
		g.first[e+1] = g.first[e] + tiles(end-at, g.tile)
		at = end
	}
}

// tiles returns the number of tiles of all experts.
func (g *groups) tiles() int { return g.first[len(g.first)-1] }

// at returns the expert of tile t and the tile's rows: [lo,hi), real ones before mid.
func (g *groups) at(t int) (expert, lo, mid, hi int) {
	a, b := 0, len(g.begin)-1
	for a < b { // the last expert whose first tile is at most t
		m := (a + b + 1) / 2
		if g.first[m] <= t {
			a = m
		} else {
			b = m - 1
		}
	}
	lo = g.begin[a] + (t-g.first[a])*g.tile
	hi = min(lo+g.tile, g.end[a])
	return a, lo, min(max(g.real[a], lo), hi), hi
}

// Launch are options of the GEMM nodes that change nothing that is computed. The host checks and ignores them.
type Launch struct {
	Tile      [2]int // rows, columns of a thread block's tile; zero: chosen by the cost model
	Cluster   [2]int // thread blocks of a cluster along rows and columns; zero: chosen
	Scheduler string // "static", "dynamic"; empty: chosen
	Family    string // "portable", "hopper"; empty: chosen by the device
}

// Tiles are the tiles that have kernels.
var Tiles = [][2]int{{64, 64}, {64, 128}, {128, 64}, {128, 128}, {128, 256}, {256, 128}}

func (l Launch) check() error {
	if l.Tile != [2]int{} {
		ok := false
		var all []string
		for _, t := range Tiles {
			ok = ok || t == l.Tile
			all = append(all, fmt.Sprintf("%dx%d", t[0], t[1]))
		}
		if !ok {
			return graph.Unsupported("tile", fmt.Sprintf("%dx%d", l.Tile[0], l.Tile[1]), "one of %s", strings.Join(all, ", "))
		}
	}
	for _, side := range l.Cluster {
		if l.Cluster != [2]int{} && (side < 1 || side > 4 || side&(side-1) != 0) {
			return graph.Unsupported("cluster", fmt.Sprintf("%dx%d", l.Cluster[0], l.Cluster[1]), "sides of 1, 2 or 4")
		}
	}
	if l.Scheduler != "" && l.Scheduler != "static" && l.Scheduler != "dynamic" {
		return graph.Unsupported("scheduler", l.Scheduler, "static or dynamic")
	}
	if l.Family != "" && l.Family != "portable" && l.Family != "hopper" {
		return graph.Unsupported("family", l.Family, "portable or hopper")
	}
	return nil
}

// check16 requires rows of width elements to be multiples of 16 bytes.
func check16(operand, axis string, dt dtype.DType, width int) error {
	unit := 128 / max(dt.Bits(), 1)
	if width%unit != 0 {
		return graph.BadShape(axis, width, "a multiple of %d (16-byte rows of %s in %s), such as %d", unit, dt, operand, (width+unit-1)/unit*unit)
	}
	return nil
}
