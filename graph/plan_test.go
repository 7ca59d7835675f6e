package graph_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// plans are Programs of several kinds: one stream, several, with edges that save memory, of measured times.
func plans(t *testing.T) map[string]*graph.Program {
	l := newLayer(40, dtype.BFloat16)
	g, _ := wide(8, 1<<10)
	free := compile(t, g, graph.Options{Streams: 8, ForceStreams: true})
	profile := graph.Profile{}
	for i, s := range free.Steps() {
		profile = append(profile, graph.StepTime{Name: s.Name, EndUS: 100 + 10*float64(i%7)})
	}
	profiled, err := free.WithProfile(profile)
	check(t, err)
	empty := graph.New("empty")
	return map[string]*graph.Program{
		"one":      compile(t, l.g, graph.Options{Streams: 1}),
		"four":     compile(t, l.g, graph.Options{Streams: 4, ForceStreams: true}),
		"limited":  compile(t, g, graph.Options{Streams: 8, MaxWorkspace: free.ArenaBytes() * 3 / 4}),
		"tight":    compile(t, g, graph.Options{Streams: 8, ForceStreams: true, MaxWorkspace: free.ArenaBytes() / 2}),
		"profiled": profiled,
		"empty":    compile(t, empty, graph.Options{}),
	}
}

func text(t *testing.T, p *graph.Plan) []byte {
	t.Helper()
	b, err := p.MarshalText()
	check(t, err)
	return b
}

// TestPlan_Text reads plans back and plans with them: the same text, the same table.
func TestPlan_Text(t *testing.T) {
	edges := 0
	for name, p := range plans(t) {
		plan := p.Plan()
		edges += len(plan.Control)
		back := new(graph.Plan)
		check(t, back.UnmarshalText(text(t, plan)))
		if !reflect.DeepEqual(back, plan) {
			t.Errorf("%s: got %+v, want %+v", name, back, plan)
		}
		if name == "profiled" || name == "empty" {
			continue
		}
		again := p.Replan(t, back)
		if !bytes.Equal(text(t, again.Plan()), text(t, plan)) || again.String() != p.String() {
			t.Errorf("%s: another plan\n%s\n%s", name, again, p)
		}
		for i, s := range again.Steps() {
			if !reflect.DeepEqual(s.Deps(), p.Steps()[i].Deps()) {
				t.Errorf("%s: step %d has other dependencies", name, i)
			}
		}
	}
	if edges == 0 {
		t.Error("no plan has added edges")
	}
}

// TestPlan_TextDamaged: what was cut short or changed does not read back.
func TestPlan_TextDamaged(t *testing.T) {
	whole := text(t, plans(t)["four"].Plan())
	for n := range len(whole) {
		if new(graph.Plan).UnmarshalText(whole[:n]) == nil {
			t.Fatalf("the first %d of %d bytes read back", n, len(whole))
		}
		changed := slices.Clone(whole)
		changed[n] ^= 1
		if new(graph.Plan).UnmarshalText(changed) == nil {
			t.Fatalf("with byte %d changed it reads back", n)
		}
	}
}

// TestPlan_Wrong gives Compile plans with something changed: it refuses those that are unsafe or make no sense, and
// none that it takes fails the verifier.
func TestPlan_Wrong(t *testing.T) {
	p := plans(t)["four"]
	good := p.Plan()
	refused, seeds := 0, uint64(1200)
	if raceEnabled {
		seeds = 120
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 1))
		bad := new(graph.Plan)
		check(t, bad.UnmarshalText(text(t, good)))
		step, buffer := &bad.Steps[r.IntN(len(bad.Steps))], &bad.Buffers[r.IntN(len(bad.Buffers))]
		odd := []int{-1, 0, 1, 1 << 40, -1 << 62, len(bad.Steps), len(bad.Buffers)}[r.IntN(7)]
		switch r.IntN(18) {
		case 0:
			step.Built = odd
		case 1:
			step.Stream = odd
		case 2:
			step.Waits = append(step.Waits, odd)
		case 3:
			step.Waits = nil
		case 4:
			buffer.Offset = bad.Buffers[r.IntN(len(bad.Buffers))].Offset
		case 5:
			buffer.Size = int64(odd)
		case 6:
			buffer.Over = odd
		case 7:
			bad.Peak = int64(odd)
		case 8:
			bad.Steps = bad.Steps[:r.IntN(len(bad.Steps))]
		case 9:
			bad.Buffers = bad.Buffers[:r.IntN(len(bad.Buffers))]
		case 10:
			bad.Streams = odd
		case 11:
			bad.Pinned = []int{odd}
		case 12:
			bad.Control = [][2]int{{odd, r.IntN(4)}}
		case 13:
			bad.Key = "0"
		case 14:
			bad.MakespanUS = []float64{math.NaN(), math.Inf(1), -1}[r.IntN(3)]
		case 15:
			step.EndUS = math.NaN()
		case 16:
			bad.LowerBound = int64(odd)
		case 17:
			i, j := r.IntN(len(bad.Steps)), r.IntN(len(bad.Steps))
			bad.Steps[i], bad.Steps[j] = bad.Steps[j], bad.Steps[i]
		}
		q, err := p.TryPlan(bad)
		if err != nil {
			refused++
			if strings.Contains(err.Error(), "internal") {
				t.Fatalf("seed %d: %v", seed, err)
			}
			continue
		}
		if err := q.Verify(); err != nil {
			t.Fatalf("seed %d: taken, and %v", seed, err)
		}
		if q.ArenaBytes() != p.ArenaBytes() && q.ArenaBytes() > q.WorkspaceSum() {
			t.Fatalf("seed %d: taken, with an arena of %d bytes", seed, q.ArenaBytes())
		}
		if us := q.SimulatedUS(); !(us >= 0 && us < 1e9) {
			t.Fatalf("seed %d: taken, with a simulated time of %g us", seed, us)
		}
	}
	t.Logf("%d refused", refused)
	if refused < int(seeds)/2 {
		t.Errorf("only %d refused", refused)
	}
	other, _ := wide(4, 100)
	if _, err := other.Compile(host(t), graph.Options{Plan: good}); !errors.Is(err, graph.ErrUsage) {
		t.Errorf("a plan of another graph: got %v", err)
	}
}

