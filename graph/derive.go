package graph

import (
	"fmt"
	"slices"
)

// Derivation says what Derive makes a Derivative of.
type Derivation struct {
	// Y is the output that the caller's gradient flows into: of a float format, its rows all in use or counted like
	// an input's.
	Y *Value
	// Losses are one-element values of Y's graph whose gradients are added as they are, such as a router's losses
	// times their weights.
	Losses []*Value
	// Free lists parameters that become inputs, whose memory the caller owns; their gradients are outputs.
	Free []*Value
	// Update adds what is done with the gradients of the parameters that are not in Free, such as an optimizer. Nil:
	// those parameters stay as they are.
	Update func(*Grads)
}

// Derivative is the computation of one value and, apart from it, of its gradients: for callers who have the
// gradient of an output rather than a loss, such as other frameworks' automatic differentiation. The forward graph
// makes Y; after Keep it also keeps what the backward graph reads. Exec.WriteOutput hands that over without a copy.
type Derivative struct {
	Forward, Backward *Graph
	Y                 *Value   // of Forward
	Seed              *Value   // input of Backward: the gradient of Y, in its shape and format
	In                []*Value // inputs of Forward: those that Y depends on, in the order of the graph, then those of Free
	BackIn            []*Value // inputs of Backward, the same data in the same order; nil where it needs none
	Grads             []*Value // outputs of Backward, the gradients of In; nil where none flows
	Saved             []Saved  // what Backward reads of what Forward makes
}

// Saved is one tensor that the backward half reads: a Value of the forward half, an input of the backward one.
type Saved struct{ From, To *Value }

// Derive copies the part of a graph that d.Y and d.Losses depend on, and derives it. The graph itself stays as it is.
func Derive(d Derivation) (*Derivative, error) {
	y := d.Y
	switch {
	case y == nil:
		return nil, fmt.Errorf("derive: %w", Misuse("Y", "none", "a value of a graph"))
	case y.err != nil:
		return nil, y.err
	case y.node == nil:
		return nil, fmt.Errorf("derive: %w", Misuse("Y", fmt.Sprintf("%s %q", y.kind, y.Name()), "what a node makes"))
	case y.g.err != nil:
		return nil, y.g.err
	case !y.dt.IsFloat():
		return nil, fmt.Errorf("derive %q: %w", y.Name(), BadDType("Y", y.dt, "a float format"))
	case y.rows != nil && !y.rows.given:
		return nil, fmt.Errorf("derive %q: %w", y.Name(), Unsupported("Y", "rows that the device counts", "the rows of an input"))
	}
	for _, l := range d.Losses {
		if err := y.g.belongs("Losses", l); err != nil {
			return nil, fmt.Errorf("derive %q: %w", y.Name(), err)
		}
		if l.Elems() != 1 || l.node == nil {
			return nil, fmt.Errorf("derive %q: %w", y.Name(), BadShape("Losses", l.String(), "one element that a node makes"))
		}
	}
	for i, p := range d.Free {
		if p != nil && slices.Contains(d.Free[:i], p) {
			return nil, fmt.Errorf("derive %q: %w", y.Name(), Misuse("Free", p.Name()+" twice", "every parameter once"))
		}
		if p == nil || p.variable == nil || p.kind != Param {
			return nil, fmt.Errorf("derive %q: %w", y.Name(), Misuse("Free", p.Name(), "a parameter"))
		}
	}
	h := newHalves(d)
	return h.derive()
}

// halves is a Derivative under construction.
type halves struct {
	d       Derivation
	res     *Derivative
	forward copier
	cut     int // nodes of Forward from here on belong to the backward half
}

func newHalves(d Derivation) *halves {
	g := New(d.Y.g.name)
	return &halves{d: d, res: &Derivative{Forward: g}, forward: copier{g: g, copies: map[*Value]*Value{}}}
}

