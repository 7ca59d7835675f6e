package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/internal/atomicfile"
	"github.com/moegraph/moegraph/nodes"
)

// config is what the flags say.
type config struct {
	Text, Out, Device string
	Resume, Plan      bool
	Steps, Batch      int // optimizer steps; bytes predicted in each
	Accumulate        int // micro-batches a step
	Context, Embed    int // bytes of context; width of each one's embedding
	Experts, TopK     int
	Intermediate      int
	Alignment         int
	DType             string
	Precision         string
	Stochastic, Unit  bool
	Rate              float64
	Warmup            int
	Balance           float64 // weight of the load-balancing loss
	Clip              float64
	Seed              uint64
	Evaluate          int // held-out positions
	SaveEvery         int
	compute           dtype.DType
	precision         nodes.BlockFormat
	precisions        []string // several to compare
	aligned           bool     // -alignment was given
}

// errUsage is returned when the flag package has said what was wrong, or has shown the help.
var errUsage = errors.New("usage")

func parse(args []string, w io.Writer) (config, error) {
	var c config
	f := flag.NewFlagSet("moe_layer", flag.ContinueOnError)
	f.SetOutput(w)
	f.StringVar(&c.Text, "text", "", "`FILE-or-DIR` to train on; default: the Go standard library's sources under GOROOT")
	f.StringVar(&c.Out, "out", "out", "`DIR` for the checkpoint and the pictures")
	f.StringVar(&c.Device, "device", "host", "device to run on")
	f.BoolVar(&c.Resume, "resume", false, "go on from the checkpoint in -out")
	f.BoolVar(&c.Plan, "plan", false, "print the plan of the training step")
	f.IntVar(&c.Steps, "steps", 1200, "optimizer steps in all")
	f.IntVar(&c.Batch, "batch", 1024, "bytes predicted in a step")
	f.IntVar(&c.Accumulate, "accumulate", 1, "micro-batches that a step's batch is cut into")
	f.IntVar(&c.Context, "context", 8, "bytes of context")
	f.IntVar(&c.Embed, "embed", 16, "width of a byte's embedding; context*embed is the width of the layer")
	f.IntVar(&c.Experts, "experts", 8, "experts")
	f.IntVar(&c.TopK, "topk", 2, "experts a byte")
	f.IntVar(&c.Intermediate, "intermediate", 128, "width inside an expert, a multiple of 32")
	f.IntVar(&c.Alignment, "alignment", 32, "rows that an expert's rows are padded to; with mxfp8 or nvfp4 at least 128")
	f.StringVar(&c.DType, "dtype", "bf16", "format of the matrix products: bf16 or f32")
	f.StringVar(&c.Precision, "precision", "bf16", "format of the experts' operands: bf16 (that of -dtype), mxfp8 or nvfp4; several, separated by commas, are compared")
	f.BoolVar(&c.Stochastic, "stochastic", false, "round the gradients that -precision quantizes at random")
	f.BoolVar(&c.Unit, "unit-factors", false, "an experiment: -precision with every factor 1, to show what factors are worth")
	f.Float64Var(&c.Rate, "rate", 4e-3, "highest learning rate, after warm-up and before the cosine")
	f.IntVar(&c.Warmup, "warmup", 50, "steps of linear warm-up; where it is not given, at most steps-1")
	f.Float64Var(&c.Balance, "balance", 0.01, "weight of the load-balancing loss")
	f.Float64Var(&c.Clip, "clip", 1, "largest norm of the gradients")
	f.Uint64Var(&c.Seed, "seed", 1, "seed of weights and batches")
	f.IntVar(&c.Evaluate, "evaluate", 50000, "held-out positions to evaluate on; 0: all")
	f.IntVar(&c.SaveEvery, "save-every", 0, "steps between checkpoints; 0: one at the end")
	if err := f.Parse(args); err != nil {
		return c, errUsage
	}
	given := map[string]bool{}
	f.Visit(func(x *flag.Flag) { given[x.Name] = true })
	if !given["warmup"] {
		c.Warmup = max(0, min(c.Warmup, c.Steps-1))
	}
	if f.NArg() > 0 {
		return c, fmt.Errorf("got the argument %q, want flags only", f.Arg(0))
	}
	c.aligned = given["alignment"]
	c.precisions = strings.Split(c.Precision, ",")
	for i, p := range c.precisions {
		if slices.Contains(c.precisions[:i], p) {
			return c, fmt.Errorf("-precision: got %s twice", p)
		}
		if _, err := c.in(p); err != nil {
			return c, err
		}
	}
	return c.in(c.precisions[0])
}

