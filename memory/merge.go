package memory

import "slices"

// Alias says that a node writes buffer To over buffer From in place: at each index it reads From and writes To, and
// nothing else of it touches either. The two then are the same bytes.
type Alias struct {
	Node int // reads From and writes To
	From int // index of a buffer whose bytes end here
	To   int // index of the buffer whose bytes begin here
}

// Merged is a problem in which buffers that take over each other's bytes are one.
type Merged struct {
	Buffers  []Buffer // the groups, in the order of their first members
	Accesses [][]int  // the nodes that touch each group
	Group    []int    // of each buffer given, the index of its group
	Made     []Alias  // the aliases that hold, in the order given
}

// Merge makes one buffer of each two that an alias of may allows to be the same bytes:
//
//	From and To have equal sizes, and neither is fixed
//	every access of From's group but the alias's node happens before that node
//	every access of To's group but the alias's node happens after that node
//	the node touches nothing else of either group
//
// so that nobody finds the bytes of one where those of the other should be. What remains conflicts no more than
// before: where a third buffer conflicts with From and To as one, it conflicts with one of them alone, and those
// that conflict pairwise all do with the same one. A lower bound can only fall.
//
// Aliases are taken in the order given; of two that exclude each other the first holds. Offsets of the buffers
// given are those of their groups. A view, of a part of a buffer, is no buffer of its own: its accesses are the base's.
//
// Errors: those of Order.Conflicts, an alias of buffers that are not there or are the same, or of a node that does
// not touch both.
func (o Order) Merge(buffers []Buffer, accesses [][]int, may []Alias) (*Merged, error) {
	after, err := o.closure(accesses)
	if err != nil {
		return nil, err
	}
	if len(accesses) != len(buffers) {
		return nil, invalid("accesses: got those of %d buffers, want %d", len(accesses), len(buffers))
	}
	group := make([]int, len(buffers)) // of each buffer, the first member of its group
	users := make([][]int, len(buffers))
	for i := range buffers {
		group[i], users[i] = i, slices.Clone(accesses[i])
	}
	all := slices.Clone(buffers)
	m := &Merged{}
	for _, a := range may {
		if a.From < 0 || a.To < 0 || a.From >= len(buffers) || a.To >= len(buffers) || a.From == a.To {
			return nil, invalid("alias %v: want two buffers in [0, %d)", a, len(buffers))
		}
		if !slices.Contains(accesses[a.From], a.Node) || !slices.Contains(accesses[a.To], a.Node) {
			return nil, invalid("alias %v: node %d does not touch both buffers", a, a.Node)
		}
		from, to := group[a.From], group[a.To]
		ok := from != to && all[from].Size == all[to].Size && !all[from].Fixed && !all[to].Fixed
		for _, v := range users[from] {
			ok = ok && (v == a.Node || after[v].Test(uint(a.Node)))
		}
		for _, v := range users[to] {
			ok = ok && (v == a.Node || after[a.Node].Test(uint(v)))
		}
		for i, g := range group { // a node with two outputs takes over one of them
			ok = ok && (g != from && g != to || i == a.From || i == a.To || !slices.Contains(accesses[i], a.Node))
		}
		if !ok {
			continue
		}
		into, gone := min(from, to), max(from, to)
		all[into].Align = max(all[from].align(), all[to].align())
		users[into] = append(users[into], users[gone]...)
		for i, g := range group {
			if g == gone {
				group[i] = into
			}
		}
		m.Made = append(m.Made, a)
	}
	number := make([]int, len(buffers))
	m.Group = make([]int, len(buffers))
	for i, g := range group {
		if g == i {
			number[i] = len(m.Buffers)
			m.Buffers = append(m.Buffers, all[i])
			m.Accesses = append(m.Accesses, users[i])
		}
		m.Group[i] = number[g]
	}
	return m, nil
}
