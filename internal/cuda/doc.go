// Package cuda is the thin layer over gorgonia.org/cu: what cu lacks, on cu's types, with errors that say what
// was being done. Everything but this file needs the build tag gpu, linux, and the headers of CUDA 12 or 13 at build
// time (see package toolkit); at run time the driver alone, which is loaded when it is first needed.
//
// # Order of events
//
//	if err := cuda.Available(); err != nil      // no driver, no visible device, or what initialization said
//	d, err := cuda.Open(0)                      // the primary context of a device; Close
//	mem, err := d.Alloc(1<<20, "arena")         // Memory: Write, Read, WriteAsync, ReadAsync, Fill8, Fill32, Copy; Free
//	pin, err := d.AllocPinned(1<<20, "staging") // Pinned: Bytes; Free
//	s, err := d.NewStream("main")               // Stream: Record, WaitEvent, Query, Synchronize; Close
//	e, err := d.NewEvent(true)                  // Event: Synchronize, Elapsed; Close
//	m, err := d.LoadModule(cubin, "rmsnorm")    // Module: Function; Close
//	f, err := m.Function("rmsnorm")             // Function: Attributes, Params, SetDynamicShared, MaxClusters
//
//	var args cuda.ArgBuffer                     // arguments of any size, each at its alignment
//	args.Ptr(mem.Ptr())
//	args.Int32(4)
//	err = f.Launch(s, cuda.LaunchConfig{Name: "layer0/norm", Grid: [3]int{132, 1, 1}, Block: [3]int{256, 1, 1}}, &args)
//
//	g, err := s.Capture("step", func() error {  // launches, copies, fills, events of this function become a Graph
//		return f.Launch(s, config, &args)
//	})
//	nodes, err := g.Nodes()                     // and Edges: what was captured, for tests
//	x, err := g.Instantiate("step")             // GraphExec
//	err = x.Upload(s)
//	err = x.Launch(s)                           // one cgo call, no allocation
//	result, err := x.Update(g2)                 // same topology, other arguments and grids
//	g.Close(); x.Close()
//
// # Threads
//
// CUDA keeps the current context for each thread, and goroutines change threads. Every call here sets the context
// in the same cgo call that uses it, or locks the thread around the two; callers need to know nothing of it. All
// methods may be called from any goroutine; one object's Close or Free must come after its other calls. ArgBuffer is
// for one goroutine. Capture runs its function on a locked thread, in the thread-local mode: what other goroutines
// do meanwhile does not disturb it. Their Device.Synchronize waits for its end, and their Synchronize of a stream that
// is being captured is refused.
//
// # Errors
//
// Errors are [*Error]: the call, CUDA's name and description, and what was being done. A failed allocation lists the
// device's memory: what was free and what this process holds, by name. After an error that breaks a context for good
// (an illegal address, a launch failure) every later call on the device returns [ErrFailed] with the first such error:
// only another process can use the device again.
package cuda
