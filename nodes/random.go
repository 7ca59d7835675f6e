package nodes

import (
	"hash/fnv"
	"math/bits"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

func init() {
	why := "its outputs are integers"
	graph.Register(graph.Info{Example: randomNext{}, Doc: "draw = key and counter of this replay; counter = counter + 1", NoGrad: why})
	graph.Register(graph.Info{Example: randomScale{Op: "dropout", P: 0.5}, Doc: "y = x / (1-p) with probability 1-p, else 0", Options: []string{"p"}})
	graph.Register(graph.Info{Example: randomScale{Op: "jitter", P: 0.01}, Doc: "y = x * u, u uniform in [1-eps, 1+eps)", Options: []string{"eps"}})
}

// Random is a counter-based random generator whose key and counter are state on the device: two replays differ, the
// same seed reproduces both, and nothing is drawn on the host.
//
// The numbers are those of Philox4x32-10 (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, 2011), with
// the state's key and, as the counter, (element/4, replay, node): what an element gets depends on neither
// the device nor the number of cores.
type Random struct {
	state *graph.Value // uint64 (2,): key, counter
}

// NewRandom returns the generator whose state is the variable of that name: uint64 (2,), key and counter. A new
// state gets its key from seed and the name.
func NewRandom(vars *graph.Vars, name string, seed uint64) *Random {
	old := vars.Lookup(name)
	r := &Random{vars.State(name, dtype.Uint64, graph.Const(0), 2)}
	if old == nil && r.state.Err() == nil {
		h := fnv.New64a()
		h.Write([]byte(graph.VarName(r.state)))
		if err := vars.Write(r.state, []uint64{seed ^ h.Sum64(), 0}); err != nil {
			r.state = (*graph.Graph)(nil).Fail(err)
		}
	}
	return r
}

// Draw returns what this replay's random nodes use: uint64 (2,). The first call in a graph appends the node that
// advances the counter, once for each replay. Forward and backward of one replay use the same draw and so agree.
func (r *Random) Draw(g *graph.Graph) *graph.Value {
	state := g.Use(r.state)
	return g.Memo(drawKey{state}, func() *graph.Value {
		return graph.ApplyAs("draw", randomNext{}, state)[0]
	})
}

type drawKey struct{ state *graph.Value }

// Dropout sets each element to zero with probability p, in [0,1), and divides the others by 1-p. The gradient uses
// the same choices.
func Dropout(x, draw *graph.Value, p float64) *graph.Value {
	return scaleAtRandom("dropout", x, draw, p)
}

// Jitter multiplies each element by a number drawn uniformly from [1-eps, 1+eps), eps in [0,1), as routers do with
// their input (Fedus et al., Switch Transformers, 2021). The gradient uses the same numbers.
func Jitter(x, draw *graph.Value, eps float64) *graph.Value {
	return scaleAtRandom("jitter", x, draw, eps)
}

func scaleAtRandom(kind string, x, draw *graph.Value, p float64) *graph.Value {
	salt := uint32(0)
	if g := x.Graph(); g != nil {
		salt = uint32(len(g.Nodes()))
	}
	return graph.Apply(randomScale{Op: kind, P: p, Salt: salt}, x, draw)[0]
}

type randomNext struct{}

func (o randomNext) Kind() string { return "random_next" }
func (o randomNext) Operands() []graph.Operand {
	return []graph.Operand{{Name: "state", Update: true}}
}
func (o randomNext) Outputs() []string { return []string{"draw"} }

func (o randomNext) Infer(in []*graph.Value) ([]graph.Spec, error) {
	return []graph.Spec{{DType: dtype.Uint64, Shape: []int{2}}}, checkDraw("state", in[0])
}

func checkDraw(operand string, v *graph.Value) error {
	if v.DType() != dtype.Uint64 || v.Rank() != 1 || v.Dim(0) != 2 {
		return graph.BadShape(operand, v.Text(), "uint64 (2,): key and counter")
	}
	return nil
}

func (o randomNext) Host(c *graph.Call) func() error {
	state, draw := c.In[0], c.Out[0]
	return func() error {
		s := graph.View[uint64](state.Data)
		if draw != nil {
			copy(graph.View[uint64](draw.Data), s)
		}
		s[1]++
		return nil
	}
}

// randomScale multiplies by random numbers. It is linear in x, so its gradient is the node itself on dy.
type randomScale struct {
	Op   string
	P    float64
	Salt uint32 // tells the nodes of a graph apart
}

func (o randomScale) Kind() string { return o.Op }
func (o randomScale) Operands() []graph.Operand {
	return []graph.Operand{{Name: "x"}, {Name: "draw"}}
}
func (o randomScale) Outputs() []string { return []string{"y"} }

func (o randomScale) Infer(in []*graph.Value) ([]graph.Spec, error) {
	if !plain(in[0].DType()) {
		return nil, graph.BadDType("x", in[0].DType(), floats)
	}
	if !(o.P >= 0 && o.P < 1) {
		return nil, graph.BadShape(map[string]string{"dropout": "p", "jitter": "eps"}[o.Op], o.P, "from 0 to below 1")
	}
	return []graph.Spec{in[0].Spec()}, checkDraw("draw", in[1])
}

func (o randomScale) Gradient(n *graph.Node, grads []*graph.Value) []*graph.Value {
	return []*graph.Value{graph.Apply(o, grads[0], n.In(1))[0], nil}
}

// InPlace allows x: elementwise.
func (o randomScale) InPlace(*graph.Node, int) int { return 0 }

func (o randomScale) Host(c *graph.Call) func() error {
	if isWide(c.In[0].DType) {
		return randomScaleHost[float64](o, c)
	}
	return randomScaleHost[float32](o, c)
}

func randomScaleHost[F float](o randomScale, c *graph.Call) func() error {
	return elementwise(c, func(w *graph.Worker, at, n int) {
		draw := graph.View[uint64](c.In[1].Data)
		y := target[F](w, 0, c.Out[0], at, n)
		x := load[F](w, 1, c.In[0], at, n)
		var four [4]uint32
		for i := range n {
			if e := uint64(at + i); i == 0 || e%4 == 0 {
				four = philox(draw[0], e/4, uint32(draw[1]), o.Salt^uint32(draw[1]>>32)*0x9E3779B9)
			}
			y[i] = x[i] * F(o.factor(four[(at+i)%4]))
		}
		store(c.Out[0], at, y)
	})
}

// factor turns 32 random bits into what an element is multiplied by, in float32 for every format.
func (o randomScale) factor(r uint32) float32 {
	u := float32(r>>8) * (1.0 / (1 << 24)) // [0,1)
	if o.Op == "jitter" {
		return 1 + float32(o.P)*(2*u-1)
	}
	if u < float32(o.P) {
		return 0
	}
	return 1 / (1 - float32(o.P))
}

// philox is Philox4x32-10: four random words from a key and a counter of 128 bits.
func philox(key, c01 uint64, c2, c3 uint32) [4]uint32 {
	const m0, m1, w0, w1 = 0xD2511F53, 0xCD9E8D57, 0x9E3779B9, 0xBB67AE85
	k0, k1 := uint32(key), uint32(key>>32)
	c0, c1 := uint32(c01), uint32(c01>>32)
	for range 10 {
		hi0, lo0 := bits.Mul32(m0, c0)
		hi1, lo1 := bits.Mul32(m1, c2)
		c0, c1, c2, c3 = hi1^c1^k0, lo1, hi0^c3^k1, lo0
		k0, k1 = k0+w0, k1+w1
	}
	return [4]uint32{c0, c1, c2, c3}
}
