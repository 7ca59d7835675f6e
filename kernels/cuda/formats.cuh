// Formats of 8 and 4 bits: conversion from and to float, exact, subnormals included, by integers and one addition, so
// that every architecture gives the same bits (contracts, section 2). A NaN becomes the canonical code; what is too
// large, Inf too, becomes the largest value. e2m1 codes are the low nibble of a byte, or lie two a byte.
#pragma once
#include "common.cuh"

struct e4m3 { u8 bits; };
struct e5m2 { u8 bits; };
struct e2m1 { u8 bits; };
struct e8m0 { u8 bits; };

constexpr u32 kSign = 0x80000000u, kInf = 0x7f800000u, kQuietNaN = 0x7fc00000u; // of a float

// NarrowFormat are the constants of a signed format; bits are those of floats.
template <class T> struct NarrowFormat;
template <> struct NarrowFormat<e4m3> {
    static constexpr int kBits = 8, kMantissa = 3, kMinExp = -6, kBias = 7;
    static constexpr u32 kTop = 0x43e00000u, kNaN = 0x7f; // 448
    static constexpr float kRcp = (float)(1.0 / 448);     // of the largest value, as float
};
template <> struct NarrowFormat<e5m2> {
    static constexpr int kBits = 8, kMantissa = 2, kMinExp = -14, kBias = 15;
    static constexpr u32 kTop = 0x47600000u, kNaN = 0x7f; // 57344
    static constexpr float kRcp = (float)(1.0 / 57344);
};
template <> struct NarrowFormat<e2m1> {
    static constexpr int kBits = 4, kMantissa = 1, kMinExp = 0, kBias = 1;
    static constexpr u32 kTop = 0x40c00000u, kNaN = 7; // 6; there is no NaN
    static constexpr float kRcp = (float)(1.0 / 6);
};

__device__ __forceinline__ u32 magnitude(float x) { return __float_as_uint(x) & ~kSign; }
__device__ __forceinline__ u32 larger(u32 a, u32 b) { return a > b ? a : b; }
__device__ __forceinline__ u32 smaller(u32 a, u32 b) { return a < b ? a : b; }

// power_of_two is 2^n, n from -126 to 127, and kMinNormal the smallest normal number of a format.
__host__ __device__ constexpr float power_of_two(int n) {
    float x = 1;
    for (int i = 0; i < n; i++) x *= 2;
    for (int i = 0; i > n; i--) x /= 2;
    return x;
}
template <class T> constexpr float kMinNormal = power_of_two(NarrowFormat<T>::kMinExp);

// narrow_top returns the code without sign of a magnitude up to kTop, in the upper bits of a word, below room for the sign.
//
// The magnitude is added to 2^23 units, a unit being the last place of the format at the magnitude's exponent (of the
// smallest normal below that), so that the addition's own rounding takes what the format cannot hold. Taken off again, they
// leave a number of the format, whose bits are the code once exponents begin where the format's do. kShort: the magnitude
// has at most 12 significant bits where it is not below every code; then as many units times the magnitude itself are as
// good, being an even number of units too. All operations are exact but the one addition.
template <class T, bool kShort = false> __device__ __forceinline__ u32 narrow_top(float mag) {
    using N = NarrowFormat<T>;
    constexpr float kUnits = power_of_two(23 - N::kMantissa), kScale = power_of_two(N::kBias - 127);
    float a = fmaxf(mag, kMinNormal<T>);
    if constexpr (!kShort) a = __uint_as_float(__float_as_uint(a) & kInf);
    const float rounded = __fmaf_rn(a, -kUnits, __fmaf_rn(a, kUnits, mag));
    return __float_as_uint(__fmul_rn(rounded, kScale)) << (9 - N::kBits + N::kMantissa);
}

// saturated is the magnitude, at most kTop. A NaN is kTop.
template <class T> __device__ __forceinline__ float saturated(float x) { return fminf(fabsf(x), __uint_as_float(NarrowFormat<T>::kTop)); }

