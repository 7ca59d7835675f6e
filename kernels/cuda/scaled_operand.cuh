// The operands of a product of block-scaled weights and a plain A (scaled_pipeline.cuh): how they get from memory to tiles of bf16.
//
// A is copied by Loader into a slot of the ring and read there. Codes are copied as they lie in memory, with their factors, into a
// slot, and decoded from there into one of two tiles of bf16, laid out as operand.cuh says. Each thread decodes the chunks of
// 16 bytes that it has copied, so that a slot holds them by pass and thread.
//
// Spec: that of Loader, and kCodes, kFactors, kVec; kAlongOuter: blocks run along the outer axis, which is contiguous, instead of
// the reduction.
//
// Factors in a slot: a word of four for each row of the tile; with kAlongOuter a word for each chunk, by pass and thread.
#pragma once
#include "decode.cuh"
#include "operand.cuh"

// One tile of codes as it lies in memory.
struct CodeSource {
    const unsigned char* codes;    // the byte of element (0,0) of the tile
    i64 ld;                        // codes between rows (kReduction) or steps of the reduction (kOuter)
    int extent;                    // rows that exist
    const unsigned char* factors;  // of the matrix
    int row;                       // in the factors' matrix: the tile's first row; with kAlongOuter its first column, in codes
    int words;                     // of a row of factors
};

// The row of the weight, from the tile's first on, that row r of the tile holds (Loader).
template <class Spec>
__device__ __forceinline__ constexpr i64 weight_row(int r) {
    return Spec::kUpRow == 0 ? r : static_cast<i64>(r / 64 * 32 + r % 32) + (r % 64 < 32 ? 0 : Spec::kUpRow);
}

template <class Spec, int kThreads, bool kTailed>
struct CodeLoader {
    using Format = CodeFormat<Spec::kCodes>;
    static constexpr int kChunk = Format::kChunk, kBits = Format::kBits, kBlock = 64;
    static constexpr bool kLines = Spec::kMajor == kReduction, kAlongOuter = Spec::kAlongOuter;
    static constexpr int kChunks = kLines ? kBlock / kChunk : Spec::kRows / kChunk;  // of a line
    static constexpr int kStride = kThreads / kChunks;                               // lines that the block copies at once
    static constexpr int kPasses = Spec::kRows * kBlock / kChunk / kThreads;
    static constexpr int kCodeBytes = Spec::kRows * kBlock * kBits / 8;
    static constexpr int kSlotBytes = kCodeBytes + (kAlongOuter ? kCodeBytes / 4 : Spec::kRows * 4);
    static constexpr int kTileBytes = Spec::kRows * 128;
    static constexpr bool kHalfWords = !kAlongOuter && Spec::kVec == 32;  // a word of factors is two blocks deep
    static_assert(kPasses >= 1 && kThreads % kChunks == 0, "threads copy whole lines");
    static_assert(kAlongOuter || Spec::kRows <= kThreads, "a thread has at most one row's factors");
    static_assert(!kLines || Spec::kUpRow == 0 || 32 % kStride == 0 || kStride % 64 == 0, "passes keep their place in blocks of gate and up");

    const unsigned char* from;
    const unsigned char* factors;  // of this thread's row, or with kAlongOuter of its columns
    i64 ld;
    int extent;
    int at;     // with kHalfWords 1 in the second block of a word; with kAlongOuter the line of this block
    int words;
    int column;  // of the tile in the matrix, with kAlongOuter

    static __device__ __forceinline__ int line() { return threadIdx.x / kChunks; }
    static __device__ __forceinline__ int chunk() { return threadIdx.x % kChunks; }
    static __device__ __forceinline__ constexpr i64 mapped(int r) { return weight_row<Spec>(r); }
    static __device__ __forceinline__ constexpr i64 bytes(i64 codes) { return codes * kBits / 8; }

    __device__ __forceinline__ i64 distance() const { return bytes(Spec::kLd != 0 ? Spec::kLd : ld); }

    __device__ __forceinline__ void start(const CodeSource& s) {
        ld = s.ld;
        words = s.words;
        column = s.row;
        at = 0;
        const int outer = kLines ? line() : chunk() * kChunk;
        from = s.codes + (kLines ? mapped(outer) * distance() + chunk() * 16 : bytes(mapped(outer)) + line() * distance());
        extent = s.extent - outer;
        if constexpr (kAlongOuter) {
            factors = s.factors + (s.row + mapped(outer)) / (4 * Spec::kVec) * 512;
        } else {
            factors = s.factors + factor_row(s.row + static_cast<int>(mapped(threadIdx.x)), s.words);
        }
    }

