package gorgop

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/nodes"
	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// Weights says who owns a Layer's parameters.
type Weights uint8

// The owners of parameters.
const (
	// NodeWeights: every parameter is an input of the op, a node of gorgonia's graph, which a solver of gorgonia
	// updates. Layer.Weights makes the nodes.
	NodeWeights Weights = iota
	// ProgramWeights: the parameters stay in the graph.Vars. Config.Optimizer updates them in the replay that computes
	// the gradient of the op's input; gorgonia never sees them. A step may then apply the layer, or layers that share
	// parameters, once: the first backward replay of two would change the weights under the second, which is an error.
	ProgramWeights
)

// String returns the owner's name.
func (w Weights) String() string {
	if w == ProgramWeights {
		return "program weights"
	}
	return "node weights"
}

// Config says how a graph becomes a Layer. The zero value leaves the weights to gorgonia.
type Config struct {
	Weights Weights

	// Optimizer adds the update of the parameters to the backward replay, with ProgramWeights:
	//
	//	func(gr *graph.Grads) { nodes.AdamW(gr, nodes.AdamWConfig{Rate: 3e-4}) }
	//
	// Nil: the parameters are frozen.
	Optimizer func(*graph.Grads)

	// Losses are one-element values of the same graph whose gradients are added, such as a router's balance times its
	// weight. They count as if they were added to a cost with a gradient of 1. They are not in the op's output.
	Losses []*graph.Value

	// Balance and ZLoss are the weights of the router losses of MoE's own layer, 0 for none; they are added like
	// Losses. New and FromProgram refuse them.
	Balance, ZLoss float64

	// Options are those of Compile. FromProgram takes the Program's.
	Options graph.Options
}

// Layer is a computation of moegraph as an op of gorgonia: compiled once, applied as often as wanted, in any number of
// gorgonia graphs. Its methods may be called from several goroutines.
type Layer struct {
	name    string
	dev     graph.Device
	vars    *graph.Vars
	cfg     Config
	d       *graph.Derivative
	params  []*graph.Value // the last inputs of d.In, with NodeWeights
	owned   []*graph.Value // parameters, with ProgramWeights
	scalar  bool           // the output is one number: a scalar of gorgonia
	eval    *graph.Program // forward, keeping nothing
	train   *graph.Program // forward, keeping what backward reads
	back    *graph.Program
	forward atomic.Int64 // replays
	reverse atomic.Int64

	mu     sync.Mutex
	sites  []*site
	made   map[*gorgonia.ExprGraph]gorgonia.Nodes // by Weights
	closed bool
}

// MoE makes a Layer of a mixture-of-experts layer on (rows, moe.Hidden) inputs, rows being a capacity: it may be applied
// to matrices of up to that many rows. Hidden must be given. The parameters are made in vars, where those that are there
// already, such as a loaded checkpoint's, are used.
//
// The input is float32 inside, and moe.Compute says what the products are computed in: with BFloat16 operands are
// rounded to 8 bits of mantissa, a relative error of up to 2^-9 each; sums are float32.
func MoE(dev graph.Device, vars *graph.Vars, rows int, moe nodes.MoE, cfg Config) (*Layer, error) {
	name := "moe"
	if vars != nil && vars.Prefix() != "" {
		name = vars.Prefix()
	}
	if moe.Hidden < 1 {
		return nil, fmt.Errorf("gorgop: layer %q: %w", name, graph.BadShape("Hidden", moe.Hidden, "the width of the layer's input"))
	}
	g := graph.New(name)
	x := g.Input("x", dtype.Float32, graph.UpTo(rows), moe.Hidden)
	y, aux := nodes.MoELayer(x, vars, moe)
	cfg.Losses = slices.Clone(cfg.Losses)
	if cfg.Balance != 0 {
		cfg.Losses = append(cfg.Losses, aux.Balance.Scale(cfg.Balance))
	}
	if cfg.ZLoss != 0 {
		cfg.Losses = append(cfg.Losses, aux.ZLoss.Scale(cfg.ZLoss))
	}
	if err := g.Err(); err != nil {
		return nil, fmt.Errorf("gorgop: %w", err)
	}
	cfg.Balance, cfg.ZLoss = 0, 0
	return New(dev, vars, y, cfg)
}

