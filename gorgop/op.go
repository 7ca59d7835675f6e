package gorgop

import (
	"encoding/binary"
	"fmt"
	"hash"
	"hash/fnv"
	"slices"

	"github.com/chewxy/hm"
	"github.com/moegraph/moegraph/graph"
	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// kind tells the ops of an application apart. A replay is begun by one op and waited for by another, forward and
// backward alike, so that what gorgonia does between the two runs beside a device that only issues replays. What
// connects them is a token, a scalar whose gradient is the token of the way back.
type kind byte

const (
	startKind    kind = 's' // inputs -> token; begins the forward replay
	awaitKind    kind = 'a' // token -> output
	backwardKind kind = 'b' // inputs, output, its gradient -> token; begins the backward replay
	pickKind     kind = 'p' // token -> the gradient of one input
)

// base is what the ops of an application share. None writes over an input.
type base struct {
	s *site
	k kind
	i int // of a pick: which input
}

// ReturnsPtr implements gorgonia.Op: values are the Exec's memory or the site's.
func (o base) ReturnsPtr() bool { return true }

// CallsExtern implements gorgonia.Op. Memory is the Exec's: gorgonia need not allocate any beforehand.
func (o base) CallsExtern() bool { return false }

// OverwritesInput implements gorgonia.Op.
func (o base) OverwritesInput() int { return -1 }

// WriteHash implements gorgonia.Op. Every application is another op, since it keeps activations and may draw random
// numbers of its own: gorgonia must not merge two.
func (o base) WriteHash(h hash.Hash) {
	fmt.Fprintf(h, "moegraph %s", o.s.l.name)
	var b [9]byte
	b[0] = byte(o.k)
	binary.LittleEndian.PutUint32(b[1:], o.s.id)
	binary.LittleEndian.PutUint32(b[5:], uint32(o.i))
	h.Write(b[:])
}

// Hashcode implements gorgonia.Op.
func (o base) Hashcode() uint32 {
	h := fnv.New32a()
	o.WriteHash(h)
	return h.Sum32()
}

// guard makes an error of a panic in f: none crosses into gorgonia's machines, whose goroutines would end the process.
func (o base) guard(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("internal error: %v", r)
		}
		if err != nil {
			err = fmt.Errorf("gorgop: %w", err)
		}
	}()
	return f()
}

// typeOf is the type of a node of that shape, nil for a scalar.
func typeOf(dt tensor.Dtype, shape tensor.Shape) hm.Type {
	if shape.Dims() == 0 {
		return dt
	}
	return gorgonia.TensorType{Dims: shape.Dims(), Of: dt}
}

// startOp begins the forward replay. It is a gorgonia.SDOp, for symbolic differentiation and TapeMachine; a
// gorgonia.ADOp, for LispMachine; and a gorgonia.TrainModeOp.
type startOp struct{ base }

// awaitOp is the output of the layer. It is differentiated like startOp.
type awaitOp struct{ base }

var (
	_ gorgonia.SDOp        = startOp{}
	_ gorgonia.ADOp        = startOp{}
	_ gorgonia.TrainModeOp = startOp{}
	_ gorgonia.SDOp        = awaitOp{}
	_ gorgonia.ADOp        = awaitOp{}
)

// Arity implements gorgonia.Op.
func (o startOp) Arity() int { return len(o.s.diff) }

// Type implements gorgonia.Op: the types of the nodes that the layer was applied to, then that of the token.
func (o startOp) Type() hm.Type { return hm.NewFnType(append(o.s.inTypes(), o.s.dt)...) }

// InferShape implements gorgonia.Op. Inputs of other shapes than those that the layer was applied to are refused.
func (o startOp) InferShape(in ...gorgonia.DimSizer) (tensor.Shape, error) {
	return tensor.ScalarShape(), o.s.checkDims(in)
}

// Do implements gorgonia.Op by one replay.
func (o startOp) Do(vals ...gorgonia.Value) (gorgonia.Value, error) {
	err := o.guard(func() error {
		if err := o.s.checkArity(len(vals), o.Arity()); err != nil {
			return err
		}
		return o.s.forward(vals)
	})
	if err != nil {
		return nil, err
	}
	return o.s.zero(), nil
}

// DiffWRT implements gorgonia.SDOp.
func (o startOp) DiffWRT(int) []bool { return append([]bool(nil), o.s.diff...) }

