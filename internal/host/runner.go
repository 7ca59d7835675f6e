package host

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"

	"github.com/moegraph/moegraph/graph"
)

// runner replays one loaded Program: the origin stream on the caller's goroutine, each other stream on a
// goroutine of its own that waits between replays.
type runner struct {
	streams [][]*task
	start   []chan struct{} // one for each stream but the origin
	stop    chan struct{}
	joined  sync.WaitGroup // streams still running in this replay
	exited  sync.WaitGroup
	tasks   []*task   // in the order of issue
	timed   bool      // time each step
	began   time.Time // the last replay

	mu  sync.Mutex
	err error // the first error of this replay
}

// task is a step with its events. Each wait has a channel of its own: the earlier step puts in one
// token, the later one takes it, so a replay leaves all channels empty, errors or not.
type task struct {
	step   string
	name   string // in errors
	run    func() error
	waits  []chan struct{}
	signal []chan struct{}
	jitter *rand.Rand // nil: no sleep
	start  time.Time  // of the last run, and its end; only in replays that are timed
	end    time.Time
}

// Load implements graph.Device.
func (Device) Load(p *graph.Program, calls []*graph.Call) (graph.Runner, error) {
	r := &runner{streams: make([][]*task, max(1, p.Streams())), stop: make(chan struct{}), timed: p.Options().Debug.Eager}
	steps := p.Steps()
	tasks := make([]*task, len(steps))
	r.tasks = tasks
	for i, s := range steps {
		op, ok := s.Op.(graph.HostOp)
		if !ok {
			return nil, Device{}.Check(s.Op)
		}
		calls[i].NewLoop = shared().newLoop
		t := &task{step: s.Name, name: s.Op.Kind() + fmt.Sprintf(" %q", s.Name), run: op.Host(calls[i])}
		if v, ok := s.Op.(graph.ValueChecker); ok && p.Options().Debug.Offsets {
			run := t.run
			t.run = func() error {
				if err := v.CheckValues(calls[i]); err != nil {
					return err
				}
				return run()
			}
		}
		if seed := p.Options().Debug.Jitter; seed != 0 {
			t.jitter = rand.New(rand.NewPCG(seed, uint64(i)))
		}
		for _, w := range s.Waits {
			c := make(chan struct{}, 1)
			t.waits = append(t.waits, c)
			tasks[w].signal = append(tasks[w].signal, c)
		}
		tasks[i] = t
		r.streams[s.Stream] = append(r.streams[s.Stream], t)
	}
	for i := 1; i < len(r.streams); i++ {
		c := make(chan struct{}, 1)
		r.start = append(r.start, c)
		r.exited.Add(1)
		go r.serve(r.streams[i], c)
	}
	return r, nil
}

func (r *runner) serve(tasks []*task, start chan struct{}) {
	defer r.exited.Done()
	for {
		select {
		case <-start:
			r.stream(tasks)
			r.joined.Done()
		case <-r.stop:
			return
		}
	}
}

// Replay implements graph.Runner.
func (r *runner) Replay() error {
	r.err = nil
	if r.timed {
		r.began = time.Now()
	}
	r.joined.Add(len(r.start))
	for _, c := range r.start {
		c <- struct{}{}
	}
	r.stream(r.streams[0])
	r.joined.Wait()
	return r.err
}

// stream runs tasks in order. After an error anywhere the rest only passes its tokens on.
func (r *runner) stream(tasks []*task) {
	for _, t := range tasks {
		for _, c := range t.waits {
			<-c
		}
		if t.jitter != nil {
			time.Sleep(time.Duration(t.jitter.IntN(200)) * time.Microsecond)
		}
		if r.timed {
			t.start = time.Now()
		}
		if !r.failed() {
			if err := t.call(); err != nil {
				r.fail(err)
			}
		}
		if r.timed {
			t.end = time.Now()
		}
		for _, c := range t.signal {
			c <- struct{}{}
		}
	}
}

// Profile implements graph.Profiler.
func (r *runner) Profile() (graph.Profile, error) {
	if !r.timed || r.began.IsZero() {
		return nil, fmt.Errorf("%w: no replay was timed: set Options.Debug.Eager, and replay", graph.ErrUsage)
	}
	us := func(t time.Time) float64 { return float64(t.Sub(r.began)) / float64(time.Microsecond) }
	p := make(graph.Profile, len(r.tasks))
	for i, t := range r.tasks {
		p[i] = graph.StepTime{Name: t.step, StartUS: us(t.start), EndUS: us(t.end)}
	}
	return p, nil
}

// call runs the node; a panic in it becomes an error that names it.
func (t *task) call() (err error) {
	defer func() {
		if x := recover(); x != nil {
			err = fmt.Errorf("%s: internal error: %v\n%s", t.name, x, debug.Stack())
		}
	}()
	if err := t.run(); err != nil {
		return fmt.Errorf("%s: %w", t.name, err)
	}
	return nil
}

func (r *runner) failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err != nil
}

func (r *runner) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.err = err
	}
}

// Close implements graph.Runner.
func (r *runner) Close() error {
	select {
	case <-r.stop:
		return errors.New("host: the runner is closed already")
	default:
	}
	close(r.stop)
	r.exited.Wait()
	return nil
}
