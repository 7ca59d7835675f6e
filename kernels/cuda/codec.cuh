// encode: y = x rounded to a format; decode: y = the exact values of codes. Two elements of e2m1 are taken together, for
// they share a byte. Launch: elementwise.cuh.
//
// Params: CodeType.
#include "elementwise.cuh"
#include "formats.cuh"

using Code = Params::CodeType;
constexpr int kTogether = code_bits<Code>() == 4 ? 2 : 1;

// CodesOf is how N codes lie in memory.
template <class T, int N> struct CodesOf { using Type = Codes<T, N>; };
template <int N> struct CodesOf<bf16, N> { using Type = Pack<bf16, N>; };
template <int N> struct CodesOf<f16, N> { using Type = Pack<f16, N>; };

// exactly is the value of code i; what a NaN holds beside is kept.
template <class P> __device__ __forceinline__ float exactly(const P& p, int i) { return p.get(i); }
template <int N> __device__ __forceinline__ float exactly(const Pack<f16, N>& p, int i) {
    const u32 h = N == 1 ? p.half[0] : p.word[i / 2] >> (i % 2 * 16) & 0xffffu, sign = (h & 0x8000u) << 16, mag = (h & 0x7fffu) << 13;
    if (mag >= 31u << 23) return __uint_as_float(sign | kInf | mag);
    return __uint_as_float(sign | __float_as_uint(__fmul_rn(__uint_as_float(mag), 0x1p112f)));
}

struct Encode {
    void* y;
    const void* x;
    template <int W> using State = Pack<float, W * kTogether>;
    template <int W> __device__ __forceinline__ void load(State<W>& s, i64 at) const { s.load(x, at * kTogether); }
    template <int W> __device__ __forceinline__ void finish(const State<W>& s, i64 at) const {
        float v[W * kTogether];
#pragma unroll
        for (int i = 0; i < W * kTogether; i++) v[i] = s.get(i);
        typename CodesOf<Code, W * kTogether>::Type c;
        c.put(v);
        c.store(y, at * kTogether);
    }
};

struct Decode {
    void* y;
    const void* x;
    template <int W> using State = typename CodesOf<Code, W * kTogether>::Type;
    template <int W> __device__ __forceinline__ void load(State<W>& s, i64 at) const { s.load(x, at * kTogether); }
    template <int W> __device__ __forceinline__ void finish(const State<W>& s, i64 at) const {
        float v[W * kTogether];
#pragma unroll
        for (int i = 0; i < W * kTogether; i++) v[i] = exactly(s, i);
        Pack<float, W * kTogether> p;
        p.put(v);
        p.store(y, at * kTogether);
    }
};

extern "C" __global__ void __launch_bounds__(256, 4) encode(void* y, const void* x, const int* count, i64 capacity, i64 width) {
    each<8 / kTogether, 2>(rows_in_use(count, capacity) * width / kTogether, Encode{y, x});
}

extern "C" __global__ void __launch_bounds__(256, 4) decode(void* y, const void* x, const int* count, i64 capacity, i64 width) {
    each<8 / kTogether, 2>(rows_in_use(count, capacity) * width / kTogether, Decode{y, x});
}
