package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/ngram"
)

// sources and others are texts that every checkout has: the sources of two packages, copied, so that an editor at work
// does not change them between two runs of a test.
var sources, others string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "moe_layer")
	if err == nil {
		sources, others = filepath.Join(dir, "graph"), filepath.Join(dir, "nodes")
		err = errors.Join(os.CopyFS(sources, os.DirFS("../../graph")), os.CopyFS(others, os.DirFS("../../nodes")))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// small are flags of a model that trains in a moment.
func small(t *testing.T, more ...string) []string {
	t.Helper()
	return append([]string{"-text", sources, "-out", t.TempDir(), "-steps", "24", "-batch", "64", "-context", "4", "-embed", "4",
		"-experts", "4", "-intermediate", "32", "-evaluate", "500", "-warmup", "4"}, more...)
}

func trainerOf(t *testing.T, args []string) *trainer {
	t.Helper()
	cfg, err := parse(args, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	text, err := loadText(cfg)
	if err != nil {
		t.Fatal(err)
	}
	dev, err := graph.Open(cfg.Device)
	if err != nil {
		t.Fatal(err)
	}
	tr, err := newTrainer(cfg, dev, text)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tr.Close() })
	return tr
}

// losses trains n steps and returns each one's loss.
func losses(t *testing.T, tr *trainer, n int) []float64 {
	t.Helper()
	var all []float64
	for range n {
		loss, err := tr.one(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		tr.step++
		all = append(all, loss)
	}
	return all
}

// TestRun_WritesEverything runs the program and looks at what it prints and writes.
func TestRun_WritesEverything(t *testing.T) {
	args := small(t, "-steps", "150", "-batch", "256", "-rate", "0.01", "-plan")
	var out, progress bytes.Buffer
	err := run(t.Context(), args, &out, &progress)
	if err != nil && !strings.Contains(err.Error(), "bits per byte") {
		t.Fatal(err) // a small model may lose against the bigram; that is an error of its own
	}
	for _, want := range []string{"unigram", "bigram", "trigram", "model without its MoE layer", "bits", `program "train"`, "peak"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output lacks %q:\n%s", want, out.String())
		}
	}
	if !strings.Contains(progress.String(), "trained 150 steps") {
		t.Errorf("progress: %s", progress.String())
	}
	for _, name := range []string{"checkpoint.safetensors", "loss.png", "experts.png", "memory.svg"} {
		if st, err := os.Stat(filepath.Join(args[3], name)); err != nil || st.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestTrain_Learns holds the model against the unigram model, whose bits it must beat soon.
func TestTrain_Learns(t *testing.T) {
	for _, dt := range []string{"bf16", "f32"} {
		tr := trainerOf(t, small(t, "-steps", "200", "-batch", "256", "-rate", "0.01", "-dtype", dt))
		losses(t, tr, 200)
		res, err := tr.evaluate(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !(res.model < res.ngram.Unigram-0.3) || !(res.without > res.model) {
			t.Errorf("%s: %v", dt, res)
		}
	}
}

// TestResume_SameBits interrupts a run and goes on: every loss and the final checkpoint are those of an unbroken run.
func TestResume_SameBits(t *testing.T) {
	for _, more := range [][]string{nil, {"-accumulate", "4"}, {"-dtype", "f32"}} {
		whole := trainerOf(t, small(t, more...))
		want := losses(t, whole, 24)
		args := small(t, more...)
		first := trainerOf(t, args)
		got := losses(t, first, 9)
		if err := first.save(); err != nil {
			t.Fatal(err)
		}
		second := trainerOf(t, append(slices.Clone(args), "-resume"))
		if second.step != 9 {
			t.Fatalf("resumed at step %d, want 9", second.step)
		}
		got = append(got, losses(t, second, 15)...)
		if !slices.Equal(got, want) {
			t.Errorf("%v: losses %v, want %v", more, got, want)
		}
		if err := errors.Join(whole.save(), second.save()); err != nil {
			t.Fatal(err)
		}
		a, errA := os.ReadFile(whole.checkpointPath())
		b, errB := os.ReadFile(second.checkpointPath())
		if err := errors.Join(errA, errB); err != nil || !bytes.Equal(a, b) {
			t.Errorf("%v: the checkpoints differ (%v)", more, err)
		}
	}
}

// TestAccumulate_MeanOfMicroBatches: the loss of a step of two micro-batches is the mean of what the same weights
// have on each of them alone.
func TestAccumulate_MeanOfMicroBatches(t *testing.T) {
	alone := func(batch int) float64 {
		tr := trainerOf(t, small(t, "-dtype", "f32", "-batch", "64"))
		tr.step = batch
		return losses(t, tr, 1)[0]
	}
	both := losses(t, trainerOf(t, small(t, "-dtype", "f32", "-batch", "128", "-accumulate", "2")), 1)[0]
	if mean := (alone(0) + alone(1)) / 2; math.Abs(mean-both) > 1e-6 {
		t.Errorf("got %v, want %v", both, mean)
	}
}

// TestRefuses goes through flags and files that cannot be used; nothing is overwritten.
func TestRefuses(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty.txt")
	if err := os.WriteFile(empty, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, want string
		args       []string
	}{
		{"no such text", "no such file", []string{"-text", "/no/such/file"}},
		{"empty text", "empty", []string{"-text", empty}},
		{"steps", "-steps", []string{"-steps", "0"}},
		{"more experts than allowed", "-experts", []string{"-experts", "2000"}},
		{"more choices than experts", "-topk", []string{"-experts", "2", "-topk", "3"}},
		{"width", "multiple of 8", []string{"-context", "3", "-embed", "3"}},
		{"inner width", "multiple of 32", []string{"-intermediate", "40"}},
		{"alignment", "alignment", []string{"-alignment", "24"}},
		{"micro-batches", "-accumulate", []string{"-accumulate", "5"}},
		{"dtype", "-dtype", []string{"-dtype", "fp8"}},
		{"rate", "-rate", []string{"-rate", "-1"}},
		{"warm-up", "-warmup", []string{"-steps", "10", "-warmup", "10"}},
		{"device", "device", []string{"-device", "tpu"}},
		{"an argument", "flags only", []string{"text.txt"}},
		{"nothing to resume", "no such file", []string{"-resume"}},
		{"out is a file", "not a directory", []string{"-out", empty}},
		{"more than the machine has", "bytes", []string{"-experts", "1024", "-intermediate", "65536", "-embed", "4096"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := run(t.Context(), small(t, tc.args...), io.Discard, io.Discard)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want an error that says %q", err, tc.want)
			}
		})
	}
	if err := run(t.Context(), []string{"-h"}, io.Discard, io.Discard); !errors.Is(err, errUsage) {
		t.Errorf("-h: %v", err)
	}
}

// TestResume_Refuses damages a checkpoint, changes sizes, schedule and text: refused, and the file stays as it is.
func TestResume_Refuses(t *testing.T) {
	args := small(t)
	tr := trainerOf(t, args)
	losses(t, tr, 2)
	if err := tr.save(); err != nil {
		t.Fatal(err)
	}
	path := tr.checkpointPath()
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	tr.history = []point{{Step: 1, Bits: 1}}
	if err := tr.save(); err != nil {
		t.Fatal(err)
	}
	odd, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, want string
		data       []byte
		args       []string
	}{
		{"history without a load", "history", odd, nil},
		{"truncated", "checkpoint", good[:len(good)/2], nil},
		{"garbage", "checkpoint", []byte("not a checkpoint"), nil},
		{"other sizes", "moe/router", good, []string{"-experts", "8"}},
		{"other schedule", "training", good, []string{"-steps", "30"}},
		{"other format", "sizes", good, []string{"-dtype", "f32"}},
		{"other text", "text", good, []string{"-text", others}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := os.WriteFile(path, tc.data, 0o644); err != nil {
				t.Fatal(err)
			}
			err := run(t.Context(), append(append(slices.Clone(args), tc.args...), "-resume"), io.Discard, io.Discard)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want an error that says %q", err, tc.want)
			}
			if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, tc.data) {
				t.Errorf("the file was changed (%v)", err)
			}
		})
	}
}

