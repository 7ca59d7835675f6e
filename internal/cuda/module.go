//go:build gpu

package cuda

// #include "driver.h"
import "C"

import (
	"errors"
	"fmt"
	"unsafe"

	"gorgonia.org/cu"
)

// Module is loaded device code.
type Module struct {
	d      *Device
	cu     cu.Module
	what   string
	closed bool
}

// LoadModule loads a cubin (or PTX text, which the driver compiles). what names it in errors.
func (d *Device) LoadModule(image []byte, what string) (*Module, error) {
	m := &Module{d: d, what: what}
	err := d.do("cuModuleLoadData", fmt.Sprintf("module %q, %d bytes", what, len(image)), func() (err error) {
		m.cu, err = cu.LoadData(string(image))
		return err
	})
	var e *Error
	if errors.As(err, &e) && e.Call == "cuModuleLoadData" {
		e.What += fmt.Sprintf(", on %v (%s, sm_%d)", d, d.Name, d.Arch)
		if arch := cubinArch(image); arch != 0 {
			e.What += fmt.Sprintf(": it was compiled for sm_%d", arch)
		}
	}
	if err != nil {
		return nil, err
	}
	return m, nil
}

// CU returns the module as cu has it.
func (m *Module) CU() cu.Module { return m.cu }

// Close unloads the module. Nothing may still run its functions, graphs included. A second Close does nothing.
func (m *Module) Close() error {
	if m.closed {
		return nil
	}
	m.closed = true
	return m.d.do("cuModuleUnload", fmt.Sprintf("module %q", m.what), m.cu.Unload)
}

// Function is a kernel of a Module.
type Function struct {
	d    *Device
	cu   cu.Function
	name string
}

// Function returns the kernel of that name, an extern "C" one.
func (m *Module) Function(name string) (*Function, error) {
	f := &Function{d: m.d, name: name}
	if m.closed {
		return nil, fmt.Errorf("module %q: %w", m.what, ErrClosed)
	}
	err := m.d.do("cuModuleGetFunction", fmt.Sprintf("function %q of module %q", name, m.what), func() (err error) {
		f.cu, err = m.cu.Function(name)
		return err
	})
	if err != nil {
		return nil, err
	}
	m.d.mu.Lock()
	m.d.names[unsafe.Pointer(f.c())] = name
	m.d.mu.Unlock()
	return f, nil
}

// CU returns the function as cu has it.
func (f *Function) CU() cu.Function { return f.cu }

// Name returns the function's name.
func (f *Function) Name() string { return f.name }

// FunctionAttributes are what a compiled kernel needs.
type FunctionAttributes struct {
	Registers        int // a thread
	LocalBytes       int // a thread; more than a few: registers spilled
	SharedBytes      int // static, a thread block
	ConstBytes       int
	MaxThreads       int // a thread block
	MaxDynamicShared int // bytes a thread block may ask for now, see SetDynamicShared
	BinaryVersion    int // architecture times ten that it was compiled for
}

// Attributes reads the function's attributes.
func (f *Function) Attributes() (FunctionAttributes, error) {
	var a FunctionAttributes
	err := f.d.do("cuFuncGetAttribute", fmt.Sprintf("function %q", f.name), func() (err error) {
		for _, q := range []struct {
			to *int
			id cu.FunctionAttribute
		}{
			{&a.Registers, C.CU_FUNC_ATTRIBUTE_NUM_REGS},
			{&a.LocalBytes, C.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES},
			{&a.SharedBytes, C.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES},
			{&a.ConstBytes, C.CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES},
			{&a.MaxThreads, C.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK},
			{&a.MaxDynamicShared, C.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES},
			{&a.BinaryVersion, C.CU_FUNC_ATTRIBUTE_BINARY_VERSION},
		} {
			if *q.to, err = f.cu.Attribute(q.id); err != nil {
				return err
			}
		}
		return nil
	})
	return a, err
}

// SetDynamicShared allows launches with so many bytes of dynamic shared memory. Beyond 48 KiB it must come before the
// launch.
func (f *Function) SetDynamicShared(bytes int) error {
	return f.set(C.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, bytes, fmt.Sprintf(
		"function %q: dynamic shared memory of %d B (device max %d B)", f.name, bytes, f.d.SharedPerBlockMax))
}

// AllowLargeClusters allows clusters of more than 8 thread blocks, which not every device has.
func (f *Function) AllowLargeClusters() error {
	return f.set(C.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1, fmt.Sprintf("function %q: large clusters", f.name))
}

func (f *Function) set(attribute, value int, what string) error {
	if err := f.d.usable(); err != nil {
		return err
	}
	if r := C.moe_function_set(f.d.c(), f.c(), C.int(attribute), C.int(value)); r != 0 {
		return f.d.fail(r, "cuFuncSetAttribute", what)
	}
	return nil
}

// Param is where a parameter lies in the argument buffer.
type Param struct{ Offset, Size int }

// Params returns the kernel's parameters. Drivers before CUDA 12.4 cannot tell: errors.Is(err, ErrUnavailable).
func (f *Function) Params() ([]Param, error) {
	if err := f.d.usable(); err != nil {
		return nil, err
	}
	var params []Param
	for i := 0; ; i++ {
		var offset, size C.size_t
		switch r := C.moe_function_param(f.d.c(), f.c(), C.size_t(i), &offset, &size); r {
		case 0:
			params = append(params, Param{int(offset), int(size)})
		case C.CUDA_ERROR_INVALID_VALUE: // there is no parameter i
			return params, nil
		case statusOldDriver:
			return nil, fmt.Errorf("parameters of %q: %w: the driver is too old to tell", f.name, ErrUnavailable)
		default:
			return nil, f.d.fail(r, "cuFuncGetParamInfo", fmt.Sprintf("function %q, parameter %d", f.name, i))
		}
	}
}

func (f *Function) c() C.CUfunction { return C.CUfunction(handle(&f.cu)) }
