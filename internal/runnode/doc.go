// Package runnode runs one node on arrays: what the command line's "run" and the golden cases do.
//
// A table holds every node: its operands, attributes with defaults, outputs, and how to build a one-node
// graph of them. Run takes the operands and attributes of an input file, as npz.Split gives them, and returns
// the outputs under the keys that files have. Help and Markdown print the table.
//
// The order of events: operands and attributes are checked against the table, defaults filled in, number
// formats checked; then operands become inputs of a graph (accumulators: variables), the node is built,
// outputs are marked, the graph is compiled, and one replay gives the outputs at capacity, zeros beyond the
// rows in use.
//
// Errors name the operand or attribute and are of the graph's kinds. Nothing here keeps state: Run may be called from
// several goroutines.
package runnode
