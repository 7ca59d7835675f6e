// Products whose rows belong to groups: A (M,K) row-major, its rows those of the groups one after the other, times the group's
// B, (N,K) or with NMajor (K,N).
//
// Tiles: kTileM rows of one group by kTileN columns, in bands of Band row tiles. Shared memory: the ring, a stage a warp, the
// groups. Every warp does everything (pipeline.cuh).
//
// P, the constants: OperandType; E, K, N; TileM, TileN, WarpM, Stages, Band, SharedBytes; NMajor; Ptrs: b holds E addresses;
// UpRow: N/2 for weights [gate; up], else 0.
#pragma once
#include "epilogue.cuh"
#include "tile.cuh"

template <class P>
struct RowSpec {
    using T = typename P::OperandType;
    static constexpr int kTileM = P::TileM, kTileN = P::TileN, kWarpM = P::WarpM, kStages = P::Stages;
    static constexpr bool kTailed = P::K % Depth<T>::kBlock != 0;
    struct A {
        using T = typename P::OperandType;
        static constexpr int kRows = kTileM;
        static constexpr Major kMajor = kReduction;
        static constexpr i64 kLd = P::K, kUpRow = 0;
        static constexpr bool kVector = P::K % Depth<T>::kChunk == 0, kFull = false;
    };
    struct B {
        using T = typename P::OperandType;
        static constexpr int kRows = kTileN;
        static constexpr Major kMajor = P::NMajor ? kOuter : kReduction;
        static constexpr i64 kLd = P::NMajor ? P::N : P::K, kUpRow = P::UpRow;
        static constexpr bool kVector = kLd % Depth<T>::kChunk == 0, kFull = P::N % kTileN == 0;
    };
};

template <class P>
struct RowWork : ReadyWork {
    using T = typename P::OperandType;
    static constexpr int kCols = ceil_div(P::N, P::TileN);

    struct Tile : RowTile {
        int col;    // first column
        int depth;  // of the reduction: none where all rows are padding
        int rows;   // real ones
    };

    const Groups<P::E>& groups;
    const T* left;
    const void* right;

    __device__ __forceinline__ int tiles() const { return groups.tiles[P::E] * kCols; }

    __device__ __forceinline__ Tile tile(int index) const {
        const int g = groups.find(index / kCols), first = groups.tiles[g];
        int row, col;
        banded<P::Band>(index - first * kCols, groups.tiles[g + 1] - first, kCols, row, col);
        return tile(g, first + row, col);
    }

    // Row tile index, which is one of group g, by tile col of its columns.
    __device__ __forceinline__ Tile tile(int g, int index, int col) const {
        Tile t;
        static_cast<RowTile&>(t) = groups.template at<P::TileM>(g, index);
        t.col = col * P::TileN;
        t.rows = t.mid - t.first;
        t.depth = t.rows > 0 ? P::K : 0;
        return t;
    }

    __device__ __forceinline__ Source<T> a(const Tile& t) const {
        return {left + static_cast<i64>(t.first) * P::K, P::K, t.rows};
    }

    __device__ __forceinline__ Source<T> b(const Tile& t) const {
        return b(t, P::Ptrs ? reinterpret_cast<const T*>(static_cast<const u64*>(right)[t.group]) : dense(right, t.group));
    }

protected:
    static __device__ __forceinline__ const T* dense(const void* all, int group) { return static_cast<const T*>(all) + static_cast<i64>(group) * P::N * P::K; }

    // Of the group's matrix.
    __device__ __forceinline__ Source<T> b(const Tile& t, const T* weight) const {
        const i64 row = P::UpRow != 0 ? t.col / 2 : t.col;
        return {weight + (P::NMajor ? row : row * P::K), P::NMajor ? P::N : P::K, P::N - t.col};
    }
};

template <class P>
using RowSmem = ProductSmem<RowSpec<P>, P::E>;

// The whole kernel but for the epilogue, which it builds over the shared memory.
template <class P, class MakeEpilogue>
__device__ __forceinline__ void row_product(const typename P::OperandType* a, const void* b, const int* offsets, const int* counts,
                                            const int limit, MakeEpilogue make) {
    using Smem = RowSmem<P>;
    static_assert(sizeof(Smem) == P::SharedBytes, "the launch gives SharedBytes of shared memory");
    Smem& smem = *reinterpret_cast<Smem*>(ptx::dynamic_shared());
    smem.groups.template read<P::TileM>(offsets, counts, limit);
    const RowWork<P> work{{}, smem.groups, a, b};
    auto epilogue = make(smem);
    multiply_tiles<RowSpec<P>>(smem.slots, work, epilogue);
}

