package runnode

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/internal/npz"
)

// Option says where and how Run works. The zero value is the default.
type Option struct {
	Device   graph.Device // nil: the host
	Debug    bool         // check offsets, counts and ids, and fill workspaces and outputs with byte 0xFF first
	MaxBytes int64        // of outputs and workspaces together; 0: npz.DefaultMaxBytes
}

// Run runs a node once and returns its outputs: those that it always has and those that the attributes ask
// for, whole arrays at capacity, zeros beyond the rows in use.
func Run(node string, operands []npz.Operand, attrs map[string]any, opt Option) (outs []npz.Array, err error) {
	n, err := Lookup(node)
	if err != nil {
		return nil, err
	}
	defer func() {
		if r := recover(); r != nil {
			outs, err = nil, fmt.Errorf("%s: internal error: %v", node, r)
		}
	}()
	c := &call{node: n, in: map[string][]npz.Operand{}, v: map[string][]*graph.Value{}}
	if err := c.take(operands, attrs); err != nil {
		return nil, fmt.Errorf("%s: %w", node, err)
	}
	if opt.Device == nil {
		if opt.Device, err = graph.Open("host"); err != nil {
			return nil, err
		}
	}
	return c.run(opt)
}

// call is one run of a node.
type call struct {
	node *Node
	in   map[string][]npz.Operand // by name; discrete ones in the order of experts
	attr values

	g    *graph.Graph
	vars *graph.Vars
	v    map[string][]*graph.Value // as in
	outs []output
}

type output struct {
	name   string
	expert int
	v      *graph.Value
	// valid, if set, is how many columns are in use: an output whose columns are an operand's rows
	valid *int
}

// take checks operands and attributes.
func (c *call) take(operands []npz.Operand, attrs map[string]any) (err error) {
	if err := c.node.checkOperands(operands); err != nil {
		return err
	}
	for _, o := range operands {
		c.in[o.Name] = append(c.in[o.Name], o)
	}
	for _, list := range c.in {
		slices.SortFunc(list, func(a, b npz.Operand) int { return a.Expert - b.Expert })
	}
	if c.attr, err = c.node.resolve(attrs); err != nil {
		return err
	}
	if c.node.check != nil {
		if err := c.node.check(c); err != nil {
			return err
		}
	}
	return nil
}

// run builds the graph, replays it once and reads the outputs.
func (c *call) run(opt Option) (outs []npz.Array, err error) {
	c.g, c.vars = graph.New(c.node.Name), graph.NewVars(1)
	if err := c.inputs(); err != nil {
		return nil, err
	}
	c.node.build(c)
	o := graph.Options{}
	if opt.Debug {
		o.Debug = graph.Debug{Offsets: true, Poison: true}
	}
	prog, err := c.g.Compile(opt.Device, o)
	if err != nil {
		return nil, err
	}
	if err := c.checkSize(prog, opt); err != nil {
		return nil, fmt.Errorf("%s: %w", c.node.Name, err)
	}
	exec, err := prog.Exec(c.vars)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, exec.Close(), c.vars.Free()) }()
	for name, list := range c.in {
		for i, o := range list {
			if v := c.v[name][i]; v.Kind() == graph.Input {
				if err := exec.Write(v, elements(o)); err != nil {
					return nil, err
				}
			}
		}
	}
	if err := exec.Replay(context.Background()); err != nil {
		return nil, err
	}
	for _, o := range c.outs {
		a, err := read(exec, o)
		if err != nil {
			return nil, err
		}
		outs = append(outs, a)
	}
	return outs, nil
}

