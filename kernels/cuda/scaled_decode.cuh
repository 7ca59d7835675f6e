// Writes the values of the codes of a gradient of weights, whose factors run along the tokens, as bf16, laid out as the codes are.
//
//   out = code * factor;  *extreme = 1 if bf16 does not hold one (else it stays): fp8 codes, CodeFormat::kLeastFactor
//
// Only real tokens are decoded and count. The product comes after, for it may add to a gradient, which it cannot do twice. A thread
// block takes tiles of 128 lines by 128 neighbours, grid-stride, whose factors go through shared memory; a thread takes 8 codes of every
// 16th line, so that a warp writes whole sectors.
//
// Params: Codes, Format, Vec; E; Rows, all with the tokens of groups: TokensInner, these are contiguous, else rows of Rows codes; Ragged,
// group after group. Align, of which offsets are kept multiples; Extremes: whether there can be any.
#include "decode.cuh"
#include "tile.cuh"

using P = Params;
using ptx::u16;
using Format = CodeFormat<P::Codes>;
constexpr bool kDown = !P::TokensInner;  // the factors run across the lines
constexpr int kSide = 128, kThreads = 256, kChunk = 8, kChunks = kSide / kChunk, kTurns = kSide * kChunks / kThreads;
constexpr int kBlocks = kSide / P::Vec, kSubs = kBlocks / 4;  // factors, and words of them, of a line
constexpr int kBits = Format::kBits, kWords = kBits / 4;      // a chunk's codes in memory
constexpr int kRowTiles = ceil_div(P::Rows, kSide);

struct Part {
    const unsigned char* codes;
    u16* out;
    i64 ld;                        // codes between lines
    int lines, run;                // that exist; a run is a multiple of kChunk but for that of real tokens
    const unsigned char* factors;  // of its first line and block
};

struct Parts {
    const unsigned char* codes;
    const unsigned char* factors;
    u16* out;
    const Groups<P::E>& groups;  // in tiles of 128 rows
    int capacity;

    __device__ __forceinline__ int count() const { return groups.tiles[P::E] * kRowTiles; }

    // Part i, of no lines, or no run, where the product reads none.
    __device__ __forceinline__ Part at(int i) const {
        const int across = i % kRowTiles;
        const RowTile t = groups.template at<kSide>(groups.find(i / kRowTiles), i / kRowTiles);
        const i64 begin = groups.begin(t.group), tokens = groups.end[t.group] - begin, row = across * kSide;
        const int rows = min_of(kSide, P::Rows - across * kSide), real = t.mid - t.first;
        Part p{};
        p.ld = kDown ? P::Rows : P::Ragged ? tokens : capacity;
        const i64 first = kDown ? static_cast<i64>(t.first) * P::Rows + row : P::Ragged ? begin * P::Rows + row * tokens + (t.first - begin) : row * capacity + t.first;
        p.codes = codes + first * kBits / 8;
        p.out = out + first;
        p.lines = kDown ? real : rows;
        p.run = kDown ? rows : real;
        const i64 words = tokens / (4 * P::Vec);
        p.factors = factors + (kRowTiles * (begin / (4 * P::Vec)) + across * words + (t.first - begin) / (4 * P::Vec)) * 512;
        return p;
    }
};

// Factors as bf16, by line and block, or kDown by block and neighbour.
struct Table {
    alignas(16) u16 factor[kSide * kBlocks];
    int low;  // whether one is below kLeastFactor

    __device__ __forceinline__ void read(const Part& p) {
        if (threadIdx.x == 0) {
            low = 0;
        }
        __syncthreads();
        for (int i = threadIdx.x; i < kSide * kSubs; i += kThreads) {
            const u32 four = reinterpret_cast<const u32*>(p.factors)[i];
            const int line = i % kSide / 4 + i % 4 * 32, first = i / kSide * 4;
            u32 value[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const u32 code = four >> 8 * k & 0xff;
                if (P::Extremes && code < Format::kLeastFactor) {
                    low = 1;
                }
                value[k] = factor_pair<P::Format>(code);
                if constexpr (kDown) {
                    factor[(first + k) * kSide + line] = static_cast<u16>(value[k]);
                }
            }
            if constexpr (!kDown) {
                *reinterpret_cast<uint2*>(factor + line * kBlocks + first) =
                    uint2{ptx::pick_bytes(value[0], value[1], 0x5410), ptx::pick_bytes(value[2], value[3], 0x5410)};
            }
        }
        __syncthreads();
    }

