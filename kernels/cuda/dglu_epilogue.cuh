// The epilogue of dGLU (contracts, section 6): a product's outputs are G.
//
// N is the width of G, half of C's. Each warp of a row tile leaves a part of its own: part number tile * (TileM/WarpM) + warp
// row.
//
// P: those of row_product.cuh and of dglu.cuh, HasAlpha.
#pragma once
#include "dglu.cuh"
#include "row_product.cuh"

template <class P, class Extra = PlainExtra<P>>
struct DGLUEpilogue {
    using Tile = typename RowWork<P>::Tile;
    static constexpr bool kPads = false;  // PlainEpilogue

    Stage* stages;
    Extra extra;
    DGLU<P> out;

    // Brings the warp's piece of C into the L2 cache while the product is made, and factors nearer.
    __device__ __forceinline__ void begin(const Tile& t, int warp_m, int warp_n) const {
        extra.begin(t.group);
        constexpr int kRow = 128 * sizeof(typename P::CType), kLines = kRow / 128;
        const int first = warp_m * P::WarpM, block = t.col / 64 + warp_n;
        const char* c = reinterpret_cast<const char*>(out.c + DGLU<P>::place(t.first + first, block * 64));
        for (int i = threadIdx.x % 32; i < P::WarpM * kLines; i += 32) {
            if (first + i / kLines < t.rows && block * 64 + i % kLines * (8192 / kRow) < P::N) {
                ptx::prefetch_l2(c + static_cast<i64>(i / kLines) * (2 * P::N * sizeof(typename P::CType)) + i % kLines * 128);
            }
        }
    }

    __device__ __forceinline__ void operator()(const Tile& t, int warp_m, int warp_n, const Accumulators<P::WarpM>& acc) const {
        const int first = warp_m * P::WarpM, rows = t.last - t.first, block = t.col / 64 + warp_n;
        if (block * 64 >= P::N) {
            return;
        }
        typename DGLU<P>::Seen seen;
        if (first < rows) {
            Stage& stage = stages[threadIdx.x / 32];
            const float scale = out.factor(t.group);
            const int lane = threadIdx.x % 32, lane_col = lane % 8 * 8, j = block * 64 + lane_col;
            const RowFactors<P::WarpM> factors(P::HasProb, out.prob + t.first + first, t.rows - first);
            typename DGLU<P>::Pre pre;  // of the row at hand, loaded while the one before it is worked on
            const auto load = [&](int row) {
                if (row < t.rows && j < P::N) {
                    out.load(pre, t.first + row, j);
                }
            };
            load(first + lane / 8);
            for_staged<8, P::WarpM, 1>(stage, acc, P::WarpM, extra.factor(t.group), [&](int i, int staged) {
                const int row = first + i * 16 + staged;
                const float p = factors.at(i, staged);
                const typename DGLU<P>::Pre now = pre;
                if (staged < 12 || i < P::WarpM / 16 - 1) {
                    load(row + 4);
                }
                float g[8];
                stage.get(g, staged, lane_col);
                out.row(seen, g, now, p, t.first + row, j, scale, row < t.rows, row < rows && j < P::N);
            });
        }
        if (t.rows > 0) {  // only tiles with real rows have parts
            out.leave(seen, t.index * (P::TileM / P::WarpM) + warp_m, block);
        }
    }
};
