//go:build !unix || aix || solaris

package safetensors

import (
	"io"
	"os"
)

// mapFile reads the file, where there is no mapping: one copy, for as long as a tensor uses it.
func mapFile(f *os.File, size int) (mapping, error) {
	data := make([]byte, size)
	if _, err := io.ReadFull(f, data); err != nil {
		return mapping{}, err
	}
	return mapping{data, func() error { return nil }}, nil
}
