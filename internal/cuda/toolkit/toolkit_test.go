package toolkit

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fake makes a cuda.h of a version and returns its folder.
func fake(t *testing.T, dir, version string) string {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	text := "/* CUDA */\n#define CUDA_VERSION " + version + "\n"
	if err := os.WriteFile(filepath.Join(dir, "cuda.h"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestFind(t *testing.T) {
	for _, layout := range []string{"include", "targets/x86_64-linux/include", "nvidia/cu13/include", "nvidia/cuda_runtime/include"} {
		root := t.TempDir()
		t.Setenv("CUDA_HOME", root)
		want := fake(t, filepath.Join(root, layout), "12040")
		got, err := Find()
		if err != nil || got.Include != want || got.Version != 12040 {
			t.Errorf("%s: got %+v, %v, want %s", layout, got, err, want)
		}
	}
}

// Folders named .cuda are found from below.
func TestFind_Above(t *testing.T) {
	t.Setenv("CUDA_HOME", "")
	t.Setenv("CUDA_PATH", "")
	t.Setenv("PATH", "")
	if _, err := os.Stat("/usr/local/cuda/include/cuda.h"); err == nil {
		t.Skip("this machine has a toolkit")
	}
	root := t.TempDir()
	t.Chdir(root)
	if _, err := Find(); err == nil || !strings.Contains(err.Error(), "no CUDA headers found: install a CUDA toolkit") {
		t.Errorf("nothing there: got error %v", err)
	}
	fake(t, filepath.Join(root, ".cuda", "nvidia", "cu13", "include"), "13000")
	below := filepath.Join(root, "a", "b")
	if err := os.MkdirAll(below, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Chdir(below)
	if got, err := Find(); err != nil || got.Version != 13000 {
		t.Errorf("got %+v, %v, want version 13000", got, err)
	}
}

func TestFind_Refuses(t *testing.T) {
	root := t.TempDir()
	t.Setenv("CUDA_HOME", root)
	if _, err := Find(); err == nil || !strings.Contains(err.Error(), "CUDA_HOME="+root+": no usable CUDA headers") {
		t.Errorf("empty CUDA_HOME: got error %v", err)
	}
	fake(t, filepath.Join(root, "include"), "11080")
	if _, err := Find(); err == nil || !strings.Contains(err.Error(), "got CUDA_VERSION 11080, want 12000 to below 14000") {
		t.Errorf("CUDA 11: got error %v", err)
	}
}

func TestCFlags(t *testing.T) {
	cache := filepath.Join(t.TempDir(), "with space")
	t.Setenv("XDG_CACHE_HOME", cache)
	t.Setenv("HOME", cache) // where the cache folder is on other systems
	t.Setenv("LocalAppData", cache)
	include := fake(t, t.TempDir(), "13000")
	k, err := Open(include)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		flags, err := k.CFlags()
		if err != nil {
			t.Fatal(err)
		}
		first, rest, ok := strings.Cut(strings.TrimPrefix(flags, `-O2 -g "-I`), `" -I`)
		if !ok || rest != include || !strings.HasPrefix(first, cache) {
			t.Fatalf("got %s", flags)
		}
		got, err := os.ReadFile(filepath.Join(first, "cuda.h"))
		if err != nil || !strings.Contains(string(got), "#include_next <cuda.h>") {
			t.Fatalf("got %q, %v", got, err)
		}
	}
}
