// Looks for fp8 codes whose values bf16 cannot hold: those that are not zero beside a factor below CodeFormat::kLeastFactor.
//
//   *extreme = 1 if there is one (else it stays)
//
// Only what a product reads counts: real rows, or real tokens, so that what padding holds decides nothing. A thread takes words
// of four factors, grid-stride; codes are read beside small factors alone.
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

template <class Counts>
__device__ __forceinline__ bool search(const Matrix& m, i64 from, i64 step, Counts counts) {
    constexpr u32 kLeast = CodeFormat<Params::Codes>::kLeastFactor;
    const i64 all = static_cast<i64>(ceil_div(m.rows, 128)) * m.words * 128;
    for (i64 i = from; i < all; i += step) {
        const u32 four = reinterpret_cast<const u32*>(m.factors)[i];
        const int block = static_cast<int>(i / 128), word = static_cast<int>(i % 128);
        const int r = block / m.words * 128 + word / 4 + word % 4 * 32, c = block % m.words * 128;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            if ((four >> 8 * k & 0xff) < kLeast && r < m.rows && c + 32 * k < m.cols && counts(r) && any_code(m, r, c + 32 * k)) {
                return true;
            }
        }
    }
    return false;
}

extern "C" __global__ void __launch_bounds__(256)
    scaled_extremes(const void* codes, const void* factors, const int* offsets, const int* counts, const int* rows_a, const int* rows_b, u32* extreme,
                    int capacity) {
    using P = Params;
    __shared__ Groups<P::E> groups;
    constexpr int kWords = ceil_div(P::Cols, 128);
    const i64 from = static_cast<i64>(blockIdx.x) * 256 + threadIdx.x, step = static_cast<i64>(gridDim.x) * 256;
    bool found = false;
    if constexpr (P::Kind == 0) {
        for (int g = 0; g < P::E && !found; g++) {
            constexpr i64 kCodes = static_cast<i64>(P::Rows) * P::Cols, kFactors = static_cast<i64>(ceil_div(P::Rows, 128)) * kWords * 512;
            const unsigned char* c = P::Ptrs ? reinterpret_cast<const unsigned char*>(static_cast<const u64*>(codes)[g])
                                             : static_cast<const unsigned char*>(codes) + g * kCodes;
            const unsigned char* f = P::Ptrs ? reinterpret_cast<const unsigned char*>(static_cast<const u64*>(factors)[g])
                                             : static_cast<const unsigned char*>(factors) + g * kFactors;
            found = search({c, f, P::Cols, 1, P::Rows, P::Cols, kWords}, from, step, [](int) { return true; });
        }
    } else {
        groups.template read<1>(offsets, counts, rows_in_use(capacity, rows_a, rows_b), P::Align);
        const unsigned char* c = static_cast<const unsigned char*>(codes);
        const unsigned char* f = static_cast<const unsigned char*>(factors);
        if constexpr (P::Kind == 1) {
            found = search({c, f, P::Cols, 1, groups.end[P::E - 1], P::Cols, kWords}, from, step, [&](int r) {
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
        } else {
            for (int g = 0; g < P::E && !found; g++) {
                const i64 begin = groups.begin(g), tokens = groups.end[g] - begin;
                const i64 at = !P::TokensInner || P::Ragged ? begin * P::Rows : begin;
                found = search({c + at, f + static_cast<i64>(ceil_div(P::Rows, 128)) * (begin / 128) * 512, !P::TokensInner ? 1 : P::Ragged ? tokens : capacity,
                                P::TokensInner ? 1 : P::Rows, P::Rows, groups.real[g] - static_cast<int>(begin), static_cast<int>(tokens / 128)},
                               from, step, [](int) { return true; });
            }
        }
    }
    if (found) {
        *extreme = 1;
    }
}
