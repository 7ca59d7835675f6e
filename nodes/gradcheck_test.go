package nodes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/host"
)

// checkGrads compares the gradients of all parameters of vars with differences. build makes a graph of float64
// values and returns one or several outputs, whose rows may be counted, also by the device. What is
// differentiated is the sum, over outputs and elements of rows in use, of the element times a random
// seed. inputs holds the data of the inputs that build makes, by name.
//
// Near a kink, such as a clamp, the step of the differences is made smaller; a kink within 1e-6 of a
// parameter's value fails.
func checkGrads(t *testing.T, vars *graph.Vars, build func(g *graph.Graph) []*graph.Value, inputs ...map[string]any) {
	t.Helper()
	c := gradCheck{vars: vars, build: build, inputs: map[string]any{}}
	for _, m := range inputs {
		for name, data := range m {
			c.inputs[name] = data
		}
	}
	if err := c.run(); err != nil {
		t.Fatal(err)
	}
}

const (
	gradStep = 1e-4 // times the parameter's magnitude where that is above 1
	gradTol  = 1e-6 // relative error in norm of a parameter's gradient
	// gradNoise is what rounding leaves of a gradient that is zero, relative to the norm of the seeds.
	gradNoise = 1e-9
)

type gradCheck struct {
	vars   *graph.Vars
	build  func(g *graph.Graph) []*graph.Value
	inputs map[string]any
	seeds  [][]float64 // at capacity, one for each output
}

func (c *gradCheck) run() error {
	got, err := c.gradients()
	if err != nil {
		return err
	}
	f, err := c.forward()
	if err != nil {
		return err
	}
	defer f.exec.Close()
	var errs []error
	for i, p := range c.vars.All() {
		want, err := c.differences(f, p, got[i])
		if err != nil {
			return err
		}
		errs = append(errs, c.compare(p, got[i], want))
	}
	return errors.Join(errs...)
}

// seeded is a small program: the graph's inputs are written.
type seeded struct {
	exec *graph.Exec
	outs []*graph.Value
}

// open compiles g with workspaces poisoned and writes the inputs.
func (c *gradCheck) open(g *graph.Graph, outs []*graph.Value) (seeded, error) {
	prog, err := g.Compile(host.Device{}, graph.Options{Debug: graph.Debug{Poison: true, Offsets: true}})
	if err != nil {
		return seeded{}, err
	}
	exec, err := prog.Exec(c.vars)
	if err != nil {
		return seeded{}, err
	}
	for name, in := range inputsOf(g) {
		data, ok := c.inputs[name]
		if !ok {
			return seeded{}, fmt.Errorf("gradcheck: no data for input %q", name)
		}
		if err := exec.Write(in, data); err != nil {
			return seeded{}, err
		}
	}
	return seeded{exec, outs}, nil
}

// inputsOf finds the inputs that nodes use.
func inputsOf(g *graph.Graph) map[string]*graph.Value {
	found := map[string]*graph.Value{}
	for _, n := range g.Nodes() {
		for i := range n.Op().Operands() {
			if v := n.In(i); v != nil && v.Kind() == graph.Input && !strings.HasSuffix(v.Name(), ".rows") {
				found[v.Name()] = v
			}
		}
	}
	return found
}

// gradients returns the gradients of all parameters, computed twice with equal bits.
func (c *gradCheck) gradients() ([][]float64, error) {
	g := graph.New("gradients")
	outs := c.build(g)
	if err := g.Err(); err != nil {
		return nil, err
	}
	r := rand.New(rand.NewPCG(1, 2))
	seeds := make([]*graph.Value, len(outs))
	for i, v := range outs {
		if err := v.Err(); err != nil {
			return nil, err
		}
		if v.DType() != dtype.Float64 {
			return nil, fmt.Errorf("gradcheck: output %d: got %s, want f64", i, v)
		}
		c.seeds = append(c.seeds, normals(r, v.Elems()))
		name := fmt.Sprintf("gradcheck.seed%d", i)
		c.inputs[name] = c.seeds[i]
		seeds[i] = graph.Apply(crop{}, v, g.Input(name, dtype.Float64, v.Shape()...))[0]
	}
	params := c.vars.All()
	grads := g.GradientsFrom(outs, seeds, params...)
	for i, v := range grads.Value {
		g.Output(fmt.Sprintf("gradcheck.grad%d", i), v)
	}
	s, err := c.open(g, grads.Value)
	if err != nil {
		return nil, err
	}
	defer s.exec.Close()
	once, err := s.replay()
	if err != nil {
		return nil, err
	}
	twice, err := s.replay()
	if err != nil {
		return nil, err
	}
	for i := range once {
		if !bytes.Equal(bytesOf(once[i]), bytesOf(twice[i])) {
			return nil, fmt.Errorf("gradcheck: gradient of %q differs between two replays", params[i].Name())
		}
	}
	return once, nil
}

func (c *gradCheck) forward() (seeded, error) {
	g := graph.New("forward")
	outs := c.build(g)
	for i, v := range outs {
		g.Output(fmt.Sprintf("gradcheck.out%d", i), v)
	}
	return c.open(g, outs)
}

// replay runs the program and returns the rows in use of its outputs.
func (s seeded) replay() ([][]float64, error) {
	if err := s.exec.Replay(context.Background()); err != nil {
		return nil, err
	}
	res := make([][]float64, len(s.outs))
	for i, v := range s.outs {
		x := make([]float64, v.Elems())
		rows, err := s.exec.Read(v, x)
		if err != nil {
			return nil, err
		}
		if v.Dim(0) > 0 {
			x = x[:rows*(len(x)/v.Dim(0))]
		}
		res[i] = x
	}
	return res, nil
}

