package nodes

import (
	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

// codecParams are the constants of codec.cuh.
type codecParams struct{ CodeType string }

// codeType returns the C++ type of a format of codes (kernels/cuda/formats.cuh, numeric.cuh).
func codeType(dt dtype.DType) string {
	switch dt {
	case dtype.E4M3, dtype.E5M2, dtype.E2M1, dtype.E8M0:
		return dt.String()
	}
	return elemType(dt)
}

func (o encode) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	return []graph.Launch{codecLaunch(c, "encode", o.To)}, nil
}

func (o decode) CUDA(c *graph.KernelCall) ([]graph.Launch, error) {
	return []graph.Launch{codecLaunch(c, "decode", c.In[0].DType)}, nil
}

func codecLaunch(c *graph.KernelCall, name string, codes dtype.DType) graph.Launch {
	x, y := c.In[0], c.Out[0]
	return elementwiseLaunch(c, name, "codec.cuh", codecParams{codeType(codes)}, y, nil, ptr(y), ptr(x), counted(y), int64(y.Width()))
}
