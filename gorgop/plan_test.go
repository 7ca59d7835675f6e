package gorgop

import (
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/cudadev"
	"github.com/moegraph/moegraph/nodes"
)

// TestLayer_PlansForGPUs: both halves compile for a GPU, every launch described, in both modes and formats.
func TestLayer_PlansForGPUs(t *testing.T) {
	for arch, gpu := range cudadev.GPUs {
		for _, compute := range []dtype.DType{dtype.Float32, dtype.BFloat16} {
			for _, cfg := range []Config{
				{Balance: 0.01, ZLoss: 0.001},
				{Weights: ProgramWeights, Optimizer: func(gr *graph.Grads) { nodes.AdamW(gr, nodes.AdamWConfig{Rate: 1e-3}) }},
			} {
				moe := small.moe()
				moe.Compute = compute
				l, err := MoE(cudadev.Plan{GPU: gpu}, graph.NewVars(1), 64, moe, cfg)
				if err != nil {
					t.Errorf("sm_%d, %s, %s: %v", arch, compute, cfg.Weights, err)
					continue
				}
				if n := len(l.back.Steps()); n < 8 {
					t.Errorf("sm_%d: the backward half has %d steps", arch, n)
				}
			}
		}
	}
}
