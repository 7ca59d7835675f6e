package memory

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// inPlaceDAG draws a layered graph in which half of the nodes may write over something that they read: equal sizes.
func inPlaceDAG(r *rand.Rand, layers, width, streams int) (dag, []Alias) {
	d := layered(r, layers, func() int { return 1 + r.IntN(width) }, streams)
	var may []Alias
	for to, nodes := range d.accesses {
		if r.IntN(2) == 0 {
			continue
		}
		for from, users := range d.accesses {
			if from != to && slices.Contains(users[1:], nodes[0]) {
				d.buffers[to].Size = d.buffers[from].Size
				may = append(may, Alias{nodes[0], from, to})
				break
			}
		}
	}
	return d, may
}

// safeInPlace judges a plan with aliases by the definition: as safe does, but an alias's node may touch both buffers
// where everything else of the first comes before it, and everything else of the second after it.
func safeInPlace(d dag, offsets []int64, aliases []Alias) bool {
	m := closureByMatrix(d.order)
	for i, a := range d.accesses {
		for _, v := range a[1:] {
			if !m[a[0]][v] {
				return false
			}
		}
		for j, b := range d.accesses[:i] {
			if !(offsets[i] < offsets[j]+d.buffers[j].Size && offsets[j] < offsets[i]+d.buffers[i].Size) {
				continue
			}
			node := -1
			first, then := j, i
			for _, x := range aliases {
				if x.From == i && x.To == j {
					node, first, then = x.Node, i, j
				} else if x.From == j && x.To == i {
					node, first, then = x.Node, j, i
				}
			}
			if node >= 0 && offsets[i] != offsets[j] {
				return false
			}
			before := func(a, b []int) bool {
				for _, u := range a {
					for _, v := range b {
						if !m[u][v] && !(u == node && v == node) {
							return false
						}
					}
				}
				return true
			}
			if node >= 0 && !before(d.accesses[first], d.accesses[then]) || node < 0 && !before(a, b) && !before(b, a) {
				return false
			}
		}
	}
	return true
}

// TestMerge: merged plans are safe, need no more at least than plans without, and the verifier rejects exactly those of
// their mutations that are unsafe: a dropped edge, a moved buffer, an alias that nobody declares any more.
func TestMerge(t *testing.T) {
	var made, gained, rejected, accepted int
	var kinds [3]int
	for seed := uint64(0); rejected < 1000 || accepted < 100; seed++ {
		r := rand.New(rand.NewPCG(seed, 9))
		d, may := inPlaceDAG(r, 2+r.IntN(5), 4, 1+r.IntN(3))
		m, err := d.order.Merge(d.buffers, d.accesses, may)
		if err != nil {
			t.Fatal(err)
		}
		offsets, plan := placeMerged(t, d, m)
		plain, err := Solve(problemOf(t, d.order, d.buffers, d.accesses), Options{})
		if err != nil {
			t.Fatal(err)
		}
		if plan.LowerBound > plain.LowerBound {
			t.Fatalf("seed %d: the bound rises from %d to %d", seed, plain.LowerBound, plan.LowerBound)
		}
		if plan.Peak < plain.Peak {
			gained++
		}
		made += len(m.Made)
		if err := Verify(d.order, d.buffers, offsets, d.uses(offsets), plan.Peak, m.Made...); err != nil || !safeInPlace(d, offsets, m.Made) {
			t.Fatalf("seed %d: a good plan: %v", seed, err)
		}
		for range 10 {
			x, at, aliases := d, slices.Clone(offsets), slices.Clone(m.Made)
			kind := r.IntN(3)
			switch {
			case kind == 0 && len(d.order.Edges) > 0:
				x.order = dropEdge(d.order, r.IntN(len(d.order.Edges)))
			case kind == 1 && len(aliases) > 0:
				i := r.IntN(len(aliases))
				aliases = append(aliases[:i], aliases[i+1:]...)
			default:
				kind = 2
				a, b := r.IntN(len(at)), r.IntN(len(at))
				at[a] = min(offsets[b], plan.Peak-d.buffers[a].Size)
			}
			err := Verify(x.order, x.buffers, at, x.uses(at), plan.Peak, aliases...)
			if separated(d, at, aliases) { // in place, but not there: refused, though nothing is clobbered
				if !errors.Is(err, ErrUnsafe) {
					t.Fatalf("seed %d: an alias at two offsets: got %v", seed, err)
				}
				continue
			}
			if safeInPlace(x, at, aliases) {
				if err != nil {
					t.Fatalf("seed %d: a harmless mutation is rejected: %v", seed, err)
				}
				accepted++
				continue
			}
			if !errors.Is(err, ErrUnsafe) {
				t.Fatalf("seed %d: an unsafe mutation of kind %d: got %v, want ErrUnsafe", seed, kind, err)
			}
			rejected++
			kinds[kind]++
		}
	}
	t.Logf("%d aliases made, %d graphs need less; rejected %v, accepted %d", made, gained, kinds, accepted)
	for kind, n := range kinds {
		if n < 100 {
			t.Errorf("kind %d: only %d rejected", kind, n)
		}
	}
	if gained < 20 {
		t.Errorf("only %d graphs need less", gained)
	}
}

