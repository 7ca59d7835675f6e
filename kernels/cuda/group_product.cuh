// Products that sum over rows of groups: out_g (M,N) = A_g B_g, the reduction being the rows of group g.
//
// Operands lie with rows outermost ((rows,M), (rows,N): major kOuter, no copy is transposed) or innermost ((M,rows), (N,rows)).
// Tiles: kTileM by kTileN of one group's output, in bands; groups in order. Shared memory as in row_product.cuh.
//
// P, the constants: OperandType; E, M, N; TileM, TileN, WarpM, Stages, Band, SharedBytes; RowsInnerA, RowsInnerB; VectorA,
// VectorB: rows of 16 bytes; Ragged: a RowsInner operand holds group after group; Accumulate.
#pragma once
#include "epilogue.cuh"
#include "tile.cuh"

template <class P>
struct GroupSpec {
    using T = typename P::OperandType;
    static constexpr int kTileM = P::TileM, kTileN = P::TileN, kWarpM = P::WarpM, kStages = P::Stages;
    static constexpr bool kTailed = true;
    struct A {
        using T = typename P::OperandType;
        static constexpr int kRows = kTileM;
        static constexpr Major kMajor = P::RowsInnerA ? kReduction : kOuter;
        static constexpr i64 kLd = P::RowsInnerA ? 0 : P::M, kUpRow = 0;
        static constexpr bool kVector = P::VectorA, kFull = P::M % kTileM == 0;
    };
    struct B {
        using T = typename P::OperandType;
        static constexpr int kRows = kTileN;
        static constexpr Major kMajor = P::RowsInnerB ? kReduction : kOuter;
        static constexpr i64 kLd = P::RowsInnerB ? 0 : P::N, kUpRow = 0;
        static constexpr bool kVector = P::VectorB, kFull = P::N % kTileN == 0;
    };
};

template <class P>
struct GroupWork : ReadyWork {
    using T = typename P::OperandType;
    static constexpr int kRows = ceil_div(P::M, P::TileM), kCols = ceil_div(P::N, P::TileN);

    struct Tile {
        int group, row, col;
        int begin, end;  // of the group's rows, padding included
        int depth;       // real rows
        int rows;        // of the output that the tile has
    };

    const Groups<P::E>& groups;
    const T* left;
    const T* right;
    i64 ld;  // rows of a RowsInner operand

    __device__ __forceinline__ int tiles() const { return P::E * kRows * kCols; }

    __device__ __forceinline__ Tile tile(int index) const {
        Tile t;
        t.group = index / (kRows * kCols);
        int row, col;
        banded<P::Band>(index % (kRows * kCols), kRows, kCols, row, col);
        t.row = row * P::TileM;
        t.col = col * P::TileN;
        t.begin = groups.begin(t.group);
        t.end = groups.end[t.group];
        t.depth = groups.real[t.group] - t.begin;
        t.rows = min_of(P::TileM, P::M - t.row);
        return t;
    }

    __device__ __forceinline__ Source<T> a(const Tile& t) const {
        return source<P::RowsInnerA, P::M>(left, t, t.row);
    }
    __device__ __forceinline__ Source<T> b(const Tile& t) const {
        return source<P::RowsInnerB, P::N>(right, t, t.col);
    }

private:
    template <bool kInner, int kWidth>
    __device__ __forceinline__ Source<T> source(const T* x, const Tile& t, i64 at) const {
        const int extent = kWidth - static_cast<int>(at);
        if (!kInner) {
            return {x + static_cast<i64>(t.begin) * kWidth + at, kWidth, extent};
        }
        if (P::Ragged) {
            const i64 rows = t.end - t.begin;
            return {x + static_cast<i64>(t.begin) * kWidth + at * rows, rows, extent};
        }
        return {x + at * ld + t.begin, ld, extent};
    }
};

template <class P>
using GroupSmem = ProductSmem<GroupSpec<P>, P::E>;

// out_g = alpha[g] * sum (+ bias) (+ out_g with Accumulate), rounded once.
//
// P also has OutType, BiasType; HasAlpha, HasBias (N, the same for all groups); Ptrs: out holds E addresses, null where nobody
// wants the product.
template <class P, class Extra = PlainExtra<P>>
struct GroupEpilogue {
    using Tile = typename GroupWork<P>::Tile;
    using Out = typename P::OutType;
    static constexpr bool kVector = P::N % 8 == 0;

    Stage* stages;
    Extra extra;
    const typename P::BiasType* bias;
    void* out;

    __device__ __forceinline__ void begin(const Tile&, int, int) const {}

    __device__ __forceinline__ void operator()(const Tile& t, int warp_m, int warp_n, const Accumulators<P::WarpM>& acc) const {
        const int first = warp_m * P::WarpM, lane_col = threadIdx.x % 8 * 8;
        const int col = t.col + warp_n * 64 + lane_col, n = clamp_of(P::N - col, 0, 8);
        Out* to = P::Ptrs ? reinterpret_cast<Out*>(static_cast<const u64*>(out)[t.group])
                          : static_cast<Out*>(out) + static_cast<i64>(t.group) * P::M * P::N;
        if (first >= t.rows || t.col + warp_n * 64 >= P::N || (P::Accumulate && t.depth == 0) || (P::Ptrs && to == nullptr)) {
            return;
        }
        Stage& stage = stages[threadIdx.x / 32];
        float b[8];
        if constexpr (P::HasBias) {
            load8<kVector>(b, bias + col, n);
        }
        for_staged<8, P::WarpM>(stage, acc, P::WarpM, extra.factor(t.group), [&](int i, int staged) {
            const int row = first + i * 16 + staged;
            if (row >= t.rows || n == 0) {
                return;
            }
            const i64 at = static_cast<i64>(t.row + row) * P::N + col;
            float v[8];
            stage.get(v, staged, lane_col);
            if constexpr (P::HasBias) {
                add_scaled(v, b, 1.0f);
            }
            if constexpr (P::Accumulate) {
                float old[8];
                load8<kVector>(old, to + at, n);
                add_scaled(v, old, 1.0f);
            }
            store8<kVector>(to + at, v, n);
        });
    }
};
