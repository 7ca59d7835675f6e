// What the rows and the columns of quantize.cuh share: constants, the scale of a block, and the ways to encode its products.
// Params: those of quantize.cuh.
#pragma once
#include "philox.cuh"
#include "quant_tiles.cuh"

using Value = Params::ValueType;
using Factor = Params::FactorType;

constexpr int kRun = 16, kFour = 4;     // rows and columns of a thread that makes column blocks
constexpr int kSharers = kVec / kRun;   // threads that share a block
constexpr int kPerWord = 4 / sizeof(X); // elements of a word
constexpr int kQuad = kFour / kPerWord; // words of four columns
constexpr bool kNarrow = code_bits<Value>() == 4;
static_assert(kVec == kRun || kVec == 2 * kRun);

// The copy of a tile in shared memory: 16 bytes are left out after every kRun rows, so that threads that read one column of
// different runs, or one row of two, ask different banks.
constexpr int kCopyRow = kSide * sizeof(X), kCopyRun = kRun * kCopyRow + 16;
constexpr int kTileBytes = kSide / kRun * kCopyRun, kTileFactors = kSub * kFactorBytes;

// is_e8m0 and is_bf16 are for formats that only their names tell apart.
template <class T> constexpr bool is_e8m0 = false;
template <> constexpr bool is_e8m0<e8m0> = true;
template <class T> constexpr bool is_bf16 = false;
template <> constexpr bool is_bf16<bf16> = true;

// kShort: products are numbers of 16 bits times powers of two, at most the largest value, so that short ways to encode take
// them. A block's largest cannot exceed it either, for the factor rounds up and the nearest larger number of 16 bits is
// further off than the products round. (What is not finite is not short.)
constexpr bool kPlain = sizeof(X) == 2 && Params::Norm == kNormOne && !Params::Unit && !Params::Random;
constexpr bool kShort = kPlain && is_e8m0<Factor>;
// kPaired: PairScale (block_scale.cuh) makes the codes. kLimited: it has to be kept from products that are too large.
constexpr bool kPaired = kPlain && kNarrow && is_bf16<X>;
constexpr bool kLimited = kPaired && !is_e8m0<Factor>;

struct Outputs {
    void *row, *row_sf, *col, *col_sf; // null: not wanted
};

// Largest is a running maximum of magnitudes: of the two elements of a word, or of one float. NaNs are above all; the signs
// of a maximum mean nothing.
template <class T> __device__ __forceinline__ u32 larger_of(u32 top, u32 word) {
    if constexpr (sizeof(T) == 4) return larger(top & ~kSign, word & ~kSign);
    if constexpr (ptx::kArch >= 860) return is_bf16<T> ? ptx::max_abs_bf16x2(top, word) : ptx::max_abs_f16x2(top, word);
    return __vmaxu2(top & 0x7fff7fffu, word & 0x7fff7fffu);
}
// top_of is element i of such a maximum, as bits of a float.
template <class T> __device__ __forceinline__ u32 top_of(u32 top, int i) {
    if constexpr (sizeof(T) == 4) return top & ~kSign;
    else return magnitude(i == 0 ? Pair<T>::low(top) : Pair<T>::high(top));
}

// Scale is what a block's elements are multiplied by. With kPaired, brief is for QuadScale.
struct Scale {
    float s;
    u32 code; // the factor
    bool odd; // the long way is needed
    u32 brief;
};

// scale_of makes a block's factor of its largest magnitude.
__device__ __forceinline__ Scale scale_of(u32 top, float norm) {
    const BlockScale b = block_scale<Value, Factor, Params::Unit>(top, norm);
    return Scale{b.s, b.code, b.odd, kShort ? QuadScale<e8m0>::brief_of(b.code) : 0};
}

// With kLimited, the factors of four blocks are made at once, and where one is extreme, settle does what is left for each.

