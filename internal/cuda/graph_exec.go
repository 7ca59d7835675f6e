//go:build gpu

package cuda

// #cgo noescape moe_graph_launch
// #cgo nocallback moe_graph_launch
// #include "driver.h"
import "C"

import (
	"fmt"
	"unsafe"

	"gorgonia.org/cu"
)

// GraphExec is a Graph made ready to run. It runs once at a time: launches of one GraphExec follow each other, also
// on different streams.
type GraphExec struct {
	d      *Device
	cu     cu.ExecGraph
	what   string
	closed bool
}

// Instantiate makes a graph ready to run. The modules of its functions must stay loaded as long as it lives.
func (g *Graph) Instantiate(what string) (*GraphExec, error) {
	if err := g.usable(); err != nil {
		return nil, err
	}
	x := &GraphExec{d: g.d, what: what}
	var fault C.moe_graph_fault
	r := C.moe_graph_instantiate(g.d.c(), g.c(), (*C.CUgraphExec)(unsafe.Pointer(&x.cu)), &fault)
	if r != 0 {
		text := fmt.Sprintf("graph %q", what)
		if fault.node != nil {
			if n, err := g.d.node(fault.node); err == nil {
				text += ", " + n.String()
			}
		}
		return nil, g.d.fail(r, "cuGraphInstantiate", fmt.Sprintf("%s, result %d (device max smem %d B)", text,
			int(fault.result), g.d.SharedPerBlockMax))
	}
	return x, nil
}

// CU returns the executable graph as cu has it.
func (x *GraphExec) CU() cu.ExecGraph { return x.cu }

// Upload moves what a launch needs to the device, in the order of stream s, so that the first launch is as fast as
// the others.
func (x *GraphExec) Upload(s *Stream) error {
	if err := x.usable(); err != nil {
		return err
	}
	if r := C.moe_graph_upload(x.d.c(), x.c(), s.c()); r != 0 {
		return x.d.fail(r, "cuGraphUpload", fmt.Sprintf("graph %q on %s", x.what, s.text()))
	}
	return nil
}

// Launch runs the graph once in the order of stream s: one cgo call, which allocates nothing.
func (x *GraphExec) Launch(s *Stream) error {
	if x.closed || x.d.closed.Load() || x.d.failed.Load() != nil {
		return x.usable()
	}
	if r := C.moe_graph_launch(x.d.c(), x.c(), s.c()); r != 0 {
		return x.d.fail(r, "cuGraphLaunch", fmt.Sprintf("graph %q on %s", x.what, s.text()))
	}
	return nil
}

// UpdateResult says how GraphExec.Update went.
type UpdateResult int

// The results of an update. All but UpdateDone leave the GraphExec as it was; Instantiate takes the new graph in all
// these cases.
const (
	UpdateDone               UpdateResult = C.CU_GRAPH_EXEC_UPDATE_SUCCESS
	UpdateError              UpdateResult = C.CU_GRAPH_EXEC_UPDATE_ERROR
	UpdateTopology           UpdateResult = C.CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED
	UpdateNodeType           UpdateResult = C.CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED
	UpdateFunction           UpdateResult = C.CU_GRAPH_EXEC_UPDATE_ERROR_FUNCTION_CHANGED
	UpdateParameters         UpdateResult = C.CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED
	UpdateNotSupported       UpdateResult = C.CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED
	UpdateUnsupportedFunc    UpdateResult = C.CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE
	UpdateAttributesMismatch UpdateResult = C.CU_GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED
)

func (r UpdateResult) String() string {
	names := map[UpdateResult]string{
		UpdateDone: "done", UpdateError: "error", UpdateTopology: "topology changed", UpdateNodeType: "node type changed",
		UpdateFunction: "function changed", UpdateParameters: "parameters changed", UpdateNotSupported: "not supported",
		UpdateUnsupportedFunc: "unsupported function change", UpdateAttributesMismatch: "attributes changed",
	}
	if s := names[r]; s != "" {
		return s
	}
	return fmt.Sprintf("update result %d", int(r))
}

// Update gives the executable graph the arguments and grids of g, for later launches. The result is UpdateDone
// exactly where the error is nil.
func (x *GraphExec) Update(g *Graph) (UpdateResult, error) {
	if err := x.usable(); err != nil {
		return UpdateError, err
	}
	if err := g.usable(); err != nil {
		return UpdateError, err
	}
	var fault C.moe_graph_fault
	r := C.moe_graph_update(x.d.c(), x.c(), g.c(), &fault)
	result := UpdateResult(fault.result)
	if r == 0 {
		return UpdateDone, nil
	}
	if result == UpdateDone {
		result = UpdateError
	}
	text := fmt.Sprintf("graph %q by %q: %v", x.what, g.what, result)
	if fault.node != nil {
		if n, err := x.d.node(fault.node); err == nil {
			text += ": " + n.String()
		}
	}
	return result, x.d.fail(r, "cuGraphExecUpdate", text)
}

// Close destroys the executable graph; a launch under way is finished. A second Close does nothing.
func (x *GraphExec) Close() error {
	if x.closed {
		return nil
	}
	x.closed = true
	return x.d.do("cuGraphExecDestroy", fmt.Sprintf("graph %q", x.what), x.cu.Destroy)
}

func (x *GraphExec) usable() error {
	if x.closed {
		return fmt.Errorf("graph %q: %w", x.what, ErrClosed)
	}
	return x.d.usable()
}

func (x *GraphExec) c() C.CUgraphExec { return C.CUgraphExec(handle(&x.cu)) }