// SymDiff implements gorgonia.SDOp: the token's gradient is the token of the backward replay, from where a node for
// each input takes its gradient.
func (o startOp) SymDiff(inputs gorgonia.Nodes, _, grad *gorgonia.Node) (gorgonia.Nodes, error) {
	if err := o.s.checkArity(len(inputs), o.Arity()); err != nil {
		return nil, fmt.Errorf("gorgop: %w", err)
	}
	grads := make(gorgonia.Nodes, len(inputs))
	for i, differentiable := range o.s.diff {
		if !differentiable {
			continue
		}
		var err error
		if grads[i], err = gorgonia.ApplyOp(pickOp{base{o.s, pickKind, i}}, grad); err != nil {
			return nil, err
		}
	}
	return grads, nil
}

// DoDiff implements gorgonia.ADOp: it waits for the backward replay and adds to the derivatives of the inputs.
func (o startOp) DoDiff(_ gorgonia.ExecutionContext, inputs gorgonia.Nodes, _ *gorgonia.Node) error {
	return o.guard(func() error {
		if err := o.s.checkArity(len(inputs), o.Arity()); err != nil {
			return err
		}
		for i, n := range inputs {
			if !o.s.diff[i] || o.s.isHandle(i) {
				continue
			}
			d, err := n.Grad()
			if err != nil || d == nil {
				continue // a constant has no derivative to add to
			}
			g, err := o.s.gradient(i)
			if err == nil {
				err = addTo(d, g)
			}
			if err != nil {
				return fmt.Errorf("gradient of input %d of %s: %w", i, o.s, err)
			}
		}
		return nil
	})
}

// SetTraining implements gorgonia.TrainModeOp. Machines call it when they are made; one in evaluation mode keeps no
// activations, unless gradient nodes of the op exist.
func (o startOp) SetTraining(training bool) error {
	o.s.mu.Lock()
	defer o.s.mu.Unlock()
	o.s.eval = !training
	return nil
}

// String implements fmt.Stringer.
func (o startOp) String() string { return o.s.String() + "/start" }

// Arity implements gorgonia.Op.
func (o awaitOp) Arity() int { return 1 }

// Type implements gorgonia.Op.
func (o awaitOp) Type() hm.Type { return hm.NewFnType(o.s.dt, typeOf(o.s.dt, o.s.out)) }

// InferShape implements gorgonia.Op.
func (o awaitOp) InferShape(...gorgonia.DimSizer) (tensor.Shape, error) { return o.s.out.Clone(), nil }

// Do implements gorgonia.Op. It runs nothing: it waits for the replay that startOp began.
func (o awaitOp) Do(...gorgonia.Value) (v gorgonia.Value, err error) {
	err = o.guard(func() error {
		v, err = o.s.output()
		return err
	})
	return v, err
}

// DiffWRT implements gorgonia.SDOp.
func (o awaitOp) DiffWRT(int) []bool { return []bool{slices.Contains(o.s.diff, true)} }

// SymDiff implements gorgonia.SDOp: a node that begins the backward replay.
func (o awaitOp) SymDiff(_ gorgonia.Nodes, output, grad *gorgonia.Node) (gorgonia.Nodes, error) {
	o.s.mu.Lock()
	o.s.derived = true
	o.s.mu.Unlock()
	// The inputs are operands so that gorgonia leaves their memory alone until then.
	operands := append(append(gorgonia.Nodes(nil), o.s.nodes...), output, grad)
	token, err := gorgonia.ApplyOp(backwardOp{base{o.s, backwardKind, 0}}, operands...)
	if err != nil {
		return nil, err
	}
	return gorgonia.Nodes{token}, nil
}

// DoDiff implements gorgonia.ADOp by one replay, which startOp's DoDiff waits for.
func (o awaitOp) DoDiff(_ gorgonia.ExecutionContext, _ gorgonia.Nodes, output *gorgonia.Node) error {
	return o.guard(func() error {
		dy, err := output.Grad()
		if err != nil {
			return err
		}
		return o.s.backward(dy)
	})
}

// String implements fmt.Stringer.
func (o awaitOp) String() string { return o.s.String() }

// backwardOp begins the backward replay.
type backwardOp struct{ base }

// Arity implements gorgonia.Op.
func (o backwardOp) Arity() int { return len(o.s.diff) + 2 }

// Type implements gorgonia.Op.
func (o backwardOp) Type() hm.Type {
	out := typeOf(o.s.dt, o.s.out)
	return hm.NewFnType(append(o.s.inTypes(), out, out, o.s.dt)...)
}

