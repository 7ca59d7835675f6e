// Package graph is the heart of moegraph: a training step as a computation graph that is planned once
// and replayed many times. It knows shapes, gradients, plans and executions; what an operator computes
// is package nodes' affair, and where it runs is a device's.
//
// # Order of events
//
//	build     operators append nodes to a [Graph]; the first mistake is kept, later calls do nothing
//	gradient  [Graph.Gradients] appends the backward nodes, each from its operator's own rule
//	compile   [Graph.Compile] prunes, fuses, orders, puts on streams and places in memory: a [Program]
//	exec      [Program.Exec] binds a Program to a [Vars] and to memory of its own: an [Exec]
//	replay    [Exec.Write], [Exec.Replay], [Exec.Read], as often as you like; [Training] is that loop
//
// # Types
//
// A [Value] has a dtype, a shape and a kind (input, parameter, state, workspace). Its first axis may be
// a capacity, made by [UpTo]: then the number of rows in use is data, kept on the device, and changes
// from replay to replay. Parameters and optimizer state live in a [Vars], apart from any Program.
// An [Op] is one operator; [Register] makes it known, also from outside this module.
//
// # Variables are read in the order of building
//
// A node that is built after an update of a variable sees the updated variable; one built before sees
// the old one. The compiler turns that into ordering, whatever the streams.
//
// # Plans
//
// Compiling decides in which order and on which streams the steps run, which waits between streams keep the order, and
// where in one arena each workspace lies. Schedules on 1, 2, 4 and 8 streams and the one of fewest waits are simulated with
// the device's [Rates] (or with measured times: [Exec.Profile], [Program.WithProfile]); a stream is used only if it is
// worth it. Two workspaces share bytes only if every use of one happens before every use of the other in the order
// that streams and waits give, or if a step that says so ([InPlacer]) makes one out of the other in place. Package memory
// finds the offsets and the bytes below which none can come. [Program.Verify] checks a finished plan by other code.
// [Options].MaxWorkspace limits the arena. A [Plan] is text too; MOEGRAPH_PLANS names a folder in which plans are kept.
//
// # Errors
//
// A user's mistake is an error of kind [ErrShape], [ErrDType], [ErrUnsupported], [ErrDevice] or [ErrUsage]
// (for errors.Is). It names the node, the operand, what was given and what is allowed.
//
// # Goroutines
//
// A Graph is built by one goroutine at a time. A Program is immutable and shared freely. An Exec serves
// one call at a time (it locks); different Execs of one Program replay at once. Execs that only read a
// Vars run together; one that writes waits for them, and a second concurrent writer gets an error.
package graph