// FromProgram makes a Layer of what an output of a compiled Program depends on, for the Program's device and with its
// options. Other outputs, and the Program's own updates of variables, are left out.
func FromProgram(p *graph.Program, output string, vars *graph.Vars, cfg Config) (*Layer, error) {
	if p == nil {
		return nil, fmt.Errorf("gorgop: %w: want a Program", graph.ErrUsage)
	}
	y := p.Output(output)
	if y == nil {
		return nil, fmt.Errorf("gorgop: program %q: %w", p.Name(), graph.Misuse("output", output, "one of %q", p.Outputs()))
	}
	cfg.Options = p.Options()
	return New(p.Device(), vars, y, cfg)
}

// New makes a Layer whose output is y, of a graph that may hold more: the op's inputs are the inputs that y depends on,
// in the graph's order. vars holds the parameters of y; it may be nil if there are none. Inputs in float formats get
// gradients where one flows; int32, int64 and uint8 ones get none.
func New(dev graph.Device, vars *graph.Vars, y *graph.Value, cfg Config) (*Layer, error) {
	l := &Layer{name: y.Name(), dev: dev, vars: vars, cfg: cfg}
	if g := y.Graph(); g != nil {
		l.name = g.Name()
	}
	if err := l.build(y); err != nil {
		return nil, fmt.Errorf("gorgop: layer %q: %w", l.name, err)
	}
	return l, nil
}

func (l *Layer) build(y *graph.Value) error {
	der := graph.Derivation{Y: y, Losses: l.cfg.Losses}
	switch {
	case l.cfg.Weights > ProgramWeights:
		return graph.Misuse("Config.Weights", uint8(l.cfg.Weights), "NodeWeights or ProgramWeights")
	case l.cfg.Balance != 0 || l.cfg.ZLoss != 0:
		return graph.Misuse("Config.Balance, ZLoss", fmt.Sprint(l.cfg.Balance, l.cfg.ZLoss), "0, and Losses: only MoE knows its router")
	case l.cfg.Weights == ProgramWeights:
		l.owned = used(y, l.cfg.Losses)
		der.Update = l.cfg.Optimizer
	case l.cfg.Optimizer != nil:
		return graph.Misuse("Config.Optimizer", "one with node weights",
			"none, since a solver of gorgonia updates them, or ProgramWeights")
	default:
		l.params = used(y, l.cfg.Losses)
		der.Free = l.params
	}
	var err error
	if l.d, err = graph.Derive(der); err != nil {
		return err
	}
	for _, in := range l.d.In {
		if _, err := dtypeFor(in, tensor.Float32); err != nil {
			return err
		}
	}
	shape := l.d.Y.Shape()
	l.scalar = len(shape) == 0 || len(shape) == 1 && shape[0] == 1 && l.d.Y.Rows() == nil
	// Compiled before Keep: an Exec of it keeps no activations.
	if l.eval, err = l.d.Forward.Compile(l.dev, l.cfg.Options); err != nil {
		return err
	}
	l.d.Keep()
	if l.train, err = l.d.Forward.Compile(l.dev, l.cfg.Options); err != nil {
		return err
	}
	l.back, err = l.d.Backward.Compile(l.dev, l.cfg.Options)
	return err
}

// used returns the parameters that y or the losses depend on, in the order of use.
func used(y *graph.Value, losses []*graph.Value) []*graph.Value {
	var params []*graph.Value
	seen := map[*graph.Value]bool{}
	var visit func(v *graph.Value)
	visit = func(v *graph.Value) {
		if v == nil || seen[v] {
			return
		}
		seen[v] = true
		if v.Kind() == graph.Param {
			params = append(params, v)
		}
		if n := v.Producer(); n != nil {
			for i := range n.Op().Operands() {
				visit(n.In(i))
			}
		}
	}
	visit(y)
	for _, v := range losses {
		visit(v)
	}
	return params
}

// updates counts the updates of the parameters that the Program owns.
func (l *Layer) updates() (n int64) {
	for _, p := range l.owned {
		n += graph.VarUpdates(p)
	}
	return n
}

