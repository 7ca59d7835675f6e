package graph_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/nodes"
)

// TestDerive: the two halves of a layer give, to the bit, what the one graph gives, for changing numbers of rows, with
// parameters that stay variables and with ones that become inputs.
func TestDerive(t *testing.T) {
	for name, dev := range trainDevices(t) {
		for _, free := range []bool{false, true} {
			t.Run(name+map[bool]string{true: "/free", false: "/variables"}[free], func(t *testing.T) {
				const rows = 24
				whole := newLayer(rows, dtype.Float32)
				we := open(t, compile(t, whole.g, graph.Options{}), whole.vars)

				vars := graph.NewVars(3) // the same numbers
				g := graph.New("layer")
				x := g.Input("x", dtype.Float32, graph.UpTo(rows), layerWidth)
				unused := g.Input("unused", dtype.Float32, 4)
				y, aux := nodes.MoELayer(x, vars.Scope("moe"), nodes.MoE{Experts: 6, TopK: 2, Intermediate: 64, Alignment: 8, Compute: dtype.Float32})
				g.Output("other", nodes.Scale(unused, 2))
				before := len(g.Nodes())
				der := graph.Derivation{Y: y, Losses: []*graph.Value{aux.Balance}}
				if free {
					der.Free = vars.All()
				}
				d, err := graph.Derive(der)
				check(t, err)
				if len(g.Nodes()) != before {
					t.Error("Derive changes the graph")
				}
				if want := 1 + len(der.Free); len(d.In) != want || len(d.Grads) != want {
					t.Fatalf("got %d inputs and %d gradients, want %d", len(d.In), len(d.Grads), want)
				}
				d.Keep()
				f, b := openOn(t, dev, d.Forward, vars), openOn(t, dev, d.Backward, vars)
				for _, s := range d.Saved {
					check(t, b.WriteFrom(s.To, f, s.From))
				}
				for i, p := range der.Free {
					w := make([]float32, p.Elems())
					check(t, vars.Read(p, w))
					check(t, f.Write(d.In[1+i], w))
				}
				for _, n := range []int{rows, 5, 1, rows} {
					want := whole.run(t, we, uint64(n), n)
					check(t, f.After(b))
					check(t, f.Write(d.In[0], normal(uint64(n), n*layerWidth)))
					replay(t, f)
					for i, in := range d.BackIn {
						if in != nil {
							check(t, b.WriteFrom(in, f, d.In[i]))
						}
					}
					check(t, b.Write(d.Seed, normal(uint64(n)+1, n*layerWidth)))
					check(t, b.After(f))
					replay(t, b)
					if got := read(t, f, d.Y); !slices.Equal(got, want[0]) {
						t.Errorf("%d rows: y is %g apart", n, relative(got, want[0]))
					}
					if got := read(t, b, d.Grads[0]); !slices.Equal(got, want[len(want)-1]) {
						t.Errorf("%d rows: the gradient of x is %g apart", n, relative(got, want[len(want)-1]))
					}
					for i := range der.Free {
						if got := read(t, b, d.Grads[1+i]); !slices.Equal(got, want[2+i]) {
							t.Errorf("%d rows: the gradient of %s is %g apart", n, der.Free[i].Name(), relative(got, want[2+i]))
						}
					}
				}
			})
		}
	}
}

