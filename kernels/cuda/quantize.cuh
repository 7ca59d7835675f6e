// Quantizes matrices block by block, along rows, columns or both, and reads them once (contracts, section 7; nodes/quantize.go).
//
// A tile of quant_tiles.cuh at a time: its row blocks (quantize_rows.cuh), then its column blocks (quantize_columns.cuh).
//
// Tiles go through shared memory, in the format of x, and the next one is on its way while a tile is worked at.
//
// Only blocks whose factor or norm is not finite look for products that are NaN.
//
// Launch: 256 threads, Params::PerUnit blocks a multiprocessor; the grid strides over tiles. Dynamic shared memory: Params::Stages
// copies of tiles, then with columns two tiles' column factors.
//
// Params: XType, ValueType, FactorType, Vec, Groups (0: none), Align, HasRow, HasCol, Transpose, Discrete, Norm, NormEach, Unit, Random,
// Vector, RowUnit and CodeUnit (bytes of a store of row codes and of transposed codes), PerUnit, Stages (tiles in shared memory, 1 or 2).
#include "quantize_columns.cuh"
#include "quantize_rows.cuh"

// fetch_tile begins to bring a tile to shared memory, zeros where x has nothing.
__device__ __forceinline__ void fetch_tile(const QuantTile& t, const void* x, int cols, u8* copy) {
    static_assert(kLines == kRun, "a thread's rows are kCopyRun apart");
    const int line = threadIdx.x % kLine, first = threadIdx.x / kLine, n = clamp_of(t.cols - line * 8, 0, 8);
    const char* from = (const char*)x + (t.origin + (i64)first * cols + line * 8) * (i64)sizeof(X);
    u8* const place = copy + first * kCopyRow + line * 8 * sizeof(X);
    const u32 to = ptx::shared_address(place);
    if (kVector && t.mid == kSide && t.cols == kSide) { // without a question for each row
#pragma unroll
        for (int turn = 0; turn < kTurns; turn++) {
#pragma unroll
            for (int b = 0; b < Pack<X, 8>::kBytes; b += 16) ptx::cp_async16(true, to + turn * kCopyRun + b, from + b);
            from += (i64)cols * kLines * (i64)sizeof(X);
        }
        return;
    }
#pragma unroll
    for (int turn = 0; turn < kTurns; turn++) {
        const int r = first + turn * kLines, have = r < t.mid ? n : 0;
        if constexpr (kVector) {
            // Where nothing is there, nothing is read either.
#pragma unroll
            for (int b = 0; b < Pack<X, 8>::kBytes; b += 16) ptx::cp_async16_zero(true, to + turn * kCopyRun + b, from + b, have ? 16 : 0);
        } else {
            Pack<X, 8> p;
            load_eight(p, from, 0, have);
            p.store(place + turn * kCopyRun, 0);
        }
        from += (i64)cols * kLines * (i64)sizeof(X);
    }
}

// store_blocks writes blocks of factors from shared memory, zeros where from is null.
__device__ __forceinline__ void store_blocks(void* sf, u32 at, int subs, const u8* from) {
    for (int i = threadIdx.x; i < subs * (kFactorBytes / 16); i += kThreads)
        ((uint4*)((u8*)sf + (i64)at * kFactorBytes))[i] = from ? ((const uint4*)from)[i] : uint4{};
}

extern "C" __global__ void __launch_bounds__(kThreads, Params::PerUnit)
    quantize(void* row, void* row_sf, void* col, void* col_sf, float* scale, const void* x, const int* offsets, const int* counts,
             const int* count, const void* norms, const u64* random, i64 rows, int cols, int batches, u32 salt, int scales) {
    __shared__ Groups<QuantTiles::kGroups> groups;
    const Outputs out{row, row_sf, col, col_sf};
    const QuantTiles tiles(groups, offsets, counts, count, rows, cols, batches);
    Draw of_row{}, of_col{};
    if constexpr (Params::Random) {
        of_row = Draw{random[0], random[1], 2 * salt};
        of_col = Draw{random[0], random[1], 2 * salt + 1};
    }
    if (scale && blockIdx.x == 0) {
        for (int i = threadIdx.x; i < scales; i += kThreads) scale[i] = __fdiv_rn(1.f, norm_of(norms, i));
    }
    if constexpr (!Params::HasRow && !Params::HasCol) return;
    const Place step = tiles.place(gridDim.x);
    Place p = tiles.place(blockIdx.x);
    if (!tiles.has(p)) return;
    u8* const copies = ptx::dynamic_shared();
    u8* const factors = copies + Params::Stages * kTileBytes;
    QuantTile t = tiles.at(p);
    u32 done_sf = 0; // the tile before: its column factors wait in shared memory for a barrier
    int done_subs = 0;
    fetch_tile(t, x, cols, copies);
    ptx::cp_async_commit();
    for (int turn = 0;; turn++) {
        u8* const copy = copies + turn % Params::Stages * kTileBytes;
        ptx::cp_async_wait<0>();
        __syncthreads(); // the tile is there, and nobody looks at the one before
        if constexpr (Params::HasCol) store_blocks(col_sf, done_sf, done_subs, factors + (turn + 1) % 2 * kTileFactors);
        const int width = ptx::fresh(cols); // registers are few: what a thread makes of it is made anew
        tiles.advance(p, step);
        const bool more = tiles.has(p);
        const QuantTile next = tiles.at(p); // nobody looks at it if there is none
        if (more && Params::Stages == 2) fetch_tile(next, x, width, copies + (turn + 1) % 2 * kTileBytes);
        ptx::cp_async_commit();
        done_subs = 0;
        if (t.last == 0) {
            if (row_sf) store_blocks(row_sf, t.row_sf, t.row_subs(), nullptr);
            if (col_sf) store_blocks(col_sf, t.col_sf, t.col_subs, nullptr);
        } else {
            const float norm = norm_of(norms, t.owner);
            if constexpr (Params::HasRow) rows_of_tile(t, width, norm, out, of_row, copy);
            if constexpr (Params::HasCol) columns_of_tile(t, rows, width, norm, col, of_col, copy, factors + turn % 2 * kTileFactors);
            done_sf = t.col_sf;
            done_subs = col_sf ? t.col_subs : 0;
        }
        if (!more) {
            if constexpr (!Params::HasCol) return;
            __syncthreads();
            return store_blocks(col_sf, done_sf, done_subs, factors + turn % 2 * kTileFactors);
        }
        if constexpr (Params::Stages == 1) {
            __syncthreads();
            fetch_tile(next, x, width, copy);
            ptx::cp_async_commit();
        }
        t = next;
    }
}
