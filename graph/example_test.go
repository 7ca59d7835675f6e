package graph_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/nodes"
)

// A classifier is trained over an iterator of batches, which makes the next batch while a replay runs.
func ExampleTraining() {
	g := graph.New("classifier")
	vars := graph.NewVars(1)
	x := g.Input("x", dtype.Float32, graph.UpTo(64), 8)
	labels := g.Input("labels", dtype.Int32, graph.UpTo(64))
	y, _ := nodes.MoELayer(x, vars.Scope("moe"), nodes.MoE{Experts: 4, TopK: 2, Intermediate: 32})
	loss := g.Output("loss", nodes.CrossEntropy(nodes.Linear(y, vars.Param("head", 8, 8)), labels))
	nodes.AdamW(g.Gradients(loss, vars.All()...), nodes.AdamWConfig{Rate: 1e-2})
	exec := compiled(g, vars)
	defer exec.Close()

	type batch struct {
		rows  []float32
		class []int32
	}
	batches := func(yield func(batch, error) bool) {
		for step := range 40 {
			var b batch
			for i := range 64 {
				at := (i*7 + step) % 8 // the class is where the row has its 1
				row := make([]float32, 8)
				row[at] = 1
				b.rows, b.class = append(b.rows, row...), append(b.class, int32(at))
			}
			if !yield(b, nil) {
				return
			}
		}
	}
	steps, err := graph.Training[batch]{
		Exec:    exec,
		Batches: batches,
		Write: func(e *graph.Exec, b batch) error {
			return errors.Join(e.Write(x, b.rows), e.Write(labels, b.class))
		},
		Metrics: []*graph.Value{loss}, MetricsEvery: 10,
		OnMetrics: func(m graph.Metrics) error {
			fmt.Printf("step %d: loss %.1f\n", m.Step, m.Values[0])
			return nil
		},
	}.Run(context.Background())
	fmt.Println(steps, err)
	// Output:
	// step 10: loss 1.9
	// step 20: loss 1.3
	// step 30: loss 0.5
	// step 40: loss 0.1
	// 40 <nil>
}

func compiled(g *graph.Graph, vars *graph.Vars) *graph.Exec {
	dev, err := graph.Open("host")
	if err != nil {
		log.Fatal(err)
	}
	p, err := g.Compile(dev, graph.Options{})
	if err != nil {
		log.Fatal(err)
	}
	e, err := p.Exec(vars)
	if err != nil {
		log.Fatal(err)
	}
	return e
}
