package main

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/shapes"
)

// rotateBytes is what the buffers of a measured product take together, at least: several times the second-level cache
// of any device.
const rotateBytes = 512 << 20

// measureProducts prints the rate of each matrix product over groups, those of several layers in turn.
func (b *bench) measureProducts(layers []layerGraph) error {
	type product struct {
		steps  []*graph.Step
		labels []string
	}
	var names []string
	products := map[string]*product{}
	for _, l := range layers {
		for _, s := range l.prog.Steps() {
			if s.Cost.Flops == 0 || !slices.ContainsFunc(s.Op.Operands(), isOffsets) {
				continue
			}
			p := products[s.Name]
			if p == nil {
				p = &product{}
				names, products[s.Name] = append(names, s.Name), p
			}
			p.steps, p.labels = append(p.steps, s), append(p.labels, l.label)
		}
	}
	for _, name := range names {
		p := products[name]
		took, flops, err := b.product(p.steps)
		if err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
		for k, s := range p.steps {
			b.printf("  %-28s %-18s %8.3f ms, %.4g TF%s", s.Name, s.Op.Kind(), took[k]*1e3, flops/took[k]/1e12, p.labels[k])
		}
	}
	return nil
}

func isOffsets(o graph.Operand) bool { return o.Name == "padded_offsets" || o.Name == "offsets" }

// product measures steps, each by itself, in turn: as many copies of it as rotate past the cache, one after the other, as
// one program. The steps compute the same product. It returns seconds and the floating-point operations of the rows that
// tokens fill.
func (b *bench) product(steps []*graph.Step) (seconds []float64, flops float64, err error) {
	s, copies := steps[0], 1
	for _, s := range steps {
		copies = max(copies, int(min(16, rotateBytes/max(1, s.Cost.Bytes))))
	}
	var execs []*graph.Exec
	defer func() {
		for _, e := range execs {
			err = errors.Join(err, e.Close())
		}
	}()
	for _, s := range steps {
		e, err := b.openProduct(s, copies)
		if err != nil {
			return nil, 0, err
		}
		execs = append(execs, e)
	}
	took, err := b.time(copies, execs...)
	if err != nil {
		return nil, 0, err
	}
	for _, t := range took {
		seconds = append(seconds, t.Seconds())
	}
	rows := s.In[0].Dim(0) // at capacity, as the cost counts them
	return seconds, float64(s.Cost.Flops) * float64(b.Tokens*b.TopK) / float64(rows), nil
}

func makesCodes(s *graph.Step) bool {
	return slices.ContainsFunc(s.Out, func(v *graph.Value) bool { return v != nil && v.DType().Bits() <= 8 })
}

// openProduct opens a program of copies of a step, with random data.
func (b *bench) openProduct(s *graph.Step, copies int) (*graph.Exec, error) {
	g := graph.New(s.Name)
	inputs := map[*graph.Value]any{}
	offsets, counts := b.data.groups(b.alignment)
	for c := range copies {
		in := make([]*graph.Value, len(s.In))
		for i, o := range s.Op.Operands() {
			v := s.In[i]
			if v == nil && o.Name == "norm_const" && makesCodes(s) { // an output quantized in a fused step has norm 1
				in[i] = g.Input(fmt.Sprintf("%s.%d", o.Name, c), dtype.Float32, 1)
				inputs[in[i]] = []float32{1}
			}
			if v == nil {
				continue
			}
			in[i] = g.Input(fmt.Sprintf("%s.%d", o.Name, c), v.DType(), v.Shape()...)
			switch {
			case isOffsets(o):
				inputs[in[i]] = offsets
			case o.Name == "counts":
				inputs[in[i]] = counts
			case v.DType() == dtype.BFloat16:
				inputs[in[i]] = b.data.bf16(uint64(c*len(s.In)+i), v.Elems())
			case v.DType() == dtype.Float32:
				inputs[in[i]] = slices.Repeat([]float32{0.5}, v.Elems())
			case v.DType().Bits() <= 8:
				inputs[in[i]] = b.data.codes(uint64(c*len(s.In)+i), v.DType(), v.DType().Bytes(v.Elems()))
			default:
				return nil, graph.BadDType(o.Name, v.DType(), "bf16, f32, codes or factors")
			}
		}
		for i, v := range graph.Apply(s.Op, in...) {
			if s.Out[i] != nil && v != nil {
				g.Output(fmt.Sprintf("out%d.%d", i, c), v)
			}
		}
	}
	prog, err := g.Compile(b.dev, graph.Options{Streams: 1, NoFuse: true})
	if err != nil {
		return nil, err
	}
	e, err := prog.Exec(nil)
	if err != nil {
		return nil, err
	}
	for v, x := range inputs {
		if err := e.Write(v, x); err != nil {
			return nil, errors.Join(err, e.Close())
		}
	}
	return e, nil
}

