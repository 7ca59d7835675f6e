// y[m] = sum over n of x[m,n] z[m,n], or of x[m,n] z[g,n] with OfGroup, over the rows of groups; 0 in padding rows. A warp
// takes a row; each lane sums every 32nd eight, then a butterfly.
//
// Params: E, N, TileM, XType, ZType, OfGroup.
#include "row_tiles.cuh"

extern "C" __global__ void __launch_bounds__(256)
    row_dot(const Params::XType* __restrict__ x, const int* offsets, const int* counts, const int* rows_x,
            const int* rows_z, const Params::ZType* __restrict__ z, float* __restrict__ y, int capacity) {
    constexpr bool kVector = Params::N % 8 == 0;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for_row_tiles<Params::E, Params::TileM>(offsets, counts, rows_in_use(capacity, rows_x, rows_z), [&](const RowTile& t) {
        for (i64 m = t.first + warp; m < t.last; m += blockDim.x / 32) {
            float sum = 0;
            if (m < t.mid) {
                const i64 with = (Params::OfGroup ? t.group : m) * Params::N;
#pragma unroll 2
                for (int col = lane * 8; col < Params::N; col += 256) {
                    const int n = min_of(8, Params::N - col);
                    float a[8], b[8], part = 0;
                    load8<kVector>(a, x + m * Params::N + col, n);
                    load8<kVector>(b, z + with + col, n);
#pragma unroll
                    for (int i = 0; i < 8; i++) {
                        part += a[i] * b[i];
                    }
                    sum += part;
                }
            }
#pragma unroll
            for (int d = 16; d > 0; d /= 2) {
                sum += __shfl_xor_sync(0xffffffffu, sum, d);
            }
            if (lane == 0) {
                y[m] = sum;
            }
        }
    });
}
