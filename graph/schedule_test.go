package graph_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/nodes"
)

// TestSchedule_RandomOrdersSameBits runs one plan on four streams under 200 random schedules: sleeps before the
// nodes, goroutines in any order, every workspace and output filled with 0xFF before. The bits are those
// of one stream.
func TestSchedule_RandomOrdersSameBits(t *testing.T) {
	l := newLayer(40, dtype.BFloat16)
	one := compile(t, l.g, graph.Options{Streams: 1})
	want := l.run(t, open(t, one, l.vars), 5, 37)
	for seed := range uint64(200) {
		p := compile(t, l.g, graph.Options{Streams: 4, ForceStreams: true, Debug: graph.Debug{Poison: true, Jitter: seed + 1}})
		if p.Streams() < 2 {
			t.Fatalf("the plan has %d streams, want several", p.Streams())
		}
		e := open(t, p, l.vars)
		if got := l.run(t, e, 5, 37); !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d: other bits than on one stream", seed)
		}
		check(t, e.Close())
	}
}

// TestSchedule_EveryEventIsNeeded removes one event after the other; the verifier refuses each of the plans.
func TestSchedule_EveryEventIsNeeded(t *testing.T) {
	l := newLayer(40, dtype.BFloat16)
	p := compile(t, l.g, graph.Options{Streams: 4, ForceStreams: true})
	events := 0
	for i, s := range p.Steps() {
		for k := range s.Waits {
			events++
			if err := p.WithoutWait(i, k).Verify(); err == nil {
				t.Errorf("step %d %q without its wait for step %d: the verifier accepts the plan", i, s.Name, s.Waits[k])
			}
		}
	}
	if events < 3 {
		t.Fatalf("the plan has %d events, want several", events)
	}
	check(t, p.Verify())
}

// TestSchedule_RemovedEventGivesWrongNumbers shows that a wait that is missing is no hidden pass: the reader
// runs ahead of the slow maker and sees the poison. Either maker is the slow one in turn, since the reader
// waits for only one of them.
func TestSchedule_RemovedEventGivesWrongNumbers(t *testing.T) {
	if raceEnabled {
		t.Skip("the plan without an event has the race that the detector would report")
	}
	want := []float32{2, 4, 6, 8}
	wrong := 0
	for _, pause := range [][2]time.Duration{{0, 50 * time.Millisecond}, {50 * time.Millisecond, 0}} {
		g := graph.New("race")
		x := g.Input("x", dtype.Float32, 4)
		y := g.Output("y", nodes.Add(graph.Apply(copyOp{Pause: pause[0]}, x)[0], graph.Apply(copyOp{Pause: pause[1]}, x)[0]))
		p := compile(t, g, graph.Options{Streams: 2, ForceStreams: true, Debug: graph.Debug{Poison: true}})
		run := func(p *graph.Program) []float32 {
			e := open(t, p, nil)
			check(t, e.Write(x, []float32{1, 2, 3, 4}))
			replay(t, e)
			return read(t, e, y)
		}
		if got := run(p); !reflect.DeepEqual(got, want) {
			t.Fatalf("got %v", got)
		}
		if got := run(p.WithoutWait(2, 0)); !reflect.DeepEqual(got, want) {
			wrong++
		}
	}
	if wrong == 0 {
		t.Error("without its wait the plan still gives the right numbers")
	}
}

// TestSchedule_OverlapIsFound moves each workspace onto each that it conflicts with.
func TestSchedule_OverlapIsFound(t *testing.T) {
	l := newLayer(40, dtype.Float32)
	p := compile(t, l.g, graph.Options{Streams: 4, ForceStreams: true})
	conflicts, err := p.Conflicts()
	check(t, err)
	ws := p.Workspaces()
	tried := 0
	for i := range ws {
		for j := range ws {
			if i == j || !conflicts.Has(i, j) || ws[i].Size == 0 || ws[j].Size == 0 || ws[j].Offset+ws[i].Size > p.ArenaBytes() {
				continue
			}
			if ws[i].Over == ws[j].Name || ws[j].Over == ws[i].Name {
				continue // made in place: there already
			}
			tried++
			if p.WithOffset(i, ws[j].Offset).Verify() == nil {
				t.Fatalf("%s on top of %s: the verifier accepts the plan", ws[i].Name, ws[j].Name)
			}
		}
	}
	if tried < 50 {
		t.Fatalf("only %d overlaps to try", tried)
	}
}

