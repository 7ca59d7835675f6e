package nodes

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/host"
)

// spy is the host device that remembers its allocations by their use.
type spy struct {
	host.Device
	memory map[string]graph.Memory
}

func (s spy) Alloc(bytes int64, what string) (graph.Memory, error) {
	m, err := s.Device.Alloc(bytes, what)
	s.memory[what] = m
	return m, err
}

// trial is a compiled graph with its inputs written.
type trial struct {
	t    testing.TB
	dev  spy
	exec *graph.Exec
}

type data map[*graph.Value]any

// try compiles g for the host with poisoned memory, checks and several streams, and writes the inputs.
func try(t testing.TB, g *graph.Graph, vars *graph.Vars, in data, outs ...*graph.Value) *trial {
	t.Helper()
	for i, v := range outs {
		g.Output(fmt.Sprintf("out%d", i), v)
	}
	r := &trial{t: t, dev: spy{memory: map[string]graph.Memory{}}}
	prog, err := g.Compile(r.dev, graph.Options{ForceStreams: true, Debug: graph.Debug{Poison: true, Offsets: true}})
	r.check(err)
	r.exec, err = prog.Exec(vars)
	r.check(err)
	t.Cleanup(func() { r.exec.Close() })
	for v, x := range in {
		r.check(r.exec.Write(v, x))
	}
	return r
}

func (r *trial) check(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// run replays once.
func (r *trial) run() *trial {
	r.t.Helper()
	r.check(r.exec.Replay(context.Background()))
	return r
}

// floats returns the rows in use, and checks that the others were not written.
func (r *trial) floats(v *graph.Value) []float64 {
	r.t.Helper()
	x := make([]float64, v.Elems())
	rows, err := r.exec.Read(v, x)
	r.check(err)
	if v.Rank() > 0 && v.Dim(0) > 0 {
		x = x[:rows*(len(x)/v.Dim(0))]
	}
	if m, ok := r.dev.memory["output "+v.Name()]; ok {
		for i, b := range m.(graph.HostMemory).Bytes()[v.DType().Bytes(len(x)):] {
			if b != 0xff {
				r.t.Fatalf("%s: byte %d past the %d rows in use was written", v, i, rows)
			}
		}
	}
	return x
}

// halfULP returns half a unit in the last place of x in a format.
func halfULP(dt dtype.DType, x float64) float64 {
	p := map[dtype.DType]struct{ bits, minExp int }{
		dtype.BFloat16: {8, -125}, dtype.Float16: {11, -13}, dtype.Float32: {24, -125}, dtype.Float64: {53, -1021},
	}[dt]
	_, e := math.Frexp(x)
	return math.Ldexp(1, max(e, p.minExp)-p.bits-1)
}

// near checks got against want, computed in float64: every element is want rounded once to dt, but for an error
// of slack times the largest element of the whole in what is rounded.
func near(t testing.TB, what string, dt dtype.DType, got, want []float64, slack float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: got %d elements, want %d", what, len(got), len(want))
	}
	var top float64
	for _, w := range want {
		if !math.IsNaN(w) && !math.IsInf(w, 0) {
			top = max(top, math.Abs(w))
		}
	}
	for i, w := range want {
		same := got[i] == w || math.IsNaN(w) && math.IsNaN(got[i])
		if !same && !(math.Abs(got[i]-w) <= 1.02*halfULP(dt, w)+slack*top) {
			t.Fatalf("%s: element %d: got %v, want %v (%s)", what, i, got[i], w, dt)
		}
	}
}

// slack is what a sum may be off before it is rounded.
func slack(dt dtype.DType) float64 {
	if dt == dtype.Float64 {
		return 1e-14
	}
	return 1e-6
}

// refuses checks that g holds an error of a kind that names the operand.
func refuses(t *testing.T, what string, g *graph.Graph, kind error, operand string) {
	t.Helper()
	var oe *graph.OperandError
	err := g.Err()
	if !errors.Is(err, kind) || !errors.As(err, &oe) || oe.Operand != operand {
		t.Errorf("%s: got error %v, want one of kind %v about %q", what, err, kind, operand)
	}
}

