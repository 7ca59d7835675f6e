//go:build gpu

package cudadev

/*
#include <cuda.h>
#include <time.h>

static double now_us(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return 1e6 * t.tv_sec + 1e-3 * t.tv_nsec;
}

// Launches the graph n times on an idle stream, as a program in C would, and notes how long each launch took.
static int launch_loop(CUcontext ctx, CUgraphExec exec, CUstream stream, int n, double *us) {
	CUresult r = cuCtxSetCurrent(ctx);
	for (int i = 0; i < n && r == CUDA_SUCCESS; i++) {
		double start = now_us();
		r = cuGraphLaunch(exec, stream);
		us[i] = now_us() - start;
		if (r == CUDA_SUCCESS)
			r = cuStreamSynchronize(stream);
	}
	return r;
}
*/
import "C"

import (
	"fmt"
	"slices"
	"time"
	"unsafe"
)

// LaunchUS returns the median host time of a replay in microseconds, from Go by replay and from C by the driver's call
// alone, each on an idle stream. The two alternate in rounds of n launches.
func (r *Runner) LaunchUS(rounds, n int, replay func() error) (inGo, inC float64, err error) {
	if err := replay(); err != nil { // captures, if need be
		return 0, 0, err
	}
	if r.exec == nil {
		return 0, 0, fmt.Errorf("%w: program %q is not replayed as a graph", errUsage, r.name)
	}
	_, ctx := r.d.dev.CU()
	exec, stream := r.exec.CU(), r.stream.CU()
	var all [2][]float64
	us := make([]float64, n)
	for range rounds {
		for i := range us {
			if err := r.Wait(); err != nil {
				return 0, 0, err
			}
			start := time.Now()
			if err := replay(); err != nil {
				return 0, 0, err
			}
			us[i] = float64(time.Since(start)) / 1e3
		}
		all[0] = append(all[0], us...)
		if err := r.Wait(); err != nil {
			return 0, 0, err
		}
		// Package cu's types are one C pointer each.
		status := C.launch_loop(*(*C.CUcontext)(unsafe.Pointer(&ctx)), *(*C.CUgraphExec)(unsafe.Pointer(&exec)), *(*C.CUstream)(unsafe.Pointer(&stream)),
			C.int(n), (*C.double)(unsafe.Pointer(&us[0])))
		if status != 0 {
			return 0, 0, fmt.Errorf("launches of %q from C: status %d", r.name, int(status))
		}
		all[1] = append(all[1], us...)
	}
	for _, x := range all {
		slices.Sort(x)
	}
	return all[0][len(all[0])/2], all[1][len(all[1])/2], nil
}
