package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/corpus"
)

// point is what is kept of the training for the pictures.
type point struct {
	Step int
	Bits float64   // mean training loss since the last point, in bits per byte
	Load []float64 // each expert's share of the slots of the last batch
}

// pointsKept is about how many points a run keeps.
const pointsKept = 300

// trainer trains a model by replaying its step.
type trainer struct {
	cfg     config
	text    *corpus.Corpus
	dev     graph.Device
	vars    *graph.Vars
	model   *model
	prog    *graph.Program
	exec    *graph.Exec
	sampler *corpus.Sampler
	tokens  []int32
	labels  []int32
	counts  []int32
	step    int // steps done
	history []point
}

func newTrainer(cfg config, dev graph.Device, text *corpus.Corpus) (*trainer, error) {
	rows := cfg.Batch / cfg.Accumulate
	tr := &trainer{cfg: cfg, text: text, dev: dev, vars: graph.NewVars(cfg.Seed), tokens: make([]int32, rows*cfg.Context),
		labels: make([]int32, rows), counts: make([]int32, cfg.Experts)}
	var err error
	if tr.sampler, err = text.Train.NewSampler(cfg.Seed, cfg.Context); err != nil {
		return nil, err
	}
	tr.model = newModel("train", cfg, tr.vars, rows, true)
	tr.model.train(cfg)
	if tr.prog, err = tr.model.g.Compile(dev, graph.Options{}); err != nil {
		return nil, err
	}
	if cfg.Resume {
		if err := tr.load(); err != nil {
			return nil, err
		}
	}
	if tr.exec, err = tr.prog.Exec(tr.vars); err != nil {
		return nil, err
	}
	return tr, nil
}

// Close frees what the trainer holds.
func (tr *trainer) Close() error { return errors.Join(tr.exec.Close(), tr.vars.Free()) }

// train runs the steps that are left. A cancelled context ends it between two steps.
func (tr *trainer) train(ctx context.Context, progress io.Writer) error {
	bar := newMeter(progress, tr.cfg, tr.step)
	defer bar.finish()
	every := max(1, tr.cfg.Steps/pointsKept)
	var sum float64
	var since int
	for tr.step < tr.cfg.Steps {
		loss, err := tr.one(ctx)
		if err != nil {
			return err
		}
		tr.step++
		sum, since = sum+loss/math.Ln2, since+1
		if tr.step%every == 0 || tr.step == tr.cfg.Steps {
			if _, err := tr.exec.Read(tr.model.aux.Counts, tr.counts); err != nil {
				return err
			}
			tr.history = append(tr.history, point{tr.step, sum / float64(since), shares(tr.counts)})
			sum, since = 0, 0
		}
		bar.step(loss/math.Ln2, tr.history)
		if tr.cfg.SaveEvery > 0 && tr.step%tr.cfg.SaveEvery == 0 && tr.step < tr.cfg.Steps {
			if err := tr.save(); err != nil {
				return err
			}
		}
	}
	return nil
}

// one runs the micro-batches of one step and returns their mean loss in nats. It is not interrupted halfway.
func (tr *trainer) one(ctx context.Context) (float64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	ctx = context.WithoutCancel(ctx)
	var sum float64
	for i := range tr.cfg.Accumulate {
		if err := tr.sampler.Batch(tr.step*tr.cfg.Accumulate+i, tr.tokens, tr.labels); err != nil {
			return 0, err
		}
		if err := errors.Join(tr.exec.Write(tr.model.tokens, tr.tokens), tr.exec.Write(tr.model.labels, tr.labels)); err != nil {
			return 0, err
		}
		if err := tr.exec.Replay(ctx); err != nil {
			return 0, err
		}
		loss, err := tr.exec.Scalar(tr.model.loss)
		if err != nil {
			return 0, err
		}
		sum += loss
	}
	loss := sum / float64(tr.cfg.Accumulate)
	if math.IsNaN(loss) || math.IsInf(loss, 0) {
		return 0, fmt.Errorf("step %d: the loss is %v; a lower -rate may help", tr.step+1, loss)
	}
	return loss, nil
}

// shares turns counts into shares of their sum.
func shares(counts []int32) []float64 {
	total := 0.0
	for _, c := range counts {
		total += float64(c)
	}
	s := make([]float64, len(counts))
	for i, c := range counts {
		s[i] = float64(c) / max(total, 1)
	}
	return s
}

func (tr *trainer) checkpointPath() string {
	return filepath.Join(tr.cfg.Out, "checkpoint.safetensors")
}

// save writes all variables with the step, the history and what the run was made with.
func (tr *trainer) save() error {
	history, err := json.Marshal(tr.history)
	if err != nil {
		return err
	}
	meta := tr.cfg.identity(tr.text.ID)
	meta["step"], meta["history"] = strconv.Itoa(tr.step), string(history)
	return tr.vars.Save(tr.checkpointPath(), meta)
}

// load continues a run. Another text, other sizes or another schedule are refused: the losses would not be those
// of an unbroken run.
func (tr *trainer) load() error {
	path := tr.checkpointPath()
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("-resume: %w", err)
	}
	meta, err := tr.vars.Load(path)
	if err != nil {
		return fmt.Errorf("-resume: %w", err)
	}
	for _, key := range sorted(maps.Keys(tr.cfg.identity(""))) {
		if want := tr.cfg.identity(tr.text.ID)[key]; meta[key] != want {
			return fmt.Errorf("-resume: checkpoint %s was made with other %s: got %q, want %q", path, key, meta[key], want)
		}
	}
	if tr.step, err = strconv.Atoi(meta["step"]); err != nil || tr.step < 0 || tr.step > tr.cfg.Steps {
		return fmt.Errorf("-resume: checkpoint %s: step: got %q, want a number up to %d", path, meta["step"], tr.cfg.Steps)
	}
	if err := json.Unmarshal([]byte(meta["history"]), &tr.history); err != nil {
		return fmt.Errorf("-resume: checkpoint %s: history: %w", path, err)
	}
	for _, p := range tr.history {
		if len(p.Load) != tr.cfg.Experts {
			return fmt.Errorf("-resume: checkpoint %s: history: got the load of %d experts, want %d", path, len(p.Load), tr.cfg.Experts)
		}
	}
	return nil
}

// rate is bytes a second since a time.
func rate(bytes int, since time.Time) float64 {
	return float64(bytes) / max(time.Since(since).Seconds(), 1e-9)
}