// encode_finite is the code of x that is no NaN.
template <class T> __device__ __forceinline__ u32 encode_finite(float x) {
    return (narrow_top<T>(saturated<T>(x)) | (__float_as_uint(x) & kSign)) >> (32 - NarrowFormat<T>::kBits);
}

// bytes_of joins byte number at of four words.
__device__ __forceinline__ u32 bytes_of(u32 a, u32 b, u32 c, u32 d, u32 at) {
    const u32 pick = at | (4 + at) << 4;
    return __byte_perm(__byte_perm(a, b, pick), __byte_perm(c, d, pick), 0x5410);
}

// encode_four makes four codes of 8 bits of numbers that are no NaN. kShort: their magnitudes are short (narrow_top), and
// kTop at most.
template <class T, bool kShort = false> __device__ __forceinline__ u32 encode_four(float a, float b, float c, float d) {
    if constexpr (ptx::kArch >= 890) {
        if constexpr (NarrowFormat<T>::kMantissa == 3) return ptx::to_e4m3x2(a, b) | (u32)ptx::to_e4m3x2(c, d) << 16;
        return ptx::to_e5m2x2(a, b) | (u32)ptx::to_e5m2x2(c, d) << 16;
    }
    const float x[4] = {a, b, c, d};
    u32 top[4];
#pragma unroll
    for (int i = 0; i < 4; i++) top[i] = narrow_top<T, kShort>(kShort ? fabsf(x[i]) : saturated<T>(x[i]));
    const u32 signs = bytes_of(__float_as_uint(a), __float_as_uint(b), __float_as_uint(c), __float_as_uint(d), 3);
    return bytes_of(top[0], top[1], top[2], top[3], 3) | (signs & 0x80808080u);
}

// Codes of 4 bits are made in pairs, which stand in the upper nibbles of the halves of a word.

// pair_signs are the signs of two floats where a pair has them; other bits are not to be looked at.
__device__ __forceinline__ u32 pair_signs(float a, float b) { return __byte_perm(__float_as_uint(a), __float_as_uint(b), 0x7632); }
__device__ __forceinline__ u32 signed_pair(u32 pair, u32 signs) { return ptx::select_bits(0x80008000u, pair, signs); }

// encode_pair takes two numbers that are no NaN: what narrow_top does, with a multiplication by 2^-14 by which f16 has the
// codes in its bits 9 to 11.
__device__ __forceinline__ u32 encode_pair(float a, float b) {
    const float x[2] = {a, b};
    float rounded[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float mag = saturated<e2m1>(x[i]), unit = fmaxf(__uint_as_float(__float_as_uint(mag) & kInf), 1.f);
        rounded[i] = __fmaf_rn(unit, -0x1p22f, __fmaf_rn(unit, 0x1p22f, mag));
    }
    return signed_pair(ptx::fma_f16x2(ptx::pack_f16(rounded[0], rounded[1]), 0x04000400u, 0) * 8, pair_signs(a, b));
}

// encode_f16_pair takes two magnitudes below 7 in f16; signs as pair_signs. A magnitude less than 1/8 may be negative. The sum
// rounds to the multiple of half its unit: its lowest bits count such multiples, its exponent begins at 24. The product adds
// both up where a pair has its code; what it leaves below is no code's.
__device__ __forceinline__ u32 encode_f16_pair(u32 mags, u32 signs) {
    const u32 units = __vmaxu2(mags & 0x7c007c00u, 0x3c003c00u);
    return signed_pair(ptx::fma_f16x2(units, 0x60006000u, mags) * 0x1008u, signs); // 512
}

// encode_bf16_pair takes the halves of two numbers below 7 in bf16, and does the same with their signs: exponents of sums
// begin at 132, which is taken off. The product has the sums themselves too, whose signs stand above the codes; what else it
// leaves, the lower sum's sign 2^27 times, adds up to less than a code's lowest bit.
__device__ __forceinline__ u32 encode_bf16_pair(u32 halves) {
    constexpr u32 kFactor = 0x1041u, kLeast = 0x42004200u;
    u32 units;
    if constexpr (ptx::kArch >= 860) units = ptx::max_abs_bf16x2(halves, 0x3f003f00u) & 0xff80ff80u;
    else units = __vmaxu2(halves & 0x7f807f80u, 0x3f003f00u) | (halves & 0x80008000u);
    return ptx::fma_bf16x2(units, 0x42804280u, halves) * kFactor - kLeast * kFactor; // 64
}

