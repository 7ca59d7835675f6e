//go:build gpu

package nodes_test

import (
	"path/filepath"
	"testing"

	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/cuda"
	"github.com/moegraph/moegraph/internal/golden"
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
	dir := golden.Require(t, "cases")
	names, err := golden.Names(dir)
	if err != nil || len(names) == 0 {
		t.Fatalf("got %d cases, error %v", len(names), err)
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			c, err := golden.Load(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			runGolden(t, c, runnode.Option{Device: dev})
		})
	}
}
