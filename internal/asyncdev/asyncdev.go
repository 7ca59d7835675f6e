// Package asyncdev holds a device for tests that behaves like a GPU and needs none.
package asyncdev

import (
	"errors"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/moegraph/moegraph/graph"
)

// Device stands for a GPU: memory that Exec cannot reach, and replays that are only issued. Nodes run by host
// code, one Queue an Exec, each job after a pause, so that what relies on luck fails.
type Device struct {
	graph.Device // the host
	// Before, if there is one, is called by each replay's job in place of the pause.
	Before func()

	pause   time.Duration
	callers *sync.Map // address to bytes of "device memory" of the caller
}

// New returns a Device over the host device whose jobs each begin after a pause.
func New(host graph.Device, pause time.Duration) Device {
	return Device{Device: host, pause: pause, callers: new(sync.Map)}
}

// String implements graph.Device.
func (Device) String() string { return "async" }

// Alloc implements graph.Device.
func (Device) Alloc(bytes int64, _ string) (graph.Memory, error) {
	words := make([]uint64, bytes/8+1) // aligned for all formats
	return &Memory{b: unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), 8*len(words))[:bytes]}, nil
}

// MemoryOf makes Go memory device memory.
func (d Device) MemoryOf(x []float32) graph.DeviceMemory {
	b := unsafe.Slice((*byte)(unsafe.Pointer(&x[0])), 4*len(x))
	addr := uintptr(unsafe.Pointer(&b[0]))
	d.callers.Store(addr, b)
	return graph.DeviceMemory{Addr: addr, Bytes: int64(len(b))}
}

// WrapDevice implements graph.DeviceWrapper.
func (d Device) WrapDevice(m graph.DeviceMemory) graph.Memory {
	b, _ := d.callers.Load(m.Addr)
	return &Memory{b.([]byte)[:m.Bytes]}
}

// Memory is "device memory": it has no Bytes.
type Memory struct{ b []byte }

// Size implements graph.Memory.
func (m *Memory) Size() int64 { return int64(len(m.b)) }

// Addr implements graph.Addressed.
func (m *Memory) Addr() uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(m.b)))) }

// Free implements graph.Memory.
func (m *Memory) Free() error { return nil }

// Read implements graph.Memory.
func (m *Memory) Read(off int64, dst []byte) error { copy(dst, m.b[off:]); return nil }

// Write implements graph.Memory.
func (m *Memory) Write(off int64, src []byte) error { copy(m.b[off:], src); return nil }

// Queue is a stream.
type Queue struct {
	jobs chan func()
	done sync.WaitGroup
}

// NewQueue returns an empty stream.
func NewQueue() *Queue {
	q := &Queue{jobs: make(chan func(), 1024)}
	q.done.Go(func() {
		for f := range q.jobs {
			f()
		}
	})
	return q
}

// Put adds a job.
func (q *Queue) Put(f func()) { q.jobs <- f }

// Mark returns a channel that closes when what is in the queue is done.
func (q *Queue) Mark() chan struct{} {
	c := make(chan struct{})
	q.Put(func() { close(c) })
	return c
}

// Runner replays by issuing jobs. It implements graph.AsyncRunner and graph.Fetcher.
type Runner struct {
	d       Device
	inner   graph.Runner
	q       *Queue
	tensors map[*graph.Tensor]*graph.Tensor // of the Exec to those of the host code
	Follows int                             // calls of Follow
	Rebinds int                             // calls of Rebind
	Replays int                             // calls of Replay
	fault   error
}

