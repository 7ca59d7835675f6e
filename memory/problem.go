package memory

import (
	"errors"
	"fmt"
	"math"
)

// Kinds of errors, for errors.Is.
var (
	// ErrInvalid marks a problem that cannot be stated: negative sizes, bad alignments, cycles, overflow.
	ErrInvalid = errors.New("invalid input")
	// ErrCapacity marks a capacity for which no plan was found; see CapacityError.
	ErrCapacity = errors.New("capacity too small")
	// ErrUnsafe marks a plan that Verify rejects.
	ErrUnsafe = errors.New("unsafe plan")
)

// Buffer is one block of bytes to place in the arena.
type Buffer struct {
	Name   string
	Size   int64 // bytes; 0 is allowed, such a buffer shares bytes with nobody
	Align  int64 // bytes, a power of two; 0 means 1
	Fixed  bool  // placed by the caller at Offset
	Offset int64 // bytes; read only with Fixed
}

// Span is the first and the last position (inclusive) at which a buffer is touched in a reference
// schedule. Spans steer the order in which buffers are tried; they never decide what is safe.
type Span struct {
	First, Last int64
}

// Problem asks for offsets such that conflicting buffers share no bytes.
type Problem struct {
	Buffers   []Buffer
	Conflicts *Conflicts // over len(Buffers) buffers; nil: nothing conflicts
	Spans     []Span     // optional, one a buffer; default: those of Order.Conflicts or Intervals
	Capacity  int64      // bytes the arena may have; 0: as few as can be found
}

// Options bound the work of Solve. The zero value is the default. Budgets count search nodes, never
// time: the same problem has the same plan on every run and every machine.
type Options struct {
	Nodes   int // nodes one order may visit at one capacity; 0: by problem size; below 0: greedy only
	Workers int // goroutines; 0: GOMAXPROCS. Any number gives the same plan
}

// Plan is an answer of Solve.
type Plan struct {
	Offsets    []int64 // bytes, one a buffer
	Peak       int64   // bytes: the largest offset + size
	LowerBound int64   // bytes: no plan has a smaller peak
	Proven     bool    // Peak == LowerBound: the plan is optimal
	Pinned     []int   // buffers that conflict pairwise and together need the most bytes, ascending
	Method     string  // what found the plan, for people
}

// CapacityError says why a capacity was not met. It matches ErrCapacity.
type CapacityError struct {
	Capacity   int64 // bytes asked for
	LowerBound int64 // bytes: no plan is smaller; above Capacity the capacity is impossible
	Best       *Plan // the smallest plan found
}

// Error implements error.
func (e *CapacityError) Error() string {
	verdict := "none found; allow more nodes or bytes"
	if e.LowerBound > e.Capacity {
		verdict = "impossible"
	}
	return fmt.Sprintf("memory: capacity: got %d bytes, want at least %d (lower bound), best plan found has %d (%s)",
		e.Capacity, e.LowerBound, e.Best.Peak, verdict)
}

// Is reports a match with ErrCapacity.
func (e *CapacityError) Is(target error) bool { return target == ErrCapacity }

// invalid makes an error of kind ErrInvalid.
func invalid(format string, args ...any) error {
	return fmt.Errorf("memory: %s: %w", fmt.Sprintf(format, args...), ErrInvalid)
}

// label names buffer i in errors.
func label(buffers []Buffer, i int) string {
	return fmt.Sprintf("buffer %d %q", i, buffers[i].Name)
}

// align returns b's alignment, at least 1.
func (b Buffer) align() int64 { return max(b.Align, 1) }

// roundUp returns the smallest multiple of the power of two a that is at least x.
func roundUp(x, a int64) int64 { return (x + a - 1) &^ (a - 1) }

// validate checks everything that Solve relies on. After it, no sum of sizes, paddings and fixed
// offsets that any push-down plan can reach overflows.
func (p *Problem) validate() error {
	n := len(p.Buffers)
	if p.Conflicts != nil {
		if p.Conflicts.err != nil {
			return p.Conflicts.err
		}
		if p.Conflicts.Len() != n {
			return invalid("conflicts: got %d buffers, want %d", p.Conflicts.Len(), n)
		}
	}
	if p.Spans != nil && len(p.Spans) != n {
		return invalid("spans: got %d, want %d", len(p.Spans), n)
	}
	if p.Capacity < 0 {
		return invalid("capacity: got %d, want 0 or more", p.Capacity)
	}
	var reach int64 // the highest byte a plan can need: every buffer above every fixed one
	for i, b := range p.Buffers {
		if err := b.validate(label(p.Buffers, i)); err != nil {
			return err
		}
		if b.Fixed {
			reach = max(reach, b.Offset+b.Size)
		}
	}
	for i, b := range p.Buffers {
		if b.Fixed {
			continue
		}
		pad := b.align() - 1
		if b.Size > math.MaxInt64-pad || reach > math.MaxInt64-pad-b.Size {
			return invalid("%s: sum of sizes exceeds int64", label(p.Buffers, i))
		}
		reach += b.Size + pad
	}
	for i, s := range p.Spans {
		if s.Last < s.First {
			return invalid("%s: span: got [%d, %d], want first <= last", label(p.Buffers, i), s.First, s.Last)
		}
	}
	return p.validateFixed()
}

func (b Buffer) validate(name string) error {
	switch {
	case b.Size < 0:
		return invalid("%s: size: got %d, want 0 or more", name, b.Size)
	case b.Align < 0 || b.Align&(b.Align-1) != 0:
		return invalid("%s: alignment: got %d, want a power of two", name, b.Align)
	case !b.Fixed:
		return nil
	case b.Offset < 0 || b.Offset%b.align() != 0:
		return invalid("%s: fixed offset: got %d, want a multiple of %d, 0 or more", name, b.Offset, b.align())
	case b.Offset > math.MaxInt64-b.Size:
		return invalid("%s: fixed offset: %d + %d exceeds int64", name, b.Offset, b.Size)
	}
	return nil
}

// validateFixed refuses fixed buffers that conflict and share bytes.
func (p *Problem) validateFixed() error {
	if p.Conflicts == nil {
		return nil
	}
	var fixed []int
	for i, b := range p.Buffers {
		if b.Fixed && b.Size > 0 {
			fixed = append(fixed, i)
		}
	}
	for k, i := range fixed {
		a := p.Buffers[i]
		for _, j := range fixed[:k] {
			b := p.Buffers[j]
			if a.Offset < b.Offset+b.Size && b.Offset < a.Offset+a.Size && p.Conflicts.Has(i, j) {
				return invalid("%s: fixed offset: [%d, %d) overlaps [%d, %d) of %s, with which it conflicts",
					label(p.Buffers, i), a.Offset, a.Offset+a.Size, b.Offset, b.Offset+b.Size, label(p.Buffers, j))
			}
		}
	}
	return nil
}
