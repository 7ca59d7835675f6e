package graph

import (
	"bufio"
	_ "embed"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"math"
	"slices"
	"strings"
)

//go:embed page/page.css
var pageCSS string

//go:embed page/page.js
var pageJS string

// WriteHTML writes the plan as one page that needs nothing else, no network either: the graph by layers with shapes, the
// timeline of the streams (simulated, and measured where the Program has a profile), the arena over the steps, and
// the table. Selecting a step, by mouse or keyboard, marks it in all of them.
func (p *Program) WriteHTML(w io.Writer) error {
	b := &page{Writer: bufio.NewWriter(w), p: p}
	title := html.EscapeString(fmt.Sprintf("plan of %s on %s", p.graph, p.dev))
	b.printf("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n")
	b.printf("<link rel=\"icon\" href=\"data:,\">\n<title>%s</title>\n<style>\n%s</style>\n</head>\n<body>\n", title, pageCSS)
	b.printf("<header>\n<h1>%s</h1>\n", title)
	b.facts()
	b.printf(`<nav><a href="#graph">Graph</a><a href="#streams">Streams</a><a href="#memory">Memory</a><a href="#table">Table</a></nav>` + "\n")
	b.printf("<p>Click a step, or move with <kbd>Tab</kbd> to a pane and with <kbd>&larr;</kbd> <kbd>&rarr;</kbd> <kbd>Home</kbd> <kbd>End</kbd> from step to step; <kbd>/</kbd> searches, <kbd>Esc</kbd> ends it.</p>\n</header>\n<main>\n")
	b.section("graph", "Graph", "A box a step with what it makes, in the colour of its stream; a step lies below all that it needs.", b.graph)
	b.section("streams", "Streams", "Time to the right. Dashed arrows are waits between streams.", b.timelines)
	b.section("memory", "Memory", "A box a workspace: from the step that makes it to the last that uses it across, from its offset to its end upwards. Boxes with a dark edge pin the peak; the dashed line is the lower bound.", b.memory)
	b.section("table", "Table", "", b.table)
	b.printf("</main>\n<div id=\"details\" role=\"status\" aria-live=\"polite\"></div>\n")
	texts := make([]string, len(p.steps))
	for i := range p.steps {
		texts[i] = p.describe(i)
	}
	data, err := json.Marshal(texts) // escapes what would end the element
	if err != nil {
		return err
	}
	b.printf("<script type=\"application/json\" id=\"steps\">%s</script>\n<script>\n%s</script>\n</body>\n</html>\n", data, pageJS)
	return b.Flush()
}

// page writes; the bufio.Writer keeps the first error.
type page struct {
	*bufio.Writer
	p *Program
}

func (b *page) printf(format string, args ...any) { fmt.Fprintf(b.Writer, format, args...) }

func (b *page) facts() {
	p := b.p
	waits := 0
	for _, s := range p.steps {
		waits += len(s.Waits)
	}
	facts := [][2]string{
		{"steps", itoa(len(p.steps))}, {"streams", itoa(p.streams)}, {"waits", itoa(waits)},
		{"simulated", duration(p.makespanUS)}, {"peak", size(p.plan.Peak)}, {"lower bound", size(p.plan.LowerBound)},
		{"without sharing", size(p.WorkspaceSum())},
	}
	if n := len(p.control); n > 0 {
		facts = append(facts, [2]string{"edges to save memory", itoa(n)})
	}
	b.printf("<dl class=\"facts\">")
	for _, f := range facts {
		b.printf("<div><dt>%s</dt><dd>%s</dd></div>", f[0], html.EscapeString(f[1]))
	}
	b.printf("</dl>\n")
	if names := p.pinned(); len(names) > 0 {
		b.printf("<p>The peak is pinned by %s.</p>\n", html.EscapeString(strings.Join(names, ", ")))
	}
}

func (b *page) section(id, title, text string, body func()) {
	b.printf("<section id=\"%s\">\n<h2>%s</h2>\n", id, title)
	if text != "" {
		b.printf("<p>%s</p>\n", text)
	}
	body()
	b.printf("</section>\n")
}

// duration writes microseconds for people.
func duration(us float64) string {
	switch {
	case us >= 10e6:
		return fmt.Sprintf("%.1f s", us/1e6)
	case us >= 10e3:
		return fmt.Sprintf("%.1f ms", us/1e3)
	}
	return fmt.Sprintf("%.1f us", us)
}

// describe is what the page says of a step.
func (p *Program) describe(i int) string {
	s := p.steps[i]
	text := fmt.Sprintf("%d  %s  (%s), stream %d, from %s to %s", i, s.Name, s.Op.Kind(), s.Stream, duration(s.StartUS), duration(s.EndUS))
	if len(s.Waits) > 0 {
		text += ", waits for " + ints(s.Waits)
	}
	where := p.places()
	for k, v := range s.Out {
		if v != nil {
			text += fmt.Sprintf("\n%s %s, %s at %s", s.Op.Outputs()[k], v.Text(), size(v.Bytes()), where[v])
		}
	}
	if s.scratch > 0 {
		text += fmt.Sprintf("\nscratch, %s at %s", size(s.scratch), where[s])
	}
	return text
}

// Measures of the drawing of the graph, in pixels.
const (
	nodeW, nodeGap, rowGap = 220.0, 18.0, 36.0
	nodeHead, nodeLine     = 34.0, 13.0
	nodeLetters            = 35 // that fit into a box; fewer in bold
)

