//go:build gpu

package cuda

// #include "driver.h"
import "C"

import (
	"fmt"
	"unsafe"

	"gorgonia.org/cu"
)

// Graph is captured work.
type Graph struct {
	d      *Device
	cu     cu.Graph
	what   string
	closed bool
}

// NodeType is a kind of graph node.
type NodeType int

// The kinds of nodes that a capture makes.
const (
	KernelNode NodeType = C.CU_GRAPH_NODE_TYPE_KERNEL
	CopyNode   NodeType = C.CU_GRAPH_NODE_TYPE_MEMCPY
	FillNode   NodeType = C.CU_GRAPH_NODE_TYPE_MEMSET
	HostNode   NodeType = C.CU_GRAPH_NODE_TYPE_HOST
	ChildNode  NodeType = C.CU_GRAPH_NODE_TYPE_GRAPH
	EmptyNode  NodeType = C.CU_GRAPH_NODE_TYPE_EMPTY
	WaitNode   NodeType = C.CU_GRAPH_NODE_TYPE_WAIT_EVENT
	RecordNode NodeType = C.CU_GRAPH_NODE_TYPE_EVENT_RECORD
	AllocNode  NodeType = C.CU_GRAPH_NODE_TYPE_MEM_ALLOC
	FreeNode   NodeType = C.CU_GRAPH_NODE_TYPE_MEM_FREE
)

func (t NodeType) String() string {
	names := map[NodeType]string{
		KernelNode: "kernel", CopyNode: "copy", FillNode: "fill", HostNode: "host", ChildNode: "graph",
		EmptyNode: "empty", WaitNode: "wait for event", RecordNode: "record event", AllocNode: "alloc", FreeNode: "free",
	}
	if s := names[t]; s != "" {
		return s
	}
	return fmt.Sprintf("node type %d", int(t))
}

// Node is one node of a graph as read back from CUDA.
type Node struct {
	Type        NodeType
	Handle      cu.Node // the same as of Stream.Captured
	Kernel      string  // name of a kernel node's function
	Grid, Block [3]int
	SharedBytes int
	Src, Dst    uint64 // addresses of a copy; Dst of a fill
	Bytes       int64  // of a copy or a fill
	ToHost      bool   // a copy whose destination is host memory
	FromHost    bool   // a copy whose source is host memory
}

func (n Node) String() string {
	switch n.Type {
	case KernelNode:
		return fmt.Sprintf("kernel %s, grid %v, block %v, smem %d B", n.Kernel, n.Grid, n.Block, n.SharedBytes)
	case CopyNode, FillNode:
		return fmt.Sprintf("%v of %d bytes", n.Type, n.Bytes)
	default:
		return n.Type.String()
	}
}

// Edge says that node To runs after node From; both count in Nodes.
type Edge struct {
	From, To     int
	Programmatic bool // To may start before From has ended, and waits inside
}

// CU returns the graph as cu has it.
func (g *Graph) CU() cu.Graph { return g.cu }

// Nodes reads the nodes back.
func (g *Graph) Nodes() ([]Node, error) {
	handles, err := g.handles()
	if err != nil {
		return nil, err
	}
	nodes := make([]Node, len(handles))
	for i, h := range handles {
		if nodes[i], err = g.d.node(h); err != nil {
			return nil, fmt.Errorf("graph %q: node %d: %w", g.what, i, err)
		}
	}
	return nodes, nil
}

// Edges reads the edges back.
func (g *Graph) Edges() ([]Edge, error) {
	handles, err := g.handles()
	if err != nil {
		return nil, err
	}
	index := make(map[C.CUgraphNode]int, len(handles))
	for i, h := range handles {
		index[h] = i
	}
	from, to, kind, err := g.d.edges(g.c())
	if err != nil {
		return nil, err
	}
	edges := make([]Edge, len(from))
	for i := range from {
		edges[i] = Edge{From: index[from[i]], To: index[to[i]], Programmatic: kind[i]._type != 0}
	}
	return edges, nil
}

// Close destroys the graph. What was instantiated from it stays. A second Close does nothing.
func (g *Graph) Close() error {
	if g.closed {
		return nil
	}
	g.closed = true
	return g.d.do("cuGraphDestroy", fmt.Sprintf("graph %q", g.what), g.cu.Destroy)
}

func (g *Graph) c() C.CUgraph { return C.CUgraph(handle(&g.cu)) }

func (g *Graph) usable() error {
	if g.closed {
		return fmt.Errorf("graph %q: %w", g.what, ErrClosed)
	}
	return g.d.usable()
}

func (g *Graph) handles() ([]C.CUgraphNode, error) {
	if err := g.usable(); err != nil {
		return nil, err
	}
	var n C.size_t
	if r := C.moe_graph_nodes(g.d.c(), g.c(), nil, &n); r != 0 {
		return nil, g.d.fail(r, "cuGraphGetNodes", fmt.Sprintf("graph %q", g.what))
	}
	if n == 0 {
		return nil, nil
	}
	handles := make([]C.CUgraphNode, n)
	if r := C.moe_graph_nodes(g.d.c(), g.c(), &handles[0], &n); r != 0 {
		return nil, g.d.fail(r, "cuGraphGetNodes", fmt.Sprintf("graph %q", g.what))
	}
	return handles[:n], nil
}

// edges reads a graph's edges, also of one that is being captured.
func (d *Device) edges(g C.CUgraph) (from, to []C.CUgraphNode, kind []C.CUgraphEdgeData, err error) {
	var n C.size_t
	if r := C.moe_graph_edges(d.c(), g, nil, nil, nil, &n); r != 0 {
		return nil, nil, nil, d.fail(r, "cuGraphGetEdges", "")
	}
	if n == 0 {
		return nil, nil, nil, nil
	}
	from, to, kind = make([]C.CUgraphNode, n), make([]C.CUgraphNode, n), make([]C.CUgraphEdgeData, n)
	if r := C.moe_graph_edges(d.c(), g, &from[0], &to[0], &kind[0], &n); r != 0 {
		return nil, nil, nil, d.fail(r, "cuGraphGetEdges", "")
	}
	return from[:n], to[:n], kind[:n], nil
}

// node reads one node.
func (d *Device) node(h C.CUgraphNode) (Node, error) {
	var info C.moe_node_info
	if r := C.moe_node_info_of(d.c(), h, &info); r != 0 {
		return Node{}, d.fail(r, "cuGraphNodeGetType or GetParams", "reading a node back")
	}
	n := Node{
		Type:        NodeType(info._type),
		Handle:      *(*cu.Node)(unsafe.Pointer(&h)),
		SharedBytes: int(info.shared_bytes),
		Src:         uint64(info.src),
		Dst:         uint64(info.dst),
		Bytes:       int64(info.bytes),
	}
	for i := range 3 {
		n.Grid[i], n.Block[i] = int(info.grid[i]), int(info.block[i])
	}
	switch n.Type {
	case KernelNode:
		n.Kernel = d.functionName(info.function)
	case CopyNode:
		n.FromHost = info.src_kind == C.CU_MEMORYTYPE_HOST
		n.ToHost = info.dst_kind == C.CU_MEMORYTYPE_HOST
	}
	return n, nil
}

// functionName returns the name of a function, by the driver or, where it is too old to say, by our own list.
func (d *Device) functionName(f C.CUfunction) string {
	var name *C.char
	if r := C.moe_function_name(d.c(), f, &name); r == 0 && name != nil {
		return C.GoString(name)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.names[unsafe.Pointer(f)]
}