// random returns n normal numbers that dt holds exactly.
func random(r *rand.Rand, dt dtype.DType, n int) []float64 {
	x := normals(r, n)
	code := make([]byte, dt.Bytes(n))
	if dtype.Convert(dt, code, dtype.Float64, bytesOf(x)) != nil || dtype.Convert(dtype.Float64, bytesOf(x), dt, code) != nil {
		panic("no conversion")
	}
	return x
}

var formats = []dtype.DType{dtype.BFloat16, dtype.Float16, dtype.Float32, dtype.Float64}

// rowCounts are the rows in use of a capacity of n.
func rowCounts(n int) []int { return []int{n, 0, 1, n / 2, n} }

func TestNear(t *testing.T) {
	for _, bad := range []float64{1.03, math.NaN(), math.Inf(1), 0.97} {
		probe := &probe{TB: t}
		func() {
			defer func() { _ = recover() }()
			near(probe, "x", dtype.BFloat16, []float64{1, bad}, []float64{1, 1}, 1e-6)
		}()
		if !probe.failed {
			t.Errorf("near accepts %g for 1 in bf16", bad)
		}
	}
	near(t, "x", dtype.BFloat16, []float64{1, math.NaN()}, []float64{1.003, math.NaN()}, 0)
}

// probe is a test that is meant to fail.
type probe struct {
	testing.TB
	failed bool
}

func (p *probe) Helper() {}
func (p *probe) Fatalf(string, ...any) {
	p.failed = true
	panic(p)
}

func TestElementwise_Host(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 1))
	for _, dt := range formats {
		for _, shape := range [][]int{{1, 1}, {7, 5}, {300, 70}} {
			g := graph.New("elementwise")
			xs := make([]*graph.Value, 3)
			for i := range xs {
				xs[i] = g.Input(fmt.Sprintf("x%d", i), dt, graph.UpTo(shape[0]), shape[1])
			}
			wide := dt
			if dt != dtype.Float64 {
				wide = dtype.Float32
			}
			sum, scaled, cast := Add(xs...), xs[0].Scale(-0.375), Cast(xs[0], wide)
			filled := fillLike(xs[0], 0.5)
			tr := try(t, g, nil, nil, sum, scaled, cast, filled)
			for _, rows := range rowCounts(shape[0]) {
				n := rows * shape[1]
				in := [][]float64{random(r, dt, n), random(r, dt, n), random(r, dt, n)}
				for i, x := range xs {
					tr.check(tr.exec.Write(x, in[i]))
				}
				tr.run()
				want := [4][]float64{}
				for i := range n {
					a, b, c := in[0][i], in[1][i], in[2][i]
					want[0] = append(want[0], a+b+c)
					want[1] = append(want[1], -0.375*a)
					want[2] = append(want[2], a)
					want[3] = append(want[3], 0.5)
				}
				for i, v := range []*graph.Value{sum, scaled, cast, filled} {
					near(t, fmt.Sprintf("%s rows %d", v, rows), v.DType(), tr.floats(v), want[i], slack(dt))
				}
			}
		}
	}
}

func TestElementwise_Grad(t *testing.T) {
	vars := graph.NewVars(1)
	a := vars.ParamOf("a", dtype.Float64, graph.Normal(1), 4, 3)
	b := vars.ParamOf("b", dtype.Float64, graph.Normal(1), 4, 3)
	checkGrads(t, vars, func(g *graph.Graph) []*graph.Value {
		x := Add(g.Use(a), b, b)
		y := graph.Apply(square{Factor: 2}, x)[0]
		n := g.Input("n", dtype.Int32, 1)
		cut := graph.Apply(firstRows{}, y, n)[0]
		return []*graph.Value{Add(cut, cut.Scale(-3)), Add(y, x), x.Scale(0.5)}
	}, map[string]any{"n": []int32{3}})
}

