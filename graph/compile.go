package graph

import (
	"fmt"
	"slices"

	"github.com/moegraph/moegraph/memory"
)

// Options say how to compile. The zero value is the default.
type Options struct {
	// Streams is the most streams the plan may use; 0 means 8. The cost model uses fewer where more gain nothing.
	Streams int
	// ForceStreams makes the planner use Streams streams wherever the graph is wide enough, whatever the
	// cost model says.
	ForceStreams bool
	// MaxWorkspace is the most bytes that the workspaces' arena may take; 0: no limit. Steps are run one after the other
	// where they could run at once, if nothing else makes them fit. The error of what cannot be met says what can.
	MaxWorkspace int64
	// Plan is used in place of a new one. It must be of the same graph, device, profile and other options.
	Plan *Plan
	// NoFuse keeps every node as it was built. Fusing may only skip a 16-bit rounding.
	NoFuse bool
	// Debug turns on checks and disturbances for tests.
	Debug Debug
}

// Debug are checks and disturbances.
type Debug struct {
	Poison  bool   // fill workspaces and outputs with byte 0xFF before each replay
	Jitter  uint64 // not 0: sleep at random before each node, from this seed; on the host
	Offsets bool   // check offsets, counts and ids, which only the data can tell; on a GPU: and launch node by node
	Apart   bool   // every workspace has bytes of its own
	Eager   bool   // time each step; on a GPU: and launch node by node instead of as one graph
}

// Step is one node of a Program with its place in the schedule.
type Step struct {
	Name    string
	Op      Op
	In      []*Value // nil where an operand is absent
	Out     []*Value // nil where nobody needs the output
	Stream  int
	Waits   []int // indices of the steps on other streams that must be done first, without redundant ones
	Cost    Cost
	StartUS float64 // in the cost model's simulation
	EndUS   float64

	scratch int64
	built   int   // index in the order of building, after fusing
	deps    []int // steps that must come first: data, updates of variables
	nodeIDs []int // of the nodes that it stands for
}

// Deps returns the steps that must be complete before this one starts, on whatever stream.
func (s *Step) Deps() []int { return append([]int(nil), s.deps...) }

// Scratch returns the bytes that the step has of its own while it runs.
func (s *Step) Scratch() int64 { return s.scratch }

// compilation is the state that the passes hand on.
type compilation struct {
	g       *Graph
	dev     Device
	opt     Options
	profile map[string]float64 // measured times of steps in microseconds, by name; nil: none
	steps   []*Step
	built   []*Step     // in the order of building, which schedules refer to
	shape   *workspaces // of built
	adopted bool        // the plan is one that was made before
	prog    *Program
}

// pass is a part of compiling.
type pass struct {
	name string
	run  func(*compilation) error
}

// passes, in order. Pruning and dropping come first so that fusing sees only uses that count; dropping comes again
// since fusing removes uses; dependencies before streams; streams before memory, because two buffers
// may share bytes only if the streams' order allows it; what is kept is verified before; launches last, because they
// depend on all of it.
var passes = []pass{
	{"prune", (*compilation).prune},
	{"drop unused outputs", (*compilation).dropOutputs},
	{"fuse", (*compilation).fuse},
	{"drop unused outputs", (*compilation).dropOutputs},
	{"check the device", (*compilation).checkDevice},
	{"dependencies", (*compilation).dependencies},
	{"streams", (*compilation).streams},
	{"memory", (*compilation).place},
	{"verify", (*compilation).verify},
	{"keep the plan", (*compilation).keep},
	{"launches", (*compilation).launches},
}

