package graph

import (
	"fmt"
	"math"
	"slices"

	"github.com/moegraph/moegraph/dtype"
)

// Graph is a computation under construction. The first mistake is kept and returned by Err and Compile;
// after it, building does nothing.
type Graph struct {
	name    string
	nodes   []*Node
	inputs  []*Value
	outputs []output
	vars    map[*variable]*Value // the Value that stands for a variable here
	version map[*variable]int    // number of updates so far
	equal   []equalRows          // row counts that must agree, checked when they are known
	memo    map[any]*Value
	names   map[string]int
	scope   string
	pending string // name for the next node
	err     error
}

type output struct {
	name string
	v    *Value
}

// equalRows are two counts of rows, the caller's, that a node needs to be the same.
type equalRows struct {
	a, b *Value
	node int // its ID
}

// Node is one application of an operator.
type Node struct {
	g        *Graph
	id       int
	name     string
	op       Op
	in       []*Value // nil where an optional operand is absent
	out      []*Value // nil where an output does not exist
	versions []int    // of the variables among in, when the node was built
}

// ID returns the node's position in the order of building.
func (n *Node) ID() int { return n.id }

// Graph returns the graph that the node belongs to.
func (n *Node) Graph() *Graph { return n.g }

// Name returns the node's path name.
func (n *Node) Name() string { return n.name }

// Op returns the operator with its options.
func (n *Node) Op() Op { return n.op }

// In returns operand i, nil where it is absent.
func (n *Node) In(i int) *Value {
	if i >= len(n.in) {
		return nil
	}
	return n.in[i]
}

// Out returns output i, nil where it does not exist.
func (n *Node) Out(i int) *Value {
	if i >= len(n.out) {
		return nil
	}
	return n.out[i]
}

// New returns an empty graph. The name appears in errors, plans and profiles.
func New(name string) *Graph {
	return &Graph{
		name:    name,
		vars:    map[*variable]*Value{},
		version: map[*variable]int{},
		memo:    map[any]*Value{},
		names:   map[string]int{},
	}
}

// Name returns the graph's name.
func (g *Graph) Name() string { return g.name }

// Err returns the first mistake made while building, nil if there is none.
func (g *Graph) Err() error {
	if g == nil {
		return nil
	}
	return g.err
}

// Fail keeps err as the graph's first mistake, unless there is one already, and returns a Value that
// carries it. Functions that build several nodes use it for their own checks.
func (g *Graph) Fail(err error) *Value {
	if g == nil {
		return &Value{err: err}
	}
	if g.err == nil {
		g.err = err
	}
	return &Value{g: g, err: g.err}
}

// Nodes returns the nodes in the order of building.
func (g *Graph) Nodes() []*Node { return append([]*Node(nil), g.nodes...) }

// Input adds an input: a tensor that the caller writes before a replay. The first of dims may be UpTo(n).
func (g *Graph) Input(name string, dt dtype.DType, dims ...int) *Value {
	if g.err != nil {
		return g.Fail(nil)
	}
	for _, in := range g.inputs {
		if in.name == name {
			return g.Fail(fmt.Errorf("input %q: %w", name, usagef("the graph already has an input of that name")))
		}
	}
	shape := append([]int(nil), dims...)
	counted := len(shape) > 0 && shape[0] < upToBase/2
	if counted {
		shape[0] -= upToBase
		if shape[0] == 0 {
			return g.Fail(fmt.Errorf("input %q: %w", name, BadShape("capacity", "none", "UpTo(n) with n of at least 1")))
		}
	}
	for i, d := range shape {
		if d < upToBase/2 {
			return g.Fail(fmt.Errorf("input %q: %w", name, BadShape("dims", fmt.Sprintf("UpTo as dimension %d", i), "UpTo as the first dimension only")))
		}
	}
	if err := checkShape("dims", dt, shape); err != nil {
		return g.Fail(fmt.Errorf("input %q: %w", name, err))
	}
	if err := checkRows(dt, counted, shape); err != nil {
		return g.Fail(fmt.Errorf("input %q: %w", name, err))
	}
	v := &Value{g: g, name: name, kind: Input, dt: dt, shape: shape}
	if counted {
		v.rows = &Value{g: g, name: name + ".rows", kind: Input, dt: dtype.Int32, shape: []int{1}, given: true}
	}
	g.inputs = append(g.inputs, v)
	return v
}

// checkRows checks that rows are whole bytes, and of a capacity that an int32 can count and data can tell the number
// of rows.
func checkRows(dt dtype.DType, counted bool, shape []int) error {
	switch {
	case dt.Bits() < 8 && (len(shape) == 0 || shape[len(shape)-1]%2 != 0):
		return BadShape("dims", shapeString(shape, counted), "an even last dimension (two %s a byte)", dt)
	case !counted:
		return nil
	case shape[0] > math.MaxInt32:
		return BadShape("capacity", shape[0], "less than 2^31 rows")
	case slices.Contains(shape[1:], 0):
		return BadShape("dims", shapeString(shape, true), "rows of at least one element, since the data must tell how many there are")
	}
	return nil
}