    // The pair of factors of codes 2i and 2i+1 of chunk c of a line.
    __device__ __forceinline__ u32 pair(int line, int c, int i) const {
        if constexpr (kDown) {
            return *reinterpret_cast<const u32*>(factor + line / P::Vec * kSide + c * kChunk + 2 * i);
        }
        return factor[line * kBlocks + c * kChunk / P::Vec] * 0x00010001u;
    }
};

// Decodes a chunk. Numbers that are none, and their likes in factors of 8 bits, are rare and made one by one.
__device__ __forceinline__ void decode_chunk(u16* out, const u32 (&words)[kWords], const unsigned char* codes, const Table& table, int line, int c) {
    u32 pairs[4], special = 0;
    if constexpr (kBits == 4) {
        decode_nibbles(pairs, words[0]);
    } else {
#pragma unroll
        for (int w = 0; w < 2; w++) {
            decode_bytes<P::Codes>(pairs[2 * w], pairs[2 * w + 1], words[w]);
            special |= specials<P::Codes>(words[w]);
        }
    }
    if ((special & 0x80808080u) != 0) {
#pragma unroll 1
        for (int i = 0; i < kChunk; i++) {
            const u32 factor = table.pair(line, c, i / 2) >> i % 2 * 16;
            out[i] = ptx::to_bf16(__fmul_rn(code_value<P::Codes>(code_at<P::Codes>(codes, i)), __uint_as_float(factor << 16)));
        }
        return;
    }
    uint4 eight;
    u32* to = &eight.x;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        to[i] = ptx::mul_bf16x2(pairs[i], table.pair(line, c, i));
    }
    *reinterpret_cast<uint4*>(out) = eight;
}

// Whether one of the first n codes of a chunk is not zero and beside a factor below kLeastFactor.
__device__ __forceinline__ bool beyond(const unsigned char* codes, const Table& table, int line, int c, int n) {
    bool found = false;
#pragma unroll 1
    for (int i = 0; i < n; i++) {
        const u32 factor = table.pair(line, c, i / 2) >> i % 2 * 16 & 0xffff;
        found |= factor >> 7 < Format::kLeastFactor && (code_at<P::Codes>(codes, i) & Format::kMagnitude) != 0;
    }
    return found;
}

extern "C" __global__ void __launch_bounds__(kThreads, 4)
    scaled_decode(u16* out, const unsigned char* codes, const unsigned char* factors, const int* offsets, const int* counts, const int* rows_a, const int* rows_b,
                  u32* extreme, int capacity) {
    __shared__ Groups<P::E> groups;
    __shared__ Table table;
    groups.template read<kSide>(offsets, counts, rows_in_use(capacity, rows_a, rows_b), P::Align);
    const Parts parts{codes, factors, out, groups, capacity};
    const int c = threadIdx.x % kChunks, first = threadIdx.x / kChunks;
    bool found = false;
    for (int i = blockIdx.x; i < parts.count(); i += gridDim.x) {
        const Part p = parts.at(i);
        if (p.lines <= 0 || p.run <= 0) {
            continue;
        }
        const int n = min_of(kChunk, p.run - c * kChunk);
        const i64 start = first * p.ld + c * kChunk, step = kThreads / kChunks * p.ld;
        u32 words[kTurns][kWords];
#pragma unroll
        for (int turn = 0; turn < kTurns; turn++) {
            const int line = first + turn * (kThreads / kChunks);
            const unsigned char* from = p.codes + (start + turn * step) * kBits / 8;
#pragma unroll
            for (int w = 0; w < kWords; w++) {
                words[turn][w] = 0;
            }
            if (line < p.lines && n > 0) {
                if constexpr (kWords == 2) {
                    const uint2 x = *reinterpret_cast<const uint2*>(from);
                    words[turn][0] = x.x, words[turn][1] = x.y;
                } else {
                    words[turn][0] = *reinterpret_cast<const u32*>(from);
                }
            }
        }
        table.read(p);
#pragma unroll
        for (int turn = 0; turn < kTurns; turn++) {
            const int line = first + turn * (kThreads / kChunks);
            if (line < p.lines && n > 0) {
                const i64 at = start + turn * step;
                const unsigned char* from = p.codes + at * kBits / 8;
                if (P::Extremes && table.low != 0) {
                    found |= beyond(from, table, line, c, n);
                }
                decode_chunk(p.out + at, words[turn], from, table, line, c);
            }
        }
        __syncthreads();
    }
    if (found) {
        *extreme = 1;
    }
}