// InferShape implements gorgonia.Op.
func (o backwardOp) InferShape(in ...gorgonia.DimSizer) (tensor.Shape, error) {
	return tensor.ScalarShape(), o.s.checkDims(in[:min(len(in), len(o.s.diff))])
}

// Do implements gorgonia.Op by one replay. The last operand is the gradient of the output.
func (o backwardOp) Do(vals ...gorgonia.Value) (gorgonia.Value, error) {
	err := o.guard(func() error {
		if err := o.s.checkArity(len(vals), o.Arity()); err != nil {
			return err
		}
		return o.s.backward(vals[len(vals)-1])
	})
	if err != nil {
		return nil, err
	}
	return o.s.zero(), nil
}

// String implements fmt.Stringer.
func (o backwardOp) String() string { return o.s.String() + "/grad" }

// pickOp is the gradient of one input.
type pickOp struct{ base }

// Arity implements gorgonia.Op.
func (o pickOp) Arity() int { return 1 }

// Type implements gorgonia.Op.
func (o pickOp) Type() hm.Type { return hm.NewFnType(o.s.dt, typeOf(o.s.dt, o.s.shapeOf(o.i))) }

// InferShape implements gorgonia.Op.
func (o pickOp) InferShape(...gorgonia.DimSizer) (tensor.Shape, error) {
	return o.s.shapeOf(o.i).Clone(), nil
}

// Do implements gorgonia.Op. It runs nothing.
func (o pickOp) Do(vals ...gorgonia.Value) (v gorgonia.Value, err error) {
	if o.s.isHandle(o.i) {
		return o.s.zero(), nil
	}
	err = o.guard(func() error {
		v, err = o.s.gradient(o.i)
		return err
	})
	return v, err
}

// String implements fmt.Stringer.
func (o pickOp) String() string { return fmt.Sprintf("%s/grad[%d]", o.s, o.i) }

// checkArity refuses another number of operands.
func (s *site) checkArity(got, want int) error {
	if got != want {
		return graph.Misuse("operands of "+s.String(), got, "%d", want)
	}
	return nil
}

// checkDims refuses inputs of other shapes than the layer was applied to.
func (s *site) checkDims(in []gorgonia.DimSizer) error {
	if err := s.checkArity(len(in), len(s.diff)); err != nil {
		return fmt.Errorf("gorgop: %w", err)
	}
	for i, d := range in {
		if shape, ok := d.(tensor.Shape); ok && !shape.Eq(s.shapeOf(i)) {
			return fmt.Errorf("gorgop: %w", graph.BadShape(fmt.Sprintf("operand %d of %s", i, s), shape, "%v", s.shapeOf(i)))
		}
	}
	return nil
}

// inTypes returns the types of the operands; room for three more.
func (s *site) inTypes() []hm.Type {
	ts := make([]hm.Type, 0, len(s.diff)+3)
	for i, shape := range s.in {
		ts = append(ts, typeOf(s.inType[i], shape))
	}
	if s.handle != nil {
		ts = append(ts, s.dt)
	}
	return ts
}

func (s *site) isHandle(i int) bool { return s.handle != nil && i == len(s.in) }

func (s *site) shapeOf(i int) tensor.Shape {
	if s.isHandle(i) {
		return tensor.ScalarShape()
	}
	return s.in[i]
}

// zero is a scalar of the graph's type.
func (s *site) zero() gorgonia.Value {
	if s.dt == tensor.Float64 {
		return gorgonia.NewF64(0)
	}
	return gorgonia.NewF32(0)
}

// addTo adds g to the derivative d in place.
func addTo(d, g gorgonia.Value) error {
	switch x := d.(type) {
	case *gorgonia.F32:
		*x += *g.(*gorgonia.F32)
		return nil
	case *gorgonia.F64:
		*x += *g.(*gorgonia.F64)
		return nil
	case *tensor.Dense:
		y := g.(*tensor.Dense)
		if x.Size() == y.Size() && !x.RequiresIterator() {
			switch xs := x.Data().(type) {
			case []float32:
				addSlices(xs, y.Data().([]float32))
				return nil
			case []float64:
				addSlices(xs, y.Data().([]float64))
				return nil
			}
		}
		_, err := x.Add(y, tensor.UseUnsafe())
		return err
	}
	return graph.Misuse("derivative", fmt.Sprintf("%T", d), "a *tensor.Dense or a scalar")
}

func addSlices[F float32 | float64](x, y []F) {
	for i, v := range y[:len(x)] {
		x[i] += v
	}
}
