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
// The step of the differences is gradStep, so a function with a kink within twice that of a parameter's
// value fails: keep parameters away from clamps.
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
		want, err := c.differences(f, p)
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

// differences returns the gradient of p by the five-point rule
//
//	f'(x) = (8 (f(x+h) - f(x-h)) - (f(x+2h) - f(x-2h))) / 12h + O(h^4)
//
// taken output by output before the sum with the seeds, so that large outputs lose no digits.
func (c *gradCheck) differences(f seeded, p *graph.Value) ([]float64, error) {
	x := make([]float64, p.Elems())
	if err := c.vars.Read(p, x); err != nil {
		return nil, err
	}
	grad := make([]float64, len(x))
	for i, at := range x {
		h := gradStep * max(1, math.Abs(at))
		for _, s := range []struct{ shift, weight float64 }{{1, 8}, {-1, -8}, {2, -1}, {-2, 1}} {
			x[i] = at + s.shift*h
			if err := c.vars.Write(p, x); err != nil {
				return nil, err
			}
			outs, err := f.replay()
			if err != nil {
				return nil, err
			}
			grad[i] += s.weight * c.dot(outs) / (12 * h)
		}
		x[i] = at
	}
	return grad, c.vars.Write(p, x)
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
	var diff, size, seeds float64
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
	for _, s := range c.seeds {
		for _, v := range s {
			seeds += v * v
		}
	}
	if math.Sqrt(diff) <= gradTol*math.Sqrt(size)+gradNoise*math.Sqrt(seeds) {
		return nil
	}
	return fmt.Errorf("gradient of %q: relative error %.3g; element %d: got %g, want %g",
		p.Name(), math.Sqrt(diff/size), worst, got[worst], want[worst])
}

func normals(r *rand.Rand, n int) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = r.NormFloat64()
	}
	return x
}

// crop gives s, which has all rows of the capacity, the rows of like.
type crop struct{}

func (crop) Kind() string              { return "crop" }
func (crop) Operands() []graph.Operand { return []graph.Operand{{Name: "like"}, {Name: "s"}} }
func (crop) Outputs() []string         { return []string{"y"} }

func (crop) Infer(in []*graph.Value) ([]graph.Spec, error) {
	s := in[0].Spec()
	s.DType = in[1].DType()
	return []graph.Spec{s}, nil
}

func (crop) Host(c *graph.Call) func() error {
	return func() error {
		n := c.Out[0].DType.Bytes(c.Out[0].Rows() * c.Out[0].Width())
		copy(c.Out[0].Data[:n], c.In[1].Data[:n])
		return nil
	}
}

// firstRows keeps as many rows as the device says: the last element of n.
type firstRows struct{}

func (firstRows) Kind() string              { return "first_rows" }
func (firstRows) Operands() []graph.Operand { return []graph.Operand{{Name: "x"}, {Name: "n"}} }
func (firstRows) Outputs() []string         { return []string{"y"} }

func (firstRows) Infer(in []*graph.Value) ([]graph.Spec, error) {
	s := in[0].Spec()
	s.Rows = in[1]
	return []graph.Spec{s}, nil
}

func (o firstRows) Gradient(_ *graph.Node, grads []*graph.Value) []*graph.Value {
	return []*graph.Value{graph.Apply(allRows{}, grads[0])[0], nil}
}

func (firstRows) Host(c *graph.Call) func() error {
	return func() error {
		copy(c.Out[0].Data[:c.Out[0].DType.Bytes(c.Out[0].Rows()*c.Out[0].Width())], c.In[0].Data)
		return nil
	}
}

// allRows fills the rows that are not in use with zeros.
type allRows struct{}

func (allRows) Kind() string              { return "all_rows" }
func (allRows) Operands() []graph.Operand { return []graph.Operand{{Name: "x"}} }
func (allRows) Outputs() []string         { return []string{"y"} }

func (allRows) Infer(in []*graph.Value) ([]graph.Spec, error) {
	s := in[0].Spec()
	s.Rows = nil
	return []graph.Spec{s}, nil
}

func (allRows) Host(c *graph.Call) func() error {
	return func() error {
		n := c.In[0].DType.Bytes(c.In[0].Rows() * c.In[0].Width())
		clear(c.Out[0].Data[copy(c.Out[0].Data, c.In[0].Data[:n]):])
		return nil
	}
}

// square is y = x*x, with a gradient of Factor*x*dy: right for 2.
type square struct{ Factor float64 }

func (square) Kind() string { return "square" }
func (square) Operands() []graph.Operand {
	return []graph.Operand{{Name: "x"}, {Name: "dy", Optional: true}}
}
func (square) Outputs() []string { return []string{"y"} }

func (square) Infer(in []*graph.Value) ([]graph.Spec, error) { return []graph.Spec{in[0].Spec()}, nil }

func (o square) Gradient(n *graph.Node, grads []*graph.Value) []*graph.Value {
	return []*graph.Value{Scale(graph.Apply(o, n.In(0), grads[0])[0], o.Factor), nil}
}

func (square) Host(c *graph.Call) func() error {
	return elementwise(c, func(_ *graph.Worker, at, n int) {
		x, y := graph.View[float64](c.In[0].Data), graph.View[float64](c.Out[0].Data)
		for i := at; i < at+n; i++ {
			if y[i] = x[i] * x[i]; c.In[1] != nil {
				y[i] = x[i] * graph.View[float64](c.In[1].Data)[i]
			}
		}
	})
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
