package main

import (
	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/nodes"
)

// numBytes is the size of the vocabulary.
const numBytes = 256

// model is one use of the network: a graph over tokens and labels with a loss.
type model struct {
	g              *graph.Graph
	vars           *graph.Vars
	tokens, labels *graph.Value
	loss           *graph.Value // mean cross-entropy in nats
	aux            nodes.Aux
}

// newModel builds the forward pass for up to rows predictions. Without the layer its residual alone stands in
// its place.
func newModel(name string, cfg config, vars *graph.Vars, rows int, withLayer bool) *model {
	m := &model{g: graph.New(name), vars: vars}
	m.tokens = m.g.Input("tokens", dtype.Int32, graph.UpTo(rows), cfg.Context)
	m.labels = m.g.Input("labels", dtype.Int32, graph.UpTo(rows))
	h := cfg.context()
	norm := func(name string) *graph.Value { return vars.ParamOf(name, dtype.Float32, graph.Const(1), h) }
	x := nodes.Embedding(m.tokens, vars.ParamOf("embed", dtype.Float32, graph.Normal(1), numBytes, cfg.Embed))
	z := x
	if withLayer {
		var y *graph.Value
		y, m.aux = nodes.MoELayer(nodes.RMSNorm(x, norm("norm1")), vars.Scope("moe"), nodes.MoE{
			Experts: cfg.Experts, TopK: cfg.TopK, Intermediate: cfg.Intermediate, Alignment: cfg.Alignment, Compute: cfg.compute,
			Precision: cfg.precision, StochasticRounding: cfg.Stochastic && cfg.precision != nodes.NoBlockFormat, UnitFactors: cfg.Unit,
		})
		z = nodes.Add(x, y)
	}
	out := nodes.Cast(nodes.RMSNorm(z, norm("norm2")), cfg.compute)
	logits := nodes.Linear(out, vars.Param("head", numBytes, h), nodes.LinearConfig{DType: dtype.Float32})
	m.loss = m.g.Output("loss", nodes.CrossEntropy(logits, m.labels))
	return m
}

// train appends the backward pass and the optimizer: after it a replay is a whole step, or with
// micro-batches a part of one.
func (m *model) train(cfg config) {
	m.g.Output("counts", m.aux.Counts)
	total := m.loss.Plus(m.aux.Balance.Scale(cfg.Balance))
	grads := m.g.Gradients(total, m.vars.All()...)
	if cfg.Accumulate > 1 {
		grads = nodes.Accumulate(grads, cfg.Accumulate)
	}
	grads, norm := nodes.ClipGlobalNorm(grads, cfg.Clip)
	m.g.Output("grad_norm", norm)
	nodes.AdamW(grads, nodes.AdamWConfig{Rate: cfg.Rate, Schedule: nodes.Schedule{
		Kind: nodes.CosineDecay, Warmup: cfg.Warmup, Total: cfg.Steps, Min: cfg.Rate / 20,
	}})
}

// parameters counts the trainable numbers.
func (m *model) parameters() int {
	n := 0
	for _, v := range m.vars.All() {
		n += v.Elems()
	}
	return n
}
