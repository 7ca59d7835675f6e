package graph_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// trainee is v += x with the old v as a metric, on any device: after n steps of ones, v is n.
type trainee struct {
	vars *graph.Vars
	e    *graph.Exec
	x    *graph.Value
	old  *graph.Value
}

func newTrainee(t testing.TB, dev graph.Device) *trainee {
	t.Helper()
	tr := &trainee{vars: graph.NewVars(1)}
	g := graph.New("trainee")
	tr.x = g.Input("x", dtype.Float32, 1)
	tr.old = g.Output("old", graph.Apply(addOp{}, tr.vars.ParamOf("v", dtype.Float32, graph.Const(0), 1), tr.x)[0])
	tr.e = openOn(t, dev, g, tr.vars)
	return tr
}

func (tr *trainee) v(t testing.TB) float32 {
	t.Helper()
	var v [1]float32
	check(t, tr.vars.Read(tr.vars.Lookup("v"), v[:]))
	return v[0]
}

// training runs over batches of one number.
func (tr *trainee) training(batches iter.Seq2[[]float32, error]) graph.Training[[]float32] {
	return graph.Training[[]float32]{
		Exec: tr.e, Batches: batches,
		Write: func(e *graph.Exec, b []float32) error { return e.Write(tr.x, b) },
	}
}

// ones yields n batches of 1 in two buffers in turn, which hold garbage while they are not in use; made counts them.
func ones(n int, made *atomic.Int64) iter.Seq2[[]float32, error] {
	return func(yield func([]float32, error) bool) {
		var buffers [2][]float32
		for i := range buffers {
			buffers[i] = make([]float32, 1)
		}
		for i := range n {
			b := buffers[i%2]
			b[0] = -1000 // free by the contract, since the batch after it was taken
			runtime.Gosched()
			b[0] = 1
			made.Add(1)
			if !yield(b, nil) {
				return
			}
		}
	}
}

func trainDevices(t *testing.T) map[string]graph.Device {
	return map[string]graph.Device{"host": host(t), "async": newAsyncDevice(t, 200*time.Microsecond)}
}

// TestTraining: every batch is one replay, metrics come in order and are those of their step, and two buffers are
// enough for the iterator.
func TestTraining(t *testing.T) {
	for name, dev := range trainDevices(t) {
		t.Run(name, func(t *testing.T) {
			tr := newTrainee(t, dev)
			var made atomic.Int64
			var seen []graph.Metrics
			run := tr.training(ones(100, &made))
			run.Metrics, run.MetricsEvery = []*graph.Value{tr.old}, 7
			run.OnMetrics = func(m graph.Metrics) error { seen = append(seen, m); return nil }
			steps, err := run.Run(t.Context())
			check(t, err)
			if steps != 100 || tr.v(t) != 100 || made.Load() != 100 {
				t.Errorf("got %d steps, %d batches, v = %v; want 100", steps, made.Load(), tr.v(t))
			}
			if len(seen) != 14 {
				t.Fatalf("got %d reports, want 14", len(seen))
			}
			for i, m := range seen {
				if m.Step != 7*(i+1) || m.Values[0] != float64(m.Step-1) {
					t.Errorf("report %d: got %+v", i, m)
				}
			}
		})
	}
}

// patience is how long a test waits for what must happen.
const patience = 20 * time.Second

// TestTraining_DoesNotStall: reading metrics waits for no replay. The device begins with the first when the last is
// written.
func TestTraining_DoesNotStall(t *testing.T) {
	const steps = 6
	last := make(chan struct{})
	dev := newAsyncDevice(t, 0)
	dev.Before = func() {
		select {
		case <-last:
		case <-time.After(patience):
			t.Error("the steps are not issued while the first one waits")
		}
	}
	tr := newTrainee(t, dev)
	var made atomic.Int64
	run := tr.training(ones(steps, &made))
	run.Metrics = []*graph.Value{tr.old}
	reports := 0
	run.OnMetrics = func(graph.Metrics) error { reports++; return nil }
	write, written := run.Write, 0
	run.Write = func(e *graph.Exec, b []float32) error {
		if written++; written == steps {
			close(last)
		}
		return write(e, b)
	}
	got, err := run.Run(t.Context())
	check(t, err)
	if got != steps || reports != steps {
		t.Errorf("got %d steps and %d reports, want %d", got, reports, steps)
	}
}

// gateOp is y = x, when somebody opens the gate.
type gateOp struct{ gate chan struct{} }