func separated(d dag, offsets []int64, aliases []Alias) bool {
	return slices.ContainsFunc(aliases, func(a Alias) bool { return offsets[a.From] != offsets[a.To] })
}

func problemOf(t testing.TB, o Order, buffers []Buffer, accesses [][]int) Problem {
	t.Helper()
	c, err := o.Conflicts(accesses)
	if err != nil {
		t.Fatal(err)
	}
	return Problem{Buffers: buffers, Conflicts: c}
}

// placeMerged returns the offsets of the buffers themselves.
func placeMerged(t testing.TB, d dag, m *Merged) ([]int64, *Plan) {
	t.Helper()
	plan, err := Solve(problemOf(t, d.order, m.Buffers, m.Accesses), Options{})
	if err != nil {
		t.Fatal(err)
	}
	offsets := make([]int64, len(d.buffers))
	for i, g := range m.Group {
		offsets[i] = plan.Offsets[g]
	}
	return offsets, plan
}

// TestMerge_Interleavings runs small graphs in every order of starts and ends with both buffers of an alias on the same
// bytes: some run goes wrong exactly where Merge refuses.
func TestMerge_Interleavings(t *testing.T) {
	merged := 0
	const cases = 3000
	for seed := range uint64(cases) {
		r := rand.New(rand.NewPCG(seed, 11))
		o := Order{Nodes: 3 + r.IntN(4)}
		for v := range o.Nodes {
			for u := range v {
				if r.IntN(5) < 3 {
					o.Edges = append(o.Edges, [2]int{u, v})
				}
			}
		}
		after := closureByMatrix(o)
		maker, node := -1, -1
		for u := range o.Nodes {
			for v := range o.Nodes {
				if after[u][v] && (maker < 0 || r.IntN(3) == 0) {
					maker, node = u, v
				}
			}
		}
		if maker < 0 {
			continue
		}
		from, to := []int{maker, node}, []int{node}
		for v := range o.Nodes {
			if v != node && after[maker][v] && r.IntN(3) == 0 {
				from = append(from, v)
			}
			if after[node][v] && r.IntN(2) == 0 {
				to = append(to, v)
			}
		}
		m, err := o.Merge([]Buffer{{Size: 8}, {Size: 8}}, [][]int{from, to}, []Alias{{node, 0, 1}})
		if err != nil {
			t.Fatal(err)
		}
		if clobbers := inPlaceClobbers(o, from, to, node); clobbers != (len(m.Made) == 0) {
			t.Fatalf("seed %d: %v, from %v, to %v at %d: clobbers %v, merged %v", seed, o, from, to, node, clobbers, m.Made)
		}
		merged += len(m.Made)
	}
	t.Logf("%d of %d merged", merged, cases)
	if merged < cases/10 || merged > cases*9/10 {
		t.Errorf("%d of %d merged: too few or too many", merged, cases)
	}
}

// inPlaceClobbers explores every order of starts and ends: the bytes are From's until the node starts and To's from
// then on; a user of From that is running or starts after that, or one of To before it, finds the wrong ones.
func inPlaceClobbers(o Order, from, to []int, node int) bool {
	type state struct{ started, ended int }
	needs := make([]int, o.Nodes)
	for _, e := range o.Edges {
		needs[e[1]] |= 1 << e[0]
	}
	seen := map[state]bool{}
	var visit func(s state) bool
	visit = func(s state) bool {
		if seen[s] {
			return false
		}
		seen[s] = true
		running := s.started &^ s.ended
		taken := s.started>>node&1 == 1
		for _, v := range from {
			if v != node && taken && running>>v&1 == 1 {
				return true
			}
		}
		for _, v := range to {
			// From the node's start on the bytes change until its end: nobody else of To may run before that.
			if v != node && s.ended>>node&1 == 0 && running>>v&1 == 1 {
				return true
			}
		}
		for v := range o.Nodes {
			if s.started>>v&1 == 0 && needs[v]&^s.ended == 0 && visit(state{s.started | 1<<v, s.ended}) {
				return true
			}
			if running>>v&1 == 1 && visit(state{s.started, s.ended | 1<<v}) {
				return true
			}
		}
		return false
	}
	return visit(state{})
}

