// y = x in the rows in use of both, zeros in those that only y has. Bytes in units of Params::Unit.
// Launch: a thread for each unit, up to 4 blocks of 256 threads a multiprocessor, the grid strides.
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(256, 4)
    recount(void* y, const void* x, const int* y_count, const int* x_count, i64 capacity, i64 row_units) {
    using U = Unit<Params::Unit>;
    constexpr int kUnroll = 4;
    const i64 n = rows_in_use(y_count, capacity) * row_units, have = rows_in_use(x_count, capacity) * row_units;
    const i64 step = (i64)gridDim.x * blockDim.x;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += kUnroll * step) {
        U held[kUnroll];
#pragma unroll
        for (int u = 0; u < kUnroll; u++) {
            held[u] = U{};
            if (i + u * step < n && i + u * step < have) held[u] = ((const U*)x)[i + u * step];
        }
#pragma unroll
        for (int u = 0; u < kUnroll; u++)
            if (i + u * step < n) ((U*)y)[i + u * step] = held[u];
    }
}