// differences returns the gradient of p. Where it is not what was got, a kink may be within reach of the
// step, and smaller ones are tried: the nearest result counts.
func (c *gradCheck) differences(f seeded, p *graph.Value, got []float64) ([]float64, error) {
	x := make([]float64, p.Elems())
	if err := c.vars.Read(p, x); err != nil {
		return nil, err
	}
	grad := make([]float64, len(x))
	for i, at := range x {
		for k, shrink := range []float64{1, 20, 400} {
			d, err := c.slope(f, p, x, i, gradStep/shrink*max(1, math.Abs(at)))
			if err != nil {
				return nil, err
			}
			if k == 0 || math.Abs(d-got[i]) < math.Abs(grad[i]-got[i]) {
				grad[i] = d
			}
			if math.Abs(grad[i]-got[i]) <= gradTol*math.Abs(d)+gradNoise*c.seedNorm() {
				break
			}
		}
	}
	return grad, c.vars.Write(p, x)
}

// slope returns the derivative by element i of p, whose value is x, by the five-point rule
//
//	f'(x) = (8 (f(x+h) - f(x-h)) - (f(x+2h) - f(x-2h))) / 12h + O(h^4)
func (c *gradCheck) slope(f seeded, p *graph.Value, x []float64, i int, h float64) (float64, error) {
	at := x[i]
	defer func() { x[i] = at }()
	var sum float64
	for _, s := range []struct{ shift, weight float64 }{{1, 8}, {-1, -8}, {2, -1}, {-2, 1}} {
		x[i] = at + s.shift*h
		if err := c.vars.Write(p, x); err != nil {
			return 0, err
		}
		outs, err := f.replay()
		if err != nil {
			return 0, err
		}
		sum += s.weight * c.dot(outs)
	}
	return sum / (12 * h), nil
}

func (c *gradCheck) dot(outs [][]float64) float64 {
	var sum float64
	for i, y := range outs {
		for j, v := range y {
			sum += v * c.seeds[i][j]
		}
	}
	return sum
}

func (c *gradCheck) compare(p *graph.Value, got, want []float64) error {
	var diff, size float64
	worst := 0
	for i := range want {
		d := got[i] - want[i]
		if math.IsNaN(d) {
			return fmt.Errorf("gradient of %q, element %d: got %g, want %g", p.Name(), i, got[i], want[i])
		}
		if math.Abs(d) > math.Abs(got[worst]-want[worst]) {
			worst = i
		}
		diff += d * d
		size += want[i] * want[i]
	}
	if math.Sqrt(diff) <= gradTol*math.Sqrt(size)+gradNoise*c.seedNorm() {
		return nil
	}
	return fmt.Errorf("gradient of %q: relative error %.3g; element %d: got %g, want %g",
		p.Name(), math.Sqrt(diff/size), worst, got[worst], want[worst])
}

func (c *gradCheck) seedNorm() float64 {
	var sum float64
	for _, s := range c.seeds {
		for _, v := range s {
			sum += v * v
		}
	}
	return math.Sqrt(sum)
}

func normals(r *rand.Rand, n int) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = r.NormFloat64()
	}
	return x
}

// TestCheckGrads: the harness accepts right gradients and notices wrong, missing and misplaced ones.
func TestCheckGrads(t *testing.T) {
	param := func(vars *graph.Vars, name string, shape ...int) *graph.Value {
		return vars.ParamOf(name, dtype.Float64, graph.Normal(1), shape...)
	}
	check := func(factor float64, rows []int32) error {
		vars := graph.NewVars(3)
		x := param(vars, "x", 5, 3)
		c := gradCheck{vars: vars, inputs: map[string]any{"rows": rows}}
		c.build = func(g *graph.Graph) []*graph.Value {
			n := g.Input("rows", dtype.Int32, len(rows))
			y := graph.Apply(square{Factor: factor}, g.Use(x))[0]
			return []*graph.Value{graph.Apply(firstRows{}, y, n)[0], y}
		}
		return c.run()
	}
	for _, rows := range [][]int32{{5}, {3}, {9, 0}, {1, 2, 1}} {
		if err := check(2, rows); err != nil {
			t.Errorf("right gradient, rows %v: %v", rows, err)
		}
		for _, factor := range []float64{0, -2, 2.00001, math.NaN()} {
			if err := check(factor, rows); err == nil || !strings.Contains(err.Error(), `gradient of "x"`) {
				t.Errorf("gradient with factor %g instead of 2, rows %v: got error %v, want one that names x", factor, rows, err)
			}
		}
	}
	kinked := gradCheck{vars: graph.NewVars(1), inputs: map[string]any{}}
	k := kinked.vars.ParamOf("k", dtype.Float64, graph.Const(0), 3)
	if err := kinked.vars.Write(k, []float64{1e-5, -3e-6, -1e-4}); err != nil {
		t.Fatal(err)
	}
	kinked.build = func(g *graph.Graph) []*graph.Value { return []*graph.Value{graph.Apply(ramp{}, g.Use(k))[0]} }
	if err := kinked.run(); err != nil {
		t.Errorf("kinks at 3e-6: %v", err)
	}
	c := gradCheck{vars: graph.NewVars(1)}
	c.seeds = [][]float64{{1}}
	x := param(c.vars, "x", 4)
	if err := c.compare(x, []float64{1, 2, 3, 4}, []float64{1, 2, 4, 3}); err == nil {
		t.Error("exchanged elements: got no error")
	}
	if err := c.compare(x, []float64{0, 0, 1e-6, 0}, make([]float64, 4)); err == nil {
		t.Error("a gradient where there is none: got no error")
	}
	if !slices.Equal(normals(rand.New(rand.NewPCG(1, 1)), 3), normals(rand.New(rand.NewPCG(1, 1)), 3)) {
		t.Error("seeds are not reproducible")
	}
}