// TestElementwise_MixedGrad: gradients return in the operand's format, through sums of other formats and casts.
func TestElementwise_MixedGrad(t *testing.T) {
	g := graph.New("mixed")
	x := g.Input("x", dtype.BFloat16, 2)
	w := g.Input("w", dtype.Float32, 2)
	y := Add(Cast(x, dtype.Float32), w, x)
	seed := g.Input("seed", dtype.Float32, 2)
	grads := g.GradientsFrom([]*graph.Value{y}, []*graph.Value{seed}, x, w)
	if got := [2]dtype.DType{grads.Value[0].DType(), grads.Value[1].DType()}; got != [2]dtype.DType{dtype.BFloat16, dtype.Float32} {
		t.Errorf("gradients of bf16 and f32: got formats %v", got)
	}
	tr := try(t, g, nil, data{x: []float64{1, 1}, w: []float64{1, 1}, seed: []float64{3, -0.25}}, grads.Value...).run()
	near(t, "dx", dtype.BFloat16, tr.floats(grads.Value[0]), []float64{6, -0.5}, 0)
	near(t, "dw", dtype.Float32, tr.floats(grads.Value[1]), []float64{3, -0.25}, 0)
}

// TestElementwise_CastOnce: a variable is cast once for all readers, and anew after an update.
func TestElementwise_CastOnce(t *testing.T) {
	g := graph.New("cast")
	vars := graph.NewVars(1)
	w := vars.ParamOf("w", dtype.Float32, graph.Const(1), 3)
	a, b := as(g, w, dtype.BFloat16), as(g, w, dtype.BFloat16)
	grad := g.Input("grad", dtype.Float32, 3)
	SGD(g.GradientsFrom([]*graph.Value{Add(g.Use(w), w)}, []*graph.Value{grad}, w), SGDConfig{Rate: 0.25})
	c := as(g, w, dtype.BFloat16)
	if a != b || a == c {
		t.Errorf("two casts before an update are one: %v; one after it is another: %v", a == b, a != c)
	}
	tr := try(t, g, vars, data{grad: []float32{1, 2, -1}}, a, c).run()
	near(t, "before", dtype.BFloat16, tr.floats(a), []float64{1, 1, 1}, 0)
	near(t, "after", dtype.BFloat16, tr.floats(c), []float64{0.5, 0, 1.5}, 0)
}

func TestElementwise_Refuses(t *testing.T) {
	for _, c := range []struct {
		what    string
		kind    error
		operand string
		build   func(g *graph.Graph, x *graph.Value)
	}{
		{"shapes", graph.ErrShape, "x2", func(g *graph.Graph, x *graph.Value) { Add(x, g.Input("y", dtype.Float32, 4, 4)) }},
		{"ranks", graph.ErrShape, "x3", func(g *graph.Graph, x *graph.Value) { Add(x, x, g.Input("y", dtype.Float32, 20)) }},
		{"counts", graph.ErrShape, "x2", func(g *graph.Graph, x *graph.Value) { Add(x, g.Input("y", dtype.Float32, graph.UpTo(4), 5)) }},
		{"f64 beside f32", graph.ErrDType, "x2", func(g *graph.Graph, x *graph.Value) { Add(x, g.Input("y", dtype.Float64, 4, 5)) }},
		{"integers", graph.ErrDType, "x", func(g *graph.Graph, _ *graph.Value) { g.Input("y", dtype.Int32, 4).Scale(2) }},
		{"cast to int", graph.ErrDType, "to", func(_ *graph.Graph, x *graph.Value) { Cast(x, dtype.Int32) }},
		{"cast of codes", graph.ErrDType, "x", func(g *graph.Graph, _ *graph.Value) { Cast(g.Input("y", dtype.E4M3, 4), dtype.Float32) }},
		{"missing", graph.ErrUsage, "x2", func(_ *graph.Graph, x *graph.Value) { Add(x, nil) }},
	} {
		g := graph.New("refuses")
		c.build(g, g.Input("x", dtype.Float32, 4, 5))
		refuses(t, c.what, g, c.kind, c.operand)
	}
	if err := Add().Err(); !errors.Is(err, graph.ErrUsage) || !strings.Contains(err.Error(), "x") {
		t.Errorf("sum of nothing: got %v", err)
	}
}