// two_pairs moves the upper nibbles of one word below those of another.
__device__ __forceinline__ u32 two_pairs(u32 low, u32 high) { return ptx::select_bits(0x0f0f0f0fu, high, low >> 4); }

// four_pairs are the codes of four pairs, in order.
__device__ __forceinline__ u32 four_pairs(const u32 (&pair)[4]) {
    const u32 a = __byte_perm(pair[0], pair[1], 0x7351), b = __byte_perm(pair[2], pair[3], 0x7351);
    return two_pairs(__byte_perm(a, b, 0x5410), __byte_perm(a, b, 0x7632));
}

template <class T> __device__ __forceinline__ u32 encode_narrow(float x) {
    return magnitude(x) > kInf ? NarrowFormat<T>::kNaN : encode_finite<T>(x);
}

template <> __device__ __forceinline__ e4m3 from_float<e4m3>(float x) {
    if constexpr (ptx::kArch >= 890) return e4m3{(u8)(magnitude(x) > kInf ? NarrowFormat<e4m3>::kNaN : ptx::to_e4m3x2(x, 0) & 0xff)};
    return e4m3{(u8)encode_narrow<e4m3>(x)};
}
// encode_magnitudes makes four codes of e4m3, in bytes, of numbers that are not negative, or NaNs.
__device__ __forceinline__ u32 encode_magnitudes(float a, float b, float c, float d) {
    if constexpr (ptx::kArch >= 890) return encode_four<e4m3>(a, b, c, d) & 0x7f7f7f7fu; // a NaN has all seven bits
    return encode_narrow<e4m3>(a) | encode_narrow<e4m3>(b) << 8 | encode_narrow<e4m3>(c) << 16 | encode_narrow<e4m3>(d) << 24;
}
template <> __device__ __forceinline__ e5m2 from_float<e5m2>(float x) { return e5m2{(u8)encode_narrow<e5m2>(x)}; }
template <> __device__ __forceinline__ e2m1 from_float<e2m1>(float x) { return e2m1{(u8)encode_narrow<e2m1>(x)}; }

// e8m0 holds a power of two: the magnitude rounded up, within codes 0 (2^-127, zero too) and 254.
template <> __device__ __forceinline__ e8m0 from_float<e8m0>(float x) {
    const u32 mag = magnitude(x), up = (mag + 0x7fffffu) >> 23;
    const u32 code = mag <= 0x00400000u ? 0 : smaller(up, 254);
    return e8m0{(u8)(mag > kInf ? 0xffu : code)};
}

// decode_narrow puts exponent and mantissa where a float has them, which is the value times a power of two in subnormals
// too, and multiplies by its inverse; the product is exact and no subnormal.
template <class T> __device__ __forceinline__ float decode_narrow(u32 code) {
    using N = NarrowFormat<T>;
    constexpr u32 kHalf = 1u << (N::kBits - 1);
    constexpr float kScale = N::kBias == 1 ? 0x1p126f : N::kBias == 7 ? 0x1p120f : 0x1p112f; // 2^(127-bias)
    const u32 sign = (code & kHalf) << (32 - N::kBits), mag = code & (kHalf - 1);
    const float value = __fmul_rn(__uint_as_float(mag << (23 - N::kMantissa)), kScale);
    return __uint_as_float(sign | __float_as_uint(value));
}

__device__ __forceinline__ float to_float(e2m1 x) { return decode_narrow<e2m1>(x.bits & 15u); }
__device__ __forceinline__ float to_float(e4m3 x) {
    if ((x.bits & 0x7fu) == 0x7f) return __uint_as_float(kQuietNaN | (u32)(x.bits & 0x80u) << 24);
    return decode_narrow<e4m3>(x.bits);
}
__device__ __forceinline__ float to_float(e5m2 x) {
    const u32 mag = x.bits & 0x7fu;
    if (mag >= 0x7c) return __uint_as_float((mag == 0x7c ? kInf : kQuietNaN) | (u32)(x.bits & 0x80u) << 24);
    return decode_narrow<e5m2>(x.bits);
}
__device__ __forceinline__ float to_float(e8m0 x) {
    const u32 code = x.bits;
    return __uint_as_float(code == 0xff ? kQuietNaN : code == 0 ? 0x00400000u : code << 23);
}

