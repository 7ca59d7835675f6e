package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPrecision trains the same model with the experts in bf16, MXFP8 and NVFP4. Held out, MXFP8 may cost at most 0.15
// and NVFP4 0.4 of what the layer is worth in bf16. With every factor forced to 1 the layer learns nothing:
// MXFP8 misses its bar, and in NVFP4 the layer is worth nothing at all. (The model around it learns what it can
// alone, so that a dead layer costs less than the layer is worth where a trained one is taken out.)
func TestPrecision(t *testing.T) {
	if testing.Short() {
		t.Skip("trains for some seconds")
	}
	train := func(args ...string) (bits, worth float64, plan string) {
		tr := trainerOf(t, append([]string{"-text", sources, "-out", t.TempDir(), "-steps", "120", "-batch", "192", "-experts", "4", "-intermediate", "64"}, args...))
		if err := tr.train(context.Background(), io.Discard); err != nil {
			t.Fatal(err)
		}
		positions := tr.text.HeldOut.Positions(3000)
		with, err := tr.bits(context.Background(), positions, true)
		if err != nil {
			t.Fatal(err)
		}
		without, err := tr.bits(context.Background(), positions, false)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%v: %.3f bits per byte, the layer is worth %.3f", args, with, without-with)
		return with, without - with, tr.prog.String()
	}
	plain, worth, _ := train("-precision", "bf16")
	if worth < worthBits {
		t.Fatalf("the layer is worth %.3f bits in bf16, want at least %.2f for a comparison", worth, worthBits)
	}
	for _, c := range []struct {
		precision string
		share     float64
	}{{"mxfp8", 0.15}, {"nvfp4", 0.4}} {
		bits, _, plan := train("-precision", c.precision)
		if cost := bits - plain; !(cost <= c.share*worth) {
			t.Errorf("%s costs %.3f bits per byte, want at most %.2f of the %.3f that the layer is worth", c.precision, cost, c.share, worth)
		}
		products := 0
		for _, kind := range []string{"grouped_gemm", "grouped_gemm_glu", "grouped_gemm_dglu", "wgrad"} {
			scaled := fmt.Sprintf(" %s_quant %s ", kind, c.precision)
			products += strings.Count(plan, scaled)
			for line := range strings.Lines(plan) {
				if strings.Contains(line, " "+kind+" ") && !strings.Contains(line, scaled) {
					t.Errorf("%s: a product without quantized operands: %s", c.precision, line)
				}
			}
		}
		if products != 6 {
			t.Errorf("%s: the plan has %d products of quantized operands, want 6:\n%s", c.precision, products, plan)
		}
		bits, dead, _ := train("-precision", c.precision, "-unit-factors")
		if c.precision == "mxfp8" && bits-plain <= c.share*worth {
			t.Errorf("mxfp8 with every factor 1 costs only %.3f bits", bits-plain)
		}
		if dead > 0.2*worth {
			t.Errorf("%s with every factor 1: the layer is worth %.3f bits, want next to nothing beside %.3f", c.precision, dead, worth)
		}
	}
}

// TestParse_Precision: the alignment that block-scaled operands ask for is the default beside them.
func TestParse_Precision(t *testing.T) {
	for args, want := range map[string]int{"": 32, "-precision mxfp8": 128, "-precision nvfp4 -alignment 256": 256} {
		cfg, err := parse(strings.Fields(args), io.Discard)
		if err != nil || cfg.Alignment != want {
			t.Errorf("%q: got alignment %d and error %v, want %d", args, cfg.Alignment, err, want)
		}
	}
	if _, err := parse([]string{"-precision", "fp7"}, io.Discard); err == nil || !strings.Contains(err.Error(), "fp7") {
		t.Errorf("got error %v", err)
	}
}

// TestCompare: every precision has its row, its folder and its curve.
func TestCompare(t *testing.T) {
	dir := t.TempDir()
	var out strings.Builder
	err := run(t.Context(), []string{"-text", sources, "-out", dir, "-steps", "12", "-batch", "64", "-experts", "4", "-intermediate", "32", "-evaluate", "300",
		"-precision", "bf16,mxfp8,nvfp4"}, &out, io.Discard)
	if err != nil && !strings.Contains(err.Error(), "bits") { // so short a training need not beat the bigram
		t.Fatal(err)
	}
	for _, want := range []string{"\nbf16 ", "\nmxfp8 ", "\nnvfp4 ", "(at most 0.15)", "(at most 0.40)"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	for _, file := range []string{"precisions.png", "bf16/loss.png", "mxfp8/loss.png", "nvfp4/checkpoint.safetensors"} {
		if info, err := os.Stat(filepath.Join(dir, file)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", file, err)
		}
	}
	if err := run(t.Context(), []string{"-precision", "bf16,bf16"}, &out, io.Discard); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("got error %v", err)
	}
}
