//go:build gpu

package cuda

// #cgo noescape moe_write
// #cgo nocallback moe_write
// #cgo noescape moe_read
// #cgo nocallback moe_read
// #include "driver.h"
import "C"

import (
	"errors"
	"fmt"
	"strings"
	"unsafe"

	"gorgonia.org/cu"
)

// Memory is a block of device memory. Its content is not cleared.
type Memory struct {
	d    *Device
	ptr  cu.DevicePtr
	size int64
	what string
	own  bool
	gone bool
}

// Alloc returns a block of device memory. what names it, for instance with the parts of an arena, in errors and in
// Holdings. Zero bytes are a block with a null address.
func (d *Device) Alloc(bytes int64, what string) (*Memory, error) {
	if bytes < 0 {
		return nil, fmt.Errorf("alloc %q on %v: got %d bytes, want 0 or more", what, d, bytes)
	}
	m := &Memory{d: d, size: bytes, what: what, own: bytes > 0}
	if bytes == 0 {
		return m, d.usable()
	}
	err := d.do("cuMemAlloc", fmt.Sprintf("%s for %s on %v", bytesText(bytes), what, d), func() (err error) {
		m.ptr, err = cu.MemAlloc(bytes)
		return err
	})
	if errors.Is(err, ErrOutOfMemory) {
		var e *Error
		errors.As(err, &e)
		e.What += d.memoryText()
	}
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	d.live[m] = struct{}{}
	d.mu.Unlock()
	return m, nil
}

// memoryText says, for a failed allocation, what is free and who holds the rest.
func (d *Device) memoryText() string {
	var b strings.Builder
	if free, total, err := d.MemInfo(); err == nil {
		fmt.Fprintf(&b, "; free %s of %s", bytesText(free), bytesText(total))
	}
	held := d.Holdings()
	if len(held) == 0 {
		b.WriteString("; this process holds nothing")
		return b.String()
	}
	const most = 8
	b.WriteString("; this process holds " + strings.Join(held[:min(most, len(held))], ", "))
	if n := len(held) - most; n > 0 {
		fmt.Fprintf(&b, " and %d smaller", n)
	}
	return b.String()
}

// Wrap makes a Memory of someone else's device memory. Free leaves it alone.
func (d *Device) Wrap(ptr cu.DevicePtr, bytes int64, what string) *Memory {
	return &Memory{d: d, ptr: ptr, size: bytes, what: what}
}

// Ptr returns the device address.
func (m *Memory) Ptr() uint64 { return uint64(m.ptr) }

// CU returns the device address as cu has it.
func (m *Memory) CU() cu.DevicePtr { return m.ptr }

// Size returns the number of bytes.
func (m *Memory) Size() int64 { return m.size }

// String is the block's name.
func (m *Memory) String() string { return m.what }

// Device returns where the memory is.
func (m *Memory) Device() *Device { return m.d }

// Write copies src to the block and comes back when it is there. It waits for no other stream.
func (m *Memory) Write(offset int64, src []byte) error {
	if err := m.check("write", offset, int64(len(src))); err != nil || len(src) == 0 {
		return err
	}
	r := C.moe_write(m.d.c(), m.d.copies.c(), m.at(offset), unsafe.Pointer(&src[0]), C.size_t(len(src)))
	if r != 0 {
		return m.fail(r, "cuMemcpyHtoDAsync", "write", offset, int64(len(src)))
	}
	return nil
}

// Read copies from the block to dst. It waits for no other stream.
func (m *Memory) Read(offset int64, dst []byte) error {
	if err := m.check("read", offset, int64(len(dst))); err != nil || len(dst) == 0 {
		return err
	}
	r := C.moe_read(m.d.c(), m.d.copies.c(), unsafe.Pointer(&dst[0]), m.at(offset), C.size_t(len(dst)))
	if r != 0 {
		return m.fail(r, "cuMemcpyDtoHAsync", "read", offset, int64(len(dst)))
	}
	return nil
}

