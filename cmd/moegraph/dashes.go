package main

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func init() {
	cobra.AddTemplateFunc("oneDash", func(usages string) string {
		return strings.ReplaceAll(strings.ReplaceAll(usages, "      --", "      -"), ", --", ", -")
	})
}

// usageTemplate shows flags with the one dash that the examples use.
func usageTemplate(template string) string {
	return strings.NewReplacer(".FlagUsages", ".FlagUsages | oneDash", `--help" for more`, `-help" for more`).Replace(template)
}

// doubleDashes turns -word into --word, since the flags package reads -in as -i -n. One letter stays as it is,
// and so do negative numbers, everything behind "--", and the value of a flag that takes one: in
// "-out -odd" the second word is a file.
func doubleDashes(root *cobra.Command, args []string) []string {
	takesValue := map[string]bool{}
	eachCommand(root, func(c *cobra.Command) {
		for _, set := range []*pflag.FlagSet{c.Flags(), c.PersistentFlags()} {
			set.VisitAll(func(f *pflag.Flag) { takesValue[f.Name] = f.NoOptDefVal == "" })
		}
	})
	out := make([]string, len(args))
	value := false // the next word is a flag's value
	for i, arg := range args {
		if arg == "--" && !value {
			copy(out[i:], args[i:])
			break
		}
		out[i] = arg
		if value {
			value = false
			continue
		}
		name, isFlag := flagName(arg)
		if !isFlag {
			continue
		}
		out[i] = "--" + strings.TrimLeft(arg, "-")
		value = takesValue[name] && !strings.Contains(arg, "=")
	}
	return out
}

// flagName returns the name of a flag of more than one letter: "in" of -in, --in and -in=x.
func flagName(arg string) (string, bool) {
	rest, ok := strings.CutPrefix(arg, "-")
	if !ok {
		return "", false
	}
	rest = strings.TrimPrefix(rest, "-")
	name, _, _ := strings.Cut(rest, "=")
	if len(name) < 2 {
		return "", false
	}
	for i, c := range name {
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !letter && (i == 0 || c != '-' && c != '_' && (c < '0' || c > '9')) {
			return "", false
		}
	}
	return name, true
}

func eachCommand(c *cobra.Command, f func(*cobra.Command)) {
	f(c)
	for _, sub := range c.Commands() {
		eachCommand(sub, f)
	}
}
