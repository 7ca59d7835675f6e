// Backward of the gated activation from a stored gradient dD (contracts, section 6): G is dD. Formulas, and what is left in
// parts: dglu.cuh, one part a row tile. A warp takes 64 columns of a tile, four rows at once.
//
// Params: E (0: no groups), TileM, DDType and those of dglu.cuh.
#include "dglu.cuh"
#include "tile.cuh"

extern "C" __global__ void __launch_bounds__(128)
    glu_grad(const Params::DDType* __restrict__ dd, const int* offsets, const int* counts, const int* rows_dd, const int* rows_c,
             const int* rows_prob, const float* prob, const float* beta, const Params::CType* c, Params::DCType* dc, Params::ActType* act,
             float* row_parts, float* col_parts, u32* amax_parts, int capacity) {
    constexpr int kGroups = Params::E > 0 ? Params::E : 1, kBlocks = DGLU<Params>::kBlocks;
    __shared__ Groups<kGroups> groups;
    const int limit = rows_in_use(capacity, rows_dd, rows_c, rows_prob);
    groups.read<Params::TileM>(Params::E > 0 ? offsets : nullptr, counts, limit);
    const DGLU<Params> out{prob, beta, c, dc, act, row_parts, col_parts, amax_parts, capacity};
    const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
    const i64 work = static_cast<i64>(groups.tiles[kGroups]) * kBlocks;
    for (i64 w = static_cast<i64>(blockIdx.x) * warps + threadIdx.x / 32; w < work; w += static_cast<i64>(gridDim.x) * warps) {
        const int index = static_cast<int>(w / kBlocks), block = static_cast<int>(w % kBlocks), j = block * 64 + lane % 8 * 8;
        const RowTile t = groups.at<Params::TileM>(groups.find(index), index);
        DGLU<Params>::Seen seen;
        const float scale = out.factor(t.group);
#pragma unroll 2
        for (int pass = 0; pass < Params::TileM / 4; pass++) {
            const i64 m = t.first + pass * 4 + lane / 8;
            const bool exists = m < t.last && j < Params::N, real = m < t.mid;
            float g[8] = {}, p = 1.0f;
            DGLU<Params>::Pre pre;
            if (exists && real) {
                load8(g, dd + m * Params::N + j);
                out.load(pre, m, j);
                p = Params::HasProb ? prob[m] : 1.0f;
            }
            out.row(seen, g, pre, p, m, j, scale, real, exists);
        }
        if (t.mid > t.first) {
            out.leave(seen, index, block);
        }
    }
}
