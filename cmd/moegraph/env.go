package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/moegraph/moegraph/internal/cuda/toolkit"
)

func newEnv() *cobra.Command {
	return &cobra.Command{
		Use:   "env",
		Short: "Print the setting that builds with the tag gpu need",
		Long: `env finds the CUDA headers of this machine and prints the line that lets cgo find them, for modules that use
moegraph as well as for moegraph itself. It looks where CUDA_HOME says, in /usr/local/cuda, in .cuda of the working
directory and those above it, and among the packages of python3. What is built needs no headers, only a driver.`,
		Example: `  eval "$(moegraph env)"
  go build -tags gpu ./...`,
		Args: cobra.NoArgs,
		RunE: action(func(cmd *cobra.Command, _ []string) error {
			t, err := toolkit.Find()
			if err != nil {
				return err
			}
			flags, err := t.CFlags()
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "export CGO_CFLAGS=%s\n", shellWord(flags))
			return nil
		}),
	}
}

// shellWord quotes a text as one word of a POSIX shell.
func shellWord(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
