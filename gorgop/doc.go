// Package gorgop makes computations of moegraph ops of gorgonia.org/gorgonia: a mixture-of-experts layer ([MoE]), an
// output of a compiled Program ([FromProgram]) or of any graph ([New]) becomes a [Layer], which is applied to nodes
// of an ExprGraph and trained by TapeMachine or LispMachine and gorgonia's solvers.
//
// # Order of events
//
//	layer    MoE, FromProgram or New: differentiated, split into a forward and a backward half, compiled
//	apply    Layer.Weights makes nodes of the parameters, Layer.Apply a node of the output; as often as wanted
//	run      a forward Do is one replay of the forward half; it keeps what the backward half reads, in its own memory
//	grad     a backward Do is one replay of the backward half, for all gradients, and of Config.Optimizer
//	close    Layer.Close, Layer.Release
//
// An application is two nodes, one that begins the replay and one that waits for it, and so is its gradient.
// [Layer.Start] and [Pending.Await] make them one by one: on a GPU, other ops of gorgonia run in between.
//
// Nothing is computed twice: the backward half reads the forward one's activations. A machine in evaluation mode
// (gorgonia.EvalMode) keeps none.
//
// # Who owns the weights
//
// With [NodeWeights] parameters are nodes and a solver of gorgonia updates them; [Layer.Store] puts them back into
// the Vars. With [ProgramWeights] they stay in the Vars, on the device, and the optimizer is part of the backward
// replay: whatever runs the gradient nodes trains. gorgonia tells ops the mode of a machine when it is made, not when it
// runs, so that EvalMode does not keep weights as they are: evaluate on a graph without gradient nodes.
//
// # Copies
//
// On the host device float32 graphs share memory with the layer both ways: nothing is copied. A float64 graph is
// converted at the border. On a GPU every operand is copied once, through pinned memory, and every result once. Views
// and transposes are made contiguous by a copy; what Go cannot reach is an error.
//
// # Precision
//
// A float64 graph is rounded to float32 at the border of a layer whose inputs are float32, as those of MoE are: a
// relative error of 2^-24 for each element, forward and backward, whatever gorgonia computes around it. A graph of
// moegraph whose inputs are float64 computes in float64 throughout. With Compute bf16, operands of the products are
// rounded to 8 bits of mantissa (2^-9) and sums are float32.
//
// # Errors and goroutines
//
// No call panics. Errors of gorgonia's machines wrap those of package graph (ErrShape, ErrDType, ErrUsage, ErrDevice).
// A Layer may be used from several goroutines. An ExprGraph, with its machine, belongs to one at a time, as ever. With
// ProgramWeights and an optimizer, steps come one after the other: a second backward replay at the same time, or one
// whose weights another has updated since its forward replay, is an error.
package gorgop
