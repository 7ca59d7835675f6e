package graph

import (
	"fmt"
	"html"
	"strings"
)

// memory draws the arena.
func (b *page) memory() {
	p := b.p
	pinned := map[int]bool{}
	for _, i := range p.plan.Pinned {
		pinned[i] = true
	}
	const scale = 1.2 // of WriteSVG's picture
	b.printf(`<div class="pane" tabindex="0" role="application" aria-label="memory: arrow keys move from step to step"><svg width="%.0f" height="%.0f" viewBox="0 0 %.0f %.0f" role="img" aria-label="%d workspaces, peak %s">`+"\n", scale*svgWidth, scale*svgHeight, svgWidth, svgHeight, len(p.buffers), size(p.plan.Peak))
	for i := range 5 {
		y := svgTop + svgPlotH*(1-float64(i)/4)
		b.printf(`<line class="grid" x1="%.0f" x2="%.0f" y1="%.1f" y2="%.1f"/><text class="soft" x="%.0f" y="%.1f" text-anchor="end">%s</text>`, svgLeft, svgLeft+svgPlotW, y, y, svgLeft-6, y+4, size(p.plan.Peak/4*int64(i)+p.plan.Peak%4*int64(i)/4))
	}
	n := max(1, len(p.steps))
	for i := 0; i < len(p.steps); i += (n + 19) / 20 {
		b.printf(`<text class="soft" x="%.1f" y="%.0f" text-anchor="middle">%d</text>`, svgLeft+svgPlotW*(float64(i)+0.5)/float64(n), svgTop+svgPlotH+16, i)
	}
	b.printf(`<text class="soft" x="%.0f" y="%.0f" text-anchor="middle">step, in the order of issue</text>`+"\n", svgLeft+svgPlotW/2, svgHeight-14)
	for i, r := range p.boxes() {
		if r.h <= 0 || r.w <= 0 {
			continue
		}
		x := p.buffers[i]
		class, over := "", ""
		if pinned[i] {
			class = ` class="pin"`
		}
		if x.Over != "" {
			over = ", in place of " + x.Over
		}
		b.printf(`<g class="buffer" data-steps="%s"><title>%s: %s at %d, steps %d to %d%s</title><rect%s x="%.2f" y="%.2f" width="%.2f" height="%.2f" fill="%s" fill-opacity="0.88"/>`,
			strings.Trim(fmt.Sprint(p.accesses[i]), "[]"), html.EscapeString(x.Name), size(x.Size), x.Offset, x.First, x.Last, html.EscapeString(over), class, r.x, r.y, r.w, r.h, streamColors[i%len(streamColors)])
		if room := int(r.w/6.5) - 1; r.w > 40 && r.h > 13 {
			b.printf(`<text class="in" x="%.2f" y="%.2f">%s</text>`, r.x+4, r.y+r.h/2+4, html.EscapeString(shorten(x.Name, room)))
		}
		b.printf("</g>\n")
	}
	y := svgTop + svgPlotH*(1-float64(p.plan.LowerBound)/float64(max(p.plan.Peak, 1)))
	b.printf(`<line class="bound" x1="%.0f" x2="%.0f" y1="%.2f" y2="%.2f"/>`+"\n</svg></div>\n", svgLeft, svgLeft+svgPlotW, y, y)
}