// Where the rows of a tile end that warp row warp_m has; the only one has all.
template <class P, class Tile>
__device__ __forceinline__ int rows_of_warp(const Tile& t, int warp_m) {
    const int rows = t.last - t.first;
    return P::WarpM == P::TileM ? rows : min_of(rows, (warp_m + 1) * P::WarpM);
}

// D and C of section 4: C = alpha A B^T (+ prob bias); D = prob C without a bias, else C.
//
// P also has BiasType, DType, CType and HasAlpha, HasProb, HasBias, HasD, HasC. kCopies: padding is written by PaddingCopies.
template <class P, class Extra = PlainExtra<P>, bool kCopies = false>
struct PlainEpilogue {
    using Tile = typename RowWork<P>::Tile;
    static constexpr bool kVector = P::N % 8 == 0;
    static constexpr bool kPads = true;  // a tile of one warp row may have any number of rows of padding
    using Padding = PaddingCopies<P, P::N>;

    Stage* stages;
    Extra extra;
    const float* prob;
    const typename P::BiasType* bias;
    typename P::DType* d;
    typename P::CType* c;

    __device__ __forceinline__ void begin(const Tile& t, int, int) const {
        extra.begin(t.group);
        if constexpr (kCopies) {
            Padding::begin(stages, t, c, d);
        }
    }

    __device__ __forceinline__ void operator()(const Tile& t, int warp_m, int warp_n, const Accumulators<P::WarpM>& acc) const {
        if constexpr (kCopies) {
            Padding::end();
        }
        const int first = warp_m * P::WarpM, rows = rows_of_warp<P>(t, warp_m), real = t.rows - first, lane_col = threadIdx.x % 8 * 8;
        const int col = t.col + warp_n * 64 + lane_col, n = clamp_of(P::N - col, 0, 8);
        if (first >= rows || t.col + warp_n * 64 >= P::N) {
            return;
        }
        if constexpr (!kCopies) {
            for_padding<8>(real, rows - first, [&](int row) {
                if (n != 0) {
                    store(t.first + first + row, col, n);
                }
            });
        }
        if (real <= 0) {
            return;
        }
        Stage& stage = stages[threadIdx.x / 32];
        float b[8];
        if constexpr (P::HasBias) {
            load8<kVector>(b, bias + static_cast<i64>(t.group) * P::N + col, n);
        }
        const RowFactors<P::WarpM> factors(P::HasProb, prob + t.first + first, real);
        typename Extra::Seen seen;
        for_staged<8, P::WarpM, P::WarpM == P::TileM ? 2 : 8>(stage, acc, real, extra.factor(t.group), [&](int i, int staged) {
            const float p = factors.at(i, staged);
            const int row = first + i * 16 + staged;
            if (row >= rows || n == 0) {
                return;
            }
            const i64 at = static_cast<i64>(t.first + row) * P::N + col;
            float v[8] = {};
            if (row < t.rows) {
                stage.get(v, staged, lane_col);
                if constexpr (P::HasBias) {
                    add_scaled(v, b, p);
                }
            }
            if constexpr (P::HasC) {
                store8<kVector>(c + at, v, n);
            }
            if constexpr (P::HasD || Extra::kSees) {
                if constexpr (!P::HasBias && P::HasProb) {
#pragma unroll
                    for (int k = 0; k < 8; k++) {
                        v[k] *= p;
                    }
                }
                seen.see(v);
            }
            if constexpr (P::HasD) {
                store8<kVector>(d + at, v, n);
            }
        });
        extra.leave(seen, t.group);
    }

private:
    // Zeros.
    __device__ __forceinline__ void store(int row, int col, int n) const {
        const float v[8] = {};
        const i64 at = static_cast<i64>(row) * P::N + col;
        if constexpr (P::HasC) {
            store8<kVector>(c + at, v, n);
        }
        if constexpr (P::HasD) {
            store8<kVector>(d + at, v, n);
        }
    }
};
