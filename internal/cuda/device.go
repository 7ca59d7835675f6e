//go:build gpu

package cuda

// #cgo linux LDFLAGS: -L${SRCDIR} -ldl
// #include "driver.h"
import "C"

import (
	"fmt"
	"runtime"
	"sort"
	"sync"
	"sync/atomic"
	"unsafe"

	"gorgonia.org/cu"
)

// Device is a device's primary context, which programs that use cu or the CUDA runtime share.
type Device struct {
	Ordinal            int
	Name               string
	Arch               int   // compute capability times ten: 80, 90, 120
	Units              int   // multiprocessors
	SharedPerBlock     int   // bytes of shared memory that a thread block has without asking
	SharedPerBlockMax  int   // bytes of dynamic shared memory that it may ask for
	SharedPerUnit      int   // bytes
	L2Bytes            int   // second-level cache
	TotalMem           int64 // bytes
	ClockKHz           int
	MemoryClockKHz     int
	MemoryBusWidthBits int

	cu     cu.Device
	ctx    cu.CUContext
	copies *Stream // for Memory.Read and Memory.Write

	failed atomic.Pointer[Error] // the first error that broke the context
	closed atomic.Bool

	mu       sync.Mutex
	uses     int
	live     map[*Memory]struct{}
	names    map[unsafe.Pointer]string // CUfunction to kernel name
	threads  map[int]string            // captures under way, by thread
	captures sync.RWMutex              // read: a capture; write: Synchronize
}

var opened = struct {
	sync.Mutex
	devices map[int]*Device
}{devices: map[int]*Device{}}

// Count returns the number of visible devices.
func Count() (int, error) {
	if err := Available(); err != nil {
		return 0, err
	}
	n, err := cu.NumDevices()
	if err != nil {
		return 0, newError(statusOf(err), "cuDeviceGetCount", "")
	}
	return n, nil
}

// Open returns the device of that number. Every Open of one number returns the same Device, and wants its own Close.
func Open(ordinal int) (*Device, error) {
	n, err := Count()
	if err != nil {
		return nil, err
	}
	if ordinal < 0 || ordinal >= n {
		return nil, fmt.Errorf("cuda device: got %d, want 0 to %d (%d visible)", ordinal, n-1, n)
	}
	opened.Lock()
	defer opened.Unlock()
	if d := opened.devices[ordinal]; d != nil {
		d.uses++
		return d, nil
	}
	d := &Device{
		Ordinal: ordinal,
		uses:    1,
		live:    map[*Memory]struct{}{},
		names:   map[unsafe.Pointer]string{},
		threads: map[int]string{},
	}
	if err := d.open(); err != nil {
		return nil, err
	}
	opened.devices[ordinal] = d
	return d, nil
}

// open fills in a new Device.
func (d *Device) open() error {
	what := fmt.Sprintf("opening cuda:%d", d.Ordinal)
	var err error
	if d.cu, err = cu.GetDevice(d.Ordinal); err != nil {
		return newError(statusOf(err), "cuDeviceGet", what)
	}
	if d.Name, err = d.cu.Name(); err != nil {
		return newError(statusOf(err), "cuDeviceGetName", what)
	}
	if d.TotalMem, err = d.cu.TotalMem(); err != nil {
		return newError(statusOf(err), "cuDeviceTotalMem", what)
	}
	var major, minor int
	for _, a := range []struct {
		to *int
		id cu.DeviceAttribute
	}{
		{&major, C.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR},
		{&minor, C.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR},
		{&d.Units, C.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT},
		{&d.SharedPerBlock, C.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK},
		{&d.SharedPerBlockMax, C.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN},
		{&d.SharedPerUnit, C.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR},
		{&d.L2Bytes, C.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE},
		{&d.ClockKHz, C.CU_DEVICE_ATTRIBUTE_CLOCK_RATE},
		{&d.MemoryClockKHz, C.CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE},
		{&d.MemoryBusWidthBits, C.CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH},
	} {
		if *a.to, err = d.cu.Attribute(a.id); err != nil {
			return newError(statusOf(err), "cuDeviceGetAttribute", fmt.Sprintf("attribute %d, %s", a.id, what))
		}
	}
	d.Arch = 10*major + minor
	if d.ctx, err = d.cu.RetainPrimaryCtx(); err != nil {
		return newError(statusOf(err), "cuDevicePrimaryCtxRetain", what)
	}
	if d.copies, err = d.NewStream("copies"); err != nil {
		_ = d.cu.ReleasePrimaryCtx()
		return err
	}
	return nil
}

