// Holds encode_short of kernels/cuda/formats.cuh to encode_narrow for every number of 16 bits that a block may hold, with
// every factor that a largest number of 16 bits can give.
#include "emulate.h"
//
#include "types.cuh"
//
#include "block_scale.cuh"

static long compared = 0;

template <class X, class Value>
bool check(const char* name) {
    float scale[256];
    u32 tops[256] = {};  // the largest magnitude with that factor
    for (u32 bits = 0; bits < 0x8000; bits++) {
        const float top = to_float(X{static_cast<unsigned short>(bits)});
        if (!(top < HUGE_VALF)) continue;
        const BlockScale b = block_scale<Value, e8m0>(__float_as_uint(top), 1.f);
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
            const float s = scale[code], mag = __fmul_rn(fabsf(x), s);
            const float four[4] = {0, mag, 0, 0};
            const u32 got = encode_short<Value>(four, __float_as_uint(x) >> 31 << 15), want = encode_narrow<Value>(__fmul_rn(x, s)) << 8;
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
    const bool ok = check<bf16, e4m3>("bf16, e4m3") && check<bf16, e5m2>("bf16, e5m2") && check<f16, e4m3>("f16, e4m3") && check<f16, e5m2>("f16, e5m2");
    printf("%ld codes\n", compared);
    return ok ? 0 : 1;
}
