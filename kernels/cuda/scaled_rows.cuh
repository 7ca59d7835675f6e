// row_product.cuh for operands of which one or both are codes with factors (contracts, sections 3 and 7): A (M,K), B (N,K) each
// group, K-major, or with NMajor (K,N) beside a plain A, its blocks along N.
//
// Tiles, warps: row_product.cuh. Loops and their shared memory: the plain one of row_product.cuh, ahead of which operands are decoded
// (scaled_ahead.cuh); with Thin, for few rows, scaled_thin.cuh; codes in B alone, scaled_pipeline.cuh; OperandType float, for what bf16
// cannot hold, the loop of floats there.
//
// P, the constants: those of row_product.cuh; AType, of a plain A; CodesB, and CodesA (or kNoCodes), Format, Vec, of the factors; Align, of which
// offsets are kept multiples; When and the rest of scaled_extra.cuh.
#pragma once
#include "scaled_ahead.cuh"
#include "scaled_extra.cuh"
#include "scaled_pipeline.cuh"
#include "scaled_thin.cuh"

template <class P>
struct ScaledRowSpec {
    using T = typename P::OperandType;
    static constexpr int kTileM = P::TileM, kTileN = P::TileN, kWarpM = P::WarpM, kStages = P::Stages;
    static constexpr bool kTailed = P::K % Depth<T>::kBlock != 0;
    static constexpr bool kSees = P::HasAmax;  // an epilogue that takes more registers
    static constexpr bool kThinTailed = P::K % (kThinWide * 256 / CodeFormat<P::CodesB>::kBits) != 0;
    struct A {
        using T = typename P::AType;
        static constexpr CodeKind kCodes = P::CodesA;
        static constexpr FactorKind kFactors = P::Format;
        static constexpr int kVec = P::Vec;
        static constexpr bool kAlongOuter = false;
        static constexpr int kRows = kTileM;
        static constexpr Major kMajor = kReduction;
        static constexpr i64 kLd = P::K, kUpRow = 0;
        static constexpr bool kVector = true, kFull = false;
    };
    struct B {
        using T = typename P::AType;
        static constexpr CodeKind kCodes = P::CodesB;
        static constexpr FactorKind kFactors = P::Format;
        static constexpr int kVec = P::Vec;
        static constexpr bool kAlongOuter = P::NMajor;
        static constexpr int kRows = kTileN;
        static constexpr Major kMajor = P::NMajor ? kOuter : kReduction;
        static constexpr i64 kLd = P::NMajor ? P::N : P::K, kUpRow = P::UpRow;
        static constexpr bool kVector = true, kFull = P::N % kTileN == 0;
    };
};

template <class P>
struct ScaledRowWork : ReadyWork {
    using Rows = RowWork<P>;
    using Tile = typename Rows::Tile;
    using AType = typename P::AType;
    static constexpr int kBits = CodeFormat<P::CodesB>::kBits;
    // Of a row of factors; rows of the factors' matrix of B.
    static constexpr int kWordsA = ceil_div(P::K, 4 * P::Vec), kWordsB = ceil_div(P::NMajor ? P::N : P::K, 4 * P::Vec);
    static constexpr int kRowsB = P::NMajor ? P::K : P::N;

    Rows rows;
    const void* left;
    const void* right;
    const unsigned char* left_factors;
    const void* right_factors;

    __device__ __forceinline__ int tiles() const { return rows.tiles(); }
    __device__ __forceinline__ Tile tile(int index) const { return rows.tile(index); }
    // Those of the product from a tile's first on.
    __device__ __forceinline__ int columns(const Tile& t) const { return P::N - t.col; }

    // The next of this thread block's tiles: those of a unit (scaled_thin.cuh), then of the unit a grid on. kPads: the last tile
    // with real rows, or the first, has all of the padding that follows.
    template <bool kPads>
    __device__ __forceinline__ bool take(ThinCursor& at, Tile& t) const {
        for (; at.unit < P::E * Rows::kCols; at.unit += gridDim.x, at.row = 0) {
            const int g = at.unit / Rows::kCols, index = rows.groups.tiles[g] + at.row;
            if (index < rows.groups.tiles[g + 1]) {
                t = rows.tile(g, index, at.unit % Rows::kCols);
                at.row++;
                if (kPads && t.first + P::TileM >= rows.groups.real[g]) {
                    t.last = rows.groups.end[g];
                    at.unit += gridDim.x;
                    at.row = 0;
                }
                return true;
            }
        }
        return false;
    }

    __device__ __forceinline__ auto a(const Tile& t) const {
        const i64 at = static_cast<i64>(t.first) * P::K;
        if constexpr (P::CodesA == kNoCodes) {
            return Source<AType>{static_cast<const AType*>(left) + at, P::K, t.rows};
        } else {
            return CodeSource{static_cast<const unsigned char*>(left) + at * kBits / 8, P::K, t.rows, left_factors, t.first, kWordsA};
        }
    }

