//go:build gpu

package cudadev

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/cuda"
	"github.com/moegraph/moegraph/kernels"
	"gorgonia.org/cu"
)

// Runner replays one loaded Program on a stream of its own.
type Runner struct {
	d       *Device
	name    string
	streams int // that the plan has
	steps   []step
	set     *kernels.Set
	stream  *cuda.Stream
	before  *cuda.Event // what the next replay has to wait for
	after   *cuda.Event // the last replay on a stream of the caller
	staging staging

	fetching fetching

	dirty bool // the next replay captures anew: first, or after an address changed
	graph *cuda.Graph
	exec  *cuda.GraphExec
	nodes [][]cu.Node // of the graph: one for each launch of each step

	eager *eager // nil: captured
}

// step is a Step with its functions.
type step struct {
	Step
	functions []*cuda.Function
}

// Load implements graph.Device.
func (d *Device) Load(p *graph.Program, calls []*graph.Call) (graph.Runner, error) {
	cache, err := d.cache()
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", graph.ErrDevice, d, err)
	}
	r, err := d.loadFrom(cache, p, calls)
	if err != nil {
		return nil, err // and no Runner: a nil one in the interface would not be nil
	}
	return r, nil
}

func (d *Device) loadFrom(cache *kernels.Cache, p *graph.Program, calls []*graph.Call) (_ *Runner, err error) {
	r := &Runner{d: d, name: p.Name(), streams: max(1, p.Streams()), dirty: true}
	r.staging.d = d.dev
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Close())
		}
	}()
	described, err := Describe(p, calls, d.gpu)
	if err != nil {
		return nil, err
	}
	if err := r.prepare(cache, described); err != nil {
		return nil, err
	}
	if r.stream, err = d.dev.NewStream(r.name); err != nil {
		return nil, err
	}
	for _, e := range []**cuda.Event{&r.before, &r.after} {
		if *e, err = d.dev.NewEvent(false); err != nil {
			return nil, err
		}
	}
	debug := p.Options().Debug
	if debug.Eager || debug.Offsets || kernels.Eager() != "" {
		if r.eager, err = r.newEager(debug.Offsets || kernels.Eager() == kernels.EagerSync); err != nil {
			return nil, err
		}
	}
	if debug.Offsets {
		r.eager.check = make([]*graph.Call, len(r.steps))
		for i, c := range calls {
			if _, ok := c.Op.(graph.ValueChecker); ok {
				r.eager.check[i] = c
			}
		}
	}
	return r, nil
}

// prepare loads the kernels, compiling those that are new, and finds the functions.
func (r *Runner) prepare(cache *kernels.Cache, described []Step) error {
	var ks []graph.Kernel
	for _, s := range described {
		for _, l := range s.Launches {
			ks = append(ks, l.Kernel)
		}
	}
	var progress func(done, all int)
	if f := r.d.progress.Load(); f != nil {
		progress = func(done, all int) { (*f)(r.name, done, all) }
	}
	var err error
	if r.set, err = cache.Acquire(ks, progress); err != nil {
		return err
	}
	for _, s := range described {
		x := step{Step: s}
		for i := range s.Launches {
			f, err := r.function(&s.Launches[i])
			if err != nil {
				return fmt.Errorf("%s %q: %w", s.Op.Kind(), s.Name, err)
			}
			x.functions = append(x.functions, f)
		}
		r.steps = append(r.steps, x)
	}
	return nil
}

// function returns a launch's function. A driver that can tell checks the arguments' bytes: a kernel reads
// whatever lies there.
func (r *Runner) function(l *graph.Launch) (*cuda.Function, error) {
	m, img, err := r.set.Module(l.Kernel)
	if err != nil {
		return nil, err
	}
	f := m.(*module).f
	if threads := l.Block[0] * l.Block[1] * l.Block[2]; threads > m.(*module).maxThreads {
		return nil, fmt.Errorf("kernel %q: %w", l.Kernel.Name, graph.BadShape("block", fmt.Sprintf("%d threads", threads), "at most the %d that it was compiled for", m.(*module).maxThreads))
	}
	if most := r.d.gpu.SharedBytes - img.SharedBytes; l.SharedBytes > most {
		return nil, fmt.Errorf("kernel %q: %w", l.Kernel.Name, graph.BadShape("smem", l.SharedBytes, "at most %d bytes beside %d static ones", most, img.SharedBytes))
	}
	var buf cuda.ArgBuffer
	if err := pack(&buf, l.Args, func(*graph.Tensor) (uint64, error) { return 0, nil }); err != nil {
		return nil, err
	}
	params, err := f.Params()
	if errors.Is(err, cuda.ErrUnavailable) {
		return f, nil
	}
	if err != nil {
		return nil, err
	}
	want := 0
	if n := len(params); n > 0 {
		want = params[n-1].Offset + params[n-1].Size
	}
	if buf.Len() != want || len(l.Args) != len(params) {
		return nil, fmt.Errorf("internal: kernel %q: got %d arguments of %d bytes, want %d of %d", l.Kernel.Name, len(l.Args), buf.Len(), len(params), want)
	}
	return f, nil
}

