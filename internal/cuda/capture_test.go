//go:build gpu

package cuda

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
)

// adder launches the kernel add on a word of its own memory.
type adder struct {
	f *Function
	m *Memory
}

func newAdder(t testing.TB, d *Device) *adder {
	a := &adder{f: function(t, d, "add"), m: memory(t, d, 4, "sum")}
	check(t, a.m.Write(0, make([]byte, 4)))
	return a
}

func (a *adder) add(s *Stream, name string, v int32) error {
	var args ArgBuffer
	args.Ptr(a.m.Ptr())
	args.Int32(1)
	args.Int32(v)
	return a.f.Launch(s, LaunchConfig{Name: name, Grid: [3]int{1, 1, 1}, Block: [3]int{32, 1, 1}}, &args)
}

func (a *adder) sum(t testing.TB) int32 {
	t.Helper()
	var b [4]byte
	check(t, a.m.Read(0, b[:]))
	return int32(binary.LittleEndian.Uint32(b[:]))
}

// A fork and a join, read back: nodes by their handles, edges by what waits for what.
func TestDevice_Capture(t *testing.T) {
	d := open(t)
	s, side, a := stream(t, d, "main"), stream(t, d, "side"), newAdder(t, d)
	fork, join := event(t, d), event(t, d)
	order := map[string]int{} // launch to node
	var g *Graph
	handles := map[string]string{}
	g, err := s.Capture("step", func() error {
		launch := func(on *Stream, name string, v int32) error {
			if err := a.add(on, name, v); err != nil {
				return err
			}
			nodes, err := on.Captured()
			if err != nil || len(nodes) != 1 {
				return fmt.Errorf("captured: got %v, %v, want one node", nodes, err)
			}
			handles[nodes[0].String()] = name
			return nil
		}
		return errors.Join(launch(s, "a", 1), s.Record(fork), side.WaitEvent(fork), launch(side, "b", 10), side.Record(join),
			launch(s, "c", 100), s.WaitEvent(join), launch(s, "d", 1000))
	})
	check(t, err)
	nodes, edges := must(g.Nodes())(t), must(g.Edges())(t)
	if len(nodes) != 4 {
		t.Fatalf("got %d nodes, want 4: %v", len(nodes), nodes)
	}
	for i, n := range nodes {
		if n.Type != KernelNode || !isFake(d) && n.Kernel != "add" || n.Grid != [3]int{1, 1, 1} || n.Block != [3]int{32, 1, 1} {
			t.Errorf("node %d: got %v", i, n)
		}
		order[handles[n.Handle.String()]] = i
	}
	var got []string
	for _, e := range edges {
		got = append(got, handles[nodes[e.From].Handle.String()]+handles[nodes[e.To].Handle.String()])
	}
	if text := strings.Join(got, " "); len(got) != 4 || len(order) != 4 || !strings.Contains(text, "ab") ||
		!strings.Contains(text, "ac") || !strings.Contains(text, "bd") || !strings.Contains(text, "cd") {
		t.Errorf("edges: got %v, want ab ac bd cd", got)
	}
	x := must(g.Instantiate("step"))(t)
	check(t, x.Upload(s))
	for range 3 {
		check(t, x.Launch(s))
	}
	check(t, s.Synchronize())
	if got := a.sum(t); got != 3333 {
		t.Errorf("sum: got %d, want 3333", got)
	}
	if n := testing.AllocsPerRun(50, func() { check(t, x.Launch(s)) }); n != 0 {
		t.Errorf("a launch allocates %v times, want 0", n)
	}
	check(t, errors.Join(s.Synchronize(), x.Close(), g.Close(), g.Close()))
	if err := x.Launch(s); !errors.Is(err, ErrClosed) {
		t.Errorf("launch after Close: got %v", err)
	}
	if _, err := g.Nodes(); !errors.Is(err, ErrClosed) {
		t.Errorf("nodes after Close: got %v", err)
	}
}

func TestDevice_Update(t *testing.T) {
	d := open(t)
	s, a := stream(t, d, "main"), newAdder(t, d)
	capture := func(values ...int32) *Graph {
		g := must(s.Capture("update", func() error {
			for _, v := range values {
				if err := a.add(s, "add", v); err != nil {
					return err
				}
			}
			return nil
		}))(t)
		t.Cleanup(func() { _ = g.Close() })
		return g
	}
	x := must(capture(1, 2).Instantiate("update"))(t)
	defer x.Close()
	if r, err := x.Update(capture(10, 20)); r != UpdateDone || err != nil {
		t.Fatalf("other arguments: got %v, %v", r, err)
	}
	r, err := x.Update(capture(5))
	if r != UpdateTopology {
		t.Errorf("other topology: got %v", r)
	}
	wantError(t, err, "cuGraphExecUpdate: ", `graph "update" by "update"`)
	check(t, x.Launch(s))
	check(t, s.Synchronize())
	if got := a.sum(t); got != 30 {
		t.Errorf("sum: got %d, want 30 (the update that failed changes nothing)", got)
	}
}

