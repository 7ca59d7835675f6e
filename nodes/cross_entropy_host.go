package nodes

import (
	"math"

	"github.com/moegraph/moegraph/graph"
)

func (o crossEntropy) Host(c *graph.Call) func() error {
	if isWide(c.In[0].DType) {
		return crossEntropyHost[float64](o, c)
	}
	return crossEntropyHost[float32](o, c)
}

func crossEntropyHost[F float](o crossEntropy, c *graph.Call) func() error {
	logits, labels, loss, stats := c.In[0], c.In[1], c.Out[0], c.Out[1]
	vocab := logits.Shape[1]
	rowLoss := graph.View[float64](c.Scratch)
	loop := c.NewLoop(func(w *graph.Worker, lo, hi int) {
		for r := lo; r < hi; r++ {
			x := load[F](w, 0, logits, r*vocab, vocab)
			top, logSum := logSumExp(x)
			if stats != nil {
				s := graph.View[F](stats.Data)[2*r : 2*r+2]
				s[0], s[1] = F(top), F(logSum)
			}
			rowLoss[r] = labelLoss(x, top, logSum, int(ints(labels)[r]), o.Ignore)
		}
	})
	return func() error {
		rows := logits.Rows()
		used := ints(labels)[:rows]
		loop.Run(rows, rowGrain(vocab))
		if loss == nil {
			return nil
		}
		var sum float64
		for _, l := range rowLoss[:rows] {
			sum += l
		}
		graph.View[F](loss.Data)[0] = F(sum / float64(counting(used, o.Ignore)))
		return nil
	}
}

// logSumExp returns the largest of x and log(sum(exp(x - top))).
func logSumExp[F float](x []F) (top, logSum float64) {
	top = math.Inf(-1)
	for _, v := range x {
		top = max(top, float64(v))
	}
	var sum float64
	for _, v := range x {
		sum += expIn[F](float64(v) - top)
	}
	return top, math.Log(sum)
}

// labelLoss is the loss of one row: 0 where its label is ignored, NaN where it is out of range.
func labelLoss[F float](x []F, top, logSum float64, label, ignore int) float64 {
	switch {
	case label == ignore:
		return 0
	case label < 0 || label >= len(x):
		return math.NaN()
	}
	return top - float64(x[label]) + logSum
}

// counting returns how many labels are not ignored.
func counting(labels []int32, ignore int) int {
	n := 0
	for _, id := range labels {
		if int(id) != ignore {
			n++
		}
	}
	return n
}

func (o crossEntropyGrad) Host(c *graph.Call) func() error {
	if isWide(c.In[0].DType) {
		return crossEntropyGradHost[float64](o, c)
	}
	return crossEntropyGradHost[float32](o, c)
}

func crossEntropyGradHost[F float](o crossEntropyGrad, c *graph.Call) func() error {
	logits, labels, stats, up, dlogits := c.In[0], c.In[1], c.In[2], c.In[3], c.Out[0]
	vocab := logits.Shape[1]
	var factor float64 // upstream / n, set before the loop runs
	loop := c.NewLoop(func(w *graph.Worker, lo, hi int) {
		for r := lo; r < hi; r++ {
			label := int(ints(labels)[r])
			if label == o.Ignore {
				zero(dlogits, r*vocab, vocab)
				continue
			}
			x := load[F](w, 0, logits, r*vocab, vocab)
			dx := target[F](w, 1, dlogits, r*vocab, vocab)
			s, f := graph.View[F](stats.Data)[2*r:2*r+2], factor
			top, logSum := float64(s[0]), float64(s[1])
			if label < 0 || label >= vocab {
				label, f = 0, math.NaN()
			}
			for j, v := range x {
				p := expIn[F](float64(v) - top - logSum)
				if j == label {
					p--
				}
				dx[j] = F(f * p)
			}
			store(dlogits, r*vocab, dx)
		}
	})
	return func() error {
		rows := logits.Rows()
		used := ints(labels)[:rows]
		factor = float64(scalar[F](up, 0)) / float64(counting(used, o.Ignore))
		loop.Run(rows, rowGrain(vocab))
		return nil
	}
}
