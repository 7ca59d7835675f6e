// tops[owner] = bits of the largest finite magnitude of the real rows of each group or matrix, or of them all, for
// auto_norm. tops are zeros before. Launch: as quantize.cuh, without dynamic shared memory.
//
// Params: XType, Vec, Groups, Align, Discrete, Norm, NormEach, Unit, Vector, PerUnit.
#include "quant_tiles.cuh"

// add_top joins a warp's maxima to those of an owner.
__device__ __forceinline__ void add_top(u32* tops, int owner, u32 top) {
#pragma unroll
    for (int d = 16; d > 0; d /= 2) top = larger(top, __shfl_xor_sync(kFullWarp, top, d));
    if (threadIdx.x % 32 == 0 && top > 0) atomicMax(tops + owner, top);
}

extern "C" __global__ void __launch_bounds__(kThreads, Params::PerUnit)
    quantize_amax(u32* tops, const void* x, const int* offsets, const int* counts, const int* count, i64 rows, int cols, int batches) {
    __shared__ Groups<QuantTiles::kGroups> groups;
    const QuantTiles tiles(groups, offsets, counts, count, rows, cols, batches);
    const int line = threadIdx.x % kLine, first = threadIdx.x / kLine;
    int owner = 0; // whose maximum top is
    u32 top = 0;
    const Place step = tiles.place(gridDim.x);
    for (Place p = tiles.place(blockIdx.x); tiles.has(p); tiles.advance(p, step)) {
        const QuantTile t = tiles.at(p);
        if (t.mid == 0) continue;
        if (Params::NormEach && t.owner != owner) {
            add_top(tops, owner, top);
            owner = t.owner;
            top = 0;
        }
        const int n = clamp_of(t.cols - line * 8, 0, 8);
        const i64 at = t.origin + (i64)first * cols + line * 8;
#pragma unroll
        for (int base = 0; base < kTurns; base += kHeld) {
            Pack<X, 8> held[kHeld];
#pragma unroll
            for (int k = 0; k < kHeld; k++)
                load_eight(held[k], x, at + (i64)(base + k) * kLines * cols, first + (base + k) * kLines < t.mid ? n : 0);
#pragma unroll
            for (int k = 0; k < kHeld; k++) {
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    const u32 m = magnitude(held[k].get(j));
                    top = larger(top, m < kInf ? m : 0);
                }
            }
        }
    }
    add_top(tops, owner, top);
}