// Hazard 16: captures that fail leave nothing behind, and say what was wrong.
func TestDevice_CaptureFails(t *testing.T) {
	d := open(t)
	s, side, a := stream(t, d, "main"), stream(t, d, "side"), newAdder(t, d)
	fork := event(t, d)
	unjoined := func() error {
		return errors.Join(a.add(s, "layer0/fc1", 1), s.Record(fork), side.WaitEvent(fork), a.add(side, "layer0/wgrad", 1), a.add(s, "layer0/fc2", 1))
	}
	_, err := s.Capture("step", unjoined)
	wantError(t, err, "cuStreamEndCapture: CUDA_ERROR_STREAM_CAPTURE_UNJOINED", `capture of "step" on stream "main"`,
		`not joined: stream "side", last call "layer0/wgrad"`)
	halfway := errors.New("halfway")
	_, err = s.Capture("step", func() error { return errors.Join(a.add(s, "x", 1), halfway) })
	if !errors.Is(err, halfway) {
		t.Errorf("got %v, want the function's error", err)
	}
	free, _, err := d.MemInfo() // what the first ones made CUDA set aside does not count
	check(t, err)
	for i := range 100 {
		_, err := s.Capture("step", func() error {
			if i%2 == 0 {
				return unjoined()
			}
			return errors.Join(unjoined(), halfway)
		})
		if err == nil {
			t.Fatal("the capture does not fail")
		}
	}
	func() {
		defer func() { _ = recover() }()
		_, _ = s.Capture("panics", func() error { panic("inside") })
	}()
	if status, _, err := s.CaptureStatus(); err != nil || status != NotCapturing {
		t.Errorf("after failures: got status %v, %v", status, err)
	}
	if now, _, err := d.MemInfo(); err != nil || now < free {
		t.Errorf("free memory: got %d, %v, want %d as before", now, err, free)
	}
	check(t, errors.Join(s.Synchronize(), side.Synchronize()))
	g := must(s.Capture("good", func() error { return a.add(s, "x", 7) }))(t)
	x := must(g.Instantiate("good"))(t)
	check(t, errors.Join(g.Close(), x.Launch(s), s.Synchronize(), x.Close(), a.add(side, "y", 1), side.Synchronize()))
	if got := a.sum(t); got != 8 {
		t.Errorf("sum: got %d, want 8", got)
	}
}

// Hazard 10: captures while another goroutine allocates, frees and synchronizes the device.
func TestDevice_CaptureBeside(t *testing.T) {
	d := open(t)
	s, a := stream(t, d, "main"), newAdder(t, d)
	var stop atomic.Bool
	started, beside := make(chan bool), make(chan error, 1)
	go func() {
		var err error
		for i := 0; err == nil && !stop.Load(); i++ {
			var m *Memory
			if m, err = d.Alloc(1<<20, "beside"); err == nil {
				err = errors.Join(m.Write(0, make([]byte, 4096)), d.Synchronize(), m.Free())
			}
			if i == 0 {
				close(started)
			}
		}
		beside <- err
	}()
	<-started
	for range 100 {
		g, err := s.Capture("step", func() error {
			for range 20 {
				if err := a.add(s, "add", 1); err != nil {
					return err
				}
			}
			return nil
		})
		check(t, err)
		x := must(g.Instantiate("step"))(t)
		check(t, errors.Join(x.Launch(s), s.Synchronize(), x.Close(), g.Close()))
	}
	stop.Store(true)
	check(t, <-beside)
	if got := a.sum(t); got != 2000 {
		t.Errorf("sum: got %d, want 2000", got)
	}
}

// What would break a capture is refused before it does.
func TestDevice_CaptureRefuses(t *testing.T) {
	d := open(t)
	s, a := stream(t, d, "main"), newAdder(t, d)
	g, err := s.Capture("step", func() error {
		wantError(t, s.Synchronize(), `synchronize stream "main": it is being captured for "step"`)
		wantError(t, d.Synchronize(), `synchronize cuda:0: called inside the capture of "step"`)
		_, err := stream(t, d, "other").Capture("inner", func() error { return nil })
		wantError(t, err, `capture "inner": called inside the capture of "step"`)
		done := make(chan error)
		go func() { done <- s.Synchronize() }()
		wantError(t, <-done, `it is being captured for "step"`)
		if status, id, err := s.CaptureStatus(); err != nil || status != Capturing || id == 0 {
			t.Errorf("status: got %v, id %d, %v", status, id, err)
		}
		return a.add(s, "x", 1)
	})
	check(t, err)
	check(t, g.Close())
}

// 1,000 graphs made and closed return all memory of the device.
func TestDevice_GraphCycles(t *testing.T) {
	d := open(t)
	s, a := stream(t, d, "main"), newAdder(t, d)
	cycle := func() {
		g := must(s.Capture("cycle", func() error { return a.add(s, "x", 1) }))(t)
		x := must(g.Instantiate("cycle"))(t)
		check(t, errors.Join(x.Launch(s), s.Synchronize(), x.Close(), g.Close()))
	}
	for range 50 {
		cycle()
	}
	free, _, err := d.MemInfo()
	check(t, err)
	for range 1000 {
		cycle()
	}
	if now, _, err := d.MemInfo(); err != nil || now < free {
		t.Errorf("free memory: got %d, %v, want %d as before", now, err, free)
	}
}

func BenchmarkGraphLaunch(b *testing.B) {
	d := open(b)
	s, a := stream(b, d, "main"), newAdder(b, d)
	g := must(s.Capture("bench", func() error { return a.add(s, "x", 1) }))(b)
	x := must(g.Instantiate("bench"))(b)
	check(b, x.Upload(s))
	b.ReportAllocs()
	for b.Loop() {
		check(b, x.Launch(s))
	}
	check(b, errors.Join(s.Synchronize(), x.Close(), g.Close()))
}
