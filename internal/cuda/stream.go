//go:build gpu

package cuda

// #cgo noescape moe_stream_sync
// #cgo nocallback moe_stream_sync
// #include "driver.h"
import "C"

import (
	"fmt"
	"sync/atomic"
	"time"

	"gorgonia.org/cu"
)

// Stream is an order of work on a device. It does not wait for the legacy default stream.
type Stream struct {
	d       *Device
	cu      cu.Stream
	name    string
	own     bool
	capture atomic.Pointer[capture] // the capture that it is, or was last, part of
	last    string                  // what the newest captured call was; the capturing goroutine's
}

// NewStream returns a new stream. Its name stands in errors.
func (d *Device) NewStream(name string) (*Stream, error) {
	s := &Stream{d: d, name: name, own: true}
	err := d.do("cuStreamCreate", fmt.Sprintf("stream %q on %v", name, d), func() (err error) {
		s.cu, err = cu.MakeStream(cu.NonBlocking)
		return err
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// WrapStream makes a Stream of someone else's. Close leaves it alone.
func (d *Device) WrapStream(s cu.Stream, name string) *Stream {
	return &Stream{d: d, cu: s, name: name}
}

// CU returns the stream as cu has it.
func (s *Stream) CU() cu.Stream { return s.cu }

// Device returns the stream's device.
func (s *Stream) Device() *Device { return s.d }

// String is the stream's name.
func (s *Stream) String() string { return s.name }

// Synchronize waits for the work given to the stream so far.
func (s *Stream) Synchronize() error {
	if err := s.idle("synchronize"); err != nil {
		return err
	}
	if r := C.moe_stream_sync(s.d.c(), s.c()); r != 0 {
		return s.d.fail(r, "cuStreamSynchronize", s.text())
	}
	return nil
}

// Query says whether the work given to the stream so far is done.
func (s *Stream) Query() (done bool, err error) {
	if err := s.idle("query"); err != nil {
		return false, err
	}
	switch r := C.moe_stream_query(s.d.c(), s.c()); r {
	case 0:
		return true, nil
	case statusNotReady:
		return false, nil
	default:
		return false, s.d.fail(r, "cuStreamQuery", s.text())
	}
}

// Record makes e stand for the work given to the stream so far.
func (s *Stream) Record(e *Event) error {
	if err := s.d.usable(); err != nil {
		return err
	}
	if r := C.moe_event_record(s.d.c(), e.c(), s.c()); r != 0 {
		return s.d.fail(r, "cuEventRecord", s.text())
	}
	e.capture = s.capturing()
	return nil
}

// WaitEvent makes later work of the stream wait for what e stands for. An event recorded in a capture takes the
// stream into that capture.
func (s *Stream) WaitEvent(e *Event) error {
	if err := s.d.usable(); err != nil {
		return err
	}
	if r := C.moe_stream_wait(s.d.c(), s.c(), e.c()); r != 0 {
		return s.d.fail(r, "cuStreamWaitEvent", s.text())
	}
	if k := e.capture; k != nil && !k.ended.Load() && s.capturing() == nil {
		k.join(s)
	}
	return nil
}

// Close gives the stream back; the device finishes its work first. A second Close does nothing.
func (s *Stream) Close() error {
	if !s.own {
		return nil
	}
	s.own = false
	return s.d.do("cuStreamDestroy", s.text(), s.cu.Destroy)
}

// idle refuses what would break a capture that the stream is part of.
func (s *Stream) idle(verb string) error {
	if k := s.capturing(); k != nil {
		return fmt.Errorf("%s %s: it is being captured for %q; wait for the end of the capture", verb, s.text(), k.what)
	}
	return s.d.usable()
}

// note keeps what a captured call does, for the error of a capture that fails.
func (s *Stream) note(verb, what string) {
	if s.capturing() != nil {
		s.last = verb + what
	}
}

func (s *Stream) c() C.CUstream { return C.CUstream(handle(&s.cu)) }

func (s *Stream) text() string { return fmt.Sprintf("stream %q", s.name) }

// Event is a point in a stream's work.
type Event struct {
	d       *Device
	cu      cu.Event
	timing  bool
	closed  bool
	capture *capture // where it was recorded; nil: in no capture
}

// NewEvent returns a new event; one with timing is slower and has Elapsed.
func (d *Device) NewEvent(timing bool) (*Event, error) {
	e := &Event{d: d, timing: timing}
	flags := cu.DisableTiming
	if timing {
		flags = cu.DefaultEvent
	}
	err := d.do("cuEventCreate", d.String(), func() (err error) {
		e.cu, err = cu.MakeEvent(flags)
		return err
	})
	if err != nil {
		return nil, err
	}
	return e, nil
}

// CU returns the event as cu has it.
func (e *Event) CU() cu.Event { return e.cu }

// Synchronize waits for what the event stands for.
func (e *Event) Synchronize() error {
	if err := e.d.usable(); err != nil {
		return err
	}
	if k := e.capture; k != nil {
		return fmt.Errorf("synchronize event: it was recorded in the capture of %q, which gives it nothing to wait for", k.what)
	}
	if r := C.moe_event_sync(e.d.c(), e.c()); r != 0 {
		return e.d.fail(r, "cuEventSynchronize", "")
	}
	return nil
}

// Query says whether what the event stands for is over.
func (e *Event) Query() (done bool, err error) {
	if err := e.d.usable(); err != nil {
		return false, err
	}
	if k := e.capture; k != nil {
		return false, fmt.Errorf("query event: it was recorded in the capture of %q, which gives it nothing to wait for", k.what)
	}
	switch r := C.moe_event_query(e.d.c(), e.c()); r {
	case 0:
		return true, nil
	case statusNotReady:
		return false, nil
	default:
		return false, e.d.fail(r, "cuEventQuery", "")
	}
}

// Elapsed returns the device's time from e to end, both with timing and both over; its grain is half a microsecond.
func (e *Event) Elapsed(end *Event) (time.Duration, error) {
	if !e.timing || !end.timing {
		return 0, fmt.Errorf("elapsed: got an event without timing, want NewEvent(true)")
	}
	var ms float64
	err := e.d.do("cuEventElapsedTime", "", func() (err error) {
		ms, err = e.cu.Elapsed(end.cu)
		return err
	})
	return time.Duration(ms * float64(time.Millisecond)), err
}

// Close gives the event back. A second Close does nothing.
func (e *Event) Close() error {
	if e.closed {
		return nil
	}
	e.closed = true
	return e.d.do("cuEventDestroy", "", func() error { return cu.DestroyEvent(&e.cu) })
}

func (e *Event) c() C.CUevent { return C.CUevent(handle(&e.cu)) }