func (gateOp) Kind() string                                  { return "test_gate" }
func (gateOp) Operands() []graph.Operand                     { return []graph.Operand{{Name: "x"}} }
func (gateOp) Outputs() []string                             { return []string{"y"} }
func (gateOp) Infer(in []*graph.Value) ([]graph.Spec, error) { return []graph.Spec{in[0].Spec()}, nil }

func (o gateOp) Host(c *graph.Call) func() error {
	return func() error {
		select {
		case <-o.gate:
			return nil
		case <-time.After(patience):
			return errors.New("no batch is made while the replay runs")
		}
	}
}

// TestTraining_Prefetches: the next batch is made while a replay runs, which ends when it is.
func TestTraining_Prefetches(t *testing.T) {
	const steps = 10
	op := gateOp{make(chan struct{})}
	g := graph.New("gate")
	x := g.Input("x", dtype.Float32, 1)
	g.Output("y", graph.Apply(op, x)[0])
	e := openOn(t, host(t), g, nil)
	batches := func(yield func([]float32, error) bool) {
		for i := range steps + 1 {
			if i > 0 {
				select {
				case op.gate <- struct{}{}: // a replay takes it
				case <-time.After(patience):
					t.Error("no replay runs while a batch is made")
				}
			}
			if i < steps && !yield([]float32{1}, nil) {
				return
			}
		}
	}
	got, err := graph.Training[[]float32]{
		Exec: e, Batches: batches,
		Write: func(e *graph.Exec, b []float32) error { return e.Write(x, b) },
	}.Run(t.Context())
	check(t, err)
	if got != steps {
		t.Errorf("got %d steps, want %d", got, steps)
	}
}

// TestTraining_Context: a cancelled context ends the run between two steps; what was trained is in the checkpoint, and
// another run goes on from there.
func TestTraining_Context(t *testing.T) {
	for name, dev := range trainDevices(t) {
		t.Run(name, func(t *testing.T) {
			tr := newTrainee(t, dev)
			ctx, cancel := context.WithCancelCause(t.Context())
			enough := errors.New("enough")
			path := filepath.Join(t.TempDir(), "c.safetensors")
			var made atomic.Int64
			run := tr.training(ones(1<<40, &made))
			run.Metrics = []*graph.Value{tr.old}
			run.OnMetrics = func(m graph.Metrics) error {
				if m.Step == 5 {
					cancel(enough)
				}
				return nil
			}
			run.Checkpoint = graph.Checkpoint{Vars: tr.vars, Path: path, Metadata: func(step int) map[string]string {
				return map[string]string{"note": fmt.Sprint("after ", step)}
			}}
			steps, err := run.Run(ctx)
			if !errors.Is(err, enough) || steps < 5 {
				t.Fatalf("got %d steps, %v", steps, err)
			}
			if v := tr.v(t); v != float32(steps) {
				t.Errorf("got v = %v after %d steps", v, steps)
			}

			again := newTrainee(t, dev)
			meta, err := again.vars.Load(path)
			check(t, err)
			from, err := graph.CheckpointStep(meta)
			check(t, err)
			if from != steps || meta["note"] != fmt.Sprint("after ", steps) {
				t.Errorf("got metadata %v, want step %d", meta, steps)
			}
			more := again.training(ones(1<<40, &made))
			more.Step, more.Max = from, from+10
			last, err := more.Run(t.Context())
			check(t, err)
			if last != from+10 || again.v(t) != float32(last) {
				t.Errorf("resumed at %d: got step %d, v = %v", from, last, again.v(t))
			}
		})
	}
}

