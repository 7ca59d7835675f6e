package graph

import (
	"fmt"

	"github.com/moegraph/moegraph/dtype"
)

// Fetcher is an AsyncRunner that copies device memory to the host while the caller goes on.
type Fetcher interface {
	AsyncRunner
	// Fetch issues a copy of n bytes of m from offset on, after what was issued before, and returns at once.
	Fetch(m Memory, offset, n int64) (Copy, error)
}

// Copy is a copy to the host that may be under way. Its methods may be called while another goroutine issues.
type Copy interface {
	// Done says whether the copy is complete, or has failed.
	Done() bool
	// Bytes waits for the copy. The bytes are those of the copy until Release.
	Bytes() ([]byte, error)
	// Release gives the memory back when the copy is complete. A second Release does nothing.
	Release()
}

// Fetched is what a value was when Exec.Fetch was called. It must be released before the Exec is closed.
type Fetched struct {
	v     *Value
	shape []int
	width int
	rows  int  // known when the copy was issued; -1: count tells
	data  Copy // nil: no bytes
	count Copy
}

// Fetch issues a copy of an output, an input or a variable as the replays issued so far leave it, and returns at once:
// replays that are issued later do not change it, and nothing waits. Read waits. On the host device, where a replay is
// done when Replay returns, Fetch copies.
func (e *Exec) Fetch(v *Value) (*Fetched, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	t, err := e.readable(v)
	if err != nil {
		return nil, err
	}
	if v.variable != nil {
		// Other Execs may update it: after those that have, before those that will.
		e.store.replay.RLock()
		defer e.store.replay.RUnlock()
		if e.async != nil {
			if err := e.store.issued.order(e.async, false); err != nil {
				return nil, err
			}
		}
	}
	f := &Fetched{v: v, shape: t.Shape, width: t.Width(), rows: -1}
	switch st := e.counted[e.find(v).rows]; {
	case t.Count == nil || t.Count.Data != nil:
		f.rows = t.Rows()
	case st != nil:
		f.rows = st.rows
	default:
		c := t.Count
		at := c.Off + int64(c.DType.Bytes(elems(c.Shape))) - 4
		if f.count, err = e.fetch(&Tensor{Mem: c.Mem}, at, 4); err != nil {
			return nil, err
		}
	}
	n := int64(t.DType.Bytes(elems(t.Shape)))
	if f.rows >= 0 {
		n = int64(t.DType.Bytes(f.rows * t.Width()))
	}
	if n > 0 {
		if f.data, err = e.fetch(t, t.Off, n); err != nil {
			f.Release()
			return nil, err
		}
	}
	return f, nil
}

func (e *Exec) fetch(t *Tensor, at, n int64) (Copy, error) {
	if f, ok := e.runner.(Fetcher); ok {
		return f.Fetch(t.Mem, at, n)
	}
	if err := e.wait(); err != nil {
		return nil, err
	}
	b := make([]byte, n)
	if t.Data != nil {
		copy(b, t.Data)
		return hostCopy(b), nil
	}
	return hostCopy(b), t.Mem.Read(at, b)
}

// readPiece is what Read copies at once, so that the device copies one piece while the host takes in the one before.
const readPiece = 8 << 20

// readInto copies the first bytes of t to dst.
func (e *Exec) readInto(dst []byte, t *Tensor) error {
	var next Copy
	for at := 0; at < len(dst) || next != nil; at += readPiece {
		c := next
		next = nil
		if at < len(dst) {
			var err error
			if next, err = e.fetch(t, t.Off+int64(at), int64(min(readPiece, len(dst)-at))); err != nil {
				if c != nil {
					c.Release()
				}
				return err
			}
		}
		if c == nil {
			continue
		}
		b, err := c.Bytes()
		copy(dst[at-readPiece:], b)
		c.Release()
		if err != nil {
			if next != nil {
				next.Release()
			}
			return err
		}
	}
	return nil
}

// hostCopy is a copy that is complete.
type hostCopy []byte

func (hostCopy) Done() bool               { return true }
func (h hostCopy) Bytes() ([]byte, error) { return h, nil }
func (hostCopy) Release()                 {}

// Done says whether Read would return without waiting.
func (f *Fetched) Done() bool {
	return (f.data == nil || f.data.Done()) && (f.count == nil || f.count.Done())
}

// Read waits for the copy and puts it into dst, as Exec.Read does; it returns the number of rows.
func (f *Fetched) Read(dst any) (rows int, err error) {
	rows = f.rows
	if f.count != nil {
		b, err := f.count.Bytes()
		if err != nil {
			return 0, err
		}
		rows = (&Tensor{DType: f.v.dt, Shape: f.shape, Count: &Tensor{Data: b}}).Rows()
	}
	var data []byte
	if f.data != nil {
		if data, err = f.data.Bytes(); err != nil {
			return 0, err
		}
	}
	_, err = copyOut(f.v.String(), dst, f.v.dt, f.shape, rows*f.width, data)
	return rows, err
}

// Scalar waits for the copy of a value of one element and returns that.
func (f *Fetched) Scalar() (float64, error) {
	if f.v.Elems() != 1 {
		return 0, fmt.Errorf("Scalar of %q: %w", f.v.Name(), BadShape("value", f.v.Text(), "one element"))
	}
	if f.v.dt == dtype.Int32 {
		var x [1]int32
		_, err := f.Read(x[:])
		return float64(x[0]), err
	}
	var x [1]float64
	_, err := f.Read(x[:])
	return x[0], err
}

// Release gives the copy's memory back. A second Release does nothing.
func (f *Fetched) Release() {
	for _, c := range []Copy{f.data, f.count} {
		if c != nil {
			c.Release()
		}
	}
}
