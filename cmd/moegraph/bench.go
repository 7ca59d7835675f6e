package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/shapes"
	"github.com/moegraph/moegraph/nodes"
)

// benchFlags are the flags of bench.
type benchFlags struct {
	device    string
	shapes    []string
	alignment int
	rounds    int
	products  bool
	layer     bool
	compile   bool
	nodeTimes bool
	tiles     []string
	precision []string
	rows      []int
	variants  []variant // what tiles and precision say
	plans     bool
	pages     string
}

func newBench() *cobra.Command {
	var f benchFlags
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure mixture-of-experts layers on a device",
		Long: `Measure layers of bf16, forward and backward, on random data with the routing of random logits: each matrix
product with what is fused into it, on buffers that rotate past the device's cache; the whole layer as one captured
graph and launched node by node; the memory that it takes; the host's time for a replay; and how long its kernels take
to compile and to load from the disk. TF are 1e12 floating-point operations a second of the rows that tokens
fill. With -precision the experts' operands are block-scaled; the products of several are measured in turn. With -rows
only the products are measured, with so many rows for each expert.

Shapes: ` + shapesText(),
		Example: `  moegraph bench -device cuda:0
  moegraph bench -device cuda:0 -shape mixtral,small -compile=false -times
  moegraph bench -device cuda:0 -plans -rounds 30
  moegraph bench -device cuda:0 -shape qwen3-30b -precision bf16,mxfp8,nvfp4 -rows 8,16,32,64`,
		Args: cobra.NoArgs,
		RunE: action(func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context(), cmd.OutOrStdout()) }),
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	addDevice(cmd, &f.device, "measure on")
	flags.StringSliceVar(&f.shapes, "shape", nil, "`names` of shapes, separated by commas (default all)")
	flags.IntVar(&f.alignment, "alignment", nodes.DefaultAlignment, "`rows` that each expert's share is a multiple of")
	flags.IntVar(&f.rounds, "rounds", 10, "measurements, a `number`, of which the median is printed")
	flags.BoolVar(&f.products, "products", true, "measure the matrix products")
	flags.BoolVar(&f.layer, "layer", true, "measure the layer")
	flags.BoolVar(&f.compile, "compile", true, "measure how long kernels take to compile")
	flags.BoolVar(&f.nodeTimes, "times", false, "print the time of every node, launched node by node")
	flags.StringSliceVar(&f.tiles, "tile", nil, "`MxN` of the matrix products, or several, which are measured in turn (default chosen)")
	flags.StringSliceVar(&f.precision, "precision", []string{"bf16"}, "`formats` of the experts' operands: "+strings.Join(precisionNames(), ", "))
	flags.IntSliceVar(&f.rows, "rows", nil, "only measure the products, with so many `rows` for each expert")
	flags.BoolVar(&f.plans, "plans", false, "only measure the layer on one stream against its plans, in turn")
	flags.StringVar(&f.pages, "pages", "", "with -plans, write each shape's plan with its measured times as a page, in a `folder`")
	must(cmd.MarkFlagDirname("pages"))
	must(cmd.RegisterFlagCompletionFunc("shape", cobra.FixedCompletions(shapeNames(), cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

func (f *benchFlags) run(ctx context.Context, w io.Writer) error {
	if ctx == nil {
		ctx = context.Background()
	}
	dev, err := graph.Open(f.device)
	if err != nil {
		return fmt.Errorf("-device: %w", err)
	}
	if f.rounds < 1 {
		return fmt.Errorf("-rounds: got %d, want at least 1", f.rounds)
	}
	if f.variants, err = f.allVariants(); err != nil {
		return err
	}
	for _, n := range f.rows {
		if n < 1 {
			return fmt.Errorf("-rows: got %d, want at least 1", n)
		}
	}
	if len(f.shapes) == 0 {
		f.shapes = shapeNames()
	}
	var todo []shapes.Shape
	for _, name := range f.shapes {
		i := slices.IndexFunc(measured, func(s shapes.Shape) bool { return s.Name == name })
		if i < 0 {
			return fmt.Errorf("-shape: got %q, want some of %s", name, strings.Join(shapeNames(), ", "))
		}
		todo = append(todo, measured[i])
	}
	text := dev.String()
	if a, ok := dev.(interface{ About() string }); ok {
		text += ": " + a.About()
	}
	fmt.Fprintln(w, text)
	for _, s := range todo {
		b := bench{benchFlags: f, Shape: s, dev: dev, ctx: ctx, out: w, data: newRandomData(s)}
		if err := b.run(); err != nil {
			return fmt.Errorf("%s: %w", s.Name, err)
		}
	}
	return nil
}

// variant is a way to compute a layer.
type variant struct {
	launch    nodes.Launch
	precision nodes.BlockFormat
	label     string // what was asked for, in words; "" for nothing
}

// precisionNames are the values of -precision.
func precisionNames() []string {
	names := []string{"bf16"}
	for f := nodes.NoBlockFormat + 1; f.Vec() != 0; f++ {
		names = append(names, f.String())
	}
	return names
}

// allVariants returns every tile in every precision.
func (f *benchFlags) allVariants() ([]variant, error) {
	tiles := []variant{{}}
	if len(f.tiles) > 0 {
		tiles = nil
	}
	for _, t := range f.tiles {
		var l nodes.Launch
		if n, err := fmt.Sscanf(t+" ", "%dx%d ", &l.Tile[0], &l.Tile[1]); n != 2 || err != nil {
			return nil, fmt.Errorf("-tile: got %q, want two numbers with x between them, such as 128x256", t)
		}
		tiles = append(tiles, variant{launch: l, label: ", tile " + t})
	}
	var all []variant
	for _, name := range f.precision {
		i := slices.Index(precisionNames(), name)
		if i < 0 {
			return nil, fmt.Errorf("-precision: got %q, want some of %s", name, strings.Join(precisionNames(), ", "))
		}
		for _, v := range tiles {
			v.precision = nodes.NoBlockFormat + nodes.BlockFormat(i)
			if i > 0 || len(f.precision) > 1 {
				v.label = ", " + name + v.label
			}
			all = append(all, v)
		}
	}
	return all, nil
}

// bench measures one shape.
type bench struct {
	*benchFlags
	shapes.Shape
	dev  graph.Device
	ctx  context.Context
	out  io.Writer
	data randomData
}

func (b *bench) printf(format string, args ...any) { fmt.Fprintf(b.out, format+"\n", args...) }

func (b *bench) run() error {
	for _, n := range b.rows {
		few := *b
		few.Tokens = (n*b.Experts + b.TopK - 1) / b.TopK
		few.data.rows = n
		b.printf("%s with %d rows an expert: experts %d, hidden %d, intermediate %d", b.Name, n, b.Experts, b.Hidden, b.Intermediate)
		layers, err := few.newLayers()
		if err != nil {
			return err
		}
		if err := few.measureProducts(layers); err != nil {
			return err
		}
	}
	if len(b.rows) > 0 {
		return nil
	}
	b.printf("%s: experts %d, top %d, hidden %d, intermediate %d, tokens %d", b.Name, b.Experts, b.TopK, b.Hidden, b.Intermediate, b.Tokens)
	layers, err := b.newLayers()
	if err != nil {
		return err
	}
	if b.plans {
		return errors.Join(b.measurePlans(layers[0]), layers[0].vars.Free())
	}
	if b.compile {
		if err := b.compileTimes(layers[0].prog); err != nil {
			return err
		}
	}
	if b.products {
		if err := b.measureProducts(layers); err != nil {
			return err
		}
	}
	if !b.layer {
		return nil
	}
	var errs error
	for _, l := range layers {
		errs = errors.Join(errs, b.measureLayer(l), l.vars.Free())
	}
	return errs
}

// compileTimes prints how long the program's kernels take, where the device compiles any.
func (b *bench) compileTimes(prog *graph.Program) error {
	d, ok := b.dev.(interface {
		CompileTimes(p *graph.Program) (n int, cold, warm time.Duration, err error)
	})
	if !ok {
		return nil
	}
	n, cold, warm, err := d.CompileTimes(prog)
	if err == nil {
		b.printf("  kernels: %d, compiled in %.2f s, from the disk in %.3f s", n, cold.Seconds(), warm.Seconds())
	}
	return err
}

// layerGraph is a layer, forward and backward, whose output's gradient is an input.
type layerGraph struct {
	g     *graph.Graph
	vars  *graph.Vars
	x, dy *graph.Value
	prog  *graph.Program
	label string // of the variant
}

func (b *bench) newLayers() ([]layerGraph, error) {
	var all []layerGraph
	for _, v := range b.variants {
		l, err := b.newLayer(v)
		if err != nil {
			return nil, err
		}
		all = append(all, l)
	}
	return all, nil
}

// newLayer builds the layer with random parameters of variance 1/fan-in.
func (b *bench) newLayer(v variant) (layerGraph, error) {
	l := layerGraph{g: graph.New(b.Name), vars: graph.NewVars(1), label: v.label}
	scope := l.vars.Scope("moe")
	for _, p := range []struct {
		name  string
		shape []int
	}{
		{"router", []int{b.Experts, b.Hidden}}, {"fc1", []int{b.Experts, 2 * b.Intermediate, b.Hidden}}, {"fc2", []int{b.Experts, b.Hidden, b.Intermediate}},
	} {
		scope.ParamOf(p.name, dtype.BFloat16, b.data.weights(p.shape), p.shape...)
	}
	l.x = l.g.Input("x", dtype.BFloat16, b.Tokens, b.Hidden)
	l.dy = l.g.Input("dy", dtype.BFloat16, b.Tokens, b.Hidden)
	y, _ := nodes.MoELayer(l.x, scope, nodes.MoE{
		Experts: b.Experts, TopK: b.TopK, Intermediate: b.Intermediate, Params: dtype.BFloat16, Alignment: b.alignment,
		Launch: v.launch, Precision: v.precision,
	})
	l.g.Output("y", y)
	for i, v := range l.g.GradientsFrom([]*graph.Value{y}, []*graph.Value{l.dy}, append(l.vars.All(), l.x)...).Value {
		l.g.Output(fmt.Sprintf("grad%d", i), v)
	}
	var err error
	l.prog, err = l.g.Compile(b.dev, graph.Options{})
	return l, err
}

// measureLayer prints the layer's times and memory. The captured layer and the one launched node by node take turns, so
// that the device's clocks are the same for both.
func (b *bench) measureLayer(l layerGraph) (err error) {
	prog := l.prog
	first, err := b.openLayer(l, prog) // puts the parameters in place
	if err != nil {
		return err
	}
	if err := first.Close(); err != nil {
		return err
	}
	start, err := b.warmStart(l)
	if err != nil {
		return err
	}
	nodewise, err := l.g.Compile(b.dev, graph.Options{Debug: graph.Debug{Eager: true}})
	if err != nil {
		return err
	}
	captured, err := b.openLayer(l, prog)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, captured.Close()) }()
	eager, err := b.openLayer(l, nodewise)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, eager.Close()) }()
	took, err := b.time(1, captured, eager)
	if err != nil {
		return err
	}
	host := ""
	if r, ok := captured.Runner().(launchTimer); ok {
		n := int(max(20, min(2000, 100*time.Millisecond/took[0]))) // each launch waits for the one before
		inGo, inC, err := r.LaunchUS(5, n, func() error { return captured.Replay(b.ctx) })
		if err != nil {
			return err
		}
		host = fmt.Sprintf("; host %.2f us a replay (from C %.2f us)", inGo, inC)
	}
	b.printf("  layer forward+backward%s: %d steps on %d streams: captured %s; eager %s%s", l.label, len(prog.Steps()), prog.Streams(),
		rate(took[0], b.Flops()), rate(took[1], b.Flops()), host)
	b.printf("  start, with parameters in place, from Compile to the return of the first Replay: %.3f s", start.Seconds())
	var outputs, params int64
	for _, name := range prog.Outputs() {
		outputs += prog.Output(name).Bytes()
	}
	for _, v := range l.vars.All() {
		params += v.Bytes()
	}
	b.printf("  memory: workspaces %.1f MiB (lower bound %.1f, without sharing %.1f; saved for backward, in theory, %.1f), outputs %.1f MiB, parameters %.1f MiB",
		mib(prog.ArenaBytes()), mib(prog.LowerBound()), mib(prog.WorkspaceSum()), mib(b.Saved()), mib(outputs), mib(params))
	if r, ok := eager.Runner().(interface{ PrintTimes(w io.Writer) error }); ok && b.nodeTimes {
		return r.PrintTimes(b.out)
	}
	return nil
}

