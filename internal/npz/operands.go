package npz

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/moegraph/moegraph/dtype"
)

// Operand is one array that a node is given.
type Operand struct {
	Name   string      // without expert and format: "b"
	Expert int         // of a discrete operand; Dense otherwise
	Format dtype.DType // of the elements
	Shape  []int       // in elements: E2M1 counts codes, not bytes
	Array  Array       // as stored
}

// Split sorts the arrays of an input file into operands, in the file's order, and attributes, whose values
// are int, float64 or string. It does not ask whether operands go together: CheckOperands does.
func Split(arrays []Array) (operands []Operand, attrs map[string]any, err error) {
	attrs = map[string]any{}
	for _, a := range arrays {
		k, err := ParseKey(a.Name)
		if err != nil {
			return nil, nil, err
		}
		if k.Attr {
			if attrs[k.Name], err = a.attr(k.Name); err != nil {
				return nil, nil, err
			}
			continue
		}
		dt, err := k.Format(a)
		if err != nil {
			return nil, nil, err
		}
		operands = append(operands,
			Operand{Name: k.Name, Expert: k.Expert, Format: dt, Shape: ValueShape(dt, a.Shape), Array: a})
	}
	return operands, attrs, nil
}

// attr is the value of a scalar: int32 and int64 as int, float32 and float64 as float64, a string.
func (a Array) attr(name string) (any, error) {
	if err := a.Check(); err != nil {
		return nil, fmt.Errorf("attribute %q: %w", name, err)
	}
	if len(a.Shape) == 0 {
		switch a.DType {
		case "<i4":
			return int(int32(binary.LittleEndian.Uint32(a.Data))), nil
		case "<i8":
			return int(binary.LittleEndian.Uint64(a.Data)), nil
		case "<f4":
			return float64(math.Float32frombits(binary.LittleEndian.Uint32(a.Data))), nil
		case "<f8":
			return math.Float64frombits(binary.LittleEndian.Uint64(a.Data)), nil
		}
		if s, err := a.Text(); err == nil {
			return s, nil
		}
	}
	return nil, fmt.Errorf("%w: attribute %q: got %s of shape %v, want a scalar int32, float32 or string",
		ErrInvalid, name, a.DType, a.Shape)
}

// CheckOperands refuses an operand that is given twice (in two formats, or both dense and expert by
// expert) and discrete operands with a gap between their experts.
func CheckOperands(operands []Operand) error {
	first := map[string]Operand{} // of each name
	experts := map[string][]int{}
	for _, o := range operands {
		f, again := first[o.Name]
		switch {
		case !again:
			first[o.Name] = o
		case (f.Expert == Dense) != (o.Expert == Dense):
			return fmt.Errorf("%w: operand %q: given both dense and expert by expert, want one of the two", ErrInvalid, o.Name)
		case o.Expert == Dense || slices.Contains(experts[o.Name], o.Expert):
			return fmt.Errorf("%w: operand %q: given twice (%q and %q)", ErrInvalid, o.Name, f.Array.Name, o.Array.Name)
		case f.Format != o.Format:
			return fmt.Errorf("%w: operand %q: expert %d is %v, expert %d is %v, want one format",
				ErrInvalid, o.Name, f.Expert, f.Format, o.Expert, o.Format)
		}
		if o.Expert != Dense {
			experts[o.Name] = append(experts[o.Name], o.Expert)
		}
	}
	for _, o := range operands {
		list := experts[o.Name]
		slices.Sort(list)
		for i, e := range list {
			if e != i {
				return fmt.Errorf("%w: operand %q: expert %d is missing", ErrInvalid, o.Name, i)
			}
		}
	}
	return nil
}