// Compile plans the graph for a device. It returns the first mistake that was made while building. The graph
// may be compiled again, with other options or for other devices, and extended afterwards.
func (g *Graph) Compile(dev Device, opt Options) (*Program, error) {
	if g.err != nil {
		return nil, g.err
	}
	if dev == nil {
		return nil, usagef("Compile of graph %q: want a device from Open", g.name)
	}
	if opt.Streams < 0 || opt.Streams > 64 {
		return nil, BadShape("Options.Streams", opt.Streams, "0 (chosen) to 64")
	}
	if opt.MaxWorkspace < 0 {
		return nil, BadShape("Options.MaxWorkspace", opt.MaxWorkspace, "at least 0 bytes")
	}
	c := &compilation{g: g, dev: dev, opt: opt, prog: &Program{graph: g.name, g: g, dev: dev, opt: opt}}
	c.prog.outputs = append(c.prog.outputs, g.outputs...)
	c.prog.inputs = append(c.prog.inputs, g.inputs...)
	if err := c.run(passes); err != nil {
		return nil, err
	}
	return c.prog, nil
}

// run runs passes; a panic in one becomes an error that names it.
func (c *compilation) run(passes []pass) (err error) {
	at := ""
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("graph %q: %s: internal error: %v", c.g.name, at, r)
		}
	}()
	for _, p := range passes {
		at = p.name
		if err := p.run(c); err != nil {
			return fmt.Errorf("graph %q: %s: %w", c.g.name, p.name, err)
		}
	}
	return nil
}

// prune keeps the nodes that an output or an update of a variable depends on.
func (c *compilation) prune() error {
	live := make([]bool, len(c.g.nodes))
	var mark func(v *Value)
	mark = func(v *Value) {
		if v == nil || v.node == nil || live[v.node.id] {
			return
		}
		live[v.node.id] = true
		for _, in := range v.node.in {
			mark(in)
			mark(in.Rows())
		}
		for _, out := range v.node.out {
			mark(out.Rows())
		}
	}
	for _, o := range c.prog.outputs {
		mark(o.v)
		mark(o.v.rows)
	}
	for _, n := range c.g.nodes {
		if n.updates() {
			live[n.id] = true
			for _, in := range n.in {
				mark(in)
				mark(in.Rows())
			}
		}
	}
	for _, n := range c.g.nodes {
		if live[n.id] {
			c.steps = append(c.steps, c.step(n))
		}
	}
	for _, e := range c.g.equal {
		if e.node < len(live) && live[e.node] {
			c.prog.equal = append(c.prog.equal, [2]*Value{e.a, e.b})
		}
	}
	return nil
}

// updates says whether the node rewrites a variable or has another effect.
func (n *Node) updates() bool {
	for i, o := range n.op.Operands() {
		if o.Update && n.in[i] != nil {
			return true
		}
	}
	e, ok := n.op.(Effecter)
	return ok && e.Effect()
}

func (c *compilation) step(n *Node) *Step {
	return &Step{
		Name: n.name, Op: n.op, nodeIDs: []int{n.id},
		In: append([]*Value(nil), n.in...), Out: append([]*Value(nil), n.out...),
	}
}

// node returns the step as a Node, for the Op interfaces that take one.
func (s *Step) node(g *Graph) *Node {
	return &Node{g: g, id: s.nodeIDs[0], name: s.Name, op: s.Op, in: s.In, out: s.Out}
}

// dropOutputs removes outputs that no step and no caller needs, so that they take neither time nor bytes.
func (c *compilation) dropOutputs() error {
	used := c.uses()
	for _, s := range c.steps {
		for i, v := range s.Out {
			if v != nil && used[v] == 0 {
				s.Out[i] = nil
			}
		}
	}
	return nil
}

// uses counts the readers of each value: operands, row counts and outputs of the graph.
func (c *compilation) uses() map[*Value]int {
	used := map[*Value]int{}
	for _, s := range c.steps {
		for _, v := range s.reads() {
			used[v]++
		}
	}
	for _, o := range c.prog.outputs {
		used[o.v]++
		if o.v.rows != nil {
			used[o.v.rows]++
		}
	}
	return used
}

// reads lists what the step reads: operands, and the row counts of operands and outputs. A value stands
// once for each operand.
func (s *Step) reads() []*Value {
	var vs []*Value
	seen := map[*Value]bool{}
	for _, v := range s.In {
		if v != nil {
			vs = append(vs, v)
			seen[v] = true
		}
	}
	for _, v := range append(append([]*Value(nil), s.In...), s.Out...) {
		if r := v.Rows(); r != nil && !seen[r] && !s.makes(r) {
			vs = append(vs, r)
			seen[r] = true
		}
	}
	return vs
}