// in returns the configuration with the experts in one precision.
func (c config) in(precision string) (config, error) {
	c.Precision = precision
	if !c.aligned {
		c.Alignment = 32
		if precision != "bf16" {
			c.Alignment = 128
		}
	}
	return c, c.check()
}

// check refuses impossible sizes; the layer's own rules are checked when it is built.
func (c *config) check() error {
	for _, n := range []struct {
		name     string
		got      int
		min, max int
	}{
		{"steps", c.Steps, 1, 1 << 30}, {"batch", c.Batch, 1, 1 << 20}, {"accumulate", c.Accumulate, 1, c.Batch}, {"context", c.Context, 1, 1024},
		{"embed", c.Embed, 1, 4096}, {"experts", c.Experts, 1, 1024}, {"topk", c.TopK, 1, c.Experts}, {"intermediate", c.Intermediate, 32, 1 << 16},
		{"alignment", c.Alignment, 1, 256}, {"warmup", c.Warmup, 0, c.Steps - 1}, {"evaluate", c.Evaluate, 0, 1 << 40}, {"save-every", c.SaveEvery, 0, 1 << 30},
	} {
		if n.got < n.min || n.got > n.max {
			return fmt.Errorf("-%s: got %d, want from %d to %d", n.name, n.got, n.min, n.max)
		}
	}
	if c.Batch%c.Accumulate != 0 {
		return fmt.Errorf("-accumulate: got %d, want a divisor of the batch of %d", c.Accumulate, c.Batch)
	}
	if !(c.Rate > 0) || !(c.Clip > 0) || !(c.Balance >= 0) {
		return fmt.Errorf("-rate %g, -clip %g, -balance %g: want numbers above 0 (balance may be 0)", c.Rate, c.Clip, c.Balance)
	}
	if c.context()%8 != 0 {
		return fmt.Errorf("-context %d times -embed %d: got a width of %d, want a multiple of 8 (16-byte rows of bf16)", c.Context, c.Embed, c.context())
	}
	switch c.DType {
	case "bf16":
		c.compute = dtype.BFloat16
	case "f32":
		c.compute = dtype.Float32
	default:
		return fmt.Errorf("-dtype: got %q, want bf16 or f32", c.DType)
	}
	switch c.precision = nodes.NoBlockFormat; c.Precision {
	case "bf16":
	case "mxfp8":
		c.precision = nodes.MXFP8
	case "nvfp4":
		c.precision = nodes.NVFP4
	default:
		return fmt.Errorf("-precision: got %q, want bf16, mxfp8 or nvfp4", c.Precision)
	}
	return nil
}

// context is the width of the concatenated embeddings: the layer's hidden size.
func (c *config) context() int { return c.Context * c.Embed }

// String describes the model.
func (c config) String() string {
	format := c.DType
	if c.precision != nodes.NoBlockFormat {
		format += ", experts in " + c.Precision
	}
	return fmt.Sprintf("%d bytes of context, width %d, %d experts of %d, top %d, %s", c.Context, c.context(), c.Experts, c.Intermediate, c.TopK, format)
}

// identity is what a checkpoint must have been made with.
func (c config) identity(text string) map[string]string {
	return map[string]string{
		"text": text, "sizes": fmt.Sprint(c.Batch, c.Accumulate, c.Context, c.Embed, c.Experts, c.TopK, c.Intermediate, c.Alignment, c.DType, c.Precision, c.Stochastic, c.Unit),
		"training": fmt.Sprint(c.Steps, c.Rate, c.Warmup, c.Balance, c.Clip, c.Seed),
	}
}

func writeFile(path string, fill func(io.Writer) error) error { return atomicfile.Write(path, fill) }

// count writes a number with a unit.
func count(n int) string {
	switch {
	case n >= 10_000_000:
		return fmt.Sprintf("%.1f M", float64(n)/1e6)
	case n >= 10_000:
		return fmt.Sprintf("%.0f k", float64(n)/1e3)
	}
	return fmt.Sprint(n)
}
