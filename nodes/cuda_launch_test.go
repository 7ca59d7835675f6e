package nodes

import (
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/kernels"
)

// hostOnly are the operators that have host code and no kernel, and why.
var hostOnly = map[string]string{}

// TestCUDA_Operators walks the table of operators: whoever runs on the host runs on a GPU.
func TestCUDA_Operators(t *testing.T) {
	for _, info := range graph.Operators() {
		kind := info.Example.Kind()
		_, host := info.Example.(graph.HostOp)
		_, device := info.Example.(graph.CUDAOp)
		switch why := hostOnly[kind]; {
		case device && why != "":
			t.Errorf("%s has a kernel: take it out of hostOnly", kind)
		case host && !device && why == "":
			t.Errorf("%s has host code and describes no launches", kind)
		}
	}
}

// testGPUs are devices that launches are described for.
var testGPUs = []graph.GPU{
	{Arch: 90, Units: 132, SharedBytes: 227 << 10, L2Bytes: 50 << 20},
	{Arch: 86, Units: 28, SharedBytes: 99 << 10, L2Bytes: 3 << 20},
}

// kernelCall makes the view of a node that a device would: every Value its tensor, without memory.
func kernelCall(n *graph.Node, d graph.GPU) *graph.KernelCall {
	tensors := map[*graph.Value]*graph.Tensor{}
	var tensor func(v *graph.Value) *graph.Tensor
	tensor = func(v *graph.Value) *graph.Tensor {
		if v == nil {
			return nil
		}
		if tensors[v] == nil {
			tensors[v] = &graph.Tensor{DType: v.DType(), Shape: v.Shape()}
			tensors[v].Count = tensor(v.Rows())
		}
		return tensors[v]
	}
	c := &graph.KernelCall{Name: n.Name(), Op: n.Op(), GPU: d}
	for i := range n.Op().Operands() {
		c.In = append(c.In, tensor(n.In(i)))
	}
	for i := range n.Op().Outputs() {
		c.Out = append(c.Out, tensor(n.Out(i)))
	}
	if s, ok := n.Op().(graph.CUDAScratcher); ok {
		if size := s.CUDAScratch(n, d); size > 0 {
			c.Scratch = &graph.Tensor{DType: dtype.Uint8, Shape: []int{int(size)}}
		}
	}
	return c
}

// checkLaunch refuses what no device launches: grids and blocks past the limits, constants that cannot be compared,
// arguments that are not those of the kernel's source, addresses past the scratch.
func checkLaunch(c *graph.KernelCall, l graph.Launch) error {
	k := l.Kernel
	threads, limits := 1, [3]int{1<<31 - 1, 1<<16 - 1, 1<<16 - 1}
	for i := range 3 {
		threads *= l.Block[i]
		if l.Grid[i] < 1 || l.Grid[i] > limits[i] || l.Block[i] < 1 {
			return fmt.Errorf("%s: grid %v, block %v", k.Name, l.Grid, l.Block)
		}
	}
	switch {
	case threads > 1024:
		return fmt.Errorf("%s: got %d threads in a block, want at most 1024", k.Name, threads)
	case l.SharedBytes < 0 || l.SharedBytes > c.GPU.SharedBytes:
		return fmt.Errorf("%s: got %d bytes of shared memory, want at most %d", k.Name, l.SharedBytes, c.GPU.SharedBytes)
	case !reflect.TypeOf(k.Params).Comparable():
		return fmt.Errorf("%s: Params %T cannot be compared", k.Name, k.Params)
	}
	for i, a := range l.Args {
		p, ok := a.(graph.Pointer)
		if ok && p.T != nil && p.T == c.Scratch && p.Offset >= int64(c.Scratch.Shape[0]) {
			return fmt.Errorf("%s: argument %d at byte %d of %d bytes of scratch", k.Name, i, p.Offset, c.Scratch.Shape[0])
		}
	}
	if _, err := kernels.Stub(k, kernels.Embedded()); err != nil {
		return err
	}
	return checkArgs(l)
}

