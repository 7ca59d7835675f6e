package memory

import (
	"fmt"
	"slices"
)

// Access is one use of arena bytes by a node.
type Access struct {
	Node   int
	Offset int64 // bytes from the start of the arena
	Size   int64 // bytes
	Write  bool  // writes, zeroes or uses as scratch; false: only reads
	Buffer int   // index of the buffer the bytes belong to; -1: to none
}

// Verify checks a plan without the planner's code and data, against the order alone. It returns nil or
// the first violation, of kind ErrUnsafe, or ErrInvalid where the input makes no sense.
//
// Static form: every buffer lies in [0, arena) at its alignment (and at its offset if fixed), its
// accesses lie inside it, and of two buffers that share bytes every access of one happens before every
// access of the other. A buffer without accesses may share with nobody.
//
// Hazard form, which does not trust the bookkeeping of buffers: of two nodes that touch a common byte,
// at least one writing, one happens before the other; and one node does not touch a common byte
// through two buffers if it writes one of them.
//
// Aliases are the exception: buffers that an in-place node takes one over the other lie at the same offset, every
// other access of the first comes before that node and every other access of the second after it, no bytes are
// taken over twice, and they share with each other alone by that. Whether the node may work in place is the
// caller's to know.
//
// Time: O(pairs that share bytes * accesses) after one depth-first search a node, O(V*E) at worst.
func Verify(order Order, buffers []Buffer, offsets []int64, accesses []Access, arena int64, aliases ...Alias) error {
	r, err := newReach(order)
	if err != nil {
		return err
	}
	if err := checkPlaces(buffers, offsets, arena); err != nil {
		return err
	}
	if err := checkAccesses(order, buffers, offsets, accesses, arena); err != nil {
		return err
	}
	inPlace, err := checkAliases(r, buffers, offsets, accesses, aliases)
	if err != nil {
		return err
	}
	if err := checkSharing(r, buffers, offsets, accesses, inPlace); err != nil {
		return err
	}
	return checkHazards(r, accesses, inPlace)
}

// checkAliases checks each alias by itself and returns their nodes by the pair of buffers, the lower index first.
func checkAliases(r *reach, buffers []Buffer, offsets []int64, accesses []Access, aliases []Alias) (map[[2]int]int, error) {
	inPlace := map[[2]int]int{}
	ended, begun := map[int]bool{}, map[int]bool{}
	for _, a := range aliases {
		if min(a.From, a.To) < 0 || max(a.From, a.To) >= len(buffers) || a.From == a.To {
			return nil, violation("alias of buffers %d and %d: want two in [0, %d)", a.From, a.To, len(buffers))
		}
		name := fmt.Sprintf("buffer %d %q in place of %d %q", a.To, buffers[a.To].Name, a.From, buffers[a.From].Name)
		switch {
		case ended[a.From] || begun[a.To]:
			return nil, violation("%s: one of them is taken over or takes over already", name)
		case offsets[a.From] != offsets[a.To] || buffers[a.From].Size != buffers[a.To].Size:
			return nil, violation("%s: %d bytes at %d and %d at %d, want the same", name,
				buffers[a.To].Size, offsets[a.To], buffers[a.From].Size, offsets[a.From])
		}
		ended[a.From], begun[a.To] = true, true
		var reads, writes bool
		for _, x := range accesses {
			switch {
			case x.Node == a.Node && x.Buffer == a.From:
				if x.Write {
					return nil, violation("%s: node %d writes the one that ends", name, a.Node)
				}
				reads = true
			case x.Node == a.Node && x.Buffer == a.To:
				writes = writes || x.Write
			case x.Buffer == a.From && !r.before(x.Node, a.Node):
				return nil, violation("%s: node %d uses the first and need not be done when node %d overwrites it", name, x.Node, a.Node)
			case x.Buffer == a.To && !r.before(a.Node, x.Node):
				return nil, violation("%s: node %d uses the second and may start before node %d writes it", name, x.Node, a.Node)
			}
		}
		if !reads || !writes {
			return nil, violation("%s: node %d does not read the one and write the other", name, a.Node)
		}
		inPlace[[2]int{min(a.From, a.To), max(a.From, a.To)}] = a.Node
	}
	return inPlace, nil
}

func violation(format string, args ...any) error {
	return fmt.Errorf("memory: verify: %s: %w", fmt.Sprintf(format, args...), ErrUnsafe)
}

func checkPlaces(buffers []Buffer, offsets []int64, arena int64) error {
	if len(offsets) != len(buffers) {
		return violation("got %d offsets, want one for each of %d buffers", len(offsets), len(buffers))
	}
	for i, b := range buffers {
		name := fmt.Sprintf("buffer %d %q", i, b.Name)
		switch off := offsets[i]; {
		case b.Size < 0:
			return violation("%s: size %d is negative", name, b.Size)
		case off < 0 || off > arena || b.Size > arena-off:
			return violation("%s: offset %d, size %d: outside the arena of %d bytes", name, off, b.Size, arena)
		case b.Align > 1 && off%b.Align != 0:
			return violation("%s: offset %d is no multiple of %d", name, off, b.Align)
		case b.Fixed && off != b.Offset:
			return violation("%s: offset %d, want the fixed %d", name, off, b.Offset)
		}
	}
	return nil
}

