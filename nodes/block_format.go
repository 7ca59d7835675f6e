package nodes

import (
	"fmt"
	"strings"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// BlockFormat is a family of block-scaled numbers: codes of 8 or 4 bits, and one factor for each block of Vec
// consecutive elements along the axis that a product sums over (contracts, section 3). The zero value is none.
type BlockFormat uint8

// The block-scaled formats; no other combination of values, factors and block is supported.
const (
	NoBlockFormat BlockFormat = iota
	MXFP8                     // e4m3 values, e8m0 factors, blocks of 32
	MXFP8E5M2                 // e5m2 values, e8m0 factors, blocks of 32
	MXFP4                     // e2m1 values, e8m0 factors, blocks of 32
	MXFP4Vec16                // e2m1 values, e8m0 factors, blocks of 16
	NVFP4                     // e2m1 values, e4m3 factors, blocks of 16, with a global scale
)

// blockFormats is the table that all methods of BlockFormat read, indexed by it.
var blockFormats = [...]struct {
	name, family   string
	values, factor dtype.DType
	vec            int
}{
	MXFP8:      {"mxfp8", "mxfp8_e4m3", dtype.E4M3, dtype.E8M0, 32},
	MXFP8E5M2:  {"mxfp8_e5m2", "mxfp8_e5m2", dtype.E5M2, dtype.E8M0, 32},
	MXFP4:      {"mxfp4", "mxfp4", dtype.E2M1, dtype.E8M0, 32},
	MXFP4Vec16: {"mxfp4_vec16", "mxfp4", dtype.E2M1, dtype.E8M0, 16},
	NVFP4:      {"nvfp4", "nvfp4", dtype.E2M1, dtype.E4M3, 16},
}

// String returns the format's name.
func (f BlockFormat) String() string {
	switch {
	case f == NoBlockFormat:
		return "none"
	case int(f) < len(blockFormats):
		return blockFormats[f].name
	}
	return fmt.Sprintf("blockformat(%d)", uint8(f))
}

func (f BlockFormat) known() bool { return f != NoBlockFormat && int(f) < len(blockFormats) }

// Values is the format of the codes, Invalid for no format.
func (f BlockFormat) Values() dtype.DType {
	if !f.known() {
		return dtype.Invalid
	}
	return blockFormats[f].values
}

// Factor is the format of the factors, Invalid for no format.
func (f BlockFormat) Factor() dtype.DType {
	if !f.known() {
		return dtype.Invalid
	}
	return blockFormats[f].factor
}

// Vec is the number of elements that share a factor, 0 for no format.
func (f BlockFormat) Vec() int {
	if !f.known() {
		return 0
	}
	return blockFormats[f].vec
}

// BlockFamilies are the names that ParseBlockFormat takes.
func BlockFamilies() []string { return []string{"mxfp8_e4m3", "mxfp8_e5m2", "mxfp4", "nvfp4"} }

// ParseBlockFormat finds the format of a family of BlockFamilies and sf_vec_size vec; 0 is 32 for fp8 and 16 for
// fp4.
func ParseBlockFormat(family string, vec int) (BlockFormat, error) {
	values := dtype.Invalid
	for f := range blockFormats {
		b := &blockFormats[f]
		if b.family != family || f == 0 {
			continue
		}
		if values = b.values; b.vec == vecOrDefault(vec, values) {
			return BlockFormat(f), nil
		}
	}
	if values == dtype.Invalid {
		return NoBlockFormat, graph.Unsupported("format", family, "one of %s", strings.Join(BlockFamilies(), ", "))
	}
	return NoBlockFormat, graph.BadShape("sf_vec_size", fmt.Sprintf("%d for %s", vec, family), "%s", familiesOf(values))
}

func vecOrDefault(vec int, values dtype.DType) int {
	switch {
	case vec != 0:
		return vec
	case values == dtype.E2M1:
		return 16
	}
	return 32
}

// familiesOf lists the formats of some values for an error.
func familiesOf(values dtype.DType) string {
	var texts []string
	for _, b := range blockFormats {
		if b.vec != 0 && b.values == values {
			texts = append(texts, fmt.Sprintf("%s factors with sf_vec_size %d", b.factor, b.vec))
		}
	}
	return strings.Join(texts, ", or ")
}

// codesOf returns the format and the shape, in elements, of an operand of codes: fp4 codes may be given as plain
// uint8, two a byte.
func codesOf(v *graph.Value) (dtype.DType, []int) {
	shape := v.Shape()
	if v.DType() == dtype.Uint8 && len(shape) > 0 {
		shape[len(shape)-1] *= 2
		return dtype.E2M1, shape
	}
	return v.DType(), shape
}

// factorLayout places the factors of one matrix of rows by k elements.
func factorLayout(rows, k int, f BlockFormat) dtype.FactorLayout {
	return dtype.FactorLayout{Rows: rows, Cols: dtype.FactorCols(k, f.Vec()), Batches: 1}
}

// checkFactors checks that sf holds the factors of a matrix of rows by k elements, batches times, in the byte order
// of contracts, section 3. Their layout is no order of a shape's axes, so that only a flat array is right.
func checkFactors(name string, sf *graph.Value, f BlockFormat, rows, k, batches int) error {
	layout := dtype.FactorLayout{Rows: rows, Cols: dtype.FactorCols(k, f.Vec()), Batches: batches}
	if sf.DType() != f.Factor() {
		return graph.BadDType(name, sf.DType(), "%s", f.Factor())
	}
	if sf.Rank() != 1 || sf.Dim(0) != layout.Bytes() || sf.Rows() != nil {
		return graph.BadShape(name, sf.Text(), "(%d,): %d x (%d rows of %d factors) in blocks of 128 x 4 (dtype.FactorLayout)",
			layout.Bytes(), batches, rows, layout.Cols)
	}
	return nil
}

// checkBlockAlignment requires groups that no block of factors crosses.
func checkBlockAlignment(align int) error {
	if align != 128 && align != 256 {
		return graph.BadShape("alignment", align, "128 or 256 with block-scaled operands")
	}
	return nil
}
