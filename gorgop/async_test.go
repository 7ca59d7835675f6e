package gorgop

import (
	"testing"

	"github.com/moegraph/moegraph/internal/asyncdev"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// everywhere are the tests that hold on every device.
var everywhere = []struct {
	name string
	test func(*testing.T)
}{
	{"Gradients", TestLayer_Gradients},
	{"Trains", TestLayer_Trains},
	{"ProgramWeights", TestLayer_ProgramWeights},
	{"Handle", TestLayer_Handle},
	{"BFloat16", TestLayer_BFloat16},
	{"TwiceInOneGraph", TestLayer_TwiceInOneGraph},
	{"TwiceWithProgramWeights", TestLayer_TwiceWithProgramWeights},
	{"TwoLayersTwoGraphs", TestLayer_TwoLayersTwoGraphs},
	{"EvalMode", TestLayer_EvalMode},
	{"Transposed", TestLayer_Transposed},
	{"Dropout", TestLayer_Dropout},
	{"Closed", TestLayer_Closed},
	{"MemoryConstant", TestLayer_MemoryConstant},
}

// TestAsync: what holds on the host holds on a device whose memory Go cannot reach and whose replays are only issued.
func TestAsync(t *testing.T) {
	device = "async"
	defer func() { device = "host" }()
	for _, c := range everywhere {
		if c.name == "MemoryConstant" || c.name == "Trains" && testing.Short() {
			continue // the pauses take their time
		}
		t.Run(c.name, c.test)
	}
}

// TestAsync_OneReplay: a step is one replay of each half, as the device counts them, and the inputs keep their place:
// a GPU would not capture anew. The gradients of a backward Do are on their way before anybody asks for one.
func TestAsync_OneReplay(t *testing.T) {
	device = "async"
	defer func() { device = "host" }()
	for _, lisp := range []bool{false, true} {
		t.Run(vmName(lisp), func(t *testing.T) {
			l, _ := newLayer(t, small, Config{})
			m := withLayer(t, l, small, tensor.Float32, small.rows)
			k := newMachine(t, m, lisp, G.NewVanillaSolver(G.WithLearnRate(0.01)))
			k.step(t)
			s := m.y.Op().(awaitOp).s
			fwd, back := s.fwd.Runner().(*asyncdev.Runner), s.back.Runner().(*asyncdev.Runner)
			rebinds := fwd.Rebinds + back.Rebinds
			for range 9 {
				k.step(t)
			}
			if fwd.Replays != 10 || back.Replays != 10 {
				t.Errorf("got %d forward and %d backward replays in 10 steps", fwd.Replays, back.Replays)
			}
			if n := fwd.Rebinds + back.Rebinds; n != rebinds {
				t.Errorf("%d addresses changed after the first step", n-rebinds)
			}
			must(t, s.forward(values(m)))
			must(t, s.backward(m.y.Value()))
			for i, r := range s.grads {
				if r.fetched == nil {
					t.Errorf("the copy of gradient %d has not begun", i)
				}
			}
		})
	}
}

// values are those of the layer's inputs.
func values(m *model) []G.Value {
	vals := []G.Value{m.h.Value()}
	for _, n := range m.layer {
		vals = append(vals, n.Value())
	}
	return vals
}
