// What the epilogues of matrix products share: a warp's accumulators, sixteen rows at a time, go through shared memory, so
// that a lane gets eight neighbouring columns of one row and reads and writes 16 bytes at once.
#pragma once
#include "pipeline.cuh"
#include "tile.cuh"

// A warp's stage: 16 rows of 64 floats. Eight columns stay together; their place depends on the row, and the halves of the
// last four eights are swapped, so that neither side meets a bank twice.
struct Stage {
    float value[16 * 64];

    // Where four columns from col (a multiple of 4) on lie.
    static __device__ __forceinline__ int place(int row, int col) {
        return row * 64 + (col ^ ((row & 3) << 3) ^ ((col & 32) >> 3));
    }

    __device__ __forceinline__ void put(const float (&piece)[8][4], float factor) {
        const int lane = threadIdx.x % 32, row = lane / 4, col = lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            // Pairs of columns move with the four that hold them.
            const int at = place(row, 8 * j + (col & 4)) + (col & 3), below = place(row + 8, 8 * j + (col & 4)) + (col & 3);
            *reinterpret_cast<float2*>(value + at) = make_float2(piece[j][0] * factor, piece[j][1] * factor);
            *reinterpret_cast<float2*>(value + below) = make_float2(piece[j][2] * factor, piece[j][3] * factor);
        }
    }

    __device__ __forceinline__ void get(float (&v)[8], int row, int col) const {
        const float4 x = *reinterpret_cast<const float4*>(value + place(row, col));
        const float4 y = *reinterpret_cast<const float4*>(value + place(row, col + 4));
        v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w;
        v[4] = y.x, v[5] = y.y, v[6] = y.z, v[7] = y.w;
    }
};

// The shared memory of a product: the ring, a stage a warp, the groups.
template <class Spec, int kGroups, int kSlots = Spec::kStages>
struct ProductSmem {
    using S = Shape<Spec>;
    alignas(128) unsigned char slots[kSlots * S::kSlotBytes];
    Stage stages[S::kThreads / 32];
    Groups<kGroups> groups;
};

// Calls body(i, row) for rows [16i, 16i+16) of the accumulators times factor, with kLanes lanes a row, each with eight of its
// 8*kLanes columns: row is that in the stage. All lanes of the warp call it together, with the same count of rows, past which
// none of 16 is looked at. Passes over the stage are unrolled kUnroll times.
template <int kLanes, int kRows, int kUnroll = 8, class Body>
__device__ __forceinline__ void for_staged(Stage& stage, const Accumulators<kRows>& acc, int rows, float factor, Body body) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kRows / 16; i++) {
        if (16 * i >= rows) {
            break;
        }
        __syncwarp();
        stage.put(acc[i], factor);
        __syncwarp();
#pragma unroll kUnroll
        for (int pass = 0; pass < kLanes / 2; pass++) {
            body(i, pass * (32 / kLanes) + lane / kLanes);
        }
    }
}

// The same columns of rows that for_staged leaves: calls body(row) for those from real, up to a multiple of 16, to last.
template <int kLanes, class Body>
__device__ __forceinline__ void for_padding(int real, int last, Body body) {
#pragma unroll 4
    for (int row = (max_of(real, 0) + 15) / 16 * 16 + threadIdx.x % 32 / kLanes; row < last; row += 32 / kLanes) {
        body(row);
    }
}

// Those rows of a tile of one warp row, written with zeros by bulk copies while the tile is multiplied: stores at its end are waited
// for. Rows are one piece of memory, of which each warp of all of the group's columns has every so many bytes, of all outputs: C of P::N
// columns and D of kWidth.
template <class P, int kWidth>
struct PaddingCopies {
    static constexpr int kShares = ceil_div(P::N, P::TileN) * (P::TileN / 64);

