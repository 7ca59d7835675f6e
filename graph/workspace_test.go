package graph_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/nodes"
)

// wide is a graph of chains that could all run at once, added up pair by pair: each chain makes one large workspace.
func wide(chains, rows int) (*graph.Graph, *graph.Value) {
	g := graph.New("wide")
	x := g.Input("x", dtype.Float32, rows)
	var ends []*graph.Value
	for i := range chains {
		ends = append(ends, graph.Apply(copyOp{}, x.Scale(float64(i+1)))[0])
	}
	for len(ends) > 1 {
		ends = append(ends[2:], nodes.Add(ends[0], ends[1]))
	}
	g.Output("y", ends[0])
	return g, x
}

// TestMaxWorkspace: a limit below what the chosen plan takes is kept, down to what the error of an impossible one names,
// and the numbers stay.
func TestMaxWorkspace(t *testing.T) {
	const rows = 1 << 14
	g, x := wide(8, rows)
	free := compile(t, g, graph.Options{Streams: 8, ForceStreams: true})
	if free.Streams() < 4 {
		t.Fatalf("%d streams, want several", free.Streams())
	}
	_, err := g.Compile(host(t), graph.Options{Streams: 8, ForceStreams: true, MaxWorkspace: 1})
	if !errors.Is(err, graph.ErrShape) || !strings.Contains(err.Error(), "Options.MaxWorkspace: got 1 bytes, want at least ") ||
		!strings.Contains(err.Error(), "need it at once") {
		t.Fatalf("got %v", err)
	}
	var least int64
	_, after, _ := strings.Cut(err.Error(), "want at least ")
	if _, err := fmt.Sscan(after, &least); err != nil || least <= 0 || least >= free.ArenaBytes() {
		t.Fatalf("least %d of %d: %v", least, free.ArenaBytes(), err)
	}
	var want []float32
	last := free.ArenaBytes()
	for _, limit := range []int64{free.ArenaBytes(), free.ArenaBytes() - 1, (least + free.ArenaBytes()) / 2, least} {
		p := compile(t, g, graph.Options{Streams: 8, ForceStreams: true, MaxWorkspace: limit, Debug: graph.Debug{Poison: true}})
		if p.ArenaBytes() > limit || p.ArenaBytes() < p.LowerBound() || p.ArenaBytes() > last {
			t.Errorf("limit %d: arena %d, bound %d, with more it was %d", limit, p.ArenaBytes(), p.LowerBound(), last)
		}
		last = p.ArenaBytes()
		check(t, p.Verify())
		e := open(t, p, nil)
		data := make([]float32, rows)
		for i := range data {
			data[i] = float32(i)
		}
		check(t, e.Write(x, data))
		replay(t, e)
		got := read(t, e, p.Output("y"))
		if want == nil {
			want = got
		} else if !reflect.DeepEqual(got, want) {
			t.Errorf("limit %d: other numbers", limit)
		}
	}
	if _, err := g.Compile(host(t), graph.Options{MaxWorkspace: -1}); !errors.Is(err, graph.ErrShape) {
		t.Errorf("got %v", err)
	}
}

// TestMaxWorkspace_Layer halves the distance between what the widest plan of a layer takes and what is possible.
func TestMaxWorkspace_Layer(t *testing.T) {
	l := newLayer(40, dtype.BFloat16)
	one := compile(t, l.g, graph.Options{Streams: 1})
	want := l.run(t, open(t, one, l.vars), 5, 37)
	p := compile(t, l.g, graph.Options{Streams: 4, ForceStreams: true})
	limit := (p.ArenaBytes() + one.ArenaBytes()) / 2
	q := compile(t, l.g, graph.Options{Streams: 4, MaxWorkspace: limit, Debug: graph.Debug{Poison: true}})
	if q.ArenaBytes() > limit {
		t.Errorf("arena %d, limit %d", q.ArenaBytes(), limit)
	}
	if got := l.run(t, open(t, q, l.vars), 5, 37); !reflect.DeepEqual(got, want) {
		t.Error("other bits than on one stream")
	}
}

