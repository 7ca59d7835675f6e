package graph

import (
	"cmp"
	"fmt"
	"html"
	"slices"
)

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
		b.printf(`<g data-step="%d"><title>%s</title><rect x="%.0f" y="%.0f" width="%.0f" height="%.0f" rx="5" fill="%s"/>`, i, html.EscapeString(b.texts[i]), x[i], y[i], nodeW, h[i], streamColor(s.Stream))
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
		slices.SortStableFunc(l, func(a, b int) int { return cmp.Compare(want[a], want[b]) })
		for k, i := range l {
			at[i] = (float64(k)+0.5)/float64(len(l)) - 0.5
		}
	}
	return layers
}
