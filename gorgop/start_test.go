package gorgop

import (
	"fmt"
	"hash"
	"hash/fnv"
	"slices"
	"testing"
	"time"

	"github.com/chewxy/hm"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/asyncdev"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// probe is an op of somebody else: y = x. It looks around when it runs.
type probe struct {
	name    string
	see     func(name string)
	forward bool
}

func (p probe) Arity() int    { return 1 }
func (p probe) Type() hm.Type { return hm.NewFnType(hm.TypeVariable('a'), hm.TypeVariable('a')) }
func (p probe) InferShape(s ...G.DimSizer) (tensor.Shape, error) {
	return s[0].(tensor.Shape).Clone(), nil
}
func (p probe) ReturnsPtr() bool      { return false }
func (p probe) CallsExtern() bool     { return false }
func (p probe) OverwritesInput() int  { return -1 }
func (p probe) WriteHash(h hash.Hash) { fmt.Fprint(h, p.name) }
func (p probe) String() string        { return p.name }
func (p probe) DiffWRT(int) []bool    { return []bool{p.forward} }
func (p probe) SymDiff(_ G.Nodes, _, g *G.Node) (G.Nodes, error) {
	n, err := G.ApplyOp(probe{p.name + "/grad", p.see, false}, g)
	return G.Nodes{n}, err
}

func (p probe) Hashcode() uint32 {
	h := fnv.New32a()
	p.WriteHash(h)
	return h.Sum32()
}

func (p probe) Do(vals ...G.Value) (G.Value, error) {
	p.see(p.name)
	return G.CloneValue(vals[0])
}

func (p probe) DoDiff(_ G.ExecutionContext, in G.Nodes, out *G.Node) error {
	p.see(p.name + "/grad")
	d, err := in[0].Grad()
	if err != nil {
		return err
	}
	g, err := out.Grad()
	if err != nil {
		return err
	}
	return addTo(d, g)
}

// TestLayer_Start: what stands between Start and Await runs while the replay does, and its gradient while the backward
// replay does, in both machines; output and gradients are those of Apply.
func TestLayer_Start(t *testing.T) {
	z := small
	for _, lisp := range []bool{false, true} {
		t.Run(vmName(lisp), func(t *testing.T) {
			run := func(split bool, see func(s *site, name string)) ([]float64, [][]float64) {
				vars := graph.NewVars(7)
				release := make(chan struct{})
				dev := asyncdev.New(open(t), 0)
				if split {
					dev.Before = func() { // the replay waits for the probe
						select {
						case <-release:
						case <-time.After(20 * time.Second):
							t.Error("the probe does not run beside the replay")
						}
					}
				}
				l, err := MoE(dev, vars.Scope("moe"), z.rows, z.moe(), Config{})
				must(t, err)
				cleanup(t, l, vars)
				g := G.NewGraph()
				x := input(g, "x", 3, z.rows, z.hidden)
				ws, err := l.Weights(g, tensor.Float32)
				must(t, err)
				operands := append(G.Nodes{x}, ws...)
				p, err := l.Start(operands...)
				must(t, err)
				if !split {
					_, err = p.Await()
					must(t, err)
				}
				other := G.Must(G.ApplyOp(probe{"probe", func(name string) {
					see(p.s, name)
					if split {
						select {
						case release <- struct{}{}:
						case <-time.After(20 * time.Second):
							t.Error("no replay waits for the probe")
						}
					}
				}, true}, x))
				y, err := p.Await()
				must(t, err)
				again, err := p.Await()
				must(t, err)
				if y != again {
					t.Error("a second Await makes another node")
				}
				return once(t, lisp, G.Must(G.Add(y, other)), operands...)
			}
			var seen []string
			got, grads := run(true, func(s *site, name string) {
				r := s.y
				if name != "probe" {
					r = s.grads[1]
				}
				if r.fetched == nil || r.fetched.Done() {
					t.Errorf("%s: no replay is under way", name)
				}
				seen = append(seen, name)
			})
			if !slices.Equal(seen, []string{"probe", "probe/grad"}) {
				t.Errorf("ran %v", seen)
			}
			want, wants := run(false, func(*site, string) {})
			if apart(got, want) != 0 {
				t.Errorf("output: %g apart", apart(got, want))
			}
			for i := range wants {
				if d := apart(grads[i], wants[i]); d != 0 {
					t.Errorf("gradient %d: %g apart", i, d)
				}
			}
		})
	}
}
