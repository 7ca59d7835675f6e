// Parts of y[g,:] = sum over the rows m of group g of prob[m] x[m,:]: one part a row tile, joined by group_parts.cuh.
//
// A thread block takes a tile and 256 columns: a warp every eighth row, a lane eight columns; then the warps' sums in order.
//
// Params: E, N, TileM, XType, HasProb.
#include "row_tiles.cuh"

extern "C" __global__ void __launch_bounds__(256)
    group_sum(const Params::XType* __restrict__ x, const int* offsets, const int* counts, const int* rows_x,
              const int* rows_prob, const float* __restrict__ prob, float* __restrict__ col_parts, int capacity) {
    constexpr bool kVector = Params::N % 8 == 0;
    __shared__ float sums[8][256];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, base = blockIdx.y * 256, col = base + lane * 8;
    const int n = clamp_of(Params::N - col, 0, 8);
    for_row_tiles<Params::E, Params::TileM>(offsets, counts, rows_in_use(capacity, rows_x, rows_prob), [&](const RowTile& t) {
        float sum[8] = {};
        if (n > 0) {
#pragma unroll 4
            for (i64 m = t.first + warp; m < t.mid; m += 8) {
                float v[8];
                load8<kVector>(v, x + m * Params::N + col, n);
                add_scaled(sum, v, Params::HasProb ? prob[m] : 1.0f);
            }
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
            sums[warp][lane * 8 + i] = sum[i];
        }
        __syncthreads();
        if (t.mid > t.first && base + threadIdx.x < Params::N) {
            float total = 0;
#pragma unroll
            for (int w = 0; w < 8; w++) {
                total += sums[w][threadIdx.x];
            }
            col_parts[static_cast<i64>(t.index) * Params::N + base + threadIdx.x] = total;
        }
        __syncthreads();
    });
}
