// Tiles of one operand of a matrix product: how they lie in shared memory and how a thread block copies them there.
//
// A tile is kRows of the outer axis (M of A, N of B) by kDepth of the reduction, 128 bytes of it: 64 elements of 16 bits or 32
// floats. In shared memory it consists of lines of 128 bytes, eight chunks of 16 bytes each; chunk c of line l lies at
// place c ^ (l % 8), so that neither copies nor fragments, which take one chunk of eight successive lines, meet a bank twice.
//
//   kReduction   line = row of the tile, its chunks along the reduction
//   kOuter       128 bytes of the outer axis at a time: kDepth lines, one a step of the reduction, each with eight chunks of
//                the outer axis; then the next 128 bytes
#pragma once
#include "numeric.cuh"
#include "types.cuh"

template <class T>
struct Depth {
    static constexpr int kChunk = 16 / sizeof(T);  // elements of a chunk
    static constexpr int kBlock = 128 / sizeof(T);  // elements of the reduction in a tile
};

// Where in a tile chunk c of line l begins, in bytes.
__device__ __forceinline__ u32 chunk_offset(int line, int chunk) { return line * 128 + ((chunk ^ (line & 7)) << 4); }

// Element (outer, depth) of a tile.
template <class T, Major kMajor>
__device__ __forceinline__ u32 element_offset(int outer, int depth) {
    constexpr int kChunk = Depth<T>::kChunk, kBlock = Depth<T>::kBlock;
    if constexpr (kMajor == kReduction) {
        return chunk_offset(outer, depth / kChunk) + depth % kChunk * sizeof(T);
    }
    const int part = outer / kBlock, inside = outer % kBlock;
    return part * (kBlock * 128) + chunk_offset(depth, inside / kChunk) + inside % kChunk * sizeof(T);
}

// One tile as it lies in memory.
template <class T>
struct Source {
    const T* first;  // element (0,0) of the tile
    i64 ld;          // elements between rows (kReduction) or steps of the reduction (kOuter)
    int extent;      // rows that exist; others are read as zeros
};

// A thread's part in copying tiles, block after block along the reduction.
//
// Spec: T; kRows; kMajor; kLd, the distance ld where it is known at compile time, else 0; kVector, whether rows are multiples
// of 16 bytes; kFull, whether every row exists; kUpRow, 0 or, for weights [gate; up], the distance from a gate row to its up
// row: the tile then alternates 32 gate and 32 up. kTailed: the reduction may end inside a block, whose rest is made zero.
// Rows that do not exist stay whatever the slot held: they meet only outputs that nobody keeps.
template <class Spec, int kThreads, bool kTailed>
struct Loader {
    using T = typename Spec::T;
    static constexpr int kChunk = Depth<T>::kChunk, kBlock = Depth<T>::kBlock;
    static constexpr bool kLines = Spec::kMajor == kReduction;
    static constexpr int kChunks = kLines ? 8 : Spec::kRows / kChunk;  // along the contiguous axis
    static constexpr int kStride = kThreads / kChunks;                 // lines that the block copies at once
    static constexpr int kPasses = Spec::kRows * 8 / kThreads;
    static_assert(kThreads % kChunks == 0 && (!kLines || kStride % 8 == 0), "threads copy whole lines");
    static_assert(!kLines || Spec::kUpRow == 0 || 32 % kStride == 0, "a pass stays inside a block of gate or up");

    const T* from;
    i64 ld;
    int extent;

    // Where in a tile pass 0 of this thread lies.
    static __device__ __forceinline__ u32 place() { return kLines ? chunk_offset(line(), chunk()) : place(0); }

    static __device__ __forceinline__ int line() { return threadIdx.x / kChunks; }
    static __device__ __forceinline__ int chunk() { return threadIdx.x % kChunks; }

    // The row of the weight, from the tile's first on, that row r of the tile holds.
    static __device__ __forceinline__ constexpr i64 mapped(int r) {
        return Spec::kUpRow == 0 ? r : static_cast<i64>(r / 64 * 32 + r % 32) + (r % 64 < 32 ? 0 : Spec::kUpRow);
    }

    __device__ __forceinline__ i64 distance() const { return Spec::kLd != 0 ? Spec::kLd : ld; }

    __device__ __forceinline__ void start(const Source<T>& s) {
        ld = s.ld;
        const i64 outer = kLines ? line() : chunk() * kChunk, inner = kLines ? chunk() * kChunk : line();
        from = s.first + (kLines ? outer * distance() + inner : mapped(static_cast<int>(outer)) + inner * distance());
        extent = s.extent - static_cast<int>(outer);
    }

    // Copies one pass of the current block; to: place() in the slot's tile; left: what remains of the reduction, 0 for nothing
    // to copy.
    __device__ __forceinline__ void copy(u32 to, int pass, int left) const {
        const int step = pass * kStride;
        to += kStride % 8 == 0 ? step * 128 : place(step) - place(0);  // eight lines keep the swizzle
        const T* source = from + (kLines ? mapped(step) : step) * distance();
        const bool exists = Spec::kFull || (kLines ? step < extent : extent > 0);
        int n = kChunk;  // elements of this chunk that the reduction has
        if constexpr (kTailed) {
            n = kLines ? clamp_of(left - chunk() * kChunk, 0, kChunk) : line() + step < left ? kChunk : 0;
        }
        if constexpr (!Spec::kVector) {
            if (left > 0) {
                gather(to, source, !exists ? 0 : kLines ? n : min_of(n, extent));
            }
        } else if constexpr (kTailed) {
            ptx::cp_async16_zero(left > 0, to, source, exists ? n * static_cast<int>(sizeof(T)) : 0);
        } else {
            ptx::cp_async16(left > 0 && exists, to, source);
        }
    }

    __device__ __forceinline__ void advance() { from += kLines ? static_cast<i64>(kBlock) : kBlock * distance(); }

private:
    // That of a pass `step` lines later, with kOuter.
    static __device__ __forceinline__ u32 place(int step) {
        return chunk() / 8 * (kBlock * 128) + chunk_offset(line() + step, chunk() % 8);
    }

    // Rows of any width: element by element, complete at once.
    static __device__ __forceinline__ void gather(u32 to, const T* source, int n) {
        union {
            T element[kChunk];
            u32 word[4];
        } v;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v.word[i] = 0;
        }
#pragma unroll
        for (int i = 0; i < kChunk; i++) {
            if (i < n) {
                v.element[i] = source[i];
            }
        }
        ptx::st_shared16(to, v.word);
    }
};
