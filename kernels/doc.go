// Package kernels turns a [graph.Kernel], which names a CUDA C++ source and the constants that it is compiled
// with, into a loaded function. The sources are the files of the folder cuda, embedded whole.
//
// # Order of events
//
//	Describe  every step of a Program tells its launches
//	Stub      the constants become struct Params, then the source is included
//	Key       hash of stub, sources, flags, architecture and compiler version
//	Image     from the disk, else compiled: cubin, registers, spills
//	Acquire   images become loaded modules, pinned until the Set is closed
//
// The main types are [Cache] (the loaded modules of one device), [Set] (those that one Exec uses), [Image] (a
// compiled kernel), [Disk] (compiled kernels between runs) and [Compiler], which package internal/nvrtc
// implements. Nothing here needs CUDA.
//
// # Errors
//
// A source that does not compile is an error that holds the compiler's log. A damaged or foreign file on the disk
// is no error: the kernel is compiled anew.
//
// # Goroutines
//
// Cache and Disk serve any number of goroutines; however many ask for a kernel, it is compiled once. Several
// processes may share one folder.
package kernels
