package nodes

import (
	"fmt"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
)

func init() {
	graph.Register(graph.Info{Example: dispatch{Experts: 8, Align: DefaultAlignment, Capacity: 4096},
		Doc:     "counts, padded offsets and the maps between rows and (token, slot), from expert ids",
		Options: []string{"num_experts", "alignment = 256", "capacity = room for every slot"}, NoGrad: "its outputs are integers"})
}

// Routing is what dispatch makes of expert ids: the row layout that the nodes over groups share.
type Routing struct {
	TopKIdx       *graph.Value // int32 (T,k): the ids it was made from
	Counts        *graph.Value // int32 (E,): rows of each expert without padding
	PaddedOffsets *graph.Value // int32 (E,): ends of the experts' rows, multiples of the alignment
	RowMap        *graph.Value // int32 (T,k): the row of a slot, -1 for a dropped one
	SlotMap       *graph.Value // int32 (M,): token*k + slot of a row, -1 for padding
	Overflow      *graph.Value // int32 (1,): slots that found no row within the capacity
	Invalid       *graph.Value // int32 (1,): ids outside [-1,E), treated as -1
	Assigned      *graph.Value // int32 (E,): slots of each expert before any was lost to the capacity
	Alignment     int
}

// Dispatch are the operands and options of dispatch (contracts, section 9). Rows of one expert are in the order of
// tokens; the experts follow one another, each beginning at a multiple of the alignment.
type Dispatch struct {
	TopKIdx   *graph.Value // int32 (T,k); -1: dropped
	Experts   int
	Alignment int // a power of two up to 256; default 256
	// Capacity is the number of rows M. The default T*k + E*(alignment-1), rounded up to the alignment,
	// holds every slot whatever the ids are; rows beyond a smaller one are lost and counted in Overflow.
	Capacity int
}

// Apply appends the node and returns the row layout.
func (o Dispatch) Apply() Routing {
	a := alignment(o.Alignment)
	if o.Capacity == 0 && checkAlignment(a) == nil {
		o.Capacity = (o.TopKIdx.Elems() + max(o.Experts, 0)*(a-1) + a - 1) / a * a
	}
	out := graph.Apply(dispatch{Experts: o.Experts, Align: a, Capacity: o.Capacity}, o.TopKIdx)
	return Routing{TopKIdx: o.TopKIdx, Counts: out[0], PaddedOffsets: out[1], RowMap: out[2], SlotMap: out[3], Overflow: out[4], Invalid: out[5], Assigned: out[6], Alignment: a}
}

// Watch marks Overflow and Invalid as outputs, so that Check can read them, and returns r.
func (r Routing) Watch() Routing {
	if g := r.Overflow.Graph(); g != nil && r.Overflow.Err() == nil {
		g.Output(r.Overflow.Name(), r.Overflow)
		g.Output(r.Invalid.Name(), r.Invalid)
	}
	return r
}

// Check returns an error if the last replay of e lost slots to the capacity or met ids that name no expert. Watch
// must have been called before Compile.
func (r Routing) Check(e *graph.Exec) error {
	var overflow, invalid [1]int32
	if _, err := e.Read(r.Overflow, overflow[:]); err != nil {
		return err
	}
	if _, err := e.Read(r.Invalid, invalid[:]); err != nil {
		return err
	}
	if overflow[0] == 0 && invalid[0] == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s: %d slots found no row within the capacity of %d, %d ids name no expert",
		graph.ErrShape, r.Overflow.Name(), overflow[0], r.SlotMap.Dim(0), invalid[0])
}

type dispatch struct {
	Experts, Align, Capacity int
}

func (o dispatch) Kind() string              { return "dispatch" }
func (o dispatch) Operands() []graph.Operand { return []graph.Operand{{Name: "topk_idx"}} }

func (o dispatch) Outputs() []string {
	return []string{"counts", "padded_offsets", "row_map", "slot_map", "overflow", "invalid", "assigned"}
}

