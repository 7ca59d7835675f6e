package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/corpus"
	"github.com/moegraph/moegraph/internal/ngram"
)

// result is bits per byte on the same held-out positions.
type result struct {
	positions      int
	ngram          ngram.Bits
	model, without float64 // with the layer, and with its residual alone
}

// evalRows is the capacity of the evaluating programs.
const evalRows = 2048

func (tr *trainer) evaluate(ctx context.Context) (result, error) {
	res := result{}
	positions := tr.text.HeldOut.Positions(tr.cfg.Evaluate)
	res.positions = len(positions)
	counts, err := ngram.Count(tr.text.Train.Data())
	if err != nil {
		return res, err
	}
	fitted, err := counts.Fit(tr.text.Fit.Data())
	if err != nil {
		return res, err
	}
	if res.ngram, err = fitted.Bits(tr.text.HeldOut.Data(), positions); err != nil {
		return res, err
	}
	if res.model, err = tr.bits(ctx, positions, true); err != nil {
		return res, err
	}
	res.without, err = tr.bits(ctx, positions, false)
	return res, err
}

// bits replays a forward-only program over the positions. It is bound to the trained variables.
func (tr *trainer) bits(ctx context.Context, positions []int, withLayer bool) (float64, error) {
	m := newModel("evaluate", tr.cfg, tr.vars, evalRows, withLayer)
	prog, err := m.g.Compile(tr.dev, graph.Options{})
	if err != nil {
		return 0, err
	}
	exec, err := prog.Exec(tr.vars)
	if err != nil {
		return 0, err
	}
	sum, err := m.total(ctx, exec, tr.text.HeldOut, positions, tr.cfg.Context)
	return sum / math.Ln2 / float64(len(positions)), errors.Join(err, exec.Close())
}

// total sums the loss in nats over the positions; the last batch may be a short one.
func (m *model) total(ctx context.Context, exec *graph.Exec, text *corpus.Split, positions []int, window int) (float64, error) {
	tokens, labels := make([]int32, evalRows*window), make([]int32, evalRows)
	var sum float64
	for len(positions) > 0 {
		n := min(evalRows, len(positions))
		if err := text.Fill(positions[:n], window, tokens[:n*window], labels[:n]); err != nil {
			return 0, err
		}
		if err := errors.Join(exec.Write(m.tokens, tokens[:n*window]), exec.Write(m.labels, labels[:n])); err != nil {
			return 0, err
		}
		if err := exec.Replay(ctx); err != nil {
			return 0, err
		}
		loss, err := exec.Scalar(m.loss)
		if err != nil {
			return 0, err
		}
		sum += loss * float64(n)
		positions = positions[n:]
	}
	return sum, nil
}

// String is the table that is printed at the end.
func (r result) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "held-out bits per byte, at %s positions:\n", count(r.positions))
	row := func(name string, bits float64, note string) { fmt.Fprintf(&b, "  %-28s %6.3f  %s\n", name, bits, note) }
	row("unigram", r.ngram.Unigram, "")
	row("bigram", r.ngram.Bigram, "")
	row("trigram", r.ngram.Trigram, "")
	row("model", r.model, "")
	row("model without its MoE layer", r.without, fmt.Sprintf("the layer is worth %.3f bits", r.without-r.model))
	switch {
	case r.model < r.ngram.Trigram:
		fmt.Fprintf(&b, "the model beats the trigram by %.3f bits\n", r.ngram.Trigram-r.model)
	case r.model < r.ngram.Bigram:
		fmt.Fprintf(&b, "the model beats the bigram by %.3f bits\n", r.ngram.Bigram-r.model)
	}
	return b.String()
}

// verdict is the error of a model that is not worth its name.
func (r result) verdict() error {
	switch {
	case !(r.model < r.ngram.Bigram):
		return fmt.Errorf("the model does not beat the bigram: %.3f against %.3f bits per byte", r.model, r.ngram.Bigram)
	case !(r.without-r.model >= worthBits):
		return fmt.Errorf("the MoE layer is worth %.3f bits per byte, want at least %.2f", r.without-r.model, worthBits)
	}
	return nil
}
