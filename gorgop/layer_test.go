package gorgop

import (
	"fmt"
	"math"
	"testing"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// grads returns the gradients of a model's learnables, those of the layer in the order and layout of the parameters:
// router, fc1, fc2.
func (m *model) grads(t testing.TB) map[string][]float64 {
	t.Helper()
	get := func(n *G.Node) []float64 {
		v, err := n.Grad()
		must(t, err)
		return floats(t, v)
	}
	all := map[string][]float64{"w0": get(m.w0), "w1": get(m.w1)}
	if m.mask == nil {
		for i, n := range m.layer {
			all[[]string{"router", "fc1", "fc2"}[i]] = get(n)
		}
		return all
	}
	z := m.z
	all["router"] = transpose(get(m.layer[0]), z.hidden, z.experts)
	for i := range z.experts {
		w := m.layer[1+3*i:]
		all["fc1"] = append(all["fc1"], transpose(get(w[0]), z.hidden, z.inner)...)
		all["fc1"] = append(all["fc1"], transpose(get(w[1]), z.hidden, z.inner)...)
		all["fc2"] = append(all["fc2"], transpose(get(w[2]), z.inner, z.hidden)...)
	}
	return all
}

// apart is the largest difference of two slices beside the largest magnitude of the second.
func apart(a, b []float64) float64 {
	if len(a) != len(b) {
		return math.Inf(1)
	}
	var diff, most float64
	for i := range a {
		diff, most = max(diff, math.Abs(a[i]-b[i])), max(most, math.Abs(b[i]))
	}
	return diff / max(most, 1e-30)
}

func vmName(lisp bool) string {
	if lisp {
		return "LispMachine"
	}
	return "TapeMachine"
}

// TestLayer_Gradients: cost and every gradient are those of gorgonia's own ops, in both machines and types.
func TestLayer_Gradients(t *testing.T) {
	for _, dt := range []tensor.Dtype{tensor.Float32, tensor.Float64} {
		for _, lisp := range []bool{false, true} {
			t.Run(fmt.Sprint(vmName(lisp), "/", dt), func(t *testing.T) {
				l, vars := newLayer(t, small, Config{})
				m, ref := withLayer(t, l, small, dt, small.rows), reference(t, vars, small, dt)
				a, b := newMachine(t, m, lisp, nil), newMachine(t, ref, lisp, nil)
				m.batch(t, 0)
				ref.batch(t, 0)
				cost, want := a.run(t), b.run(t)
				if d := math.Abs(cost-want) / want; !(d < 1e-6) {
					t.Errorf("cost: got %v, want %v", cost, want)
				}
				got, wants := m.grads(t), ref.grads(t)
				for name, w := range wants {
					d := apart(got[name], w)
					t.Logf("%s: %.2g apart", name, d)
					if !(d < 1e-5) {
						t.Errorf("gradient of %s: %g apart", name, d)
					}
				}
				if f, b := l.Replays(); f != 1 || b != 1 {
					t.Errorf("got %d forward and %d backward replays, want 1 of each", f, b)
				}
			})
		}
	}
}
