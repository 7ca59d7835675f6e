package cudadev

import (
	"fmt"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// rates are an H200's, measured, scaled to the number of multiprocessors: the planner needs their ratios.
func rates(units int) graph.Rates {
	const h200Units = 132
	part := float64(units) / h200Units
	r := graph.Rates{Flops: 700e12 * part, Bytes: 4e12 * part, LaunchUS: 2.5, WaitUS: 1.5, Units: units}
	// What one of the units does in the time of a launch. Flops and bytes have one grain; that of the bytes makes
	// memory-bound nodes as wide as they are.
	r.Grain = r.Bytes / float64(units) * r.LaunchUS * 1e-6
	return r
}

// scratch asks the op for the bytes that its launches share.
func scratch(n *graph.Node, gpu graph.GPU) int64 {
	if s, ok := n.Op().(graph.CUDAScratcher); ok {
		return s.CUDAScratch(n, gpu)
	}
	return 0
}

// GPUs are the figures of devices to plan for where there is none: by compute capability times ten.
var GPUs = map[int]graph.GPU{
	80:  {Arch: 80, Units: 108, SharedBytes: 163 << 10, L2Bytes: 40 << 20},   // A100
	90:  {Arch: 90, Units: 132, SharedBytes: 227 << 10, L2Bytes: 60 << 20},   // H200
	100: {Arch: 100, Units: 148, SharedBytes: 227 << 10, L2Bytes: 126 << 20}, // B200
	120: {Arch: 120, Units: 188, SharedBytes: 99 << 10, L2Bytes: 128 << 20},  // RTX PRO 6000
}

// Plan is a device that compiles Programs and describes their launches, and cannot run them.
type Plan struct{ GPU graph.GPU }

// String implements graph.Device.
func (p Plan) String() string { return fmt.Sprintf("plan:sm_%d", p.GPU.Arch) }

// Check implements graph.Device.
func (p Plan) Check(op graph.Op) error { return check(op) }

// Rates implements graph.Device.
func (p Plan) Rates() graph.Rates { return rates(p.GPU.Units) }

// Scratch is what graph asks for the bytes of a node's launches.
func (p Plan) Scratch(n *graph.Node) int64 { return scratch(n, p.GPU) }

// Validate is how graph has a Program's launches checked when it is compiled.
func (p Plan) Validate(prog *graph.Program) error {
	_, err := p.Describe(prog)
	return err
}

// Alloc implements graph.Device.
func (p Plan) Alloc(int64, string) (graph.Memory, error) { return nil, p.cannot() }

// Load implements graph.Device.
func (p Plan) Load(*graph.Program, []*graph.Call) (graph.Runner, error) { return nil, p.cannot() }

func (p Plan) cannot() error {
	return fmt.Errorf("%w: %s only plans: open a device that runs", graph.ErrDevice, p)
}

// Describe returns the launches of a Program that was compiled for the Plan, with arguments that have no address.
func (p Plan) Describe(prog *graph.Program) ([]Step, error) {
	tensors := map[*graph.Value]*graph.Tensor{}
	var tensor func(v *graph.Value) *graph.Tensor
	tensor = func(v *graph.Value) *graph.Tensor {
		if v == nil {
			return nil
		}
		t := tensors[v]
		if t == nil {
			t = &graph.Tensor{DType: v.DType(), Shape: v.Shape()}
			tensors[v] = t
			t.Count = tensor(v.Rows())
		}
		return t
	}
	list := func(vs []*graph.Value) []*graph.Tensor {
		ts := make([]*graph.Tensor, len(vs))
		for i, v := range vs {
			ts[i] = tensor(v)
		}
		return ts
	}
	steps := prog.Steps()
	calls := make([]*graph.Call, len(steps))
	for i, s := range steps {
		calls[i] = &graph.Call{Name: s.Name, Op: s.Op, In: list(s.In), Out: list(s.Out)}
		if n := s.Scratch(); n > 0 {
			calls[i].Shared = &graph.Tensor{DType: dtype.Uint8, Shape: []int{int(n)}}
		}
	}
	return Describe(prog, calls, p.GPU)
}
