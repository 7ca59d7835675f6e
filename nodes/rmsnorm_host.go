package nodes

import (
	"math"

	"github.com/moegraph/moegraph/graph"
)

func (o rmsNorm) Host(c *graph.Call) func() error {
	if isWide(c.In[0].DType) {
		return rmsNormHost[float64](o, c)
	}
	return rmsNormHost[float32](o, c)
}

func rmsNormHost[F float](o rmsNorm, c *graph.Call) func() error {
	x, weight, y, rstd := c.In[0], c.In[1], c.Out[0], c.Out[1]
	width := x.Shape[1]
	loop := c.NewLoop(func(w *graph.Worker, lo, hi int) {
		wt := load[F](w, 0, weight, 0, width)
		for r := lo; r < hi; r++ {
			xs := load[F](w, 1, x, r*width, width)
			var squares float64
			for _, v := range xs {
				squares += float64(v) * float64(v)
			}
			rs := F(1 / math.Sqrt(squares/float64(max(1, width))+o.Eps))
			if rstd != nil {
				graph.View[F](rstd.Data)[r] = rs
			}
			if y == nil {
				continue
			}
			ys := target[F](w, 2, y, r*width, width)
			for j, v := range xs {
				ys[j] = v * rs * wt[j]
			}
			store(y, r*width, ys)
		}
	})
	return func() error {
		loop.Run(x.Rows(), rowGrain(width))
		return nil
	}
}

func (o rmsNormGrad) Host(c *graph.Call) func() error {
	if isWide(c.In[0].DType) {
		return rmsNormGradHost[float64](c)
	}
	return rmsNormGradHost[float32](c)
}

// rmsNormGradHost runs over blocks of rows, then over columns to add the blocks' sums in order.
func rmsNormGradHost[F float](c *graph.Call) func() error {
	x, dx, dweight := c.In[0], c.Out[0], c.Out[1]
	width := x.Shape[1]
	sums := graph.View[F](c.Scratch)
	blocks := c.NewLoop(func(w *graph.Worker, lo, hi int) {
		for b := lo; b < hi; b++ {
			sum := sums[b*width : (b+1)*width]
			clear(sum)
			for r := b * rmsNormBlock; r < min((b+1)*rmsNormBlock, x.Rows()); r++ {
				rmsNormGradRow(w, c, dx, sum, r)
			}
		}
	})
	columns := c.NewLoop(func(w *graph.Worker, lo, hi int) {
		acc := target[F](w, 0, dweight, lo, hi-lo)
		clear(acc)
		for b := range tiles(x.Rows(), rmsNormBlock) {
			for j, v := range sums[b*width+lo : b*width+hi] {
				acc[j] += v
			}
		}
		store(dweight, lo, acc)
	})
	return func() error {
		blocks.Run(tiles(x.Rows(), rmsNormBlock), 1)
		if dweight != nil {
			columns.Run(width, 256)
		}
		return nil
	}
}

// rmsNormGradRow computes row r of dx and adds its contribution to dweight to sum.
func rmsNormGradRow[F float](w *graph.Worker, c *graph.Call, dx *graph.Tensor, sum []F, r int) {
	width := len(sum)
	xs, wt := load[F](w, 1, c.In[0], r*width, width), load[F](w, 2, c.In[1], 0, width)
	rs, dys := graph.View[F](c.In[2].Data)[r], load[F](w, 3, c.In[3], r*width, width)
	var dot float64
	for j, v := range xs {
		n := v * rs
		sum[j] += dys[j] * n
		dot += float64(wt[j]*dys[j]) * float64(n)
	}
	if dx == nil {
		return
	}
	mean := F(dot / float64(max(1, width)))
	out := target[F](w, 4, dx, r*width, width)
	for j, v := range xs {
		out[j] = rs * (wt[j]*dys[j] - v*rs*mean)
	}
	store(dx, r*width, out)
}