func checkAccesses(order Order, buffers []Buffer, offsets []int64, accesses []Access, arena int64) error {
	for _, a := range accesses {
		if a.Node < 0 || a.Node >= order.Nodes {
			return violation("access by node %d: want one in [0, %d)", a.Node, order.Nodes)
		}
		if a.Offset < 0 || a.Size < 0 || a.Offset > arena || a.Size > arena-a.Offset {
			return violation("access by node %d: offset %d, size %d: outside the arena of %d bytes",
				a.Node, a.Offset, a.Size, arena)
		}
		if a.Buffer == -1 {
			continue
		}
		if a.Buffer < 0 || a.Buffer >= len(buffers) {
			return violation("access by node %d: buffer %d: want -1 or one in [0, %d)", a.Node, a.Buffer, len(buffers))
		}
		off, b := offsets[a.Buffer], buffers[a.Buffer]
		if a.Offset < off || a.Offset-off > b.Size-a.Size {
			return violation("access by node %d: [%d, %d) leaves buffer %d %q at [%d, %d)",
				a.Node, a.Offset, a.Offset+a.Size, a.Buffer, b.Name, off, off+b.Size)
		}
	}
	return nil
}

// checkSharing is the static form: sweep by offset, test the definition on every pair that shares.
func checkSharing(r *reach, buffers []Buffer, offsets []int64, accesses []Access, inPlace map[[2]int]int) error {
	users := make([][]int, len(buffers))
	for _, a := range accesses {
		if a.Buffer >= 0 {
			users[a.Buffer] = append(users[a.Buffer], a.Node)
		}
	}
	var byOffset []int
	for i, b := range buffers {
		if b.Size > 0 {
			byOffset = append(byOffset, i)
		}
	}
	slices.SortStableFunc(byOffset, func(i, j int) int { return compareInt64(offsets[i], offsets[j]) })
	var open []int // buffers that may reach past the sweep
	for _, i := range byOffset {
		open = slices.DeleteFunc(open, func(j int) bool { return offsets[j]+buffers[j].Size <= offsets[i] })
		for _, j := range open {
			if _, ok := inPlace[[2]int{min(i, j), max(i, j)}]; ok {
				continue
			}
			if !allBefore(r, users[i], users[j]) && !allBefore(r, users[j], users[i]) {
				return violation("buffer %d %q at [%d, %d) and buffer %d %q at [%d, %d) share bytes, "+
					"and neither is done before the other starts%s",
					j, buffers[j].Name, offsets[j], offsets[j]+buffers[j].Size,
					i, buffers[i].Name, offsets[i], offsets[i]+buffers[i].Size, unordered(r, users[j], users[i]))
			}
		}
		open = append(open, i)
	}
	return nil
}

func allBefore(r *reach, first, then []int) bool {
	for _, u := range first {
		for _, v := range then {
			if !r.before(u, v) {
				return false
			}
		}
	}
	return len(first) > 0 && len(then) > 0
}

// unordered names two nodes without an order, for the message.
func unordered(r *reach, first, then []int) string {
	for _, u := range first {
		for _, v := range then {
			if !r.before(u, v) && !r.before(v, u) {
				return fmt.Sprintf(" (no order between nodes %d and %d)", u, v)
			}
		}
	}
	return ""
}

// checkHazards is the hazard form: sweep the accesses by offset, whatever buffer they claim.
func checkHazards(r *reach, accesses []Access, inPlace map[[2]int]int) error {
	var byOffset []Access
	for _, a := range accesses {
		if a.Size > 0 {
			byOffset = append(byOffset, a)
		}
	}
	slices.SortStableFunc(byOffset, func(a, b Access) int { return compareInt64(a.Offset, b.Offset) })
	var open []Access
	for _, a := range byOffset {
		open = slices.DeleteFunc(open, func(b Access) bool { return b.Offset+b.Size <= a.Offset })
		for _, b := range open {
			if !a.Write && !b.Write {
				continue
			}
			if a.Node == b.Node {
				at, ok := inPlace[[2]int{min(a.Buffer, b.Buffer), max(a.Buffer, b.Buffer)}]
				if a.Buffer != b.Buffer && !(ok && at == a.Node && a.Offset == b.Offset && a.Size == b.Size) {
					return violation("node %d touches byte %d through buffers %d and %d, and writes it",
						a.Node, a.Offset, b.Buffer, a.Buffer)
				}
				continue
			}
			if !r.before(a.Node, b.Node) && !r.before(b.Node, a.Node) {
				return violation("nodes %d and %d both touch byte %d (buffers %d and %d), one writes, "+
					"and nothing orders them", b.Node, a.Node, a.Offset, b.Buffer, a.Buffer)
			}
		}
		open = append(open, a)
	}
	return nil
}

func compareInt64(a, b int64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}
