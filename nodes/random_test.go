package nodes

import (
	"math"
	"slices"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/host"
)

// TestPhilox compares with the known answers that the generator's authors published (Random123, kat_vectors).
func TestPhilox(t *testing.T) {
	for _, tc := range []struct {
		key    uint64
		c01    uint64
		c2, c3 uint32
		want   [4]uint32
	}{
		{0, 0, 0, 0, [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{math.MaxUint64, math.MaxUint64, math.MaxUint32, math.MaxUint32, [4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
		{0x299f31d0a4093822, 0x85a308d3243f6a88, 0x13198a2e, 0x03707344, [4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
	} {
		if got := philox(tc.key, tc.c01, tc.c2, tc.c3); got != tc.want {
			t.Errorf("philox(%x, %x): got %x, want %x", tc.key, tc.c01, got, tc.want)
		}
	}
}

// randomRun is a graph with dropout and jitter, forward and backward.
type randomRun struct {
	exec  *graph.Exec
	x     *graph.Value
	y, dx *graph.Value
	z, dz *graph.Value
}

func newRandomRun(t *testing.T, seed uint64) *randomRun {
	g := graph.New("random")
	vars := graph.NewVars(1)
	draw := NewRandom(vars, "random", seed).Draw(g)
	r := &randomRun{x: g.Input("x", dtype.Float32, graph.UpTo(64), 100)}
	r.y, r.z = g.Output("y", Dropout(r.x, draw, 0.25)), g.Output("z", Jitter(r.x, draw, 0.1))
	r.dx = g.Output("dx", g.GradientsFrom([]*graph.Value{r.y}, nil, r.x).Value[0])
	r.dz = g.Output("dz", g.GradientsFrom([]*graph.Value{r.z}, nil, r.x).Value[0])
	p, err := g.Compile(host.Device{}, graph.Options{})
	must(t, err)
	r.exec, err = p.Exec(vars)
	must(t, err)
	t.Cleanup(func() { r.exec.Close() })
	return r
}

func (r *randomRun) replay(t *testing.T) (y, dx, z, dz []float32) {
	ones := make([]float32, 6000)
	for i := range ones {
		ones[i] = 1
	}
	must(t, r.exec.Write(r.x, ones))
	must(t, r.exec.Replay(t.Context()))
	for v, dst := range map[*graph.Value]*[]float32{r.y: &y, r.dx: &dx, r.z: &z, r.dz: &dz} {
		*dst = make([]float32, 6400)
		_, err := r.exec.Read(v, *dst)
		must(t, err)
		*dst = (*dst)[:6000]
	}
	return
}

// TestHazard27_RandomUnderReplay: two replays differ, the same seed reproduces both, forward and backward of one
// replay agree.
func TestHazard27_RandomUnderReplay(t *testing.T) {
	a, b, c := newRandomRun(t, 7), newRandomRun(t, 7), newRandomRun(t, 8)
	y1, dx1, z1, dz1 := a.replay(t)
	y2, _, z2, _ := a.replay(t)
	if slices.Equal(y1, y2) || slices.Equal(z1, z2) {
		t.Error("two replays do not differ")
	}
	if !slices.Equal(y1, dx1) || !slices.Equal(z1, dz1) {
		t.Error("forward and backward of one replay differ") // x and dy are ones
	}
	p1, _, q1, _ := b.replay(t)
	p2, _, q2, _ := b.replay(t)
	if !slices.Equal(y1, p1) || !slices.Equal(y2, p2) || !slices.Equal(z1, q1) || !slices.Equal(z2, q2) {
		t.Error("the same seed does not reproduce both replays")
	}
	if o, _, _, _ := c.replay(t); slices.Equal(o, y1) {
		t.Error("another seed gives the same")
	}
	zeros, sum := 0, 0.0
	for i, v := range y1 {
		if v == 0 {
			zeros++
		} else if v != float32(1)/(1-0.25) {
			t.Fatalf("dropout made 1 into %v", v)
		}
		if z1[i] < 0.9 || z1[i] >= 1.1 {
			t.Fatalf("jitter made 1 into %v", z1[i])
		}
		sum += float64(z1[i])
	}
	if share := float64(zeros) / 6000; math.Abs(share-0.25) > 0.03 {
		t.Errorf("%.3f of the elements were dropped, want 0.25", share)
	}
	if mean := sum / 6000; math.Abs(mean-1) > 0.005 {
		t.Errorf("the mean of jitter is %.4f, want 1", mean)
	}
}

// TestRandom_CutsDoNotMatter: an element's number depends on its index alone, not on the pieces of the loop.
func TestRandom_CutsDoNotMatter(t *testing.T) {
	o := randomScale{Op: "jitter", P: 0.5, Salt: 3}
	run := func(at, n int) []float32 {
		var got []float32
		x, y := &graph.Tensor{DType: dtype.Float32, Shape: []int{100}, Data: make([]byte, 400)}, &graph.Tensor{DType: dtype.Float32, Shape: []int{100}, Data: make([]byte, 400)}
		for i := range graph.View[float32](x.Data) {
			graph.View[float32](x.Data)[i] = 1
		}
		c := &graph.Call{In: []*graph.Tensor{x, {DType: dtype.Uint64, Shape: []int{2}, Data: make([]byte, 16)}}, Out: []*graph.Tensor{y}}
		c.NewLoop = func(body func(w *graph.Worker, lo, hi int)) graph.Loop { return pieces{body, at} }
		must(t, o.Host(c)())
		got = append(got, graph.View[float32](y.Data)[:n]...)
		return got
	}
	want := run(100, 100)
	for _, cut := range []int{1, 3, 7, 50, 99} {
		if !slices.Equal(run(cut, 100), want) {
			t.Errorf("pieces of %d give other numbers", cut)
		}
	}
}

// pieces is a loop in pieces of its own size.
type pieces struct {
	body func(w *graph.Worker, lo, hi int)
	size int
}

func (p pieces) Run(n, _ int) {
	w := new(graph.Worker)
	for lo := 0; lo < n; lo += p.size {
		p.body(w, lo, min(n, lo+p.size))
	}
}

func TestRandom_Grad(t *testing.T) {
	// The draw advances with each replay, so the differences would see other numbers: the draw is an input here.
	vars := graph.NewVars(9)
	checkGrads(t, vars, func(g *graph.Graph) []*graph.Value {
		x, draw := g.Use(wide(vars, "x", 7, 5)), g.Input("draw", dtype.Uint64, 2)
		return []*graph.Value{Dropout(x, draw, 0.3), Jitter(x, draw, 0.2)}
	}, map[string]any{"draw": []uint64{5, 6}})
}

func TestRandom_Refuses(t *testing.T) {
	for _, p := range []float64{-0.1, 1, math.NaN()} {
		g := graph.New("g")
		Dropout(g.Input("x", dtype.Float32, 2), g.Input("draw", dtype.Uint64, 2), p)
		if g.Err() == nil {
			t.Errorf("p = %v: no error", p)
		}
	}
	g := graph.New("g")
	Jitter(g.Input("x", dtype.Float32, 2), g.Input("draw", dtype.Float32, 2), 0.1)
	if g.Err() == nil {
		t.Error("a draw of floats: no error")
	}
}