// inputs adds an input for every operand, in the table's order, and a variable for every accumulator.
func (c *call) inputs() error {
	for _, d := range c.node.Operands {
		for _, o := range c.in[d.Name] {
			name := npz.Key{Name: o.Name, Expert: o.Expert}.String()
			if !d.Update {
				c.v[d.Name] = append(c.v[d.Name], c.g.Input(name, o.Format, o.Shape...))
				continue
			}
			v := c.vars.State(name, o.Format, graph.Const(0), o.Shape...)
			c.v[d.Name] = append(c.v[d.Name], v)
			if err := v.Err(); err != nil {
				return err
			}
			if err := c.vars.Write(v, elements(o)); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkSize refuses a program whose memory is beyond the limit: files choose shapes and capacities.
func (c *call) checkSize(prog *graph.Program, opt Option) error {
	limit := opt.MaxBytes
	if limit == 0 {
		limit = npz.DefaultMaxBytes
	}
	total := float64(prog.ArenaBytes())
	for _, o := range c.outs {
		total += float64(o.v.Bytes())
	}
	if total > float64(limit) {
		return graph.BadShape("outputs and workspaces", fmt.Sprintf("%.0f bytes", total), "at most %d in all", limit)
	}
	return nil
}

// value returns an operand, nil where it is absent.
func (c *call) value(name string) *graph.Value {
	if vs := c.v[name]; len(vs) > 0 {
		return vs[0]
	}
	return nil
}

// has says whether an operand was given, and discrete whether expert by expert.
func (c *call) has(name string) bool      { return len(c.in[name]) > 0 }
func (c *call) discrete(name string) bool { return c.has(name) && c.in[name][0].Expert != npz.Dense }

// out marks an output.
func (c *call) out(name string, v *graph.Value) { c.outExpert(name, npz.Dense, v) }

func (c *call) outExpert(name string, expert int, v *graph.Value) {
	key := npz.Key{Name: name, Expert: expert}.String()
	c.outs = append(c.outs, output{name: name, expert: expert, v: c.g.Output(key, v)})
}

// elements views an operand's bytes as a slice that Write takes. Formats without a Go type are their bits.
func elements(o npz.Operand) any {
	b := o.Array.Data
	switch o.Format {
	case dtype.Float64:
		return graph.View[float64](b)
	case dtype.Float32:
		return graph.View[float32](b)
	case dtype.Int32:
		return graph.View[int32](b)
	case dtype.Int64:
		return graph.View[int64](b)
	case dtype.Uint64:
		return graph.View[uint64](b)
	case dtype.BFloat16, dtype.Float16:
		return graph.View[uint16](b)
	}
	return b
}

// read returns an output as an array at capacity.
func read(exec *graph.Exec, o output) (npz.Array, error) {
	var data []byte
	var err error
	switch n := o.v.Elems(); o.v.DType() {
	case dtype.Float64:
		data, err = readAs[float64](exec, o.v, n)
	case dtype.Float32:
		data, err = readAs[float32](exec, o.v, n)
	case dtype.Int32:
		data, err = readAs[int32](exec, o.v, n)
	case dtype.BFloat16, dtype.Float16:
		data, err = readAs[uint16](exec, o.v, n)
	case dtype.E4M3, dtype.E5M2, dtype.E2M1, dtype.E8M0, dtype.Uint8:
		data, err = readAs[uint8](exec, o.v, o.v.DType().Bytes(n))
	default:
		return npz.Array{}, graph.Unsupported(o.name, o.v.DType(), "a format that files hold: f64, f32, f16, bf16, int32 or 8 and 4 bits")
	}
	if err != nil {
		return npz.Array{}, err
	}
	if o.valid != nil {
		clearColumns(data, o.v, *o.valid)
	}
	return npz.NewOperand(o.name, o.expert, o.v.DType(), o.v.Shape(), data)
}

// clearColumns sets the columns from valid on, an even number of codes, to zero.
func clearColumns(data []byte, v *graph.Value, valid int) {
	width := v.DType().Bytes(v.Dim(-1))
	from := min(max(v.DType().Bytes(valid), 0), width)
	for at := 0; at+width <= len(data) && width > 0; at += width {
		clear(data[at+from : at+width])
	}
}

func readAs[T any](exec *graph.Exec, v *graph.Value, n int) ([]byte, error) {
	dst := make([]T, n)
	if _, err := exec.Read(v, dst); err != nil {
		return nil, err
	}
	return binary.Append(nil, binary.LittleEndian, dst)
}

// finite says whether a number attribute is neither NaN nor infinite.
func finite(v any) bool {
	x, ok := v.(float64)
	return ok && !math.IsInf(x, 0) && x == x
}
