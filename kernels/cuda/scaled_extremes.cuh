// Looks for fp8 codes of weights whose values bf16 cannot hold: those that are not zero beside a factor below
// CodeFormat::kLeastFactor.
//
//   *extreme = 1 if there is one (else it stays)
//
// Thread blocks take pieces of the matrices of words of four factors, a grid apart; codes are read beside small factors alone.
//
// Params: Codes; E matrices of Rows by Cols codes whose factors run along Cols, one after the other or (Ptrs) where E addresses say.
#include "decode.cuh"

struct Matrix {
    const unsigned char* codes;
    const unsigned char* factors;
};

constexpr int kWords = ceil_div(Params::Cols, 128);                                      // of a row of factors
constexpr i64 kAllWords = static_cast<i64>(ceil_div(Params::Rows, 128)) * kWords * 128;  // of a matrix

// Whether code (r, c) and the 31 after it, as far as the matrix goes, hold one that is not zero.
__device__ __forceinline__ bool any_code(const Matrix& m, int r, int c) {
    u32 any = 0;
    for (int i = c; i < min_of(c + 32, Params::Cols); i++) {
        any |= m.codes[static_cast<i64>(r) * Params::Cols + i];
    }
    return (any & 0x7f) != 0;
}

// Searches the part of this thread in piece `piece` of kPiece words; a thread has kLoads loads of four words in flight.
constexpr int kLoads = 4, kPiece = 256 * 4 * kLoads;

__device__ __forceinline__ bool search(const Matrix& m, i64 piece) {
    constexpr u32 kLeast = CodeFormat<Params::Codes>::kLeastFactor;
    const i64 first = piece * kPiece + threadIdx.x * 4;
    Vec16 fours[kLoads];
#pragma unroll
    for (int n = 0; n < kLoads; n++) {
        fours[n] = {{~0u, ~0u, ~0u, ~0u}};
        if (first + n * 1024 < kAllWords) {
            fours[n] = *reinterpret_cast<const Vec16*>(m.factors + (first + n * 1024) * 4);
        }
    }
    bool found = false;
#pragma unroll
    for (int n = 0; n < kLoads; n++) {
#pragma unroll
        for (int w = 0; w < 4; w++) {
            const u32 four = fours[n].word[w];
            if (factors_below(four, kLeast) == 0) {
                continue;
            }
            const i64 i = first + n * 1024;
            const int block = static_cast<int>(i / 128), word = static_cast<int>(i % 128) + w;
            const int r = block / kWords * 128 + word / 4 + word % 4 * 32, c = block % kWords * 128;
#pragma unroll 1
            for (int k = 0; k < 4; k++) {
                found = found || ((four >> 8 * k & 0xff) < kLeast && r < Params::Rows && c + 32 * k < Params::Cols && any_code(m, r, c + 32 * k));
            }
        }
    }
    return found;
}

extern "C" __global__ void __launch_bounds__(256) scaled_extremes(const void* codes, const void* factors, u32* extreme) {
    using P = Params;
    constexpr i64 kPieces = (kAllWords + kPiece - 1) / kPiece;
    bool found = false;
    for (i64 i = blockIdx.x; i < P::E * kPieces && !found; i += gridDim.x) {
        const int g = static_cast<int>(i / kPieces);
        const Matrix m{group_piece<P::Ptrs>(codes, g, static_cast<i64>(P::Rows) * P::Cols), group_piece<P::Ptrs>(factors, g, kAllWords * 4)};
        found = search(m, i % kPieces);
    }
    if (found) {
        *extreme = 1;
    }
}
