package graph

import (
	"fmt"
	"math"
	"strings"

	"github.com/moegraph/moegraph/dtype"
)

// Kind says where a Value's bytes live and who writes them.
type Kind uint8

// The kinds of Value.
const (
	Workspace Kind = iota // made by a node, in the Exec's arena; an output of the graph has memory of its own
	Input                 // given by the caller before a replay
	Param                 // a trainable variable of a Vars
	State                 // a variable of a Vars that is no parameter: moments, counters, accumulators
)

// String returns the kind's name.
func (k Kind) String() string {
	return [...]string{"workspace", "input", "param", "state"}[k]
}

// upToBase marks a capacity: UpTo(n) is upToBase + n, which no honest dimension reaches.
const upToBase = math.MinInt

// UpTo marks the first dimension of an input as a capacity of n rows: each Write brings its own number
// of rows, from 0 to n, and a new number is the same Program. n is at least 1.
func UpTo(n int) int {
	if n < 1 {
		return upToBase
	}
	return upToBase + n
}

// Value is one tensor of a graph: what an operator takes and makes. Values are compared by identity.
// All methods may be called on nil and on the Values that a failed call returned.
type Value struct {
	g        *Graph
	node     *Node // the producer; nil for inputs and variables
	index    int   // which output of node
	name     string
	kind     Kind
	dt       dtype.DType
	shape    []int
	rows     *Value // int32; its last element is the number of rows in use; nil: all rows
	given    bool   // it counts the rows of an input's data
	whole    bool   // an input whose data has the whole capacity, whatever counts its rows
	variable *variable
	err      error // the mistake that made this Value unusable
}

// Spec describes a Value that an operator makes: dtype, shape, and for a first axis that is a capacity the
// int32 Value whose last element counts the rows in use. The zero Spec means that this output does
// not exist with the operands and options given.
type Spec struct {
	DType  dtype.DType
	Shape  []int
	Rows   *Value
	RowsOf int // 1 + the index of the output of the same node that counts the rows; 0: Rows does
}

// Name returns the Value's path name, such as "moe/fc1" or "moe/fc1:c".
func (v *Value) Name() string {
	switch {
	case v == nil:
		return "none"
	case v.node != nil:
		n := v.node.name
		if v.index > 0 {
			n += ":" + v.node.op.Outputs()[v.index]
		}
		return n
	}
	return v.name
}

// Kind returns where the Value lives.
func (v *Value) Kind() Kind {
	if v == nil {
		return Workspace
	}
	return v.kind
}

// DType returns the number format, Invalid for a Value that a failed call returned.
func (v *Value) DType() dtype.DType {
	if v == nil {
		return dtype.Invalid
	}
	return v.dt
}

// Shape returns the dimensions; the first is the capacity where rows are counted. The caller may keep it.
func (v *Value) Shape() []int {
	if v == nil {
		return nil
	}
	return append([]int(nil), v.shape...)
}

// Rank returns the number of dimensions.
func (v *Value) Rank() int {
	if v == nil {
		return 0
	}
	return len(v.shape)
}

// Dim returns dimension i, 0 where there is none; -1 is the last.
func (v *Value) Dim(i int) int {
	if v == nil {
		return 0
	}
	if i < 0 {
		i += len(v.shape)
	}
	if i < 0 || i >= len(v.shape) {
		return 0
	}
	return v.shape[i]
}

// Elems returns the number of elements at capacity.
func (v *Value) Elems() int {
	if v == nil {
		return 0
	}
	return elems(v.shape)
}

// Bytes returns the number of bytes at capacity.
func (v *Value) Bytes() int64 {
	if v == nil {
		return 0
	}
	return int64(v.dt.Bytes(elems(v.shape)))
}

// Rows returns the int32 Value whose last element is the number of rows in use, nil if all are.
func (v *Value) Rows() *Value {
	if v == nil {
		return nil
	}
	return v.rows
}

// Graph returns the graph that the Value belongs to, nil for a variable that no graph has used yet.
func (v *Value) Graph() *Graph {
	if v == nil {
		return nil
	}
	return v.g
}

// Producer returns the node that makes the Value, nil for inputs and variables.
func (v *Value) Producer() *Node {
	if v == nil {
		return nil
	}
	return v.node
}

// Err returns the mistake that made the Value unusable, if there is one.
func (v *Value) Err() error {
	if v == nil {
		return nil
	}
	return v.err
}

// Spec returns a description of the Value.
func (v *Value) Spec() Spec {
	if v == nil {
		return Spec{}
	}
	return Spec{DType: v.dt, Shape: v.Shape(), Rows: v.rows}
}

// Named gives the node that makes v another name, below the current scope, and returns v.
func (v *Value) Named(name string) *Value {
	if v != nil && v.node != nil && v.g != nil {
		v.node.name = v.g.unique(v.g.path(name))
	}
	return v
}

// String describes the Value: name, dtype and shape, a capacity written as <=n.
func (v *Value) String() string {
	if v == nil {
		return "none"
	}
	return v.Name() + " " + v.Text()
}

// Text returns dtype and shape, such as "bf16 (<=8192,1024)".
func (v *Value) Text() string {
	if v == nil {
		return "none"
	}
	return v.dt.String() + " " + shapeString(v.shape, v.rows != nil)
}

func shapeString(shape []int, counted bool) string {
	var b strings.Builder
	b.WriteByte('(')
	for i, d := range shape {
		if i > 0 {
			b.WriteByte(',')
		}
		if i == 0 && counted {
			b.WriteString("<=")
		}
		fmt.Fprintf(&b, "%d", d)
	}
	if len(shape) == 1 {
		b.WriteByte(',')
	}
	b.WriteByte(')')
	return b.String()
}

func elems(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}

// maxBytes bounds one Value: 2^46 bytes is beyond any machine and far from overflow in sums.
const maxBytes = 1 << 46

// checkShape refuses negative dimensions and sizes that no machine holds, before anything multiplies them.
func checkShape(operand string, dt dtype.DType, shape []int) error {
	if dt.Bits() == 0 {
		return BadDType(operand, dt, "a number format")
	}
	bits := float64(dt.Bits())
	for _, d := range shape {
		if d < 0 {
			return BadShape(operand, shapeString(shape, false), "dimensions of at least 0")
		}
		bits *= float64(max(d, 1))
	}
	if bits/8 > maxBytes {
		return BadShape(operand, shapeString(shape, false), "at most 2^46 bytes")
	}
	return nil
}