// Close gives the device back. After the last Close every call on it fails.
func (d *Device) Close() error {
	opened.Lock()
	defer opened.Unlock()
	if d.uses--; d.uses > 0 {
		return nil
	}
	if d.closed.Load() {
		return nil
	}
	err := d.copies.Close()
	delete(opened.devices, d.Ordinal)
	d.closed.Store(true)
	if e := d.cu.ReleasePrimaryCtx(); e != nil && err == nil {
		err = newError(statusOf(e), "cuDevicePrimaryCtxRelease", d.String())
	}
	return err
}

// String is the device's name in errors: "cuda:0".
func (d *Device) String() string { return fmt.Sprintf("cuda:%d", d.Ordinal) }

// CU returns the device and its context as cu has them.
func (d *Device) CU() (cu.Device, cu.CUContext) { return d.cu, d.ctx }

// DriverVersion returns the newest version of CUDA that the driver serves: 13000 for 13.0.
func DriverVersion() (int, error) {
	if err := Available(); err != nil {
		return 0, err
	}
	return cu.Version(), nil
}

// Synchronize waits for all work on the device, and before that for the end of captures under way: CUDA would
// break them.
func (d *Device) Synchronize() error {
	if err := d.usable(); err != nil {
		return err
	}
	d.mu.Lock()
	own, inside := d.threads[int(C.moe_thread())]
	d.mu.Unlock()
	if inside {
		return fmt.Errorf("synchronize %v: called inside the capture of %q; move it out", d, own)
	}
	d.captures.Lock()
	defer d.captures.Unlock()
	if r := C.moe_context_sync(d.c()); r != 0 {
		return d.fail(r, "cuCtxSynchronize", d.String())
	}
	return nil
}

// MemInfo returns the bytes that are free and all bytes of the device's memory.
func (d *Device) MemInfo() (free, total int64, err error) {
	err = d.do("cuMemGetInfo", d.String(), func() (err error) {
		free, total, err = cu.MemInfo()
		return err
	})
	return free, total, err
}

// GraphMemory returns the bytes that CUDA itself holds for allocations inside of graphs.
func (d *Device) GraphMemory() (int64, error) {
	if err := d.usable(); err != nil {
		return 0, err
	}
	var n C.uint64_t
	if r := C.moe_graph_memory(d.c(), C.CUdevice(d.cu), &n); r != 0 {
		return 0, d.fail(r, "cuDeviceGetGraphMemAttribute", d.String())
	}
	return int64(n), nil
}

// Holdings lists what Alloc gave and Free did not take back, the largest first: "2.0 GiB arena of step".
func (d *Device) Holdings() []string {
	d.mu.Lock()
	all := make([]*Memory, 0, len(d.live))
	for m := range d.live {
		all = append(all, m)
	}
	d.mu.Unlock()
	sort.Slice(all, func(i, j int) bool {
		if all[i].size != all[j].size {
			return all[i].size > all[j].size
		}
		return all[i].what < all[j].what
	})
	list := make([]string, len(all))
	for i, m := range all {
		list[i] = bytesText(m.size) + " " + m.what
	}
	return list
}

// c is the context as this package's cgo has it.
func (d *Device) c() C.CUcontext { return C.CUcontext(handle(&d.ctx)) }

// handle returns the C pointer that a struct of package cu consists of.
func handle[T any](h *T) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(h)) }

// usable says why the device cannot be used: closed, or an earlier error broke its context.
func (d *Device) usable() error {
	if e := d.failed.Load(); e != nil {
		return fmt.Errorf("%v: %w; the first error was: %w", d, ErrFailed, e)
	}
	if d.closed.Load() {
		return fmt.Errorf("%v: %w", d, ErrClosed)
	}
	return nil
}

// fail makes the error of a status and remembers one that breaks the context.
func (d *Device) fail(status C.int, call, what string) *Error {
	e := newError(int(status), call, what)
	if lasting[e.Status] {
		d.failed.CompareAndSwap(nil, e)
	}
	return e
}

// do runs a function of package cu with the context current on a thread that stays.
func (d *Device) do(call, what string, f func() error) error {
	if err := d.usable(); err != nil {
		return err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cu.SetCurrentContext(d.ctx); err != nil {
		return d.fail(C.int(statusOf(err)), "cuCtxSetCurrent, before "+call, what)
	}
	if err := f(); err != nil {
		return d.fail(C.int(statusOf(err)), call, what)
	}
	return nil
}

// bytesText writes a number of bytes for people.
func bytesText(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.2f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	default:
		return fmt.Sprintf("%d B", n)
	}
}
