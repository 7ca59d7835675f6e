package graph

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime/debug"
	"strconv"
	"sync"
)

// Training runs a Program of a training step over batches: it writes a batch, replays, and has the next batch made
// meanwhile; it reports metrics without stalling the replays, saves checkpoints, and ends cleanly.
//
//	steps, err := graph.Training[batch]{
//		Exec:    exec,
//		Batches: batches, // an iter.Seq2[batch, error]
//		Write: func(e *graph.Exec, b batch) error {
//			return errors.Join(e.Write(x, b.x), e.Write(labels, b.labels))
//		},
//		Metrics: []*graph.Value{loss}, MetricsEvery: 50,
//		OnMetrics: func(m graph.Metrics) error { fmt.Println(m.Step, m.Values[0]); return nil },
//		Checkpoint: graph.Checkpoint{Vars: vars, Path: "model.safetensors", Every: 1000},
//	}.Run(ctx)
type Training[B any] struct {
	Exec *Exec

	// Batches makes the batches; it runs in a goroutine of its own, one batch ahead of the replays. What Write hands
	// to the Exec of a batch must stay as it is until the iterator goes on from the yield of the batch after it: two
	// sets of buffers are enough. An error ends the run. When the run ends, yield returns false, and Run waits for the
	// iterator to return: one that may block for long should watch the context.
	Batches iter.Seq2[B, error]

	// Write writes a batch to the Exec's inputs. It is called by Run's goroutine.
	Write func(e *Exec, batch B) error

	Step int // steps done in earlier runs; the first one here has number Step+1
	Max  int // number of the last step; 0: as many as there are batches

	Metrics      []*Value // outputs of one element, such as the loss
	MetricsEvery int      // steps from one report to the next; 0: 1
	// OnMetrics hears of them, in order, from Run's goroutine; where replays are only issued, some steps later. An
	// error ends the run.
	OnMetrics func(Metrics) error

	Checkpoint Checkpoint
}

// Metrics are what Training.Metrics were after a step.
type Metrics struct {
	Step   int
	Values []float64
}

// Checkpoint says where and how often a Training saves its variables: every so many steps, and when the run ends,
// however it ends, unless a replay failed, which leaves variables unspecified.
type Checkpoint struct {
	Vars  *Vars
	Path  string // "": none
	Every int    // steps; 0: at the end alone
	// Metadata returns what is saved beside the variables, for the number of steps done; nil: nothing. The key "step"
	// is always there.
	Metadata func(step int) map[string]string
}

// CheckpointStep returns the number of steps of a checkpoint's metadata, as Vars.Load returns them: for Training.Step.
func CheckpointStep(metadata map[string]string) (int, error) {
	n, err := strconv.Atoi(metadata["step"])
	if err != nil || n < 0 {
		return 0, fmt.Errorf("checkpoint: %w", Misuse("step", strconv.Quote(metadata["step"]), "a number of steps"))
	}
	return n, nil
}

// PanicError is the error of a run whose iterator panicked, or ended its goroutine. What was trained before is kept.
type PanicError struct {
	Value any    // what the iterator panicked with
	Stack []byte // where
}

// Error implements error.
func (e *PanicError) Error() string {
	return fmt.Sprintf("the iterator of batches panicked: %v", e.Value)
}

// Unwrap returns what the iterator panicked with, if that is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// Run trains until the batches end, the last step is done, the context ends, or something fails. It returns the number
// of the last step that was replayed, beside the context's cause, the iterator's error or panic (a *PanicError), or
// another error, nil at a regular end. When it returns, every replay is done, every report is made, the checkpoint is
// written and the iterator has returned. A panic in Write, OnMetrics or Metadata, or a runtime.Goexit there, such as
// that of testing.T.Fatal, goes on after the same clean-up, without the reports that are still on their way.
func (t Training[B]) Run(ctx context.Context) (step int, err error) {
	if err := t.check(); err != nil {
		return t.Step, fmt.Errorf("training: %w", err)
	}
	r := &run[B]{t: t, step: t.Step, saved: t.Step}
	src := produce(t.Batches)
	defer r.release()
	returns := false
	defer func() {
		if returns {
			return
		}
		// A callback panicked or ended the goroutine, which says more than an error.
		src.quit()
		defer func() { _ = src.wait() }() // though Metadata panics as well
		_ = r.settle()
	}()
	err = r.steps(ctx, src)
	src.quit()
	// What was trained is safe before the iterator, which may take its time, is waited for.
	err = errors.Join(err, r.settle())
	if !r.broken {
		err = errors.Join(err, r.deliver(true))
	}
	err = errors.Join(err, src.wait())
	returns = true
	if err != nil {
		err = fmt.Errorf("training: step %d: %w", r.step, err)
	}
	return r.step, err
}

func (t Training[B]) check() error {
	switch {
	case t.Exec == nil:
		return Misuse("Exec", "none", "the Exec of a training step")
	case t.Batches == nil || t.Write == nil:
		return Misuse("Batches, Write", "none", "an iterator of batches, and what writes one")
	case t.Step < 0 || t.Max < 0 || t.MetricsEvery < 0 || t.Checkpoint.Every < 0:
		return Misuse("Step, Max, MetricsEvery, Checkpoint.Every",
			fmt.Sprint(t.Step, t.Max, t.MetricsEvery, t.Checkpoint.Every), "0 or more")
	case t.Checkpoint.Path != "" && t.Checkpoint.Vars == nil:
		return Misuse("Checkpoint.Vars", "none", "the variables to save to %s", t.Checkpoint.Path)
	case len(t.Metrics) > 0 && t.OnMetrics == nil:
		return Misuse("OnMetrics", "none", "a function that takes the metrics")
	}
	for _, v := range t.Metrics {
		if v.Elems() != 1 {
			return BadShape("Metrics", v.String(), "one element")
		}
	}
	return nil
}

