//go:build gpu

package cudadev

import (
	"errors"
	"fmt"
	"math/bits"
	"sync"

	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/cuda"
)

// fetching is pinned memory that results reach the host through. Blocks are powers of two, above 8 MiB multiples of
// that, and are used anew when they are released.
type fetching struct {
	mu   sync.Mutex
	free map[int64][]*fetchBlock
	all  []*fetchBlock
	shut bool // with the Runner: the blocks are gone
}

// fetchBlock is a block with the copy that it was last used for.
type fetchBlock struct {
	pinned *cuda.Pinned
	done   *cuda.Event
}

// fetched is one copy. It implements graph.Copy.
type fetched struct {
	r  *Runner
	n  int64
	mu sync.Mutex
	b  *fetchBlock // nil: released
	// over says that the event was waited for, with this result.
	over bool
	err  error
}

// Fetch implements graph.Fetcher.
func (r *Runner) Fetch(m graph.Memory, offset, n int64) (graph.Copy, error) {
	b, err := r.fetching.block(r.d.dev, n)
	if err != nil {
		return nil, err
	}
	if err = m.(*memory).ReadAsync(r.stream, offset, b.pinned, 0, n); err == nil {
		err = r.stream.Record(b.done)
	}
	if err != nil {
		r.fetching.put(b)
		return nil, err
	}
	return &fetched{r: r, n: n, b: b}, nil
}

func fetchClass(n int64) int64 {
	if n > maxBlock {
		return (n + maxBlock - 1) / maxBlock * maxBlock
	}
	return 1 << bits.Len64(uint64(max(n, minBlock)-1))
}

// block returns a block of at least n bytes that no copy uses.
func (g *fetching) block(d *cuda.Device, n int64) (*fetchBlock, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	class := fetchClass(n)
	if free := g.free[class]; len(free) > 0 {
		b := free[len(free)-1]
		g.free[class] = free[:len(free)-1]
		return b, nil
	}
	p, err := d.AllocPinned(class, "results")
	if err != nil {
		return nil, err
	}
	e, err := d.NewEvent(false)
	if err != nil {
		return nil, errors.Join(err, p.Free())
	}
	b := &fetchBlock{p, e}
	g.all = append(g.all, b)
	return b, nil
}

// put makes a block free, whose copy is over.
func (g *fetching) put(b *fetchBlock) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut {
		return
	}
	if g.free == nil {
		g.free = map[int64][]*fetchBlock{}
	}
	class := b.pinned.Size()
	g.free[class] = append(g.free[class], b)
}

// close frees all blocks, whose copies must be over.
func (g *fetching) close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	var errs error
	for _, b := range g.all {
		errs = errors.Join(errs, b.done.Close(), b.pinned.Free())
	}
	g.all, g.free, g.shut = nil, nil, true
	return errs
}

// open says whether the blocks are there.
func (g *fetching) open() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.shut
}

// wait waits for the copy; the caller holds mu.
func (f *fetched) wait() error {
	if f.b == nil {
		return fmt.Errorf("%w: a copy that was released", graph.ErrUsage)
	}
	if !f.r.fetching.open() {
		return fmt.Errorf("%w: a copy of a closed Exec", graph.ErrUsage)
	}
	if !f.over {
		if err := f.b.done.Synchronize(); err != nil {
			f.err = fmt.Errorf("%w: program %q: %w", graph.ErrDevice, f.r.name, err)
		}
		f.over = true
	}
	return f.err
}

// Done implements graph.Copy.
func (f *fetched) Done() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.b == nil || f.over || !f.r.fetching.open() {
		return true
	}
	done, err := f.b.done.Query()
	return done || err != nil
}

// Bytes implements graph.Copy.
func (f *fetched) Bytes() ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.wait(); err != nil {
		return nil, err
	}
	return f.b.pinned.Bytes()[:f.n:f.n], nil
}

// Release implements graph.Copy. It waits for the copy: its memory is used anew.
func (f *fetched) Release() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.b == nil {
		return
	}
	if f.wait() == nil {
		f.r.fetching.put(f.b)
	}
	f.b = nil
}