// TestInterrupt saves where it stopped.
func TestInterrupt(t *testing.T) {
	args := small(t, "-steps", "100000")
	ctx, cancel := context.WithCancel(t.Context())
	var out bytes.Buffer
	err := run(ctx, args, &out, cancelAfter{cancel})
	cancel()
	if !errors.Is(err, context.Canceled) || !strings.Contains(out.String(), "-resume") {
		t.Fatalf("got %v, %s", err, out.String())
	}
	if tr := trainerOf(t, append(args, "-resume")); tr.step == 0 {
		t.Error("resumed at step 0")
	}
}

// TestInterrupt_Evaluation: an interrupt ends the evaluation too, which comes after the checkpoint.
func TestInterrupt_Evaluation(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := trainerOf(t, small(t)).evaluate(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// cancelAfter cancels at the first line of progress.
type cancelAfter struct{ cancel func() }

func (c cancelAfter) Write(p []byte) (int, error) {
	c.cancel()
	return len(p), nil
}

// TestVerdict holds the conditions of the exit status.
func TestVerdict(t *testing.T) {
	r := result{model: 3, without: 4, ngram: ngram.Bits{Unigram: 5, Bigram: 4, Trigram: 3.5}}
	if err := r.verdict(); err != nil {
		t.Error(err)
	}
	r.model = 4
	if r.verdict() == nil {
		t.Error("a model as bad as the bigram passes")
	}
	if strings.Contains(r.String(), "beats") {
		t.Errorf("a model as bad as the bigram is praised:\n%s", r)
	}
	r.model, r.without = 3, 3.04
	if r.verdict() == nil {
		t.Error("a layer worth 0.04 bits passes")
	}
}