// Output marks v as an output under a name: it keeps memory of its own and may be read after a replay.
// It returns v.
func (g *Graph) Output(name string, v *Value) *Value {
	switch {
	case g.err != nil:
		return v
	case v != nil && v.err != nil:
		return g.Fail(v.err)
	}
	if err := g.belongs("value", v); err != nil {
		return g.Fail(fmt.Errorf("output %q: %w", name, err))
	}
	for _, o := range g.outputs {
		if o.name == name && o.v != v {
			return g.Fail(fmt.Errorf("output %q: %w", name, usagef("the name is taken by %q", o.v.Name())))
		}
	}
	g.outputs = append(g.outputs, output{name, g.own(v)})
	return v
}

// Scope puts the names of the nodes built until the returned function is called below name:
//
//	defer g.Scope("layer0")()
func (g *Graph) Scope(name string) (end func()) {
	if g == nil {
		return func() {}
	}
	old := g.scope
	g.scope = g.path(name)
	return func() { g.scope = old }
}

// NameNext gives the next node that is built a name below the current scope.
func (g *Graph) NameNext(name string) {
	if g != nil {
		g.pending = name
	}
}

// NameDefault is NameNext where no name is pending yet.
func (g *Graph) NameDefault(name string) {
	if g != nil && g.pending == "" {
		g.pending = name
	}
}

// ApplyAs is Apply with a name for the node, below the current scope; a name that is pending stays pending.
func ApplyAs(name string, op Op, in ...*Value) []*Value {
	g := graphOf(in)
	if g == nil {
		return Apply(op, in...)
	}
	pending := g.pending
	g.pending = name
	out := Apply(op, in...)
	g.pending = pending
	return out
}

// Memo returns the Value made by the first call with this key, made by f. It keeps one cast or one
// quantized copy of a variable for all its uses. The key must hold everything that f depends on.
func (g *Graph) Memo(key any, f func() *Value) *Value {
	if g == nil {
		return f()
	}
	if v, ok := g.memo[key]; ok {
		return v
	}
	v := f()
	g.memo[key] = v
	return v
}

// Version returns how many updates of the variable v have been built so far; 0 for other Values.
func (g *Graph) Version(v *Value) int {
	if g == nil || v == nil || v.variable == nil {
		return 0
	}
	return g.version[v.variable]
}

// SameRows says that two Values must have equally many rows in use. Where both counts are those of inputs' data
// it is checked at each replay that runs the node being built; counts that only the device knows must be one and
// the same.
func SameRows(operand string, a, b *Value) error {
	ra, rb := a.Rows(), b.Rows()
	switch {
	case a.Dim(0) != b.Dim(0):
		return BadShape(operand, fmt.Sprintf("%d rows", b.Dim(0)), "%d, as %q", a.Dim(0), a.Name())
	case ra == rb:
		return nil
	case ra == nil || rb == nil:
		return BadShape(operand, b.Text(), "rows counted like %s", a.String())
	case !ra.given || !rb.given:
		return BadShape(operand, fmt.Sprintf("rows counted by %q", rb.Name()), "rows counted by %q", ra.Name())
	}
	a.g.equal = append(a.g.equal, equalRows{ra, rb, len(a.g.nodes)})
	return nil
}

func (g *Graph) path(name string) string {
	if g.scope == "" {
		return name
	}
	return g.scope + "/" + name
}

// unique returns name, or name_2, name_3, ... where it is taken.
func (g *Graph) unique(name string) string {
	g.names[name]++
	if n := g.names[name]; n > 1 {
		return g.unique(fmt.Sprintf("%s_%d", name, n))
	}
	return name
}

// own returns the graph's Value for v: v itself, or for a variable the Value that stands for it here.
func (g *Graph) own(v *Value) *Value {
	if v == nil || v.variable == nil {
		return v
	}
	if w, ok := g.vars[v.variable]; ok {
		return w
	}
	w := &Value{g: g, name: v.variable.name, kind: v.kind, dt: v.dt, shape: v.shape, variable: v.variable}
	g.vars[v.variable] = w
	return w
}

// belongs refuses what is no variable and no value of this graph.
func (g *Graph) belongs(operand string, v *Value) error {
	switch {
	case v == nil:
		return Misuse(operand, "none", "a value of graph %q", g.name)
	case v.err != nil:
		return v.err
	case v.g == nil && v.variable == nil:
		return Misuse(operand, "an empty Value", "a value of graph %q", g.name)
	case v.g != nil && v.g != g:
		return Misuse(operand, fmt.Sprintf("%q of graph %q", v.Name(), v.g.name), "a value of graph %q", g.name)
	}
	return nil
}