// randomData makes what is measured with: numbers of a normal distribution, and a routing.
type randomData struct {
	shapes.Shape
	table []uint16 // bf16, scaled by 1/sqrt(hidden)
	unit  []uint16 // bf16, of variance 1
	rows  int      // of each expert; 0: those of the routing
}

// tableLen is a prime, so that pieces that begin at multiples of anything differ.
const tableLen = 4194301

func newRandomData(s shapes.Shape) randomData {
	d := randomData{Shape: s, table: make([]uint16, tableLen), unit: make([]uint16, tableLen)}
	r := rand.New(rand.NewPCG(1, 2))
	x, y := make([]float32, tableLen), make([]float32, tableLen)
	for i := range x {
		x[i] = float32(r.NormFloat64())
		y[i] = x[i] / float32(math.Sqrt(float64(s.Hidden)))
	}
	dtype.EncodeBF16(d.unit, x)
	dtype.EncodeBF16(d.table, y)
	return d
}

// bf16 returns n numbers of variance 1.
func (d *randomData) bf16(seed uint64, n int) []uint16 {
	x := make([]uint16, n)
	fillFrom(x, d.unit, seed)
	return x
}

func fillFrom[T uint8 | uint16](dst, table []T, seed uint64) {
	at := int(seed * 1000003 % tableLen)
	for len(dst) > 0 {
		n := copy(dst, table[at:])
		dst, at = dst[n:], 0
	}
}

// codes returns n bytes of random codes of a block-scaled operand, or of factors between 1/4 and 2.
func (d *randomData) codes(seed uint64, dt dtype.DType, n int) []uint8 {
	x, table := make([]uint8, n), make([]uint8, tableLen)
	for i, u := range d.unit {
		c := uint8(u) // the low bits of a mantissa
		switch dt {
		case dtype.E8M0:
			c = 125 + c%4
		case dtype.E4M3, dtype.E5M2: // no NaN and no Inf
			c &^= 0x40
		}
		table[i] = c
	}
	fillFrom(x, table, seed)
	return x
}

// weights starts a bf16 variable with numbers of variance 1/hidden, an expert at a time.
func (d *randomData) weights(shape []int) graph.Init {
	return graph.From(shape[0], func(piece int, dst []byte) error {
		fillFrom(graph.View[uint16](dst), d.table, uint64(piece+7))
		return nil
	})
}

// groups returns offsets and counts of the top k of random logits, or with the rows of each expert those.
func (d *randomData) groups(alignment int) (offsets, counts []int32) {
	if d.rows > 0 {
		return ends(slices.Repeat([]int32{int32(d.rows)}, d.Experts), alignment)
	}
	r := rand.New(rand.NewPCG(3, 4))
	counts = make([]int32, d.Experts)
	type choice struct {
		logit  float64
		expert int
	}
	logits := make([]choice, d.Experts)
	for range d.Tokens {
		for e := range logits {
			logits[e] = choice{r.NormFloat64(), e}
		}
		slices.SortFunc(logits, func(a, b choice) int {
			if a.logit > b.logit {
				return -1
			}
			return 1
		})
		for _, c := range logits[:d.TopK] {
			counts[c.expert]++
		}
	}
	return ends(counts, alignment)
}

// ends returns the offsets of groups of so many rows, and the rows.
func ends(rows []int32, alignment int) (offsets, counts []int32) {
	at := int32(0)
	for _, n := range rows {
		at += (n + int32(alignment) - 1) / int32(alignment) * int32(alignment)
		offsets = append(offsets, at)
	}
	return offsets, rows
}
