// Joins the parts of a group, which row tiles have left, in the order of their numbers.
//
//   y[g, c] = sum over the group's parts p of col_parts[p, c];  amax[g] = largest of amax_parts[p]
//
// Only tiles with real rows have parts, Parts each. A thread takes a column; one thread block more a group takes amax, if
// HasAmax. Grid (ceil(Width/256) + HasAmax, E).
//
// Params: E, TileM, Parts, Width, Blocks (of amax a part), Layout (of y; col_parts are in blocks of 32), YType, HasSum, HasAmax.
#include "tile.cuh"
#include "types.cuh"

extern "C" __global__ void __launch_bounds__(256)
    group_parts(const float* col_parts, const u32* amax_parts, const int* offsets, const int* counts, const int* rows_a,
                const int* rows_c, const int* rows_prob, Params::YType* y, float* amax, int capacity) {
    __shared__ Groups<Params::E> groups;
    __shared__ u32 tops[2];
    groups.read<Params::TileM>(offsets, counts, rows_in_use(capacity, rows_a, rows_c, rows_prob));
    const int g = blockIdx.y, rows = groups.real[g] - groups.begin(g);
    const i64 first = static_cast<i64>(groups.tiles[g]) * Params::Parts;
    const int parts = ceil_div(rows, Params::TileM) * Params::Parts;
    if (Params::HasAmax && blockIdx.x == gridDim.x - 1) {
        if (threadIdx.x < 2) {
            tops[threadIdx.x] = 0;
        }
        __syncthreads();
        u32 top[2] = {};
        for (i64 i = threadIdx.x; i < static_cast<i64>(parts) * Params::Blocks; i += blockDim.x) {
            top[0] = max(top[0], amax_parts[(first * Params::Blocks + i) * 2]);
            top[1] = max(top[1], amax_parts[(first * Params::Blocks + i) * 2 + 1]);
        }
        atomicMax(&tops[0], top[0]);
        atomicMax(&tops[1], top[1]);
        __syncthreads();
        if (threadIdx.x < 2) {
            amax[2 * g + threadIdx.x] = __uint_as_float(tops[threadIdx.x]);
        }
        return;
    }
    const int col = blockIdx.x * blockDim.x + threadIdx.x;
    if (!Params::HasSum || col >= Params::Width) {
        return;
    }
    float sum = 0;
#pragma unroll 4
    for (int p = 0; p < parts; p++) {
        sum += col_parts[(first + p) * Params::Width + col];
    }
    const int half = Params::Width / 2, j = col / 64 * 32 + col % 32;  // of gate or up
    const bool up = col % 64 >= 32;
    int to = col;
    if (Params::Layout == kConcat) {
        to = up ? half + j : j;
    } else if (Params::Layout == kPairs) {
        to = 2 * j + up;
    }
    y[static_cast<i64>(g) * Params::Width + to] = from_float<Params::YType>(sum);
}
