package graph

import (
	"bufio"
	"fmt"
	"html"
	"io"
	"strconv"
)

func itoa(n int) string { return strconv.Itoa(n) }

// Measures of the picture, in pixels.
const (
	svgWidth, svgHeight   = 960.0, 480.0
	svgLeft, svgRight     = 80.0, 20.0
	svgTop, svgBottom     = 48.0, 56.0
	svgPlotW, svgPlotH    = svgWidth - svgLeft - svgRight, svgHeight - svgTop - svgBottom
	svgLabelW, svgLabelH  = 7.0, 13.0 // of a letter, of a line
	svgSmallestLabelledPx = 60.0
)

// WriteSVG writes a picture of the arena: a box a workspace, from the step that makes it to the last that reads it
// across, from its offset to its end upwards; no two boxes overlap. Boxes that pin the peak have a dark
// edge; a dashed line is the lower bound. Hovering names a box.
func (p *Program) WriteSVG(w io.Writer) error {
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, `<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%.0f" viewBox="0 0 %.0f %.0f" font-family="Helvetica,Arial,sans-serif" font-size="12">`+"\n", svgWidth, svgHeight, svgWidth, svgHeight)
	fmt.Fprintf(b, `<rect width="100%%" height="100%%" fill="white"/><text x="%.0f" y="22" font-size="15" font-weight="bold">%s: workspaces of %d steps</text>`+"\n", svgLeft, html.EscapeString(p.graph), len(p.steps))
	fmt.Fprintf(b, `<text x="%.0f" y="39" fill="#555">peak %s, lower bound %s, without sharing %s</text>`+"\n", svgLeft, size(p.plan.Peak), size(p.plan.LowerBound), size(p.WorkspaceSum()))
	p.svgAxes(b)
	pinned := map[int]bool{}
	for _, i := range p.plan.Pinned {
		pinned[i] = true
	}
	for i, r := range p.boxes() {
		if r.h <= 0 {
			continue
		}
		edge, name := "white", p.buffers[i].Name
		if pinned[i] {
			edge = "#222"
		}
		fill := streamColors[i%len(streamColors)]
		fmt.Fprintf(b, `<g class="buffer"><title>%s: %s at %d, steps %d to %d</title><rect x="%.2f" y="%.2f" width="%.2f" height="%.2f" fill="%s" fill-opacity="0.85" stroke="%s" stroke-width="0.7"/>`,
			html.EscapeString(name), size(p.buffers[i].Size), p.buffers[i].Offset, p.buffers[i].First, p.buffers[i].Last, r.x, r.y, r.w, r.h, fill, edge)
		if room := int(r.w/svgLabelW) - 1; r.w > svgSmallestLabelledPx && r.h > svgLabelH {
			fmt.Fprintf(b, `<text x="%.2f" y="%.2f" fill="white" font-size="11" pointer-events="none">%s</text>`, r.x+4, r.y+r.h/2+4, html.EscapeString(shorten(name, room)))
		}
		fmt.Fprintln(b, "</g>")
	}
	y := svgTop + svgPlotH*(1-float64(p.plan.LowerBound)/float64(max(p.plan.Peak, 1)))
	fmt.Fprintf(b, `<line x1="%.0f" x2="%.0f" y1="%.2f" y2="%.2f" stroke="#c00" stroke-dasharray="6 4"/>`+"\n</svg>\n", svgLeft, svgLeft+svgPlotW, y, y)
	return b.Flush()
}

// svgAxes draws the frame, bytes upwards and steps across.
func (p *Program) svgAxes(b *bufio.Writer) {
	fmt.Fprintf(b, `<rect x="%.0f" y="%.0f" width="%.0f" height="%.0f" fill="#f6f6f4"/>`+"\n", svgLeft, svgTop, svgPlotW, svgPlotH)
	for i := range 5 {
		y := svgTop + svgPlotH*(1-float64(i)/4)
		fmt.Fprintf(b, `<line x1="%.0f" x2="%.0f" y1="%.1f" y2="%.1f" stroke="#ddd"/><text x="%.0f" y="%.1f" text-anchor="end" fill="#555">%s</text>`+"\n",
			svgLeft, svgLeft+svgPlotW, y, y, svgLeft-6, y+4, size(p.plan.Peak*int64(i)/4))
	}
	n := max(1, len(p.steps))
	stride := (n + 19) / 20
	for i := 0; i < len(p.steps); i += stride {
		x := svgLeft + svgPlotW*(float64(i)+0.5)/float64(n)
		fmt.Fprintf(b, `<text x="%.1f" y="%.0f" text-anchor="middle" fill="#555">%d</text>`+"\n", x, svgTop+svgPlotH+16, i)
	}
	fmt.Fprintf(b, `<text x="%.0f" y="%.0f" text-anchor="middle" fill="#555">step, in the order of issue</text>`+"\n", svgLeft+svgPlotW/2, svgHeight-14)
}

type box struct{ x, y, w, h float64 }

// boxes returns each workspace's place in the picture.
func (p *Program) boxes() []box {
	n, peak := float64(max(1, len(p.steps))), float64(max(p.plan.Peak, 1))
	boxes := make([]box, len(p.buffers))
	taken := map[int]bool{} // what is overwritten in place ends where the next begins
	for _, b := range p.buffers {
		if b.over >= 0 {
			taken[b.over] = true
		}
	}
	for i, b := range p.buffers {
		if taken[i] {
			b.Last--
		}
		top := svgTop + svgPlotH*(1-float64(b.Offset+b.Size)/peak)
		boxes[i] = box{
			x: svgLeft + svgPlotW*float64(b.First)/n, w: svgPlotW * float64(b.Last-b.First+1) / n,
			y: top, h: svgPlotH * float64(b.Size) / peak,
		}
	}
	return boxes
}

// shorten cuts a name to n letters, from the left, where path names differ least.
func shorten(s string, n int) string {
	if len(s) <= n {
		return s
	}
	if n < 4 {
		return ""
	}
	return "…" + s[len(s)-n+1:]
}
