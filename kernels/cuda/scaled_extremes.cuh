// Looks for fp8 codes whose values bf16 cannot hold: those that are not zero beside a factor below CodeFormat::kLeastFactor.
//
//   *extreme = 1 if there is one (else it stays)
//
// Only what a product reads counts: real rows, so that what padding holds decides nothing. Thread blocks take
// pieces of a matrix of words of four factors, a grid apart; codes are read beside small factors alone.
//
// Params: Codes; E; Rows, Cols of a matrix of codes whose factors run along Cols; Kind: 0, E matrices (weights), one after the
// other or (Ptrs) where E addresses say; 1, one matrix whose rows are those of groups, Rows of them at most. Align, of which offsets
// are kept multiples.
#include "decode.cuh"
#include "tile.cuh"

struct Matrix {
    const unsigned char* codes;
    const unsigned char* factors;
    int rows;  // that count
};

constexpr int kWords = ceil_div(Params::Cols, 128);  // of a row of factors

// Whether code (r, c) and the 31 after it, as far as the matrix goes, hold one that is not zero.
__device__ __forceinline__ bool any_code(const Matrix& m, int r, int c) {
    u32 any = 0;
    for (int i = c; i < min_of(c + 32, Params::Cols); i++) {
        any |= m.codes[static_cast<i64>(r) * Params::Cols + i];
    }
    return (any & 0x7f) != 0;
}

// Whether one of the bytes is below the least factor.
__device__ __forceinline__ bool any_small(u32 four) {
    const u32 above = (four | 0x80808080u) - CodeFormat<Params::Codes>::kLeastFactor * 0x01010101u;  // bits 7: the rest of the byte is not
    return (~(above | four) & 0x80808080u) != 0;
}

// Searches the part of this thread in piece `piece` of kPiece words; a thread has kLoads loads of four words in flight.
constexpr int kLoads = 4, kPiece = 256 * 4 * kLoads;

template <class Counts>
__device__ __forceinline__ bool search(const Matrix& m, i64 piece, Counts counts) {
    constexpr u32 kLeast = CodeFormat<Params::Codes>::kLeastFactor;
    const i64 all = static_cast<i64>(ceil_div(m.rows, 128)) * kWords * 128, first = piece * kPiece + threadIdx.x * 4;
    Vec16 fours[kLoads];
#pragma unroll
    for (int n = 0; n < kLoads; n++) {
        fours[n] = {{~0u, ~0u, ~0u, ~0u}};
        if (first + n * 1024 < all) {
            fours[n] = *reinterpret_cast<const Vec16*>(m.factors + (first + n * 1024) * 4);
        }
    }
    bool found = false;
#pragma unroll
    for (int n = 0; n < kLoads; n++) {
#pragma unroll
        for (int w = 0; w < 4; w++) {
            const u32 four = fours[n].word[w];
            if (!any_small(four)) {
                continue;
            }
            const i64 i = first + n * 1024;
            const int block = static_cast<int>(i / 128), word = static_cast<int>(i % 128) + w;
            const int r = block / kWords * 128 + word / 4 + word % 4 * 32, c = block % kWords * 128;
#pragma unroll 1
            for (int k = 0; k < 4; k++) {
                found = found || ((four >> 8 * k & 0xff) < kLeast && r < m.rows && c + 32 * k < Params::Cols && counts(r) && any_code(m, r, c + 32 * k));
            }
        }
    }
    return found;
}

__device__ __forceinline__ i64 pieces(const Matrix& m) {
    return (static_cast<i64>(ceil_div(m.rows, 128)) * kWords * 128 + kPiece - 1) / kPiece;
}

extern "C" __global__ void __launch_bounds__(256)
    scaled_extremes(const void* codes, const void* factors, const int* offsets, const int* counts, const int* rows_a, const int* rows_b, u32* extreme,
                    int capacity) {
    using P = Params;
    __shared__ Groups<P::E> groups;
    bool found = false;
    if constexpr (P::Kind == 0) {
        constexpr i64 kCodes = static_cast<i64>(P::Rows) * P::Cols, kFactors = static_cast<i64>(ceil_div(P::Rows, 128)) * kWords * 512;
        constexpr int kPieces = static_cast<int>((kFactors / 4 + kPiece - 1) / kPiece);
        for (i64 i = blockIdx.x; i < static_cast<i64>(P::E) * kPieces && !found; i += gridDim.x) {
            const int g = static_cast<int>(i / kPieces);
            const Matrix m{group_piece<P::Ptrs>(codes, g, kCodes), group_piece<P::Ptrs>(factors, g, kFactors), P::Rows};
            found = search(m, i % kPieces, [](int) { return true; });
        }
    } else {
        groups.template read<128>(offsets, counts, rows_in_use(capacity, rows_a, rows_b), P::Align);
        const Matrix m{static_cast<const unsigned char*>(codes), static_cast<const unsigned char*>(factors), groups.end[P::E - 1]};
        for (i64 i = blockIdx.x; i < pieces(m) && !found; i += gridDim.x) {
            found = search(m, i, [&](int r) { return r < groups.real[groups.find(r / 128)]; });
        }
    }
    if (found) {
        *extreme = 1;
    }
}
