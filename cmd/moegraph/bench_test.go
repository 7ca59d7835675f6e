package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/moegraph/moegraph/internal/shapes"
)

// TestBench measures a layer on the host, small enough for a test.
func TestBench(t *testing.T) {
	old := measured
	defer func() { measured = old }()
	measured = []shapes.Shape{{Name: "tiny", Experts: 4, TopK: 2, Hidden: 64, Intermediate: 64, Tokens: 32}}
	status, stdout, stderr := call("bench", "-rounds", "1", "-alignment", "8")
	if status != exitOK || stderr != "" {
		t.Fatalf("status %d, %s", status, stderr)
	}
	for _, want := range []string{"tiny: experts 4, top 2", "grouped_gemm_glu", "wgrad", " ms, ", "layer forward+backward", "memory: workspaces"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
	pages := t.TempDir()
	status, stdout, stderr = call("bench", "-rounds", "2", "-alignment", "8", "-plans", "-pages", pages)
	if status != exitOK || stderr != "" {
		t.Fatalf("status %d, %s", status, stderr)
	}
	for _, want := range []string{"one stream:", "chosen by cost model:", "chosen by times:", "forced, at most 2:", "1.0000 of one stream", "simulated"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
	page, err := os.ReadFile(filepath.Join(pages, "tiny.html"))
	if err != nil || !strings.Contains(string(page), "<h2>measured: ") {
		t.Errorf("no measured times in the page, %v", err)
	}
	for _, args := range [][]string{{"-shape", "none"}, {"-rounds", "0"}, {"-tile", "128"}, {"-tile", "128x128x1"}, {"-device", "none"}} {
		if status, _, stderr := call(append([]string{"bench"}, args...)...); status != exitFailed || !strings.Contains(stderr, args[0]) {
			t.Errorf("%v: status %d, %s", args, status, stderr)
		}
	}
}

// TestRandomData: the routing is that of k different experts a token, and pieces differ.
func TestRandomData(t *testing.T) {
	d := newRandomData(shapes.Shape{Name: "s", Experts: 8, TopK: 3, Hidden: 64, Intermediate: 64, Tokens: 100})
	offsets, counts := d.groups(16)
	total := int32(0)
	for e, n := range counts {
		total += n
		if n > 100 || offsets[e]%16 != 0 {
			t.Errorf("expert %d: count %d, offset %d", e, n, offsets[e])
		}
	}
	if total != 300 {
		t.Errorf("got %d slots, want 300", total)
	}
	if slices.Equal(d.bf16(1, 100), d.bf16(2, 100)) {
		t.Error("two seeds give the same numbers")
	}
	if got := d.bf16(3, tableLen+5); len(got) != tableLen+5 {
		t.Errorf("got %d numbers", len(got))
	}
}
