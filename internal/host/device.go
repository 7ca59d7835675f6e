package host

import (
	"fmt"
	"runtime"

	"github.com/moegraph/moegraph/graph"
)

func init() {
	graph.RegisterDevice("host", func(name string) (graph.Device, error) {
		if name != "host" {
			return nil, fmt.Errorf("%w: got %q, want \"host\" (there is one host device)", graph.ErrDevice, name)
		}
		return Device{}, nil
	})
}

// Device is the host device. The zero value is ready; all are the same.
type Device struct{}

// String implements graph.Device.
func (Device) String() string { return "host" }

// Check implements graph.Device.
func (Device) Check(op graph.Op) error {
	if _, ok := op.(graph.HostOp); !ok {
		return graph.Unsupported("device", "host", "a device that has code for operator %s", op.Kind())
	}
	return nil
}

// Alloc implements graph.Device.
func (d Device) Alloc(bytes int64, what string) (m graph.Memory, err error) {
	if err := d.Fits(bytes); err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return newMemory(bytes), nil
}

// maxBytes is where no size of the machine's memory is known: more than any has, and less than Go panics at.
const maxBytes = 1 << 44

// Fits implements graph.Sizer: Go ends a process that asks for more memory than the machine has.
func (Device) Fits(bytes int64) error {
	if most := machineBytes(); bytes < 0 || bytes > most {
		return fmt.Errorf("%w: host: got %d bytes, want at most the machine's %d", graph.ErrDevice, bytes, most)
	}
	return nil
}

// Rates implements graph.Device. The figures are of the order of a server core with gonum's matrix product:
// the planner needs their ratios.
func (Device) Rates() graph.Rates {
	n := runtime.GOMAXPROCS(0)
	return graph.Rates{Flops: 12e9 * float64(n), Bytes: 8e9 * float64(n), LaunchUS: 1, WaitUS: 2, Units: n, Grain: 1 << 18}
}

// Wrap implements graph.Wrapper.
func (Device) Wrap(b []byte) graph.Memory { return memory{b} }

// memory is Go memory.
type memory struct{ b []byte }

const align = 256

// newMemory returns zeroed bytes that begin at a multiple of align.
func newMemory(n int64) memory {
	if n == 0 {
		return memory{[]byte{}}
	}
	b := make([]byte, n+align)
	skip := (align - addr(b)%align) % align
	return memory{b[skip : int64(skip)+n : int64(skip)+n]}
}

func (m memory) Size() int64   { return int64(len(m.b)) }
func (m memory) Bytes() []byte { return m.b }
func (m memory) Free() error   { return nil }

func (m memory) Read(off int64, dst []byte) error {
	copy(dst, m.b[off:])
	return nil
}

func (m memory) Write(off int64, src []byte) error {
	copy(m.b[off:], src)
	return nil
}
