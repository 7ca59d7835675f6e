package graph

import (
	"encoding/json"
	"io"
)

// traceEvent is an event of the Chrome trace format, which Perfetto reads.
type traceEvent struct {
	Name  string         `json:"name"`
	Cat   string         `json:"cat,omitempty"`
	Phase string         `json:"ph"`
	TS    float64        `json:"ts"` // microseconds
	Dur   float64        `json:"dur,omitempty"`
	PID   int            `json:"pid"`
	TID   int            `json:"tid"`
	ID    int            `json:"id,omitempty"`
	BP    string         `json:"bp,omitempty"`
	Args  map[string]any `json:"args,omitempty"`
}

// WriteTrace writes the plan's simulated timeline in the Chrome trace format, for Perfetto (ui.perfetto.dev) and
// chrome://tracing: a track a stream, arrows for waits, a counter of the arena's bytes in use.
func (p *Program) WriteTrace(w io.Writer) error {
	events := []traceEvent{{Name: "process_name", Phase: "M", Args: map[string]any{"name": p.graph + " on " + p.dev.String()}}}
	for t := range max(1, p.streams) {
		events = append(events, traceEvent{Name: "thread_name", Phase: "M", TID: t, Args: map[string]any{"name": "stream " + itoa(t)}})
	}
	flow := 0
	for i, s := range p.steps {
		events = append(events, traceEvent{Name: s.Name, Cat: s.Op.Kind(), Phase: "X", TS: s.StartUS, Dur: s.EndUS - s.StartUS, TID: s.Stream,
			Args: map[string]any{"step": i, "op": s.Op.Kind(), "flops": s.Cost.Flops, "bytes": s.Cost.Bytes}})
		for _, d := range s.Waits {
			flow++
			from := p.steps[d]
			events = append(events,
				traceEvent{Name: "wait", Cat: "wait", Phase: "s", ID: flow, TS: from.EndUS, TID: from.Stream},
				traceEvent{Name: "wait", Cat: "wait", Phase: "f", BP: "e", ID: flow, TS: s.StartUS, TID: s.Stream})
		}
	}
	for i, s := range p.steps {
		var live int64
		for _, b := range p.buffers {
			if b.First <= i && i <= b.Last && !(b.over >= 0 && i == b.First) { // in place: counted as the one it overwrites
				live += b.Size
			}
		}
		events = append(events, traceEvent{Name: "arena bytes in use", Phase: "C", TS: s.StartUS, Args: map[string]any{"bytes": live}})
	}
	return json.NewEncoder(w).Encode(map[string]any{"traceEvents": events, "displayTimeUnit": "ms"})
}
