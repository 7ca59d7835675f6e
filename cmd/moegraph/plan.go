package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/atomicfile"
	"github.com/moegraph/moegraph/internal/cudadev"
	"github.com/moegraph/moegraph/internal/shapes"
	"github.com/moegraph/moegraph/nodes"
)

// measured are the layers that plan and bench know by name.
var measured = shapes.All

func shapeNames() []string {
	names := make([]string, len(measured))
	for i, s := range measured {
		names[i] = s.Name
	}
	return names
}

// planFlags are the flags of plan.
type planFlags struct {
	shape            string
	size             shapes.Shape // what flags give instead of the shape's; 0: as the shape
	compute, order   string
	alignment        int
	capacity         int
	streams          int
	backward, noFuse bool
	device           string
	dot, trace, svg  string
	html             string
	maxWorkspace     int64
	save, load       string
}

func newPlan() *cobra.Command {
	var f planFlags
	cmd := &cobra.Command{
		Use:   "plan [-shape NAME]",
		Short: "Plan a mixture-of-experts layer and print the plan",
		Long: `Plan a mixture-of-experts layer: its steps, their streams and waits, and where in memory the workspaces
lie. Nothing is run and none of the layer's memory is taken, so layers of any size can be planned.

Shapes: ` + shapesText(),
		Example: `  moegraph plan
  moegraph plan -shape mixtral -backward -device plan:sm_90 -html plan.html
  moegraph plan -experts 16 -topk 4 -hidden 512 -intermediate 256 -tokens 4096 -compute f32`,
		Args: cobra.NoArgs,
		RunE: action(func(cmd *cobra.Command, _ []string) error { return f.run(cmd) }),
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.shape, "shape", measured[0].Name, "sizes of a model: "+strings.Join(shapeNames(), ", "))
	flags.IntVar(&f.size.Experts, "experts", 0, "`number` of experts (default the shape's)")
	flags.IntVar(&f.size.TopK, "topk", 0, "`number` of experts a token goes to (default the shape's)")
	flags.IntVar(&f.size.Hidden, "hidden", 0, "`width` of a token (default the shape's)")
	flags.IntVar(&f.size.Intermediate, "intermediate", 0, "`width` of an expert, a multiple of 32 (default the shape's)")
	flags.IntVar(&f.size.Tokens, "tokens", 0, "`number` of tokens a step holds at most (default the shape's)")
	flags.StringVar(&f.compute, "compute", "bf16", "`format` of the matrix products: bf16, f16, f32")
	flags.StringVar(&f.order, "order", "softmax_topk", "`name` of the router's order: softmax_topk, topk_softmax, sigmoid")
	flags.IntVar(&f.alignment, "alignment", nodes.DefaultAlignment, "`rows` that each expert's share is a multiple of, a power of two up to 256")
	flags.IntVar(&f.capacity, "capacity", 0, "`rows` for all experts (default room for any routing)")
	flags.BoolVar(&f.backward, "backward", false, "with the backward pass")
	flags.IntVar(&f.streams, "streams", 0, "most streams to use, a `number` from 1 to 64 (default chosen)")
	flags.Int64Var(&f.maxWorkspace, "max-workspace", 0, "most `bytes` for workspaces (default no limit)")
	flags.BoolVar(&f.noFuse, "no-fuse", false, "keep every node as it was built")
	addDevice(cmd, &f.device, "plan for", planDevices()...)
	flags.StringVar(&f.dot, "dot", "", "write the graph as DOT, a `file`")
	flags.StringVar(&f.trace, "trace", "", "write the simulated schedule as a trace for Perfetto, a `file`")
	flags.StringVar(&f.svg, "svg", "", "write memory over time as a picture, a `file`")
	flags.StringVar(&f.html, "html", "", "write graph, streams, memory and table as a page for a browser, a `file`")
	flags.StringVar(&f.save, "save", "", "write the plan as text that -load reads, a `file`")
	flags.StringVar(&f.load, "load", "", "use a plan that -save wrote, a `file`")
	for name, values := range map[string][]string{
		"shape": shapeNames(), "compute": {"bf16", "f16", "f32"}, "order": {"softmax_topk", "topk_softmax", "sigmoid"},
	} {
		must(cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)))
	}
	return cmd
}

func shapesText() string {
	var b strings.Builder
	for _, s := range measured {
		fmt.Fprintf(&b, "\n  %-12s experts %d, top %d, hidden %d, intermediate %d, tokens %d", s.Name, s.Experts, s.TopK, s.Hidden, s.Intermediate, s.Tokens)
	}
	return b.String()
}

