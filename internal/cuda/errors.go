//go:build gpu

package cuda

// #include "driver.h"
// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
)

// Kinds of errors, for errors.Is.
var (
	ErrUnavailable = errors.New("CUDA is not available")
	ErrFailed      = errors.New("the CUDA context has failed and cannot be used any more; restart the process")
	ErrOutOfMemory = errors.New("out of memory")
	ErrClosed      = errors.New("used after Close or Free")
)

// Error is a status of the driver other than success.
type Error struct {
	Call   string // such as "cuGraphLaunch"
	Status int    // CUresult
	Name   string // such as "CUDA_ERROR_INVALID_VALUE"
	Text   string // the driver's description
	What   string // what was being done, with its numbers
}

func (e *Error) Error() string {
	s := fmt.Sprintf("%s: %s (%s)", e.Call, e.Name, e.Text)
	if e.What != "" {
		s += ": " + e.What
	}
	return s
}

// Is makes errors.Is(err, ErrOutOfMemory) true for that status.
func (e *Error) Is(target error) bool {
	return target == ErrOutOfMemory && e.Status == statusOutOfMemory
}

// Statuses that this package treats in a way of their own.
const (
	statusOutOfMemory = C.CUDA_ERROR_OUT_OF_MEMORY
	statusNoDriver    = C.SHIM_NO_DRIVER
	statusOldDriver   = C.SHIM_OLD_DRIVER
	statusNoDevice    = C.CUDA_ERROR_NO_DEVICE
	statusNoBinary    = C.CUDA_ERROR_NO_BINARY_FOR_GPU
	statusNotReady    = C.CUDA_ERROR_NOT_READY
	statusUnjoined    = C.CUDA_ERROR_STREAM_CAPTURE_UNJOINED
)

// lasting are the statuses after which a context answers nothing but errors.
var lasting = map[int]bool{
	C.CUDA_ERROR_DEINITIALIZED:         true,
	C.CUDA_ERROR_ECC_UNCORRECTABLE:     true,
	C.CUDA_ERROR_NVLINK_UNCORRECTABLE:  true,
	C.CUDA_ERROR_ILLEGAL_ADDRESS:       true,
	C.CUDA_ERROR_LAUNCH_TIMEOUT:        true,
	C.CUDA_ERROR_CONTEXT_IS_DESTROYED:  true,
	C.CUDA_ERROR_ASSERT:                true,
	C.CUDA_ERROR_HARDWARE_STACK_ERROR:  true,
	C.CUDA_ERROR_ILLEGAL_INSTRUCTION:   true,
	C.CUDA_ERROR_MISALIGNED_ADDRESS:    true,
	C.CUDA_ERROR_INVALID_ADDRESS_SPACE: true,
	C.CUDA_ERROR_INVALID_PC:            true,
	C.CUDA_ERROR_LAUNCH_FAILED:         true,
	C.CUDA_ERROR_EXTERNAL_DEVICE:       true,
}

// offline are names and descriptions for where there is no driver to ask.
var offline = map[int][2]string{
	statusNoDriver:               {"CUDA_ERROR_STUB_LIBRARY", "no CUDA driver"},
	statusOldDriver:              {"CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER", "the CUDA driver is too old for this call"},
	statusNoDevice:               {"CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
	statusOutOfMemory:            {"CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
	statusNoBinary:               {"CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image for the device"},
	C.CUDA_ERROR_INVALID_VALUE:   {"CUDA_ERROR_INVALID_VALUE", "invalid argument"},
	C.CUDA_ERROR_ILLEGAL_ADDRESS: {"CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
	statusUnjoined:               {"CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work"},
}

// newError describes a status. A negative one is that of cuCtxSetCurrent, which driver.h calls first.
func newError(status int, call, what string) *Error {
	if status < 0 {
		status, call = -status, "cuCtxSetCurrent, before "+call
	}
	e := &Error{Call: call, Status: status, What: what}
	known := offline[status]
	if e.Name = C.GoString(C.moe_error_name(C.int(status))); e.Name == "" {
		e.Name = known[0]
	}
	if e.Text = C.GoString(C.moe_error_text(C.int(status))); e.Text == "" {
		e.Text = known[1]
	}
	if e.Name == "" {
		e.Name, e.Text = fmt.Sprintf("CUDA error %d", status), "no description"
	}
	return e
}

// statusOf returns the number in an error of package cu, whose type is not exported; 0 for nil.
func statusOf(err error) int {
	if err == nil {
		return 0
	}
	var number func(err error) int
	number = func(err error) int {
		if v := reflect.ValueOf(err); v.Kind() == reflect.Int {
			return int(v.Int())
		}
		if c, ok := err.(interface{ Cause() error }); ok { // package cu wraps some with github.com/pkg/errors
			return number(c.Cause())
		}
		return int(C.CUDA_ERROR_UNKNOWN)
	}
	return number(err)
}

// Available says whether CUDA can be used, and if not, why. It loads the driver the first time.
func Available() error {
	switch status := int(C.shim_load()); status {
	case 0:
		return nil
	case statusNoDriver:
		why := C.GoString(C.shim_reason())
		if why == "" {
			why = "libcuda.so.1 is the toolkit's stub, not a driver"
		}
		return fmt.Errorf("%w: no driver: %s", ErrUnavailable, strings.TrimSpace(why))
	case statusNoDevice:
		return fmt.Errorf("%w: no visible device: %w", ErrUnavailable, newError(status, "cuInit", "CUDA_VISIBLE_DEVICES may hide them"))
	default:
		return fmt.Errorf("%w: %w", ErrUnavailable, newError(status, "cuInit", ""))
	}
}
