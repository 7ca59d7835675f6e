//go:build gpu

package cuda

// #cgo noescape moe_launch
// #cgo nocallback moe_launch
// #include "driver.h"
import "C"

import (
	"fmt"
	"unsafe"
)

// LaunchConfig is how a kernel is launched.
type LaunchConfig struct {
	Name         string // what the launch is for, such as a node's path name; in errors
	Grid, Block  [3]int // at least 1 in each direction
	SharedBytes  int    // dynamic shared memory; beyond 48 KiB after Function.SetDynamicShared
	Cluster      int    // thread blocks of a cluster along x, which divide Grid[0]; 0: none
	Programmatic bool   // may start while the stream's work before it ends; the kernel waits by griddepcontrol.wait
}

// Launch gives the kernel to stream s. The arguments are copied; the buffer can be used again at once.
func (f *Function) Launch(s *Stream, c LaunchConfig, args *ArgBuffer) error {
	if err := f.d.usable(); err != nil {
		return err
	}
	var data []byte
	if args != nil {
		data = args.b
	}
	s.note(c.Name, "")
	config := c.c()
	r := C.moe_launch(f.d.c(), s.c(), f.c(), &config, unsafe.Pointer(unsafe.SliceData(data)), C.size_t(len(data)))
	if r != 0 {
		return f.d.fail(r, "cuLaunchKernelEx", f.launchText(c, len(data)))
	}
	return nil
}

// MaxClusters returns how many clusters of such a launch run at once. 0: the device cannot run one.
func (f *Function) MaxClusters(c LaunchConfig) (int, error) {
	if err := f.d.usable(); err != nil {
		return 0, err
	}
	var n C.int
	config := c.c()
	if r := C.moe_max_clusters(f.d.c(), f.c(), &config, &n); r != 0 {
		return 0, f.d.fail(r, "cuOccupancyMaxActiveClusters", f.launchText(c, 0))
	}
	return int(n), nil
}

func (c *LaunchConfig) c() C.moe_launch_config {
	var l C.moe_launch_config
	for i := range 3 {
		l.grid[i], l.block[i] = C.uint(c.Grid[i]), C.uint(c.Block[i])
	}
	l.shared_bytes, l.cluster = C.uint(c.SharedBytes), C.uint(c.Cluster)
	if c.Programmatic {
		l.programmatic = 1
	}
	return l
}

func (f *Function) launchText(c LaunchConfig, argBytes int) string {
	s := fmt.Sprintf("node %q, kernel %s, grid %v, block %v, smem %d B (device max %d B), %d B of arguments", c.Name,
		f.name, c.Grid, c.Block, c.SharedBytes, f.d.SharedPerBlockMax, argBytes)
	if c.Cluster > 0 {
		s += fmt.Sprintf(", cluster %d", c.Cluster)
	}
	if want := f.wantArgs(); want >= 0 && argBytes > 0 && want != argBytes {
		s += fmt.Sprintf("; the kernel wants %d B of arguments", want)
	}
	return s
}

// wantArgs returns the bytes of the kernel's parameters, -1 where the driver does not say.
func (f *Function) wantArgs() int {
	params, err := f.Params()
	if err != nil {
		return -1
	}
	if len(params) == 0 {
		return 0
	}
	last := params[len(params)-1]
	return last.Offset + last.Size
}
