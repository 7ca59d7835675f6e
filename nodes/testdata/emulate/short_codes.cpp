// Holds the short ways to encode of kernels/cuda/formats.cuh to encode_narrow for every number of 16 bits that a block may
// hold, with every factor that a largest number of 16 bits can give; and the short way to decode four codes of 4 bits of
// decode.cuh to code_value, for all of their patterns.
#include <type_traits>

#include "emulate.h"
//
#include "types.cuh"
//
#include "block_scale.cuh"
#include "decode.cuh"

static long compared = 0;

// short_codes has the codes of two elements times s the short way in the upper bits of its halves.
template <class X, class Value, class Factor>
u32 short_codes(u32 word, float s, u32 factor) {
    const u32 mags = word & 0x7fff7fff;
    if constexpr (code_bits<Value>() == 8) {
        return encode_four<Value, true>(0, __fmul_rn(Pair<X>::low(word), s), 0, __fmul_rn(Pair<X>::high(word), s));
    } else if constexpr (std::is_same_v<X, f16>) {
        return encode_f16_pair(ptx::pack_f16(__fmul_rn(Pair<X>::low(mags), s), __fmul_rn(Pair<X>::high(mags), s)), word);
    } else if constexpr (std::is_same_v<Factor, e8m0>) {
        return QuadScale<e8m0>{{QuadScale<e8m0>::brief_of(factor)}}.at(0, 0).codes(word);
    } else {
        return QuadScale<e4m3>::of(biased_factor(factor) * 0x01010101u).at(0, 3).codes(limited(word, limit_of(factor) * 0x10001));
    }
}

template <class X, class Value, class Factor = e8m0>
bool check(const char* name) {
    constexpr u32 kCodes = ((1u << code_bits<Value>()) - 1) * 0x10001;
    float scale[256];
    u32 tops[256] = {};  // the largest magnitude with that factor
    for (u32 bits = 0; bits < 0x8000; bits++) {
        const float top = to_float(X{static_cast<unsigned short>(bits)});
        if (!(top < HUGE_VALF)) continue;
        const BlockScale b = block_scale<Value, Factor>(__float_as_uint(top), 1.f);
        if (top == 0 || (std::is_same_v<Factor, e4m3> && b.code == 0)) continue;
        if (b.odd) {
            printf("%s: the block of largest number %g is odd\n", name, top);
            return false;
        }
        scale[b.code] = b.s;
        tops[b.code] = larger(tops[b.code], __float_as_uint(top));
    }
    for (int code = 0; code < 256; code++) {
        u32 before = 0, want_before = 0; // the number before, whose code has to come out beside each
        for (u32 bits = 0; tops[code] > 0 && bits < 0x10000; bits++) {
            const float x = to_float(X{static_cast<unsigned short>(bits)}), s = scale[code];
            if (magnitude(x) > tops[code]) continue;
            const u32 got = short_codes<X, Value, Factor>(bits << 16 | before, s, code) >> (16 - code_bits<Value>()) & kCodes;
            const u32 want = encode_narrow<Value>(__fmul_rn(x, s));
            compared++;
            if (got != (want << 16 | want_before)) {
                printf("%s: %a times %a: got %#x, want %#x after %#x\n", name, x, s, got, want, want_before);
                return false;
            }
            before = bits;
            want_before = want;
        }
    }
    return true;
}

// Each pattern in either half of a word, beside its complement.
bool check_nibbles() {
    for (u32 bits = 0; bits < 0x10000; bits++) {
        for (u32 word : {bits << 16 | (bits ^ 0xffff), bits | (bits ^ 0xffff) << 16}) {
            u32 moved[4], pair[4];
            repeat<0, 4>([&](auto i) { moved[decltype(i)::value] = nibble_bits<decltype(i)::value>(word); });
            decode_nibbles(pair, word);
            for (int i = 0; i < 8; i++) {
                const u32 code = word >> 4 * i & 15, want = __float_as_uint(code_value<kE2M1>(code)) >> 16;
                const u32 bits_of = moved[i % 4] >> i / 4 * 16 & 0xffff, got = pair[i / 2] >> i % 2 * 16 & 0xffff;
                if (bits_of != ((code & 8) << 12 | (code & 7) << 6) || got != want) {
                    printf("code %d of %#x: got bits %#x and bf16 %#x, want %#x\n", i, word, bits_of, got, want);
                    return false;
                }
            }
        }
    }
    return true;
}

int main() {
    const bool ok = check<bf16, e4m3>("bf16, e4m3") && check<bf16, e5m2>("bf16, e5m2") && check<f16, e4m3>("f16, e4m3") &&
                    check<f16, e5m2>("f16, e5m2") && check<bf16, e2m1>("bf16, e2m1") && check<f16, e2m1>("f16, e2m1") && check<bf16, e2m1, e4m3>("bf16, e2m1, e4m3 factors") &&
                    check_nibbles();
    printf("%ld codes\n", compared);
    return ok ? 0 : 1;
}
