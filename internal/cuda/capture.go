//go:build gpu

package cuda

// #include "driver.h"
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"gorgonia.org/cu"
)

// capture is one capture, under way or over.
type capture struct {
	what   string
	ended  atomic.Bool
	mu     sync.Mutex
	joined []*Stream // the origin first
}

// join takes a stream in.
func (k *capture) join(s *Stream) {
	k.mu.Lock()
	k.joined = append(k.joined, s)
	k.mu.Unlock()
	s.last = ""
	s.capture.Store(k)
}

// capturing returns the capture that the stream is part of now; nil: none.
func (s *Stream) capturing() *capture {
	if k := s.capture.Load(); k != nil && !k.ended.Load() {
		return k
	}
	return nil
}

// Capture makes a Graph of the work that f gives to this stream, and to streams that wait for its events; those must
// be joined again before f returns. Nothing runs. If f, or the capture, fails, the error says what it was, nothing is
// left behind and the streams can be used at once. f runs on the calling goroutine, which keeps its thread meanwhile,
// so it must not hand work to other goroutines, and must not synchronize.
func (s *Stream) Capture(what string, f func() error) (*Graph, error) {
	if err := s.idle("capture"); err != nil {
		return nil, err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	d, thread := s.d, int(C.moe_thread())
	d.mu.Lock()
	own, nested := d.threads[thread]
	d.mu.Unlock()
	if nested {
		return nil, fmt.Errorf("capture %q: called inside the capture of %q", what, own)
	}
	d.captures.RLock()
	defer d.captures.RUnlock()
	d.mu.Lock()
	d.threads[thread] = what
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		delete(d.threads, thread)
		d.mu.Unlock()
	}()

	if r := C.moe_capture_begin(d.c(), s.c()); r != 0 {
		return nil, d.fail(r, "cuStreamBeginCapture", fmt.Sprintf("capture of %q on %s", what, s.text()))
	}
	k := &capture{what: what}
	k.join(s)
	done := false
	defer func() {
		if !done { // f panicked
			_, _ = s.endCapture(k)
		}
	}()
	err := f()
	done = true
	g, endErr := s.endCapture(k)
	if err == nil && endErr == nil {
		return g, nil
	}
	if g != nil {
		endErr = errors.Join(endErr, g.Close())
	}
	if err != nil { // it explains the other
		return nil, fmt.Errorf("capture of %q: %w", what, err)
	}
	return nil, endErr
}

// endCapture ends the capture that s began.
func (s *Stream) endCapture(k *capture) (*Graph, error) {
	loose := s.unjoined(k)
	var g cu.Graph
	r := C.moe_capture_end(s.d.c(), s.c(), (*C.CUgraph)(unsafe.Pointer(&g)))
	k.ended.Store(true)
	if r != 0 {
		what := fmt.Sprintf("capture of %q on %s, last call %q", k.what, s.text(), s.last)
		if loose != "" {
			what += "; not joined: " + loose
		}
		return nil, s.d.fail(r, "cuStreamEndCapture", what)
	}
	return &Graph{d: s.d, cu: g, what: k.what}, nil
}

// unjoined names the streams of the capture whose last node nothing on the origin waits for, and that node. It must
// look before the capture ends, since CUDA destroys the graph of one that fails.
func (s *Stream) unjoined(k *capture) string {
	k.mu.Lock()
	joined := k.joined
	k.mu.Unlock()
	if len(joined) < 2 {
		return ""
	}
	info, err := s.captureInfo()
	if err != nil || info.id == 0 {
		return ""
	}
	from, to, _, err := s.d.edges(info.graph)
	if err != nil {
		return ""
	}
	before := map[C.CUgraphNode][]C.CUgraphNode{}
	for i := range from {
		before[to[i]] = append(before[to[i]], from[i])
	}
	reached := map[C.CUgraphNode]bool{}
	queue := append([]C.CUgraphNode(nil), dependencies(info)...)
	for len(queue) > 0 {
		n := queue[0]
		queue = queue[1:]
		if !reached[n] {
			reached[n] = true
			queue = append(queue, before[n]...)
		}
	}
	var loose []string
	for _, o := range joined[1:] {
		oi, err := o.captureInfo()
		if err != nil || oi.id != info.id {
			continue
		}
		for _, n := range dependencies(oi) {
			if !reached[n] {
				loose = append(loose, fmt.Sprintf("%s, last call %q", o.text(), o.last))
				break
			}
		}
	}
	return strings.Join(loose, "; ")
}

func (s *Stream) captureInfo() (*C.moe_capture_info, error) {
	var info C.moe_capture_info
	if r := C.moe_capture_info_of(s.d.c(), s.c(), &info); r != 0 {
		return nil, s.d.fail(r, "cuStreamGetCaptureInfo", s.text())
	}
	return &info, nil
}

func dependencies(info *C.moe_capture_info) []C.CUgraphNode {
	return info.deps[:min(int(info.num_deps), len(info.deps))]
}

// CaptureStatus is what a stream is doing.
type CaptureStatus int

// The states of a stream.
const (
	NotCapturing       CaptureStatus = C.CU_STREAM_CAPTURE_STATUS_NONE
	Capturing          CaptureStatus = C.CU_STREAM_CAPTURE_STATUS_ACTIVE
	CaptureInvalidated CaptureStatus = C.CU_STREAM_CAPTURE_STATUS_INVALIDATED
)

// CaptureStatus asks the driver whether the stream is part of a capture, and of which.
func (s *Stream) CaptureStatus() (status CaptureStatus, id uint64, err error) {
	if err := s.d.usable(); err != nil {
		return 0, 0, err
	}
	info, err := s.captureInfo()
	if err != nil {
		return 0, 0, err
	}
	return CaptureStatus(info.status), uint64(info.id), nil
}

// Captured returns the nodes that the stream's next one would depend on; right after a launch, its node. It is
// for Capture's function, to know nodes again in Graph.Nodes.
func (s *Stream) Captured() ([]cu.Node, error) {
	if err := s.d.usable(); err != nil {
		return nil, err
	}
	info, err := s.captureInfo()
	if err != nil {
		return nil, err
	}
	deps := dependencies(info)
	nodes := make([]cu.Node, len(deps))
	for i := range deps {
		nodes[i] = *(*cu.Node)(unsafe.Pointer(&deps[i]))
	}
	return nodes, nil
}