func (f *planFlags) run(cmd *cobra.Command) error {
	dev, err := openToPlan(f.device)
	if err != nil {
		return fmt.Errorf("-device: %w", err)
	}
	s, err := f.sizes(cmd)
	if err != nil {
		return err
	}
	g, err := f.build(s)
	if err != nil {
		return err
	}
	opt := graph.Options{Streams: f.streams, NoFuse: f.noFuse, MaxWorkspace: f.maxWorkspace}
	if f.load != "" {
		if opt.Plan, err = readPlan(f.load); err != nil {
			return fmt.Errorf("-load: %w", err)
		}
	}
	prog, err := g.Compile(dev, opt)
	if err != nil {
		return err
	}
	fmt.Fprint(cmd.OutOrStdout(), prog)
	if f.backward && f.compute != "f32" {
		fmt.Fprintf(cmd.OutOrStdout(), "saved for backward, in theory: %.1f MiB (tokens x top k x (hidden + 3 intermediate) x 2 bytes)\n", mib(s.Saved()))
	}
	for _, export := range []struct {
		path  string
		write func(io.Writer) error
	}{{f.dot, prog.WriteDOT}, {f.trace, prog.WriteTrace}, {f.svg, prog.WriteSVG}, {f.html, prog.WriteHTML}, {f.save, writePlan(prog)}} {
		if export.path == "" {
			continue
		}
		if err := atomicfile.Write(export.path, export.write); err != nil {
			return err
		}
		fmt.Fprintf(cmd.OutOrStdout(), "wrote %s\n", export.path)
	}
	return nil
}

// planDevices names the GPUs that can be planned for where there is none.
func planDevices() []string {
	var names []string
	for _, arch := range slices.Sorted(maps.Keys(cudadev.GPUs)) {
		names = append(names, fmt.Sprintf("plan:sm_%d", arch))
	}
	return names
}

// openToPlan opens a device, or one that only plans.
func openToPlan(name string) (graph.Device, error) {
	rest, ok := strings.CutPrefix(name, "plan:")
	if !ok {
		return graph.Open(name)
	}
	for arch, gpu := range cudadev.GPUs {
		if rest == fmt.Sprintf("sm_%d", arch) {
			return cudadev.Plan{GPU: gpu}, nil
		}
	}
	return nil, fmt.Errorf("%w: got %q, want one of %s", graph.ErrDevice, name, strings.Join(planDevices(), ", "))
}

func readPlan(path string) (*graph.Plan, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	p := new(graph.Plan)
	if err := p.UnmarshalText(text); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return p, nil
}

func writePlan(prog *graph.Program) func(io.Writer) error {
	return func(w io.Writer) error {
		text, err := prog.Plan().MarshalText()
		if err == nil {
			_, err = w.Write(text)
		}
		return err
	}
}

// sizes returns the shape with the sizes that flags give.
func (f *planFlags) sizes(cmd *cobra.Command) (shapes.Shape, error) {
	var s shapes.Shape
	for _, known := range measured {
		if known.Name == f.shape {
			s = known
		}
	}
	if s.Name == "" {
		return s, fmt.Errorf("-shape: got %q, want one of %s", f.shape, strings.Join(shapeNames(), ", "))
	}
	for _, o := range []struct {
		flag     string
		to, from *int
	}{
		{"experts", &s.Experts, &f.size.Experts}, {"topk", &s.TopK, &f.size.TopK}, {"hidden", &s.Hidden, &f.size.Hidden},
		{"intermediate", &s.Intermediate, &f.size.Intermediate}, {"tokens", &s.Tokens, &f.size.Tokens},
	} {
		if !cmd.Flags().Changed(o.flag) {
			continue
		}
		if *o.from < 1 || *o.from > 1<<24 {
			return s, fmt.Errorf("-%s: got %d, want from 1 to %d", o.flag, *o.from, 1<<24)
		}
		*o.to, s.Name = *o.from, "layer"
	}
	return s, nil
}

// build makes the graph of the layer, with backward nodes from a given gradient of its output.
func (f *planFlags) build(s shapes.Shape) (*graph.Graph, error) {
	dt, err := dtype.Parse(f.compute)
	if err != nil || dt == dtype.Float64 || !dt.IsFloat() || dt.Bits() < 16 {
		return nil, fmt.Errorf("-compute: got %q, want bf16, f16 or f32", f.compute)
	}
	order, err := nodes.ParseOrder(f.order)
	if err != nil {
		return nil, fmt.Errorf("-%w", err)
	}
	if f.alignment < 1 {
		return nil, fmt.Errorf("-alignment: got %d, want a power of two from 1 to 256", f.alignment)
	}
	if f.streams < 0 || f.streams > 64 {
		return nil, fmt.Errorf("-streams: got %d, want 1 to 64, or 0 for as many as pay", f.streams)
	}
	if f.maxWorkspace < 0 {
		return nil, fmt.Errorf("-max-workspace: got %d, want at least 0", f.maxWorkspace)
	}
	if f.capacity < 0 {
		return nil, fmt.Errorf("-capacity: got %d, want at least 0", f.capacity)
	}
	g, vars := graph.New(s.Name), graph.NewVars(1)
	x := g.Input("x", dt, graph.UpTo(s.Tokens), s.Hidden)
	y, _ := nodes.MoELayer(x, vars.Scope("moe"), nodes.MoE{
		Experts: s.Experts, TopK: s.TopK, Hidden: s.Hidden, Intermediate: s.Intermediate,
		Order: order, Alignment: f.alignment, Capacity: f.capacity,
	})
	g.Output("y", y)
	if f.backward {
		dy := g.Input("dy", dt, graph.UpTo(s.Tokens), s.Hidden)
		params := vars.All()
		grads := g.GradientsFrom([]*graph.Value{y}, []*graph.Value{dy}, append(params, x)...)
		for i, grad := range grads.Value[:len(params)] {
			g.Output("d"+graph.VarName(params[i]), grad)
		}
		g.Output("dx", grads.Value[len(params)])
	}
	return g, g.Err()
}
