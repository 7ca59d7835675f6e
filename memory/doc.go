// Package memory places buffers in an arena: byte offsets such that no two buffers whose uses may
// overlap in time, on any stream, share bytes, with as low a peak as can be found. It knows neither
// graphs nor devices: everything is a pure function over plain structs.
//
// # Order of events
//
//	Order, accesses      edges between nodes, and which nodes touch each buffer
//	  Order.Conflicts    transitive closure, then: may share iff all accesses of one precede all of the other
//	  (or Intervals      for lifetimes in a total order; or NewConflicts and Add for anything else)
//	  (Order.Merge       before it, where nodes may write over what they read)
//	Solve                split into components of the conflict graph, and for each of them
//	  bound              what must exist at once: maximum-weight antichain, or heaviest section or clique
//	  greedy             first fit, best fit and skyline in several orders; done if one meets the bound
//	  climb              exact search at the bound, then at capacities above it, several orders at once
//	Verify               everything again from edges and byte ranges, by other code
//
// A relation stays valid when edges are added and becomes unsafe when one is removed: plan after the
// last change of streams and events, and verify against the edges that the captured graph has.
//
// What touches a buffer is up to the caller: reads, writes, zeroing, scratch, copies, through every
// alias. An input is touched by a node before all others, an output by one after all others; an edge
// that does not mean full completion is no edge. Buffers that an in-place operator makes one are merged
// before planning (Order.Merge), and a view's accesses are its base's. Round sizes up to the alignment of the arena: then peaks are whole units.
//
// # Plans
//
// A Plan says its peak, a lower bound that no plan can beat, whether both are equal (Proven), and which
// buffers pin the bound: they conflict pairwise and need that many bytes. Budgets are counted in search
// nodes and steps, never in time, and of several orders the winner is the first by position: a plan does
// not depend on the machine, its load or the number of goroutines. Where sizes or conflicts change,
// everything may.
//
// # Complexity
//
// For V nodes, E edges, B buffers: O(V*E/64 + B*B) for conflicts, O(B*B) for each greedy pass, Dinic's
// algorithm on bitsets for the bound (B*B/64 a phase), and bounded work for the search. The problem is
// NP-hard, and components above 1,000 buffers are not searched but refitted. Planning a step of 60
// buffers takes about a millisecond, 2,000 nodes a few tenths of a second, 5,000 lifetimes about one.
//
// # Errors and goroutines
//
// Wrong input is an error of kind ErrInvalid that names the buffer, a capacity that is not met a
// *CapacityError (ErrCapacity) with the bound and the best plan, a plan that is not safe ErrUnsafe with
// the first violation. Nothing panics. All functions may be called from several goroutines at once; a
// Conflicts must not be changed meanwhile.
//
// The search is that of MiniMalloc (Moffitt, ASPLOS 2023), carried over from intervals to any conflict
// graph: cliques stand for sections, components for cuts in time.
package memory
