package graph

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
)

// streamColors tell streams apart in pictures; more streams repeat them.
var streamColors = []string{"#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#76b7b2", "#edc948", "#e15759", "#9c755f"}

func streamColor(stream int) string { return streamColors[stream%len(streamColors)] }

// WriteDOT writes the plan as a Graphviz graph: a box a step in the colour of its stream, solid edges for data,
// dashed ones for waits between streams, dotted ones for the order of updates of variables.
func (p *Program) WriteDOT(w io.Writer) error {
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, "digraph %s {\n  rankdir=TB;\n  node [shape=box, style=\"rounded,filled\", fontname=\"Helvetica\", fontcolor=white];\n", strconv.Quote(p.graph))
	for i, s := range p.steps {
		label := fmt.Sprintf("%d  %s\n%s", i, s.Name, s.Op.Kind())
		for _, v := range s.Out {
			if v != nil {
				label += "\n" + v.Text()
			}
		}
		fmt.Fprintf(b, "  n%d [label=%s, fillcolor=\"%s\"];\n", i, strconv.Quote(label), streamColor(s.Stream))
	}
	maker := map[*Value]int{}
	for i, s := range p.steps {
		data := map[int]bool{}
		for _, v := range s.reads() {
			if j, ok := maker[v]; ok && !data[j] {
				data[j] = true
				fmt.Fprintf(b, "  n%d -> n%d [label=%s];\n", j, i, strconv.Quote(v.Text()))
			}
		}
		for _, d := range s.deps {
			if !data[d] {
				fmt.Fprintf(b, "  n%d -> n%d [style=dotted];\n", d, i)
			}
		}
		for _, d := range s.Waits {
			fmt.Fprintf(b, "  n%d -> n%d [style=dashed, constraint=false, color=\"%s\"];\n", d, i, streamColor(p.steps[d].Stream))
		}
		for _, v := range s.Out {
			maker[v] = i
		}
	}
	fmt.Fprintln(b, "}")
	return b.Flush()
}