// checkArgs compares the arguments' types with the parameters that the kernel's source declares.
func checkArgs(l graph.Launch) error {
	text, _ := kernels.Embedded().Text(l.Kernel.Source)
	found := regexp.MustCompile(`(?s)__global__[^{;]*?\b` + l.Kernel.Name + `\(([^)]*)\)\s*\{`).FindStringSubmatch(text)
	if found == nil {
		return fmt.Errorf("%s: %s declares no such kernel", l.Kernel.Name, l.Kernel.Source)
	}
	params := strings.Split(found[1], ",")
	if len(params) != len(l.Args) {
		return fmt.Errorf("%s: got %d arguments, want the %d of %s", l.Kernel.Name, len(l.Args), len(params), l.Kernel.Source)
	}
	types := map[string]string{"int": "int32", "i64": "int64", "u32": "uint32", "u64": "uint64", "float": "float32", "double": "float64"}
	for i, p := range params {
		want := types[strings.Fields(strings.ReplaceAll(p, "const ", ""))[0]]
		if strings.Contains(p, "*") {
			want = "pointer"
		}
		got := fmt.Sprintf("%T", l.Args[i])
		switch l.Args[i].(type) {
		case graph.Pointer, graph.Count:
			got = "pointer"
		}
		if got != want {
			return fmt.Errorf("%s: argument %d: got %s, want %s for%q", l.Kernel.Name, i, got, want, p)
		}
	}
	return nil
}

// launchGraph builds what uses the operators outside the matrix products, in format dt: nodes of a training step, one
// by one, in sizes that cut vectors evenly and in others.
func launchGraph(t *testing.T, dt dtype.DType, tokens, hidden, experts, k int) *graph.Graph {
	t.Helper()
	g, vars := graph.New("launches"), graph.NewVars(1)
	ids := g.Input("ids", dtype.Int32, graph.UpTo(tokens), 2)
	labels := g.Input("labels", dtype.Int32, graph.UpTo(tokens))
	draw := NewRandom(vars, "random", 7).Draw(g)
	x := Embedding(ids, vars.Param("embed", 50257, hidden))
	x = Dropout(Cast(Columns(x, hidden, 2*hidden), dt), draw, 0.1)
	x = RMSNorm(x, vars.Param("norm", hidden))
	logits := Linear(Jitter(x, draw, 0.01), vars.Param("router", experts, hidden), LinearConfig{Bias: vars.Param("router_bias", experts)})
	logits = Cast(logits, dtype.Float32)
	idx, prob := TopK{Logits: logits, K: k, Order: Sigmoid}.Apply()
	r := Dispatch{TopKIdx: idx, Experts: experts}.Apply()
	balance, z := RouterLosses{Logits: logits, Counts: r.Assigned, K: k}.Apply()
	rowProb := r.PermuteProb(prob)
	y := r.Combine(r.Permute(x), prob, dt)
	y = Concat(y, x, y)
	sums := make([]*graph.Value, 11)
	for i := range sums {
		sums[i] = y
	}
	loss := Add(CrossEntropy(Add(sums...), labels), balance, z.Scale(0.1))
	loss = Add(loss, CrossEntropy(Concat(slotGatherOf(r, rowProb), Cast(prob, dtype.Float32)), labels))
	grads := g.Gradients(loss, vars.All()...)
	grads, norm := ClipGlobalNorm(Accumulate(grads, 3), 1)
	g.Output("norm", norm)
	g.Output("rows", withRows(withRows(x, nil), ids.Rows()))
	g.Output("step", AdamW(grads, AdamWConfig{Schedule: Schedule{Kind: CosineDecay, Total: 9}}))
	g.Output("sgd", SGD(grads, SGDConfig{Momentum: 0.9}))
	must(t, g.Err())
	return g
}

