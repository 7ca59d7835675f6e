// The tiles of 128 rows by 128 columns that Quantize takes its matrices in: whole blocks of numbers and of factors in both
// axes, for the alignment of groups is 128 or 256. Every tile of the capacity has its turn, those that no rows fall into
// too, because the factors that stand for them are zeros.
//
// A matrix is (Rows,Cols), or one of Batches of them; with Params::Groups its rows are those of groups.
#pragma once
#include "block_scale.cuh"
#include "tile.cuh"

constexpr int kSide = 128;
constexpr int kVec = Params::Vec;
constexpr int kSub = kSide / kVec / kFactorCols; // blocks of factors along a side of a tile
constexpr int kThreads = 256, kLine = kSide / 8; // threads of a thread block, and those that share a row, 8 columns each
constexpr int kLines = kThreads / kLine;                     // rows that a thread block takes at a time
constexpr int kTurns = kSide / kLines;
constexpr bool kVector = Params::Vector; // rows are multiples of 8 columns

using X = Params::XType;
constexpr int kHeld = sizeof(X) == 2 ? kTurns : kTurns / 2; // turns whose loads are in flight at once

// load_eight loads n columns, 0 to 8; the others are zero.
__device__ __forceinline__ void load_eight(Pack<X, 8>& p, const void* x, i64 at, int n) {
    constexpr int kWords = Pack<X, 8>::kBytes / 4;
#pragma unroll
    for (int i = 0; i < kWords; i++) p.word[i] = 0;
    if constexpr (kVector) {
        if (n > 0) p.load(x, at);
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (i >= n) continue;
            if constexpr (sizeof(X) == 2)
                p.word[i / 2] |= (u32)((const u16*)x)[at + i] << (i % 2 * 16);
            else
                p.word[i] = ((const u32*)x)[at + i];
        }
    }
}

// Place is where a tile stands: batch, and the tile's row and column in it, in tiles.
struct Place {
    int batch, row, col;
};

struct QuantTile {
    int owner;        // group, or batch
    int batch;        // 0 with groups
    i64 row;          // the first, in its matrix
    i64 origin, turned; // its first element, in the order of x and transposed
    int mid, last;    // rows: those before mid are real, others before last are padding, the rest is not there
    int col, cols;    // the first column, and how many there are
    u32 row_sf, col_sf; // the first block of its row factors and of its column factors
    int col_subs;           // how many blocks of factors it has of the latter

    __device__ __forceinline__ int row_subs() const { return kSub == 1 ? 1 : ceil_div(cols, kVec * kFactorCols); } // and of the former
};

// QuantTiles knows the tiles of one launch. All threads of the block make it.
struct QuantTiles {
    static constexpr int kGroups = Params::Groups > 0 ? Params::Groups : 1;
    i64 rows, in_use;
    int cols, across, batches, down; // tiles across and down a matrix
    u32 row_blocks, col_blocks;      // blocks of factors along a row and along a column
    Groups<kGroups>& groups;          // shared

    __device__ __forceinline__ QuantTiles(Groups<kGroups>& g, const int* offsets, const int* counts, const int* count, i64 rows, int cols,
                                          int batches)
        : rows(rows), cols(cols), batches(batches), groups(g) {
        across = ceil_div(cols, kSide);
        down = (int)div_up(rows, kSide);
        row_blocks = ceil_div(ceil_div(cols, kVec), kFactorCols);
        col_blocks = (u32)div_up(div_up(rows, kVec), kFactorCols);
        in_use = rows_in_use(count, rows);
        if constexpr (Params::Groups > 0) {
            groups.template read<kSide>(offsets, counts, (int)in_use, Params::Align);
            in_use = groups.end[kGroups - 1];
        }
    }

    // place of tile number index, of which there are less than 2^31.
    __device__ __forceinline__ Place place(int index) const {
        const int line = index / across, batch = line / down;
        return Place{batch, line - batch * down, index - line * across};
    }
    // advance goes on by the number of tiles that step is the place of.
    __device__ __forceinline__ void advance(Place& p, const Place& step) const {
        p.col += step.col;
        const bool over = p.col >= across;
        p.col -= over ? across : 0;
        p.row += step.row + over;
        const bool under = p.row >= down;
        p.row -= under ? down : 0;
        p.batch += step.batch + under;
    }
    __device__ __forceinline__ bool has(const Place& p) const { return p.batch < batches; }

    __device__ __forceinline__ QuantTile at(const Place& p) const {
        QuantTile t;
        const int c = p.col, r = p.row;
        const u32 line = p.batch * down + r, column = p.batch * across + c; // no more blocks of factors than 2^32, either
        t.batch = t.owner = p.batch;
        t.row = (i64)r * kSide;
        t.col = c * kSide;
        t.cols = min_of(kSide, cols - t.col);
        t.origin = (p.batch * rows + t.row) * cols + t.col;
        t.turned = ((i64)p.batch * cols + t.col) * rows + t.row;
        const i64 left = in_use - t.row;
        t.mid = t.last = (int)(left < 0 ? 0 : left < kSide ? left : kSide);
        t.row_sf = line * row_blocks + c * kSub;
        t.col_sf = column * col_blocks + r * kSub;
        t.col_subs = kSub == 1 ? 1 : min_of(kSub, (int)(col_blocks - r * kSub));
        if constexpr (Params::Groups > 0) {
            t.owner = t.last > 0 ? groups.find(r) : kGroups - 1;
            if (t.last > 0) t.mid = groups.template at<kSide>(t.owner, r).mid - (int)t.row;
            if constexpr (Params::Discrete) t.col_sf = own_factors(t, c, r);
        }
        return t;
    }

private:
    // own_factors is the block where a tile's column factors begin if each group has a tensor of its own. They fill a prefix;
    // the tiles that are not in use share the rest.
    __device__ __forceinline__ u32 own_factors(const QuantTile& t, int c, int r) const {
        if (t.last == 0) return (u32)(r * across + c) * kSub;
        const int first = groups.tiles[t.owner], size = groups.tiles[t.owner + 1] - first;
        return (u32)(first * across + c * size + r - first) * kSub;
    }
};

// The norm of a group or batch: from is what NormKind (types.cuh) says, of owner or, with one for all, the first.
__device__ __forceinline__ float norm_of(const void* from, int owner) {
    constexpr int kKind = Params::Norm;
    const int i = Params::NormEach ? owner : 0;
    if constexpr (kKind == kNormAuto) {
        const float top = __uint_as_float(((const u32*)from)[i]);
        const float norm = __fdiv_rn(448.f * 6.f, top);
        return Params::Unit || top == 0 || !(norm < __uint_as_float(kInf)) ? 1.f : norm;
    } else if constexpr (kKind == kNormScale) {
        return __fdiv_rn(1.f, ((const float*)from)[i]);
    } else {
        return kKind == kNormOne ? 1.f : ((const float*)from)[i];
    }
}
