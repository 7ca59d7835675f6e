// The example trains a byte-level language model with a mixture-of-experts layer on real text and holds it against
// n-gram models counted on the same text. The whole training step, forward, backward and optimizer, is one
// graph that is planned once and replayed.
//
//	go run ./examples/moe_layer                      # the Go standard library's sources, under a minute on 2 cores
//	go run ./examples/moe_layer -text FILE-or-DIR    # another text
//	go run ./examples/moe_layer -steps 300 -precision bf16,mxfp8,nvfp4      # the same model in each, curves in one picture
//	go run ./examples/moe_layer -steps 3000 -context 12 -intermediate 256   # minutes; a bit per byte better than the trigram
//
// It exits with status 1 unless the model beats the bigram model and its MoE layer is worth at least 0.05 bits.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/chart"
	"github.com/moegraph/moegraph/internal/corpus"
)

// worthBits is what the MoE layer must be worth on the held-out text, in bits per byte.
const worthBits = 0.05

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	context.AfterFunc(ctx, stop) // a second interrupt ends the process
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		if !errors.Is(err, errUsage) {
			fmt.Fprintln(os.Stderr, "moe_layer:", err)
		}
		stop()
		os.Exit(1)
	}
}

// run is the whole program; out gets the results, progress the bar.
func run(ctx context.Context, args []string, out, progress io.Writer) error {
	cfg, err := parse(args, progress)
	if err != nil {
		return err
	}
	start := time.Now()
	text, err := loadText(cfg)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, text)
	dev, err := graph.Open(cfg.Device)
	if err != nil {
		return err
	}
	if len(cfg.precisions) > 1 {
		return compare(ctx, cfg, dev, text, out, progress)
	}
	_, res, err := trainOne(ctx, cfg, dev, text, out, progress)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "took %.1f s\n", time.Since(start).Seconds())
	return res.verdict()
}

// trainOne trains one model, evaluates it, and leaves the checkpoint and the pictures in cfg.Out.
func trainOne(ctx context.Context, cfg config, dev graph.Device, text *corpus.Corpus, out, progress io.Writer) (history []point, res result, err error) {
	tr, err := newTrainer(cfg, dev, text)
	if err != nil {
		return nil, res, err
	}
	defer tr.Close()
	fmt.Fprintf(out, "model: %s parameters, %s; %d steps of %d bytes on %s\n", count(tr.model.parameters()), cfg, cfg.Steps, cfg.Batch, dev)
	if cfg.Plan {
		fmt.Fprint(out, tr.prog)
	}
	if err := os.MkdirAll(cfg.Out, 0o755); err != nil {
		return nil, res, err
	}
	trainErr := tr.train(ctx, progress)
	if errors.Is(trainErr, context.Canceled) && tr.step > 0 {
		fmt.Fprintf(out, "interrupted after step %d; -resume goes on from %s\n", tr.step, tr.checkpointPath())
		return nil, res, errors.Join(tr.save(), trainErr)
	}
	if trainErr != nil {
		return nil, res, trainErr
	}
	if err := tr.save(); err != nil {
		return nil, res, err
	}
	res, err = tr.evaluate(ctx)
	if errors.Is(err, context.Canceled) {
		fmt.Fprintf(out, "interrupted while evaluating; -resume evaluates %s\n", tr.checkpointPath())
	}
	if err != nil {
		return nil, res, err
	}
	if err := tr.pictures(res); err != nil {
		return nil, res, err
	}
	fmt.Fprint(out, res)
	fmt.Fprintf(out, "written to %s: checkpoint.safetensors, loss.png, experts.png, memory.svg\n", cfg.Out)
	return tr.history, res, nil
}

// loadText reads the text and splits it by files.
func loadText(cfg config) (*corpus.Corpus, error) {
	if cfg.Text != "" {
		return corpus.Load(cfg.Text, corpus.Options{})
	}
	root, err := corpus.DefaultRoot()
	if err != nil {
		return nil, err
	}
	opts := corpus.GoSources()
	opts.SkipDirs = append(opts.SkipDirs, "cmd") // the standard library alone
	return corpus.Load(root, opts)
}

// pictures writes the loss curve, the experts' load and the memory plan.
func (tr *trainer) pictures(res result) error {
	err := chart.Loss(filepath.Join(tr.cfg.Out, "loss.png"), []chart.Series{curve("model, training", tr.history)},
		chart.Line{Name: "bigram", Y: res.ngram.Bigram}, chart.Line{Name: "trigram", Y: res.ngram.Trigram}, chart.Line{Name: "held out", Y: res.model})
	if err != nil {
		return err
	}
	var steps []int
	var loads [][]float64
	for _, p := range tr.history {
		steps, loads = append(steps, p.Step), append(loads, p.Load)
	}
	if err := chart.ExpertLoad(filepath.Join(tr.cfg.Out, "experts.png"), steps, loads); err != nil {
		return err
	}
	return writeFile(filepath.Join(tr.cfg.Out, "memory.svg"), tr.prog.WriteSVG)
}
