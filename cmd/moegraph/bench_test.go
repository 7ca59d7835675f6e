package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/moegraph/moegraph/internal/cudadev"
)

// TestBench measures a layer on the host, small enough for a test.
func TestBench(t *testing.T) {
	old := shapes
	defer func() { shapes = old }()
	shapes = []shape{{"tiny", 4, 2, 64, 64, 32}}
	status, stdout, stderr := call("bench", "-rounds", "1", "-alignment", "8")
	if status != exitOK || stderr != "" {
		t.Fatalf("status %d, %s", status, stderr)
	}
	for _, want := range []string{"tiny: experts 4, top 2", "grouped_gemm_glu", "wgrad", " ms, ", "layer forward+backward", "memory: workspaces"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
	for _, args := range [][]string{{"-shape", "none"}, {"-rounds", "0"}, {"-device", "none"}} {
		if status, _, stderr := call(append([]string{"bench"}, args...)...); status != exitFailed || !strings.Contains(stderr, args[0]) {
			t.Errorf("%v: status %d, %s", args, status, stderr)
		}
	}
}

// TestBench_Shapes: what is planned and measured is what is compiled in tests.
func TestBench_Shapes(t *testing.T) {
	var a, b []cudadev.Shape
	for _, s := range shapes {
		a = append(a, cudadev.Shape{Name: s.name, Experts: s.experts, TopK: s.topK, Hidden: s.hidden, Inter: s.intermediate, Tokens: s.tokens})
	}
	b = append(b, cudadev.Shapes...)
	byName := func(x, y cudadev.Shape) int { return strings.Compare(x.Name, y.Name) }
	slices.SortFunc(a, byName)
	slices.SortFunc(b, byName)
	if !slices.Equal(a, b) {
		t.Errorf("got %v and %v, want the same", a, b)
	}
}

// TestRandomData: the routing is that of k different experts a token, and pieces differ.
func TestRandomData(t *testing.T) {
	d := newRandomData(shape{"s", 8, 3, 64, 64, 100})
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
