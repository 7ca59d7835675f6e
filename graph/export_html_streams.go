package graph

import (
	"cmp"
	"html"
	"slices"
)

// Measures of the timeline, in pixels.
const (
	laneW, laneH, laneGap, laneLeft, laneTop = 1160.0, 26.0, 8.0, 78.0, 22.0
)

// timelines draws the simulation, and what was measured.
func (b *page) timelines() {
	p := b.p
	spans := make([]span, len(p.steps))
	for i, s := range p.steps {
		spans[i] = span{i, s.Stream, s.StartUS, s.EndUS}
	}
	b.timeline("simulated", spans, max(1, p.streams), true)
	if p.profile == nil {
		return
	}
	b.timeline("measured", p.measured(), 0, false)
}

// measured places the profile's steps: those that ran at once on lanes of their own.
func (p *Program) measured() []span {
	index := map[string]int{}
	for i, s := range p.steps {
		index[s.Name] = i
	}
	var spans []span
	for _, t := range p.profile {
		if i, ok := index[t.Name]; ok {
			spans = append(spans, span{i, 0, t.StartUS, t.EndUS})
		}
	}
	slices.SortStableFunc(spans, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	var free []float64
	for k, s := range spans {
		lane := slices.IndexFunc(free, func(end float64) bool { return end <= s.from+1e-3 })
		if lane < 0 {
			lane = len(free)
			free = append(free, 0)
		}
		free[lane], spans[k].lane = s.to, lane
	}
	return spans
}

// span is a step on a timeline.
type span struct {
	step, lane int
	from, to   float64 // microseconds
}

func (b *page) timeline(title string, spans []span, lanes int, waits bool) {
	p := b.p
	last := 1e-9
	for _, s := range spans {
		last, lanes = max(last, s.to), max(lanes, s.lane+1)
	}
	x := func(us float64) float64 { return laneLeft + (laneW-laneLeft-40)*us/last }
	y := func(lane int) float64 { return laneTop + float64(lane)*(laneH+laneGap) }
	height := y(lanes) + 22
	b.printf("<h2>%s: %s</h2>\n", title, duration(last))
	b.printf(`<div class="pane" tabindex="0" role="application" aria-label="%s timeline: arrow keys move from step to step"><svg class="timeline" width="%.0f" height="%.0f" role="img" aria-label="%s timeline of %d steps on %d lanes">`+"\n", title, laneW, height, title, len(spans), lanes)
	for k := range 6 {
		us := last * float64(k) / 5
		b.printf(`<line class="grid" x1="%.1f" x2="%.1f" y1="%.0f" y2="%.0f"/><text class="soft" x="%.1f" y="%.0f" text-anchor="middle">%s</text>`, x(us), x(us), laneTop-6, height-18, x(us), height-5, duration(us))
	}
	name := "stream"
	if !waits {
		name = "lane"
	}
	for t := range lanes {
		b.printf(`<text x="6" y="%.0f">%s %d</text>`, y(t)+laneH/2+4, name, t)
	}
	for _, s := range spans {
		w := max(x(s.to)-x(s.from), 0.6)
		b.printf(`<g data-step="%d"><title>%s: from %s to %s</title><rect x="%.2f" y="%.0f" width="%.2f" height="%.0f" fill="%s"/>`, s.step, html.EscapeString(p.steps[s.step].Name), duration(s.from), duration(s.to), x(s.from), y(s.lane), w, laneH, streamColors[s.step%len(streamColors)])
		if room := int(w/6.5) - 1; room > 3 {
			b.printf(`<text class="in" x="%.1f" y="%.0f">%s</text>`, x(s.from)+4, y(s.lane)+laneH/2+4, html.EscapeString(shorten(p.steps[s.step].Name, room)))
		}
		b.printf("</g>\n")
	}
	if waits {
		for _, s := range p.steps {
			for _, d := range s.Waits {
				from := p.steps[d]
				b.printf(`<path class="wait" d="M%.1f %.0fL%.1f %.0f"/>`, x(from.EndUS), y(from.Stream)+laneH/2, x(s.StartUS), y(s.Stream)+laneH/2)
			}
		}
	}
	b.printf("</svg></div>\n")
}
