// Package nodes holds the operators of a mixture-of-experts training step: for each its shape rule, gradient,
// cost and host code. Importing it registers them, and the host device, with package graph.
//
// A layer in one call is [MoELayer]. The operators that have many operands are structs of operands and options
// with an Apply method ([GroupedGEMM], [GroupedGEMMGLU], [WGrad], [Router], [Dispatch]); the others are functions
// ([Linear], [RMSNorm], [CrossEntropy], [Add]). Optimizers take a graph's gradients: [AdamW], [SGD].
//
// # Numbers
//
// The host code is the reference for every device. It computes in float32, or in float64 where every float of
// a graph is float64, and rounds each output once. No sum depends on the number of cores.
//
// # Block-scaled operands
//
// [Quantize] turns a matrix into codes of 8 or 4 bits with a factor for each block ([BlockFormat]), [Dequantize] back.
// The grouped products take such operands by the fields of [Scales] and [Weights] and may quantize their output in the
// same way; [WGrad] takes factors along the tokens. Gradients are straight through the rounding. [MoE] has the recipe
// (Precision) and weights that stay in MXFP4 (FrozenExperts).
//
// # To add an operator
//
//  1. A file of its own: a comparable struct that implements [graph.Op], with the options as fields; the
//     constructor; Gradient, if it is differentiable; Flops, if they matter.
//  2. Its host code: Host, in the same file or in one with the suffix _host. InPlace, if an output may lie where an
//     operand lies, on every device. CheckValues, if operands hold integers that have limits.
//  3. Its launches on GPUs: CUDA, in a file with the suffix _cuda, its device code in kernels/cuda, and a case among the
//     GPU cases, which hold it to the host code.
//  4. graph.Register in the file's init, with one sentence on what it computes, and the reason where there is
//     no gradient.
//  5. Tests: shapes and refusals, host code against plain code, the gradient by checkGrads, which a test that
//     walks the table of operators asks for.
//  6. If the command line is to run it, its row in internal/runnode.
package nodes

import _ "github.com/moegraph/moegraph/internal/host" // registers the device
