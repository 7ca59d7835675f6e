//go:build unix && !aix && !solaris

package safetensors

import (
	"os"
	"syscall"
)

// mapFile maps size > 0 bytes for reading. Shared, so that no page is ever copied.
func mapFile(f *os.File, size int) (mapping, error) {
	data, err := syscall.Mmap(int(f.Fd()), 0, size, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return mapping{}, err
	}
	return mapping{data, func() error { return syscall.Munmap(data) }}, nil
}
