package graph

// Kernel names a device kernel and the constants that it is compiled with. Two equal Kernels are one compiled
// function: everything static enters it, numbers of rows never do.
type Kernel struct {
	// Name is the kernel's name in errors, profiles and caches, and of the extern "C" function.
	Name string
	// Source is the file of package kernels that defines it, such as "rmsnorm.cuh"; for an operator of another
	// package it is the CUDA C++ text itself, with Inline set.
	Source string
	Inline bool
	// Params is a comparable struct of integers, bools, floats and strings (C++ type or constant names). The
	// generated stub defines it as struct Params with a static constexpr member for each field (a using for
	// a string field whose name ends in Type) before it includes the source.
	Params any
}

// Launch is one launch of a kernel.
type Launch struct {
	Kernel      Kernel
	Grid, Block [3]int
	SharedBytes int   // dynamic shared memory
	Cluster     int   // thread blocks of a cluster along x; 0: none
	Args        []any // in the order of the function's parameters: Pointer, Count, or an int32, int64, uint32, uint64, float32, float64, uint8
}

// Pointer is an argument: the device address of a tensor (plus an offset in bytes), null for a nil tensor.
type Pointer struct {
	T      *Tensor
	Offset int64
}

// Count is an argument: the device address of the int32 that counts T's rows in use, null where all rows of the
// capacity are.
type Count struct{ T *Tensor }

// CUDAOp is an Op that runs on CUDA devices. It only describes its launches, so it needs no CUDA itself.
type CUDAOp interface {
	Op
	// CUDA returns the launches that run the node, in order, on one stream.
	CUDA(c *KernelCall) ([]Launch, error)
}

// CUDAScratcher is a CUDAOp whose launches share bytes of their own, from the arena.
type CUDAScratcher interface {
	CUDAScratch(n *Node, d GPU) int64
}

// GPU is what a launch may depend on.
type GPU struct {
	Arch        int // compute capability times ten: 80, 90, 120
	Units       int // multiprocessors
	SharedBytes int // dynamic shared memory that one thread block may have
	L2Bytes     int
}

// KernelCall is one node's view of an Exec on a GPU. Tensors have no Data; Pointer and Count give their addresses.
type KernelCall struct {
	Name    string
	Op      Op
	In      []*Tensor // nil where an operand is absent
	Out     []*Tensor // nil where nobody needs the output
	Scratch *Tensor   // the bytes that CUDAScratcher asked for; nil: none
	GPU     GPU
}