    // Copies part kQuarter of the current block into a slot; left: what remains of the reduction, 0 for nothing to copy.
    template <int kQuarter>
    __device__ __forceinline__ void issue(u32 slot, int left) const {
#pragma unroll
        for (int pass = 0; pass < kPasses; pass++) {
            if (pass * 4 / kPasses != kQuarter) {
                continue;
            }
            const int step = pass * kStride;
            const bool exists = kLines ? Spec::kFull || step < extent : Spec::kFull || extent > 0;
            int n = 16;
            if constexpr (kTailed) {
                n = kLines ? static_cast<int>(bytes(clamp_of(left - chunk() * kChunk, 0, kChunk) + (kBits == 4))) : line() + step < left ? 16 : 0;
            }
            // What does not exist becomes zero: stale codes must not look like NaNs.
            ptx::cp_async16_zero(left > 0, slot + (pass * kThreads + threadIdx.x) * 16, from + (kLines ? mapped(step) : step) * distance(), exists ? n : 0);
            if constexpr (kAlongOuter) {
                const bool real = exists && (!kTailed || line() + step < left);
                ptx::cp_async4_zero(left > 0, slot + kCodeBytes + (pass * kThreads + threadIdx.x) * 4, factors + factor_row(at + line() + step, words), real ? 4 : 0);
            }
        }
        if constexpr (kQuarter == 1 && !kAlongOuter) {
            const int rows = extent + line();
            int n = 4;
            if constexpr (kTailed) {  // factors past the end may be NaN
                n = clamp_of(ceil_div(left + (kHalfWords ? at * kBlock : 0), Spec::kVec), 0, 4);
            }
            const bool exists = Spec::kFull || static_cast<int>(threadIdx.x) < rows;
            ptx::cp_async4_zero(left > 0 && threadIdx.x < Spec::kRows, slot + kCodeBytes + threadIdx.x * 4, factors, exists ? n : 0);
        }
    }

    __device__ __forceinline__ void advance() {
        from += kLines ? kBlock * kBits / 8 : kBlock * distance();
        if constexpr (kAlongOuter) {
            at += kBlock;
        } else if constexpr (kHalfWords) {
            factors += at * 512;
            at ^= 1;
        } else {
            factors += 512;
        }
    }

    // Decodes passes [kFirst, kLast) of the slot into the tile; half: whether the block is the second one of its words of
    // factors; column: of the tile, in the matrix, with kAlongOuter.
    template <int kFirst, int kLast>
    static __device__ __forceinline__ void decode(u32 slot, u32 tile, bool half, int column) {
#pragma unroll
        for (int pass = kFirst; pass < kLast; pass++) {
            u32 words[4];
            ptx::ld_shared16(words, slot + (pass * kThreads + threadIdx.x) * 16);
            decode_line(words, slot, tile, pass, half, column);
        }
    }

private:
    // Where chunk c of 8 elements lies in the tile, of those that pass makes of this thread's codes.
    static __device__ __forceinline__ u32 place(int pass, int c) {
        const int l = line() + pass * kStride, all = chunk() * (kChunk / 8) + c;
        return kLines ? chunk_offset(l, all) : all / 8 * (kBlock * 128) + chunk_offset(l, all % 8);
    }