// run is a Training under way.
type run[B any] struct {
	t       Training[B]
	step    int
	saved   int // the step of the last checkpoint, tried or written
	broken  bool
	pending []report // oldest first
}

// report is metrics on their way to the host.
type report struct {
	step   int
	values []*Fetched
}

// maxPending is how many reports may be on their way: more of them are waited for.
const maxPending = 8

// steps replays until something ends it.
func (r *run[B]) steps(ctx context.Context, src *source[B]) error {
	every := max(1, r.t.MetricsEvery)
	for r.t.Max == 0 || r.step < r.t.Max {
		b, ok, err := src.next(ctx)
		if err != nil || !ok {
			return err
		}
		if err := r.t.Write(r.t.Exec, b); err != nil {
			return err
		}
		// The context was looked at; a step whose inputs are written is not given up.
		if err := r.t.Exec.Replay(context.WithoutCancel(ctx)); err != nil {
			r.broken = true
			return err
		}
		r.step++
		if len(r.t.Metrics) > 0 && r.step%every == 0 {
			if err := r.fetch(); err != nil {
				return err
			}
		}
		if err := r.deliver(false); err != nil {
			return err
		}
		if n := r.t.Checkpoint.Every; n > 0 && r.step%n == 0 {
			if err := r.save(); err != nil {
				return err
			}
		}
	}
	return nil
}

// fetch begins a report.
func (r *run[B]) fetch() error {
	p := report{step: r.step}
	for _, v := range r.t.Metrics {
		f, err := r.t.Exec.Fetch(v)
		if err != nil {
			p.release()
			return err
		}
		p.values = append(p.values, f)
	}
	r.pending = append(r.pending, p)
	return nil
}

func (p report) done() bool {
	for _, f := range p.values {
		if !f.Done() {
			return false
		}
	}
	return true
}

func (p report) release() {
	for _, f := range p.values {
		f.Release()
	}
}

// release drops the reports that nobody will make.
func (r *run[B]) release() {
	for _, p := range r.pending {
		p.release()
	}
}

// deliver makes the reports that have arrived, or with all, all of them.
func (r *run[B]) deliver(all bool) error {
	for len(r.pending) > 0 && (all || len(r.pending) > maxPending || r.pending[0].done()) {
		p := r.pending[0]
		r.pending = r.pending[1:]
		m := Metrics{Step: p.step}
		for _, f := range p.values {
			x, err := f.Scalar()
			if err != nil {
				p.release()
				r.broken = true // the copy came after the replay, which failed
				return err
			}
			m.Values = append(m.Values, x)
		}
		p.release()
		if err := r.t.OnMetrics(m); err != nil {
			return err
		}
	}
	return nil
}

// settle waits for what was issued and writes the last checkpoint.
func (r *run[B]) settle() error {
	if err := r.t.Exec.Wait(); err != nil {
		r.broken = true
		return err
	}
	if r.broken {
		return nil
	}
	return r.save()
}

// save writes the checkpoint, unless the last one is of this step. One that fails is not tried again.
func (r *run[B]) save() error {
	c := r.t.Checkpoint
	if c.Path == "" || r.saved == r.step {
		return nil
	}
	r.saved = r.step
	meta := map[string]string{}
	if c.Metadata != nil {
		for k, v := range c.Metadata(r.step) {
			meta[k] = v
		}
	}
	meta["step"] = strconv.Itoa(r.step)
	return c.Vars.Save(c.Path, meta)
}

// source runs an iterator in a goroutine of its own, one batch ahead of who takes them.
type source[B any] struct {
	batches chan made[B]
	end     chan struct{} // closed when no more batches are wanted
	quit    func()        // closes end
	over    chan struct{} // closed when the iterator has returned
	err     error         // of a panic; read after over
}

type made[B any] struct {
	b   B
	err error
}

func produce[B any](batches iter.Seq2[B, error]) *source[B] {
	s := &source[B]{batches: make(chan made[B]), end: make(chan struct{}), over: make(chan struct{})}
	s.quit = sync.OnceFunc(func() { close(s.end) })
	go func() {
		defer close(s.over)
		regular := false
		defer func() {
			if p := recover(); p != nil {
				s.err = &PanicError{p, debug.Stack()}
			} else if !regular {
				s.err = &PanicError{Value: "the iterator ended its goroutine"}
			}
		}()
		batches(func(b B, err error) bool {
			select {
			case s.batches <- made[B]{b, err}:
				return err == nil
			case <-s.end:
				return false
			}
		})
		regular = true
	}()
	return s
}

// next returns the next batch; none after the last. An ended context comes before a batch that is there.
func (s *source[B]) next(ctx context.Context) (b B, ok bool, err error) {
	if ctx.Err() != nil {
		return b, false, context.Cause(ctx)
	}
	select {
	case m := <-s.batches:
		return m.b, m.err == nil, m.err
	case <-ctx.Done():
		return b, false, context.Cause(ctx)
	case <-s.over:
		return b, false, nil // wait tells of a panic
	}
}

// wait returns when the iterator has, with its panic. quit comes before.
func (s *source[B]) wait() error {
	<-s.over
	return s.err
}
