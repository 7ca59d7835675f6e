package graph

import (
	"fmt"
	"sort"
	"strings"
	"sync"

	"github.com/moegraph/moegraph/dtype"
)

// Device runs Programs. Packages that implement one make it known by RegisterDevice.
type Device interface {
	// String is the name that Open takes: "host".
	String() string
	// Check says whether the device has code for the op; nil means that it does.
	Check(op Op) error
	// Alloc returns zeroed memory. what names its use in the error of a failed allocation.
	Alloc(bytes int64, what string) (Memory, error)
	// Rates returns what the cost model needs.
	Rates() Rates
	// Load makes a Program's calls, one for each of its Steps in order, ready to replay.
	Load(p *Program, calls []*Call) (Runner, error)
}

// Sizer is a Device on which an allocation that cannot succeed ends the process. It says beforehand whether bytes in all
// can ever fit.
type Sizer interface {
	Fits(bytes int64) error
}

// Runner replays a loaded Program.
type Runner interface {
	Replay() error
	Close() error
}

// AsyncRunner is a Runner whose calls only issue work and return. What it issues is done in the order of issue.
// Wait, and Follow with it as the other, may be called while another goroutine issues.
type AsyncRunner interface {
	Runner
	// ReplayOn is Replay on a stream of the caller: after what was put on that stream before, and before what is
	// put there later.
	ReplayOn(stream any) error
	// Wait returns when everything issued so far is done.
	Wait() error
	// Follow makes what is issued next wait for what other has issued so far.
	Follow(other AsyncRunner) error
	// Put copies src to m; src may be used anew when it returns.
	Put(m Memory, offset int64, src []byte) error
	// Fill sets every byte of m.
	Fill(m Memory, b byte) error
	// Rebind says that a Tensor of the calls has other memory: the next replay uses it.
	Rebind()
}

// Memory is a block of device memory. Read and Write return when the copy is done; they wait for no replay.
type Memory interface {
	Size() int64
	Read(offset int64, dst []byte) error
	Write(offset int64, src []byte) error
	Free() error
}

// HostMemory is Memory that Go code can reach.
type HostMemory interface {
	Memory
	Bytes() []byte
}

// Addressed is Memory whose address Launches can pass to a kernel. The address stays for its life.
type Addressed interface {
	Memory
	Addr() uint64
}

// Wrapper is a Device that can use Go memory in place, without a copy.
type Wrapper interface {
	Wrap(b []byte) Memory
}

// DeviceMemory is memory of the caller on the device: Exec.Write and Exec.Bind use it in place of a slice. It must
// stay allocated until it is replaced, or the Exec is closed.
type DeviceMemory struct {
	Addr  uintptr // a multiple of 16
	Bytes int64   // what the tensor takes; an input's number of rows follows from it
}

// DeviceWrapper is a Device that can use a caller's device memory in place.
type DeviceWrapper interface {
	WrapDevice(m DeviceMemory) Memory
}

// Rates are a device's speeds, for the cost model: a node takes LaunchUS plus the longer of its flops and
// its bytes at these rates.
type Rates struct {
	Flops    float64 // floating-point operations a second
	Bytes    float64 // bytes a second
	LaunchUS float64 // microseconds to start a node
	WaitUS   float64 // microseconds for one stream to wait for another
	Units    int     // what runs at once: cores, multiprocessors
	Grain    float64 // flops or bytes that keep one unit busy for about LaunchUS
}

var devices = struct {
	sync.Mutex
	open map[string]func(spec string) (Device, error)
}{open: map[string]func(string) (Device, error){}}

// RegisterDevice makes a kind of device known: the part of its name before a colon.
func RegisterDevice(kind string, open func(name string) (Device, error)) {
	devices.Lock()
	defer devices.Unlock()
	devices.open[kind] = open
}

// Devices returns the kinds of device that Open knows.
func Devices() []string {
	devices.Lock()
	defer devices.Unlock()
	var kinds []string
	for k := range devices.open {
		kinds = append(kinds, k)
	}
	sort.Strings(kinds)
	return kinds
}

// Open returns the device of that name: "host", "cuda:0".
func Open(name string) (Device, error) {
	kind, _, _ := strings.Cut(name, ":")
	devices.Lock()
	open := devices.open[kind]
	devices.Unlock()
	if open == nil {
		return nil, fmt.Errorf("%w: got %q, want one of %s (devices register when package nodes is imported)",
			ErrDevice, name, strings.Join(Devices(), ", "))
	}
	return open(name)
}

// Tensor is a Value's place in one Exec.
type Tensor struct {
	DType dtype.DType
	Shape []int  // at capacity
	Data  []byte // host memory; it may be shorter than the capacity, never than the rows in use
	Mem   Memory // what Data, or the device's address, is part of
	Off   int64  // where in Mem
	Count *Tensor
}

// Rows returns the number of rows in use: the last element of the count, within [0, capacity]; without a
// count the first dimension. Host kernels call it at every run.
func (t *Tensor) Rows() int {
	if len(t.Shape) == 0 {
		return 1
	}
	if t.Count == nil {
		return t.Shape[0]
	}
	c := t.Count.Data
	if len(c) < 4 {
		return 0
	}
	n := int(int32(uint32(c[len(c)-4]) | uint32(c[len(c)-3])<<8 | uint32(c[len(c)-2])<<16 | uint32(c[len(c)-1])<<24))
	return min(max(n, 0), t.Shape[0])
}

// Width returns the number of elements in a row.
func (t *Tensor) Width() int {
	n := 1
	for _, d := range t.Shape[min(1, len(t.Shape)):] {
		n *= d
	}
	return n
}

// Call is one node's view of an Exec: its operands, its outputs and its helpers.
type Call struct {
	Name    string    // the node's path name
	Op      Op        // with its options
	In      []*Tensor // nil where an operand is absent
	Out     []*Tensor // nil where nobody needs the output: then it is not computed
	Scratch []byte    // the bytes that Scratcher asked for
	Shared  *Tensor   // the same bytes as a place in the arena, for devices whose memory Go cannot reach; nil: none
	NewLoop func(body func(w *Worker, lo, hi int)) Loop
}

// Loop is a parallel loop, made once and run at every replay without allocating.
type Loop interface {
	// Run calls the body for [0,n) in pieces of at most grain, on all cores. The pieces depend on n and grain
	// alone, so that what a body computes is the same on any number of cores.
	Run(n, grain int)
}

// Worker is the goroutine that runs a piece of a loop: it owns buffers that last.
type Worker struct {
	kept map[any]any
	f32  [8][]float32
	f64  [8][]float64
}

// Float32 returns the worker's buffer slot with n elements of unspecified content. Slots are 0 to 7.
func (w *Worker) Float32(slot, n int) []float32 {
	if cap(w.f32[slot]) < n {
		w.f32[slot] = make([]float32, n)
	}
	return w.f32[slot][:n]
}

// Keep returns what the first call with this key made by f on this worker: buffers of a package of operators.
func (w *Worker) Keep(key any, f func() any) any {
	x, ok := w.kept[key]
	if !ok {
		if w.kept == nil {
			w.kept = map[any]any{}
		}
		x = f()
		w.kept[key] = x
	}
	return x
}

// Float64 is Float32 for float64.
func (w *Worker) Float64(slot, n int) []float64 {
	if cap(w.f64[slot]) < n {
		w.f64[slot] = make([]float64, n)
	}
	return w.f64[slot][:n]
}
