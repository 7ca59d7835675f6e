// Package nvrtc compiles CUDA C++ at run time with NVIDIA's NVRTC, which is looked for on the machine when first
// needed, so that a program needs no CUDA to be built or started. Behind the build tag gpu.
//
// [Open] finds the library and [Compiler.Compile] makes a cubin; a Compiler serves any number of goroutines.
// The first place that has a library which loads wins:
//
//	MOEGRAPH_NVRTC                the library or the folder that holds it
//	CUDA_HOME, CUDA_PATH          lib64, lib, targets/*/lib
//	/usr/local/cuda, cuda-*       the newest first
//	python3's site-packages       nvidia/cu13/lib, nvidia/cuda_nvrtc/lib
//	the dynamic linker's path
package nvrtc
