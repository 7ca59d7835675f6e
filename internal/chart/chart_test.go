package chart

import (
	"bytes"
	"encoding/xml"
	"errors"
	"image"
	"image/color"
	"image/png"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// checkPicture checks that path is a whole picture in which something other than white is drawn.
func checkPicture(t *testing.T, path string) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if filepath.Ext(path) == ".svg" {
		for d := xml.NewDecoder(bytes.NewReader(raw)); ; {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				return
			} else if err != nil {
				t.Fatal(err)
			}
		}
	}
	img, err := png.Decode(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	colors := map[color.Color]bool{}
	b := img.Bounds()
	for y := b.Min.Y; y < b.Max.Y; y += 3 {
		for x := b.Min.X; x < b.Max.X; x += 3 {
			colors[img.At(x, y)] = true
		}
	}
	if b.Dx() < 1000 || len(colors) < 4 {
		t.Errorf("%s: got %d colours in %v, want a drawing", path, len(colors), b)
	}
}

func ramp(n int, f func(x float64) float64) Series {
	s := Series{Name: "training"}
	for i := range n {
		s.X = append(s.X, float64(i))
		s.Y = append(s.Y, f(float64(i)))
	}
	return s
}

func TestLoss(t *testing.T) {
	falling := func(x float64) float64 { return 2 + 6*math.Exp(-x/100) + 0.1*math.Sin(x) }
	diverged := ramp(50, falling)
	diverged.Y[20], diverged.Y[49] = math.NaN(), math.Inf(1)
	dir := t.TempDir()
	for name, series := range map[string][]Series{
		"one.png":      {ramp(1, falling)},
		"few.png":      {ramp(5, falling)},
		"many.svg":     {ramp(30000, falling), ramp(30, falling)},
		"constant.png": {ramp(200, func(float64) float64 { return 3 })},
		"diverged.png": {diverged, {Name: "empty"}},
	} {
		path := filepath.Join(dir, name)
		if err := Loss(path, series, Line{"bigram", 3.71}, Line{"trigram", 3.05}); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		checkPicture(t, path)
	}
}

func TestExpertLoad(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct{ numSteps, numExperts int }{
		"a.png": {1, 1}, "c.png": {5000, 8}, "d.svg": {30, 64}, "e.png": {3, 3000},
	} {
		var steps []int
		var loads [][]float64
		for i := range c.numSteps {
			steps = append(steps, 100+10*i)
			load := make([]float64, c.numExperts)
			load[i%c.numExperts] = 1
			loads = append(loads, load)
		}
		path := filepath.Join(dir, name)
		if err := ExpertLoad(path, steps, loads); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		checkPicture(t, path)
	}
}

func TestRefuses(t *testing.T) {
	good := []Series{{"training", []float64{1, 2}, []float64{3, 4}}}
	cases := map[string]struct {
		draw func(path string) error
		file string
		want string
	}{
		"ending":         {func(p string) error { return Loss(p, good) }, "f.pdf", `ending ".pdf", want .png or .svg`},
		"no ending":      {func(p string) error { return Loss(p, good) }, "f", `ending ""`},
		"no series":      {func(p string) error { return Loss(p, nil) }, "f.png", "no finite value"},
		"lengths":        {func(p string) error { return Loss(p, []Series{{"s", []float64{1}, nil}}) }, "f.png", `series "s": got 1 values of X, 0 of Y`},
		"line":           {func(p string) error { return Loss(p, good, Line{"l", math.NaN()}) }, "f.png", `line "l": got NaN`},
		"only NaN":       {func(p string) error { return Loss(p, []Series{{"s", []float64{1}, []float64{math.NaN()}}}) }, "f.png", "no finite value"},
		"no records":     {func(p string) error { return ExpertLoad(p, nil, nil) }, "f.png", "no records"},
		"no experts":     {func(p string) error { return ExpertLoad(p, []int{1}, [][]float64{{}}) }, "f.png", "no records"},
		"steps":          {func(p string) error { return ExpertLoad(p, []int{1, 2}, [][]float64{{1}}) }, "f.png", "got 2 steps, 1 records"},
		"steps descend":  {func(p string) error { return ExpertLoad(p, []int{2, 2}, [][]float64{{1}, {1}}) }, "f.png", "got step 2 after 2"},
		"ragged":         {func(p string) error { return ExpertLoad(p, []int{1, 2}, [][]float64{{1}, {1, 0}}) }, "f.png", "step 2: got 2 experts, want 1"},
		"share over one": {func(p string) error { return ExpertLoad(p, []int{1}, [][]float64{{0, 1.5}}) }, "f.png", "expert 1: got a share of 1.5"},
		"share NaN":      {func(p string) error { return ExpertLoad(p, []int{1}, [][]float64{{math.NaN()}}) }, "f.png", "got a share of NaN"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), c.file)
			if err := os.WriteFile(path, []byte("old"), 0o644); err != nil {
				t.Fatal(err)
			}
			err := c.draw(path)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("got %v, want %q and the file in it", err, c.want)
			}
			if got, _ := os.ReadFile(path); string(got) != "old" {
				t.Error("the old file is gone")
			}
		})
	}
}

