// What the epilogues of products of block-scaled operands take more: global scales, and max |D| of each group.
#pragma once
#include "epilogue.cuh"

// P, the constants: HasAlpha, HasGlobalA, HasGlobalB, HasAmax. kGlobalFirst: the global scales are multiplied first.
template <class P, bool kGlobalFirst = false>
struct ScaledExtra {
    static constexpr bool kSees = P::HasAmax;

    const float* alpha;
    const float* global_a;
    const float* global_b;
    u32* amax;  // (E,), zeros before: bits of |D| order as |D| does, with NaN on top, whatever the order of the tiles

    struct Seen {
        u32 top = 0;

        __device__ __forceinline__ void see(const float (&v)[8]) {
            if constexpr (P::HasAmax) {
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    top = max(top, __float_as_uint(v[i]) & 0x7fffffffu);
                }
            }
        }
    };

    // PlainExtra
    __device__ __forceinline__ void begin(int group) const {
        prefetch_factor(P::HasAlpha, alpha, group);
        prefetch_factor(P::HasGlobalA, global_a, group);
        prefetch_factor(P::HasGlobalB, global_b, group);
    }

    __device__ __forceinline__ float factor(int group) const {
        const float f = factor_of(P::HasAlpha, alpha, group), a = factor_of(P::HasGlobalA, global_a, group), b = factor_of(P::HasGlobalB, global_b, group);
        return kGlobalFirst ? __fmul_rn(f, __fmul_rn(a, b)) : __fmul_rn(__fmul_rn(f, a), b);
    }

    // All lanes of a warp call it together.
    __device__ __forceinline__ void leave(Seen seen, int group) const {
        if constexpr (P::HasAmax) {
#pragma unroll
            for (int d = 1; d < 32; d *= 2) {
                seen.top = max(seen.top, __shfl_xor_sync(0xffffffffu, seen.top, d));
            }
            if (threadIdx.x % 32 == 0) {
                atomicMax(amax + group, seen.top);
            }
        }
    }
};

// Whether the kernel has work: P::When is 0 for always, 1 for the kernel that runs unless *extreme is set, 2 for the one that
// runs only then.
template <class P>
__device__ __forceinline__ bool wanted(const u32* extreme) {
    return P::When == 0 || (*extreme != 0) == (P::When == 2);
}
