package golden

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/moegraph/moegraph/internal/npz"
)

// TestLoad_EveryCase reads every case and compares what is expected with itself.
func TestLoad_EveryCase(t *testing.T) {
	dir := Require(t, "cases")
	names, err := Names(dir)
	if err != nil || len(names) == 0 {
		t.Fatalf("got %d cases, error %v", len(names), err)
	}
	byNode := map[string]int{}
	for _, name := range names {
		c, err := Load(filepath.Join(dir, name))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if c.Node == "" || len(c.ExpectError) == 0 && len(c.Outputs) == 0 {
			t.Errorf("%s: node %q, %d outputs and no refusal", name, c.Node, len(c.Outputs))
		}
		byNode[c.Node]++
		got := map[string]npz.Array{}
		for _, o := range c.Outputs {
			got[o.Key] = o.Array
		}
		for _, r := range Compare(c, got) {
			if r.OK != (len(c.ExpectError) == 0) {
				t.Errorf("%s against itself: %v", name, r)
			}
		}
		for _, r := range Compare(c, nil) {
			if r.OK {
				t.Errorf("%s without outputs: %v", name, r)
			}
		}
	}
	for node, n := range byNode {
		cases, err := ForNode(dir, node)
		if err != nil || len(cases) != n {
			t.Errorf("%s: got %d cases and error %v, want %d", node, len(cases), err, n)
		}
	}
}

func TestDir_Environment(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(envShared, dir)
	if got, ok := Dir(); ok || got != dir {
		t.Errorf("without cases: got %q, %v", got, ok)
	}
	if err := os.Mkdir(filepath.Join(dir, "cases"), 0o777); err != nil {
		t.Fatal(err)
	}
	if got, ok := Dir(); !ok || got != dir {
		t.Errorf("with cases: got %q, %v", got, ok)
	}
}

func TestLoad_Files(t *testing.T) {
	dir := t.TempDir()
	in := []npz.Array{
		npz.Int32s("attr.top_k", nil, 2), npz.Text("attr.order", "sigmoid"), npz.Float32s("attr.scale", nil, 2.5),
		{Name: "b.1.bf16", DType: "<u2", Shape: []int{1, 2}, Data: make([]byte, 4)},
		{Name: "x.e2m1", DType: "|u1", Shape: []int{2, 3}, Data: make([]byte, 6)},
	}
	out := []npz.Array{
		npz.Text("node", "router"), npz.Text("exact", "idx,c"), npz.Float32s("d", []int{2}, 1, 2), npz.Float32s("tol.d", nil, .5),
		npz.Int32s("idx", []int{1}, 7), {Name: "mask.d", DType: "|b1", Shape: []int{2}, Data: []byte{1, 0}},
	}
	path := filepath.Join(dir, "some-case")
	if _, err := Load(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no files: got error %v", err)
	}
	for suffix, arrays := range map[string][]npz.Array{suffixIn: in, suffixOut: out} {
		if err := npz.WriteFile(path+suffix, arrays); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range []string{path, path + suffixIn, path + suffixOut} {
		c, err := Load(p)
		if err != nil {
			t.Fatal(err)
		}
		b, okB := c.Operand("b", 1)
		x, okX := c.Operand("x", npz.Dense)
		if !okB || !okX || b.Format.String() != "bf16" || x.Shape[1] != 6 || len(c.Operands) != 2 {
			t.Errorf("operands: got %+v", c.Operands)
		}
		if c.Attrs["top_k"] != 2 || c.Attrs["order"] != "sigmoid" || c.Attrs["scale"] != 2.5 || len(c.Attrs) != 3 {
			t.Errorf("attributes: got %v", c.Attrs)
		}
		if len(c.Outputs) != 2 || c.Node != "router" || c.Name != "some-case" {
			t.Fatalf("got %+v", c)
		}
		if d := c.Outputs[0]; d.Tol != .5 || d.Mask == nil || d.Equal != nil || d.Exact {
			t.Errorf("d: got %+v", d)
		}
		if idx := c.Outputs[1]; idx.Tol != 0 || idx.Mask != nil || !idx.Exact {
			t.Errorf("idx: got %+v", idx)
		}
	}
}

func TestRefused(t *testing.T) {
	for _, c := range []struct {
		text string
		want []string
		ok   bool
	}{
		{`grouped_gemm "fc2": K: got 56, want 64`, []string{"k"}, true},
		{`a bad thing happened`, []string{"a"}, false},
		{`operand a is missing`, []string{"a"}, true},
		{`got 'b' and 'c'`, []string{"b"}, true},
		{`b.0.bf16: missing`, []string{"b"}, true},
		{`b = 3`, []string{"b"}, true},
		{`the sfb: short`, []string{"b"}, false},
		{`the SFB is short`, []string{"sfb"}, true},
		{`sfb_ptrs is short`, []string{"sfb"}, false},
		{`nothing of it`, []string{"alpha", "prob"}, false},
		{`missing prob`, []string{"alpha", "prob"}, true},
		{"panic: alpha", []string{"alpha"}, false},
		{"x\ngoroutine 1 [running]:\nalpha", []string{"alpha"}, false},
		{"alpha", nil, false},
	} {
		if r := Refused(Case{ExpectError: c.want}, errors.New(c.text)); r.OK != c.ok {
			t.Errorf("%q for %v: got %v", c.text, c.want, r)
		}
	}
	if r := Refused(Case{ExpectError: []string{"alpha"}}, nil); r.OK {
		t.Errorf("no error: got %v", r)
	}
}
