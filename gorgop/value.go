package gorgop

import (
	"fmt"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// dtypeFor returns the type of the gorgonia node that carries an input, floats being those of the graph.
func dtypeFor(in *graph.Value, floats tensor.Dtype) (tensor.Dtype, error) {
	switch dt := in.DType(); {
	case dt.IsFloat() && dt.Bits() >= 16:
		return floats, nil
	case dt == dtype.Int32:
		return tensor.Int32, nil
	case dt == dtype.Int64:
		return tensor.Int64, nil
	case dt == dtype.Uint8:
		return tensor.Byte, nil
	default:
		err := graph.BadDType("input", dt, "f64, f32, f16, bf16, int32, int64 or uint8: gorgonia has no other")
		return tensor.Dtype{}, fmt.Errorf("input %q: %w", in.Name(), err)
	}
}

// nodesOf refuses what float nodes cannot be made of.
func nodesOf(g *gorgonia.ExprGraph, dt tensor.Dtype) error {
	switch {
	case g == nil:
		return graph.Misuse("graph", "none", "an ExprGraph")
	case dt.Type == nil:
		return graph.BadDType("type", "none", "float32 or float64")
	case dt != tensor.Float32 && dt != tensor.Float64:
		return graph.BadDType("type", dt, "float32 or float64")
	}
	return nil
}

// newDense returns a tensor of zeros.
func newDense(dt tensor.Dtype, shape []int) *tensor.Dense {
	return tensor.New(tensor.Of(dt), tensor.WithShape(shape...))
}

// dense returns a Value as a tensor whose rows lie one after the other, which graph.Exec takes. Scalars become tensors
// of shape (1,); views and transposes are copied, since their elements are somewhere else than their shape says.
func dense(v gorgonia.Value) (*tensor.Dense, error) {
	switch x := v.(type) {
	case nil:
		return nil, graph.Misuse("value", "none", "a value bound to the node")
	case *gorgonia.F32:
		return tensor.New(tensor.WithShape(1), tensor.WithBacking([]float32{float32(*x)})), nil
	case *gorgonia.F64:
		return tensor.New(tensor.WithShape(1), tensor.WithBacking([]float64{float64(*x)})), nil
	case *gorgonia.I32:
		return tensor.New(tensor.WithShape(1), tensor.WithBacking([]int32{int32(*x)})), nil
	case *gorgonia.I64:
		return tensor.New(tensor.WithShape(1), tensor.WithBacking([]int64{int64(*x)})), nil
	case *gorgonia.U8:
		return tensor.New(tensor.WithShape(1), tensor.WithBacking([]byte{byte(*x)})), nil
	case *tensor.Dense:
		switch {
		case x == nil:
			return nil, graph.Misuse("value", "a nil tensor", "a value bound to the node")
		case !x.IsNativelyAccessible():
			return nil, graph.Misuse("value", "a tensor that Go cannot reach", "one in host memory")
		case x.IsMasked():
			return nil, graph.Unsupported("value", "a masked tensor", "one without a mask: fill what is masked first")
		case x.IsScalar():
			return dense(scalarOf(x))
		case !x.RequiresIterator() && !x.DataOrder().IsColMajor() && !x.DataOrder().IsTransposed():
			return x, nil
		}
		return contiguous(x)
	}
	return nil, graph.Misuse("value", fmt.Sprintf("%T", v), "a *tensor.Dense, or a scalar of float32, float64, int32, int64 or byte")
}

func scalarOf(x *tensor.Dense) gorgonia.Value {
	switch s := x.ScalarValue().(type) {
	case float32:
		return gorgonia.NewF32(s)
	case float64:
		return gorgonia.NewF64(s)
	case int32:
		return gorgonia.NewI32(s)
	case int64:
		return gorgonia.NewI64(s)
	case byte:
		return gorgonia.NewU8(s)
	}
	return nil
}

// contiguous copies a view or a transpose in the order of its shape.
func contiguous(x *tensor.Dense) (*tensor.Dense, error) {
	c := tensor.New(tensor.Of(x.Dtype()), tensor.WithShape(x.Shape().Clone()...))
	it := x.Iterator()
	for to := 0; ; to++ {
		from, err := it.Next()
		if err != nil {
			if _, end := err.(tensor.NoOpError); end {
				return c, nil
			}
			return nil, err
		}
		c.Set(to, x.Get(from))
	}
}

// result is where a value of an Exec appears as one of gorgonia's.
type result struct {
	dt     tensor.Dtype
	shape  tensor.Shape
	scalar bool
	own    *tensor.Dense // what is read into where the Exec's memory cannot be used in place

	fetched *graph.Fetched // on its way from a device
}

// start begins the copy from a device whose memory Go cannot reach, after the replay that was issued: gorgonia's other
// ops run beside it until get.
func (r *result) start(e *graph.Exec, v *graph.Value) (err error) {
	r.drop()
	if !inPlace(e) {
		r.fetched, err = e.Fetch(v)
	}
	return err
}

// drop ends the use of a copy.
func (r *result) drop() {
	if r.fetched != nil {
		r.fetched.Release()
		r.fetched = nil
	}
}

// get returns what the last replay made of v: a view of the Exec's memory where it has the format asked for and Go can
// reach it, else a copy. Either stays as it is until the next call.
func (r *result) get(e *graph.Exec, v *graph.Value) (gorgonia.Value, error) {
	if r.scalar {
		x, err := r.number(e, v)
		if err != nil {
			return nil, err
		}
		if r.dt == tensor.Float64 {
			return gorgonia.NewF64(x), nil
		}
		return gorgonia.NewF32(float32(x)), nil
	}
	if formatOf(r.dt) == v.DType() && inPlace(e) {
		return e.Dense(v)
	}
	if r.own != nil && r.fetched == nil && !inPlace(e) {
		return r.header(), nil // asked for once more: the copy has been read
	}
	if r.own == nil {
		r.own = newDense(r.dt, r.shape)
	}
	var err error
	if r.fetched != nil {
		_, err = r.fetched.Read(r.own)
		r.drop()
	} else {
		_, err = e.Read(v, r.own)
	}
	if err != nil {
		return nil, err
	}
	return r.header(), nil
}

// number returns a value of one element.
func (r *result) number(e *graph.Exec, v *graph.Value) (float64, error) {
	if r.fetched != nil {
		return r.fetched.Scalar()
	}
	return e.Scalar(v)
}

// header returns the tensor that was read into.
func (r *result) header() *tensor.Dense {
	// A header of its own: gorgonia gives tensors back to a pool when a machine unbinds its nodes.
	return tensor.New(tensor.WithShape(r.shape...), tensor.WithBacking(r.own.Data()))
}

func formatOf(dt tensor.Dtype) dtype.DType {
	if dt == tensor.Float64 {
		return dtype.Float64
	}
	return dtype.Float32
}

// inPlace says whether Go reaches the Exec's memory.
func inPlace(e *graph.Exec) bool {
	_, ok := e.Program().Device().(graph.Wrapper)
	return ok
}