// factors_of makes them of two words of maxima.
template <class T> __device__ __forceinline__ u32 factors_of(u32 a, u32 b) {
    const auto scaled = [](float top) { return __fmul_rn(fabsf(top), NarrowFormat<Value>::kRcp); };
    return encode_magnitudes(scaled(Pair<T>::low(a)), scaled(Pair<T>::high(a)), scaled(Pair<T>::low(b)), scaled(Pair<T>::high(b)));
}
struct Settled {
    bool odd;          // the long way is needed
    u32 biased, limit; // for QuadScale; limit_of
};
__device__ __forceinline__ Settled settle(u32 factor, u32 top) {
    const bool odd = top >= kInf || (top != 0 && factor == 0);
    return Settled{odd, biased_factor(factor), top != 0 && !odd ? limit_of(factor) : 0x7fff};
}
__device__ __forceinline__ float long_scale(u32 top) { return block_scale<Value, Factor>(top, 1.f).s; }

// rounded_at_random replaces a number by one of its two neighbours in the format, the nearer the likelier. A NaN stays.
__device__ __forceinline__ float rounded_at_random(float v, u32 word) {
    using N = NarrowFormat<Value>;
    if (magnitude(v) > kInf) return v;
    const u32 mag = smaller(magnitude(v), N::kTop);
    const int top = (int)(mag >> 23) - 127, exp = top > N::kMinExp ? top : N::kMinExp;
    const float unit = __uint_as_float((u32)(exp - N::kMantissa + 127) << 23), units = __uint_as_float((u32)(N::kMantissa - exp + 127) << 23);
    const float steps = __fmul_rn(__uint_as_float(mag), units);
    float whole = (float)(int)steps;
    if (__fmul_rn((float)(word >> 8), 0x1p-24f) < __fsub_rn(steps, whole)) whole += 1.f;
    return __uint_as_float(__float_as_uint(__fmul_rn(whole, unit)) | (__float_as_uint(v) & kSign));
}

// encode_products makes codes of N numbers that are NaN only if odd.
template <int N> __device__ __forceinline__ void encode_products(Codes<Value, N>& c, const float (&v)[N], bool odd) {
    if constexpr (Params::Random) {
        c.put(v);
    } else {
        if constexpr (kShort && !kNarrow) {
            if (!odd) return c.template put_finite<true>(v);
        }
        c.put_finite(v);
        if (odd) c.mark_nans(v);
    }
}

// ShortPair makes the codes of two elements of a word, of blocks that are not odd.
template <class T> struct ShortPair {
    float a, b;
    __device__ __forceinline__ u32 codes(u32 word) const {
        const u32 mags = word & 0x7fff7fffu;
        return encode_f16_pair(ptx::pack_f16(__fmul_rn(Pair<T>::low(mags), a), __fmul_rn(Pair<T>::high(mags), b)), word);
    }
};

// store_codes writes the first n codes, in units of kUnit bytes where all are there. Half a byte is followed by zero.
template <int kUnit, int N> __device__ __forceinline__ void store_codes(const Codes<Value, N>& c, u8* out, int n) {
    constexpr int kBytes = Codes<Value, N>::kBytes, kWords = kUnit < 4 ? 1 : (kUnit < kBytes ? kUnit : kBytes) / 4;
    if (n == N && kUnit >= 4) {
#pragma unroll
        for (int i = 0; i < kBytes / 4; i += kWords) {
            Unit<kWords * 4> u;
            u32* words = (u32*)&u;
#pragma unroll
            for (int j = 0; j < kWords; j++) words[j] = c.word[i + j];
            *(Unit<kWords * 4>*)(out + 4 * i) = u;
        }
        return;
    }
    const int bytes = kNarrow ? (n + 1) / 2 : n;
#pragma unroll
    for (int i = 0; i < kBytes; i++)
        if (i < bytes) out[i] = (u8)(c.word[i / 4] >> (i % 4 * 8) & (kNarrow && 2 * i + 1 == n ? 15 : 255));
}
