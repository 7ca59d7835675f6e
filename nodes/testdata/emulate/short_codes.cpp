// Holds the short ways to encode of kernels/cuda/formats.cuh to encode_narrow for every number of 16 bits that a block may
// hold, with every factor that a largest number of 16 bits can give.
#include <type_traits>

#include "emulate.h"
//
#include "types.cuh"
//
#include "block_scale.cuh"

static long compared = 0;

// short_code is the code of x times s the short way.
template <class Value, class Factor>
u32 short_code(float x, float s, u32 factor) {
    if constexpr (code_bits<Value>() == 8) return encode_four<Value, true>(0, __fmul_rn(x, s), 0, 0) >> 8 & 0xff;
    const float mag = fabsf(x), product = std::is_same_v<Factor, e8m0> ? __fmul_rn(mag, s) : Nudge::of(factor).product(mag, s);
    return encode_short_pair(0, product, __float_as_uint(x)) >> 28;
}

template <class X, class Value, class Factor = e8m0>
bool check(const char* name) {
    float scale[256];
    u32 tops[256] = {};  // the largest magnitude with that factor
    for (u32 bits = 0; bits < 0x8000; bits++) {
        const float top = to_float(X{static_cast<unsigned short>(bits)});
        if (!(top < HUGE_VALF)) continue;
        const BlockScale b = block_scale<Value, Factor>(__float_as_uint(top), 1.f);
        if (top == 0 || (std::is_same_v<Factor, e4m3> && Nudge::is_extreme(b.code))) continue;
        if (b.odd) {
            printf("%s: the block of largest number %g is odd\n", name, top);
            return false;
        }
        scale[b.code] = b.s;
        tops[b.code] = larger(tops[b.code], __float_as_uint(top));
    }
    for (int code = 0; code < 256; code++) {
        for (u32 bits = 0; tops[code] > 0 && bits < 0x10000; bits++) {
            const float x = to_float(X{static_cast<unsigned short>(bits)});
            if (magnitude(x) > tops[code]) continue;
            const float s = scale[code];
            const u32 got = short_code<Value, Factor>(x, s, code), want = encode_narrow<Value>(__fmul_rn(x, s));
            compared++;
            if (got != want) {
                printf("%s: %a times %a: got %#x, want %#x\n", name, x, s, got, want);
                return false;
            }
        }
    }
    return true;
}

int main() {
    const bool ok = check<bf16, e4m3>("bf16, e4m3") && check<bf16, e5m2>("bf16, e5m2") && check<f16, e4m3>("f16, e4m3") && check<f16, e5m2>("f16, e5m2") &&
                    check<bf16, e2m1>("bf16, e2m1") && check<f16, e2m1>("f16, e2m1") && check<bf16, e2m1, e4m3>("bf16, e2m1, e4m3 factors");
    printf("%ld codes\n", compared);
    return ok ? 0 : 1;
}
