package nodes

import (
	"fmt"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

func init() {
	graph.Register(graph.Info{Example: accumulate{}, NoGrad: "it works on gradients only",
		Doc: "sum = x where count is 1, else sum + x, in place; mean = sum / count"})
	graph.Register(graph.Info{Example: cycle{Every: 2}, Options: []string{"every"}, NoGrad: "it works on integers only",
		Doc: "count goes 1, 2, ..., every, 1, ...; ready is 1 where it is every, else 0"})
}

// Accumulate spreads a step over several replays, one a micro-batch: each replay adds its gradients to
// accumulators, and in every every-th one the returned gradients are the mean over the last every
// replays and Ready is 1, so that an optimizer acts. In the other replays Ready is 0 and the
// returned gradients are the mean so far. The next replay starts anew.
//
// Sums and means are float32 (f64 for f64). Accumulators "<param>/accum" and the counter "accum/micro" are
// state of the parameters' Vars, so a run that is stopped in the middle of a step goes on from there. The given
// gradients are unchanged, so they may be outputs of the graph. every = 1 returns grads. Clip afterwards:
//
//	grads, norm := nodes.ClipGlobalNorm(nodes.Accumulate(grads, 4), 1)
func Accumulate(grads *graph.Grads, every int) *graph.Grads {
	g := grads.Graph()
	switch {
	case g == nil || len(grads.Of) == 0 || len(grads.Of) != len(grads.Value):
		g.Fail(fmt.Errorf("accumulate: %w", graph.Misuse("grads", "none", "the result of Gradients, with at least one parameter")))
		return grads
	case every < 1:
		g.Fail(fmt.Errorf("accumulate: %w", graph.BadShape("every", every, "at least 1 micro-batch")))
		return grads
	case grads.Ready != nil:
		g.Fail(fmt.Errorf("accumulate: %w", graph.Misuse("grads", "gradients that are accumulated already", "those of Gradients")))
		return grads
	case g.Err() != nil || every == 1:
		return grads
	}
	seen := map[string]bool{}
	for i, p := range grads.Of {
		if err := checkUpdate(p, grads.Value[i], seen); err != nil {
			g.Fail(fmt.Errorf("accumulate: %w", err))
			return grads
		}
	}
	micro := g.Use(graph.VarsOf(grads.Of[0]).State("accum/micro", dtype.Int32, graph.Const(0), 1))
	if g.Version(micro) > 0 {
		g.Fail(fmt.Errorf("accumulate: %w", graph.Misuse("grads", "a second accumulation in this graph", "one for all parameters of a Vars")))
		return grads
	}
	g.NameNext("accum/micro")
	out := graph.Apply(cycle{Every: every}, micro)
	means := make([]*graph.Value, len(grads.Value))
	for i, p := range grads.Of {
		sum := graph.VarsOf(p).State(graph.VarName(p)+"/accum", statType(p.DType()), graph.Const(0), p.Shape()...)
		g.NameNext("accum/" + graph.VarName(p))
		means[i] = graph.Apply(accumulate{}, sum, grads.Value[i], out[0])[0]
	}
	res := grads.With(means)
	if g.Err() == nil {
		res.Ready = out[1]
	}
	return res
}

// cycle counts replays from 1 to Every and over again.
type cycle struct{ Every int }

func (o cycle) Kind() string              { return "cycle" }
func (o cycle) Operands() []graph.Operand { return []graph.Operand{{Name: "state", Update: true}} }
func (o cycle) Outputs() []string         { return []string{"count", "ready"} }

func (o cycle) Infer(in []*graph.Value) ([]graph.Spec, error) {
	if err := checkOne("state", in[0], dtype.Int32); err != nil {
		return nil, err
	}
	s := graph.Spec{DType: dtype.Int32, Shape: []int{1}}
	return []graph.Spec{s, s}, nil
}

// Host keeps in the state how many replays of a round are done, 0 after the last. It starts over, too, where
// a program with a smaller Every takes on the state.
func (o cycle) Host(c *graph.Call) func() error {
	return func() error {
		state := ints(c.In[0])
		count, ready := state[0]+1, int32(0)
		if count < 1 || int(count) > o.Every {
			count = 1
		}
		state[0] = count
		if int(count) == o.Every {
			state[0], ready = 0, 1
		}
		if t := c.Out[0]; t != nil {
			ints(t)[0] = count
		}
		if t := c.Out[1]; t != nil {
			ints(t)[0] = ready
		}
		return nil
	}
}

// accumulate adds x to a sum that starts anew where count is 1.
type accumulate struct{}

func (accumulate) Kind() string { return "accumulate" }

func (accumulate) Operands() []graph.Operand {
	return []graph.Operand{{Name: "sum", Update: true}, {Name: "x"}, {Name: "count"}}
}

func (accumulate) Outputs() []string { return []string{"mean"} }

func (o accumulate) Infer(in []*graph.Value) ([]graph.Spec, error) {
	sum, x, count := in[0], in[1], in[2]
	if !plain(x.DType()) {
		return nil, graph.BadDType("x", x.DType(), floats)
	}
	if sum.DType() != statType(x.DType()) {
		return nil, graph.BadDType("sum", sum.DType(), "%s beside %s", statType(x.DType()), x.DType())
	}
	if err := checkState(sum, o.Operands()[1:2], in[1:2]); err != nil {
		return nil, err
	}
	if err := checkOne("count", count, dtype.Int32); err != nil {
		return nil, err
	}
	return []graph.Spec{sum.Spec()}, nil
}

func (accumulate) Host(c *graph.Call) func() error {
	if isWide(c.In[0].DType) {
		return accumulateHost[float64](c)
	}
	return accumulateHost[float32](c)
}

func accumulateHost[F float](c *graph.Call) func() error {
	sum, x, count, mean := c.In[0], c.In[1], c.In[2], c.Out[0]
	loop := c.NewLoop(func(w *graph.Worker, lo, hi int) {
		acc := graph.View[F](sum.Data)[lo:hi]
		xs := load[F](w, 0, x, lo, hi-lo)
		n := ints(count)[0]
		if n == 1 {
			copy(acc, xs)
		} else {
			for i, v := range xs {
				acc[i] += v
			}
		}
		if mean != nil {
			for i, v := range acc {
				graph.View[F](mean.Data)[lo+i] = v / F(n)
			}
		}
	})
	elems := capacity(sum)
	return func() error {
		loop.Run(elems, elemGrain)
		return nil
	}
}
