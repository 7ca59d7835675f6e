package graph

import (
	"bufio"
	_ "embed"
	"encoding/json"
	"fmt"
	"html"
	"io"
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
	b := &page{Writer: bufio.NewWriter(w), p: p, where: p.places(), texts: make([]string, len(p.steps))}
	for i := range p.steps {
		b.texts[i] = b.describe(i)
	}
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
	data, err := json.Marshal(b.texts) // escapes what would end the element
	if err != nil {
		return err
	}
	b.printf("<script type=\"application/json\" id=\"steps\">%s</script>\n<script>\n%s</script>\n</body>\n</html>\n", data, pageJS)
	return b.Flush()
}

// page writes; the bufio.Writer keeps the first error.
type page struct {
	*bufio.Writer
	p     *Program
	where map[any]string // each value lies
	texts []string       // what is said of each step
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
func (b *page) describe(i int) string {
	s := b.p.steps[i]
	text := fmt.Sprintf("%d  %s  (%s), stream %d, from %s to %s", i, s.Name, s.Op.Kind(), s.Stream, duration(s.StartUS), duration(s.EndUS))
	if len(s.Waits) > 0 {
		text += ", waits for " + ints(s.Waits)
	}
	for k, v := range s.Out {
		if v != nil {
			text += fmt.Sprintf("\n%s %s, %s at %s", s.Op.Outputs()[k], v.Text(), size(v.Bytes()), b.where[v])
		}
	}
	if s.scratch > 0 {
		text += fmt.Sprintf("\nscratch, %s at %s", size(s.scratch), b.where[s])
	}
	return text
}

// table has a row a step.
func (b *page) table() {
	p, where := b.p, b.where
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