func (h *halves) derive() (*Derivative, error) {
	g, r := h.forward.g, h.res
	h.copyForward()
	r.Y = h.forward.value(h.d.Y)
	h.cut = len(g.nodes)

	dims := r.Y.Shape()
	if r.Y.rows != nil {
		dims[0] = UpTo(dims[0])
	}
	r.Seed = g.Input("gradient of "+r.Y.Name(), r.Y.dt, dims...)
	of, seeds := []*Value{r.Y}, []*Value{r.Seed}
	for _, l := range h.d.Losses {
		of, seeds = append(of, h.forward.value(l)), append(seeds, nil)
	}
	grads := h.gradients(of, seeds)
	if g.err != nil {
		return nil, fmt.Errorf("derive %q: %w", h.d.Y.Name(), g.err)
	}
	h.split(grads)
	return r, nil
}

// copyForward copies the nodes that Y and the losses depend on, with their inputs; the parameters of Free become
// inputs.
func (h *halves) copyForward() {
	src, c := h.d.Y.g, &h.forward
	live := map[*Node]bool{}
	used := map[*Value]bool{} // inputs and variables
	var mark func(v *Value)
	mark = func(v *Value) {
		if v == nil || used[v] {
			return
		}
		used[v] = true
		mark(v.rows)
		if v.node == nil || live[v.node] {
			return
		}
		live[v.node] = true
		for _, in := range v.node.in {
			mark(in)
		}
		for _, out := range v.node.out {
			if out != nil {
				mark(out.rows)
			}
		}
	}
	mark(h.d.Y)
	for _, l := range h.d.Losses {
		mark(l)
	}
	for _, in := range src.inputs {
		if used[in] || in.rows != nil && used[in.rows] {
			h.res.In = append(h.res.In, c.input(in))
		}
	}
	for _, p := range h.d.Free {
		own := src.own(p)
		in := &Value{g: c.g, name: p.variable.name, kind: Input, dt: p.dt, shape: p.shape}
		c.g.inputs = append(c.g.inputs, in)
		c.copies[own] = in
		h.res.In = append(h.res.In, in)
	}
	for _, n := range src.nodes {
		if live[n] {
			c.node(n)
		}
	}
	for _, e := range src.equal {
		if a, b := c.copies[e.a], c.copies[e.b]; a != nil && b != nil && e.node < len(src.nodes) && live[src.nodes[e.node]] {
			c.g.equal = append(c.g.equal, equalRows{a, b, 0}) // every node of this half is kept
		}
	}
}

// gradients appends the backward nodes and what Update does, and returns the gradients of In.
func (h *halves) gradients(of, seeds []*Value) []*Value {
	g := h.forward.g
	var params []*Value
	if h.d.Update != nil {
		for _, v := range g.variables() {
			if v.kind == Param {
				params = append(params, v)
			}
		}
	}
	var wrt []*Value
	for _, in := range h.res.In {
		if in.dt.IsFloat() {
			wrt = append(wrt, in)
		}
	}
	b := backward{g: g, parts: map[*Value][]*Value{}}
	b.run(of, seeds, append(wrt, params...))
	grads := make([]*Value, len(h.res.In))
	for i, in := range h.res.In {
		if g.err == nil && in.dt.IsFloat() {
			grads[i] = b.sum(in)
		}
	}
	if h.d.Update == nil || g.err != nil {
		return grads
	}
	known := &Grads{graph: g}
	for _, p := range params {
		if dp := b.sum(p); dp != nil {
			known.Of, known.Value = append(known.Of, p), append(known.Value, dp)
		}
	}
	if len(known.Of) == 0 {
		g.Fail(Unsupported("Update", "no parameter that Y depends on", "none, or a parameter outside Free"))
		return grads
	}
	h.d.Update(known)
	return grads
}

