package graph

import (
	"fmt"
	"reflect"
	"sort"
	"sync"
)

// Operand describes one operand of an operator.
type Operand struct {
	Name     string
	Optional bool
	Update   bool // the node rewrites it in place; it must be a variable
}

// Op is an operator with its options. An implementation is a comparable struct: two Ops that are equal
// compute the same, which is what merging nodes and caching kernels go by.
type Op interface {
	// Kind is the operator's name in errors, tables and kernels: "grouped_gemm".
	Kind() string
	// Operands lists the operands in order.
	Operands() []Operand
	// Outputs names the outputs in order; the first is the main one.
	Outputs() []string
	// Infer is the shape rule: it checks the operands (nil where an optional one is absent) and describes
	// each output. Its errors are made with BadShape, BadDType, Unsupported and Misuse.
	Infer(in []*Value) ([]Spec, error)
}

// Differentiable is an Op with a gradient rule.
type Differentiable interface {
	Op
	// Gradient appends the nodes that compute the gradients of n's operands from grads, the gradients of
	// its outputs (nil where none flows), and returns one per operand (nil where none flows).
	Gradient(n *Node, grads []*Value) []*Value
}

// Cost is what a node asks of a device.
type Cost struct {
	Flops int64 // floating-point operations at capacity
	Bytes int64 // fewest bytes moved: every operand and live output once
}

// Coster is an Op with flops that matter; others count as memory traffic alone.
type Coster interface {
	Flops(n *Node) int64
}

// Detailer is an Op that says more than its kind in the listing of a plan, such as the format of quantized operands.
type Detailer interface {
	// Detail returns a few words on a step with these operands, nil where one is absent.
	Detail(in []*Value) string
}

// Effecter is an Op that may write memory which is no Value, such as through addresses. Nodes whose Effect says so
// are kept though nobody needs their outputs, and run in the order of building.
type Effecter interface {
	Effect() bool
}

// Scratcher is an Op whose node needs bytes of its own while it runs.
type Scratcher interface {
	Scratch(n *Node) int64
}

// InPlacer is an Op of which an output may lie where an operand lies, if nobody needs the operand any more: it reads
// the operand at an index before it writes the output there, from one goroutine or one thread, on every device; it reads
// nothing there again, and has no other output whose elements depend on the operand's. The planner does it only for
// workspaces of as many bytes that the node has as one operand alone.
type InPlacer interface {
	// InPlace returns the operand that output i of n may overwrite, -1 for none.
	InPlace(n *Node, i int) (operand int)
}

// ValueChecker is an Op that knows what the integers among its operands may be: offsets, counts, ids, labels. With
// Debug.Offsets it is asked before each of its steps, on any device. Call holds integer operands with their
// contents; of others only format, shape and rows in use may be read. The error names the operand, what was found and what is
// allowed.
type ValueChecker interface {
	CheckValues(c *Call) error
}

// HostOp is an Op that runs on the host device.
type HostOp interface {
	Op
	// Host is called once for every Exec and returns the function that runs the node. What c.In and c.Out
	// point to may change between runs, so the function reads them anew; it must allocate nothing that
	// grows, and it must not use the values of outputs before it wrote them.
	Host(c *Call) func() error
}

// Info is an operator's row in the table of operators.
type Info struct {
	Example Op       // an Op with ordinary options
	Doc     string   // one sentence: what it computes
	Options []string // option names with defaults, for the table
	NoGrad  string   // why there is no gradient, for an Op that is not Differentiable
}

var registry = struct {
	sync.Mutex
	ops map[string]Info
}{ops: map[string]Info{}}

// Register makes an operator known under its Kind. Packages call it from init; a second registration
// of one kind, an Op that cannot be compared or an empty Doc is a programming error and panics.
func Register(info Info) {
	registry.Lock()
	defer registry.Unlock()
	kind := info.Example.Kind()
	if _, ok := registry.ops[kind]; ok {
		panic(fmt.Sprintf("graph: operator %q is registered twice", kind))
	}
	if !reflect.TypeOf(info.Example).Comparable() || info.Doc == "" {
		panic(fmt.Sprintf("graph: operator %q: want a comparable struct and a Doc", kind))
	}
	registry.ops[kind] = info
}

// Operators returns the registered operators by kind.
func Operators() []Info {
	registry.Lock()
	defer registry.Unlock()
	kinds := make([]string, 0, len(registry.ops))
	for k := range registry.ops {
		kinds = append(kinds, k)
	}
	sort.Strings(kinds)
	infos := make([]Info, len(kinds))
	for i, k := range kinds {
		infos[i] = registry.ops[k]
	}
	return infos
}

// Arithmetic is what the graph itself builds nodes of: sums of gradients, seeds, and the methods of Value.
// Package nodes sets it.
type Arithmetic struct {
	Sum   func(v ...*Value) *Value                // elementwise, one rounding
	Scale func(v *Value, factor float64) *Value   // elementwise
	Fill  func(like *Value, value float64) *Value // shape and dtype of like
	// WithRows returns x with its rows counted by rows (nil: all), zero in those that x does not have.
	WithRows func(x, rows *Value) *Value
}

var arithmetic Arithmetic

// SetArithmetic sets the operators that the graph itself needs.
func SetArithmetic(a Arithmetic) { arithmetic = a }

// Plus returns v + w, elementwise.
func (v *Value) Plus(w *Value) *Value { return arithmetic.Sum(v, w) }

// Scale returns factor * v.
func (v *Value) Scale(factor float64) *Value { return arithmetic.Scale(v, factor) }