// quantGraph is every option of the block-scaled operators outside the matrix products.
func quantGraph(t *testing.T, dt dtype.DType, rows, cols int) *graph.Graph {
	t.Helper()
	g := graph.New("quantized")
	x, stack := g.Input("x", dt, rows, cols), g.Input("w", dt, 3, cols, rows)
	offsets, counts := g.Input("offsets", dtype.Int32, 5), g.Input("counts", dtype.Int32, 5)
	draw := NewRandom(graph.NewVars(1), "random", 7).Draw(g)
	norm, scale := g.Input("norm", dtype.Float32, 1), g.Input("scale", dtype.Float32, 3)
	for _, f := range allBlockFormats {
		Quantize{X: x, Format: f}.Apply()
		q := Quantize{X: x, PaddedOffsets: offsets, Counts: counts, NormConst: norm, Format: f, Axis: AlongBoth, DiscreteColSF: true, TransposeCol: true, Draw: draw}.Apply()
		Dequantize{X: q.Row, SF: q.RowSF, Format: f, DType: dt}.Apply()
		q = Quantize{X: stack, Format: f, Axis: AlongBoth, UnitFactors: true}.Apply()
		Dequantize{X: q.Col, SF: q.ColSF, Format: f, Axis: AlongCol}.Apply()
		Decode(q.Row)
	}
	for _, each := range []bool{false, true} {
		Quantize{X: x, PaddedOffsets: offsets, Format: NVFP4, Axis: AlongCol, AutoNorm: true, PerExpert: each}.Apply()
	}
	Quantize{X: stack, Format: NVFP4, GlobalScale: scale}.Apply()
	Encode(Cast(x, dtype.Float32), dtype.E2M1)
	must(t, g.Err())
	return g
}

func slotGatherOf(r Routing, x *graph.Value) *graph.Value {
	return graph.Apply(slotGather{}, x, r.SlotMap, r.RowMap, r.PaddedOffsets)[0]
}

// TestCUDA_Launches describes the launches of every node, with all outputs and with each alone.
func TestCUDA_Launches(t *testing.T) {
	seen := map[string]bool{}
	for _, size := range [][4]int{{16384, 2048, 128, 8}, {1, 1, 1, 1}, {1 << 20, 96, 1024, 2}, {300, 7168, 256, 256}, {7, 9001, 3, 2}, {64, 40000, 1024, 1024}} {
		for _, dt := range []dtype.DType{dtype.BFloat16, dtype.Float32} {
			all := launchGraph(t, dt, size[0], size[1], size[2], size[3]).Nodes()
			if size[0]%256 == 0 {
				all = append(all, quantGraph(t, dt, size[0], size[1]).Nodes()...)
			}
			for _, n := range all {
				op, ok := n.Op().(graph.CUDAOp)
				if !ok || n.Op().Kind() == "matmul" {
					continue
				}
				seen[n.Op().Kind()] = true
				for _, d := range testGPUs {
					checkNode(t, op, kernelCall(n, d))
					for i := range n.Op().Outputs() {
						c := kernelCall(n, d)
						for j := range c.Out {
							if j != i {
								c.Out[j] = nil
							}
						}
						checkNode(t, op, c)
					}
				}
			}
		}
	}
	for _, kind := range strings.Fields(`accumulate adamw cast col_sum combine concat counter cross_entropy cross_entropy_grad cycle decode dequantize dispatch
		dropout embedding embedding_grad encode fill global_norm jitter pad_cols permute permute_prob quantize random_next recount rmsnorm rmsnorm_grad
		router_losses router_losses_grad scale scale_by schedule sgd slice_cols slot_dot slot_gather sum topk topk_grad`) {
		if !seen[kind] {
			t.Errorf("no node %s in the graphs", kind)
		}
	}
}

