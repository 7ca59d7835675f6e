package chart

import (
	"errors"
	"fmt"
	"image"
	"image/color"
	"math"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

const (
	// maxShare is where the colours end, in even shares (1/E): one expert that takes all at the start
	// would else leave the rest in one shade.
	maxShare = 3
	// loadColumns is the picture's resolution across; several records in one column are averaged.
	loadColumns = 1600
	barPixels   = 40 // the colour bar's resolution across

	barWidth    = vg.Length(14) // of the colour bar
	barGap      = vg.Length(18) // from the picture to it
	barTickSize = vg.Length(5)
)

// viridis is the colour map of that name (van der Walt and Smith, 2015) at equal steps: brightness
// rises evenly, so it also reads in grey.
var viridis = []color.NRGBA{
	{0x44, 0x01, 0x54, 0xff}, {0x48, 0x28, 0x78, 0xff}, {0x3e, 0x49, 0x89, 0xff}, {0x31, 0x68, 0x8e, 0xff},
	{0x26, 0x82, 0x8e, 0xff}, {0x1f, 0x9e, 0x89, 0xff}, {0x35, 0xb7, 0x79, 0xff}, {0x6e, 0xce, 0x58, 0xff},
	{0xb5, 0xde, 0x2b, 0xff}, {0xfd, 0xe7, 0x25, 0xff},
}

// ExpertLoad draws which share of the slots (tokens times top-k) each expert got: steps across,
// experts up, colour from 0 to at most three times the even share. loads[i][e] is expert e's share at
// steps[i], from 0 to 1; steps ascend, and a record stands until the next.
func ExpertLoad(path string, steps []int, loads [][]float64) error {
	if err := checkLoads(steps, loads); err != nil {
		return fmt.Errorf("chart %q: expert load: %w", path, err)
	}
	numExperts := len(loads[0])
	even := 1 / float64(numExperts)
	top := topShare(loads) // of the colours
	begin, end := float64(steps[0]), float64(steps[len(steps)-1]+lastWidth(steps))

	p := newPlot("Expert load (share of slots)", "step", "expert")
	p.Add(imagePlotter(func(height int) image.Image { return loadImage(steps, loads, end, top, height) }))
	p.X.Min, p.X.Max = begin, end
	p.Y.Min, p.Y.Max = -0.5, float64(numExperts)-0.5
	p.Y.Tick.Marker = plot.ConstantTicks(expertTicks(numExperts))

	ticks := shareTicks(even, top, topOf(loads))
	return save(path, func(c draw.Canvas) { drawWithBar(p, c, top, ticks) })
}

// drawWithBar draws p and, to its right, the colours from 0 to top with ticks.
func drawWithBar(p *plot.Plot, c draw.Canvas, top float64, ticks []plot.Tick) {
	style := p.X.Tick.Label
	style.XAlign, style.YAlign = draw.XLeft, draw.YCenter
	var width vg.Length
	for _, t := range ticks {
		width = max(width, style.Width(t.Label))
	}
	c = draw.Crop(c, 0, -(barGap + barWidth + 2*barTickSize + width), 0, 0)
	p.Draw(c)

	data := p.DataCanvas(c)
	bar := vg.Rectangle{
		Min: vg.Point{X: data.Max.X + barGap, Y: data.Min.Y},
		Max: vg.Point{X: data.Max.X + barGap + barWidth, Y: data.Max.Y},
	}
	c.DrawImage(bar, barImage(heightFor(bar, barPixels)))
	for _, t := range ticks {
		y := bar.Min.Y + bar.Size().Y*vg.Length(t.Value/top)
		c.StrokeLine2(p.X.Tick.LineStyle, bar.Max.X, y, bar.Max.X+barTickSize, y)
		c.FillText(style, vg.Point{X: bar.Max.X + 2*barTickSize, Y: y + style.Font.Size/8}, t.Label)
	}
}

// imagePlotter fills the whole area with an image of loadColumns by height pixels.
type imagePlotter func(height int) image.Image

func (image imagePlotter) Plot(c draw.Canvas, _ *plot.Plot) {
	c.DrawImage(c.Rectangle, image(heightFor(c.Rectangle, loadColumns)))
}

// heightFor makes pixels square: viewers of SVG keep an image's proportions and would leave margins.
func heightFor(area vg.Rectangle, width int) int {
	return int(math.Round(float64(width) * float64(area.Size().Y/area.Size().X)))
}

func checkLoads(steps []int, loads [][]float64) error {
	if len(loads) == 0 || len(loads[0]) == 0 {
		return errors.New("got no records, want at least one, of at least one expert")
	}
	if len(steps) != len(loads) {
		return fmt.Errorf("got %d steps, %d records, want as many", len(steps), len(loads))
	}
	for i, load := range loads {
		if i > 0 && steps[i] <= steps[i-1] {
			return fmt.Errorf("record %d: got step %d after %d, want ascending", i, steps[i], steps[i-1])
		}
		if len(load) != len(loads[0]) {
			return fmt.Errorf("step %d: got %d experts, want %d as before", steps[i], len(load), len(loads[0]))
		}
		for e, share := range load {
			if !(share >= 0 && share <= 1+1e-6) { // more by rounding only
				return fmt.Errorf("step %d, expert %d: got a share of %v, want 0 to 1", steps[i], e, share)
			}
		}
	}
	return nil
}

// lastWidth is how long the last record stands, in steps: as long as the one before it.
func lastWidth(steps []int) int {
	if len(steps) < 2 {
		return 1
	}
	return steps[len(steps)-1] - steps[len(steps)-2]
}

func topOf(loads [][]float64) float64 {
	top := 0.
	for _, load := range loads {
		for _, share := range load {
			top = max(top, share)
		}
	}
	return top
}

// topShare is the share of the last colour: the largest that occurs in whole even shares, from 2 to
// maxShare of them.
func topShare(loads [][]float64) float64 {
	numExperts := float64(len(loads[0]))
	evenShares := math.Ceil(topOf(loads)*numExperts - 1e-9)
	return min(max(evenShares, 2), maxShare) / numExperts
}

// loadImage has one column for each of loadColumns parts of the steps: the mean of the records that
// begin in it, or else the record that stands.
func loadImage(steps []int, loads [][]float64, end, top float64, height int) image.Image {
	numExperts := len(loads[0])
	img := image.NewNRGBA(image.Rect(0, 0, loadColumns, height))
	begin := float64(steps[0])
	mean := make([]float64, numExperts)
	next := 0 // the first record not yet begun
	for col := range loadColumns {
		colEnd := begin + (end-begin)*float64(col+1)/loadColumns
		first := next
		for next < len(steps) && float64(steps[next]) < colEnd {
			next++
		}
		if next > first {
			clear(mean)
			for _, load := range loads[first:next] {
				for e, share := range load {
					mean[e] += share / float64(next-first)
				}
			}
		}
		for e, share := range mean {
			c := shade(share / top)
			for y := e * height / numExperts; y < (e+1)*height/numExperts; y++ {
				img.SetNRGBA(col, height-1-y, c) // expert 0 at the bottom
			}
		}
	}
	return img
}

func barImage(height int) image.Image {
	img := image.NewNRGBA(image.Rect(0, 0, barPixels, height))
	for y := range height {
		for x := range barPixels {
			img.SetNRGBA(x, height-1-y, shade(float64(y)/float64(max(1, height-1))))
		}
	}
	return img
}

// shade is the colour at x, from 0 to 1; above it stays.
func shade(x float64) color.NRGBA {
	at := min(max(x, 0), 1) * float64(len(viridis)-1)
	i := min(int(at), len(viridis)-2)
	part := at - float64(i)
	blend := func(a, b uint8) uint8 { return uint8(math.Round(float64(a)*(1-part) + float64(b)*part)) }
	a, b := viridis[i], viridis[i+1]
	return color.NRGBA{blend(a.R, b.R), blend(a.G, b.G), blend(a.B, b.B), 0xff}
}

// expertTicks numbers every expert, or every second, fourth, ... where they are many.
func expertTicks(numExperts int) []plot.Tick {
	const most = 16
	every := 1
	for numExperts > most*every {
		every *= 2
	}
	var ticks []plot.Tick
	for e := 0; e < numExperts; e += every {
		ticks = append(ticks, plot.Tick{Value: float64(e), Label: strconv.Itoa(e)})
	}
	return ticks
}

// shareTicks marks whole even shares; the last says where larger ones were cut off.
func shareTicks(even, top, largest float64) []plot.Tick {
	var ticks []plot.Tick
	for n := 0; n <= maxShare; n++ {
		share := float64(n) * even
		if share > top+even/2 {
			break
		}
		label := fmt.Sprintf("%.3g %%", 100*share)
		switch {
		case n == 1:
			label += " (even)"
		case n == maxShare && largest > top:
			label = "≥ " + label
		}
		ticks = append(ticks, plot.Tick{Value: share, Label: label})
	}
	return ticks
}
