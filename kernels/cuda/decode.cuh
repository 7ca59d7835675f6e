// Codes of block-scaled operands to numbers (contracts, sections 2 and 3): one by one to float, and many at once to pairs of
// bf16. Both are exact, subnormals included.
//
// A code's bits, moved to where bf16 has exponent and mantissa, are its value times a power of two, subnormal codes too,
// because both formats count exponents from a bias; a product with the inverse power puts that right. Two products, since
// that power times the block's factor can be too large for bf16. What this does not give are NaN and Inf codes; they are
// looked for, and decoded one by one.
#pragma once
#include "numeric.cuh"
#include "types.cuh"

template <CodeKind kCodes>
struct CodeFormat {
    static constexpr int kBits = kCodes == kE2M1 ? 4 : 8;
    static constexpr int kChunk = 128 / kBits;  // codes of 16 bytes
    static constexpr int kBias = kCodes == kE4M3 ? 7 : kCodes == kE5M2 ? 15 : 1;
    static constexpr int kMantissa = kCodes == kE4M3 ? 3 : kCodes == kE5M2 ? 2 : 1;
    static constexpr u32 kMagnitude = kCodes == kE2M1 ? 7 : 127;
    static constexpr u32 kRestore = (127 + 127 - kBias) << 7;  // bf16 2^(127-bias)
    // The exponents of the least code that is not zero, and of the largest.
    static constexpr int kLow = 1 - kBias - kMantissa, kHigh = kCodes == kE4M3 ? 8 : kCodes == kE5M2 ? 15 : 2;
    // The least e8m0 factor with which bf16, whose numbers are multiples of 2^-133, holds every value.
    static constexpr u32 kLeastFactor = max_of(0, -6 - kLow);
};

// The value of one code, in the low bits.
template <CodeKind kCodes>
__device__ __forceinline__ float code_value(u32 code) {
    using F = CodeFormat<kCodes>;
    const u32 magnitude = code & F::kMagnitude, sign = (code >> (F::kBits - 1) & 1) << 31;
    u32 v = __float_as_uint(__fmul_rn(__uint_as_float(magnitude << (23 - F::kMantissa)), __uint_as_float(F::kRestore << 16)));
    if (kCodes == kE4M3 && magnitude == 0x7f) {
        v = 0x7fffffff;
    }
    if (kCodes == kE5M2 && magnitude >= 0x7c) {
        v = 0x7f800000 | (magnitude & 3) << 21;
    }
    return __uint_as_float(v | sign);
}

// Code i of those in memory.
template <CodeKind kCodes>
__device__ __forceinline__ u32 code_at(const unsigned char* codes, int i) {
    constexpr int kBits = CodeFormat<kCodes>::kBits;
    return codes[i * kBits / 8] >> i * kBits % 8 & ((1 << kBits) - 1);
}

template <FactorKind kFactors>
__device__ __forceinline__ float factor_value(u32 code) {
    if constexpr (kFactors == kE4M3Factors) {
        return code_value<kE4M3>(code);
    }
    // 0 is 2^-127, which is subnormal; 255 is NaN: the same bit makes both.
    return __uint_as_float(code << 23 | (((code + 1) & 0xfe) == 0 ? 1 << 22 : 0));
}

// The factor of code in both halves, as bf16.
template <FactorKind kFactors>
__device__ __forceinline__ u32 factor_pair(u32 code) {
    return (__float_as_uint(factor_value<kFactors>(code)) >> 16) * 0x00010001u;
}

// Bits 7 of the bytes are set where a word holds NaN or Inf; others are not to be looked at.
template <CodeKind kCodes>
__device__ __forceinline__ u32 specials(u32 word) {
    if constexpr (kCodes == kE4M3) {
        return (word & 0x7f7f7f7fu) + 0x01010101u;
    }
    return kCodes == kE5M2 ? (word & 0x7c7c7c7cu) + 0x04040404u : 0;
}

// The values of codes whose bits are moved, times kRestore.
template <CodeKind kCodes>
__device__ __forceinline__ u32 restored(u32 pair) {
    return ptx::mul_bf16x2(pair, CodeFormat<kCodes>::kRestore * 0x00010001u);
}

// The moved bits of two codes of 8 bits, in the upper bytes of the halves.
template <CodeKind kCodes>
__device__ __forceinline__ u32 byte_bits(u32 codes) {
    constexpr int kDown = 1 + CodeFormat<kCodes>::kMantissa;  // the mantissa's top goes from bit 7+kMantissa to bit 6
    constexpr u32 kField = (0x7f00u >> kDown) * 0x00010001u;
    return (codes & 0x80008000u) | ((codes >> kDown) & kField);
}

// The values of two codes of 8 bits, in the upper bytes of the halves: specials aside.
template <CodeKind kCodes>
__device__ __forceinline__ u32 byte_pair(u32 codes) {
    return restored<kCodes>(byte_bits<kCodes>(codes));
}

// Four codes of 8 bits, in order.
template <CodeKind kCodes>
__device__ __forceinline__ void decode_bytes(u32& first, u32& second, u32 word) {
    first = byte_pair<kCodes>(ptx::pick_bytes(word, 0, 0x1404));
    second = byte_pair<kCodes>(ptx::pick_bytes(word, 0, 0x3424));
}

// The moved bits of codes i and i+4 of eight codes of 4 bits.
template <int i>
__device__ __forceinline__ u32 nibble_bits(u32 word) {
    constexpr u32 kSign = 0x80008000u, kField = 0x01c001c0u;
    if constexpr (i == 3) {
        return (word & kSign) | (word >> 6 & kField);
    }
    // A code times two powers of two is two copies of it, apart and inside its half: multiplications have a pipe of their own.
    constexpr int kAt = i == 2 ? 2 : 4 * i;
    return ((i == 2 ? word >> 6 : word) & 0x000f000fu << kAt) * ((1 << 12 | 1 << 6) >> kAt) & (kSign | kField);
}

// Eight codes of 4 bits, in order.
__device__ __forceinline__ void decode_nibbles(u32 (&out)[4], u32 word) {
    u32 pair[4];
    repeat<0, 4>([&](auto i) { pair[decltype(i)::value] = restored<kE2M1>(nibble_bits<decltype(i)::value>(word)); });
#pragma unroll
    for (int i = 0; i < 4; i++) {
        out[i] = ptx::pick_bytes(pair[i % 2 * 2], pair[i % 2 * 2 + 1], i < 2 ? 0x5410 : 0x7632);
    }
}

// Group g's piece of bytes bytes, or with kPtrs what its address points at.
template <bool kPtrs>
__device__ __forceinline__ const unsigned char* group_piece(const void* all, int g, i64 bytes) {
    return kPtrs ? reinterpret_cast<const unsigned char*>(static_cast<const u64*>(all)[g]) : static_cast<const unsigned char*>(all) + g * bytes;
}

// Bits 7 of the bytes are set where one of four factors is below least, which is less than 128.
__device__ __forceinline__ u32 factors_below(u32 four, u32 least) {
    return ~(((four | 0x80808080u) - least * 0x01010101u) | four) & 0x80808080u;
}

// The place of the factors of row r in a matrix whose rows have blocks words: bytes from its first factor on to the word of
// columns [0,4); the next word is 512 bytes on.
__device__ __forceinline__ i64 factor_row(int r, int blocks) {
    return static_cast<i64>(r >> 7) * blocks * 512 + (r & 31) * 16 + (r >> 5 & 3) * 4;
}