// TestSchedule_WaitsAreMinimal compares the waits with a closure computed plainly, on random graphs: together with
// stream order they imply every dependency, and none is implied by the others.
func TestSchedule_WaitsAreMinimal(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		n, streams := 2+r.IntN(14), 1+r.IntN(4)
		steps := make([]*graph.Step, n)
		for i := range steps {
			var deps []int
			for j := range i {
				if r.IntN(4) == 0 {
					deps = append(deps, j)
				}
			}
			steps[i] = graph.StepOn(r.IntN(streams), deps...)
		}
		graph.SetWaits(steps)
		if !implies(steps, -1, -1) {
			t.Fatal("a dependency is not enforced")
		}
		for i, s := range steps {
			for k := range s.Waits {
				if implies(steps, i, k) {
					t.Fatalf("step %d: the wait for %d is redundant", i, s.Waits[k])
				}
			}
		}
	}
}

// implies says whether streams and waits, without wait k of step i, imply every dependency.
func implies(steps []*graph.Step, i, k int) bool {
	before := make([]map[int]bool, len(steps))
	last := map[int]int{}
	for j, s := range steps {
		before[j] = map[int]bool{}
		add := func(u int) {
			before[j][u] = true
			for v := range before[u] {
				before[j][v] = true
			}
		}
		if u, ok := last[s.Stream]; ok {
			add(u)
		}
		last[s.Stream] = j
		for w, u := range s.Waits {
			if j != i || w != k {
				add(u)
			}
		}
		for _, d := range s.Deps() {
			if !before[j][d] {
				return false
			}
		}
	}
	return true
}

// TestSchedule_ProcessesAndCores runs the layer in processes of their own, on one core and on all: the bits agree.
func TestSchedule_ProcessesAndCores(t *testing.T) {
	const env = "MOEGRAPH_TEST_PRINT_BITS"
	if os.Getenv(env) != "" {
		l := newLayer(40, dtype.BFloat16)
		e := open(t, compile(t, l.g, graph.Options{Streams: 3, ForceStreams: true}), l.vars)
		var sum uint64
		for s := range uint64(3) {
			for _, out := range l.run(t, e, s, 40) {
				for _, v := range out {
					sum = sum*1099511628211 + uint64(math.Float32bits(v))
				}
			}
		}
		fmt.Printf("bits %016x\n", sum)
		return
	}
	bits := map[string]bool{}
	for _, cores := range []string{"1", "2", fmt.Sprint(runtime.NumCPU())} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestSchedule_ProcessesAndCores$", "-test.v")
		cmd.Env = append(os.Environ(), env+"=1", "GOMAXPROCS="+cores)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		_, after, ok := strings.Cut(string(out), "bits ")
		if !ok {
			t.Fatalf("no bits in %s", out)
		}
		bits[after[:16]] = true
	}
	if len(bits) != 1 {
		t.Fatalf("different bits: %v", bits)
	}
}

// TestReplay_AllocatesNothing holds for a graph of 100 nodes and an empty one.
func TestReplay_AllocatesNothing(t *testing.T) {
	for _, n := range []int{0, 100} {
		e := trivial(t, n)
		if a := testing.AllocsPerRun(20, func() {
			if err := e.Replay(context.Background()); err != nil {
				t.Fatal(err)
			}
		}); a != 0 {
			t.Errorf("%d nodes: %v allocations a replay, want 0", n, a)
		}
	}
}

// trivial is a chain of n small nodes.
func trivial(t testing.TB, n int) *graph.Exec {
	g := graph.New("trivial")
	x := g.Input("x", dtype.Float32, 8)
	v := x
	for range n {
		v = v.Scale(1)
	}
	if n > 0 {
		g.Output("y", v)
	}
	e := open(t, compile(t, g, graph.Options{}), nil)
	check(t, e.Write(x, make([]float32, 8)))
	return e
}

func BenchmarkReplay(b *testing.B) {
	for _, n := range []int{0, 100} {
		b.Run(fmt.Sprintf("nodes=%d", n), func(b *testing.B) {
			e := trivial(b, n)
			ctx := context.Background()
			b.ReportAllocs()
			for b.Loop() {
				if err := e.Replay(ctx); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
