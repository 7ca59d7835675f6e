// The arithmetic of a block of numbers that share a factor, in float, every operation rounded on its own, and where the
// factor stands (contracts, sections 3 and 7). Quantize and quantizing epilogues make their bytes with it.
//
//   SF = encode((max * norm) * rcp),  rcp = float(1/q_max);  s = norm * (1 / decode(SF)), at most FLT_MAX;  code = encode(x * s)
#pragma once
#include "formats.cuh"

// FactorBlock: factors lie in blocks of 128 rows by 4.
constexpr int kFactorRows = 128, kFactorCols = 4, kFactorBytes = kFactorRows * kFactorCols;

// factor_byte is the place of factor c of row r in its block.
__host__ __device__ constexpr int factor_byte(int r, int c) { return r % 32 * 16 + r % 128 / 32 * 4 + c % 4; }

// BlockScale is a block's factor and what its elements are multiplied by.
struct BlockScale {
    u32 code;
    float s;
    // odd: a product with s may be a NaN.
    bool odd;
};

// inverse returns 1 / decode(code), rounded.
template <class Factor> __device__ __forceinline__ float inverse(u32 code) { return __fdiv_rn(1.f, to_float(Factor{(u8)code})); }
template <> __device__ __forceinline__ float inverse<e8m0>(u32 code) {
    return __uint_as_float(code == 0xff ? kQuietNaN : code == 254 ? 0x00400000u : (254 - code) << 23);
}

// block_scale: top are the bits of the block's largest magnitude, a NaN's above all others. kOne makes every factor 1.
template <class Value, class Factor, bool kOne = false> __device__ __forceinline__ BlockScale block_scale(u32 top, float norm) {
    BlockScale b;
    const float scaled = __fmul_rn(__fmul_rn(__uint_as_float(top), norm), NarrowFormat<Value>::kRcp);
    b.code = from_float<Factor>(kOne ? 1.f : scaled).bits;
    b.s = __fmul_rn(norm, inverse<Factor>(b.code));
    if (b.s > __uint_as_float(kInf - 1)) b.s = __uint_as_float(kInf - 1); // a NaN stays, and so does -Inf
    b.odd = !(magnitude(b.s) < kInf) || top >= kInf;
    return b;
}