func checkNode(t *testing.T, op graph.CUDAOp, c *graph.KernelCall) {
	t.Helper()
	launches, err := op.CUDA(c)
	if err == nil && len(launches) == 0 {
		err = fmt.Errorf("no launch")
	}
	for _, l := range launches {
		if err == nil {
			err = checkLaunch(c, l)
		}
	}
	if err != nil {
		t.Errorf("%s %q, units %d: %v", op.Kind(), c.Name, c.GPU.Units, err)
	}
}

// TestCUDA_DispatchInThree is the bound on dispatch: at most three launches whatever the sizes.
func TestCUDA_DispatchInThree(t *testing.T) {
	for _, size := range [][3]int{{1, 1, 1}, {1 << 20, 8, 1024}, {1 << 10, 1024, 1024}} {
		g := graph.New("g")
		Dispatch{TopKIdx: g.Input("ids", dtype.Int32, graph.UpTo(size[0]), size[1]), Experts: size[2]}.Apply()
		must(t, g.Err())
		n := g.Nodes()[0]
		launches, err := n.Op().(graph.CUDAOp).CUDA(kernelCall(n, testGPUs[0]))
		must(t, err)
		if len(launches) > 3 {
			t.Errorf("%v: got %d launches, want at most 3", size, len(launches))
		}
	}
}

// TestCUDA_RefusesFloat64 shows that float64 stays on the host.
func TestCUDA_RefusesFloat64(t *testing.T) {
	g := graph.New("g")
	x := g.Input("x", dtype.Float64, 4, 8)
	Scale(Add(x, x), 2)
	must(t, g.Err())
	for _, n := range g.Nodes() {
		if _, err := n.Op().(graph.CUDAOp).CUDA(kernelCall(n, testGPUs[0])); err == nil || !strings.Contains(err.Error(), "f64") {
			t.Errorf("%s of f64: got error %v, want one that names f64", n.Op().Kind(), err)
		}
	}
}

// TestCUDA_RefusesTiles shows that Quantize counts its tiles in int32.
func TestCUDA_RefusesTiles(t *testing.T) {
	for rows, ok := range map[int]bool{1<<25 - quantSide: true, 1 << 25: false} {
		g := graph.New("g")
		Quantize{X: g.Input("x", dtype.BFloat16, rows, 1<<20), Format: MXFP8}.Apply()
		must(t, g.Err())
		n := g.Nodes()[0]
		_, err := n.Op().(graph.CUDAOp).CUDA(kernelCall(n, testGPUs[0]))
		if ok != (err == nil) || !ok && !strings.Contains(err.Error(), "x: got") {
			t.Errorf("%d rows of 2^20: got error %v, want one that names x: %t", rows, err, !ok)
		}
	}
}

// TestCUDA_CheckLaunch shows that the check of launches finds what it should.
func TestCUDA_CheckLaunch(t *testing.T) {
	g := graph.New("g")
	Scale(g.Input("x", dtype.Float32, 4, 8), 2)
	n := g.Nodes()[0]
	c := kernelCall(n, testGPUs[0])
	for what, spoil := range map[string]func(l *graph.Launch){
		"grid":      func(l *graph.Launch) { l.Grid[1] = 0 },
		"block":     func(l *graph.Launch) { l.Block[0] = 1025 },
		"shared":    func(l *graph.Launch) { l.SharedBytes = 1 << 20 },
		"params":    func(l *graph.Launch) { l.Kernel.Params = struct{ X []int }{} },
		"source":    func(l *graph.Launch) { l.Kernel.Source = "none.cuh" },
		"name":      func(l *graph.Launch) { l.Kernel.Name = "scales" },
		"arguments": func(l *graph.Launch) { l.Args = l.Args[1:] },
		"types":     func(l *graph.Launch) { l.Args[len(l.Args)-1] = 2.0 },
	} {
		launches, err := n.Op().(graph.CUDAOp).CUDA(c)
		must(t, err)
		must(t, checkLaunch(c, launches[0]))
		spoil(&launches[0])
		if checkLaunch(c, launches[0]) == nil {
			t.Errorf("a wrong %s is not found", what)
		}
	}
}