// TestPlan_Cache: a plan that was kept is used; one that was damaged, cut short, replaced by another's or is unsafe is
// made anew and kept; goroutines and processes share the folder.
func TestPlan_Cache(t *testing.T) {
	const child = "MOEGRAPH_TEST_PLAN_CHILD"
	l := newLayer(40, dtype.BFloat16)
	opt := graph.Options{Streams: 4, ForceStreams: true}
	if os.Getenv(child) != "" {
		for range 30 {
			fmt.Printf("plan %s\n", compile(t, l.g, opt).Plan().Steps[0].Name)
		}
		return
	}
	dir := filepath.Join(t.TempDir(), "plans")
	want := text(t, compile(t, l.g, opt).Plan())
	t.Setenv(graph.EnvPlans, dir)
	first := compile(t, l.g, opt)
	path := filepath.Join(dir, first.PlanKey()[:2], first.PlanKey()+".plan")
	kept, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(kept, want) {
		t.Fatalf("kept %.80q, %v", kept, err)
	}
	marked := first.Plan()
	marked.How = "from the folder"
	check(t, os.WriteFile(path, text(t, marked), 0o666))
	if how := compile(t, l.g, opt).Plan().How; how != marked.How {
		t.Errorf("the kept plan is not used: %q", how)
	}
	unsafe := first.Plan()
	for i := range unsafe.Buffers {
		unsafe.Buffers[i].Offset = 0
	}
	otherKey := first.Plan()
	otherKey.Key = strings.Repeat("0", 64)
	for name, bad := range map[string][]byte{
		"cut": want[:len(want)/2], "empty": {}, "changed": bytes.Replace(want, []byte("step 0"), []byte("step 1"), 1),
		"unsafe": text(t, unsafe), "another's": text(t, otherKey),
	} {
		check(t, os.WriteFile(path, bad, 0o666))
		if got := text(t, compile(t, l.g, opt).Plan()); !bytes.Equal(got, want) {
			t.Errorf("%s: another plan", name)
		}
		if kept, err := os.ReadFile(path); err != nil || !bytes.Equal(kept, want) {
			t.Errorf("%s: it is not kept anew: %v", name, err)
		}
	}
	check(t, os.RemoveAll(dir))
	var wait sync.WaitGroup
	for range 2 {
		wait.Go(func() {
			cmd := exec.Command(os.Args[0], "-test.run=^TestPlan_Cache$")
			cmd.Env = append(os.Environ(), child+"=1")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
		wait.Go(func() {
			for range 30 {
				os.Remove(path) // at any time
				if p, err := l.g.Compile(host(t), opt); err != nil || !bytes.Equal(text(t, p.Plan()), want) {
					t.Errorf("another plan, or %v", err)
				}
			}
		})
	}
	wait.Wait()
	check(t, os.WriteFile(filepath.Join(t.TempDir(), "file"), nil, 0o666))
	t.Setenv(graph.EnvPlans, filepath.Join(path, "below a file"))
	if got := text(t, compile(t, l.g, opt).Plan()); !bytes.Equal(got, want) {
		t.Error("a folder that cannot be made changes the plan")
	}
}

func TestEnv(t *testing.T) {
	if rows := graph.Env(); len(rows) != 1 || rows[0][0] != graph.EnvPlans || rows[0][1] == "" {
		t.Errorf("got %q", rows)
	}
}
