// Sums over rows, column by column, in fixed order:
//
//   column_partials   each block adds up its rows of kColumns columns       -> partial[blockIdx.y][column]
//   column_finish     32 columns a block, the partials in order              -> y
//
// A block's 256 threads are Params::Across threads along a row, each Elems columns, times 256/Across rows. Rows go to
// blocks and threads in turn, by numbers that depend on the grid alone.
// Launch: column_partials grid (columns/(Across*Elems), row blocks), 256 threads; column_finish (32, 32) threads.
#pragma once
#include "common.cuh"

// column_partials adds up value(acc, row, column) over rows [0, rows); value adds Elems columns of a row to acc.
template <int Across, int Elems, class Value>
__device__ __forceinline__ void column_partials(float* partial, i64 rows, int width, const Value& value) {
    constexpr int kDown = 256 / Across;
    __shared__ float sums[kDown][Across * Elems];
    const int x = threadIdx.x % Across, y = threadIdx.x / Across;
    const int column = (blockIdx.x * Across + x) * Elems;
    float acc[Elems] = {};
    if (column < width) {
#pragma unroll 4
        for (i64 row = (i64)blockIdx.y * kDown + y; row < rows; row += (i64)gridDim.y * kDown) value(acc, row, column);
    }
#pragma unroll
    for (int i = 0; i < Elems; i++) sums[y][x * Elems + i] = acc[i];
    __syncthreads();
    for (int c = threadIdx.x; c < Across * Elems; c += 256) {
        const int to = blockIdx.x * Across * Elems + c;
        if (to >= width) break;
        float sum = sums[0][c];
        for (int r = 1; r < kDown; r++) sum += sums[r][c];
        partial[(i64)blockIdx.y * width + to] = sum;
    }
}

// column_finish adds up count partials of each column: thread (x, y) takes the y-th part of them.
template <class Y> __device__ __forceinline__ void column_finish(void* out, const float* partial, int count, int width) {
    __shared__ float sums[32][33];
    const int column = blockIdx.x * 32 + threadIdx.x, part = (count + 31) / 32;
    const int from = min(count, (int)threadIdx.y * part), to = min(count, from + part);
    float sum = 0;
    if (column < width) {
#pragma unroll 8
        for (int b = from; b < to; b++) sum += partial[(i64)b * width + column];
    }
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || column >= width) return;
    for (int y = 1; y < 32; y++) sum += sums[y][threadIdx.x];
    store_float<Y>(out, column, sum);
}