// TestTraining_IteratorFails: a panic, an error and the end of the iterator's goroutine lose nothing: the steps before
// are done and saved.
func TestTraining_IteratorFails(t *testing.T) {
	broken := errors.New("broken")
	for name, fail := range map[string]func(yield func([]float32, error) bool){
		"panic":  func(func([]float32, error) bool) { panic(broken) },
		"error":  func(yield func([]float32, error) bool) { yield(nil, broken) },
		"goexit": func(func([]float32, error) bool) { runtime.Goexit() },
		"late":   func(yield func([]float32, error) bool) { yield([]float32{1}, nil); panic(broken) },
	} {
		for device, dev := range trainDevices(t) {
			t.Run(name+"/"+device, func(t *testing.T) {
				tr := newTrainee(t, dev)
				var made atomic.Int64
				path := filepath.Join(t.TempDir(), "c.safetensors")
				run := tr.training(func(yield func([]float32, error) bool) {
					for b := range ones(9, &made) {
						if !yield(b, nil) {
							return
						}
					}
					fail(yield)
				})
				run.Checkpoint = graph.Checkpoint{Vars: tr.vars, Path: path, Every: 4}
				reported := 0
				run.Metrics = []*graph.Value{tr.old}
				run.OnMetrics = func(m graph.Metrics) error { reported = m.Step; return nil }
				steps, err := run.Run(t.Context())
				want := 9
				if name == "late" {
					want = 10
				}
				var p *graph.PanicError
				if isPanic := errors.As(err, &p); err == nil || isPanic != (name != "error") || name != "goexit" && !errors.Is(err, broken) {
					t.Errorf("got error %v", err)
				}
				if name == "panic" && (p == nil || !strings.Contains(string(p.Stack), "train_test.go")) {
					t.Error("the error does not say where the panic was")
				}
				if steps != want || reported != want || tr.v(t) != float32(want) {
					t.Errorf("got %d steps, the last report of %d, v = %v; want %d", steps, reported, tr.v(t), want)
				}
				saved := newTrainee(t, dev)
				_, err = saved.vars.Load(path)
				check(t, err)
				if saved.v(t) != float32(want) {
					t.Errorf("the checkpoint has v = %v, want %d", saved.v(t), want)
				}
			})
		}
	}
}

// TestTraining_CallbacksFail: an error of Write or OnMetrics ends the run, a panic passes through; the iterator has
// returned, and the steps before are saved.
func TestTraining_CallbacksFail(t *testing.T) {
	broken := errors.New("broken")
	for name, fail := range map[string]func() error{"error": func() error { return broken }, "panic": func() error { panic(broken) }} {
		for _, in := range []string{"write", "metrics"} {
			t.Run(name+"/"+in, func(t *testing.T) {
				tr := newTrainee(t, host(t))
				var made atomic.Int64
				ended := false
				path := filepath.Join(t.TempDir(), "c.safetensors")
				run := tr.training(func(yield func([]float32, error) bool) {
					defer func() { ended = true }()
					ones(100, &made)(yield)
				})
				run.Checkpoint = graph.Checkpoint{Vars: tr.vars, Path: path}
				step := 0
				write := run.Write
				run.Write = func(e *graph.Exec, b []float32) error {
					if step++; in == "write" && step == 4 {
						return fail()
					}
					return write(e, b)
				}
				run.Metrics = []*graph.Value{tr.old}
				run.OnMetrics = func(m graph.Metrics) error {
					if in == "metrics" && m.Step == 3 {
						return fail()
					}
					return nil
				}
				var err error
				var p any
				func() {
					defer func() { p = recover() }()
					_, err = run.Run(t.Context())
				}()
				if name == "panic" && p != broken || name == "error" && !errors.Is(err, broken) {
					t.Errorf("got error %v, panic %v", err, p)
				}
				if !ended {
					t.Error("the iterator still runs")
				}
				saved := newTrainee(t, host(t))
				_, err = saved.vars.Load(path)
				check(t, err)
				if saved.v(t) != 3 {
					t.Errorf("the checkpoint has v = %v, want 3", saved.v(t))
				}
			})
		}
	}
}

// TestTraining_CallbackEnds: a callback that ends its goroutine, or a Metadata that panics, leaves no iterator behind.
func TestTraining_CallbackEnds(t *testing.T) {
	for name, change := range map[string]func(*graph.Training[[]float32]){
		"write": func(r *graph.Training[[]float32]) {
			r.Write = func(*graph.Exec, []float32) error { runtime.Goexit(); return nil }
		},
		"metrics": func(r *graph.Training[[]float32]) {
			r.OnMetrics = func(graph.Metrics) error { runtime.Goexit(); return nil }
		},
		"metadata": func(r *graph.Training[[]float32]) {
			r.Checkpoint.Metadata = func(int) map[string]string { panic("broken") }
		},
		"both": func(r *graph.Training[[]float32]) {
			r.OnMetrics = func(graph.Metrics) error { panic("first") }
			r.Checkpoint.Metadata = func(int) map[string]string { panic("broken") }
		},
	} {
		t.Run(name, func(t *testing.T) {
			tr := newTrainee(t, host(t))
			var made atomic.Int64
			var ended atomic.Bool
			run := tr.training(func(yield func([]float32, error) bool) {
				defer func() {
					time.Sleep(5 * time.Millisecond)
					ended.Store(true)
				}()
				ones(100, &made)(yield)
			})
			path := filepath.Join(t.TempDir(), "c.safetensors")
			run.Checkpoint = graph.Checkpoint{Vars: tr.vars, Path: path, Every: 2}
			run.Metrics = []*graph.Value{tr.old}
			run.OnMetrics = func(graph.Metrics) error { return nil }
			change(&run)
			over := make(chan struct{})
			go func() {
				defer close(over)
				defer func() { _ = recover() }()
				defer func() {
					if !ended.Load() {
						t.Error("the iterator still runs")
					}
				}()
				_, err := run.Run(t.Context())
				t.Errorf("Run returned: %v", err)
			}()
			<-over
			if name == "metrics" {
				saved := newTrainee(t, host(t))
				_, err := saved.vars.Load(path)
				check(t, err)
				if saved.v(t) != 1 {
					t.Errorf("the checkpoint has v = %v, want 1", saved.v(t))
				}
			}
		})
	}
}

