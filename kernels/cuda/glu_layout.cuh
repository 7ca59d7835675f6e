// y = x with its columns, in blocks of 32 gate and 32 up, put into a weight layout. A thread moves eight gates and eight ups.
//
// Params: N, TileM, Layout, XType.
#include "row_tiles.cuh"
#include "types.cuh"

extern "C" __global__ void __launch_bounds__(256)
    glu_layout(const Params::XType* __restrict__ x, const int* rows_x, Params::XType* __restrict__ y, int capacity) {
    for_row_tiles<0, Params::TileM>(nullptr, nullptr, rows_in_use(capacity, rows_x), [&](const RowTile& t) {
        for_eights<Params::N / 2>(t, [&](i64 m, int j) {
            const i64 row = m * Params::N;
            float gate[8], up[8];
            load8(gate, x + row + j / 32 * 64 + j % 32);
            load8(up, x + row + j / 32 * 64 + j % 32 + 32);
            if constexpr (Params::Layout == kConcat) {
                store8(y + row + j, gate);
                store8(y + row + Params::N / 2 + j, up);
            } else {
                float a[8], b[8];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    a[2 * i] = gate[i], a[2 * i + 1] = up[i];
                    b[2 * i] = gate[i + 4], b[2 * i + 1] = up[i + 4];
                }
                store8(y + row + 2 * j, a);
                store8(y + row + 2 * j + 8, b);
            }
        });
    });
}
