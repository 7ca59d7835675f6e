package cudadev

import (
	"fmt"
	"math"

	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/cuda"
)

// Step is what one step of a Program launches, in order.
type Step struct {
	*graph.Step
	Launches []graph.Launch
}

// Limits of a launch on every device of compute capability 8.0 and later.
const (
	maxThreads = 1024
	maxBlockZ  = 64
	maxGridYZ  = 65535
	maxCluster = 8 // that every device with clusters has
)

// Describe asks each step for its launches and checks them.
func Describe(p *graph.Program, calls []*graph.Call, gpu graph.GPU) ([]Step, error) {
	steps := p.Steps()
	out := make([]Step, len(steps))
	for i, s := range steps {
		op, ok := s.Op.(graph.CUDAOp)
		if !ok {
			return nil, fmt.Errorf("%s %q: %w", s.Op.Kind(), s.Name, check(s.Op))
		}
		c := calls[i]
		launches, err := op.CUDA(&graph.KernelCall{Name: c.Name, Op: c.Op, In: c.In, Out: c.Out, Scratch: c.Shared, GPU: gpu})
		if err == nil && len(launches) == 0 {
			err = fmt.Errorf("internal: it launches no kernel")
		}
		for k := range launches {
			if err == nil {
				err = checkLaunch(&launches[k], gpu)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("%s %q: %w", s.Op.Kind(), s.Name, err)
		}
		out[i] = Step{s, launches}
	}
	return out, nil
}

// check says whether there is device code for the op.
func check(op graph.Op) error {
	if _, ok := op.(graph.CUDAOp); !ok {
		return graph.Unsupported("device", "cuda", "a device that has code for operator %s", op.Kind())
	}
	return nil
}

func checkLaunch(l *graph.Launch, gpu graph.GPU) error {
	bad := func(what string, got any, want string, args ...any) error {
		return fmt.Errorf("kernel %q: %w", l.Kernel.Name, graph.BadShape(what, got, want, args...))
	}
	g, b := l.Grid, l.Block
	switch {
	case l.Kernel.Name == "":
		return bad("name", "none", "the name of its extern \"C\" function")
	case g[0] < 1 || g[1] < 1 || g[2] < 1 || g[0] > math.MaxInt32 || g[1] > maxGridYZ || g[2] > maxGridYZ:
		return bad("grid", fmt.Sprint(g), "1 to 2^31-1, 65535, 65535")
	case b[0] < 1 || b[1] < 1 || b[2] < 1 || b[2] > maxBlockZ || b[0]*b[1]*b[2] > maxThreads:
		return bad("block", fmt.Sprint(b), "1 to %d threads", maxThreads)
	case l.SharedBytes < 0 || l.SharedBytes > gpu.SharedBytes:
		return bad("smem", l.SharedBytes, "at most the %d bytes of the device", gpu.SharedBytes)
	case l.Cluster < 0 || l.Cluster > maxCluster || l.Cluster > 0 && g[0]%l.Cluster != 0:
		return bad("cluster", l.Cluster, "a divisor of grid %d of at most %d", g[0], maxCluster)
	case l.Cluster > 1 && gpu.Arch < 90:
		return bad("cluster", l.Cluster, "none below compute capability 9.0")
	}
	var buf cuda.ArgBuffer
	if err := pack(&buf, l.Args, func(*graph.Tensor) (uint64, error) { return 0, nil }); err != nil {
		return fmt.Errorf("kernel %q: %w", l.Kernel.Name, err)
	}
	return nil
}