// Infer implements graph.Op; the rows of slot_map in use are counted by padded_offsets, of the same node.
func (o dispatch) Infer(in []*graph.Value) ([]graph.Spec, error) {
	ids := in[0]
	if ids.DType() != dtype.Int32 {
		return nil, graph.BadDType("topk_idx", ids.DType(), "int32")
	}
	if ids.Rank() != 2 || ids.Dim(1) < 1 {
		return nil, graph.BadShape("topk_idx", ids.Text(), "(T,k)")
	}
	if o.Experts < 1 || o.Experts > MaxExperts {
		return nil, graph.BadShape("num_experts", o.Experts, "from 1 to %d", MaxExperts)
	}
	if err := checkAlignment(o.Align); err != nil {
		return nil, err
	}
	if o.Capacity < 0 || o.Capacity%o.Align != 0 {
		return nil, graph.BadShape("capacity", o.Capacity, "a multiple of the alignment %d of at least 0", o.Align)
	}
	if int64(ids.Elems()) > 1<<31-1 || o.Capacity > 1<<31-1 {
		return nil, graph.BadShape("topk_idx", fmt.Sprintf("%d slots, capacity %d", ids.Elems(), o.Capacity), "less than 2^31 of either")
	}
	e := graph.Spec{DType: dtype.Int32, Shape: []int{o.Experts}}
	one := graph.Spec{DType: dtype.Int32, Shape: []int{1}}
	return []graph.Spec{e, e, {DType: dtype.Int32, Shape: ids.Shape(), Rows: ids.Rows()},
		{DType: dtype.Int32, Shape: []int{o.Capacity}, RowsOf: 2}, one, one, e}, nil
}

func (o dispatch) Host(c *graph.Call) func() error {
	ids := c.In[0]
	k := ids.Shape[1]
	assigned, begin, next := make([]int32, o.Experts), make([]int32, o.Experts), make([]int32, o.Experts)
	return func() error {
		slots := ids.Rows() * k
		id := ints(ids)[:slots]
		clear(assigned)
		invalid := int32(0)
		for _, e := range id {
			switch {
			case uint32(e) < uint32(o.Experts):
				assigned[e]++
			case e != -1:
				invalid++
			}
		}
		end := o.layout(c, assigned, begin)
		copy(next, begin)
		rowMap, slotMap := optionalInts(c.Out[2]), optionalInts(c.Out[3])
		for i := range slotMap[:min(end, len(slotMap))] {
			slotMap[i] = -1
		}
		overflow := int32(0)
		for s, e := range id {
			row := int32(-1)
			if uint32(e) < uint32(o.Experts) {
				row = next[e]
				next[e]++
				if int(row) >= o.Capacity {
					row = -1
					overflow++
				} else if slotMap != nil {
					slotMap[row] = int32(s)
				}
			}
			if rowMap != nil {
				rowMap[s] = row
			}
		}
		setInt(c.Out[4], overflow)
		setInt(c.Out[5], invalid)
		if c.Out[6] != nil {
			copy(ints(c.Out[6]), assigned)
		}
		return nil
	}
}

// layout fills begin, counts and padded_offsets, cut at the capacity, and returns the number of rows in use.
func (o dispatch) layout(c *graph.Call, assigned, begin []int32) int {
	counts, offsets := optionalInts(c.Out[0]), optionalInts(c.Out[1])
	at := 0
	for e, n := range assigned {
		begin[e] = int32(min(at, 1<<31-1))
		kept := max(0, min(int(n), o.Capacity-at))
		at += (int(n) + o.Align - 1) / o.Align * o.Align
		if counts != nil {
			counts[e] = int32(kept)
		}
		if offsets != nil {
			offsets[e] = int32(min(at, o.Capacity))
		}
	}
	return min(at, o.Capacity)
}

// optionalInts views an output that may not be wanted.
func optionalInts(t *graph.Tensor) []int32 {
	if t == nil {
		return nil
	}
	return ints(t)
}

func setInt(t *graph.Tensor, x int32) {
	if t != nil {
		ints(t)[0] = x
	}
}
