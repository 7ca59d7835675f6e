package graph

import (
	"fmt"
)

// Grads are gradients of a loss: what an optimizer takes.
type Grads struct {
	Of    []*Value // what the loss was differentiated by
	Value []*Value // the gradients, in the order of Of, each of the shape of its Of
	Ready *Value   // int32 (1,), not 0 in the replays in which an optimizer acts; nil: in every one

	graph *Graph
}

// Graph returns the graph that the gradients belong to.
func (gr *Grads) Graph() *Graph {
	if gr == nil {
		return nil
	}
	return gr.graph
}

// Get returns the gradient with respect to v, nil if it is not among them.
func (gr *Grads) Get(v *Value) *Value {
	if gr == nil {
		return nil
	}
	for i, of := range gr.Of {
		if v != nil && of != nil && (of == v || v.variable != nil && of.variable == v.variable) {
			return gr.Value[i]
		}
	}
	return nil
}

// With returns a copy of the gradients with other values, one for each, such as clipped ones.
func (gr *Grads) With(values []*Value) *Grads {
	c := *gr
	c.Value = values
	return &c
}

// Gradients appends the nodes that compute the gradients of loss, a Value of one element, with respect to
// each of wrt: parameters, inputs or values between. A value with several uses gets the sum, added in
// float32 and rounded once. It is a mistake if a wrt has no influence on the loss through differentiable
// operators, or if a variable that the backward nodes need was updated since the forward ones were built.
func (g *Graph) Gradients(loss *Value, wrt ...*Value) *Grads {
	if g.err == nil && loss.Elems() != 1 {
		g.Fail(fmt.Errorf("gradients of %q: %w", loss.Name(), BadShape("loss", loss.Text(), "one element")))
	}
	return g.GradientsFrom([]*Value{loss}, nil, wrt...)
}

// GradientsFrom is Gradients for several values at once, each with the gradient that flows into it: the sum
// of the products is differentiated. A nil seeds, or a nil seed, means ones.
func (g *Graph) GradientsFrom(of, seeds []*Value, wrt ...*Value) *Grads {
	res := &Grads{Of: wrt, Value: make([]*Value, len(wrt)), graph: g}
	b := backward{g: g, parts: map[*Value][]*Value{}}
	b.run(of, seeds, wrt)
	for i, w := range wrt {
		if g.err != nil {
			res.Value[i] = g.Fail(nil)
			continue
		}
		res.Value[i] = b.sum(g.own(w))
		if res.Value[i] == nil {
			res.Value[i] = g.Fail(fmt.Errorf("gradient of %q: %w", w.Name(), Unsupported("wrt", "no differentiable path from the loss", "a value that the loss depends on")))
		}
	}
	return res
}

type backward struct {
	g     *Graph
	parts map[*Value][]*Value // gradients that have arrived, one for each use
}

func (b *backward) run(of, seeds, wrt []*Value) {
	g := b.g
	if arithmetic.Sum == nil {
		g.Fail(usagef("gradients need the operators of package nodes: import it"))
		return
	}
	for i, v := range of {
		if g.err != nil {
			return
		}
		if err := g.belongs("loss", v); err != nil {
			g.Fail(fmt.Errorf("gradients: %w", err))
			return
		}
		if !v.dt.IsFloat() {
			g.Fail(fmt.Errorf("gradients of %q: %w", v.Name(), BadDType("loss", v.dt, "a float format")))
			return
		}
		var seed *Value
		if i < len(seeds) {
			seed = seeds[i]
		}
		v = g.own(v)
		if seed == nil {
			b.arrive(v, arithmetic.Fill(v, 1))
			continue
		}
		if err := g.belongs("seed", seed); err != nil {
			g.Fail(fmt.Errorf("gradients of %q: %w", v.Name(), err))
			return
		}
		if !seed.dt.IsFloat() || shapeString(seed.shape, false) != shapeString(v.shape, false) {
			g.Fail(fmt.Errorf("gradients of %q: %w", v.Name(), BadShape("seed", seed.Text(), "floats in the shape of %s", v.Text())))
			return
		}
		b.arrive(v, g.own(seed))
	}
	needed := b.reaches(wrt)
	forward := len(g.nodes)
	for id := forward - 1; id >= 0 && g.err == nil; id-- {
		if n := g.nodes[id]; needed[n] {
			b.node(n)
		}
	}
}

// reaches returns the nodes that depend on one of wrt.
func (b *backward) reaches(wrt []*Value) map[*Node]bool {
	from := map[*Value]bool{}
	for _, w := range wrt {
		if err := b.g.belongs("wrt", w); err != nil {
			b.g.Fail(fmt.Errorf("gradients: %w", err))
			continue
		}
		from[b.g.own(w)] = true
	}
	needed := map[*Node]bool{}
	for _, n := range b.g.nodes {
		for _, v := range n.in {
			if v != nil && (from[v] || (v.node != nil && needed[v.node])) {
				needed[n] = true
			}
		}
	}
	return needed
}

// node runs the gradient rule of n, if gradients have arrived at its outputs.
func (b *backward) node(n *Node) {
	g := b.g
	grads := make([]*Value, len(n.out))
	any := false
	for i, v := range n.out {
		if v != nil && len(b.parts[v]) > 0 {
			grads[i] = b.sum(v)
			any = true
		}
	}
	if !any {
		return
	}
	d, ok := n.op.(Differentiable)
	if !ok {
		g.Fail(fmt.Errorf("%s %q: %w", n.op.Kind(), n.name, Unsupported("gradient", "an operator without a gradient", "a path of differentiable operators")))
		return
	}
	for i, v := range n.in {
		if v != nil && v.variable != nil && g.version[v.variable] != n.versions[i] {
			g.Fail(fmt.Errorf("%s %q: gradient: %w", n.op.Kind(), n.name,
				usagef("variable %q was updated after the node was built: take the gradients before the update", v.Name())))
			return
		}
	}
	scope := g.scope
	g.scope = n.name + "/grad"
	ins := d.Gradient(n, grads)
	for i, dv := range ins {
		v := n.In(i)
		if dv == nil || v == nil || g.err != nil {
			continue
		}
		if shapeString(dv.shape, false) != shapeString(v.shape, false) {
			g.scope = scope
			g.Fail(fmt.Errorf("%s %q: internal: gradient of %s has shape %s, want %s", n.op.Kind(), n.name, n.op.Operands()[i].Name, dv.Text(), v.Text()))
			return
		}
		b.arrive(v, dv)
	}
	g.scope = scope
}

// arrive keeps a gradient of v. One with other rows in use than v gets those of v: a node may have used fewer. Two
// counts of inputs' data that meet in a node are checked to be equal.
func (b *backward) arrive(v, dv *Value) {
	if dv.rows != v.rows && !(dv.rows != nil && v.rows != nil && dv.rows.given && v.rows.given) {
		dv = arithmetic.WithRows(dv, v.rows)
	}
	b.parts[v] = append(b.parts[v], dv)
}

// sum returns the gradient of v: the sum of what has arrived, nil if nothing has.
func (b *backward) sum(v *Value) *Value {
	parts := b.parts[v]
	if len(parts) > 1 {
		parts = []*Value{arithmetic.Sum(parts...)}
		b.parts[v] = parts
	}
	if len(parts) == 0 {
		return nil
	}
	return parts[0]
}
