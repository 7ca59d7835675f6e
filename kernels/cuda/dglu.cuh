// What the two backward kernels of the gated activation share (contracts, section 6): from eight neighbouring columns of G in
// one row to dC, the activation, and what is summed later.
//
// Sums over all columns (dprob) or all rows of a group (dbias, amax) are left in parts, in a fixed order, and joined by
// dglu_rows.cuh and group_parts.cuh: no atomics. A warp takes 64 columns, eight lanes a row.
//
// P, the constants: N, the columns of G; CType, DCType, ActType; Layout, of dC; Act; HasProb, HasBeta; HasDC, HasDProb, HasAmax,
// HasDBias, HasAct.
#pragma once
#include "activation.cuh"
#include "types.cuh"

template <class P>
struct DGLU {
    static constexpr int kBlocks = ceil_div(P::N, 64);  // parts of a row
    static constexpr bool kFast = sizeof(typename P::DCType) <= 2 && (!P::HasAct || sizeof(typename P::ActType) == 2);

    const float* prob;
    const float* beta;
    const typename P::CType* c;
    typename P::DCType* dc;
    typename P::ActType* act;
    float* row_parts;   // (kBlocks, capacity): part of dprob
    float* col_parts;   // (parts, 2N): part of dbias, columns in blocks of 32 gate, 32 up
    u32* amax_parts;    // (parts, kBlocks, 2): largest |dgate| and |dup|, as bits
    int capacity;

    // What a lane has seen of its eight columns.
    struct Seen {
        float gate[8], up[8];
        u32 top_gate, top_up;

        __device__ __forceinline__ Seen() : gate(), up(), top_gate(0), top_up(0) {}
    };

    __device__ __forceinline__ float factor(int group) const { return P::HasBeta ? beta[group] : 1.0f; }

    // Columns [j, j+8) of gate and up in row m of C.
    struct Pre {
        Eight<typename P::CType> gate, up;
    };

    // Gates and ups that alternate.
    static __device__ __forceinline__ void paired(float (&x)[8], float (&y)[8], const float (&gate)[8], const float (&up)[8]) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[2 * i] = gate[i], x[2 * i + 1] = up[i];
            y[2 * i] = gate[i + 4], y[2 * i + 1] = up[i + 4];
        }
    }

    static __device__ __forceinline__ i64 place(i64 m, int j) { return m * (2 * P::N) + j / 32 * 64 + j % 32; }

    __device__ __forceinline__ void load(Pre& pre, i64 m, int j) const {
        pre.gate.load(c + place(m, j));
        pre.up.load(c + place(m, j) + 32);
    }

    // Eight columns: their gradients from G, p, which is prob, and what was loaded; the activation times p. Adds to a part of dprob,
    // and to what has been seen.
    template <bool kSee>
    __device__ __forceinline__ void eight(Seen& seen, float (&gate)[8], float (&up)[8], float (&value)[8], float& sum, const float (&g)[8], const Pre& pre,
                                          float p, float scale) const {
        pre.gate.decode(gate);
        pre.up.decode(up);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float d_gate, d_up;
            const float v = activate<typename P::Act, kFast>(__fmul_rn(scale, gate[i]), __fmul_rn(scale, up[i]), d_gate, d_up);
            const float pg = p * g[i];
            sum += v * g[i];
            gate[i] = pg * d_gate;
            up[i] = pg * d_up;
            value[i] = p * v;
            if constexpr (kSee && P::HasDBias) {
                seen.gate[i] += gate[i];
                seen.up[i] += up[i];
            }
            if constexpr (kSee && P::HasAmax) {  // bits of |x| order as |x| does, a NaN above all
                seen.top_gate = max(seen.top_gate, __float_as_uint(gate[i]) & 0x7fffffffu);
                seen.top_up = max(seen.top_up, __float_as_uint(up[i]) & 0x7fffffffu);
            }
        }
    }

    // Row m, columns [j, j+8) of G; pre: loaded where the element is real and exists; p: its prob; real: not padding;
    // exists: of this tile, at all, and j below N. All lanes of the warp call it.
    __device__ __forceinline__ void row(Seen& seen, const float (&g)[8], const Pre& pre, float p, i64 m, int j, float scale, bool real, bool exists) const {
        float gate[8] = {}, up[8] = {}, value[8] = {};
        float sum = 0;
        if (real && exists) {
            eight<true>(seen, gate, up, value, sum, g, pre, p, scale);
        }
        if constexpr (P::HasDProb) {
#pragma unroll
            for (int d = 1; d < 8; d *= 2) {
                sum += __shfl_xor_sync(0xffffffffu, sum, d);
            }
            if (exists && threadIdx.x % 8 == 0) {
                row_parts[static_cast<i64>(j / 64) * capacity + m] = sum;
            }
        }
        if (!exists) {
            return;
        }
        if constexpr (P::HasDC) {
            store(m, j, gate, up);
        }
        if constexpr (P::HasAct) {
            store8(act + m * P::N + j, value);
        }
    }

    // Leaves what the warp's lanes have seen of columns [block*64, block*64+64) in part number part.
    __device__ __forceinline__ void leave(Seen& seen, int part, int block) const {
        const int lane = threadIdx.x % 32, j = block * 64 + lane % 8 * 8;
        if constexpr (P::HasDBias) {
#pragma unroll
            for (int i = 0; i < 8; i++) {
#pragma unroll
                for (int d = 8; d < 32; d *= 2) {
                    seen.gate[i] += __shfl_xor_sync(0xffffffffu, seen.gate[i], d);
                    seen.up[i] += __shfl_xor_sync(0xffffffffu, seen.up[i], d);
                }
            }
            if (lane < 8 && j < P::N) {
                float* to = col_parts + static_cast<i64>(part) * (2 * P::N) + j / 32 * 64 + j % 32;
                store8(to, seen.gate);
                store8(to + 32, seen.up);
            }
        }
        if constexpr (P::HasAmax) {
#pragma unroll
            for (int d = 1; d < 32; d *= 2) {
                seen.top_gate = max(seen.top_gate, __shfl_xor_sync(0xffffffffu, seen.top_gate, d));
                seen.top_up = max(seen.top_up, __shfl_xor_sync(0xffffffffu, seen.top_up, d));
            }
            if (lane == 0) {
                u32* to = amax_parts + (static_cast<i64>(part) * kBlocks + block) * 2;
                to[0] = seen.top_gate;
                to[1] = seen.top_up;
            }
        }
    }

private:
    __device__ __forceinline__ void store(i64 m, int j, const float (&gate)[8], const float (&up)[8]) const {
        if constexpr (P::Layout == kInterleaved32) {
            store8(dc + place(m, j), gate);
            store8(dc + place(m, j) + 32, up);
        } else if constexpr (P::Layout == kConcat) {
            store8(dc + m * (2 * P::N) + j, gate);
            store8(dc + m * (2 * P::N) + P::N + j, up);
        } else {
            float x[8], y[8];
            paired(x, y, gate, up);
            store8(dc + m * (2 * P::N) + 2 * j, x);
            store8(dc + m * (2 * P::N) + 2 * j + 8, y);
        }
    }
};
