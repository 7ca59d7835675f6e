// What the kernels of memory-bound operators share: vector loads and stores, counted rows and reductions in fixed
// order. Formats are the types of numeric.cuh.
//
// Rows of counted tensors come with the address of the int32 that counts the rows in use (null: all). Indices
// of elements are int64. Base addresses are multiples of 16 bytes.
#pragma once

#include "numeric.cuh"

using u8 = unsigned char;
using u16 = unsigned short;

constexpr u32 kFullWarp = 0xffffffffu;

// narrow_vector returns the number of elements in 16 bytes of the narrowest of the formats.
template <class... T> __host__ __device__ constexpr int narrow_vector() { return ((sizeof(T) == 2) || ...) ? 8 : 4; }

template <int Bytes> struct UnitOf;
template <> struct UnitOf<16> { using Type = uint4; };
template <> struct UnitOf<8> { using Type = uint2; };
template <> struct UnitOf<4> { using Type = u32; };
template <> struct UnitOf<2> { using Type = u16; };
template <> struct UnitOf<1> { using Type = u8; };

// Unit is what one load or store moves.
template <int Bytes> using Unit = typename UnitOf<Bytes>::Type;

// Pack is N consecutive elements of T as they lie in memory: loaded early, decoded late. An address is a
// multiple of min(16, N * size) bytes.
template <class T, int N> struct Pack {
    static constexpr int kBytes = N * sizeof(T), kUnit = kBytes < 16 ? kBytes : 16, kUnits = kBytes / kUnit;
    union {
        Unit<kUnit> unit[kUnits];
        u32 word[kBytes < 4 ? 1 : kBytes / 4];
        u16 half[kBytes / 2];
    };

    __device__ __forceinline__ void load(const void* base, i64 at) {
        const Unit<kUnit>* p = (const Unit<kUnit>*)((const char*)base + at * sizeof(T));
#pragma unroll
        for (int i = 0; i < kUnits; i++) unit[i] = p[i];
    }
    __device__ __forceinline__ void store(void* base, i64 at) const {
        Unit<kUnit>* p = (Unit<kUnit>*)((char*)base + at * sizeof(T));
#pragma unroll
        for (int i = 0; i < kUnits; i++) p[i] = unit[i];
    }
    __device__ __forceinline__ float get(int i) const {
        if constexpr (sizeof(T) == 4) return __uint_as_float(word[i]);
        else if constexpr (N == 1) return to_float(T{half[0]});
        else return i % 2 ? Pair<T>::high(word[i / 2]) : Pair<T>::low(word[i / 2]);
    }
    __device__ __forceinline__ void put(const float (&x)[N]) {
        if constexpr (sizeof(T) == 4) {
#pragma unroll
            for (int i = 0; i < N; i++) word[i] = __float_as_uint(x[i]);
        } else if constexpr (N == 1) {
            half[0] = from_float<T>(x[0]).bits;
        } else {
#pragma unroll
            for (int i = 0; i < N / 2; i++) word[i] = Pair<T>::pack(x[2 * i], x[2 * i + 1]);
        }
    }
};

// load_float and store_float are for one element where speed does not matter.
template <class T> __device__ __forceinline__ float load_float(const void* base, i64 at) { return to_float(((const T*)base)[at]); }
template <class T> __device__ __forceinline__ void store_float(void* base, i64 at, float x) { ((T*)base)[at] = from_float<T>(x); }

// rows_in_use reads a device-side count, kept within [0, capacity].
__device__ __forceinline__ i64 rows_in_use(const int* count, i64 capacity) {
    if (!count) return capacity;
    const i64 n = *count;
    return n < 0 ? 0 : n < capacity ? n : capacity;
}

__device__ __forceinline__ i64 div_up(i64 a, i64 b) { return (a + b - 1) / b; }

// Reductions by butterflies of fixed shape: every lane gets the result, the same in every run.
template <class T> __device__ __forceinline__ T warp_sum(T x) {
#pragma unroll
    for (int d = 16; d > 0; d /= 2) x += __shfl_xor_sync(kFullWarp, x, d);
    return x;
}

// block_sum adds up x over all warps of the block, in the order of warps. spare is shared, one T a warp plus one.
// Every thread gets the result; another call may follow at once.
template <class T> __device__ __forceinline__ T block_sum(T x, T* spare) {
    const int warps = (blockDim.x + 31) / 32;
    x = warp_sum(x);
    if (threadIdx.x % 32 == 0) spare[threadIdx.x / 32] = x;
    __syncthreads();
    T total = spare[0];
    for (int w = 1; w < warps; w++) total += spare[w];
    __syncthreads();
    return total;
}