// WriteAsync copies n bytes of src, from its byte at on, to the block, in the order of stream s. src must stay
// as it is until then.
func (m *Memory) WriteAsync(s *Stream, offset int64, src *Pinned, at, n int64) error {
	if err := errors.Join(m.check("write", offset, n), src.check(at, n)); err != nil || n == 0 {
		return err
	}
	s.note("write of ", m.what)
	if r := C.moe_write_async(m.d.c(), s.c(), m.at(offset), C.uintptr_t(src.ptr)+C.uintptr_t(at), C.size_t(n)); r != 0 {
		return m.fail(r, "cuMemcpyHtoDAsync", "write", offset, n)
	}
	return nil
}

// ReadAsync copies n bytes of the block to dst, from its byte at on, in the order of stream s.
func (m *Memory) ReadAsync(s *Stream, offset int64, dst *Pinned, at, n int64) error {
	if err := errors.Join(m.check("read", offset, n), dst.check(at, n)); err != nil || n == 0 {
		return err
	}
	s.note("read of ", m.what)
	if r := C.moe_read_async(m.d.c(), s.c(), C.uintptr_t(dst.ptr)+C.uintptr_t(at), m.at(offset), C.size_t(n)); r != 0 {
		return m.fail(r, "cuMemcpyDtoHAsync", "read", offset, n)
	}
	return nil
}

// Copy copies n bytes of src, from srcOffset on, to the block, in the order of stream s.
func (m *Memory) Copy(s *Stream, offset int64, src *Memory, srcOffset, n int64) error {
	if err := errors.Join(m.check("copy to", offset, n), src.check("copy from", srcOffset, n)); err != nil || n == 0 {
		return err
	}
	s.note("copy to ", m.what)
	if r := C.moe_copy_async(m.d.c(), s.c(), m.at(offset), src.at(srcOffset), C.size_t(n)); r != 0 {
		return m.fail(r, "cuMemcpyDtoDAsync", "copy to", offset, n)
	}
	return nil
}

// Fill8 sets n bytes to a value, in the order of stream s.
func (m *Memory) Fill8(s *Stream, offset, n int64, value byte) error {
	if err := m.check("fill", offset, n); err != nil || n == 0 {
		return err
	}
	s.note("fill of ", m.what)
	if r := C.moe_fill8_async(m.d.c(), s.c(), m.at(offset), C.uchar(value), C.size_t(n)); r != 0 {
		return m.fail(r, "cuMemsetD8Async", "fill", offset, n)
	}
	return nil
}

// Fill32 sets n words of 4 bytes to a value, in the order of stream s. The offset is in bytes, a multiple of 4.
func (m *Memory) Fill32(s *Stream, offset, n int64, value uint32) error {
	if err := m.check("fill", offset, 4*n); err != nil || n == 0 {
		return err
	}
	s.note("fill of ", m.what)
	if r := C.moe_fill32_async(m.d.c(), s.c(), m.at(offset), C.uint(value), C.size_t(n)); r != 0 {
		return m.fail(r, "cuMemsetD32Async", "fill", offset, 4*n)
	}
	return nil
}

// Free gives the block back. It waits until the device does not use it any more. A second Free does nothing.
func (m *Memory) Free() error {
	if m.gone {
		return nil
	}
	m.gone = true
	if !m.own {
		return nil
	}
	m.d.mu.Lock()
	delete(m.d.live, m)
	m.d.mu.Unlock()
	return m.d.do("cuMemFree", fmt.Sprintf("%s of %s", bytesText(m.size), m.what), func() error { return cu.MemFree(m.ptr) })
}

func (m *Memory) at(offset int64) C.CUdeviceptr { return C.CUdeviceptr(m.ptr) + C.CUdeviceptr(offset) }

// check says whether n bytes at offset may be used.
func (m *Memory) check(verb string, offset, n int64) error {
	if m.gone {
		return fmt.Errorf("%s %s: %w", verb, m.what, ErrClosed)
	}
	if offset < 0 || n < 0 || offset > m.size-n {
		return fmt.Errorf("%s %s: got bytes [%d, %d), want them within [0, %d)", verb, m.what, offset, offset+n, m.size)
	}
	return m.d.usable()
}

func (m *Memory) fail(r C.int, call, verb string, offset, n int64) error {
	return m.d.fail(r, call, fmt.Sprintf("%s %s, %d bytes at %d", verb, m.what, n, offset))
}
