package nodes

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// TestLoadMoE_Reference compares small layers of every architecture, in every layout, whole and in shards, with
// a plain computation on the checkpoint's own tensors.
func TestLoadMoE_Reference(t *testing.T) {
	const tokens = 11
	names := slices.Collect(maps.Keys(loadModels))
	for _, name := range append(names, "deepseek_v3 with groups") {
		t.Run(name, func(t *testing.T) {
			model, _, groups := strings.Cut(name, " ")
			c := newLoadCase(model)
			if groups {
				c.config["n_group"], c.config["topk_group"] = 3, 2
			}
			r := rand.New(rand.NewPCG(3, 4))
			x, dy := loadNormals(r, tokens*loadH), loadNormals(r, tokens*loadH)
			want := c.forward(x)
			for i, layout := range []Layout{LayoutInterleaved32, LayoutConcat, LayoutPairs} {
				cfg := c.write(t, "F32", 1+2*i)
				cfg.Layout = layout
				run := newLoadRun(t, cfg, x, dy)
				loadNear(t, "y", run.read(t, run.y), want, 1e-6)
				grads := run.gradients(t)
				c.checkSlopes(t, r, x, dy, run.read(t, run.dx), grads)
			}
		})
	}
}

func loadNormals(r *rand.Rand, n int) []float64 {
	v := make([]float64, n)
	for i := range v {
		v[i] = float64(float32(r.NormFloat64()))
	}
	return v
}

// checkSlopes compares gradients with the slope of the loss sum(dy*y) in a random direction, for x and every tensor.
func (c *loadCase) checkSlopes(t *testing.T, r *rand.Rand, x, dy, dx []float64, grads map[string][]float64) {
	t.Helper()
	check := func(what string, at, grad []float64) {
		t.Helper()
		const step = 1e-6
		dir, old := loadNormals(r, len(at)), slices.Clone(at)
		loss := func(h float64) (sum float64) {
			for i := range at {
				at[i] = old[i] + h*dir[i]
			}
			for i, y := range c.forward(x) {
				sum += y * dy[i]
			}
			return sum
		}
		want := (loss(step) - loss(-step)) / (2 * step)
		copy(at, old)
		if len(grad) != len(at) {
			t.Errorf("gradient of %s: got %d elements, want %d", what, len(grad), len(at))
			return
		}
		var got, norm float64
		for i := range grad {
			got += grad[i] * dir[i]
			norm += grad[i] * grad[i]
		}
		if math.Abs(got-want) > 1e-4*(math.Sqrt(norm)+1e-3) || norm == 0 {
			t.Errorf("gradient of %s: got slope %g, want %g (norm %g)", what, got, want, math.Sqrt(norm))
		}
	}
	check("x", x, dx)
	for _, name := range slices.Sorted(maps.Keys(c.values)) {
		grad, ok := grads[c.prefix+name]
		if name == "gate.e_score_correction_bias" {
			if ok {
				t.Errorf("%s: got a gradient, want none", name)
			}
			continue
		}
		check(name, c.values[name], grad)
	}
}

// forward computes the layer in float64 from the checkpoint's tensors, as the models' code does.
func (c *loadCase) forward(x []float64) []float64 {
	y := make([]float64, len(x))
	for t := range len(x) / loadH {
		in, out := x[t*loadH:(t+1)*loadH], y[t*loadH:(t+1)*loadH]
		idx, prob := c.route(in)
		for s, e := range idx {
			for i, v := range c.expert(e, in) {
				out[i] += prob[s] * v
			}
		}
		if c.config["model_type"] == "deepseek_v3" {
			for i, v := range c.mlp("shared_experts.", "gate_proj", "up_proj", "down_proj", in) {
				out[i] += v
			}
		}
	}
	return y
}

