//go:build gpu

package nodes

import (
	"testing"

	"github.com/moegraph/moegraph/dtype"
)

// TestGPU_InPlace: kernels that write over what they read give the bits that they give apart.
func TestGPU_InPlace(t *testing.T) {
	testInPlace(t, openGPU(t), dtype.BFloat16, dtype.Float16, dtype.Float32)
}