// Use makes a variable known to the graph, for operators whose operands are all variables.
func (g *Graph) Use(v *Value) *Value {
	if v != nil && v.err != nil {
		return g.Fail(v.err)
	}
	if g == nil {
		return v
	}
	return g.own(v)
}

// graphOf returns the graph of the first operand that has one.
func graphOf(in []*Value) *Graph {
	for _, v := range in {
		if v != nil && v.g != nil {
			return v.g
		}
	}
	return nil
}

// Apply appends a node that applies op to the operands, nil for an absent optional one, and returns its
// outputs, one for each name of op.Outputs, nil where an output does not exist. A mistake is kept by
// the graph, and the outputs carry it.
func Apply(op Op, in ...*Value) []*Value {
	g := graphOf(in)
	fail := func(err error) []*Value {
		v := g.Fail(err)
		out := make([]*Value, max(1, len(op.Outputs())))
		for i := range out {
			out[i] = v
		}
		return out
	}
	if g == nil {
		for _, v := range in {
			if v.Err() != nil {
				return fail(v.err)
			}
		}
		return fail(fmt.Errorf("%s: %w", op.Kind(), usagef("no operand belongs to a graph: pass one through Graph.Use")))
	}
	if g.err != nil {
		return fail(nil)
	}
	name := g.pending
	g.pending = ""
	if name == "" {
		name = op.Kind()
	}
	n := &Node{g: g, id: len(g.nodes), name: g.path(name), op: op}
	if err := n.bind(in); err != nil {
		return fail(n.describe(err))
	}
	specs, err := op.Infer(n.in)
	if err == nil {
		err = n.setOutputs(specs)
	}
	if err != nil {
		return fail(n.describe(err))
	}
	n.name = g.unique(n.name)
	for i, o := range op.Operands() {
		if o.Update && n.in[i] != nil {
			g.version[n.in[i].variable]++
		}
	}
	g.nodes = append(g.nodes, n)
	return append([]*Value(nil), n.out...)
}

// bind checks presence and ownership of the operands.
func (n *Node) bind(in []*Value) error {
	operands := n.op.Operands()
	if len(in) > len(operands) {
		return Misuse("operands", len(in), "at most %d", len(operands))
	}
	n.in = make([]*Value, len(operands))
	n.versions = make([]int, len(operands))
	for i, o := range operands {
		var v *Value
		if i < len(in) {
			v = in[i]
		}
		if v == nil && o.Optional {
			continue
		}
		if v == nil {
			return Misuse(o.Name, "none", "the operand")
		}
		if err := n.g.belongs(o.Name, v); err != nil {
			n.in[i] = v // whose own mistake is told as it is
			return err
		}
		if o.Update && v.variable == nil {
			return Misuse(o.Name, v.Name(), "a variable, since the node updates it")
		}
		n.in[i] = n.g.own(v)
		n.versions[i] = n.g.Version(n.in[i])
	}
	for i, o := range operands {
		if !o.Update || n.in[i] == nil {
			continue
		}
		for j, v := range n.in {
			if j != i && v == n.in[i] {
				return Misuse(operands[max(i, j)].Name, fmt.Sprintf("%q once more", v.Name()), "another variable than %s, since the node updates it", operands[min(i, j)].Name)
			}
		}
	}
	return nil
}

func (n *Node) setOutputs(specs []Spec) error {
	names := n.op.Outputs()
	if len(specs) != len(names) {
		return fmt.Errorf("internal: Infer described %d outputs of %d", len(specs), len(names))
	}
	n.out = make([]*Value, len(specs))
	for i, s := range specs {
		if s.DType == dtype.Invalid {
			continue
		}
		if err := checkShape(names[i], s.DType, s.Shape); err != nil {
			return err
		}
		n.out[i] = &Value{g: n.g, node: n, index: i, dt: s.DType, shape: append([]int(nil), s.Shape...), rows: s.Rows}
	}
	for i, s := range specs {
		if s.RowsOf > 0 && n.out[i] != nil {
			n.out[i].rows = n.out[s.RowsOf-1]
		}
	}
	return nil
}

// describe puts the node's kind and name into err. The mistake that an operand carries stays as it is.
func (n *Node) describe(err error) error {
	for _, v := range n.in {
		if v != nil && v.err == err {
			return err
		}
	}
	if oe, ok := err.(*OperandError); ok && oe.Op == "" {
		oe.Op, oe.Node = n.op.Kind(), n.name
		return oe
	}
	return fmt.Errorf("%s %q: %w", n.op.Kind(), n.name, err)
}
