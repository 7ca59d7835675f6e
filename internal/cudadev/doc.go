// Package cudadev is the device "cuda:N": a Program's launches captured into one CUDA graph and replayed by one call
// of the driver. Package nodes registers it under the build tag gpu. Without the tag there are the parts that need no
// driver: what a step launches ([Describe]), how its arguments lie in memory, and [Plan], a device that only plans.
//
// # Order of events
//
//	Open     the primary context, a stream for copies, the kernels' cache; one Device for each GPU
//	Load     every step describes its launches; kernels are compiled in parallel, loaded, their attributes set
//	capture  at the first replay, when every address is known: the origin stream begins, events fork and join
//	         side streams, each step launches once; then the graph is instantiated and uploaded
//	replay   one launch of the graph on the Exec's stream, or the caller's
//	rebind   other addresses: the capture is repeated, and the graph updated where its topology allows, which it
//	         does, or instantiated anew
//
// # Memory and order
//
// Each Exec has one stream; its copies, fills and replays are ordered by it. Copies from the host go through pinned
// blocks that stay until the copy is done. Memory.Read and Memory.Write are apart from that order and return when
// the copy is done.
//
// # Errors
//
// Every error names what was being done. A failed capture names stream and node, gives everything back, and the
// next capture works.
//
// # Goroutines
//
// Nothing depends on the thread that a goroutine runs on, except that one capture keeps its thread. Device serves any
// number of goroutines; captures of several Execs run side by side.
package cudadev
