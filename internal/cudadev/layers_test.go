package cudadev_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/cudadev"
	"github.com/moegraph/moegraph/internal/shapes"
	"github.com/moegraph/moegraph/nodes"
)

// layers is n layers of a shape one after the other, forward and backward, with weights in bf16.
func layers(t testing.TB, s shapes.Shape, n int) *graph.Graph {
	t.Helper()
	g, vars := graph.New(s.Name), graph.NewVars(1)
	x := g.Input("x", dtype.BFloat16, s.Tokens, s.Hidden)
	in := x
	for i := range n {
		y, _ := nodes.MoELayer(x, vars.Scope(fmt.Sprintf("layer%d", i)), nodes.MoE{Experts: s.Experts, TopK: s.TopK, Intermediate: s.Intermediate, Params: dtype.BFloat16})
		if n > 1 {
			y = x.Plus(y)
		}
		x = y
	}
	g.Output("y", x)
	dy := g.Input("dy", dtype.BFloat16, s.Tokens, s.Hidden)
	for i, v := range g.GradientsFrom([]*graph.Value{x}, []*graph.Value{dy}, append(vars.All(), in)...).Value {
		g.Output(fmt.Sprintf("grad%d", i), v)
	}
	if err := g.Err(); err != nil {
		t.Fatal(err)
	}
	return g
}

// TestPlan_Layers plans the layer of every measured shape for an H200, forward and backward: the peak is the lower bound,
// on one stream and as chosen; the chosen plan is no slower than one stream in the model; planning takes little time.
func TestPlan_Layers(t *testing.T) {
	dev := cudadev.Plan{GPU: cudadev.GPUs[90]}
	for _, s := range shapes.All {
		g := layers(t, s, 1)
		var one *graph.Program
		for _, opt := range []graph.Options{{Streams: 1}, {}, {Streams: 2, ForceStreams: true}, {Streams: 4, ForceStreams: true}} {
			start := time.Now()
			p, err := g.Compile(dev, opt)
			if err != nil {
				t.Fatal(err)
			}
			took := time.Since(start)
			for range 4 { // the least of five: other processes make it longer
				start := time.Now()
				if _, err := g.Compile(dev, opt); err != nil {
					t.Fatal(err)
				}
				took = min(took, time.Since(start))
			}
			if one == nil {
				one = p
			}
			if err := p.Verify(); err != nil {
				t.Error(err)
			}
			if p.ArenaBytes() != p.LowerBound() {
				t.Errorf("%s, %+v: peak %d, lower bound %d", s.Name, opt, p.ArenaBytes(), p.LowerBound())
			}
			if !opt.ForceStreams && p.SimulatedUS() > one.SimulatedUS() {
				t.Errorf("%s: chosen %.1f us, one stream %.1f us", s.Name, p.SimulatedUS(), one.SimulatedUS())
			}
			const mib = 1 << 20
			t.Logf("%-12s %2d steps, %d streams: peak %7.1f MiB = bound, without sharing %7.1f, saved in theory %7.1f; simulated %.4f of one stream's %.0f us; planned in %v",
				s.Name, len(p.Steps()), p.Streams(), float64(p.ArenaBytes())/mib, float64(p.WorkspaceSum())/mib, float64(s.Saved())/mib,
				p.SimulatedUS()/one.SimulatedUS(), one.SimulatedUS(), took)
			if took > 20*time.Millisecond && !raceEnabled {
				t.Errorf("%s: planned in %v, want 20 ms at most", s.Name, took)
			}
		}
	}
}

// TestPlan_Model plans 48 layers, forward and backward, and twice as many: about 2,000 steps.
func TestPlan_Model(t *testing.T) {
	if testing.Short() {
		t.Skip("seconds; not with -short")
	}
	s := shapes.All[2] // qwen3-30b
	for _, c := range []struct {
		layers int
		opt    graph.Options
	}{{48, graph.Options{}}, {96, graph.Options{}}, {96, graph.Options{Streams: 4, ForceStreams: true}}} {
		g, opt := layers(t, s, c.layers), c.opt
		start := time.Now()
		p, err := g.Compile(cudadev.Plan{GPU: cudadev.GPUs[90]}, opt)
		if err != nil {
			t.Fatal(err)
		}
		took := time.Since(start)
		t.Logf("%d steps, %d streams, peak %.4f of the bound, planned in %v", len(p.Steps()), p.Streams(), float64(p.ArenaBytes())/float64(p.LowerBound()), took)
		if took > 10*time.Second && !raceEnabled { // one on an idle machine
			t.Errorf("planned in %v", took)
		}
	}
}
