//go:build gpu

package cudadev

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/cuda"
	"github.com/moegraph/moegraph/internal/nvrtc"
	"github.com/moegraph/moegraph/kernels"
)

// About returns the device and the compiler in words.
func (d *Device) About() string {
	text := d.dev.Name
	if v, err := cuda.DriverVersion(); err == nil {
		text += ", driver for CUDA " + version(v)
	}
	if c, err := nvrtc.Open(); err == nil {
		text += ", " + c.Version()
	}
	return text
}

// version writes 13000 as 13.0.
func version(v int) string { return fmt.Sprintf("%d.%d", v/1000, v%1000/10) }

// CompileTimes compiles the Program's kernels with nothing kept, then takes them from the disk, and returns how many
// there are and how long each took.
func (d *Device) CompileTimes(p *graph.Program) (n int, cold, warm time.Duration, err error) {
	steps, err := Plan{d.gpu}.Describe(p)
	if err != nil {
		return 0, 0, 0, err
	}
	var ks []graph.Kernel
	seen := map[graph.Kernel]bool{}
	for _, s := range steps {
		for _, l := range s.Launches {
			if !seen[l.Kernel] {
				seen[l.Kernel] = true
				ks = append(ks, l.Kernel)
			}
		}
	}
	dir, err := os.MkdirTemp("", "moegraph-bench-")
	if err != nil {
		return 0, 0, 0, err
	}
	defer os.RemoveAll(dir)
	var times [2]time.Duration
	for i := range times {
		cache, err := d.newCache(kernels.Config{Disk: kernels.DiskAt(dir)})
		if err != nil {
			return 0, 0, 0, err
		}
		start := time.Now()
		set, err := cache.Acquire(ks, nil)
		times[i] = time.Since(start)
		if err != nil {
			return 0, 0, 0, err
		}
		if err := errors.Join(set.Close(), cache.Purge()); err != nil {
			return 0, 0, 0, err
		}
	}
	return len(ks), times[0], times[1], nil
}

// Purge unloads the kernels that nothing uses, so that the next program starts as after a new start of the process.
func (d *Device) Purge() error {
	cache, err := d.cache()
	if err != nil {
		return err
	}
	return cache.Purge()
}
