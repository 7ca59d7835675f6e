package graph_test

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"io"
	"strings"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"gonum.org/v1/gonum/graph/formats/dot"
)

// TestProgram_String holds a line for each step, the peak beside its bound, and what pins it.
func TestProgram_String(t *testing.T) {
	l := newLayer(40, dtype.BFloat16)
	p := compile(t, l.g, graph.Options{Streams: 2, ForceStreams: true})
	text := p.String()
	for _, s := range p.Steps() {
		if !strings.Contains(text, s.Name) {
			t.Errorf("the table lacks %q", s.Name)
		}
	}
	for _, want := range []string{"2 streams", "peak", "lower bound", "grouped_gemm_dglu", "bf16 (<=", "fused moe/fc2/grad/dgrad into"} {
		if !strings.Contains(text, want) {
			t.Errorf("the table lacks %q:\n%s", want, text)
		}
	}
	if p.ArenaBytes() < p.LowerBound() || p.ArenaBytes() > p.WorkspaceSum() {
		t.Errorf("peak %d, bound %d, sum %d", p.ArenaBytes(), p.LowerBound(), p.WorkspaceSum())
	}
}

// TestProgram_DOT parses the export.
func TestProgram_DOT(t *testing.T) {
	p := compile(t, newLayer(40, dtype.BFloat16).g, graph.Options{Streams: 2, ForceStreams: true})
	var b bytes.Buffer
	check(t, p.WriteDOT(&b))
	file, err := dot.ParseBytes(b.Bytes())
	check(t, err)
	nodes := 0
	for _, s := range file.Graphs[0].Stmts {
		if strings.HasPrefix(s.String(), "n") && !strings.Contains(s.String(), "->") {
			nodes++
		}
	}
	if nodes < len(p.Steps()) {
		t.Errorf("%d nodes, want %d", nodes, len(p.Steps()))
	}
}

// TestProgram_Trace: no two steps of a stream overlap, and a step starts after those that it waits for.
func TestProgram_Trace(t *testing.T) {
	p := compile(t, newLayer(40, dtype.BFloat16).g, graph.Options{Streams: 2, ForceStreams: true})
	var b bytes.Buffer
	check(t, p.WriteTrace(&b))
	var trace struct {
		TraceEvents []struct {
			Name, Ph string
			TS, Dur  float64
			TID      int
		}
	}
	check(t, json.Unmarshal(b.Bytes(), &trace))
	steps, end := 0, map[int]float64{}
	for _, e := range trace.TraceEvents {
		if e.Ph != "X" {
			continue
		}
		steps++
		if e.TS < end[e.TID]-1e-6 {
			t.Errorf("%s starts at %v, before %v", e.Name, e.TS, end[e.TID])
		}
		end[e.TID] = e.TS + e.Dur
	}
	if steps != len(p.Steps()) {
		t.Errorf("%d steps, want %d", steps, len(p.Steps()))
	}
	for i, s := range p.Steps() {
		for _, d := range s.Deps() {
			if p.Steps()[d].EndUS > s.StartUS+1e-6 {
				t.Errorf("step %d starts before step %d is done", i, d)
			}
		}
	}
}

// TestProgram_SVG reads the boxes back: as many as workspaces, inside the picture, no two overlapping.
func TestProgram_SVG(t *testing.T) {
	for _, opt := range []graph.Options{{}, {Streams: 4, ForceStreams: true}} {
		p := compile(t, newLayer(40, dtype.BFloat16).g, opt)
		var b bytes.Buffer
		check(t, p.WriteSVG(&b))
		type box struct {
			X float64 `xml:"x,attr"`
			Y float64 `xml:"y,attr"`
			W float64 `xml:"width,attr"`
			H float64 `xml:"height,attr"`
		}
		var boxes []box
		d := xml.NewDecoder(&b)
		inside := false
		for {
			tok, err := d.Token()
			if err == io.EOF {
				break
			}
			check(t, err)
			if s, ok := tok.(xml.StartElement); ok {
				if s.Name.Local == "g" {
					inside = true
				}
				if s.Name.Local == "rect" && inside {
					var r box
					check(t, d.DecodeElement(&r, &s))
					boxes = append(boxes, r)
					inside = false
				}
			}
		}
		if len(boxes) != len(p.Workspaces()) {
			t.Fatalf("%d boxes for %d workspaces", len(boxes), len(p.Workspaces()))
		}
		const eps = 0.02 // the picture's rounding
		for i, a := range boxes {
			if a.X < 0 || a.Y < 0 || a.X+a.W > 960 || a.Y+a.H > 480 {
				t.Errorf("box %d lies outside", i)
			}
			for j, c := range boxes[:i] {
				if a.X+eps < c.X+c.W && c.X+eps < a.X+a.W && a.Y+eps < c.Y+c.H && c.Y+eps < a.Y+a.H {
					t.Errorf("%s and %s overlap", p.Workspaces()[i].Name, p.Workspaces()[j].Name)
				}
			}
		}
	}
}
