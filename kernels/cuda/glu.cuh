// D[m,j] = prob[m] act(gate, up) of a stored C in blocks of 32 (contracts, section 5). A thread makes eight neighbours.
//
// Params: E (0: no groups), N, the columns of C; TileM; CType, DType; HasProb; Act.
#include "activation.cuh"
#include "row_tiles.cuh"

extern "C" __global__ void __launch_bounds__(256)
    glu(const Params::CType* __restrict__ c, const int* offsets, const int* counts, const int* rows_c, const int* rows_prob,
        const float* __restrict__ prob,
        Params::DType* __restrict__ d, int capacity) {
    constexpr bool kFast = sizeof(Params::DType) == 2;
    for_row_tiles<Params::E, Params::TileM>(offsets, counts, rows_in_use(capacity, rows_c, rows_prob), [&](const RowTile& t) {
        for_eights<Params::N / 2>(t, [&](i64 m, int j) {
            float v[8] = {};
            if (m < t.mid) {
                float gate[8], up[8];
                load8(gate, c + m * Params::N + j / 32 * 64 + j % 32);
                load8(up, c + m * Params::N + j / 32 * 64 + j % 32 + 32);
                const float p = Params::HasProb ? prob[m] : 1.0f;
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    v[i] = p * activate<Params::Act, kFast>(gate[i], up[i]);
                }
            }
            store8(d + m * (Params::N / 2) + j, v);
        });
    });
}