// split moves the nodes from cut on to a graph of their own.
func (h *halves) split(grads []*Value) {
	g, r := h.forward.g, h.res
	tail := g.nodes[h.cut:]
	g.nodes = g.nodes[:h.cut:h.cut]
	b := New(g.name + "/grad")
	r.Backward = b
	c := copier{g: b, copies: map[*Value]*Value{}}
	c.other = func(v *Value) *Value { // made by the forward half
		in := &Value{g: b, name: "saved " + v.Name(), kind: Input, dt: v.dt, shape: v.shape, whole: true, rows: c.value(v.rows)}
		b.inputs = append(b.inputs, in)
		r.Saved = append(r.Saved, Saved{v, in})
		return in
	}
	r.Seed = c.input(r.Seed)
	for _, in := range r.In {
		r.BackIn = append(r.BackIn, c.input(in))
	}
	for _, n := range tail {
		c.node(n)
	}
	var stay []equalRows
	for _, e := range g.equal {
		if e.node < h.cut {
			stay = append(stay, e)
			continue
		}
		b.equal = append(b.equal, equalRows{c.value(e.a), c.value(e.b), e.node - h.cut})
	}
	g.equal = stay
	g.inputs = slices.DeleteFunc(g.inputs, func(v *Value) bool { return !slices.Contains(r.In, v) })
	g.version = map[*variable]int{}
	for i, dv := range grads {
		if dv == nil {
			r.Grads = append(r.Grads, nil)
			continue
		}
		r.Grads = append(r.Grads, b.Output("gradient of "+r.In[i].Name(), c.value(dv)))
	}
	g.Output(r.Y.Name(), r.Y)
	h.dropUnread()
}

// dropUnread removes the inputs of the backward half that nobody reads, so that nobody need write them.
func (h *halves) dropUnread() {
	b, r := h.res.Backward, h.res
	read := map[*Value]bool{}
	note := func(v *Value) {
		if v != nil {
			read[v], read[v.rows] = true, true
		}
	}
	for _, n := range b.nodes {
		for _, v := range n.in {
			note(v)
		}
		for _, v := range n.out {
			note(v)
		}
	}
	for _, o := range b.outputs {
		note(o.v)
	}
	for i, in := range r.BackIn {
		if !read[in] && (in.rows == nil || !read[in.rows]) {
			r.BackIn[i] = nil
			b.inputs = slices.DeleteFunc(b.inputs, func(v *Value) bool { return v == in })
		}
	}
}

// Keep marks what the backward half reads as outputs of the forward one. Programs compiled before keep nothing.
func (d *Derivative) Keep() {
	for _, s := range d.Saved {
		if s.From != d.Y {
			d.Forward.Output(s.To.name, s.From)
		}
	}
}

// copier copies nodes to another graph.
type copier struct {
	g      *Graph
	copies map[*Value]*Value
	other  func(v *Value) *Value // for values whose node was not copied
}

// input copies an input with its row count.
func (c *copier) input(in *Value) *Value {
	v := &Value{g: c.g, name: in.name, kind: Input, dt: in.dt, shape: in.shape}
	if in.rows != nil {
		v.rows = &Value{g: c.g, name: in.rows.name, kind: Input, dt: in.rows.dt, shape: in.rows.shape, given: true}
		c.copies[in.rows] = v.rows
	}
	c.copies[in] = v
	c.g.inputs = append(c.g.inputs, v)
	return v
}

// value returns the copy of v.
func (c *copier) value(v *Value) *Value {
	if v == nil {
		return nil
	}
	if w, ok := c.copies[v]; ok {
		return w
	}
	w := v
	switch {
	case v.variable != nil:
		w = c.g.own(v.variable.value)
	case c.other != nil:
		w = c.other(v)
	}
	c.copies[v] = w
	return w
}

// node copies a node whose operands are copied.
func (c *copier) node(n *Node) {
	m := &Node{g: c.g, id: len(c.g.nodes), name: c.g.unique(n.name), op: n.op, versions: make([]int, len(n.in))}
	for i, v := range n.in {
		m.in = append(m.in, c.value(v))
		m.versions[i] = c.g.Version(m.in[i])
	}
	for i, v := range n.out {
		var w *Value
		if v != nil {
			w = &Value{g: c.g, node: m, index: i, dt: v.dt, shape: v.shape}
			c.copies[v] = w
		}
		m.out = append(m.out, w)
	}
	for i, v := range n.out {
		if v != nil {
			m.out[i].rows = c.value(v.rows)
		}
	}
	for i, o := range n.op.Operands() {
		if o.Update && m.in[i] != nil {
			c.g.version[m.in[i].variable]++
		}
	}
	c.g.nodes = append(c.g.nodes, m)
}

// variables returns the graph's variables in the order in which nodes use them.
func (g *Graph) variables() []*Value {
	var vs []*Value
	for _, n := range g.nodes {
		for _, v := range n.in {
			if v != nil && v.variable != nil && !slices.Contains(vs, v) {
				vs = append(vs, v)
			}
		}
	}
	return vs
}