// Name returns the layer's name: that of its graph.
func (l *Layer) Name() string { return l.name }

// Params returns the parameters that are inputs of the op, in their order; none with ProgramWeights.
func (l *Layer) Params() []*graph.Value { return slices.Clone(l.params) }

// Replays returns how many forward and backward replays the layer's ops have made: one for each Do.
func (l *Layer) Replays() (forward, backward int64) { return l.forward.Load(), l.reverse.Load() }

// Weights adds the parameters to a gorgonia graph as nodes of type dt, float32 or float64, named like the parameters
// and holding copies of their values in the Vars. Apply takes them, after the inputs. A second call for the same graph
// returns the same nodes: applications of one layer share weights. To gorgonia input nodes of one name are one node, so
// that a name which somebody else has taken is an error: give each layer a Vars.Scope of its own.
func (l *Layer) Weights(g *gorgonia.ExprGraph, dt tensor.Dtype) (gorgonia.Nodes, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ns, err := l.weights(g, dt)
	if err != nil {
		return nil, fmt.Errorf("gorgop: layer %q: %w", l.name, err)
	}
	return ns, nil
}

func (l *Layer) weights(g *gorgonia.ExprGraph, dt tensor.Dtype) (ns gorgonia.Nodes, err error) {
	if l.closed {
		return nil, fmt.Errorf("%w: Weights after Close", graph.ErrUsage)
	}
	if err := nodesOf(g, dt); err != nil {
		return nil, err
	}
	if ns := l.made[g]; len(ns) > 0 {
		if ns[0].Dtype() != dt {
			return nil, graph.BadDType("type", dt, "%v as at the first call for this graph", ns[0].Dtype())
		}
		return slices.Clone(ns), nil
	}
	for _, p := range l.params {
		if name := graph.VarName(p); len(g.ByName(name)) > 0 {
			return nil, graph.Misuse("parameter", fmt.Sprintf("%q, the name of another node of the graph", name),
				"a name of its own, by Vars.Scope")
		}
	}
	for _, p := range l.params {
		v := newDense(dt, p.Shape())
		if err := graph.VarsOf(p).Read(p, v); err != nil {
			return nil, err
		}
		name := gorgonia.WithName(graph.VarName(p))
		ns = append(ns, gorgonia.NewTensor(g, dt, p.Rank(), gorgonia.WithShape(p.Shape()...), name, gorgonia.WithValue(v)))
	}
	if l.made == nil {
		l.made = map[*gorgonia.ExprGraph]gorgonia.Nodes{}
	}
	l.made[g] = ns
	return slices.Clone(ns), nil
}

// Store copies the values of nodes that Weights made back to the Vars, from where Vars.Save writes a checkpoint.
func (l *Layer) Store(weights gorgonia.Nodes) error {
	if len(weights) != len(l.params) {
		err := graph.Misuse("weights", len(weights), "the %d nodes of Weights", len(l.params))
		return fmt.Errorf("gorgop: layer %q: %w", l.name, err)
	}
	for i, p := range l.params {
		var d *tensor.Dense
		err := graph.Misuse("weights", "a nil node", "the node of %q", graph.VarName(p))
		if weights[i] != nil {
			d, err = dense(weights[i].Value())
		}
		if err == nil {
			err = graph.VarsOf(p).Write(p, d)
		}
		if err != nil {
			return fmt.Errorf("gorgop: layer %q: %w", l.name, err)
		}
	}
	return nil
}

// Release frees what the applications in a gorgonia graph hold. Their ops cannot run any more.
func (l *Layer) Release(g *gorgonia.ExprGraph) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs error
	delete(l.made, g)
	l.sites = slices.DeleteFunc(l.sites, func(s *site) bool {
		if s.g != g {
			return false
		}
		errs = errors.Join(errs, s.close())
		return true
	})
	return errs
}

// Close frees what all applications hold. The parameters stay with their Vars. A second Close does nothing.
func (l *Layer) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs error
	for _, s := range l.sites {
		errs = errors.Join(errs, s.close())
	}
	l.sites, l.made, l.closed = nil, nil, true
	return errs
}
