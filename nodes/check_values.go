package nodes

import (
	"fmt"

	"github.com/moegraph/moegraph/graph"
)

// What only the data can tell, by operator: graph.ValueChecker of all that have offsets, counts, ids, labels or rows
// among their operands.

// checkOffsets checks the offsets and counts (which may be nil) of groups over the rows of data: capacity is M, and no
// row past those in use belongs to a group.
func checkOffsets(name string, offsets, counts *graph.Tensor, capacity, align int, data ...*graph.Tensor) error {
	limit := capacity
	for _, t := range data {
		if t != nil {
			limit = min(limit, t.Rows())
		}
	}
	at := int32(0)
	for e, o := range ints(offsets) {
		switch {
		case o < 0:
			return graph.BadShape(name, fmt.Sprintf("%d for expert %d", o, e), "offsets of at least 0")
		case o < at:
			return graph.BadShape(name, fmt.Sprintf("%d for expert %d after %d", o, e, at), "offsets that do not decrease")
		case int(o)%align != 0:
			return graph.BadShape(name, fmt.Sprintf("%d for expert %d", o, e), "multiples of the alignment %d", align)
		case int(o) > limit:
			return graph.BadShape(name, fmt.Sprintf("%d for expert %d", o, e), "at most the %d rows of the operand", limit)
		}
		if counts != nil {
			if n := ints(counts)[e]; n < 0 || n > o-at {
				return graph.BadShape("counts", fmt.Sprintf("%d for expert %d", n, e), "from 0 to its %d rows", o-at)
			}
		}
		at = o
	}
	return nil
}

// checkGEMMOffsets is checkOffsets of the grouped GEMMs.
func checkGEMMOffsets(c *graph.Call, align int) error {
	a := c.In[gemmA]
	return checkOffsets("padded_offsets", c.In[gemmOffsets], c.In[gemmCounts], a.Shape[0], align, a, c.In[gemmProb])
}

// checkGradOffsets is checkOffsets of the nodes that go back through an activation.
func checkGradOffsets(c *graph.Call, align int) error {
	if c.In[gradOffsets] == nil {
		return nil
	}
	dd := c.In[gradDD]
	return checkOffsets("padded_offsets", c.In[gradOffsets], c.In[gradCounts], dd.Shape[0], align, dd, c.In[gradC], c.In[gradProb])
}

// CheckValues implements graph.ValueChecker.
func (o groupedGEMM) CheckValues(c *graph.Call) error { return checkGEMMOffsets(c, o.Align) }

// CheckValues implements graph.ValueChecker.
func (o groupedGEMMGLU) CheckValues(c *graph.Call) error { return checkGEMMOffsets(c, o.Align) }

// CheckValues implements graph.ValueChecker.
func (o scaledGEMM) CheckValues(c *graph.Call) error { return checkGEMMOffsets(c, o.Align) }

// CheckValues implements graph.ValueChecker.
func (o scaledGLU) CheckValues(c *graph.Call) error { return checkGEMMOffsets(c, o.Align) }

// CheckValues implements graph.ValueChecker.
func (o groupedGEMMdGLU) CheckValues(c *graph.Call) error { return checkGradOffsets(c, o.Align) }

// CheckValues implements graph.ValueChecker.
func (o scaledDGLU) CheckValues(c *graph.Call) error { return checkGradOffsets(c, o.Align) }

// CheckValues implements graph.ValueChecker.
func (o gluGrad) CheckValues(c *graph.Call) error { return checkGradOffsets(c, o.Align) }

// CheckValues implements graph.ValueChecker.
func (o wgrad) CheckValues(c *graph.Call) error {
	tokens := codeWidth(c.In[wgA])
	var over []*graph.Tensor // operands whose rows are the tokens
	if o.AMajorM {
		tokens = c.In[wgA].Shape[0]
		over = append(over, c.In[wgA])
	}
	if !o.BMajorK {
		over = append(over, c.In[wgB])
	}
	return checkOffsets("offsets", c.In[wgOffsets], c.In[wgCounts], tokens, o.Align, over...)
}

// CheckValues implements graph.ValueChecker.
func (o scaledWGrad) CheckValues(c *graph.Call) error { return o.WGrad.CheckValues(c) }

// CheckValues implements graph.ValueChecker.
func (o quantize) CheckValues(c *graph.Call) error {
	if c.In[quantOffsets] == nil {
		return nil
	}
	x := c.In[quantX]
	return checkOffsets("padded_offsets", c.In[quantOffsets], c.In[quantCounts], x.Shape[0], o.Align, x)
}

// CheckValues implements graph.ValueChecker.
func (o glu) CheckValues(c *graph.Call) error {
	if c.In[gluOffsets] == nil {
		return nil
	}
	x := c.In[gluC]
	return checkOffsets("padded_offsets", c.In[gluOffsets], c.In[gluCounts], x.Shape[0], o.Align, x, c.In[gluProb])
}

// CheckValues implements graph.ValueChecker.
func (o groupMap) CheckValues(c *graph.Call) error {
	rows := []*graph.Tensor{c.In[0], c.In[3]}
	if o.Op == "row_dot_bias" { // a bias has a row an expert
		rows = rows[:1]
	}
	return checkOffsets("padded_offsets", c.In[1], c.In[2], c.In[0].Shape[0], o.Align, rows...)
}

// CheckValues implements graph.ValueChecker.
func (embedding) CheckValues(c *graph.Call) error { return checkIDValues(c.In[0], c.In[1].Shape[0]) }

// CheckValues implements graph.ValueChecker.
func (o embeddingGrad) CheckValues(c *graph.Call) error {
	return checkIDValues(c.In[0], c.Out[0].Shape[0])
}

// checkIDValues returns an error that names the first id in use outside [0,limit).
func checkIDValues(ids *graph.Tensor, limit int) error {
	n := max(1, ids.Width())
	for i, id := range ints(ids)[:ids.Rows()*ids.Width()] {
		if id < 0 || int(id) >= limit {
			return graph.BadShape("ids", fmt.Sprintf("%d in row %d", id, i/n), "0 to %d", limit-1)
		}
	}
	return nil
}

// CheckValues implements graph.ValueChecker.
func (combine) CheckValues(c *graph.Call) error {
	rowMap, m := c.In[1], c.In[0].Rows()
	k := rowMap.Shape[1]
	for s, row := range ints(rowMap)[:rowMap.Rows()*k] {
		if row < -1 || int(row) >= m {
			return graph.BadShape("row_map", fmt.Sprintf("%d for slot %d of token %d", row, s%k, s/k), "-1 or one of the %d rows of d", m)
		}
	}
	return nil
}

// CheckValues implements graph.ValueChecker.
func (o crossEntropy) CheckValues(c *graph.Call) error { return checkLabelValues(c, o.Ignore) }

// CheckValues implements graph.ValueChecker.
func (o crossEntropyGrad) CheckValues(c *graph.Call) error { return checkLabelValues(c, o.Ignore) }

// checkLabelValues returns an error that names the first label that is neither ignored nor one of the classes.
func checkLabelValues(c *graph.Call, ignore int) error {
	logits, labels := c.In[0], c.In[1]
	limit := logits.Shape[1]
	for i, id := range ints(labels)[:logits.Rows()] {
		if int(id) != ignore && (id < 0 || int(id) >= limit) {
			return graph.BadShape("labels", fmt.Sprintf("%d in row %d", id, i), "0 to %d, or %d for rows that do not count", limit-1, ignore)
		}
	}
	return nil
}
