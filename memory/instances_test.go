package memory_test

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/moegraph/moegraph/memory"
	"github.com/moegraph/moegraph/memory/minimalloc"
)

// instances returns the benchmark files: below $MOEGRAPH_SHARED, or below a folder shared beside or
// above the project. Without them the tests skip; generated instances (packed) stand in.
func instances(t testing.TB) []string {
	t.Helper()
	shared := os.Getenv("MOEGRAPH_SHARED")
	if dir, err := os.Getwd(); shared == "" && err == nil {
		for ; shared == "" && filepath.Dir(dir) != dir; dir = filepath.Dir(dir) {
			if s := filepath.Join(dir, "shared"); isDir(filepath.Join(s, "minimalloc")) {
				shared = s
			}
		}
	}
	files, _ := filepath.Glob(filepath.Join(shared, "minimalloc", "*.csv"))
	if shared == "" || len(files) == 0 {
		t.Skip("no shared/minimalloc: set MOEGRAPH_SHARED to the folder that holds minimalloc/")
	}
	return files
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// read returns a file's problem and the capacity in its name.
func read(t testing.TB, file string) (*minimalloc.File, int64) {
	t.Helper()
	r, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	f, err := minimalloc.Read(r)
	if err != nil {
		t.Fatal(err)
	}
	capacity, err := strconv.ParseInt(strings.Split(filepath.Base(file), ".")[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return f, capacity
}

// relation rebuilds the lifetimes from the spans.
func relation(t testing.TB, spans []memory.Span) *memory.Conflicts {
	t.Helper()
	var lower, upper []int64
	for _, s := range spans {
		lower, upper = append(lower, s.First), append(upper, s.Last+1)
	}
	c, err := memory.Intervals(lower, upper)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// fit solves within a capacity and checks every pair.
func fit(t *testing.T, p memory.Problem, capacity int64) (*memory.Plan, time.Duration) {
	t.Helper()
	p.Capacity = capacity
	stop := memory.Stopwatch()
	plan, err := memory.Solve(p, memory.Options{})
	took := stop()
	if err != nil {
		t.Error(err)
		return nil, took
	}
	t.Logf("peak %d, bound %d, %s, %v", plan.Peak, plan.LowerBound, plan.Method, took)
	if plan.Peak > capacity {
		t.Errorf("peak: got %d, want at most %d", plan.Peak, capacity)
	}
	for i, a := range p.Buffers {
		for j, b := range p.Buffers[:i] {
			x, y := plan.Offsets[i], plan.Offsets[j]
			if p.Conflicts.Has(i, j) && x < y+b.Size && y < x+a.Size {
				t.Errorf("buffers %d and %d conflict and share bytes", i, j)
			}
		}
	}
	return plan, took
}

// offsetsOf are checksums of the offsets that every machine finds.
var offsetsOf = map[string]uint64{
	"A.1048576.csv": 0x38169f71f49b853d,
	"B.1048576.csv": 0xc899ee0f94b1c9fa,
	"C.1048576.csv": 0x7d04e19a18562078,
	"D.1048576.csv": 0x794d1bf04fada19e,
	"E.1048576.csv": 0x63d1d48da25f2f36,
	"F.1048576.csv": 0xf2a66d76a04febf2,
	"G.1048576.csv": 0xf4ba5b6e12313b11,
	"H.1048576.csv": 0xafe72fb1fc557214,
	"I.1048576.csv": 0x5a08c0655c1e4921,
	"J.1048576.csv": 0x6e45038899503fe7,
	"K.1048576.csv": 0xd111d420d9ae920d,
	"input.12.csv":  0x8e644c0a46940079,
}

// TestInstances fits every file into its capacity: as it is, twice with the same offsets, which are those of every machine,
// permuted, with three times the bytes, and with time running backward. A file takes less than 1.5 s, all together less
// than 8.
func TestInstances(t *testing.T) {
	var sum time.Duration
	for _, file := range instances(t) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			f, capacity := read(t, file)
			p := f.Problem
			if memory.Raced && len(p.Buffers) > 210 { // from D on: seconds each
				t.Skip("too slow with the race detector")
			}
			first, took := fit(t, p, capacity)
			again, tookAgain := fit(t, p, capacity)
			if first == nil || again == nil {
				return
			}
			if !slices.Equal(first.Offsets, again.Offsets) {
				t.Error("two runs differ")
			}
			h := fnv.New64a()
			fmt.Fprint(h, first.Offsets)
			if name, got := filepath.Base(file), h.Sum64(); got != offsetsOf[name] {
				t.Errorf("other offsets than elsewhere: got %q: %#x, want %#x", name, got, offsetsOf[name])
			}
			took = min(took, tookAgain) // other processes make one longer
			if sum += took; took > 1500*time.Millisecond && !memory.Raced {
				t.Errorf("took %v", took)
			}
			if memory.Raced || testing.Short() {
				return
			}
			var permuted, tripled, reversed memory.Problem
			var spans, mirrored []memory.Span
			for _, i := range rand.New(rand.NewPCG(7, 7)).Perm(len(p.Buffers)) {
				permuted.Buffers = append(permuted.Buffers, p.Buffers[i])
				spans = append(spans, p.Spans[i])
			}
			permuted.Conflicts = relation(t, spans)
			fit(t, permuted, capacity)
			tripled.Conflicts = p.Conflicts
			for i, b := range p.Buffers {
				b.Size *= 3
				tripled.Buffers = append(tripled.Buffers, b)
				mirrored = append(mirrored, memory.Span{First: -p.Spans[i].Last, Last: -p.Spans[i].First})
			}
			fit(t, tripled, 3*capacity)
			reversed.Buffers, reversed.Conflicts = p.Buffers, relation(t, mirrored)
			fit(t, reversed, capacity)
		})
	}
	if t.Logf("all together %v", sum); sum > 8*time.Second && !memory.Raced {
		t.Errorf("all together took %v", sum)
	}
}

// TestInstances_Lower asks for less than the names of the files: C at its lower bound, D and J at the
// lowest capacity that was known.
func TestInstances_Lower(t *testing.T) {
	if memory.Raced {
		t.Skip("only without the race detector")
	}
	for _, file := range instances(t) {
		if name := filepath.Base(file); strings.ContainsAny(name[:1], "CDJ") {
			t.Run(name, func(t *testing.T) {
				f, _ := read(t, file)
				fit(t, f.Problem, 1039360)
			})
		}
	}
}

// TestInstances_Bare plans from the conflict relation alone, with cliques in place of sections.
func TestInstances_Bare(t *testing.T) {
	if memory.Raced || testing.Short() {
		t.Skip("only without the race detector, and not with -short")
	}
	for _, file := range instances(t) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			f, capacity := read(t, file)
			p := f.Problem
			c := memory.NewConflicts(len(p.Buffers))
			for i := range p.Buffers {
				for j := range i {
					if p.Conflicts.Has(i, j) {
						c.Add(i, j)
					}
				}
			}
			p.Conflicts, p.Capacity = c, capacity
			plan, err := memory.Solve(p, memory.Options{})
			var small *memory.CapacityError
			if errors.As(err, &small) && small.LowerBound <= capacity {
				t.Logf("best %d, %.1f %% above the capacity", small.Best.Peak,
					100*(float64(small.Best.Peak)/float64(capacity)-1))
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("peak %d by %s", plan.Peak, plan.Method)
		})
	}
}

func BenchmarkInstances(b *testing.B) {
	for _, file := range instances(b) {
		f, capacity := read(b, file)
		f.Problem.Capacity = capacity
		b.Run(filepath.Base(file), func(b *testing.B) {
			for b.Loop() {
				if _, err := memory.Solve(f.Problem, memory.Options{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func ExampleSolve() {
	// a is read by node 1 on one stream and by node 2 on another; b is written by node 3, after both.
	order := memory.Order{Nodes: 4, Edges: [][2]int{{0, 1}, {0, 2}, {1, 3}, {2, 3}}}
	conflicts, err := order.Conflicts([][]int{{0, 1, 2}, {3}})
	if err != nil {
		panic(err)
	}
	buffers := []memory.Buffer{{Name: "a", Size: 1024, Align: 256}, {Name: "b", Size: 512, Align: 256}}
	plan, err := memory.Solve(memory.Problem{Buffers: buffers, Conflicts: conflicts}, memory.Options{})
	if err != nil {
		panic(err)
	}
	fmt.Println(plan.Offsets, plan.Peak, plan.LowerBound, plan.Proven, plan.Pinned)
	// Output: [0 0] 1024 1024 true [0]
}
