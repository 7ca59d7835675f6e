package runnode

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/moegraph/moegraph/graph"
)

// Help describes the node for a terminal: operands, attributes with defaults, outputs.
func (n *Node) Help() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", n.Doc)
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nOperands (keys of the input file):")
	for _, o := range n.Operands {
		var notes []string
		if o.Optional {
			notes = append(notes, "optional")
		}
		if o.PerExpert {
			notes = append(notes, "or expert by expert: "+o.Name+".0, "+o.Name+".1, ...")
		}
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\n", o.Name, o.Shape, o.Format, strings.Join(notes, "; "))
	}
	fmt.Fprintln(w, "\nAttributes (attr.NAME in the file, or -set NAME=value):")
	for _, a := range n.Attrs {
		fmt.Fprintf(w, "  %s\t%s\t%s\n", a.Name, defaultOf(a), a.Wants())
	}
	fmt.Fprintln(w, "\nOutputs:")
	for _, o := range n.Outputs {
		when := ""
		if o.When != "" {
			when = "with " + o.When
		}
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\n", o.Name, o.Shape, o.Format, when)
	}
	w.Flush()
	return trimLines(b.String())
}

func defaultOf(a Attr) string {
	if a.Required() {
		return required
	}
	return "default " + a.DefaultText()
}

// trimLines removes the padding at the ends of lines.
func trimLines(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}

// devices are the kinds of device with code for operators, each with the test for one.
var devices = []struct {
	name string
	has  func(op graph.Op) bool
}{
	{"host", func(op graph.Op) bool { _, ok := op.(graph.HostOp); return ok }},
}

// DevicesOf lists the kinds of device that have code for an operator.
func DevicesOf(op graph.Op) []string {
	var names []string
	for _, d := range devices {
		if d.has(op) {
			names = append(names, d.name)
		}
	}
	return names
}

// devices lists the kinds of device that can run the node: those that all its operators have code for.
func (n *Node) devices() []string {
	var names []string
	for _, d := range devices {
		if !slices.ContainsFunc(graph.Operators(), func(info graph.Info) bool {
			return contains(n.Kinds, info.Example.Kind()) && !d.has(info.Example)
		}) {
			names = append(names, d.name)
		}
	}
	return names
}

// Markdown prints the nodes of the command line and the operators of graphs as two Markdown tables.
func Markdown() string {
	var b strings.Builder
	b.WriteString(NodesMarkdown())
	b.WriteString("\n")
	b.WriteString(OperatorsMarkdown())
	return b.String()
}

// NodesMarkdown prints a line for each node of the command line.
func NodesMarkdown() string {
	t := newTable("node", "computes", "operands", "options", "outputs", "devices")
	for _, n := range table {
		var operands, attrs, outputs []string
		for _, o := range n.Operands {
			operands = append(operands, optionalMark(o.Name, o.Optional))
		}
		for _, a := range n.Attrs {
			attrs = append(attrs, code(a.Name)+" "+a.DefaultText())
		}
		for _, o := range n.Outputs {
			outputs = append(outputs, optionalMark(o.Name, o.When != ""))
		}
		on := strings.Join(n.devices(), ", ")
		if on == "" {
			on = "none yet"
		}
		t.row(code(n.Name), n.Doc, strings.Join(operands, " "), strings.Join(attrs, ", "), strings.Join(outputs, " "), on)
	}
	return t.String()
}

// OperatorsMarkdown prints a line for each registered operator.
func OperatorsMarkdown() string {
	t := newTable("operator", "computes", "operands", "options", "gradient", "devices")
	for _, info := range graph.Operators() {
		op := info.Example
		var operands []string
		for _, o := range op.Operands() {
			operands = append(operands, optionalMark(o.Name, o.Optional))
		}
		gradient := "yes"
		if _, ok := op.(graph.Differentiable); !ok {
			gradient = "no: " + info.NoGrad
		}
		t.row(code(op.Kind()), info.Doc, strings.Join(operands, " "), strings.Join(info.Options, ", "), gradient, strings.Join(DevicesOf(op), ", "))
	}
	return t.String()
}

func code(s string) string { return "`" + s + "`" }

// optionalMark puts a name in brackets where it need not be there.
func optionalMark(name string, optional bool) string {
	if optional {
		return "[" + code(name) + "]"
	}
	return code(name)
}

// markdownTable collects the rows of a Markdown table.
type markdownTable struct{ b strings.Builder }

func newTable(heads ...string) *markdownTable {
	t := &markdownTable{}
	t.row(heads...)
	t.b.WriteString("|" + strings.Repeat(" --- |", len(heads)) + "\n")
	return t
}

// row adds a row; a bar in a cell must not end it.
func (t *markdownTable) row(cells ...string) {
	for _, c := range cells {
		t.b.WriteString("| " + strings.ReplaceAll(c, "|", `\|`) + " ")
	}
	t.b.WriteString("|\n")
}

func (t *markdownTable) String() string { return t.b.String() }
