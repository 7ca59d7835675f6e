// Philox4x32-10, the same bits as on the host. Source: Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, 2011.
#pragma once
#include "common.cuh"

// philox makes four random words of a key and a counter of 128 bits.
__device__ __forceinline__ uint4 philox(u64 key, u64 c01, u32 c2, u32 c3) {
    u32 k0 = (u32)key, k1 = (u32)(key >> 32), c0 = (u32)c01, c1 = (u32)(c01 >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const u64 a = (u64)0xD2511F53u * c0, b = (u64)0xCD9E8D57u * c2;
        c0 = (u32)(b >> 32) ^ c1 ^ k0;
        c1 = (u32)b;
        c2 = (u32)(a >> 32) ^ c3 ^ k1;
        c3 = (u32)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return make_uint4(c0, c1, c2, c3);
}

// Draw is what a random node of one replay draws from: words of Philox at (element/4, replay, node).
struct Draw {
    u64 key, replay;
    u32 salt;

    // The words of elements 4i to 4i+3.
    __device__ __forceinline__ uint4 four(u64 i) const { return philox(key, i, (u32)replay, salt ^ (u32)(replay >> 32) * 0x9E3779B9u); }
    // The word of one element.
    __device__ __forceinline__ u32 word(u64 element) const {
        const uint4 w = four(element / 4);
        const int lane = (int)(element % 4);
        return lane == 0 ? w.x : lane == 1 ? w.y : lane == 2 ? w.z : w.w;
    }
};
