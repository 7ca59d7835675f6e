// y[m,:] = prob[m] x[m,:] over the rows of groups; zeros in padding rows. A thread makes eight neighbours.
//
// Params: E, N, TileM, XType, YType.
#include "row_tiles.cuh"

extern "C" __global__ void __launch_bounds__(256)
    scale_rows(const Params::XType* __restrict__ x, const int* offsets, const int* counts, const int* rows_x,
               const int* rows_prob, const float* __restrict__ prob, Params::YType* __restrict__ y, int capacity) {
    constexpr bool kVector = Params::N % 8 == 0;
    for_row_tiles<Params::E, Params::TileM>(offsets, counts, rows_in_use(capacity, rows_x, rows_prob), [&](const RowTile& t) {
        for_eights<Params::N>(t, [&](i64 m, int col) {
            const int n = min_of(8, Params::N - col);
            float v[8] = {};
            if (m < t.mid) {
                load8<kVector>(v, x + m * Params::N + col, n);
                const float p = prob[m];
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    v[i] *= p;
                }
            }
            store8<kVector>(y + m * Params::N + col, v, n);
        });
    });
}
