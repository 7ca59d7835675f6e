package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/runnode"
	"github.com/moegraph/moegraph/kernels"
)

func newInfo() *cobra.Command {
	var operators, markdown bool
	cmd := &cobra.Command{
		Use:   "info",
		Short: "Say what this build is and can do",
		Example: `  moegraph info
  moegraph info -operators
  moegraph info -operators -markdown`,
		Args: cobra.NoArgs,
		RunE: action(func(cmd *cobra.Command, _ []string) error {
			w := cmd.OutOrStdout()
			switch {
			case markdown:
				fmt.Fprint(w, runnode.Markdown())
			case operators:
				writeOperators(w)
			default:
				writeBuild(w)
				fmt.Fprintln(w)
				writeOperators(w)
			}
			return nil
		}),
	}
	cmd.Flags().BoolVar(&operators, "operators", false, "the operators alone")
	cmd.Flags().BoolVar(&markdown, "markdown", false, "nodes and operators as Markdown tables")
	return cmd
}

// version is the module's version, or the commit that the program was built from.
func version() string {
	b, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	v := b.Main.Version
	if v != "" && v != "(devel)" {
		return v
	}
	v = "devel"
	for _, s := range b.Settings {
		switch {
		case s.Key == "vcs.revision":
			v += " " + s.Value[:min(12, len(s.Value))]
		case s.Key == "vcs.modified" && s.Value == "true":
			v += " with changes"
		}
	}
	return v
}

func writeBuild(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	defer w.Flush()
	fmt.Fprintf(w, "moegraph\t%s\n", version())
	fmt.Fprintf(w, "Go\t%s %s/%s\n", runtime.Version(), runtime.GOOS, runtime.GOARCH)
	fmt.Fprintf(w, "cores\t%d\n", runtime.GOMAXPROCS(0))
	fmt.Fprintf(w, "devices\t%s\n", strings.Join(graph.Devices(), ", "))
	cache := kernels.OpenDisk().Dir()
	if cache == "" {
		cache = "off"
	}
	fmt.Fprintf(w, "cache\t%s (compiled kernels; MOEGRAPH_CACHE names another folder, or off)\n", cache)
	plans := graph.PlanDir()
	if plans == "" {
		plans = "off"
	}
	fmt.Fprintf(w, "plans\t%s (%s names a folder)\n", plans, graph.EnvPlans)
}

// writeOperators prints a line for each node of the command line and for each operator of graphs.
func writeOperators(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	defer w.Flush()
	fmt.Fprintln(w, "nodes of moegraph run:")
	for _, n := range runnode.Nodes() {
		note := ""
		if !n.Supported() {
			note = " (not supported yet)"
		}
		fmt.Fprintf(w, "  %s\t%s%s\n", n.Name, n.Doc, note)
	}
	fmt.Fprintln(w, "operators of graphs:")
	for _, info := range graph.Operators() {
		fmt.Fprintf(w, "  %s\t%s\n", info.Example.Kind(), info.Doc)
	}
}
