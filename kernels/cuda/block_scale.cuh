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

// PairScale is what a word of bf16 is multiplied by on the short way to e2m1 without a norm: its two elements may be of two
// blocks. Products must be below 7. QuadScale has what it takes of the factors of four blocks; at joins two of them.
template <class Factor> struct PairScale;
template <class Factor> struct QuadScale;

// Powers of two: halves of scales in bf16.
template <> struct PairScale<e8m0> {
    u32 half;
    __device__ __forceinline__ u32 codes(u32 word) const { return encode_bf16_pair(ptx::mul_bf16x2(word, half)); }
};
template <> struct QuadScale<e8m0> {
    u32 brief[4];
    static __device__ __forceinline__ u32 brief_of(u32 factor) { return __float_as_uint(__fmul_rn(inverse<e8m0>(factor), 0.5f)); }
    __device__ __forceinline__ PairScale<e8m0> at(int i, int j) const { return PairScale<e8m0>{__byte_perm(brief[i], brief[j], 0x7632)}; }
};

// Reciprocals of numbers of 4 bits: a power of two, and a number of 11 bits from 1 to 2. The product is made less by 2^-14.
// Where the exact quotient is halfway between two codes, so is the product rounded, or off to the even side; where not, 8 bits
// of the element keep it further off than 11 bits can tell. The scale itself is rounded, and so quotients by 15 of 1.25, 2.5
// and 5 become larger than halfway, but 0.25 stays. (short_codes.cpp tries all.)
//
// Small numbers of bf16 have the bits of numbers of f16, shifted: 2^-112 is in the power.
template <> struct PairScale<e4m3> {
    u32 power, rest;
    __device__ __forceinline__ u32 codes(u32 word) const {
        const u32 mags = ptx::mul_bf16x2(ptx::abs_bf16x2(word), power) * 8;
        return encode_f16_pair(ptx::fma_f16x2(mags, rest, 0x84008400u), word);
    }
};
// Of each factor a byte: the exponent of the power in bf16, and the halves of the rest, 1 to 15/8 by eighths inverted, 1/9, 1/11
// and 1/15 rounded up.
template <> struct QuadScale<e4m3> {
    u32 exponents, low, high;
    static constexpr u32 kBias = 24; // of factors: subnormal ones are normal ones whose exponents go on below 0

    // Takes four factors plus kBias.
    static __device__ __forceinline__ QuadScale of(u32 biased) {
        const u32 eighths = biased & 0x07070707u, two = eighths | eighths >> 4, pick = __byte_perm(two, 0, 0x4420);
        const u32 up = (biased + 0x07070707u) >> 3 & 0x1f1f1f1fu, exponents = (22 + kBias / 8) * 0x01010101u - up;
        return QuadScale{exponents, __byte_perm(0xd2661d00u, 0x4592ec55u, pick), __byte_perm(0x3d3e3f3cu, 0x3c3c3c3du, pick)};
    }
    __device__ __forceinline__ PairScale<e4m3> at(int i, int j) const {
        return PairScale<e4m3>{__byte_perm(exponents, 0, 0x4040 | i | j << 8) << 7, __byte_perm(low, high, 0x4040 | i * 0x11 | j * 0x1100)};
    }
};

// biased_factor is a factor as QuadScale wants it.
__device__ __forceinline__ u32 biased_factor(u32 factor) {
    const u32 shift = factor >= 8 ? 0 : factor >= 4 ? 1 : factor >= 2 ? 2 : 3;
    return (factor << shift) - 8 * shift + QuadScale<e4m3>::kBias;
}
// is_extreme is true of factors that are not normal or the largest, which may leave products of 7 and more, and of a NaN.
__device__ __forceinline__ bool is_extreme(u32 factor) { return factor - 8 >= 0x7e - 8; }
// any_extreme asks four factors at once.
__device__ __forceinline__ bool any_extreme(u32 factors) { return (((factors + 0x02020202u) | ~(factors + 0x78787878u)) & 0x80808080u) != 0; }
// limit_of is the largest magnitude, in bf16, that a block with that factor need look at, or more than all. Factor 0 is not
// asked for.
__device__ __forceinline__ u32 limit_of(u32 factor) {
    return is_extreme(factor) ? __float_as_uint(__fmul_rn(decode_narrow<e4m3>(factor), 6.f)) >> 16 : 0x7fff;
}
// limited are the elements of a word, at most their limits.
__device__ __forceinline__ u32 limited(u32 word, u32 limits) { return __vminu2(word & 0x7fff7fffu, limits) | (word & 0x80008000u); }