// TestTraining_CheckpointFails: a checkpoint that cannot be written ends the run with one error; the variables are
// there, to be saved elsewhere.
func TestTraining_CheckpointFails(t *testing.T) {
	tr := newTrainee(t, host(t))
	var made atomic.Int64
	run := tr.training(ones(100, &made))
	run.Checkpoint = graph.Checkpoint{Vars: tr.vars, Path: filepath.Join(t.TempDir(), "none", "c.safetensors"), Every: 4}
	steps, err := run.Run(t.Context())
	if !errors.Is(err, fs.ErrNotExist) || strings.Count(err.Error(), "c.safetensors") != 1 || steps != 4 || tr.v(t) != 4 {
		t.Errorf("got %d steps, v = %v, %v", steps, tr.v(t), err)
	}
}

// TestTraining_ReplayFails: a replay that fails leaves the last checkpoint as it was.
func TestTraining_ReplayFails(t *testing.T) {
	vars := graph.NewVars(1)
	g := graph.New("fails")
	x := g.Input("x", dtype.Float32, 4)
	graph.Apply(addOp{}, vars.ParamOf("v", dtype.Float32, graph.Const(0), 4), graph.Apply(failOp{}, x)[0])
	e := openOn(t, host(t), g, vars)
	path := filepath.Join(t.TempDir(), "c.safetensors")
	steps, err := graph.Training[float32]{
		Exec: e,
		Batches: func(yield func(float32, error) bool) {
			for _, b := range []float32{1, 1, 1, -1, 1} {
				if !yield(b, nil) {
					return
				}
			}
		},
		Write:      func(e *graph.Exec, b float32) error { return e.Write(x, four(b)) },
		Checkpoint: graph.Checkpoint{Vars: vars, Path: path, Every: 2},
	}.Run(t.Context())
	if !errors.Is(err, graph.ErrShape) || steps != 3 {
		t.Fatalf("got %d steps, %v", steps, err)
	}
	again := graph.NewVars(1)
	v := again.ParamOf("v", dtype.Float32, graph.Const(0), 4)
	meta, err := again.Load(path)
	check(t, err)
	var got [4]float32
	check(t, again.Read(v, got[:]))
	if meta["step"] != "2" || !slices.Equal(got[:], four(2)) {
		t.Errorf("the checkpoint of step %s has v = %v, want that of step 2", meta["step"], got)
	}
}

// TestTraining_Refuses what cannot run.
func TestTraining_Refuses(t *testing.T) {
	tr := newTrainee(t, host(t))
	var made atomic.Int64
	good := tr.training(ones(1, &made))
	for name, change := range map[string]func(*graph.Training[[]float32]){
		"Exec":            func(r *graph.Training[[]float32]) { r.Exec = nil },
		"Batches":         func(r *graph.Training[[]float32]) { r.Batches = nil },
		"Step":            func(r *graph.Training[[]float32]) { r.Step = -1 },
		"OnMetrics":       func(r *graph.Training[[]float32]) { r.Metrics = []*graph.Value{tr.old} },
		"Checkpoint.Vars": func(r *graph.Training[[]float32]) { r.Checkpoint.Path = "x" },
	} {
		r := good
		change(&r)
		if _, err := r.Run(t.Context()); !errors.Is(err, graph.ErrUsage) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if made.Load() != 0 {
		t.Error("a run that was refused made batches")
	}
	if _, err := graph.CheckpointStep(map[string]string{"step": "x"}); !errors.Is(err, graph.ErrUsage) {
		t.Errorf("step x: %v", err)
	}
}
