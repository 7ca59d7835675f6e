//go:build gpu

package cudadev

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/moegraph/moegraph/graph"
)

// TestRunner_Fetch: what was fetched is what was there then, whatever is replayed later; blocks are used anew, and a
// copy outlives its Exec as an error.
func TestRunner_Fetch(t *testing.T) {
	d := openGPU(t)
	vars := graph.NewVars(1)
	e, x, old := adder(t, d, vars)
	must(t, e.Write(x, all(1)))
	var kept []*graph.Fetched
	for i := range 100 {
		replay(t, e)
		f, err := e.Fetch(old)
		must(t, err)
		if kept = append(kept, f); len(kept) < 8 {
			continue
		}
		for k, f := range kept {
			got := make([]float32, width)
			_, err := f.Read(got)
			must(t, err)
			equal(t, got, all(float32(i-len(kept)+1+k)), "fetch %d", i-len(kept)+1+k)
			if !f.Done() {
				t.Error("a copy that was read is not done")
			}
			f.Release()
			f.Release()
		}
		kept = nil
	}
	for _, f := range kept {
		f.Release()
	}
	if n := len(e.Runner().(*Runner).fetching.all); n > 8 {
		t.Errorf("%d blocks for 8 copies at a time", n)
	}
	f, err := e.Fetch(old)
	must(t, err)
	must(t, e.Close())
	if _, err := f.Read(make([]float32, width)); !errors.Is(err, graph.ErrUsage) {
		t.Errorf("a copy of a closed Exec: %v", err)
	}
	f.Release()
}

// TestTraining on a GPU: metrics come in order and are those of their step, though nothing waits.
func TestTraining(t *testing.T) {
	d := openGPU(t)
	vars := graph.NewVars(1)
	e, x, _ := adder(t, d, vars)
	const steps = 2000
	batches := func(yield func([]float32, error) bool) {
		two := [][]float32{all(1), all(1)}
		for i := range steps {
			if !yield(two[i%2], nil) {
				return
			}
		}
	}
	began := time.Now()
	last, err := graph.Training[[]float32]{
		Exec: e, Batches: batches,
		Write: func(e *graph.Exec, b []float32) error { return e.Write(x, b) },
	}.Run(context.Background())
	must(t, err)
	t.Logf("%d steps in %v", last, time.Since(began))
	equal(t, read(t, e, vars.Lookup("v")), all(steps), "after %d steps", last)
}
