// Element formats of kernels: bf16, f16 and float as types, their conversion from and to float, and loads and stores
// of rows of eight. Rounding is to nearest even; a NaN is stored as 0x7fff in 16 bits.
#pragma once
#include "ptx.cuh"

using i64 = long long;
using u32 = unsigned int;
using u64 = unsigned long long;

// A number that is part of a type.
template <int kValue>
struct Int {
    static constexpr int value = kValue;
};

// Calls f(Int<kFirst>{}), ..., f(Int<kLast-1>{}): a loop whose number is a constant in its body.
template <int kFirst, int kLast, class F>
__device__ __forceinline__ void repeat(F f) {
    if constexpr (kFirst < kLast) {
        f(Int<kFirst>{});
        repeat<kFirst + 1, kLast>(f);
    }
}

// Only the bits; arithmetic is in float.
struct __align__(2) bf16 {
    unsigned short bits;
};
struct __align__(2) f16 {
    unsigned short bits;
};

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(bf16 x) { return __uint_as_float(static_cast<u32>(x.bits) << 16); }
__device__ __forceinline__ float to_float(f16 x) { return ptx::from_f16(x.bits); }

template <class T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x) {
    return x;
}
template <>
__device__ __forceinline__ bf16 from_float<bf16>(float x) {
    return bf16{ptx::to_bf16(x)};
}
template <>
__device__ __forceinline__ f16 from_float<f16>(float x) {
    return f16{ptx::to_f16(x)};
}

// Sixteen bytes as one access.
struct __align__(16) Vec16 {
    u32 word[4];
};

// The two elements of a word, the one of the lower address first.
template <class T>
struct Pair;
template <>
struct Pair<bf16> {
    static __device__ __forceinline__ float low(u32 w) { return __uint_as_float(w << 16); }
    static __device__ __forceinline__ float high(u32 w) { return __uint_as_float(w & 0xffff0000u); }
    static __device__ __forceinline__ u32 pack(float low, float high) { return ptx::pack_bf16(low, high); }
};
template <>
struct Pair<f16> {
    static __device__ __forceinline__ float low(u32 w) { return ptx::from_f16(static_cast<unsigned short>(w)); }
    static __device__ __forceinline__ float high(u32 w) { return ptx::from_f16(static_cast<unsigned short>(w >> 16)); }
    static __device__ __forceinline__ u32 pack(float low, float high) { return ptx::pack_f16(low, high); }
};

// Eight consecutive elements as they lie in memory: loaded early, decoded late. Addresses are 16-byte aligned.
template <class T>
struct Eight {
    Vec16 bits;

    __device__ __forceinline__ void load(const T* p) { bits = *reinterpret_cast<const Vec16*>(p); }
    // Four and four.
    __device__ __forceinline__ void load(const T* p, const T* q) {
        const uint2 x = *reinterpret_cast<const uint2*>(p), y = *reinterpret_cast<const uint2*>(q);
        bits = {{x.x, x.y, y.x, y.y}};
    }
    __device__ __forceinline__ void decode(float (&v)[8]) const {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[2 * i] = Pair<T>::low(bits.word[i]);
            v[2 * i + 1] = Pair<T>::high(bits.word[i]);
        }
    }
};
template <>
struct Eight<float> {
    float4 x, y;

    __device__ __forceinline__ void load(const float* p) { load(p, p + 4); }
    __device__ __forceinline__ void load(const float* p, const float* q) {
        x = *reinterpret_cast<const float4*>(p);
        y = *reinterpret_cast<const float4*>(q);
    }
    __device__ __forceinline__ void decode(float (&v)[8]) const {
        v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w;
        v[4] = y.x, v[5] = y.y, v[6] = y.z, v[7] = y.w;
    }
};

template <class T>
__device__ __forceinline__ void load8(float (&v)[8], const T* p) {
    Eight<T> x;
    x.load(p);
    x.decode(v);
}

template <class T>
__device__ __forceinline__ void store8(T* p, const float (&v)[8]) {
    Vec16 x;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x.word[i] = Pair<T>::pack(v[2 * i], v[2 * i + 1]);
    }
    *reinterpret_cast<Vec16*>(p) = x;
}
template <>
__device__ __forceinline__ void store8<float>(float* p, const float (&v)[8]) {
    reinterpret_cast<float4*>(p)[0] = make_float4(v[0], v[1], v[2], v[3]);
    reinterpret_cast<float4*>(p)[1] = make_float4(v[4], v[5], v[6], v[7]);
}

// Elements [kFirst, kFirst+4) of eight.
template <int kFirst, class T>
__device__ __forceinline__ void store4(T* p, const float (&v)[8]) {
    *reinterpret_cast<uint2*>(p) = make_uint2(Pair<T>::pack(v[kFirst], v[kFirst + 1]), Pair<T>::pack(v[kFirst + 2], v[kFirst + 3]));
}
template <int kFirst>
__device__ __forceinline__ void store4(float* p, const float (&v)[8]) {
    *reinterpret_cast<float4*>(p) = make_float4(v[kFirst], v[kFirst + 1], v[kFirst + 2], v[kFirst + 3]);
}

// The first n (at most 8) of eight elements; with kVector every n is 0 or 8 and p is 16-byte aligned where n is 8. What is
// not loaded is zero.
template <bool kVector, class T>
__device__ __forceinline__ void load8(float (&v)[8], const T* p, int n) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        v[i] = 0;
    }
    if constexpr (kVector) {
        if (n > 0) {
            load8(v, p);
        }
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (i < n) {
                v[i] = to_float(p[i]);
            }
        }
    }
}

template <bool kVector, class T>
__device__ __forceinline__ void store8(T* p, const float (&v)[8], int n) {
    if constexpr (kVector) {
        if (n > 0) {
            store8(p, v);
        }
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (i < n) {
                p[i] = from_float<T>(v[i]);
            }
        }
    }
}

// x * factor added to v, each product rounded on its own.
__device__ __forceinline__ void add_scaled(float (&v)[8], const float (&x)[8], float factor) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        v[i] = __fadd_rn(v[i], __fmul_rn(x[i], factor));
    }
}

__host__ __device__ constexpr int min_of(int a, int b) { return a < b ? a : b; }
__host__ __device__ constexpr int max_of(int a, int b) { return a > b ? a : b; }
__device__ __forceinline__ int clamp_of(int x, int low, int high) { return min_of(max_of(x, low), high); }
__host__ __device__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
