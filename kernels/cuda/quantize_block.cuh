// What the rows and the columns of quantize.cuh share: constants, the scale of a block, and the ways to encode its products.
// Params: those of quantize.cuh.
#pragma once
#include "philox.cuh"
#include "quant_tiles.cuh"

using Value = Params::ValueType;
using Factor = Params::FactorType;

constexpr int kSharers = kVec / 8;      // threads that share a row block
constexpr int kRun = 16, kFour = 4;     // rows and columns of a thread that makes column blocks
constexpr int kPerWord = 4 / sizeof(X); // elements of a word
constexpr int kQuad = kFour / kPerWord; // words of four columns
constexpr bool kNarrow = code_bits<Value>() == 4;
constexpr int kTileBytes = kSide * kSide * sizeof(X), kTileFactors = kSub * kFactorBytes;
static_assert(kLines == 16, "rows of two turns are the 32 that a block of factors counts first");
static_assert(kVec == kRun || kVec == 2 * kRun);

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

// Scale is what a block's elements are multiplied by. With kPaired, brief is for PairScale; with kLimited, limit is limit_of.
struct Scale {
    float s;
    u32 code; // the factor
    bool odd; // the long way is needed; with kLimited, settle before the scale is used
    u32 brief, limit;
};

// scale_of makes a block's factor of its largest magnitude.
__device__ __forceinline__ Scale scale_of(u32 top, float norm) {
    if constexpr (kLimited) {
        const u32 code = encode_magnitude(__fmul_rn(__uint_as_float(top), NarrowFormat<Value>::kRcp));
        return Scale{0, code, is_extreme(code), PairScale<Factor>::brief(code), 0x7fff};
    }
    const BlockScale b = block_scale<Value, Factor, Params::Unit>(top, norm);
    return Scale{b.s, b.code, b.odd, kPaired ? PairScale<Factor>::brief(b.code) : 0, 0x7fff};
}

// settle is the rest of it with kLimited, for extreme factors, but for s, which the long way alone wants.
__device__ __forceinline__ void settle(Scale& s, u32 top) {
    s.odd = top >= kInf || (top != 0 && s.code == 0);
    s.brief = PairScale<Factor>::brief(normal_factor(s.code));
    if (top != 0 && !s.odd) s.limit = limit_of(s.code);
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
// short_scale is for the elements of a word.
__device__ __forceinline__ auto short_scale(const Scale& a, const Scale& b) {
    if constexpr (kPaired) return PairScale<Factor>::of(a.brief, b.brief);
    else return ShortPair<X>{a.s, b.s};
}

// unit_at is the place of eight columns of a row of the copy, in bytes; they are of one unit, or of two for float.
__device__ __forceinline__ int unit_at(int r, int unit) { return (r * kSide + ((unit ^ r / kRun) * 8)) * (int)sizeof(X); }
// turned_at is unit_at(first + turn * kLines, line) of at = unit_at(first, line), first below kLines.
__device__ __forceinline__ int turned_at(int at, int turn) { return (at ^ turn * 8 * (int)sizeof(X)) + turn * kLines * kSide * (int)sizeof(X); }
