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

// inverse returns 1 / decode(code), rounded. For e4m3: one step of Newton from a reciprocal nearly right leaves an error of
// 2^-44, and the reciprocals of numbers of 4 bits, whose bits repeat within 12, are further than that from where rounding turns.
template <class Factor> __device__ __forceinline__ float inverse(u32 code);
template <> __device__ __forceinline__ float inverse<e4m3>(u32 code) {
    const float x = to_float(e4m3{(u8)code}), y = ptx::rcp_approx(x), better = __fmaf_rn(y, __fmaf_rn(-x, y, 1.f), y);
    return x == 0 ? y : better;
}
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

// Nudge is for numbers of 8 bits (bf16) in e2m1 with e4m3 factors and no norm, whose scales are reciprocals of 4 bits. Their
// products are halfway between two codes but for the rounding, or further off than the 11 bits of f16 can tell. The
// roundings leave alone what is halfway but for 150/15, 300/15 and 600/15 times powers of two, which become larger than 1.25,
// 2.5 and 5. With a factor of 15 times a power of two the products are made larger by 2^-10, which shows in f16, and then
// less by 2^-12, for 0.25 has to stay.
struct Nudge {
    float back;
    static __device__ __forceinline__ Nudge of(u32 factor) { return Nudge{factor % 8 == 7 ? -0x1p-12f : 0.f}; }
    __device__ __forceinline__ float product(float mag, float s) const { return __fmaf_rn(mag, __fmaf_rn(s, -4 * back, s), back); }
    // is_extreme: factors that are subnormal, negative or the largest; they may leave products that are too large.
    static __device__ __forceinline__ bool is_extreme(u32 factor) { return factor - 8 >= 0x7e - 8; }
};
