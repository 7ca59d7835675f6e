//go:build gpu

package cudadev

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/cuda"
	"github.com/moegraph/moegraph/internal/nvrtc"
	"github.com/moegraph/moegraph/kernels"
	"gorgonia.org/cu"
)

func init() {
	graph.RegisterDevice("cuda", func(name string) (graph.Device, error) {
		d, err := Open(name)
		if err != nil {
			return nil, err
		}
		return d, nil
	})
}

// Device is one GPU.
type Device struct {
	dev      *cuda.Device
	gpu      graph.GPU
	cache    func() (*kernels.Cache, error)
	progress atomic.Pointer[func(program string, done, all int)]

	mu    sync.Mutex
	clear *cuda.Stream // for the zeros of new memory
}

var opened = struct {
	sync.Mutex
	devices map[int]*Device
}{devices: map[int]*Device{}}

// Open returns the device "cuda:N"; "cuda" is "cuda:0". It stays open until the process ends.
func Open(name string) (*Device, error) {
	kind, number, numbered := strings.Cut(name, ":")
	n := 0
	if numbered {
		var err error
		if n, err = strconv.Atoi(number); err != nil || n < 0 {
			return nil, fmt.Errorf("%w: got %q, want \"cuda:N\"", graph.ErrDevice, name)
		}
	}
	if kind != "cuda" {
		return nil, fmt.Errorf("%w: got %q, want \"cuda:N\"", graph.ErrDevice, name)
	}
	opened.Lock()
	defer opened.Unlock()
	if d := opened.devices[n]; d != nil {
		return d, nil
	}
	dev, err := cuda.Open(n)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", graph.ErrDevice, name, err)
	}
	d := &Device{dev: dev, gpu: graph.GPU{Arch: dev.Arch, Units: dev.Units, SharedBytes: dev.SharedPerBlockMax, L2Bytes: dev.L2Bytes}}
	if d.clear, err = dev.NewStream("clear"); err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	d.cache = sync.OnceValues(func() (*kernels.Cache, error) { return d.newCache(kernels.Config{Disk: kernels.OpenDisk()}) })
	go func() { _, _ = nvrtc.Open() }() // it takes a while; who needs it waits for it and gets the error
	opened.devices[n] = d
	return d, nil
}

// newCache returns a Cache that loads on this device.
func (d *Device) newCache(cfg kernels.Config) (*kernels.Cache, error) {
	compiler, err := nvrtc.Open()
	if err != nil {
		return nil, err
	}
	cfg.Compiler, cfg.Target, cfg.Load = compiler, kernels.Target{Arch: d.gpu.Arch}, d.load
	return kernels.NewCache(cfg), nil
}

// String implements graph.Device.
func (d *Device) String() string { return d.dev.String() }

// GPU returns the device's figures.
func (d *Device) GPU() graph.GPU { return d.gpu }

// CUDA returns the device as package cuda has it.
func (d *Device) CUDA() *cuda.Device { return d.dev }

// Kernels returns the cache of loaded modules.
func (d *Device) Kernels() (*kernels.Cache, error) { return d.cache() }

// OnProgress makes f hear of every kernel that gets ready while a Program is loaded; nil ends that.
func (d *Device) OnProgress(f func(program string, done, all int)) {
	if f == nil {
		d.progress.Store(nil)
		return
	}
	d.progress.Store(&f)
}

// Check implements graph.Device.
func (d *Device) Check(op graph.Op) error { return check(op) }

// Rates implements graph.Device.
func (d *Device) Rates() graph.Rates { return rates(d.gpu.Units) }

// Scratch is what graph asks for the bytes of a node's launches.
func (d *Device) Scratch(n *graph.Node) int64 { return scratch(n, d.gpu) }

// Validate is how graph has a Program's launches checked when it is compiled.
func (d *Device) Validate(p *graph.Program) error {
	_, err := Plan{d.gpu}.Describe(p)
	return err
}

// Alloc implements graph.Device.
func (d *Device) Alloc(bytes int64, what string) (graph.Memory, error) {
	m, err := d.dev.Alloc(bytes, what)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", graph.ErrDevice, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	err = m.Fill8(d.clear, 0, bytes, 0)
	if err == nil {
		err = d.clear.Synchronize()
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", graph.ErrDevice, errors.Join(err, m.Free()))
	}
	return &memory{m}, nil
}

// WrapDevice implements graph.DeviceWrapper.
func (d *Device) WrapDevice(m graph.DeviceMemory) graph.Memory {
	return &memory{d.dev.Wrap(cu.DevicePtr(m.Addr), m.Bytes, "memory of the caller")}
}

// memory is a block on the device.
type memory struct{ *cuda.Memory }

// Addr implements graph.Addressed.
func (m *memory) Addr() uint64 { return m.Ptr() }

// module is a loaded kernel.
type module struct {
	m          *cuda.Module
	f          *cuda.Function
	maxThreads int // of a thread block
}

// Unload implements kernels.Module.
func (m *module) Unload() error { return m.m.Close() }

// load puts a kernel on the device, ready to be captured: loaded in full, though the driver loads lazily, and
// allowed all the shared memory there is.
func (d *Device) load(img *kernels.Image) (kernels.Module, error) {
	m, err := d.dev.LoadModule(img.Cubin, img.Name)
	if err != nil {
		return nil, err
	}
	f, err := m.Function(img.Name)
	if err == nil {
		err = f.SetDynamicShared(d.gpu.SharedBytes - img.SharedBytes)
	}
	var a cuda.FunctionAttributes
	if err == nil {
		a, err = f.Attributes()
	}
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return &module{m, f, a.MaxThreads}, nil
}