// TestDerive_Options: the halves of a layer with any option give, to the bit, what one graph gives; random numbers are
// drawn once.
func TestDerive_Options(t *testing.T) {
	const rows = 16
	base := nodes.MoE{Experts: 6, TopK: 2, Intermediate: 64, Alignment: 8}
	for name, change := range map[string]func(*nodes.MoE){
		"bf16":    func(m *nodes.MoE) { m.Compute = dtype.BFloat16 },
		"params":  func(m *nodes.MoE) { m.Compute, m.Params = dtype.BFloat16, dtype.BFloat16 },
		"biases":  func(m *nodes.MoE) { m.Bias, m.LogitBias, m.SelectBias = true, true, true },
		"shared":  func(m *nodes.MoE) { m.Shared = 32 },
		"groups":  func(m *nodes.MoE) { m.Groups, m.TopKGroups, m.Order, m.Scale = 3, 2, nodes.Sigmoid, 2.5 },
		"random":  func(m *nodes.MoE) { m.Dropout, m.RouterJitter, m.Seed = 0.25, 0.1, 9 },
		"no fuse": func(*nodes.MoE) {},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := base
			change(&cfg)
			opt := graph.Options{NoFuse: name == "no fuse", Debug: graph.Debug{Poison: true}}
			build := func(g *graph.Graph) (vars *graph.Vars, x, y *graph.Value, aux nodes.Aux) {
				vars = graph.NewVars(3)
				x = g.Input("x", dtype.Float32, graph.UpTo(rows), layerWidth)
				y, aux = nodes.MoELayer(x, vars.Scope("moe"), cfg)
				return vars, x, y, aux
			}
			g := graph.New("whole")
			vars, x, y, aux := build(g)
			dy := g.Input("dy", dtype.Float32, graph.UpTo(rows), layerWidth)
			g.Output("y", y)
			gr := g.GradientsFrom([]*graph.Value{y, aux.ZLoss}, []*graph.Value{dy, nil}, append([]*graph.Value{x}, vars.All()...)...)
			for i, v := range gr.Value {
				g.Output(string(rune('a'+i)), v)
			}
			whole := open(t, compile(t, g, opt), vars)

			h := graph.New("halves")
			hv, _, hy, haux := build(h)
			params := hv.All()
			d, err := graph.Derive(graph.Derivation{Y: hy, Losses: []*graph.Value{haux.ZLoss}, Free: params})
			check(t, err)
			d.Keep()
			f, b := open(t, compile(t, d.Forward, opt), hv), open(t, compile(t, d.Backward, opt), hv)
			for _, s := range d.Saved {
				check(t, b.WriteFrom(s.To, f, s.From))
			}
			for i, p := range params {
				w := make([]float32, p.Elems())
				check(t, hv.Read(p, w))
				check(t, f.Write(d.In[1+i], w))
			}
			for step := range 3 {
				n := rows - 5*step
				xs, dys := normal(uint64(step), n*layerWidth), normal(uint64(step)+50, n*layerWidth)
				check(t, errors.Join(whole.Write(x, xs), whole.Write(dy, dys), f.Write(d.In[0], xs), b.Write(d.Seed, dys)))
				for i, in := range d.BackIn {
					if in != nil {
						check(t, b.WriteFrom(in, f, d.In[i]))
					}
				}
				replay(t, whole)
				replay(t, f)
				replay(t, b)
				if got, want := read(t, f, d.Y), read(t, whole, y); !slices.Equal(got, want) {
					t.Errorf("step %d: y is %g apart", step, relative(got, want))
				}
				for i, dv := range d.Grads {
					if got, want := read(t, b, dv), read(t, whole, gr.Value[i]); !slices.Equal(got, want) {
						t.Errorf("step %d: the gradient of %s is %g apart", step, d.In[i].Name(), relative(got, want))
					}
				}
			}
		})
	}
}

// TestDerive_Refuses what has no gradient to speak of.
func TestDerive_Refuses(t *testing.T) {
	vars := graph.NewVars(1)
	g := graph.New("g")
	x := g.Input("x", dtype.Float32, graph.UpTo(8), 32)
	y, aux := nodes.MoELayer(x, vars, nodes.MoE{Experts: 4, TopK: 2, Intermediate: 32, Alignment: 8})
	for name, c := range map[string]struct {
		d    graph.Derivation
		kind error
	}{
		"nothing":         {graph.Derivation{}, graph.ErrUsage},
		"an input":        {graph.Derivation{Y: x}, graph.ErrUsage},
		"ids":             {graph.Derivation{Y: aux.Counts}, graph.ErrDType},
		"rows of experts": {graph.Derivation{Y: aux.Permute(x)}, graph.ErrUnsupported},
		"a large loss":    {graph.Derivation{Y: y, Losses: []*graph.Value{y}}, graph.ErrShape},
		"a state":         {graph.Derivation{Y: y, Free: []*graph.Value{vars.State("s", dtype.Float32, graph.Const(0), 1)}}, graph.ErrUsage},
		"twice":           {graph.Derivation{Y: y, Free: []*graph.Value{vars.Lookup("router"), vars.Lookup("router")}}, graph.ErrUsage},
		"no parameter":    {graph.Derivation{Y: nodes.Scale(x, 2), Update: func(*graph.Grads) {}}, graph.ErrUnsupported},
	} {
		if _, err := graph.Derive(c.d); !errors.Is(err, c.kind) {
			t.Errorf("%s: got %v, want %v", name, err, c.kind)
		}
	}
	check(t, g.Err())
}