func mib(n int64) float64 { return float64(n) / (1 << 20) }

// openLayer opens the program with its inputs written.
func (b *bench) openLayer(l layerGraph, prog *graph.Program) (*graph.Exec, error) {
	e, err := prog.Exec(l.vars)
	if err != nil {
		return nil, err
	}
	n := b.Tokens * b.Hidden
	if err := errors.Join(e.Write(l.x, b.data.bf16(1, n)), e.Write(l.dy, b.data.bf16(2, n))); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

// warmStart measures what a new process waits for, with compiled kernels on the disk and parameters in place.
func (b *bench) warmStart(l layerGraph) (time.Duration, error) {
	if d, ok := b.dev.(interface{ Purge() error }); ok {
		if err := d.Purge(); err != nil {
			return 0, err
		}
	}
	start := time.Now()
	prog, err := l.g.Compile(b.dev, graph.Options{})
	if err != nil {
		return 0, err
	}
	e, err := b.openLayer(l, prog)
	if err != nil {
		return 0, err
	}
	err = e.Replay(b.ctx)
	took := time.Since(start)
	return took, errors.Join(err, e.Close())
}

// rate is a time and what it makes of so many floating-point operations.
func rate(t time.Duration, flops float64) string {
	return fmt.Sprintf("%.3f ms, %.4g TF", t.Seconds()*1e3, flops/t.Seconds()/1e12)
}

// launchTimer is a Runner that knows what a launch costs the host.
type launchTimer interface {
	LaunchUS(rounds, n int, replay func() error) (inGo, inC float64, err error)
}

// stopwatch is a Runner with a clock of its own.
type stopwatch interface {
	Measure(f func() error) (time.Duration, error)
}

// time returns the median time of a replay of each Exec, divided by the number of times that it does its work. They are
// measured in turn; each measurement is of enough replays to take 20 ms.
func (b *bench) time(per int, execs ...*graph.Exec) ([]time.Duration, error) {
	medians := make([]time.Duration, len(execs))
	replays, all := make([]int, len(execs)), make([][]time.Duration, len(execs))
	for round := -2; round < b.rounds; round++ { // the first captures, the second says how many fill 20 ms
		for i := range execs {
			if round%2 != 0 { // there and back: nobody is always the first after a pause
				i = len(execs) - 1 - i
			}
			n := max(1, replays[i])
			took, err := b.measure(execs[i], n)
			if err != nil {
				return nil, err
			}
			if round < 0 {
				replays[i] = int(min(200, 20*time.Millisecond/max(took/time.Duration(n), time.Microsecond)))
				continue
			}
			all[i] = append(all[i], took/time.Duration(n*per))
		}
	}
	for i := range all {
		slices.Sort(all[i])
		medians[i] = all[i][len(all[i])/2]
	}
	return medians, nil
}

// measure returns the time of n replays, by the device's clock if it has one.
func (b *bench) measure(e *graph.Exec, n int) (time.Duration, error) {
	replays := func() error {
		for range n {
			if err := e.Replay(b.ctx); err != nil {
				return err
			}
		}
		return nil
	}
	if r, ok := e.Runner().(stopwatch); ok {
		return r.Measure(replays)
	}
	start := time.Now()
	err := replays()
	return time.Since(start), err
}