func (s *Step) makes(v *Value) bool {
	for _, o := range s.Out {
		if o == v {
			return true
		}
	}
	return false
}

// checkDevice asks the device for code for every step and for the bytes that it needs while it runs: a device with
// a Scratch method says so itself, else the op does.
func (c *compilation) checkDevice() error {
	for _, s := range c.steps {
		if err := c.dev.Check(s.Op); err != nil {
			return fmt.Errorf("%s %q: %w", s.Op.Kind(), s.Name, err)
		}
		n := s.node(c.g)
		if d, ok := c.dev.(interface{ Scratch(n *Node) int64 }); ok {
			s.scratch = d.Scratch(n)
		} else if sc, ok := s.Op.(Scratcher); ok {
			s.scratch = sc.Scratch(n)
		}
		s.Cost = costOf(n)
	}
	return nil
}

// launches lets a device that has a Validate method refuse what only a whole plan shows, such as a combination of
// formats for which an operator has no kernel.
func (c *compilation) launches() error {
	if d, ok := c.dev.(interface{ Validate(p *Program) error }); ok {
		return d.Validate(c.prog)
	}
	return nil
}

// costOf counts flops by the op's own rule, and every operand and live output once.
func costOf(n *Node) Cost {
	var c Cost
	if f, ok := n.op.(Coster); ok {
		c.Flops = f.Flops(n)
	}
	for i, v := range n.in {
		c.Bytes += v.Bytes()
		if v != nil && n.op.Operands()[i].Update {
			c.Bytes += v.Bytes()
		}
	}
	for _, v := range n.out {
		c.Bytes += v.Bytes()
	}
	return c
}

// dependencies orders the steps: a reader after the maker, around each update of a variable the readers and writers
// in the order of building, and in that order those with effects beyond Values, which may write the same bytes.
func (c *compilation) dependencies() error {
	maker := map[*Value]int{}
	writer := map[*variable]int{}
	readers := map[*variable][]int{}
	effect := -1 // the last step with an effect
	for i, s := range c.steps {
		deps := map[int]bool{}
		if e, ok := s.Op.(Effecter); ok && e.Effect() {
			if effect >= 0 {
				deps[effect] = true
			}
			effect = i
		}
		for _, v := range s.reads() {
			if v.node != nil {
				j, ok := maker[v]
				if !ok {
					return fmt.Errorf("%q reads %q, which nothing makes before it", s.Name, v.Name())
				}
				deps[j] = true
			}
		}
		ops := s.Op.Operands()
		for k, v := range s.In {
			if v == nil || v.variable == nil {
				continue
			}
			if w, ok := writer[v.variable]; ok {
				deps[w] = true
			}
			if ops[k].Update {
				for _, r := range readers[v.variable] {
					deps[r] = true
				}
			}
		}
		for k, v := range s.In {
			if v == nil || v.variable == nil {
				continue
			}
			if ops[k].Update {
				writer[v.variable] = i
				readers[v.variable] = nil
			} else {
				readers[v.variable] = append(readers[v.variable], i)
			}
		}
		for _, v := range s.Out {
			if v != nil {
				maker[v] = i
			}
		}
		delete(deps, i)
		s.deps = sortedKeys(deps)
	}
	return nil
}

func sortedKeys(set map[int]bool) []int {
	keys := make([]int, 0, len(set))
	for k := range set {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// order returns the happens-before edges of the schedule: stream order and waits.
func (p *Program) order() memory.Order {
	o := memory.Order{Nodes: len(p.steps)}
	last := map[int]int{}
	for i, s := range p.steps {
		if j, ok := last[s.Stream]; ok {
			o.Edges = append(o.Edges, [2]int{j, i})
		}
		last[s.Stream] = i
		for _, w := range s.Waits {
			o.Edges = append(o.Edges, [2]int{w, i})
		}
	}
	return o
}
