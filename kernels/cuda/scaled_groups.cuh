// group_product.cuh for operands that are codes with factors along the rows of the groups (contracts, sections 3 and 8).
//
// With kNoCodes, scaled_decode.cuh has decoded them, and the product is the plain one of group_product.cuh.
//
// Tiles, warps: group_product.cuh. OperandType float, for what bf16 cannot hold: the loop of floats of scaled_pipeline.cuh. The
// factors of group e, a tensor of their own, begin 512 ceil(R/128) ceil(rows before e / (4 Vec)) bytes on: groups are multiples of
// 128 rows, so that nothing is rounded.
//
// P, the constants: those of group_product.cuh; CodesA, CodesB (alike, or kNoCodes), Format, Vec, of the factors; Align, of which
// offsets are kept multiples; When and the rest of scaled_extra.cuh.
#pragma once
#include "group_product.cuh"
#include "scaled_extra.cuh"
#include "scaled_pipeline.cuh"

template <class P>
struct ScaledGroupSpec {
    using T = typename P::OperandType;
    static constexpr int kTileM = P::TileM, kTileN = P::TileN, kWarpM = P::WarpM, kStages = P::Stages;

    template <int kTile, bool kInner>
    struct Operand {
        static constexpr CodeKind kCodes = P::CodesA;
        static constexpr FactorKind kFactors = P::Format;
        static constexpr int kVec = P::Vec;
        static constexpr bool kAlongOuter = false;
        static constexpr int kRows = kTile;
        static constexpr Major kMajor = kInner ? kReduction : kOuter;
        static constexpr i64 kUpRow = 0;
    };
    using A = Operand<kTileM, P::RowsInnerA>;
    using B = Operand<kTileN, P::RowsInnerB>;
};

template <class P>
struct ScaledGroupWork : ReadyWork {
    using Tile = typename GroupWork<P>::Tile;
    static constexpr int kBits = CodeFormat<P::CodesA>::kBits;

    GroupWork<P> groups;
    const unsigned char* left;
    const unsigned char* right;
    const unsigned char* left_factors;
    const unsigned char* right_factors;

    __device__ __forceinline__ int tiles() const { return groups.tiles(); }
    __device__ __forceinline__ Tile tile(int index) const { return groups.tile(index); }
    __device__ __forceinline__ CodeSource a(const Tile& t) const { return source<P::RowsInnerA, P::M>(left, left_factors, t, t.row); }
    __device__ __forceinline__ CodeSource b(const Tile& t) const { return source<P::RowsInnerB, P::N>(right, right_factors, t, t.col); }

private:
    template <bool kInner, int kWidth>
    __device__ __forceinline__ CodeSource source(const unsigned char* codes, const unsigned char* factors, const Tile& t, int at) const {
        const i64 rows = t.end - t.begin, ld = !kInner ? kWidth : P::Ragged ? rows : groups.ld;
        const i64 first = !kInner ? static_cast<i64>(t.begin) * kWidth + at : P::Ragged ? static_cast<i64>(t.begin) * kWidth + at * rows : at * ld + t.begin;
        return {codes + first * kBits / 8, ld, kWidth - at, factors + static_cast<i64>(ceil_div(kWidth, 128)) * (t.begin / (4 * P::Vec)) * 512, at,
                static_cast<int>(rows) / (4 * P::Vec)};
    }
};

template <class P, bool kDecoded>
struct ScaledGroupSmemOf : FloatSmem<ScaledGroupSpec<P>, P::E> {};
template <class P>
struct ScaledGroupSmemOf<P, true> : GroupSmem<P> {};
template <class P>
using ScaledGroupSmem = ScaledGroupSmemOf<P, P::CodesA == kNoCodes>;
