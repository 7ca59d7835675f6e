//go:build gpu

package cuda

// #include "driver.h"
import "C"

import (
	"fmt"
	"unsafe"
)

// TensorType is the type of a tensor's elements in a tensor map.
type TensorType int

// The types of elements.
const (
	TensorUint8    TensorType = C.CU_TENSOR_MAP_DATA_TYPE_UINT8 // also the 8-bit floats
	TensorUint16   TensorType = C.CU_TENSOR_MAP_DATA_TYPE_UINT16
	TensorUint32   TensorType = C.CU_TENSOR_MAP_DATA_TYPE_UINT32
	TensorInt32    TensorType = C.CU_TENSOR_MAP_DATA_TYPE_INT32
	TensorFloat16  TensorType = C.CU_TENSOR_MAP_DATA_TYPE_FLOAT16
	TensorFloat32  TensorType = C.CU_TENSOR_MAP_DATA_TYPE_FLOAT32
	TensorBFloat16 TensorType = C.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
)

// Swizzle is how a box's 16-byte pieces are spread over the banks of shared memory.
type Swizzle int

// The swizzles, by the bytes over which they repeat.
const (
	NoSwizzle  Swizzle = C.CU_TENSOR_MAP_SWIZZLE_NONE
	Swizzle32  Swizzle = C.CU_TENSOR_MAP_SWIZZLE_32B
	Swizzle64  Swizzle = C.CU_TENSOR_MAP_SWIZZLE_64B
	Swizzle128 Swizzle = C.CU_TENSOR_MAP_SWIZZLE_128B
)

// Promotion is how much the second-level cache fetches at once.
type Promotion int

// The promotions.
const (
	NoPromotion  Promotion = C.CU_TENSOR_MAP_L2_PROMOTION_NONE
	Promotion64  Promotion = C.CU_TENSOR_MAP_L2_PROMOTION_L2_64B
	Promotion128 Promotion = C.CU_TENSOR_MAP_L2_PROMOTION_L2_128B
	Promotion256 Promotion = C.CU_TENSOR_MAP_L2_PROMOTION_L2_256B
)

// TensorMapConfig describes a tiled tensor map. Dimension 0 is the one whose elements lie side by side.
type TensorMapConfig struct {
	Name      string // in errors
	Type      TensorType
	Ptr       uint64  // device address, a multiple of 16
	Dims      []int   // elements, 1 to 5 dimensions
	Strides   []int   // bytes from one index of dimensions 1, 2, ... to the next; multiples of 16
	Box       []int   // elements of the box in each dimension, at most 256
	Swizzle   Swizzle // then Box[0] must be at most so many bytes
	Promotion Promotion
	NaN       bool // elements outside of the tensor read as NaN, not as zero
}

// EncodeTensorMap encodes a tensor map for sm_90 and later.
func (d *Device) EncodeTensorMap(c TensorMapConfig) (*TensorMap, error) {
	if err := d.usable(); err != nil {
		return nil, err
	}
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("tensor map %q: %w", c.Name, err)
	}
	var dims, strides [5]C.uint64_t
	var box, steps [5]C.uint32_t
	for i := range c.Dims {
		dims[i], box[i], steps[i] = C.uint64_t(c.Dims[i]), C.uint32_t(c.Box[i]), 1
	}
	for i := range c.Strides {
		strides[i] = C.uint64_t(c.Strides[i])
	}
	fill := C.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE
	if c.NaN {
		fill = C.CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA
	}
	m := new(TensorMap)
	r := C.moe_tensor_map(unsafe.Pointer(m), C.int(c.Type), C.uint(len(c.Dims)), C.uint64_t(c.Ptr), &dims[0], &strides[0],
		&box[0], &steps[0], C.CU_TENSOR_MAP_INTERLEAVE_NONE, C.int(c.Swizzle), C.int(c.Promotion), C.int(fill))
	if r != 0 {
		return nil, d.fail(r, "cuTensorMapEncodeTiled", fmt.Sprintf("%+v on sm_%d (wants sm_90 or later)", c, d.Arch))
	}
	return m, nil
}

// check states the rules that CUDA answers with no more than CUDA_ERROR_INVALID_VALUE.
func (c *TensorMapConfig) check() error {
	rank := len(c.Dims)
	switch {
	case rank < 1 || rank > 5:
		return fmt.Errorf("dims: got %d, want 1 to 5", rank)
	case len(c.Box) != rank:
		return fmt.Errorf("box: got %d dimensions, want %d", len(c.Box), rank)
	case len(c.Strides) != rank-1:
		return fmt.Errorf("strides: got %d, want %d (dimension 0 has none)", len(c.Strides), rank-1)
	case c.Ptr%16 != 0:
		return fmt.Errorf("address: got %#x, want a multiple of 16", c.Ptr)
	}
	size := map[TensorType]int{TensorUint8: 1, TensorUint16: 2, TensorUint32: 4, TensorInt32: 4, TensorFloat16: 2,
		TensorFloat32: 4, TensorBFloat16: 2}[c.Type]
	if size == 0 {
		return fmt.Errorf("type: got %d, want one of the TensorType constants", int(c.Type))
	}
	for i := range rank {
		if c.Dims[i] < 1 || c.Dims[i] > 1<<32 {
			return fmt.Errorf("dimension %d: got %d, want 1 to 2^32", i, c.Dims[i])
		}
		if c.Box[i] < 1 || c.Box[i] > 256 {
			return fmt.Errorf("box dimension %d: got %d, want 1 to 256", i, c.Box[i])
		}
	}
	for i, s := range c.Strides {
		if s <= 0 || s%16 != 0 || s >= 1<<40 {
			return fmt.Errorf("stride of dimension %d: got %d bytes, want a multiple of 16 below 2^40", i+1, s)
		}
	}
	inner := c.Box[0] * size
	if inner%16 != 0 {
		return fmt.Errorf("box dimension 0: got %d bytes, want a multiple of 16", inner)
	}
	if width := map[Swizzle]int{Swizzle32: 32, Swizzle64: 64, Swizzle128: 128}[c.Swizzle]; width != 0 && inner > width {
		return fmt.Errorf("box dimension 0: got %d bytes, want at most the swizzle's %d", inner, width)
	}
	return nil
}