    // Codes that share their factor, or two.
    static __device__ __forceinline__ void decode_line(const u32 (&words)[4], u32 slot, u32 tile, int pass, bool half, int column) {
        u32 four;
        int first;  // the chunk's factor among the word's four
        if constexpr (kAlongOuter) {
            four = ptx::ld_shared4(slot + kCodeBytes + (pass * kThreads + threadIdx.x) * 4);
            first = static_cast<int>(column + mapped(chunk() * kChunk)) / Spec::kVec % 4;
        } else {
            four = ptx::ld_shared4(slot + kCodeBytes + (line() + pass * kStride) * 4);
            first = chunk() * kChunk / Spec::kVec + (kHalfWords && half ? 2 : 0);
        }
        four >>= first * 8;
        constexpr bool kTwo = kChunk > Spec::kVec;
        const u32 factor = factor_pair<Spec::kFactors>(four & 0xff);
        const u32 second = kTwo ? factor_pair<Spec::kFactors>(four >> 8 & 0xff) : factor;
        u32 special = 0;
#pragma unroll
        for (int c = 0; c < kChunk / 8; c++) {
            u32 out[4];
            if constexpr (kBits == 4) {
                decode_nibbles(out, words[c]);
            } else {
                decode_bytes<Spec::kCodes>(out[0], out[1], words[2 * c]);
                decode_bytes<Spec::kCodes>(out[2], out[3], words[2 * c + 1]);
                special |= specials<Spec::kCodes>(words[2 * c]) | specials<Spec::kCodes>(words[2 * c + 1]);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                out[i] = ptx::mul_bf16x2(out[i], c * 8 < Spec::kVec ? factor : second);
            }
            ptx::st_shared16(tile + place(pass, c), out);
        }
        if (kBits == 8 && (special & 0x80808080u) != 0) {
            one_by_one(words, tile, pass, four & 0xff);
        }
    }

    // 16 codes of 8 bits again, of which some, or their factors, are not numbers.
    static __device__ __forceinline__ void one_by_one(const u32 (&words)[4], u32 tile, int pass, u32 factor) {
#pragma unroll 1
        for (int i = 0; i < 16; i++) {
            const u32 word = i < 8 ? (i < 4 ? words[0] : words[1]) : i < 12 ? words[2] : words[3];
            const float v = __fmul_rn(code_value<Spec::kCodes>(word >> i % 4 * 8 & 0xff), factor_value<Spec::kFactors>(factor));
            ptx::st_shared2(tile + place(pass, i / 8) + i % 8 * 2, ptx::to_bf16(v));
        }
    }
};

// A plain operand, copied in quarters.
template <class Spec, int kThreads, bool kTailed>
struct PlainLoader : Loader<Spec, kThreads, kTailed> {
    using Base = Loader<Spec, kThreads, kTailed>;
    static constexpr int kSlotBytes = Spec::kRows * 128;
    static_assert(Base::kPasses % 4 == 0, "quarters of whole passes");

    template <int kQuarter>
    __device__ __forceinline__ void issue(u32 slot, int left) const {
#pragma unroll
        for (int i = 0; i < Base::kPasses / 4; i++) {
            this->copy(slot + Base::place(), kQuarter * (Base::kPasses / 4) + i, left);
        }
    }
};

// Element (outer, depth) of a tile as a float.
template <class Spec>
__device__ __forceinline__ float element(const CodeSource& s, int outer, int depth) {
    using Format = CodeFormat<Spec::kCodes>;
    const i64 row = weight_row<Spec>(outer);
    const i64 at = Spec::kMajor == kReduction ? row * s.ld + depth : depth * s.ld + row;
    const u32 code = Format::kBits == 4 ? s.codes[at / 2] >> at % 2 * 4 & 15 : s.codes[at];
    const int line = Spec::kAlongOuter ? depth : s.row + static_cast<int>(row);
    const int block = (Spec::kAlongOuter ? s.row + static_cast<int>(row) : depth) / Spec::kVec;
    const u32 factor = s.factors[factor_row(line, s.words) + block / 4 * 512 + block % 4];
    return __fmul_rn(code_value<Spec::kCodes>(code), factor_value<Spec::kFactors>(factor));
}
template <class Spec, class T>
__device__ __forceinline__ float element(const Source<T>& s, int outer, int depth) {
    const i64 row = weight_row<Spec>(outer);
    return to_float(s.first[Spec::kMajor == kReduction ? row * s.ld + depth : depth * s.ld + row]);
}

// Decodes 32 steps of the reduction, from first on, into a tile of floats, zeros beyond depth and extent.
template <class Spec, int kThreads, class Source>
__device__ __forceinline__ void gather(u32 tile, const Source& s, int first, int depth) {
#pragma unroll 1
    for (int i = threadIdx.x; i < Spec::kRows * 32; i += kThreads) {
        const int outer = Spec::kMajor == kReduction ? i / 32 : i % Spec::kRows, k = Spec::kMajor == kReduction ? i % 32 : i / Spec::kRows;
        const float v = outer < s.extent && first + k < depth ? element<Spec>(s, outer, first + k) : 0.0f;
        ptx::st_shared4(tile + element_offset<float, kReduction>(outer, k), __float_as_uint(v));
    }
}