// Load implements graph.Device.
func (d Device) Load(p *graph.Program, calls []*graph.Call) (graph.Runner, error) {
	r := &Runner{d: d, q: NewQueue(), tensors: map[*graph.Tensor]*graph.Tensor{}}
	var clone func(t *graph.Tensor) *graph.Tensor
	clone = func(t *graph.Tensor) *graph.Tensor {
		if t == nil {
			return nil
		}
		c := r.tensors[t]
		if c == nil {
			c = &graph.Tensor{DType: t.DType, Shape: t.Shape}
			r.tensors[t] = c
			c.Count = clone(t.Count)
		}
		return c
	}
	for _, c := range calls {
		for _, list := range [][]*graph.Tensor{c.In, c.Out} {
			for i, t := range list {
				list[i] = clone(t)
			}
		}
		if c.Shared != nil {
			c.Scratch = c.Shared.Mem.(*Memory).b[c.Shared.Off:][:c.Shared.Shape[0]]
		}
	}
	var err error
	r.inner, err = d.Device.Load(p, calls)
	return r, err
}

func elemsOf(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}

func (r *Runner) issue(q *Queue) {
	data := map[*graph.Tensor][]byte{} // where everything is now
	for t, c := range r.tensors {
		if m, ok := t.Mem.(*Memory); ok {
			n := t.DType.Bytes(elemsOf(t.Shape))
			data[c] = m.b[t.Off:][:min(n, len(m.b)-int(t.Off))]
		}
	}
	q.Put(func() {
		if r.d.Before != nil {
			r.d.Before()
		} else {
			time.Sleep(r.d.pause)
		}
		for c, b := range data {
			c.Data = b
		}
		r.fault = errors.Join(r.fault, r.inner.Replay())
	})
}

// Replay implements graph.Runner.
func (r *Runner) Replay() error {
	r.Replays++
	r.issue(r.q)
	return nil
}

// ReplayOn implements graph.AsyncRunner: the stream is a *Queue.
func (r *Runner) ReplayOn(stream any) error {
	q, ok := stream.(*Queue)
	if !ok {
		return graph.Unsupported("stream", stream, "a *Queue")
	}
	before := r.q.Mark()
	q.Put(func() { <-before })
	r.issue(q)
	after := q.Mark()
	r.q.Put(func() { <-after })
	return nil
}

// Wait implements graph.AsyncRunner.
func (r *Runner) Wait() error { <-r.q.Mark(); return r.fault }

// Follow implements graph.AsyncRunner.
func (r *Runner) Follow(other graph.AsyncRunner) error {
	r.Follows++
	c := other.(*Runner).q.Mark()
	r.q.Put(func() { <-c })
	return nil
}

// Put implements graph.AsyncRunner.
func (r *Runner) Put(m graph.Memory, off int64, src []byte) error {
	src = slices.Clone(src)
	r.q.Put(func() { copy(m.(*Memory).b[off:], src) })
	return nil
}

// Fill implements graph.AsyncRunner.
func (r *Runner) Fill(m graph.Memory, b byte) error {
	r.q.Put(func() {
		for i := range m.(*Memory).b {
			m.(*Memory).b[i] = b
		}
	})
	return nil
}

// fetched is a copy on its way.
type fetched struct {
	b    []byte
	over chan struct{}
}

// Fetch implements graph.Fetcher.
func (r *Runner) Fetch(m graph.Memory, off, n int64) (graph.Copy, error) {
	c := &fetched{make([]byte, n), make(chan struct{})}
	r.q.Put(func() {
		copy(c.b, m.(*Memory).b[off:])
		close(c.over)
	})
	return c, nil
}

// Done implements graph.Copy.
func (c *fetched) Done() bool {
	select {
	case <-c.over:
		return true
	default:
		return false
	}
}

// Bytes implements graph.Copy.
func (c *fetched) Bytes() ([]byte, error) { <-c.over; return c.b, nil }

// Release implements graph.Copy.
func (c *fetched) Release() { <-c.over }

// Rebind implements graph.AsyncRunner.
func (r *Runner) Rebind() { r.Rebinds++ }

// Close implements graph.Runner.
func (r *Runner) Close() error {
	close(r.q.jobs)
	r.q.done.Wait()
	return r.inner.Close()
}
