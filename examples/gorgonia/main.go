// A gorgonia program with an MoE layer between its own ops.
package main

import (
	"fmt"
	"log"
	"math"
	"math/rand/v2"

	"github.com/moegraph/moegraph/gorgop"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/nodes"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

const rows, in, hidden, out = 64, 4, 32, 2

func main() {
	dev, err := graph.Open("host") // or, built with -tags gpu, "cuda:0"
	check(err)
	vars := graph.NewVars(1)
	moe := nodes.MoE{Experts: 8, TopK: 2, Hidden: hidden, Intermediate: 64}
	layer, err := gorgop.MoE(dev, vars.Scope("moe"), 256, moe, gorgop.Config{Balance: 0.01}) // up to 256 rows
	check(err)
	defer layer.Close()

	g := G.NewGraph()
	x := G.NewMatrix(g, tensor.Float32, G.WithShape(rows, in), G.WithName("x"))
	want := G.NewMatrix(g, tensor.Float32, G.WithShape(rows, out), G.WithName("want"))
	w0 := G.NewMatrix(g, tensor.Float32, G.WithName("w0"), G.WithShape(in, hidden), G.WithValue(normal(in, hidden)))
	w1 := G.NewMatrix(g, tensor.Float32, G.WithName("w1"), G.WithShape(hidden, out), G.WithValue(normal(hidden, out)))
	weights, err := layer.Weights(g, tensor.Float32) // gorgonia's nodes: its solver trains them
	check(err)

	h := G.Must(G.Tanh(G.Must(G.Mul(x, w0))))
	y, err := layer.Apply(append(G.Nodes{h}, weights...)...)
	check(err)
	got := G.Must(G.Mul(G.Must(G.Add(h, y)), w1))
	loss := G.Must(G.Mean(G.Must(G.Square(G.Must(G.Sub(got, want))))))
	learn := append(G.Nodes{w0, w1}, weights...)
	_, err = G.Grad(loss, learn...)
	check(err)

	vm := G.NewTapeMachine(g, G.BindDualValues(learn...))
	defer vm.Close()
	solver := G.NewAdamSolver(G.WithLearnRate(0.01))
	for step := range 61 {
		a, b := data(step)
		check(G.Let(x, a))
		check(G.Let(want, b))
		check(vm.RunAll())
		check(solver.Step(G.NodesToValueGrads(learn)))
		if step%20 == 0 {
			fmt.Printf("step %d: loss %.2f\n", step, loss.Value().Data())
		}
		vm.Reset()
	}
	check(layer.Store(weights)) // back to vars, from where vars.Save writes a checkpoint
}

// data are points and what is to be learned of them.
func data(step int) (x, want *tensor.Dense) {
	r := rand.New(rand.NewPCG(uint64(step), 1))
	var xs, ys []float32
	for range rows {
		a, b, c, d := r.Float64()*4-2, r.Float64()*4-2, r.Float64(), r.Float64()
		xs = append(xs, float32(a), float32(b), float32(c), float32(d))
		ys = append(ys, float32(2*math.Sin(a)*b), float32(math.Abs(a)+c*d))
	}
	return tensor.New(tensor.WithShape(rows, in), tensor.WithBacking(xs)),
		tensor.New(tensor.WithShape(rows, out), tensor.WithBacking(ys))
}

func normal(rows, cols int) *tensor.Dense {
	r := rand.New(rand.NewPCG(uint64(rows), uint64(cols)))
	v := make([]float32, rows*cols)
	for i := range v {
		v[i] = float32(r.NormFloat64() / math.Sqrt(float64(rows)))
	}
	return tensor.New(tensor.WithShape(rows, cols), tensor.WithBacking(v))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