// TestExec_WriteFrom refuses what does not fit; an input keeps its data then.
func TestExec_WriteFrom(t *testing.T) {
	make1 := func(dt dtype.DType, dims ...int) (*graph.Exec, *graph.Value, *graph.Value) {
		g := graph.New("g")
		x := g.Input("x", dt, dims...)
		y := g.Output("y", nodes.Scale(x, 2))
		return openOn(t, host(t), g, nil), x, y
	}
	a, ax, ay := make1(dtype.Float32, 4, 2)
	b, bx, by := make1(dtype.Float32, 4, 2)
	c, cx, _ := make1(dtype.Float64, 4, 2)
	d, dx, _ := make1(dtype.Float32, graph.UpTo(4), 2)
	if err := b.WriteFrom(bx, a, ax); !errors.Is(err, graph.ErrUsage) {
		t.Errorf("an input without data: %v", err)
	}
	check(t, a.Write(ax, []float32{1, 2, 3, 4, 5, 6, 7, 8}))
	replay(t, a)
	check(t, b.WriteFrom(bx, a, ay))
	for name, err := range map[string]error{
		"itself":         a.WriteFrom(ax, a, ay),
		"nobody":         a.WriteFrom(ax, nil, ay),
		"another format": c.WriteFrom(cx, a, ay),
		"counted rows":   d.WriteFrom(dx, a, ay),
		"no input":       b.WriteFrom(by, a, ay),
		"no output":      b.WriteFrom(bx, a, bx),
		"its own output": b.WriteFrom(bx, newAlias(t, b, by), by),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	replay(t, b)
	if got := read(t, b, by); !slices.Equal(got, []float32{4, 8, 12, 16, 20, 24, 28, 32}) {
		t.Errorf("got %v", got)
	}
	check(t, b.Close())
	if err := b.After(a); !errors.Is(err, graph.ErrUsage) {
		t.Errorf("After on a closed Exec: %v", err)
	}
}

// newAlias is an Exec whose output lies where e's lies.
func newAlias(t testing.TB, e *graph.Exec, v *graph.Value) *graph.Exec {
	t.Helper()
	other, err := e.Program().Exec(nil)
	check(t, err)
	t.Cleanup(func() { other.Close() })
	dense, err := e.Dense(v)
	check(t, err)
	check(t, other.Bind(v, dense))
	return other
}

// TestExec_Fetch: what was fetched is what was there then, whatever is replayed later.
func TestExec_Fetch(t *testing.T) {
	for name, dev := range trainDevices(t) {
		t.Run(name, func(t *testing.T) {
			g := graph.New("g")
			x := g.Input("x", dtype.Float32, graph.UpTo(8), 2)
			y := g.Output("y", nodes.Scale(x, 2))
			e := openOn(t, dev, g, nil)
			var all []*graph.Fetched
			for i := 1; i <= 5; i++ {
				data := make([]float32, 2*i)
				for k := range data {
					data[k] = float32(i)
				}
				check(t, e.Write(x, data))
				replay(t, e)
				f, err := e.Fetch(y)
				check(t, err)
				all = append(all, f)
			}
			for i, f := range all {
				var got [16]float64
				rows, err := f.Read(got[:])
				check(t, err)
				if rows != i+1 || got[0] != float64(2*i+2) || got[2*rows-1] != got[0] || got[2*rows] != 0 {
					t.Errorf("fetch %d: got %d rows of %v", i, rows, got)
				}
				if !f.Done() {
					t.Error("a copy that was read is not done")
				}
				if _, err := f.Scalar(); !errors.Is(err, graph.ErrShape) {
					t.Errorf("a scalar of many: %v", err)
				}
				f.Release()
				f.Release()
			}
			if _, err := e.Fetch(nodes.Scale(x, 3)); err == nil || !strings.Contains(err.Error(), "Graph.Output") {
				t.Errorf("a value that is no output: %v", err)
			}
		})
	}
}

// TestExec_FetchOfVariable is ordered after the updates of another Exec.
func TestExec_FetchOfVariable(t *testing.T) {
	vars := graph.NewVars(1)
	dev := newAsyncDevice(t, 2*time.Millisecond)
	w, x, _ := adder(t, dev, vars)
	r, _ := reader(t, dev, vars)
	check(t, w.Write(x, four(1)))
	for range 3 {
		replay(t, w)
	}
	f, err := r.Fetch(vars.Lookup("v"))
	check(t, err)
	replay(t, w)
	var got [4]float32
	_, err = f.Read(got[:])
	check(t, err)
	f.Release()
	if got[0] != 3 {
		t.Errorf("got %v, want 3: the updates issued before", got)
	}
}