func (c *loadCase) route(x []float64) (idx []int, prob []float64) {
	model := c.config["model_type"]
	logits := c.times("gate.weight", x)
	if model == "gpt_oss" {
		logits = c.times("router.weight", x)
		for e, b := range c.values["router.bias"] {
			logits[e] += b
		}
	}
	score, sel := make([]float64, loadE), make([]float64, loadE)
	var total float64
	for e, l := range logits {
		score[e] = math.Exp(l)
		total += score[e]
	}
	for e, l := range logits {
		score[e] /= total
		sel[e] = score[e]
		if model == "deepseek_v3" {
			score[e] = 1 / (1 + math.Exp(-l))
			sel[e] = score[e] + c.values["gate.e_score_correction_bias"][e]
		}
	}
	c.limit(sel)
	for e := range loadE {
		idx = append(idx, e)
	}
	slices.SortStableFunc(idx, func(a, b int) int { return int(math.Copysign(1, sel[b]-sel[a])) })
	idx = idx[:loadK]
	sum := 0.0
	for _, e := range idx {
		prob = append(prob, score[e])
		sum += score[e]
	}
	for s := range prob {
		if model == "gpt_oss" || model == "mixtral" || c.config["norm_topk_prob"] == true {
			prob[s] /= sum
		}
		if model == "deepseek_v3" {
			prob[s] *= c.config["routed_scaling_factor"].(float64)
		}
	}
	return idx, prob
}

// limit sets the selecting values outside the best groups to 0, where the model has groups of experts.
func (c *loadCase) limit(sel []float64) {
	groups, _ := c.config["n_group"].(int)
	if groups < 2 {
		return
	}
	size := len(sel) / groups
	sums, order := make([]float64, groups), make([]int, groups)
	for g := range groups {
		two := slices.Sorted(slices.Values(sel[g*size : (g+1)*size]))
		sums[g], order[g] = two[size-1]+two[size-2], g
	}
	slices.SortStableFunc(order, func(a, b int) int { return int(math.Copysign(1, sums[b]-sums[a])) })
	for _, g := range order[c.config["topk_group"].(int):] {
		clear(sel[g*size : (g+1)*size])
	}
}

// times is a matrix-vector product with a tensor (rows, len(x)).
func (c *loadCase) times(name string, x []float64) []float64 {
	w := c.values[name]
	y := make([]float64, len(w)/len(x))
	for r := range y {
		for i, v := range x {
			y[r] += w[r*len(x)+i] * v
		}
	}
	return y
}

func (c *loadCase) mlp(of, gate, up, down string, x []float64) []float64 {
	g, u := c.times(of+gate+".weight", x), c.times(of+up+".weight", x)
	for i := range g {
		g[i] *= u[i] / (1 + math.Exp(-g[i]))
	}
	return c.times(of+down+".weight", g)
}

func (c *loadCase) expert(e int, x []float64) []float64 {
	of := fmt.Sprintf("experts.%d.", e)
	switch c.config["model_type"] {
	case "mixtral":
		return c.mlp(of, "w1", "w3", "w2", x)
	case "gpt_oss":
	default:
		return c.mlp(of, "gate_proj", "up_proj", "down_proj", x)
	}
	limit := c.config["swiglu_limit"].(float64)
	wide := 2 * loadI
	h := make([]float64, wide) // gate and up alternate
	for j := range h {
		h[j] = c.values["experts.gate_up_proj_bias"][e*wide+j]
		for i, v := range x {
			h[j] += v * c.values["experts.gate_up_proj"][(e*loadH+i)*wide+j]
		}
	}
	y := slices.Clone(c.values["experts.down_proj_bias"][e*loadH : (e+1)*loadH])
	for j := range loadI {
		gate := min(h[2*j], limit)
		up := min(max(h[2*j+1], -limit), limit)
		act := (up + 1) * gate / (1 + math.Exp(-1.702*gate))
		for i := range y {
			y[i] += act * c.values["experts.down_proj"][(e*loadI+j)*loadH+i]
		}
	}
	return y
}