// code_bits is the size of a code, in bits.
template <class T> __host__ __device__ constexpr int code_bits() { return 8 * sizeof(T); }
template <> __host__ __device__ constexpr int code_bits<e2m1>() { return 4; }

// Codes is N consecutive codes of T as they lie in memory, a whole number of bytes; an address is a multiple of min(16,
// their size).
template <class T, int N> struct Codes {
    static constexpr int kBits = code_bits<T>(), kBytes = N * kBits / 8, kUnit = kBytes < 16 ? kBytes : 16, kUnits = kBytes / kUnit;
    static constexpr int kPerWord = 32 / kBits, kWords = (kBytes + 3) / 4;
    union {
        Unit<kUnit> unit[kUnits];
        u32 word[kWords];
    };

    // Element at of base, the first of a byte; at is not negative.
    static __device__ __forceinline__ i64 byte(i64 at) { return kBits == 4 ? (i64)((u64)at / 2) : at * (kBits / 8); }
    __device__ __forceinline__ void load(const void* base, i64 at) {
        const Unit<kUnit>* p = (const Unit<kUnit>*)((const char*)base + byte(at));
#pragma unroll
        for (int i = 0; i < kUnits; i++) unit[i] = p[i];
    }
    __device__ __forceinline__ void store(void* base, i64 at) const {
        Unit<kUnit>* p = (Unit<kUnit>*)((char*)base + byte(at));
#pragma unroll
        for (int i = 0; i < kUnits; i++) p[i] = unit[i];
    }
    __device__ __forceinline__ u32 code(int i) const { return word[i / kPerWord] >> (i % kPerWord * kBits) & ((1u << kBits) - 1); }
    __device__ __forceinline__ float get(int i) const { return to_float(T{(u8)code(i)}); }
    // put_finite takes numbers that are no NaN; kShort: as encode_four has it.
    template <bool kShort = false> __device__ __forceinline__ void put_finite(const float (&x)[N]) {
        if constexpr (N % kPerWord == 0) {
#pragma unroll
            for (int w = 0; w < kWords; w++) word[w] = joined<kShort>(x + w * kPerWord);
        } else {
            put_by([&](int i) { return encode_finite<T>(x[i]); });
        }
    }
    // mark_nans makes what put_finite took for numbers the canonical code.
    __device__ __forceinline__ void mark_nans(const float (&x)[N]) {
        constexpr u32 kCode = (1u << kBits) - 1;
#pragma unroll
        for (int i = 0; i < N; i++) {
            const int shift = i % kPerWord * kBits;
            if (magnitude(x[i]) > kInf) word[i / kPerWord] = (word[i / kPerWord] & ~(kCode << shift)) | NarrowFormat<T>::kNaN << shift;
        }
    }
    __device__ __forceinline__ void put(const float (&x)[N]) {
        put_by([&](int i) { return (u32)from_float<T>(x[i]).bits; });
    }

private:
    // joined makes a word of codes.
    template <bool kShort> static __device__ __forceinline__ u32 joined(const float* x) {
        if constexpr (kBits == 8) {
            return encode_four<T, kShort>(x[0], x[1], x[2], x[3]);
        } else {
            u32 pair[4];
#pragma unroll
            for (int i = 0; i < 4; i++) pair[i] = encode_pair(x[2 * i], x[2 * i + 1]);
            return four_pairs(pair);
        }
    }
    template <class F> __device__ __forceinline__ void put_by(const F& f) {
#pragma unroll
        for (int w = 0; w < kWords; w++) word[w] = 0;
#pragma unroll
        for (int i = 0; i < N; i++) word[i / kPerWord] |= f(i) << (i % kPerWord * kBits);
    }
};
