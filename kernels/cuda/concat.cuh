// concat, slice_cols and pad_cols: columns of one matrix into columns of another, in units of Params::Unit bytes.
//
//   y[t, y_from + c] = x[t, c - pad + x_from] where 0 <= c - pad < x_units, else 0, for c in [0, y_units)
//
// concat launches it for each operand. x_stride and y_stride are whole rows. Launch: a thread for each unit, the grid
// strides.
#include "common.cuh"

__device__ __forceinline__ void copy_columns(void* y, const void* x, const int* count, i64 capacity, i64 x_stride, i64 x_from, i64 x_units,
                                             i64 y_stride, i64 y_from, i64 y_units, i64 pad) {
    using U = Unit<Params::Unit>;
    constexpr int kUnroll = 4;
    const i64 n = rows_in_use(count, capacity) * y_units, step = (i64)gridDim.x * blockDim.x;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += kUnroll * step) {
        U held[kUnroll];
        i64 to[kUnroll];
#pragma unroll
        for (int u = 0; u < kUnroll; u++) {
            if (i + u * step >= n) continue;
            const i64 row = n < (1ll << 31) ? (i64)((u32)(i + u * step) / (u32)y_units) : (i + u * step) / y_units;
            const i64 c = i + u * step - row * y_units, from = c - pad;
            to[u] = row * y_stride + y_from + c;
            held[u] = U{};
            if (from >= 0 && from < x_units) held[u] = ((const U*)x)[row * x_stride + x_from + from];
        }
#pragma unroll
        for (int u = 0; u < kUnroll; u++)
            if (i + u * step < n) ((U*)y)[to[u]] = held[u];
    }
}

extern "C" __global__ void __launch_bounds__(256, 4)
    concat(void* y, const void* x, const int* count, i64 capacity, i64 x_stride, i64 x_from, i64 x_units, i64 y_stride, i64 y_from, i64 y_units,
           i64 pad) {
    copy_columns(y, x, count, capacity, x_stride, x_from, x_units, y_stride, y_from, y_units, pad);
}

extern "C" __global__ void __launch_bounds__(256, 4)
    slice_cols(void* y, const void* x, const int* count, i64 capacity, i64 x_stride, i64 x_from, i64 x_units, i64 y_stride, i64 y_from, i64 y_units,
               i64 pad) {
    copy_columns(y, x, count, capacity, x_stride, x_from, x_units, y_stride, y_from, y_units, pad);
}

extern "C" __global__ void __launch_bounds__(256, 4)
    pad_cols(void* y, const void* x, const int* count, i64 capacity, i64 x_stride, i64 x_from, i64 x_units, i64 y_stride, i64 y_from, i64 y_units,
             i64 pad) {
    copy_columns(y, x, count, capacity, x_stride, x_from, x_units, y_stride, y_from, y_units, pad);
}