    // The zeros are the warp's stage, until end().
    template <class Tile>
    static __device__ __forceinline__ void begin(Stage* stages, const Tile& t, typename P::CType* c, typename P::DType* d) {
        const int first = t.first + ceil_div(t.rows, 16) * 16;
        if (first >= t.last) {
            return;
        }
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        Stage& stage = stages[warp];
        __syncwarp();  // all lanes have read what it held
#pragma unroll
        for (int i = lane * 4; i < 16 * 64; i += 32 * 4) {
            *reinterpret_cast<float4*>(stage.value + i) = {};
        }
        ptx::bulk_fence();
        __syncwarp();
        if (ptx::elect()) {
            const int share = ptx::fresh(t.col) / 64 + warp;  // fresh: nothing made of it stays during the product
            if constexpr (P::HasC) {
                write<P::N>(c, stage, first, t.last, share);
            }
            if constexpr (P::HasD) {
                write<kWidth>(d, stage, first, t.last, share);
            }
            ptx::cp_bulk_commit();
        }
    }

    // All lanes call it, and meet before they write to the stage.
    static __device__ __forceinline__ void end() { ptx::cp_bulk_wait_read<0>(); }

private:
    // Writes a share of rows [first, last) of a matrix of kCols columns.
    template <int kCols, class T>
    static __device__ __forceinline__ void write(T* out, const Stage& zeros, int first, int last, int share) {
        constexpr i64 kRow = kCols * sizeof(T), kMost = sizeof(Stage);
        static_assert(kRow % 16 == 0, "cp_bulk");
        unsigned char* to = reinterpret_cast<unsigned char*>(out) + first * kRow;
        const i64 size = (last - first) * kRow;
#pragma unroll 1
        for (i64 at = share * kMost; at < size; at += kShares * kMost) {
            ptx::cp_bulk(to + at, ptx::shared_address(&zeros), static_cast<u32>(size - at < kMost ? size - at : kMost));
        }
    }
};

// A factor for each of a warp's rows, loaded at once and handed to the lanes that need it.
template <int kRows>
struct RowFactors {
    float value[ceil_div(kRows, 32)];

    // Those from *first on, of which count exist; all 1 where there are none.
    __device__ __forceinline__ RowFactors(bool given, const float* first, int count) {
#pragma unroll
        for (int h = 0; h < ceil_div(kRows, 32); h++) {
            const int row = h * 32 + threadIdx.x % 32;
            value[h] = given && row < count ? first[row] : 1.0f;
        }
    }

    // That of row 32*block+row, wherever block is: past these rows it says nothing. All lanes of the warp call it together.
    __device__ __forceinline__ float in_block(int block, int row) const {
        float x = value[0];
#pragma unroll
        for (int h = 1; h < ceil_div(kRows, 32); h++) {
            x = h == block ? value[h] : x;
        }
        return __shfl_sync(0xffffffffu, x, row);
    }

    // That of row 16i+row. All lanes of the warp call it together.
    __device__ __forceinline__ float at(int i, int row) const { return __shfl_sync(0xffffffffu, value[i / 2], i % 2 * 16 + row); }
};

// value[i], 1 where there is none.
__device__ __forceinline__ float factor_of(bool given, const float* value, i64 i) { return given ? value[i] : 1.0f; }

// Brings it into the L1 cache.
__device__ __forceinline__ void prefetch_factor(bool given, const float* value, i64 i) {
    if (given) {
        ptx::prefetch_l1(value + i);
    }
}

// What an epilogue takes beside its operands: the factor of a group's products, and what becomes of max |D|.
template <class P>
struct PlainExtra {
    static constexpr bool kSees = false;  // whether it looks at D

    const float* alpha;

    struct Seen {
        __device__ __forceinline__ void see(const float (&)[8]) {}
    };
    // Prepares for factor.
    __device__ __forceinline__ void begin(int group) const { prefetch_factor(P::HasAlpha, alpha, group); }
    __device__ __forceinline__ float factor(int group) const { return factor_of(P::HasAlpha, alpha, group); }
    __device__ __forceinline__ void leave(const Seen&, int) const {}
};
