//go:build gpu

package cudadev

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/cuda"
)

var errUsage = graph.ErrUsage

// eager launches step by step instead of as one graph, for debugging: the streams and events are those of a capture,
// and each step is timed.
type eager struct {
	r     *Runner
	lanes *lanes
	start []*cuda.Event // of each step
	end   []*cuda.Event
	sync  bool // wait for each step, so that the error of one names it
	ran   bool
	check []*graph.Call // of each step, with Debug.Offsets; nil: nothing to check
}

func (r *Runner) newEager(sync bool) (e *eager, err error) {
	e = &eager{r: r, sync: sync}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.close())
		}
	}()
	if e.lanes, err = r.newLanes(r.stream, false); err != nil {
		return nil, err
	}
	for range r.steps {
		for _, list := range []*[]*cuda.Event{&e.start, &e.end} {
			ev, err := r.d.dev.NewEvent(true)
			if err != nil {
				return nil, err
			}
			*list = append(*list, ev)
		}
	}
	return e, nil
}

// run issues all steps; on another stream than the Exec's that one is the origin.
func (e *eager) run(on *cuda.Stream) error {
	l := *e.lanes
	l.streams = append([]*cuda.Stream{on}, l.streams[1:]...)
	e.ran = true
	return e.r.issue(&l, nil, func(step int, on *cuda.Stream, before bool) error {
		if before {
			if err := e.checkValues(step, on); err != nil {
				return err
			}
			return on.Record(e.start[step])
		}
		if err := on.Record(e.end[step]); err != nil || !e.sync {
			return err
		}
		return on.Synchronize()
	})
}

// checkValues asks the step's operator about the integers among its operands, which are brought to the host.
func (e *eager) checkValues(step int, on *cuda.Stream) error {
	if e.check == nil || e.check[step] == nil {
		return nil
	}
	if err := on.Synchronize(); err != nil {
		return err
	}
	c, err := onHost(e.check[step])
	if err != nil {
		return err
	}
	return c.Op.(graph.ValueChecker).CheckValues(c)
}

// onHost returns a Call whose integer operands, and the counts of the others, are copies on the host.
func onHost(c *graph.Call) (*graph.Call, error) {
	var copyOf func(t *graph.Tensor, contents bool) (*graph.Tensor, error)
	copyOf = func(t *graph.Tensor, contents bool) (*graph.Tensor, error) {
		if t == nil {
			return nil, nil
		}
		h := &graph.Tensor{DType: t.DType, Shape: t.Shape}
		var err error
		if h.Count, err = copyOf(t.Count, true); err != nil || !contents {
			return h, err
		}
		m, ok := t.Mem.(*memory)
		if !ok {
			return nil, errNoMemory{t}
		}
		n := t.Width()
		if len(t.Shape) > 0 {
			n *= t.Shape[0]
		}
		h.Data = make([]byte, t.DType.Bytes(n))
		return h, m.Read(t.Off, h.Data)
	}
	host := &graph.Call{Name: c.Name, Op: c.Op}
	for _, t := range c.In {
		h, err := copyOf(t, t != nil && t.DType == dtype.Int32)
		if err != nil {
			return nil, err
		}
		host.In = append(host.In, h)
	}
	for _, t := range c.Out {
		h, err := copyOf(t, false)
		if err != nil {
			return nil, err
		}
		host.Out = append(host.Out, h)
	}
	return host, nil
}

func (e *eager) close() error {
	var errs error
	for _, ev := range append(e.start, e.end...) {
		errs = errors.Join(errs, ev.Close())
	}
	if e.lanes != nil {
		errs = errors.Join(errs, e.lanes.close(e.r.stream))
	}
	return errs
}

// StepTime is how long a step took, from when its stream reached it.
type StepTime struct {
	Name, Kind string
	Stream     int
	Time       time.Duration
	Bytes      int64 // read and written, at capacity
}

// Times waits for the last replay and returns the time of each step. It takes Options.Debug.Eager or
// MOEGRAPH_EAGER.
func (r *Runner) Times() ([]StepTime, error) {
	if r.eager == nil || !r.eager.ran {
		return nil, fmt.Errorf("%w: program %q: times are of replays node by node: set Options.Debug.Eager, and replay", errUsage, r.name)
	}
	if err := r.Wait(); err != nil {
		return nil, err
	}
	times := make([]StepTime, len(r.steps))
	for i, s := range r.steps {
		t, err := r.eager.start[i].Elapsed(r.eager.end[i])
		if err != nil {
			return nil, fmt.Errorf("%q: %w", s.Name, err)
		}
		times[i] = StepTime{s.Name, s.Op.Kind(), s.Stream, t, s.Cost.Bytes}
	}
	return times, nil
}

// Profile implements graph.Profiler.
func (r *Runner) Profile() (graph.Profile, error) {
	times, err := r.Times()
	if err != nil {
		return nil, err
	}
	p := make(graph.Profile, len(times))
	for i, t := range times {
		at, err := r.eager.start[0].Elapsed(r.eager.start[i]) // step 0 is on the origin stream, and starts first
		if err != nil {
			return nil, fmt.Errorf("%q: %w", t.Name, err)
		}
		start := float64(at) / float64(time.Microsecond)
		p[i] = graph.StepTime{Name: t.Name, StartUS: start, EndUS: start + float64(t.Time)/float64(time.Microsecond)}
	}
	return p, nil
}

// PrintTimes writes the time of each step and the bytes that it reads and writes a second, and the sum of the times.
func (r *Runner) PrintTimes(w io.Writer) error {
	times, err := r.Times()
	if err != nil {
		return err
	}
	var sum time.Duration
	for _, t := range times {
		fmt.Fprintf(w, "    %9.1f us  %6.0f GB/s  stream %d  %-20s %s\n", float64(t.Time)/1e3, float64(t.Bytes)/float64(t.Time), t.Stream, t.Kind, t.Name)
		sum += t.Time
	}
	fmt.Fprintf(w, "    %9.1f us  in all\n", float64(sum)/1e3)
	return nil
}
