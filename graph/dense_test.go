package graph_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"gorgonia.org/tensor"
)

// TestExec_DenseViews: rows of a larger tensor are used in place; columns, transposes, column-major tensors, masked
// ones and scalars are refused with what to do, in and out.
func TestExec_DenseViews(t *testing.T) {
	g := graph.New("views")
	x := g.Input("x", dtype.Float32, graph.UpTo(4), 3)
	y := g.Output("y", graph.Apply(copyOp{}, x)[0])
	e := openOn(t, host(t), g, nil)
	base := func() *tensor.Dense {
		b := []float32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}
		return tensor.New(tensor.WithShape(4, 3), tensor.WithBacking(b))
	}
	slice := func(d *tensor.Dense, s ...tensor.Slice) *tensor.Dense {
		v, err := d.Slice(s...)
		check(t, err)
		return v.(*tensor.Dense)
	}
	whole := base()
	check(t, e.Write(x, slice(whole, tensor.S(1, 3))))
	check(t, whole.SetAt(float32(40), 1, 1)) // the same memory
	replay(t, e)
	if got := read(t, e, y); !slices.Equal(got, []float32{3, 40, 5, 6, 7, 8}) {
		t.Errorf("rows: got %v", got)
	}
	into := tensor.New(tensor.Of(tensor.Float64), tensor.WithShape(4, 3))
	if rows, err := e.Read(y, into); err != nil || rows != 2 || into.Data().([]float64)[1] != 40 {
		t.Errorf("out: got %d rows of %v, %v", rows, into, err)
	}

	transposed := tensor.New(tensor.WithShape(3, 4), tensor.WithBacking(make([]float32, 12)))
	check(t, transposed.T())
	square := tensor.New(tensor.WithShape(3, 3), tensor.WithBacking(make([]float32, 9)))
	check(t, square.T())
	for name, c := range map[string]struct {
		d    *tensor.Dense
		text string
	}{
		"columns":      {slice(tensor.New(tensor.WithShape(4, 6), tensor.WithBacking(make([]float32, 24))), nil, tensor.S(1, 4)), "materialize"},
		"transposed":   {transposed, "materialize"},
		"square":       {square, "materialize"},
		"column-major": {tensor.New(tensor.WithShape(4, 3), tensor.AsFortran(make([]float32, 12))), "materialize"},
		"masked":       {tensor.New(tensor.WithShape(4, 3), tensor.WithBacking(make([]float32, 12), make([]bool, 12))), "mask"},
		"scalar":       {tensor.New(tensor.FromScalar(float32(1))), "(1,)"},
		"width":        {tensor.New(tensor.WithShape(3, 4), tensor.WithBacking(make([]float32, 12))), "(<=4,3)"},
		"ints":         {tensor.New(tensor.WithShape(4, 3), tensor.WithBacking(make([]int32, 12))), "float32"},
	} {
		err := e.Write(x, c.d)
		if err == nil || !strings.Contains(err.Error(), c.text) || !strings.Contains(err.Error(), `"x"`) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.text)
		}
		if _, err := e.Read(y, c.d); err == nil {
			t.Errorf("%s: read into", name)
		}
	}
	if err := e.Bind(y, transposed); !errors.Is(err, graph.ErrShape) {
		t.Errorf("Bind to a transpose: %v", err)
	}
	replay(t, e)
	if got := read(t, e, y); !slices.Equal(got, []float32{3, 40, 5, 6, 7, 8}) {
		t.Errorf("after the errors: got %v", got)
	}
	made, err := whole.Slice(nil, tensor.S(0, 3))
	check(t, err)
	check(t, e.Write(x, made.Materialize()))
}