// launch gives one launch to a stream.
func (r *Runner) launch(s *step, i int, on *cuda.Stream, buf *cuda.ArgBuffer) error {
	l := &s.Launches[i]
	if err := pack(buf, l.Args, address); err != nil {
		return fmt.Errorf("kernel %q: %w", l.Kernel.Name, err)
	}
	return s.functions[i].Launch(on, cuda.LaunchConfig{Name: s.Name, Grid: l.Grid, Block: l.Block, SharedBytes: l.SharedBytes, Cluster: l.Cluster}, buf)
}

// Replay implements graph.Runner.
func (r *Runner) Replay() error { return r.replay(r.stream) }

func (r *Runner) replay(on *cuda.Stream) error {
	if r.eager != nil {
		return r.eager.run(on)
	}
	if r.dirty {
		if err := r.capture(); err != nil {
			return err
		}
	}
	return r.exec.Launch(on)
}

// ReplayOn implements graph.AsyncRunner. The stream is a cu.Stream, a *cuda.Stream, or a CUstream as a uintptr.
func (r *Runner) ReplayOn(stream any) error {
	var handle cu.Stream
	switch s := stream.(type) {
	case *cuda.Stream:
		handle = s.CU()
	case cu.Stream:
		handle = s
	case uintptr:
		handle = *(*cu.Stream)(unsafe.Pointer(&s))
	default:
		return graph.Unsupported("stream", fmt.Sprintf("%T", stream), "a cu.Stream, or a CUstream as a uintptr")
	}
	on := r.d.dev.WrapStream(handle, "the caller's")
	if err := r.stream.Record(r.before); err != nil {
		return err
	}
	if err := on.WaitEvent(r.before); err != nil {
		return err
	}
	if err := r.replay(on); err != nil {
		return err
	}
	if err := on.Record(r.after); err != nil {
		return err
	}
	return r.stream.WaitEvent(r.after)
}

// Wait implements graph.AsyncRunner.
func (r *Runner) Wait() error {
	if err := r.stream.Synchronize(); err != nil {
		return fmt.Errorf("%w: program %q: %w", graph.ErrDevice, r.name, err)
	}
	return nil
}

// Follow implements graph.AsyncRunner.
func (r *Runner) Follow(other graph.AsyncRunner) error {
	o, ok := other.(*Runner)
	if !ok || o.d != r.d {
		return other.Wait()
	}
	if err := o.stream.Record(r.before); err != nil {
		return err
	}
	return r.stream.WaitEvent(r.before)
}

// Put implements graph.AsyncRunner.
func (r *Runner) Put(m graph.Memory, offset int64, src []byte) error {
	return r.staging.put(r.stream, m.(*memory).Memory, offset, src)
}

// Fill implements graph.AsyncRunner.
func (r *Runner) Fill(m graph.Memory, b byte) error {
	return m.(*memory).Fill8(r.stream, 0, m.Size(), b)
}

// Rebind implements graph.AsyncRunner.
func (r *Runner) Rebind() { r.dirty = true }

// Measure returns the device's time for what f issues on the Exec's stream.
func (r *Runner) Measure(f func() error) (time.Duration, error) {
	var at [2]*cuda.Event
	for i := range at {
		e, err := r.d.dev.NewEvent(true)
		if err != nil {
			return 0, err
		}
		defer e.Close()
		at[i] = e
	}
	if err := r.stream.Record(at[0]); err != nil {
		return 0, err
	}
	if err := f(); err != nil {
		return 0, err
	}
	if err := r.stream.Record(at[1]); err != nil {
		return 0, err
	}
	if err := r.Wait(); err != nil {
		return 0, err
	}
	return at[0].Elapsed(at[1])
}

// Planned returns the steps with their launches, in the order of issue.
func (r *Runner) Planned() []Step {
	steps := make([]Step, len(r.steps))
	for i, s := range r.steps {
		steps[i] = s.Step
	}
	return steps
}

// Stream returns the stream that Replay uses.
func (r *Runner) Stream() *cuda.Stream { return r.stream }

// Images returns what the Program's kernels take, by kernel.
func (r *Runner) Images() map[graph.Kernel]*kernels.Image { return r.set.Images() }

// Close implements graph.Runner.
func (r *Runner) Close() error {
	var errs error
	if r.stream != nil {
		errs = r.stream.Synchronize() // what is gone below must not be in use
	}
	keep := func(err error) { errs = errors.Join(errs, err) }
	if r.exec != nil {
		keep(r.exec.Close())
	}
	if r.graph != nil {
		keep(r.graph.Close())
	}
	if r.eager != nil {
		keep(r.eager.close())
	}
	keep(r.staging.close())
	keep(r.fetching.close())
	for _, e := range []*cuda.Event{r.before, r.after} {
		if e != nil {
			keep(e.Close())
		}
	}
	if r.stream != nil {
		keep(r.stream.Close())
	}
	if r.set != nil {
		keep(r.set.Close())
	}
	return errs
}
