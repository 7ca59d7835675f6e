//go:build gpu

package cuda

// #include "driver.h"
import "C"

import (
	"fmt"
	"unsafe"
)

// Pinned is host memory that the device reaches by itself, so that copies run beside the program. It is C memory:
// the garbage collector neither moves nor frees it.
type Pinned struct {
	d    *Device
	ptr  uintptr
	size int64
	what string
}

// AllocPinned returns pinned host memory of unspecified content.
func (d *Device) AllocPinned(bytes int64, what string) (*Pinned, error) {
	if err := d.usable(); err != nil {
		return nil, err
	}
	if bytes < 0 {
		return nil, fmt.Errorf("alloc pinned %q: got %d bytes, want 0 or more", what, bytes)
	}
	var p C.uintptr_t
	if r := C.moe_pinned_alloc(d.c(), &p, C.size_t(max(bytes, 1))); r != 0 {
		return nil, d.fail(r, "cuMemHostAlloc", fmt.Sprintf("%s of pinned host memory for %s", bytesText(bytes), what))
	}
	return &Pinned{d: d, ptr: uintptr(p), size: bytes, what: what}, nil
}

// Bytes returns the memory. It must not be used after Free.
func (p *Pinned) Bytes() []byte {
	if p.ptr == 0 {
		return nil
	}
	// C memory at a fixed address: reading the integer as a pointer keeps vet content.
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&p.ptr)), p.size)
}

// Size returns the number of bytes.
func (p *Pinned) Size() int64 { return p.size }

// Free gives the memory back. No copy may be under way. A second Free does nothing.
func (p *Pinned) Free() error {
	if p.ptr == 0 {
		return nil
	}
	q := p.ptr
	p.ptr = 0
	if err := p.d.usable(); err != nil {
		return err
	}
	if r := C.moe_pinned_free(p.d.c(), C.uintptr_t(q)); r != 0 {
		return p.d.fail(r, "cuMemFreeHost", p.what)
	}
	return nil
}

// check says whether n bytes from at on may be used.
func (p *Pinned) check(at, n int64) error {
	if p.ptr == 0 {
		return fmt.Errorf("pinned %s: %w", p.what, ErrClosed)
	}
	if at < 0 || n < 0 || at > p.size-n {
		return fmt.Errorf("pinned %s: got bytes [%d, %d), want them within [0, %d)", p.what, at, at+n, p.size)
	}
	return nil
}
