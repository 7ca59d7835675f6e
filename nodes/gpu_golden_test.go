//go:build gpu

package nodes_test

import (
	"testing"

	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/cuda"
	"github.com/moegraph/moegraph/internal/runnode"
)

// TestGPU_Golden runs the golden cases on a GPU, as `moegraph run -device cuda` does.
func TestGPU_Golden(t *testing.T) {
	if err := cuda.Available(); err != nil {
		t.Skipf("no GPU: %v", err)
	}
	dev, err := graph.Open("cuda")
	if err != nil {
		t.Fatal(err)
	}
	allGolden(t, runnode.Option{Device: dev, Debug: true})
}
