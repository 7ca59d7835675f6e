package chart

import (
	"cmp"
	"errors"
	"fmt"
	"image/color"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Series is one curve. Points whose value is not finite (of a run that diverged) are left out.
type Series struct {
	Name string
	X, Y []float64 // same length; X ascending
}

// Line is a horizontal reference, as the bits per byte of a simpler model.
type Line struct {
	Name string
	Y    float64
}

// Figure is what Curves draws.
type Figure struct {
	Title, XLabel, YLabel string
	Series                []Series
	Lines                 []Line
}

const (
	// smoothFrom points on, a series is noise to the eye: it is drawn pale, with its moving mean over
	// 1/smoothShare of its points on top.
	smoothFrom  = 100
	smoothShare = 40
	// maxPoints bounds what is drawn of a series, by means over equal numbers of points.
	maxPoints = 2000

	labelGap = vg.Length(12) // from the plot's right edge to the curves' names, crossed by a thin line
)

// Loss draws a loss curve over steps, in bits per byte.
func Loss(path string, series []Series, lines ...Line) error {
	return Curves(path, Figure{"Loss", "step", "bits per byte", series, lines})
}

// Curves draws series and lines; the name and last value of each stand at its right end, in its
// colour.
func Curves(path string, f Figure) error {
	p := newPlot(f.Title, f.XLabel, f.YLabel)
	p.Add(newGrid())
	for _, l := range f.Lines {
		p.Add(lineAcross(l.Y))
	}
	var ends []endLabel
	for i, s := range f.Series {
		if len(s.X) != len(s.Y) {
			return fmt.Errorf("chart %q: series %q: got %d values of X, %d of Y, want as many",
				path, s.Name, len(s.X), len(s.Y))
		}
		points := finite(s)
		if len(points) == 0 {
			continue
		}
		ink := seriesInks[i%len(seriesInks)]
		last, err := addSeries(p, points, ink)
		if err != nil {
			return fmt.Errorf("chart %q: series %q: %w", path, s.Name, err)
		}
		ends = append(ends, endLabel{s.Name, last, ink})
	}
	if len(ends) == 0 {
		return fmt.Errorf("chart %q: %w", path, errors.New("got no finite value in any series"))
	}
	for _, l := range f.Lines {
		if math.IsNaN(l.Y) || math.IsInf(l.Y, 0) {
			return fmt.Errorf("chart %q: line %q: got %v, want a finite value", path, l.Name, l.Y)
		}
		p.Y.Min, p.Y.Max = min(p.Y.Min, l.Y), max(p.Y.Max, l.Y)
		ends = append(ends, endLabel{l.Name, l.Y, softInk})
	}
	widen(&p.X, 0)
	widen(&p.Y, 0.04)
	return save(path, func(c draw.Canvas) { drawWithEnds(p, c, ends) })
}

func newGrid() *plotter.Grid {
	g := plotter.NewGrid()
	g.Vertical.Color, g.Horizontal.Color = gridInk, gridInk
	return g
}

// widen leaves a share of an axis' range free at both ends, and makes a range of an empty one.
func widen(axis *plot.Axis, share float64) {
	if axis.Min == axis.Max {
		axis.Min, axis.Max = axis.Min-1, axis.Max+1
	}
	room := share * (axis.Max - axis.Min)
	axis.Min, axis.Max = axis.Min-room, axis.Max+room
}

func finite(s Series) plotter.XYs {
	var points plotter.XYs
	for i, x := range s.X {
		if y := s.Y[i]; !math.IsNaN(x+y) && !math.IsInf(x+y, 0) {
			points = append(points, plotter.XY{X: x, Y: y})
		}
	}
	return points
}

// addSeries draws points and returns the value at the right end of what stands out.
func addSeries(p *plot.Plot, points plotter.XYs, ink color.NRGBA) (last float64, err error) {
	thin := thinned(points)
	line, err := plotter.NewLine(thin)
	if err != nil {
		return 0, err
	}
	line.Color, line.Width = ink, 2
	if len(points) < smoothFrom {
		p.Add(line)
		if len(points) < 2*smoothFrom/5 { // few enough to tell apart
			dots, err := plotter.NewScatter(points)
			if err != nil {
				return 0, err
			}
			dots.GlyphStyle = draw.GlyphStyle{Color: ink, Radius: 3, Shape: draw.CircleGlyph{}}
			p.Add(dots)
		}
		return points[len(points)-1].Y, nil
	}
	pale := ink
	pale.A = 0x50
	line.Color, line.Width = pale, 0.8
	mean, err := plotter.NewLine(movingMean(thin, len(thin)/smoothShare))
	if err != nil {
		return 0, err
	}
	mean.Color, mean.Width = ink, 2
	p.Add(line, mean)
	return mean.XYs[len(mean.XYs)-1].Y, nil
}

// thinned is points, or where there are too many the means of runs of them.
func thinned(points plotter.XYs) plotter.XYs {
	if len(points) <= maxPoints {
		return points
	}
	means := make(plotter.XYs, maxPoints)
	for i := range means {
		run := points[i*len(points)/maxPoints : (i+1)*len(points)/maxPoints]
		for _, point := range run {
			means[i].X += point.X / float64(len(run))
			means[i].Y += point.Y / float64(len(run))
		}
	}
	return means
}

// movingMean is the mean over window points around each, fewer at the ends.
func movingMean(points plotter.XYs, window int) plotter.XYs {
	sums := make([]float64, len(points)+1)
	for i, point := range points {
		sums[i+1] = sums[i] + point.Y
	}
	means := make(plotter.XYs, len(points))
	for i, point := range points {
		// As far on both sides, so that a slope at the ends does not bend the mean.
		reach := min(window/2, i, max(len(points)-1-i, window/8))
		begin, end := i-reach, min(i+reach+1, len(points))
		means[i] = plotter.XY{X: point.X, Y: (sums[end] - sums[begin]) / float64(end-begin)}
	}
	return means
}

// lineAcross draws a dashed line over the whole width, at this value.
type lineAcross float64

func (y lineAcross) Plot(c draw.Canvas, p *plot.Plot) {
	_, toY := p.Transforms(&c)
	style := draw.LineStyle{Color: softInk, Width: 1.2, Dashes: []vg.Length{5, 4}}
	c.StrokeLine2(style, c.Min.X, toY(float64(y)), c.Max.X, toY(float64(y)))
}

// endLabel is the name of a curve or line, to stand at its right end at height y.
type endLabel struct {
	name string
	y    float64
	ink  color.NRGBA
}

func (l endLabel) text() string { return fmt.Sprintf("%s %.2f", l.name, l.y) }

// drawWithEnds draws p and, to its right, the labels, moved apart where they would overlap and then
// tied to their curve by a thin line.
func drawWithEnds(p *plot.Plot, c draw.Canvas, ends []endLabel) {
	style := p.X.Tick.Label
	style.Font = font.From(sansFont, tickSize)
	style.XAlign, style.YAlign = draw.XLeft, draw.YCenter
	var width vg.Length
	for _, l := range ends {
		width = max(width, style.Width(l.text()))
	}
	c = draw.Crop(c, 0, -(width + labelGap + 3), 0, 0)
	p.Draw(c)

	data := p.DataCanvas(c)
	_, toY := p.Transforms(&data)
	slices.SortStableFunc(ends, func(a, b endLabel) int { return cmp.Compare(a.y, b.y) })
	heights := make([]vg.Length, len(ends))
	for i, l := range ends {
		heights[i] = toY(l.y)
	}
	moveApart(heights, style.Font.Size*1.25, data.Max.Y)
	for i, l := range ends {
		pale := draw.LineStyle{Color: l.ink, Width: 0.6}
		c.StrokeLine2(pale, data.Max.X+1, toY(l.y), data.Max.X+labelGap-2, heights[i])
		style.Color = l.ink
		// The style centres the box around the text, which reaches below the line of writing.
		c.FillText(style, vg.Point{X: data.Max.X + labelGap, Y: heights[i] + style.Font.Size/8}, l.text())
	}
}

// moveApart raises ascending heights until they are gap apart, then lowers those above top.
func moveApart(heights []vg.Length, gap, top vg.Length) {
	for i := 1; i < len(heights); i++ {
		heights[i] = max(heights[i], heights[i-1]+gap)
	}
	for i := len(heights) - 1; i >= 0; i-- {
		heights[i] = min(heights[i], top)
		top = heights[i] - gap
	}
}
