// Looks for fp8 codes whose values bf16 cannot hold: those that are not zero beside a factor below CodeFormat::kLeastFactor.
//
//   *extreme = 1 if there is one (else it stays)
//
// Only what a product reads counts: real rows, or real tokens, so that what padding holds decides nothing. Thread blocks take
// pieces of a matrix of words of four factors, a grid apart; codes are read beside small factors alone.
//
// Params: Codes; E; Rows, Cols of a matrix of codes whose factors run along Cols; Kind: 0, E matrices (weights), one after the
// other or (Ptrs) where E addresses say; 1, one matrix whose rows are those of groups, Rows of them at most; 2, one whose Cols
// are the tokens of groups: TokensInner, they are contiguous, else rows of Rows codes; Ragged, group after group. Align, of
// which offsets are kept multiples.
#include "decode.cuh"
#include "tile.cuh"

struct Matrix {
    const unsigned char* codes;
    const unsigned char* factors;
    i64 row, col;    // codes between neighbours along an axis
    int rows, cols;  // that count
    int words;       // of a row of factors
};

// Whether code (r, c) and the 31 after it, as far as the matrix goes, hold one that is not zero.
__device__ __forceinline__ bool any_code(const Matrix& m, int r, int c) {
    u32 any = 0;
    for (int i = c; i < min_of(c + 32, m.cols); i++) {
        any |= m.codes[r * m.row + i * m.col];
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
    const i64 all = static_cast<i64>(ceil_div(m.rows, 128)) * m.words * 128, first = piece * kPiece + threadIdx.x * 4;
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
            const int r = block / m.words * 128 + word / 4 + word % 4 * 32, c = block % m.words * 128;
#pragma unroll 1
            for (int k = 0; k < 4; k++) {
                found = found || ((four >> 8 * k & 0xff) < kLeast && r < m.rows && c + 32 * k < m.cols && counts(r) && any_code(m, r, c + 32 * k));
            }
        }
    }
    return found;
}

__device__ __forceinline__ i64 pieces(const Matrix& m) {
    return (static_cast<i64>(ceil_div(m.rows, 128)) * m.words * 128 + kPiece - 1) / kPiece;
}

extern "C" __global__ void __launch_bounds__(256)
    scaled_extremes(const void* codes, const void* factors, const int* offsets, const int* counts, const int* rows_a, const int* rows_b, u32* extreme,
                    int capacity) {
    using P = Params;
    __shared__ Groups<P::E> groups;
    constexpr int kWords = ceil_div(P::Cols, 128);
    bool found = false;
    if constexpr (P::Kind == 0) {
        constexpr i64 kCodes = static_cast<i64>(P::Rows) * P::Cols, kFactors = static_cast<i64>(ceil_div(P::Rows, 128)) * kWords * 512;
        constexpr int kPieces = static_cast<int>((kFactors / 4 + kPiece - 1) / kPiece);
        for (i64 i = blockIdx.x; i < static_cast<i64>(P::E) * kPieces && !found; i += gridDim.x) {
            const int g = static_cast<int>(i / kPieces);
            const unsigned char* c = P::Ptrs ? reinterpret_cast<const unsigned char*>(static_cast<const u64*>(codes)[g])
                                             : static_cast<const unsigned char*>(codes) + g * kCodes;
            const unsigned char* f = P::Ptrs ? reinterpret_cast<const unsigned char*>(static_cast<const u64*>(factors)[g])
                                             : static_cast<const unsigned char*>(factors) + g * kFactors;
            found = search({c, f, P::Cols, 1, P::Rows, P::Cols, kWords}, i % kPieces, [](int) { return true; });
        }
    } else {
        groups.template read<1>(offsets, counts, rows_in_use(capacity, rows_a, rows_b), P::Align);
        const unsigned char* c = static_cast<const unsigned char*>(codes);
        const unsigned char* f = static_cast<const unsigned char*>(factors);
        if constexpr (P::Kind == 1) {
            const Matrix m{c, f, P::Cols, 1, groups.end[P::E - 1], P::Cols, kWords};
            for (i64 i = blockIdx.x; i < pieces(m) && !found; i += gridDim.x) {
                found = search(m, i, [&](int r) {
                    int g = 0;
                    for (int high = P::E - 1; g < high;) {  // the first group that ends after r
                        const int mid = (g + high) / 2;
                        if (groups.end[mid] > r) {
                            high = mid;
                        } else {
                            g = mid + 1;
                        }
                    }
                    return r < groups.real[g];
                });
            }
        } else {
            i64 before = 0;  // pieces of the groups before
            for (int g = 0; g < P::E && !found; g++) {
                const i64 begin = groups.begin(g), tokens = groups.end[g] - begin;
                const i64 at = !P::TokensInner || P::Ragged ? begin * P::Rows : begin;
                const Matrix m{c + at, f + static_cast<i64>(ceil_div(P::Rows, 128)) * (begin / 128) * 512, !P::TokensInner ? 1 : P::Ragged ? tokens : capacity,
                               P::TokensInner ? 1 : P::Rows, P::Rows, groups.real[g] - static_cast<int>(begin), static_cast<int>(tokens / 128)};
                const i64 n = pieces(m);
                i64 i = (blockIdx.x - before % gridDim.x + gridDim.x) % gridDim.x;
                for (; i < n && !found; i += gridDim.x) {
                    found = search(m, i, [](int) { return true; });
                }
                before += n;
            }
        }
    }
    if (found) {
        *extreme = 1;
    }
}
