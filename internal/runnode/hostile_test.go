package runnode

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/internal/golden"
	"github.com/moegraph/moegraph/internal/npz"
)

// TestRun_Hostile changes every golden case in every way of a list: operands dropped, reshaped, in other formats,
// with wild integers; attributes at extremes. Each run must end with outputs or an error, never with a panic
// or an error of ours, checks on or off. A few cases of each node do.
func TestRun_Hostile(t *testing.T) {
	dir := golden.Require(t, "cases")
	names, err := golden.Names(dir)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for _, name := range names {
		c, err := golden.Load(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if seen[c.Node]++; seen[c.Node] > 3 {
			continue
		}
		t.Run(name, func(t *testing.T) { hostile(t, c) })
	}
}

func hostile(t *testing.T, c golden.Case) {
	r := rand.New(rand.NewPCG(1, uint64(len(c.Name))))
	try := func(what string, operands []npz.Operand, attrs map[string]any) {
		for _, debug := range []bool{true, false} {
			_, err := Run(c.Node, operands, attrs, Option{Debug: debug, MaxBytes: 1 << 28})
			if err != nil && strings.Contains(err.Error(), "internal") {
				t.Errorf("%s, debug %v: %v", what, debug, err)
				return
			}
		}
	}
	for i, o := range c.Operands {
		try("without "+o.Array.Name, slices.Delete(slices.Clone(c.Operands), i, i+1), c.Attrs)
		try("twice "+o.Array.Name, append(slices.Clone(c.Operands), o), c.Attrs)
		for what, changed := range changedOperands(o, r) {
			operands := slices.Clone(c.Operands)
			operands[i] = changed
			try(o.Array.Name+" "+what, operands, c.Attrs)
		}
	}
	n, err := Lookup(c.Node)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range n.Attrs {
		for _, v := range attrValues(a) {
			attrs := maps.Clone(c.Attrs)
			attrs[a.Name] = v
			try(fmt.Sprintf("%s=%v", a.Name, v), c.Operands, attrs)
		}
	}
}

func attrValues(a Attr) []any {
	vs := []any{0, 1, -1, 2, 3, 8, 256, math.MaxInt32, math.MaxInt, math.MinInt, 0.0, -2.5, 1e300, math.Inf(1), math.Inf(-1), math.NaN(), "", "x", "0x0", "-1x4", "64x64"}
	for _, c := range a.Choices {
		vs = append(vs, c)
	}
	return vs
}

// changedOperands are variants of an operand by what was done to it.
func changedOperands(o npz.Operand, r *rand.Rand) map[string]npz.Operand {
	m := map[string]npz.Operand{}
	shapes := map[string][]int{"scalar": {}, "vector": {o.Array.Len()}, "rank 4": {1, 1, 2, 2}, "empty": {0}, "huge and empty": {0, 1 << 40}}
	for i, d := range o.Shape {
		for what, to := range map[string]int{"zero": 0, "one": 1, "less": d - 1, "more": d + 1, "half": d / 2, "twice": 2 * d, "add 128": d + 128} {
			s := slices.Clone(o.Shape)
			s[i] = max(to, 0)
			shapes[fmt.Sprintf("dim %d %s", i, what)] = s
		}
	}
	for what, s := range shapes {
		if c, ok := reshaped(o, o.Format, s); ok {
			m[what] = c
		}
	}
	for dt := dtype.Float64; dt <= dtype.E8M0; dt++ {
		if c, ok := reshaped(o, dt, o.Shape); ok {
			m["in "+dt.String()] = c
		}
	}
	if o.Format == dtype.Int32 {
		for i := range 8 {
			m[fmt.Sprint("wild ", i)] = wild(o, r)
		}
	}
	return m
}

// reshaped is an operand with another format and shape, filled with the bytes it had, over and over.
func reshaped(o npz.Operand, dt dtype.DType, shape []int) (npz.Operand, bool) {
	n := 1
	for _, d := range shape {
		n *= d
	}
	if dt == dtype.E2M1 && (len(shape) == 0 || shape[len(shape)-1]%2 != 0) {
		return o, false
	}
	data := make([]byte, dt.Bytes(n))
	for i := 0; i < len(data) && len(o.Array.Data) > 0; {
		i += copy(data[i:], o.Array.Data)
	}
	a, err := npz.NewOperand(o.Name, o.Expert, dt, shape, data)
	return npz.Operand{Name: o.Name, Expert: o.Expert, Format: dt, Shape: shape, Array: a}, err == nil
}

// wild is an int32 operand with some elements at random.
func wild(o npz.Operand, r *rand.Rand) npz.Operand {
	data := slices.Clone(o.Array.Data)
	values := []int32{-1, -2, 0, 1, 127, 128, 1 << 20, math.MaxInt32, math.MinInt32}
	for i := 0; i < len(data); i += 4 {
		if r.IntN(2) == 0 {
			binary.LittleEndian.PutUint32(data[i:], uint32(values[r.IntN(len(values))]))
		}
	}
	o.Array.Data = data
	return o
}
