package nodes

import "github.com/moegraph/moegraph/graph"

func (o topK) Host(c *graph.Call) func() error {
	if isWide(c.In[0].DType) {
		return topKHost[float64](o, c)
	}
	return topKHost[float32](o, c)
}

func topKHost[F float](o topK, c *graph.Call) func() error {
	logits, bias, idx, prob := c.In[0], c.In[1], c.Out[0], c.Out[1]
	e := logits.Shape[1]
	loop := c.NewLoop(func(w *graph.Worker, lo, hi int) {
		score, sel := w.Float64(0, e), w.Float64(1, e)
		for t := lo; t < hi; t++ {
			l := load[F](w, 2, logits, t*e, e)
			scores(o.Order, score, l)
			for i := range sel {
				switch {
				case bias != nil:
					sel[i] = score[i] + float64(scalar[F](bias, i))
				case o.limited() || score[i] != score[i]:
					sel[i] = score[i]
				default: // softmax and sigmoid rise with the logit, and the logit has no ties of its own
					sel[i] = float64(l[i])
				}
			}
			if o.limited() {
				o.limit(sel)
			}
			p := buffer[F](w, 3, o.K)
			var chosen [MaxExperts]int32
			largest(chosen[:o.K], sel)
			probabilities(o, p, score, chosen[:o.K])
			if idx != nil {
				copy(ints(idx)[t*o.K:], chosen[:o.K])
			}
			if prob != nil {
				store(prob, t*o.K, p)
			}
		}
	})
	return func() error {
		loop.Run(logits.Rows(), rowGrain(8*e))
		return nil
	}
}

// limited says whether some groups of experts are left out.
func (o topK) limited() bool { return o.TopKGroups < o.Groups }

// limit sets the selecting values outside the best groups to 0.
func (o topK) limit(sel []float64) {
	var value [MaxExperts]float64
	var kept [MaxExperts]int32
	var out [MaxExperts]bool
	size := len(sel) / o.Groups
	for g := range o.Groups {
		var two [2]int32
		group := sel[g*size : (g+1)*size]
		largest(two[:], group)
		value[g], out[g] = group[two[0]]+group[two[1]], true
	}
	largest(kept[:o.TopKGroups], value[:o.Groups])
	for _, g := range kept[:o.TopKGroups] {
		out[g] = false
	}
	for g := range o.Groups {
		if out[g] {
			clear(sel[g*size : (g+1)*size])
		}
	}
}

// scores computes what the order calls a score for every expert: softmax, the logit, sigmoid.
func scores[F float](o Order, score []float64, l []F) {
	switch o {
	case SoftmaxTopK:
		softmax(score, l)
	case TopKSoftmax:
		for i, x := range l {
			score[i] = float64(x)
		}
	default:
		for i, x := range l {
			score[i] = sigmoid(float64(x))
		}
	}
}

// softmax computes e^x / sum e^x in float64. It returns the logarithm of the sum of exponentials.
func softmax[F float](p []float64, x []F) (lse float64) {
	top := float64(x[0])
	for _, v := range x {
		top = max(top, float64(v))
	}
	var total float64
	for i, v := range x {
		p[i] = exp(float64(v) - top)
		total += p[i]
	}
	for i := range p {
		p[i] /= total
	}
	return top + log(total)
}

// largest fills chosen with the indices of the largest values, in falling order, the lower index first among
// equals; NaNs come last, in order.
func largest(chosen []int32, sel []float64) {
	n := 0
	for i, v := range sel {
		if n == len(chosen) && !above(v, sel[chosen[n-1]]) {
			continue
		}
		if n < len(chosen) {
			n++
		}
		j := n - 1
		for ; j > 0 && above(v, sel[chosen[j-1]]); j-- {
			chosen[j] = chosen[j-1]
		}
		chosen[j] = int32(i)
	}
}

// above says whether a ranks strictly before b.
func above(a, b float64) bool { return a > b || (b != b && a == a) }

// probabilities fills p from the scores of the chosen experts.
func probabilities[F float](o topK, p []F, score []float64, chosen []int32) {
	var buf [MaxExperts]float64
	raw := buf[:len(chosen)]
	o.raw(raw, score, chosen)
	f := o.factor(raw)
	for s := range p {
		p[s] = F(raw[s] * f)
	}
}

// raw gathers the scores of the chosen, with the softmax over them for topk_softmax.
func (o topK) raw(raw, score []float64, chosen []int32) {
	for s, e := range chosen {
		raw[s] = score[e]
	}
	if o.Order == TopKSoftmax {
		softmax(raw, raw)
	}
}

// factor is what normalization and scale multiply the raw scores by.
func (o topK) factor(raw []float64) float64 {
	if !o.Normalize {
		return o.Scale
	}
	var total float64
	for _, r := range raw {
		total += r
	}
	return o.Scale / (total + normEps)
}

func (o topKGrad) Host(c *graph.Call) func() error {
	if isWide(c.In[0].DType) {
		return topKGradHost[float64](o.Of, c)
	}
	return topKGradHost[float32](o.Of, c)
}

func topKGradHost[F float](o topK, c *graph.Call) func() error {
	logits, idx, dprob, out := c.In[0], c.In[1], c.In[2], c.Out[0]
	e := logits.Shape[1]
	loop := c.NewLoop(func(w *graph.Worker, lo, hi int) {
		score, grad := w.Float64(0, e), w.Float64(1, e)
		raw, draw := w.Float64(3, o.K), w.Float64(4, o.K)
		for t := lo; t < hi; t++ {
			scores(o.Order, score, load[F](w, 2, logits, t*e, e))
			chosen := ints(idx)[t*o.K : (t+1)*o.K]
			o.raw(raw, score, chosen)
			dp := load[F](w, 5, dprob, t*o.K, o.K)
			f, inner := o.factor(raw), 0.0
			if o.Normalize { // p = s * f, f = scale/(sum s + eps): df/ds = -f^2/scale
				for s := range raw {
					inner += float64(dp[s]) * raw[s]
				}
				inner *= f * f / o.Scale
			}
			for s := range raw {
				draw[s] = float64(dp[s])*f - inner
			}
			o.throughScores(grad, score, raw, draw, chosen)
			dl := target[F](w, 6, out, t*e, e)
			for i := range dl {
				dl[i] = F(grad[i])
			}
			store(out, t*e, dl)
		}
	})
	return func() error {
		loop.Run(logits.Rows(), rowGrain(8*e))
		return nil
	}
}

// throughScores turns gradients of the chosen raw scores into gradients of the logits.
func (o topK) throughScores(grad, score, raw, draw []float64, chosen []int32) {
	clear(grad)
	switch o.Order {
	case Sigmoid:
		for s, e := range chosen {
			grad[e] += draw[s] * raw[s] * (1 - raw[s])
		}
	case TopKSoftmax:
		var inner float64
		for s := range raw {
			inner += draw[s] * raw[s]
		}
		for s, e := range chosen {
			grad[e] += raw[s] * (draw[s] - inner)
		}
	default:
		var inner float64
		for s, e := range chosen {
			inner += draw[s] * raw[s]
			grad[e] += draw[s]
		}
		for i := range grad {
			grad[i] = score[i] * (grad[i] - inner)
		}
	}
}
