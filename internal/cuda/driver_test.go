//go:build gpu

package cuda

import (
	"errors"
	"os"
	"strings"
	"testing"

	"gorgonia.org/cu"
)

// TestDriver_This says which of the three cases this machine is.
func TestDriver_This(t *testing.T) {
	err := Available()
	if err == nil {
		d := open(t)
		version := must(DriverVersion())(t)
		t.Logf("%v: %s, sm_%d, %d units, %s, driver for CUDA %d", d, d.Name, d.Arch, d.Units, bytesText(d.TotalMem), version)
		return
	}
	if !errors.Is(err, ErrUnavailable) {
		t.Errorf("got %v, want ErrUnavailable", err)
	}
	if _, err2 := Open(0); err2 == nil || err2.Error() != err.Error() {
		t.Errorf("Open: got %v, want %v", err2, err)
	}
	t.Skip(err)
}

// TestDriver_None: no driver on the machine. The process lives, and cu's calls are refused with 34 (hazard 28).
func TestDriver_None(t *testing.T) {
	if inChild(t) {
		wantError(t, Available(), "CUDA is not available: no driver: ", "libcuda.so.1")
		if _, err := cu.NumDevices(); statusOf(err) != statusNoDriver {
			t.Errorf("cu: got %v, want status %d", err, statusNoDriver)
		}
		return
	}
	if err := Available(); err == nil || !strings.Contains(err.Error(), "no driver") {
		t.Skip("this machine has a driver")
	}
	runChild(t, "TestDriver_None")
}

// TestDriver_NoDevice: a driver that sees no device.
func TestDriver_NoDevice(t *testing.T) {
	if inChild(t) {
		wantError(t, Available(), "CUDA is not available: no visible device: cuInit: CUDA_ERROR_NO_DEVICE")
		if _, err := Open(0); !errors.Is(err, ErrUnavailable) {
			t.Errorf("Open: got %v, want ErrUnavailable", err)
		}
		return
	}
	env := "CUDA_VISIBLE_DEVICES="
	if Available() != nil {
		env = fakeDriver(t, "-DNO_DEVICE")
	}
	runChild(t, "TestDriver_NoDevice", env)
}

// TestDriver_Stub: the toolkit's stub library in the driver's place.
func TestDriver_Stub(t *testing.T) {
	if inChild(t) {
		wantError(t, Available(), "CUDA is not available: no driver: libcuda.so.1 is the toolkit's stub")
		return
	}
	runChild(t, "TestDriver_Stub", fakeDriver(t, "-DSTUB"))
}

// TestDriver_Lazy: before anything asks, package cu's init has run and the driver is not loaded.
func TestDriver_Lazy(t *testing.T) {
	if inChild(t) {
		loaded := func() bool {
			return strings.Contains(string(must(os.ReadFile("/proc/self/maps"))(t)), "libcuda.so.1")
		}
		if loaded() {
			t.Error("the driver is loaded before its first use")
		}
		if n, err := cu.NumDevices(); err != nil || n != 1 { // by a trampoline, with no call of Available
			t.Errorf("cu.NumDevices: got %d, %v, want 1", n, err)
		}
		if !loaded() {
			t.Error("the driver is not loaded after its first use")
		}
		return
	}
	runChild(t, "TestDriver_Lazy", fakeDriver(t))
}

// TestDriver_Fake runs the tests of a device with the stand-in driver, which refuses calls on threads without a context.
func TestDriver_Fake(t *testing.T) {
	out := runChild(t, "TestDevice_.*", fakeDriver(t), "GOMAXPROCS=16")
	for _, line := range strings.Split(out, "\n") {
		if strings.Contains(line, "--- ") {
			t.Log(line)
		}
	}
}

func TestError_Text(t *testing.T) {
	e := newError(1, "cuGraphInstantiate", `node "layer0/fc1", grid 132`)
	wantError(t, e, `cuGraphInstantiate: CUDA_ERROR_INVALID_VALUE (invalid argument): node "layer0/fc1", grid 132`)
	wantError(t, newError(-201, "cuLaunchKernelEx", ""), "cuCtxSetCurrent, before cuLaunchKernelEx: ")
	if !errors.Is(newError(statusOutOfMemory, "cuMemAlloc", ""), ErrOutOfMemory) {
		t.Error("status 2 is no ErrOutOfMemory")
	}
	if errors.Is(e, ErrOutOfMemory) {
		t.Error("status 1 is an ErrOutOfMemory")
	}
}

func TestTensorMap_Refuses(t *testing.T) {
	good := TensorMapConfig{Name: "a", Type: TensorBFloat16, Ptr: 0x1000, Dims: []int{2048, 100}, Strides: []int{4096}, Box: []int{64, 128},
		Swizzle: Swizzle128}
	check(t, good.check())
	for _, c := range []struct {
		change func(c *TensorMapConfig)
		want   string
	}{
		{func(c *TensorMapConfig) { c.Dims = nil }, "dims: got 0, want 1 to 5"},
		{func(c *TensorMapConfig) { c.Box = []int{64} }, "box: got 1 dimensions, want 2"},
		{func(c *TensorMapConfig) { c.Strides = nil }, "strides: got 0, want 1"},
		{func(c *TensorMapConfig) { c.Ptr = 8 }, "address: got 0x8, want a multiple of 16"},
		{func(c *TensorMapConfig) { c.Type = 99 }, "type: got 99"},
		{func(c *TensorMapConfig) { c.Dims = []int{0, 4} }, "dimension 0: got 0"},
		{func(c *TensorMapConfig) { c.Box = []int{64, 257} }, "box dimension 1: got 257, want 1 to 256"},
		{func(c *TensorMapConfig) { c.Strides = []int{4100} }, "stride of dimension 1: got 4100 bytes"},
		{func(c *TensorMapConfig) { c.Box = []int{4, 8} }, "box dimension 0: got 8 bytes, want a multiple of 16"},
		{func(c *TensorMapConfig) { c.Box = []int{128, 8} }, "got 256 bytes, want at most the swizzle's 128"},
	} {
		bad := good
		c.change(&bad)
		wantError(t, bad.check(), c.want)
	}
}
