package nodes

import (
	"fmt"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// blockFormatOf finds the format of values with factors sf, which the operands named values and sfName hold; vec 0
// is the default of the values.
func blockFormatOf(values, factor dtype.DType, vec int, sfName string) (BlockFormat, error) {
	vec = vecOrDefault(vec, values)
	factorFits := false
	for f, b := range blockFormats {
		if b.vec != 0 && b.values == values && b.factor == factor {
			if factorFits = true; b.vec == vec {
				return BlockFormat(f), nil
			}
		}
	}
	if !factorFits {
		return NoBlockFormat, graph.BadDType(sfName, fmt.Sprintf("%s factors of %s values", factor, values), "%s", familiesOf(values))
	}
	return NoBlockFormat, graph.BadShape("sf_vec_size", fmt.Sprintf("%d for %s values with %s factors", vec, values, factor), "%s", familiesOf(values))
}

// narrow says whether values of a format need factors.
func narrow(dt dtype.DType) bool { return dt == dtype.E4M3 || dt == dtype.E5M2 || dt == dtype.E2M1 }
