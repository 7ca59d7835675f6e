package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/chart"
	"github.com/moegraph/moegraph/internal/corpus"
)

// precisionCost is what a precision may cost on the held-out text, as a share of what the MoE layer is worth in bf16.
var precisionCost = map[string]float64{"mxfp8": 0.15, "nvfp4": 0.4}

// compare trains the same model in each precision, in a folder of its own below cfg.Out, and draws the curves in one
// picture. Beside bf16, a precision that costs more than precisionCost is an error.
func compare(ctx context.Context, cfg config, dev graph.Device, text *corpus.Corpus, out, progress io.Writer) error {
	if err := os.MkdirAll(cfg.Out, 0o755); err != nil {
		return err
	}
	var curves []chart.Series
	var ends []chart.Line
	results := map[string]result{}
	for _, p := range cfg.precisions {
		one, err := cfg.in(p)
		if err != nil {
			return err
		}
		one.Out = filepath.Join(cfg.Out, p)
		history, res, err := trainOne(ctx, one, dev, text, out, progress)
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		results[p] = res
		curves = append(curves, curve(p+", training", history))
		ends = append(ends, chart.Line{Name: p + ", held out", Y: res.model})
	}
	path := filepath.Join(cfg.Out, "precisions.png")
	if err := chart.Loss(path, curves, ends...); err != nil {
		return err
	}
	fmt.Fprintf(out, "\nprecision    held out   layer worth   cost beside bf16\n")
	var errs error
	plain, beside := results["bf16"]
	for _, p := range cfg.precisions {
		res := results[p]
		fmt.Fprintf(out, "%-10s %8.3f %11.3f", p, res.model, res.without-res.model)
		if beside && p != "bf16" {
			cost, worth := res.model-plain.model, plain.without-plain.model
			fmt.Fprintf(out, "   %.3f bits, %.3f of the layer's worth (at most %.2f)", cost, cost/worth, precisionCost[p])
			if !(cost <= precisionCost[p]*worth) {
				errs = errors.Join(errs, fmt.Errorf("%s costs %.3f bits per byte, want at most %.2f of the %.3f that the layer is worth in bf16", p, cost, precisionCost[p], worth))
			}
		}
		fmt.Fprintln(out)
		errs = errors.Join(errs, res.verdict())
	}
	fmt.Fprintf(out, "written to %s\n", path)
	return errs
}

// curve is the loss of a run as a line of a picture.
func curve(name string, history []point) chart.Series {
	s := chart.Series{Name: name}
	for _, p := range history {
		s.X, s.Y = append(s.X, float64(p.Step)), append(s.Y, p.Bits)
	}
	return s
}
