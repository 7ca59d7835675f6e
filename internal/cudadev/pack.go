package cudadev

import (
	"fmt"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/cuda"
)

// pack puts a launch's arguments into buf. addr gives the address of a tensor's first byte.
func pack(buf *cuda.ArgBuffer, args []any, addr func(*graph.Tensor) (uint64, error)) error {
	buf.Reset()
	pointer := func(t *graph.Tensor, offset int64) error {
		if t == nil {
			buf.Ptr(0)
			return nil
		}
		at, err := addr(t)
		buf.Ptr(at + uint64(offset))
		return err
	}
	for i, a := range args {
		var err error
		switch x := a.(type) {
		case graph.Pointer:
			err = pointer(x.T, x.Offset)
		case graph.Count:
			err = pointer(counter(x.T))
		default:
			err = buf.Add(x)
		}
		if err != nil {
			return fmt.Errorf("argument %d: %w", i, err)
		}
	}
	return nil
}

// counter returns where the int32 is that counts t's rows in use: the last element of its counter; nil for all rows.
func counter(t *graph.Tensor) (*graph.Tensor, int64) {
	if t == nil || t.Count == nil {
		return nil, 0
	}
	n := 1
	for _, d := range t.Count.Shape {
		n *= d
	}
	return t.Count, int64(dtype.Int32.Bytes(n - 1))
}

// errNoMemory is an input's lack of data: Exec.Replay asks for it before.
type errNoMemory struct{ t *graph.Tensor }

func (e errNoMemory) Error() string {
	return fmt.Sprintf("a tensor %s %v has no memory on the device yet", e.t.DType, e.t.Shape)
}

// address returns the address of a tensor's first byte.
func address(t *graph.Tensor) (uint64, error) {
	m, ok := t.Mem.(graph.Addressed)
	if !ok {
		return 0, errNoMemory{t}
	}
	return m.Addr() + uint64(t.Off), nil
}
