package runnode

import (
	"fmt"
	"strings"

	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/npz"
)

// Node is one row of the table: a node as the command line names it.
type Node struct {
	Name     string   // as on the command line: "grouped-gemm"
	Doc      string   // what it computes, one line
	Kinds    []string // kinds of the operators that it is made of
	Operands []Operand
	Attrs    []Attr
	Outputs  []Output
	Example  string // attributes worth a try, as -set takes them: "top_k=2 order=sigmoid"

	// check looks at what operands have to do with each other before anything is built, optional.
	check func(c *call) error
	// build appends the node to c.g and marks the outputs with c.out.
	build func(c *call)
}

// Operand is one operand of a Node.
type Operand struct {
	Name      string
	Shape     string // letters as in the contracts: "(M,K)"
	Format    string
	Optional  bool
	PerExpert bool // may be given expert by expert: "b.0", "b.1", ...
	Update    bool // rewritten in place: an accumulator
}

// Output is one output of a Node.
type Output struct {
	Name   string
	Shape  string
	Format string
	When   string // the condition under which it is there; empty: always
}

// Nodes returns the table's rows in order. The rows are not to be changed.
func Nodes() []*Node { return append([]*Node(nil), table...) }

// Names returns the names of the nodes in the table's order.
func Names() []string {
	names := make([]string, len(table))
	for i, n := range table {
		names[i] = n.Name
	}
	return names
}

// Lookup returns the node of a name; the error lists the names there are.
func Lookup(name string) (*Node, error) {
	for _, n := range table {
		if n.Name == name {
			return n, nil
		}
	}
	return nil, fmt.Errorf("%w: node: got %q, want one of %s", graph.ErrUsage, name, strings.Join(Names(), ", "))
}

// operand returns the operand of a name, nil if the node has none.
func (n *Node) operand(name string) *Operand {
	for i := range n.Operands {
		if n.Operands[i].Name == name {
			return &n.Operands[i]
		}
	}
	return nil
}

// Attr returns the attribute of a name, nil if the node has none.
func (n *Node) Attr(name string) *Attr {
	for i := range n.Attrs {
		if n.Attrs[i].Name == name {
			return &n.Attrs[i]
		}
	}
	return nil
}

// checkOperands refuses operands that the node does not have, that are given twice, or that are missing.
func (n *Node) checkOperands(operands []npz.Operand) error {
	given := map[string]bool{}
	for _, o := range operands {
		d := n.operand(o.Name)
		switch {
		case d == nil:
			return graph.Misuse(o.Name, fmt.Sprintf("key %q", o.Array.Name), "one of the node's operands: %s", n.operandNames())
		case o.Expert != npz.Dense && !d.PerExpert:
			return graph.Misuse(o.Name, fmt.Sprintf("key %q", o.Array.Name), "one array for all experts")
		}
		given[o.Name] = true
	}
	if err := npz.CheckOperands(operands); err != nil {
		return err
	}
	for _, d := range n.Operands {
		if !given[d.Name] && !d.Optional {
			want := fmt.Sprintf("%s %s in %s", d.Name, d.Shape, d.Format)
			if d.PerExpert {
				want += fmt.Sprintf(", or one expert after the other: %s.0, %s.1, ...", d.Name, d.Name)
			}
			return graph.Misuse(d.Name, "none", "%s", want)
		}
	}
	return nil
}

func (n *Node) operandNames() string {
	names := make([]string, len(n.Operands))
	for i, o := range n.Operands {
		names[i] = o.Name
	}
	return strings.Join(names, ", ")
}
