package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/moegraph/moegraph/memory"
	"github.com/moegraph/moegraph/memory/minimalloc"
)

func newPack() *cobra.Command {
	var capacity int64
	cmd := &cobra.Command{
		Use:   "pack [-capacity N] FILE",
		Short: "Place buffers with lifetimes in as few bytes as possible",
		Long: `Read buffers from a CSV file of google/minimalloc ("-": standard input), find an offset for each, and print the same
rows with a column offset. Two buffers share bytes only if they are never alive at once. Standard error says the
peak, the lower bound below which no placement comes, and whether the peak is proven to be the least.

Columns, in any order: id (or buffer, buffer_id); lower (or start, begin); upper (first time at which the buffer is
not alive any more) or end (last time at which it is); size in bytes; and where wanted alignment (a power of two;
empty: 1), offset (there the buffer lies; empty or below 0: anywhere), gaps ("from-to from-to": times between at
which it is not alive). Others, such as hint, are kept and mean nothing.

With -capacity, bytes up to N are as good as the least, and the exit status is 1 where no placement in N bytes is
found; then nothing is printed on standard output.`,
		Example: `  moegraph pack buffers.csv >placed.csv
  moegraph pack -capacity 1048576 A.1048576.csv`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.FixedCompletions([]string{"csv"}, cobra.ShellCompDirectiveFilterFileExt),
		RunE: action(func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("capacity") && capacity < 1 {
				return fmt.Errorf("-capacity: got %d, want at least 1", capacity)
			}
			return pack(args[0], capacity, cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		}),
	}
	cmd.Flags().Int64Var(&capacity, "capacity", 0, "`bytes` that there are (default as few as can be found)")
	return cmd
}

// pack reads, solves and writes.
func pack(path string, capacity int64, stdin io.Reader, stdout, stderr io.Writer) error {
	f, err := readBuffers(path, stdin)
	if err != nil {
		return err
	}
	f.Problem.Capacity = capacity
	plan, err := memory.Solve(f.Problem, memory.Options{})
	var small *memory.CapacityError
	if errors.As(err, &small) {
		fmt.Fprintln(stderr, verdict(small.Best, len(f.IDs)))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	fmt.Fprintln(stderr, verdict(plan, len(f.IDs)))
	return f.Write(stdout, plan.Offsets)
}

func readBuffers(path string, stdin io.Reader) (*minimalloc.File, error) {
	if path == "-" {
		return minimalloc.Read(stdin)
	}
	r, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	f, err := minimalloc.Read(r)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

// verdict is a plan's peak, its bound and what is proven.
func verdict(p *memory.Plan, buffers int) string {
	proof := "optimal: the peak is the lower bound"
	if !p.Proven {
		proof = fmt.Sprintf("%.2f %% above the lower bound, not proven to be the least", 100*(float64(p.Peak)/float64(max(p.LowerBound, 1))-1))
	}
	return fmt.Sprintf("buffers %d, peak %d, lower bound %d, %s (%s)", buffers, p.Peak, p.LowerBound, proof, p.Method)
}
