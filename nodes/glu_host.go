package nodes

import "github.com/moegraph/moegraph/graph"

// forward returns the activation of one gate and up, without prob.
func forward[F float](a *act, gate, up F) F {
	if a.GeGLU {
		gate, up = min(gate, F(a.Cmax)), min(max(up, F(a.Cmin)), F(a.Cmax))
		return (up + F(a.LinearOffset)) * gate * sigmoid(F(a.Alpha)*gate)
	}
	return up * gate * sigmoid(gate)
}

// backward returns the activation and its derivatives with respect to gate and up. At equality with a clamp
// the derivative passes; a NaN survives.
func backward[F float](a *act, gate, up F) (value, dGate, dUp F) {
	if !a.GeGLU {
		s := sigmoid(gate)
		gs := gate * s
		return up * gs, up * s * (1 + F(gate*(1-s))), gs
	}
	cmax, cmin := F(a.Cmax), F(a.Cmin)
	passGate, passUp := gate <= cmax || gate != gate, (up >= cmin && up <= cmax) || up != up
	gate, up = min(gate, cmax), min(max(up, cmin), cmax)
	s := sigmoid(F(a.Alpha) * gate)
	gs, lin := gate*s, up+F(a.LinearOffset)
	dGate, dUp = lin*s*(1+F(F(a.Alpha)*gate*(1-s))), gs
	if !passGate {
		dGate *= 0 // a NaN stays
	}
	if !passUp {
		dUp *= 0
	}
	return lin * gs, dGate, dUp
}

// gluRow computes d[j] = f * act(gate j, up j) for a row piece c in blocks of 32.
func gluRow[F float](a *act, d, c []F, f F) {
	for b := 0; b < len(d); b += gluBlock {
		gate, up, out := c[2*b:2*b+gluBlock], c[2*b+gluBlock:2*b+2*gluBlock], d[b:b+gluBlock]
		for j := range out {
			out[j] = f * forward(a, gate[j], up[j])
		}
	}
}

func (o glu) Host(c *graph.Call) func() error {
	if isWide(c.In[gluC].DType) {
		return gluHost[float64](o, c)
	}
	return gluHost[float32](o, c)
}

func gluHost[F float](o glu, c *graph.Call) func() error {
	cc, prob, d := c.In[gluC], c.In[gluProb], c.Out[0]
	n := cc.Shape[1]
	return overRows(c, cc, prob, c.In[gluOffsets], c.In[gluCounts], o.Align, func(w *graph.Worker, e, m int) {
		out := target[F](w, 0, d, m*n/2, n/2)
		gluRow(&o.Act, out, load[F](w, 1, cc, m*n, n), rowProb[F](prob, m))
		store(d, m*n/2, out)
	}, d)
}

// overRows runs row for every real row of x and prob, which may be nil, with its expert where there are groups, and
// clears the padding rows of outs.
func overRows(c *graph.Call, x, prob, offsets, counts *graph.Tensor, align int, row func(w *graph.Worker, e, m int), outs ...*graph.Tensor) func() error {
	grain := rowGrain(x.Shape[1])
	if offsets == nil {
		loop := c.NewLoop(func(w *graph.Worker, lo, hi int) {
			for m := lo; m < hi; m++ {
				row(w, 0, m)
			}
		})
		return func() error {
			loop.Run(x.Rows(), grain)
			return nil
		}
	}
	g := newGroups(offsets, counts, x.Shape[0], align, grain, x, prob)
	loop := c.NewLoop(func(w *graph.Worker, lo, hi int) {
		for t := lo; t < hi; t++ {
			e, first, mid, last := g.at(t)
			for m := first; m < mid; m++ {
				row(w, e, m)
			}
			for _, out := range outs {
				if out != nil {
					zero(out, mid*out.Width(), (last-mid)*out.Width())
				}
			}
		}
	})
	return func() error {
		g.read()
		loop.Run(g.tiles(), 1)
		return nil
	}
}
