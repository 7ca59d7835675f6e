//go:build gpu

package cudadev

import (
	"errors"
	"math/bits"

	"github.com/moegraph/moegraph/internal/cuda"
)

// staging is pinned memory through which data reaches the device while the caller goes on. Blocks are powers of
// two; each size has a ring of them, and one is used anew when its copy is done.
type staging struct {
	d     *cuda.Device
	rings [bits.UintSize]ring
}

type ring struct {
	blocks []*block
	next   int
}

type block struct {
	pinned *cuda.Pinned
	done   *cuda.Event
}

const (
	minBlock  = 4 << 10
	maxBlock  = 8 << 20
	ringSlots = 4
)

// put copies src, in pieces, in the order of stream s.
func (g *staging) put(s *cuda.Stream, m *cuda.Memory, offset int64, src []byte) error {
	for len(src) > 0 {
		n := min(len(src), maxBlock)
		b, err := g.block(n)
		if err != nil {
			return err
		}
		copy(b.pinned.Bytes(), src[:n])
		if err := m.WriteAsync(s, offset, b.pinned, 0, int64(n)); err != nil {
			return err
		}
		if err := s.Record(b.done); err != nil {
			return err
		}
		src, offset = src[n:], offset+int64(n)
	}
	return nil
}

// block returns a block of at least n bytes that no copy uses.
func (g *staging) block(n int) (*block, error) {
	class := bits.Len(uint(max(n, minBlock) - 1))
	r := &g.rings[class]
	if len(r.blocks) < ringSlots {
		p, err := g.d.AllocPinned(1<<class, "staging")
		if err != nil {
			return nil, err
		}
		e, err := g.d.NewEvent(false)
		if err != nil {
			return nil, errors.Join(err, p.Free())
		}
		b := &block{p, e}
		r.blocks = append(r.blocks, b)
		return b, nil
	}
	b := r.blocks[r.next]
	r.next = (r.next + 1) % ringSlots
	return b, b.done.Synchronize()
}

// close frees the blocks, whose copies must be done.
func (g *staging) close() error {
	var errs error
	for i := range g.rings {
		for _, b := range g.rings[i].blocks {
			errs = errors.Join(errs, b.done.Close(), b.pinned.Free())
		}
		g.rings[i] = ring{}
	}
	return errs
}
