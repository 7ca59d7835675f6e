package nodes_test

import (
	"path/filepath"
	"testing"

	"github.com/moegraph/moegraph/internal/golden"
	"github.com/moegraph/moegraph/internal/npz"
	"github.com/moegraph/moegraph/internal/runnode"
)

// TestGolden runs every golden case on the host and compares; a case that must be refused must be refused by an error
// that names what it breaks.
func TestGolden(t *testing.T) { allGolden(t, runnode.Option{Debug: true}) }

// allGolden runs every golden case as a test of its own.
func allGolden(t *testing.T, opt runnode.Option) {
	dir := golden.Require(t, "cases")
	names, err := golden.Names(dir)
	if err != nil || len(names) == 0 {
		t.Fatalf("got %d cases, error %v", len(names), err)
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			c, err := golden.Load(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			runGolden(t, c, opt)
		})
	}
}

func runGolden(t *testing.T, c golden.Case, opt runnode.Option) {
	got, err := runnode.Run(c.Node, c.Operands, c.Attrs, opt)
	if len(c.ExpectError) > 0 {
		if r := golden.Refused(c, err); !r.OK {
			t.Error(r)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range golden.Compare(c, golden.Map(got)) {
		if !r.OK {
			t.Error(r)
		}
	}
}

// TestGolden_Notices runs a case with one element of an operand changed: the comparison must fail.
func TestGolden_Notices(t *testing.T) {
	c, err := golden.Load(filepath.Join(golden.Require(t, "cases"), "gemm-dense"))
	if err != nil {
		t.Fatal(err)
	}
	a, ok := c.Operand("a", npz.Dense)
	if !ok {
		t.Fatal("no operand a")
	}
	a.Array.Data[1] ^= 0x80 // the sign of the first element
	got, err := runnode.Run(c.Node, c.Operands, c.Attrs, runnode.Option{Debug: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range golden.Compare(c, golden.Map(got)) {
		if r.Key == "d.bf16" && r.OK {
			t.Errorf("a changed operand goes unnoticed: %v", r)
		}
	}
}
