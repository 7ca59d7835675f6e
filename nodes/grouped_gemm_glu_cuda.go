package nodes

import "github.com/moegraph/moegraph/graph"

// CUDAScratch is the addresses of discrete weights.
func (o groupedGEMMGLU) CUDAScratch(*graph.Node, graph.GPU) int64 { return o.Weights.pointerScratch() }

func (o groupedGEMMGLU) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	if err := refuseWide(c); err != nil {
		return nil, err
	}
	n := 0
	switch d, cc := c.Out[0], c.Out[1]; {
	case cc != nil:
		n = cc.Shape[1]
	case d != nil:
		n = 2 * d.Shape[1]
	}
	if o.Weights.Only != NoBlockFormat {
		return onlyCall(c, o.Weights, o.Align, o.Launch, n).glu(o.Layout, o.Act, c.Out[0], c.Out[1])
	}
	p := struct {
		rowProduct
		plainEpilogue
		Layout string
		Act    actParams
	}{plainEpilogue: plainEpilogueOf(c), Layout: o.Layout.cuda(), Act: o.Act.cuda()}
	if o.Layout == LayoutConcat {
		p.UpRow = n / 2
	}
	return gemmLaunches(c, "grouped_gemm_glu", o.Launch, o.Weights, n, &p.rowProduct, func() any { return p })
}