    __device__ __forceinline__ CodeSource b(const Tile& t) const {
        constexpr i64 kBytes = static_cast<i64>(P::N) * P::K * kBits / 8, kFactorBytes = static_cast<i64>(ceil_div(kRowsB, 128)) * kWordsB * 512;
        const int row = P::UpRow != 0 ? t.col / 2 : t.col;
        return {group_piece<P::Ptrs>(right, t.group, kBytes) + (P::NMajor ? row : static_cast<i64>(row) * P::K) * kBits / 8, P::NMajor ? P::N : P::K, P::N - t.col,
                group_piece<P::Ptrs>(right_factors, t.group, kFactorBytes), row, kWordsB};
    }
};

// The loop that goes with the operands. Each has the shared memory that it takes, and run.
enum ScaledLoop {
    kAheadLoop,
    kFloatLoop,
    kThinLoop,
    kWeightLoop,  // codes in B alone
};
template <class P>
constexpr ScaledLoop scaled_loop() {
    return sizeof(typename P::OperandType) == 4 ? kFloatLoop : P::Thin ? kThinLoop : P::CodesA == kNoCodes ? kWeightLoop : kAheadLoop;
}
template <class P, ScaledLoop kLoop = scaled_loop<P>()>
struct ScaledRowLoop;

template <class P>
__device__ __forceinline__ ScaledRowWork<P> scaled_work(const Groups<P::E>& groups, const ScaledOperands& x) {
    return {{}, {{}, groups, nullptr, nullptr}, x.a, x.b, x.sfa, x.sfb};
}
template <class P>
struct ScaledRowLoop<P, kAheadLoop> {
    using Smem = RowSmem<P>;
    template <class Epilogue>
    static __device__ __forceinline__ void run(Smem& smem, const ScaledOperands& x, Epilogue& epilogue) {
        AheadWork<P> work(smem.groups, x);
        if (work.decode(smem)) {
            multiply_tiles<RowSpec<P>>(smem.slots, work, epilogue);
        }
    }
};
template <class P>
struct ScaledRowLoop<P, kFloatLoop> {
    using Smem = FloatSmem<ScaledRowSpec<P>, P::E>;
    template <class Epilogue>
    static __device__ __forceinline__ void run(Smem& smem, const ScaledOperands& x, Epilogue& epilogue) {
        multiply_floats<ScaledRowSpec<P>>(smem.slots, scaled_work<P>(smem.groups, x), epilogue);
    }
};
template <class P>
struct ScaledRowLoop<P, kThinLoop> {
    using Smem = ThinSmem<ScaledRowSpec<P>, P::E>;
    template <class Epilogue>
    static __device__ __forceinline__ void run(Smem& smem, const ScaledOperands& x, Epilogue& epilogue) {
        multiply_thin<ScaledRowSpec<P>>(smem.slots, scaled_work<P>(smem.groups, x), epilogue);
    }
};
template <class P>
struct ScaledRowLoop<P, kWeightLoop> {
    using Smem = ScaledSmem<ScaledRowSpec<P>, P::E>;
    template <class Epilogue>
    static __device__ __forceinline__ void run(Smem& smem, const ScaledOperands& x, Epilogue& epilogue) {
        multiply_scaled<ScaledRowSpec<P>>(smem.tiles, smem.slots, scaled_work<P>(smem.groups, x), epilogue);
    }
};
// Whether an epilogue takes PaddingCopies: one that does not quantize, where rows are multiples of 16 bytes in every format.
template <class P>
constexpr bool kCopiedPadding = ptx::kBulk && scaled_loop<P>() == kThinLoop && sizeof(typename P::DType) > 1 && P::N % 8 == 0;

template <class P>
using ScaledRowSmem = typename ScaledRowLoop<P>::Smem;

// The whole kernel but for the epilogue, which it builds over the shared memory.
template <class P, class MakeEpilogue>
__device__ __forceinline__ void scaled_rows(const ScaledOperands& x, const int* offsets, const int* counts, int limit, MakeEpilogue make) {
    using Smem = ScaledRowSmem<P>;
    static_assert(sizeof(Smem) == P::SharedBytes, "the launch gives SharedBytes of shared memory");
    if (!wanted<P>(Progress<P::E>{x.progress}.extreme())) {
        return;
    }
    Smem& smem = *reinterpret_cast<Smem*>(ptx::dynamic_shared());
    smem.groups.template read<P::TileM>(offsets, counts, limit, P::Align);
    auto epilogue = make(smem);
    ScaledRowLoop<P>::run(smem, x, epilogue);
}
