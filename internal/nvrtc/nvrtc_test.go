//go:build gpu

package nvrtc

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/kernels"
)

func compiler(t *testing.T) *Compiler {
	t.Helper()
	c, err := Open()
	if errors.Is(err, ErrNotFound) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s of %s, headers of %q, architectures %v", c.Version(), c.Path(), c.include, c.Archs())
	return c
}

const source = `extern "C" __global__ void scale(float* y, const float* x, int n) {
	__shared__ float s[Params::Width];
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	s[threadIdx.x] = i < n ? x[i] : 0;
	__syncthreads();
	if (i < n) y[i] = s[threadIdx.x ^ 1];
}`

type params struct{ Width int }

// unloaded stands for modules where there is no device.
type unloaded struct{}

func (unloaded) Unload() error { return nil }

func cache(c kernels.Compiler, arch int, disk *kernels.Disk) *kernels.Cache {
	return kernels.NewCache(kernels.Config{Compiler: c, Target: kernels.Target{Arch: arch}, Disk: disk,
		Load: func(*kernels.Image) (kernels.Module, error) { return unloaded{}, nil }})
}

func TestCompile(t *testing.T) {
	c := compiler(t)
	k := graph.Kernel{Name: "scale", Source: source, Inline: true, Params: params{256}}
	for _, arch := range []int{80, 90, 100, 120} {
		disk := kernels.DiskAt(t.TempDir())
		for round, want := range []kernels.Stats{{Compiled: 1}, {FromDisk: 1}} {
			m := cache(c, arch, disk)
			s, err := m.Acquire([]graph.Kernel{k}, nil)
			if err != nil {
				t.Fatal(err)
			}
			img := s.Images()[k]
			if !strings.HasPrefix(string(img.Cubin), "\x7fELF") || img.SharedBytes != 1024 || img.Registers == 0 || img.SpillStores != 0 {
				t.Errorf("sm_%d: %d bytes, %s", arch, len(img.Cubin), img.Usage)
			}
			if got := m.Stats(); got.Compiled != want.Compiled || got.FromDisk != want.FromDisk {
				t.Errorf("sm_%d, round %d: got %+v, want %+v", arch, round, got, want)
			}
			s.Close()
		}
	}
}

func TestCompile_Error(t *testing.T) {
	c := compiler(t)
	for text, want := range map[string]string{
		strings.Replace(source, "s[threadIdx.x ^ 1]", "missing", 1): `identifier "missing" is undefined`,
		strings.Replace(source, "scale", "other", 1):                `defines no such extern "C" __global__ function`,
	} {
		_, err := cache(c, 90, nil).Acquire([]graph.Kernel{{Name: "scale", Source: text, Inline: true, Params: params{256}}}, nil)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), `kernel "scale" for sm_90a`) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// TestCompile_Parallel: several goroutines compile at once.
func TestCompile_Parallel(t *testing.T) {
	c := compiler(t)
	m := cache(c, 90, nil)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			s, err := m.Acquire([]graph.Kernel{
				{Name: "scale", Source: source, Inline: true, Params: params{32 << (i % 4)}},
				{Name: "scale", Source: source, Inline: true, Params: params{1024}},
			}, nil)
			if err != nil {
				t.Error(err)
				return
			}
			s.Close()
		})
	}
	wg.Wait()
	if got := m.Stats(); got.Compiled != 5 {
		t.Errorf("got %+v, want 5 compiled", got)
	}
}

func TestOpen_NotFound(t *testing.T) {
	dir := t.TempDir()
	_, err := open([]string{filepath.Join(dir, "libnvrtc.so")})
	if !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "pip install") || !strings.Contains(err.Error(), dir) {
		t.Errorf("got %v, want what was tried and what to do", err)
	}
	fake := filepath.Join(dir, "libnvrtc.so.13")
	if err := os.WriteFile(fake, []byte("not a library"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := open(candidates(dir)); !errors.Is(err, ErrNotFound) {
		t.Errorf("got %v for a file that is no library", err)
	}
}

// TestCompile_SamePTX compiles two kernels whose constants differ but whose PTX does not: each has its own figures.
func TestCompile_SamePTX(t *testing.T) {
	c := compiler(t)
	type unused struct{ Width, Unused int }
	m := cache(c, 90, nil)
	for i := range 3 {
		s, err := m.Acquire([]graph.Kernel{{Name: "scale", Source: source, Inline: true, Params: unused{256, i}}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, img := range s.Images() {
			if img.Registers == 0 {
				t.Errorf("round %d: no registers: the assembler's log is missing", i)
			}
		}
		s.Close()
	}
}