// TestProfile: measured times decide about streams. Two slow steps that the cost model takes for quick ones get a stream
// each, and quick ones that it takes for slow ones share.
func TestProfile(t *testing.T) {
	g := graph.New("two")
	x := g.Input("x", dtype.Float32, 64)
	a, b := graph.Apply(copyOp{}, x)[0], graph.Apply(copyOp{Pause: 1}, x)[0]
	g.Output("y", nodes.Add(a, b))
	p := compile(t, g, graph.Options{Debug: graph.Debug{Eager: true}})
	if p.Streams() != 1 {
		t.Fatalf("%d streams for three small steps", p.Streams())
	}
	profile := graph.Profile{}
	for _, s := range p.Steps() {
		profile = append(profile, graph.StepTime{Name: s.Name, EndUS: 1000})
	}
	q, err := p.WithProfile(profile)
	check(t, err)
	if q.Streams() != 2 || len(q.Profile()) != 3 || q.Steps()[0].EndUS < 999 {
		t.Errorf("%d streams, %d times, first step until %g us", q.Streams(), len(q.Profile()), q.Steps()[0].EndUS)
	}
	check(t, q.Verify())
	for i := range profile {
		profile[i].EndUS = 1
	}
	if q, err = q.WithProfile(profile); err != nil || q.Streams() != 1 {
		t.Errorf("%v: want one stream for steps of 1 us", err)
	}
	e := open(t, p, nil)
	check(t, e.Write(x, make([]float32, 64)))
	measured, err := e.Profile(context.Background(), 3)
	check(t, err)
	if len(measured) != 3 {
		t.Fatalf("%d times", len(measured))
	}
	for i, s := range measured {
		if s.Name != p.Steps()[i].Name || s.EndUS < s.StartUS || s.StartUS < 0 {
			t.Errorf("step %d: %+v", i, s)
		}
	}
	_, err = p.WithProfile(measured)
	check(t, err)
	for _, wrong := range []graph.Profile{nil, measured[:2], {{Name: "test_copy", StartUS: 2, EndUS: 1}}, lasting(measured, math.Inf(1)), lasting(measured, math.NaN()), lasting(measured, math.MaxFloat64)} {
		if _, err := p.WithProfile(wrong); !errors.Is(err, graph.ErrUsage) {
			t.Errorf("got %v, want ErrUsage", err)
		}
	}
	plain := open(t, compile(t, g, graph.Options{}), nil)
	if _, err := plain.Profile(context.Background(), 1); !errors.Is(err, graph.ErrUsage) {
		t.Errorf("got %v, want ErrUsage", err)
	}
}

// ratedDevice is the host with other rates.
type ratedDevice struct {
	graph.Device
	rates graph.Rates
}

func (d ratedDevice) Rates() graph.Rates { return d.rates }

// TestRates: a device whose rates give steps no time is refused, not planned for without end.
func TestRates(t *testing.T) {
	g, _ := wide(4, 16)
	good := host(t).Rates()
	for name, spoil := range map[string]func(r *graph.Rates){
		"none": func(r *graph.Rates) { *r = graph.Rates{} }, "no bytes": func(r *graph.Rates) { r.Bytes = 0 },
		"flops": func(r *graph.Rates) { r.Flops = math.NaN() }, "grain": func(r *graph.Rates) { r.Grain = 0 },
		"launch": func(r *graph.Rates) { r.LaunchUS = math.Inf(1) }, "wait": func(r *graph.Rates) { r.WaitUS = -1 },
	} {
		r := good
		spoil(&r)
		if _, err := g.Compile(ratedDevice{host(t), r}, graph.Options{}); !errors.Is(err, graph.ErrDevice) {
			t.Errorf("%s: got %v, want ErrDevice", name, err)
		}
	}
	if _, err := g.Compile(ratedDevice{host(t), good}, graph.Options{}); err != nil {
		t.Error(err)
	}
}

// lasting is the profile with a first step that ends at that time.
func lasting(p graph.Profile, endUS float64) graph.Profile {
	q := append(graph.Profile(nil), p...)
	q[0].EndUS = endUS
	return q
}

// TestProfile_Layer: a layer planned from its own times gives the same bits, whatever the times.
func TestProfile_Layer(t *testing.T) {
	l := newLayer(40, dtype.BFloat16)
	p := compile(t, l.g, graph.Options{Debug: graph.Debug{Eager: true, Poison: true}})
	e := open(t, p, l.vars)
	want := l.run(t, e, 5, 37)
	measured, err := e.Profile(context.Background(), 2)
	check(t, err)
	r := rand.New(rand.NewPCG(1, 1))
	plans := map[string]bool{}
	for range 20 {
		q, err := p.WithProfile(measured)
		check(t, err)
		plans[q.String()] = true
		if got := l.run(t, open(t, q, l.vars), 5, 37); !reflect.DeepEqual(got, want) {
			t.Fatal("other bits")
		}
		for i := range measured {
			measured[i].EndUS = measured[i].StartUS + 1000*r.Float64()
		}
	}
	if len(plans) < 5 {
		t.Errorf("only %d plans for 20 profiles", len(plans))
	}
}

// TestApart: with a place of its own for every workspace the layer gives the bits that it gives with shared ones.
func TestApart(t *testing.T) {
	l := newLayer(40, dtype.BFloat16)
	p := compile(t, l.g, graph.Options{Streams: 4, ForceStreams: true, Debug: graph.Debug{Poison: true}})
	q := compile(t, l.g, graph.Options{Streams: 4, ForceStreams: true, Debug: graph.Debug{Poison: true, Apart: true}})
	if q.ArenaBytes() <= q.WorkspaceSum()-256 || p.ArenaBytes() >= p.WorkspaceSum() {
		t.Errorf("apart %d of %d bytes, shared %d of %d", q.ArenaBytes(), q.WorkspaceSum(), p.ArenaBytes(), p.WorkspaceSum())
	}
	if !reflect.DeepEqual(l.run(t, open(t, p, l.vars), 5, 37), l.run(t, open(t, q, l.vars), 5, 37)) {
		t.Error("other bits")
	}
}
