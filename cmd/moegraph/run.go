package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/npz"
	"github.com/moegraph/moegraph/internal/runnode"
)

// runCommands make the subcommands of run that are no node of the table.
var runCommands []func() *cobra.Command

func newRun() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run NODE -in FILE -out FILE",
		Short: "Run one node on the arrays of a file",
		Long: `Run one node on the arrays of an .npz file and write its outputs to another.

A key of the input file is the name of an operand, with a suffix for formats that NumPy lacks: a.bf16 (bits
in uint16), a.e4m3, a.e5m2, a.e2m1 (two codes a byte), sfa.e8m0. Operands that are given expert by expert
carry the expert before it: b.0.bf16. Options are scalars attr.NAME, or -set NAME=value, which wins.
Offsets, counts and ids are checked. A refused call writes nothing.

"moegraph run NODE -h" lists a node's operands, attributes and outputs.`,
		Example: `  moegraph run grouped-gemm -in case.npz -out out.npz -set d_dtype=f32
  moegraph run router -in case.npz -out out.npz -set top_k=2 -set order=sigmoid`,
		Args: noSubcommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		// The flags are those of the nodes: a mistyped node is to be named, not its first flag.
		FParseErrWhitelist: cobra.FParseErrWhitelist{UnknownFlags: true},
	}
	for _, n := range runnode.Nodes() {
		cmd.AddCommand(newRunNode(n))
	}
	for _, f := range runCommands {
		cmd.AddCommand(f())
	}
	return cmd
}

// runFlags are the flags of running a node.
type runFlags struct {
	in, out, device string
	set             []string
}

func newRunNode(n *runnode.Node) *cobra.Command {
	var f runFlags
	set := ""
	for _, s := range strings.Fields(n.Example) {
		set += " -set " + s
	}
	cmd := &cobra.Command{
		Use:     n.Name + " -in FILE -out FILE",
		Short:   n.Doc,
		Long:    n.Help(),
		Example: "  moegraph run " + n.Name + " -in case.npz -out out.npz" + set,
		Args:    cobra.NoArgs,
		RunE:    action(func(cmd *cobra.Command, _ []string) error { return f.run(cmd, n) }),
	}
	flags := cmd.Flags()
	flags.StringVar(&f.in, "in", "", "operands and attributes, an .npz `file`")
	flags.StringVar(&f.out, "out", "", "outputs, an .npz `file`")
	flags.StringArrayVar(&f.set, "set", nil, "an attribute, `name=value`; repeatable")
	addDevice(cmd, &f.device, "run on")
	for _, name := range []string{"in", "out"} {
		must(cmd.MarkFlagRequired(name))
		must(cmd.MarkFlagFilename(name, "npz"))
	}
	must(cmd.RegisterFlagCompletionFunc("set", func(_ *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return completeSet(n), cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
	}))
	return cmd
}

// addDevice adds the flag -device with completion.
func addDevice(cmd *cobra.Command, to *string, use string, more ...string) {
	names := append(graph.Devices(), more...)
	cmd.Flags().StringVar(to, "device", "host", "the device to "+use+", by `name`: "+strings.Join(names, ", "))
	must(cmd.RegisterFlagCompletionFunc("device", cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp)))
}

// completeSet lists "name=" for every attribute, and "name=value" where the values are few.
func completeSet(n *runnode.Node) []string {
	var all []string
	for _, a := range n.Attrs {
		choices := a.Choices
		if a.Kind == runnode.Flag {
			choices = []string{"0", "1"}
		}
		if len(choices) == 0 {
			all = append(all, a.Name+"=\t"+a.Wants())
		}
		for _, c := range choices {
			all = append(all, a.Name+"="+c)
		}
	}
	return all
}

// must panics where a command is put together wrongly, which any start of the program shows.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

func (f *runFlags) run(cmd *cobra.Command, n *runnode.Node) error {
	dev, err := graph.Open(f.device)
	if err != nil {
		return fmt.Errorf("-device: %w", err)
	}
	arrays, err := npz.ReadFile(f.in)
	if err != nil {
		return fmt.Errorf("-in: %w", pathError(f.in, err))
	}
	operands, attrs, err := npz.Split(arrays)
	if err != nil {
		return fmt.Errorf("-in: %s: %w", f.in, err)
	}
	if err := setAttrs(n, attrs, f.set); err != nil {
		return err
	}
	outs, err := runnode.Run(n.Name, operands, attrs, runnode.Option{Device: dev, Debug: true})
	if err != nil {
		return err
	}
	if err := npz.WriteFile(f.out, outs); err != nil {
		return fmt.Errorf("-out: %w", pathError(f.out, err))
	}
	for _, a := range outs {
		fmt.Fprintf(cmd.OutOrStdout(), "%s %v\n", a.Name, a.Shape)
	}
	return nil
}

// pathError names the file as the caller did, where the system names another one that it made beside it.
func pathError(path string, err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return &os.PathError{Op: pe.Op, Path: path, Err: pe.Err}
	}
	return err
}

// setAttrs puts the attributes of -set among those of the file, whose place they take.
func setAttrs(n *runnode.Node, attrs map[string]any, set []string) error {
	seen := map[string]bool{}
	for _, s := range set {
		name, text, found := strings.Cut(s, "=")
		if !found || name == "" {
			return fmt.Errorf("-set: got %q, want name=value", s)
		}
		if seen[name] {
			return fmt.Errorf("-set: %s: given twice", name)
		}
		seen[name] = true
		a := n.Attr(name)
		if a == nil {
			attrs[name] = text // Run names it among those there are
			continue
		}
		v, err := a.Parse(text)
		if err != nil {
			return fmt.Errorf("-set: %w", err)
		}
		attrs[name] = v
	}
	return nil
}
