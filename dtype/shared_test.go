package dtype_test

import (
	"path/filepath"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/internal/golden"
	"github.com/moegraph/moegraph/internal/npz"
)

// TestShared runs the golden cases encode-* and decode-* of ../shared/cases, every code of which must
// agree: the cases say "exact".
func TestShared(t *testing.T) {
	for _, op := range []string{"encode", "decode"} {
		for _, dt := range []dtype.DType{dtype.BFloat16, dtype.Float16, dtype.E4M3, dtype.E5M2, dtype.E2M1, dtype.E8M0} {
			name := op + "-" + dt.String()
			t.Run(name, func(t *testing.T) {
				c, err := golden.Load(filepath.Join(golden.Require(t, "cases"), name))
				if err != nil {
					t.Fatal(err)
				}
				x, ok := c.Operand("x", npz.Dense)
				if !ok || c.Attrs["format"] != dt.String() || c.Node != op || len(c.Outputs) == 0 {
					t.Fatalf("got %+v", c)
				}
				to := dt
				if op == "decode" {
					to = dtype.Float32
				}
				y := make([]byte, to.Bytes(x.Shape[0]))
				if err := dtype.Convert(to, y, x.Format, x.Array.Data); err != nil {
					t.Fatal(err)
				}
				got, err := npz.NewOperand("y", npz.Dense, to, x.Shape, y)
				if err != nil {
					t.Fatal(err)
				}
				for _, r := range golden.Compare(c, golden.Map([]npz.Array{got})) {
					if !r.OK {
						t.Error(r)
					}
				}
			})
		}
	}
}
