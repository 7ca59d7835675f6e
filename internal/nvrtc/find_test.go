package nvrtc

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestCandidates(t *testing.T) {
	home := t.TempDir()
	lib := filepath.Join(home, "lib64")
	inc := filepath.Join(home, "include")
	for _, f := range []string{
		filepath.Join(lib, "libnvrtc.so.12.9.1"), filepath.Join(lib, "libnvrtc.so.13"), filepath.Join(lib, "libnvrtc.so"),
		filepath.Join(lib, "libnvrtc.so.9"), filepath.Join(lib, "libnvrtc.alt.so.13"),
		filepath.Join(lib, "libnvrtc-builtins.so.13.0"), filepath.Join(inc, "cuda_bf16.h"),
	} {
		if err := os.MkdirAll(filepath.Dir(f), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(f, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("CUDA_HOME", home)
	t.Setenv("CUDA_PATH", "")
	want := []string{"libnvrtc.so.13", "libnvrtc.so.12.9.1", "libnvrtc.so.9", "libnvrtc.so"}
	for i := range want {
		want[i] = filepath.Join(lib, want[i])
	}
	if got := candidates(""); len(got) < len(want) || !slices.Equal(got[:len(want)], want) {
		t.Errorf("got %v, want first %v", got, want)
	}
	if got := candidates(lib); !slices.Equal(got, want) {
		t.Errorf("a folder: got %v, want %v", got, want)
	}
	if got := candidates("/x/libnvrtc.so.13"); !slices.Equal(got, []string{"/x/libnvrtc.so.13"}) {
		t.Errorf("a file: got %v, want it alone", got)
	}
	if got := builtins(want[0]); !slices.Equal(got, []string{filepath.Join(lib, "libnvrtc-builtins.so.13.0")}) {
		t.Errorf("builtins: got %v", got)
	}
	if got := include(want[0]); got == "" {
		t.Error("the headers beside the library were not found")
	}
	if got := include("libnvrtc.so.13"); got != "" {
		t.Errorf("headers of a bare name: got %q", got)
	}
}