// graph draws the steps in layers: each one row below the lowest of those that it depends on.
func (b *page) graph() {
	p := b.p
	layers := p.layers()
	x, y, h := make([]float64, len(p.steps)), make([]float64, len(p.steps)), make([]float64, len(p.steps))
	widest, top := 1, 12.0
	for _, l := range layers {
		widest = max(widest, len(l))
	}
	width := float64(widest)*(nodeW+nodeGap) + nodeGap
	for _, l := range layers {
		tallest := 0.0
		for k, i := range l {
			outs := 0
			for _, v := range p.steps[i].Out {
				if v != nil {
					outs++
				}
			}
			h[i] = nodeHead + nodeLine*float64(outs)
			x[i] = (width-float64(len(l))*(nodeW+nodeGap)+nodeGap)/2 + float64(k)*(nodeW+nodeGap)
			y[i] = top
			tallest = max(tallest, h[i])
		}
		top += tallest + rowGap
	}
	b.printf(`<div class="pane" tabindex="0" role="application" aria-label="graph: arrow keys move from step to step"><svg width="%.0f" height="%.0f" role="img" aria-label="%d steps in %d layers">`+"\n", width, top, len(p.steps), len(layers))
	for i, s := range p.steps {
		for _, d := range s.deps {
			x0, y0, x1, y1 := x[d]+nodeW/2, y[d]+h[d], x[i]+nodeW/2, y[i]
			b.printf(`<path class="edge" data-steps="%d %d" d="M%.0f %.0fC%.0f %.0f %.0f %.0f %.0f %.0f"/>`, d, i, x0, y0, x0, y0+rowGap*.7, x1, y1-rowGap*.7, x1, y1)
		}
	}
	for i, s := range p.steps {
		b.printf(`<g data-step="%d"><title>%s</title><rect x="%.0f" y="%.0f" width="%.0f" height="%.0f" rx="5" fill="%s"/>`, i, html.EscapeString(p.describe(i)), x[i], y[i], nodeW, h[i], streamColor(s.Stream))
		lines := []string{fmt.Sprintf("%d  %s", i, shorten(s.Name, nodeLetters-9)), s.Op.Kind()}
		for k, v := range s.Out {
			if v != nil {
				lines = append(lines, shorten(s.Op.Outputs()[k]+" "+v.Text(), nodeLetters))
			}
		}
		for k, line := range lines {
			weight := ""
			if k == 0 {
				weight = ` font-weight="bold"`
			}
			b.printf(`<text class="in"%s x="%.0f" y="%.0f">%s</text>`, weight, x[i]+8, y[i]+14+nodeLine*float64(k), html.EscapeString(line))
		}
		b.printf("</g>\n")
	}
	b.printf("</svg></div>\n")
}

// layers returns the steps by their depth. Within a layer a step stands near those that it depends on.
func (p *Program) layers() [][]int {
	depth := make([]int, len(p.steps))
	var layers [][]int
	for i, s := range p.steps {
		for _, d := range s.deps {
			depth[i] = max(depth[i], depth[d]+1)
		}
		for len(layers) <= depth[i] {
			layers = append(layers, nil)
		}
		layers[depth[i]] = append(layers[depth[i]], i)
	}
	at := make([]float64, len(p.steps)) // where in its layer, from -0.5 to 0.5
	for _, l := range layers {
		want := make(map[int]float64, len(l))
		for _, i := range l {
			for _, d := range p.steps[i].deps {
				want[i] += at[d] / float64(len(p.steps[i].deps))
			}
		}
		slices.SortStableFunc(l, func(a, b int) int {
			switch {
			case want[a] < want[b]:
				return -1
			case want[a] > want[b]:
				return 1
			}
			return 0
		})
		for k, i := range l {
			at[i] = (float64(k)+0.5)/float64(len(l)) - 0.5
		}
	}
	return layers
}

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
	slices.SortStableFunc(spans, func(a, b span) int { return int(math.Copysign(1, a.from-b.from)) })
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

// table has a row a step.
func (b *page) table() {
	p := b.p
	where := p.places()
	b.printf("<p><label>Search <input id=\"find\" type=\"search\" autocomplete=\"off\"></label></p>\n<div class=\"pane\"><table>\n<thead><tr>")
	for _, h := range []string{"step", "stream", "waits", "node", "op", "makes", "offset", "bytes", "MFLOP", "us"} {
		class := ""
		if slices.Contains([]string{"step", "stream", "offset", "bytes", "MFLOP", "us"}, h) {
			class = ` class="n"`
		}
		b.printf("<th scope=\"col\"%s>%s</th>", class, h)
	}
	b.printf("</tr></thead>\n<tbody>\n")
	for i, s := range p.steps {
		var makes, offsets, bytes []string
		for k, v := range s.Out {
			if v != nil {
				makes = append(makes, html.EscapeString(s.Op.Outputs()[k]+" "+v.Text()))
				offsets, bytes = append(offsets, where[v]), append(bytes, size(v.Bytes()))
			}
		}
		if len(makes) == 0 {
			makes, offsets, bytes = []string{html.EscapeString(s.updated())}, []string{""}, []string{""}
		}
		if s.scratch > 0 {
			makes, offsets, bytes = append(makes, "scratch"), append(offsets, where[s]), append(bytes, size(s.scratch))
		}
		b.printf(`<tr data-step="%d" tabindex="-1"><td class="n">%d</td><td class="n"><span class="swatch" style="background:%s"></span>%d</td><td>%s</td><td>%s</td><td>%s</td><td>%s</td><td class="n">%s</td><td class="n">%s</td><td class="n">%.2f</td><td class="n">%.1f</td></tr>`+"\n",
			i, i, streamColor(s.Stream), s.Stream, ints(s.Waits), html.EscapeString(s.Name), s.Op.Kind(), strings.Join(makes, "<br>"),
			strings.Join(offsets, "<br>"), strings.Join(bytes, "<br>"), float64(s.Cost.Flops)/1e6, s.EndUS-s.StartUS)
	}
	b.printf("</tbody>\n</table></div>\n")
}