func TestMerge_Rules(t *testing.T) {
	chain := Order{Nodes: 4, Edges: [][2]int{{0, 1}, {1, 2}, {2, 3}}}
	three := []Buffer{{Name: "a", Size: 8, Align: 4}, {Name: "b", Size: 8, Align: 16}, {Name: "c", Size: 8}}
	acc := [][]int{{0, 1}, {1, 2}, {2, 3}}
	m, err := chain.Merge(three, acc, []Alias{{1, 0, 1}, {2, 1, 2}})
	if err != nil || len(m.Buffers) != 1 || m.Buffers[0].Align != 16 || len(m.Made) != 2 || !slices.Equal(m.Group, []int{0, 0, 0}) {
		t.Errorf("a chain: got %+v, %v", m, err)
	}
	for name, c := range map[string]struct {
		buffers  []Buffer
		accesses [][]int
		may      []Alias
		made     int
	}{
		"sizes":        {[]Buffer{{Size: 8}, {Size: 9}}, acc[:2], []Alias{{1, 0, 1}}, 0},
		"fixed":        {[]Buffer{{Size: 8, Fixed: true}, {Size: 8}}, acc[:2], []Alias{{1, 0, 1}}, 0},
		"later reader": {three[:2], [][]int{{0, 1, 3}, {1, 2}}, []Alias{{1, 0, 1}}, 0},
		"taken twice":  {three, [][]int{{0, 1}, {1, 2}, {1, 3}}, []Alias{{1, 0, 1}, {1, 0, 2}}, 1},
		"two outputs":  {three, [][]int{{0, 1}, {1, 2}, {1, 2}}, []Alias{{1, 0, 1}, {1, 0, 2}}, 1},
		"empty":        {[]Buffer{{}, {}}, acc[:2], []Alias{{1, 0, 1}}, 1},
	} {
		m, err := chain.Merge(c.buffers, c.accesses, c.may)
		if err != nil || len(m.Made) != c.made {
			t.Errorf("%s: got %+v, %v, want %d made", name, m, err, c.made)
		}
	}
	for name, a := range map[string]Alias{"range": {1, 0, 3}, "itself": {1, 0, 0}, "node": {3, 0, 1}} {
		if _, err := chain.Merge(three, acc, []Alias{a}); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: got %v, want ErrInvalid", name, err)
		}
	}
}

// TestSolve_Extremes: sizes of 0, 2^31 and 2^40 bytes beside each other.
func TestSolve_Extremes(t *testing.T) {
	sizes := []int64{0, 1 << 31, 1 << 40, 1, 1<<31 + 1, 0, 1<<40 - 1, 256}
	o := Order{Nodes: len(sizes) + 1}
	var d dag
	for i, n := range sizes {
		o.Edges = append(o.Edges, [2]int{i, i + 1})
		d.buffers = append(d.buffers, Buffer{Size: n, Align: 256})
		d.accesses = append(d.accesses, []int{i, i + 1})
	}
	d.order = o
	plan, _ := d.plan(t)
	if err := Verify(o, d.buffers, plan.Offsets, d.uses(plan.Offsets), plan.Peak); err != nil || !plan.Proven || plan.Peak != 1<<40+1<<31 {
		t.Errorf("got %+v, %v", plan, err)
	}
}

// TestSolve_FiveThousand plans 5,000 buffers of a training step on three streams, from edges to offsets, and verifies.
// It takes less than two seconds.
func TestSolve_FiveThousand(t *testing.T) {
	if Raced || testing.Short() {
		t.Skip("only without the race detector, and not with -short")
	}
	d := step(5000, 3)
	stop := Stopwatch()
	plan, _ := d.plan(t)
	took := stop()
	if err := Verify(d.order, d.buffers, plan.Offsets, d.uses(plan.Offsets), plan.Peak); err != nil {
		t.Fatal(err)
	}
	t.Logf("%v, %.4f of the bound, %s", took, float64(plan.Peak)/float64(plan.LowerBound), plan.Method)
	if took > 2*time.Second {
		t.Errorf("took %v", took)
	}
}
