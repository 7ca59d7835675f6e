// Package gemm multiplies matrices on one goroutine of the host: float32 sums of float32, bf16, f16 or
// block-scaled operands, in plain Go builds without cgo. The operators of the host device are made of it and bring
// the parallelism: they cut the output into pieces, with one Work a goroutine.
//
// Order of events in Work.Mul, after the loops of BLIS (Van Zee and van de Geijn, "BLIS: A Framework
// for Rapidly Instantiating BLAS Functionality", ACM TOMS 41, 2015):
//
//	for blocks of k                    stepsOfK; the first block takes beta into account
//	  for blocks of columns of B       packB: decoded panels of 16 columns
//	    for blocks of rows of A        packA: decoded rows
//	      for panels, for tiles        one call of a kernel, which holds its tile of C in registers
//
// Kernels: 6x16 and 4x16 in assembly on amd64 with AVX2, FMA and F16C (kernel_amd64.s, with the
// packing in pack_amd64.s), 4x16 in Go elsewhere (generic.go). They sum in the same order, so that the
// shape of a tile does not show in the result. Where C ends inside a tile, the tile is computed whole,
// beside C, with zeros for what is missing from A and B.
//
// Blocks, for 32 KiB of first-level and 512 KiB of second-level cache: a panel of B is 16 KiB and stays
// in the first level, a block of A is 102 KiB and streams from the second. 256 steps of k keep the
// rounding error flat in k as well. Other sizes (k 192 to 384, rows 48 to 384, columns 128 to 1024) came
// out within noise of these. What did count: to pack 8 panels together where the rows of B are a power
// of two apart (24x1024x1024: from 20 to 65 GFLOP/s), and few panels at a time where A is one block.
//
// Shapes that do not belong together panic: they are mistakes of the caller, an operator, not of a user.
// Nothing is shared: any number of goroutines may multiply, each with its own Work.
package gemm
