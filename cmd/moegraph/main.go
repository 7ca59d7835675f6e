// Command moegraph runs single nodes on files, plans and measures layers, packs buffers and says what this build can do.
//
//	moegraph run NODE -in case.npz -out out.npz [-device host] [-set name=value ...]
//	moegraph plan -shape mixtral -backward [-html FILE] [-dot FILE] [-trace FILE] [-svg FILE] [-save FILE]
//	moegraph pack [-capacity N] FILE.csv
//	moegraph bench -device cuda:0 [-shape NAME,...] [-times] [-plans]
//	moegraph info [-operators] [-markdown]
//	moegraph env
//	moegraph completion bash|zsh|fish|powershell
//
// Flags take one dash or two. The exit status is 0 where the command did what it was asked, 1 where it was
// refused or failed, and 2 where the command line itself is wrong; errors are one line on standard error.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
)

// Exit statuses.
const (
	exitOK     = 0
	exitFailed = 1 // refused, or failed
	exitUsage  = 2
)

func main() { os.Exit(execute(os.Args[1:], os.Stdout, os.Stderr)) }

// execute runs a command line and returns the exit status.
func execute(args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(doubleDashes(root, args))
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteC()
	if err == nil {
		return exitOK
	}
	var failed *failure
	if errors.As(err, &failed) {
		fmt.Fprintf(stderr, "moegraph: %v\n", failed.err)
		return exitFailed
	}
	// Whatever does not come from the command itself is cobra's word on the command line.
	text := strings.Join(strings.Fields(strings.ReplaceAll(err.Error(), "--", "-")), " ")
	fmt.Fprintf(stderr, "moegraph: %s; see %s -h\n", text, cmd.CommandPath())
	return exitUsage
}

// failure is the error of a command that was understood.
type failure struct{ err error }

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// action makes a command's function out of one whose errors are failures.
func action(f func(cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if err := f(cmd, args); err != nil {
			return &failure{err}
		}
		return nil
	}
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "moegraph",
		Short: "Mixture-of-experts training steps as planned graphs",
		Long: `moegraph plans and runs the parts of a mixture-of-experts training step.

Flags take one dash or two: -in and --in are the same.
Exit status: 0 done, 1 refused or failed, 2 wrong command line.`,
		Example: `  moegraph run grouped-gemm -in case.npz -out out.npz
  moegraph plan -shape olmoe -backward -svg plan.svg
  moegraph info`,
		Version:       version(),
		Args:          noSubcommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.AddCommand(newRun(), newPlan(), newPack(), newBench(), newInfo(), newEnv())
	root.SetUsageTemplate(usageTemplate(root.UsageTemplate()))
	return root
}

// noSubcommand refuses what is no subcommand of a command that only has those. The program alone shows its help.
func noSubcommand(cmd *cobra.Command, args []string) error {
	what, got := "command", "none"
	if cmd.HasParent() {
		what = "node"
	} else if len(args) == 0 {
		return nil
	}
	if len(args) > 0 {
		got = strconv.Quote(args[0])
	}
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return fmt.Errorf("%s: got %s, want one of %s", what, got, strings.Join(names, ", "))
}