func TestTicks(t *testing.T) {
	labels := func(ticks []plot.Tick) string {
		var s []string
		for _, tick := range ticks {
			s = append(s, tick.Label)
		}
		return strings.Join(s, " ")
	}
	for _, c := range []struct {
		got  []plot.Tick
		want string
	}{
		{stepTicks(0, 3), "0 1 2 3"},
		{stepTicks(9, 11), "9 10 11"},
		{stepTicks(0, 2999), "0 500 1000 1500 2000 2500"},
		{stepTicks(0, 20000), "0 5000 10k 15k 20k"},
		{stepTicks(0, 3e6), "0 500k 1M 1.5M 2M 2.5M 3M"},
		{valueTicks(2.1, 8.9), "3 4 5 6 7 8"},
		{valueTicks(2.31, 2.58), "2.35 2.40 2.45 2.50 2.55"},
		{valueTicks(-0.2, 0.2), "-0.2 -0.1 0.0 0.1 0.2"},
	} {
		if diff := cmp.Diff(c.want, labels(c.got)); diff != "" {
			t.Error(diff)
		}
	}
}

func TestMoveApart(t *testing.T) {
	for _, c := range []struct{ heights, want []vg.Length }{
		{[]vg.Length{1, 50, 99}, []vg.Length{1, 50, 99}},
		{[]vg.Length{10, 12, 13}, []vg.Length{10, 20, 30}},
		{[]vg.Length{97, 98, 120}, []vg.Length{80, 90, 100}},
		{nil, nil},
	} {
		got := slices.Clone(c.heights)
		moveApart(got, 10, 100)
		if !slices.Equal(got, c.want) {
			t.Errorf("%v: got %v, want %v", c.heights, got, c.want)
		}
	}
}

func TestMovingMean(t *testing.T) {
	var slope plotter.XYs
	for i := range 500 {
		slope = append(slope, plotter.XY{X: float64(i), Y: float64(2 * i)})
	}
	// A slope is its own mean, except within window/8 of the end.
	for i, point := range movingMean(slope, 40)[:490] {
		if math.Abs(point.Y-slope[i].Y) > 1e-9 {
			t.Fatalf("point %d: got %v, want %v", i, point.Y, slope[i].Y)
		}
	}
	thin := thinned(append(slope, slope...))
	if len(thin) != 1000 {
		t.Errorf("1000 points: thinned to %d", len(thin))
	}
}

// TestLoadImage reads shares back from the colours: averaged where records share a column, standing
// until the next record where they do not, expert 0 at the bottom.
func TestLoadImage(t *testing.T) {
	at := func(img image.Image, column, row int) color.NRGBA { return img.(*image.NRGBA).NRGBAAt(column, row) }
	img := loadImage([]int{0, 8}, [][]float64{{0, 1}, {1, 0}}, 16, 1, 100)
	for _, c := range []struct {
		column, row int
		share       float64
	}{{0, 99, 0}, {799, 99, 0}, {800, 99, 1}, {1599, 50, 1}, {0, 0, 1}, {799, 49, 1}, {800, 0, 0}} {
		if got, want := at(img, c.column, c.row), shade(c.share); got != want {
			t.Errorf("column %d, row %d: got %v, want %v", c.column, c.row, got, want)
		}
	}
	var steps []int
	var loads [][]float64
	for i := range 2 * loadColumns { // 0 and 1 in turn, two to a column
		steps = append(steps, i)
		loads = append(loads, []float64{float64(i % 2)})
	}
	img = loadImage(steps, loads, 2*loadColumns, 1, 10)
	if got, want := at(img, 77, 5), shade(0.5); got != want {
		t.Errorf("mean: got %v, want %v", got, want)
	}
}
