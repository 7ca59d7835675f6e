// y[c] = sum over the rows in use of x[r,c], in float32, rounded once. Launch: columns.cuh, two kernels.
#include "columns.cuh"

extern "C" __global__ void __launch_bounds__(256) col_sum(float* partial, const void* x, const int* count, i64 capacity, int width) {
    constexpr int kElems = Params::Elems;
    column_partials<Params::Across, kElems>(partial, rows_in_use(count, capacity), width, [&](float (&acc)[kElems], i64 row, int column) {
        Pack<Params::XType, kElems> p;
        p.load(x, row * width + column);
#pragma unroll
        for (int i = 0; i < kElems; i++) acc[i] += p.get(i);
    });
}

extern "C" __global__ void __launch_bounds__(1024) col_sum_finish(void* y, const float* partial, int count, int width) {
    column_finish<Params::YType>(y, partial, count, width);
}
