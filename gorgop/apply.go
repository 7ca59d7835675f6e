package gorgop

import (
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/moegraph/moegraph/graph"
	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// Apply applies the layer to the nodes of its inputs, in order, and then, with NodeWeights, to those of its parameters,
// and returns the output's node. All float nodes have one type, float32 or float64; ids are int32. Inputs whose rows
// are counted may have any number of rows from 1 to their capacity; where rows must agree, the replay checks it.
//
// Each application holds activations and gradients of its own until Release or Close. The value of the output's node,
// and of gradient nodes, is memory of the layer: it is valid until the op runs again.
func (l *Layer) Apply(nodes ...*gorgonia.Node) (*gorgonia.Node, error) {
	p, err := l.Start(nodes...)
	if err != nil {
		return nil, err
	}
	return p.Await()
}

// Pending is an application whose output is not asked for yet.
type Pending struct {
	s     *site
	token *gorgonia.Node
	y     *gorgonia.Node
}

// Start is Apply in two halves, for layers on a GPU: the replay begins here, and Await's node waits for it. gorgonia
// runs ops in the order in which their nodes were made, as far as operands allow, so that ops made between Start and
// Await run beside the replay, and their gradients beside the backward one. On the host device, where a replay is done
// when it has begun, nothing is gained.
func (l *Layer) Start(nodes ...*gorgonia.Node) (*Pending, error) {
	s, err := l.site(nodes)
	if err != nil {
		return nil, fmt.Errorf("gorgop: layer %q: %w", l.name, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, fmt.Errorf("gorgop: layer %q: %w: applied after Close", l.name, graph.ErrUsage)
	}
	token, err := gorgonia.ApplyOp(startOp{base{s, startKind, 0}}, s.nodes...)
	if err != nil {
		return nil, err
	}
	l.sites = append(l.sites, s)
	return &Pending{s: s, token: token}, nil
}

// Await returns the output's node, which it makes at the first call.
func (p *Pending) Await() (*gorgonia.Node, error) {
	if p.y != nil {
		return p.y, nil
	}
	y, err := gorgonia.ApplyOp(awaitOp{base{p.s, awaitKind, 0}}, p.token)
	if err != nil {
		return nil, err
	}
	p.y = y
	return y, nil
}

// sites numbers the applications of a process.
var sites atomic.Uint32

// site checks the nodes and makes an application of them.
func (l *Layer) site(nodes []*gorgonia.Node) (*site, error) {
	in := l.d.In
	if len(nodes) != len(in) {
		return nil, graph.Misuse("nodes", len(nodes), "%d: %s", len(in), names(in))
	}
	s := &site{l: l, nodes: slices.Clone(nodes)}
	for i, n := range nodes {
		if n == nil {
			return nil, fmt.Errorf("input %q: %w", in[i].Name(), graph.Misuse("node", "none", "a node"))
		}
		switch g := n.Graph(); {
		case s.g == nil:
			s.g = g
		case g != nil && g != s.g:
			err := graph.Misuse("node", "one of another gorgonia graph", "one of the first node's")
			return nil, fmt.Errorf("input %q: %w", in[i].Name(), err)
		}
		if in[i].DType().IsFloat() && s.dt == (tensor.Dtype{}) {
			s.dt = n.Dtype()
		}
	}
	if s.g == nil {
		return nil, graph.Misuse("nodes", "constants alone", "a node of a graph")
	}
	if s.dt == (tensor.Dtype{}) {
		s.dt = tensor.Float32 // of the output, where there are only ids
	}
	if err := nodesOf(s.g, s.dt); err != nil {
		return nil, err
	}
	for i, n := range nodes {
		if err := s.input(in[i], n); err != nil {
			return nil, fmt.Errorf("input %q: %w", in[i].Name(), err)
		}
		s.diff = append(s.diff, l.d.Grads[i] != nil)
		s.grads = append(s.grads, &result{dt: s.dt, shape: s.in[i], scalar: s.in[i].Dims() == 0})
	}
	s.setOutput()
	s.id = sites.Add(1)
	if l.cfg.Weights == ProgramWeights {
		var err error
		if s.handle, err = l.Handle(s.g, s.dt); err != nil {
			return nil, err
		}
		s.nodes, s.diff = append(s.nodes, s.handle), append(s.diff, true)
	}
	return s, nil
}

// input checks the node of one input.
func (s *site) input(in *graph.Value, n *gorgonia.Node) error {
	want, err := dtypeFor(in, s.dt)
	if err != nil {
		return err
	}
	if n.Dtype() != want {
		return graph.BadDType("node", n.Dtype(), "%v for %s", want, in.Text())
	}
	shape, dims := n.Shape(), in.Shape()
	counted := in.Rows() != nil
	ok := shape.Dims() == len(dims) || shape.Dims() == 0 && in.Elems() == 1
	for i := range shape {
		ok = ok && i < len(dims) && (shape[i] == dims[i] || i == 0 && counted && shape[0] >= 1 && shape[0] <= dims[0])
	}
	if !ok {
		return graph.BadShape("node", shape, "%s", in.Text())
	}
	s.in, s.inType = append(s.in, shape), append(s.inType, want)
	return nil
}

// setOutput finds the output's shape: its rows are those of the input that counts them.
func (s *site) setOutput() {
	y := s.l.d.Y
	s.out = tensor.Shape(y.Shape())
	if s.l.scalar {
		s.out = tensor.ScalarShape()
	}
	for i, in := range s.l.d.In {
		if y.Rows() != nil && in.Rows() == y.Rows() {
			s.out[0] = s.in[i][0]
		}
	}
	s.y = &result{dt: s.dt, shape: s.out, scalar: s.l.scalar}
}

// Handle returns the node that stands in a gorgonia graph for the parameters that the Program owns: a scalar of 0 with
// a gradient of 0. gorgonia differentiates only what leads to the nodes that Grad is asked for. If nothing before the
// layer is trained, ask for the gradient of the handle, so that the layer's backward replay, with its optimizer, runs.
func (l *Layer) Handle(g *gorgonia.ExprGraph, dt tensor.Dtype) (*gorgonia.Node, error) {
	if l.cfg.Weights != ProgramWeights {
		return nil, fmt.Errorf("gorgop: layer %q: %w", l.name, graph.Misuse("Handle", l.cfg.Weights, "%s", ProgramWeights))
	}
	if err := nodesOf(g, dt); err != nil {
		return nil, fmt.Errorf("gorgop: layer %q: %w", l.name, err)
	}
	name := fmt.Sprintf("%s/parameters %p", l.name, l)
	for _, n := range g.ByName(name) {
		if n.Dtype() == dt {
			return n, nil
		}
	}
	var zero any = float32(0)
	if dt == tensor.Float64 {
		zero = float64(0)
	}
	return gorgonia.NewScalar(g, dt, gorgonia.WithName(name), gorgonia.WithValue(zero)), nil
}

func names(vs []*graph.Value) string {
	text := ""
	for i, v := range vs {
		if i > 0 {
			text += ", "
		}
		text += v.String()
	}
	return text
}
