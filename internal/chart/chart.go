// Package chart draws what a training run leaves as pictures: curves over steps with reference lines,
// and the load of experts over time.
//
// [Loss] and [Curves] draw series, [ExpertLoad] a heat map. The ending of the path says which kind of
// file: .png or .svg. A file is replaced as a whole or, on an error, not touched. The functions may
// be called from several goroutines.
package chart

import (
	"fmt"
	"image/color"
	"io"
	"path/filepath"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/moegraph/moegraph/internal/atomicfile"
)

const (
	figureWidth  = 9 * vg.Inch
	figureHeight = 5.2 * vg.Inch
	figureMargin = vg.Length(14) // points, on all sides
	pngDPI       = 160
	titleSize    = vg.Length(16) // points, as all sizes here
	labelSize    = vg.Length(13)
	tickSize     = vg.Length(11.5)
)

var (
	ink      = color.NRGBA{0x22, 0x22, 0x22, 0xff}
	softInk  = color.NRGBA{0x66, 0x66, 0x66, 0xff}
	gridInk  = color.NRGBA{0xe4, 0xe4, 0xe4, 0xff}
	sansFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	// seriesInks can be told apart by colour-blind readers too (Okabe and Ito, 2008), and in grey.
	seriesInks = []color.NRGBA{
		{0x00, 0x72, 0xb2, 0xff}, {0xd5, 0x5e, 0x00, 0xff}, {0x00, 0x9e, 0x73, 0xff},
		{0xcc, 0x79, 0xa7, 0xff}, {0xe6, 0x9f, 0x00, 0xff}, {0x56, 0xb4, 0xe9, 0xff},
	}
)

// newPlot is an empty plot in this package's style.
func newPlot(title, xLabel, yLabel string) *plot.Plot {
	p := plot.New()
	p.Title.Text = title
	p.Title.Padding = 10
	p.Title.TextStyle.Font = font.From(sansFont, titleSize)
	p.Title.TextStyle.Color = ink
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.Label.TextStyle.Font = font.From(sansFont, labelSize)
		axis.Label.TextStyle.Color = ink
		axis.Label.Padding = 6
		axis.Tick.Label.Font = font.From(sansFont, tickSize)
		axis.Tick.Label.Color = ink
		axis.Tick.Color = softInk
		axis.Color = softInk
		axis.Padding = 0
	}
	p.X.Label.Text, p.Y.Label.Text = xLabel, yLabel
	p.X.Tick.Marker = plot.TickerFunc(stepTicks)
	p.Y.Tick.Marker = plot.TickerFunc(valueTicks)
	return p
}

// save draws on a canvas of the kind that path's ending asks for, and writes it.
func save(path string, drawOn func(c draw.Canvas)) error {
	var canvas interface {
		vg.CanvasSizer
		io.WriterTo
	}
	switch ext := strings.ToLower(filepath.Ext(path)); ext {
	case ".png":
		canvas = vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(figureWidth, figureHeight), vgimg.UseDPI(pngDPI))}
	case ".svg":
		// With the font in it: another one's widths would not fit the places of the labels.
		canvas = vgsvg.NewWith(vgsvg.UseWH(figureWidth, figureHeight), vgsvg.EmbedFonts(true))
	default:
		return fmt.Errorf("chart %q: got ending %q, want .png or .svg", path, ext)
	}
	c := draw.New(canvas)
	c.SetColor(color.White)
	c.Fill(c.Rectangle.Path())
	drawOn(draw.Crop(c, figureMargin, -figureMargin, figureMargin, -figureMargin))
	err := atomicfile.Write(path, func(w io.Writer) error {
		_, err := canvas.WriteTo(w)
		return err
	})
	if err != nil {
		return fmt.Errorf("chart: %w", err)
	}
	return nil
}
