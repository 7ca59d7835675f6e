// The column blocks of a tile of quantize.cuh: a thread takes four columns of 16 rows from the tile's copy in shared memory. The
// factors meet in shared memory.
#pragma once
#include "quantize_block.cuh"

// ColumnPlace is where a thread stands in a tile when columns are made: rows kRun*run to kRun*run+15, four columns from c on.
// The two threads that may share a block are partner lanes apart. Transposed, eight threads have the rows of a column, for they
// are stored together; else sixteen have those of a row.
struct ColumnPlace {
    static constexpr int kPartner = Params::Transpose ? 1 : 16;
    int run, c;
    __device__ __forceinline__ ColumnPlace() {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        run = Params::Transpose ? lane % 8 : warp % 4 * 2 + lane / 16;
        c = kFour * (Params::Transpose ? warp * 4 + lane / 8 : warp / 4 * 16 + lane % 16);
    }
};

// Columns is what a thread holds of a tile: rows of four columns.
struct Columns {
    Pack<X, kFour> row[kRun];

    __device__ __forceinline__ void load(const u8* copy, const ColumnPlace& p) {
        const u8* from = copy + unit_at(p.run * kRun, p.c / 8) + p.c % 8 * sizeof(X);
#pragma unroll
        for (int r = 0; r < kRun; r++) row[r].load(from, r * kSide);
    }
};

// store_run writes the codes of n rows of one column, transposed, from element at on.
__device__ __forceinline__ void store_run(const Codes<Value, kRun>& c, void* codes, i64 at, int n) {
    constexpr int kBytes = Codes<Value, kRun>::kBytes, kUnit = Params::CodeUnit < kBytes ? Params::CodeUnit : kBytes;
    u8* out = (u8*)codes + Codes<Value, kRun>::byte(at);
    if (n == kRun && kUnit >= 4) {
        constexpr int kWords = kUnit < 4 ? 1 : kUnit / 4;
#pragma unroll
        for (int i = 0; i < kBytes / 4; i += kWords) {
            Unit<kWords * 4> u;
            u32* words = (u32*)&u;
#pragma unroll
            for (int j = 0; j < kWords; j++) words[j] = c.word[i + j];
            *(Unit<kWords * 4>*)(out + 4 * i) = u;
        }
        return;
    }
    const int bytes = kNarrow ? (n + 1) / 2 : n;
#pragma unroll
    for (int i = 0; i < kBytes; i++)
        if (i < bytes) out[i] = (u8)(c.word[i / 4] >> (i % 4 * 8) & (kNarrow && 2 * i + 1 == n ? 15 : 255));
}

// products multiplies row r of four columns, the first of which is an element of x, by their blocks' scales.
__device__ __forceinline__ void products(float (&v)[kFour], const Columns& x, int r, const Scale (&s)[kFour], i64 element, const Draw& draw) {
#pragma unroll
    for (int i = 0; i < kFour; i++) v[i] = __fmul_rn(x.row[r].get(i), s[i].s);
    if constexpr (Params::Random && kVector) { // element is a multiple of 4
        const uint4 four = draw.four((u64)element / 4);
        v[0] = rounded_at_random(v[0], four.x);
        v[1] = rounded_at_random(v[1], four.y);
        v[2] = rounded_at_random(v[2], four.z);
        v[3] = rounded_at_random(v[3], four.w);
    } else if constexpr (Params::Random) {
#pragma unroll
        for (int i = 0; i < kFour; i++) v[i] = rounded_at_random(v[i], draw.word((u64)element + i));
    }
}

// column_codes makes the codes of a thread's four columns.
__device__ __forceinline__ void column_codes(Codes<Value, kRun> (&run)[kFour], const Columns& x, const Scale (&s)[kFour], bool odd, i64 element,
                                             int cols, const Draw& draw) {
    if constexpr (kNarrow && (kShort || kPaired)) {
        if (!odd) {
#pragma unroll
            for (int w = 0; w < kQuad; w++) {
                const auto scale = short_scale(s[2 * w], s[2 * w + 1]);
                u32 two[kRun / 2];
#pragma unroll
                for (int r = 0; r < kRun; r += 2) two[r / 2] = two_pairs(scale.codes(x.row[r].word[w]), scale.codes(x.row[r + 1].word[w]));
#pragma unroll
                for (int k = 0; k < kRun / 8; k++) {
                    run[2 * w].word[k] = bytes_of(two[4 * k], two[4 * k + 1], two[4 * k + 2], two[4 * k + 3], 1);
                    run[2 * w + 1].word[k] = bytes_of(two[4 * k], two[4 * k + 1], two[4 * k + 2], two[4 * k + 3], 3);
                }
            }
            return;
        }
    }
    constexpr int kCodes = Codes<Value, kRun>::kPerWord;
#pragma unroll
    for (int k = 0; k < kRun / kCodes; k++) {
        float v[kFour][kCodes];
#pragma unroll
        for (int r = 0; r < kCodes; r++) {
            float four[kFour];
            products(four, x, k * kCodes + r, s, element + (i64)(k * kCodes + r) * cols, draw);
#pragma unroll
            for (int i = 0; i < kFour; i++) v[i][r] = four[i];
        }
#pragma unroll
        for (int i = 0; i < kFour; i++) {
            Codes<Value, kCodes> word;
            encode_products<kCodes>(word, v[i], odd);
            run[i].word[k] = word.word[0];
        }
    }
}

// columns_of_tile makes the column blocks of a tile from its copy, and leaves the factors in sf.
__device__ __forceinline__ void columns_of_tile(const QuantTile& t, i64 rows, int cols, float norm, void* codes, const Draw& draw, const u8* copy,
                                                u8* sf) {
    const ColumnPlace p;
    const int first = p.run * kRun, block = first / kVec;
    const int have = clamp_of(t.cols - p.c, 0, kFour), n = clamp_of(t.last - first, 0, kRun); // columns and rows that are there
    Columns x;
    x.load(copy, p);
    u32 top[kQuad] = {};
#pragma unroll
    for (int r = 0; r < kRun; r++) {
#pragma unroll
        for (int w = 0; w < kQuad; w++) top[w] = larger_of<X>(top[w], x.row[r].word[w]);
    }
    if constexpr (kVec > kRun) {
#pragma unroll
        for (int w = 0; w < kQuad; w++) top[w] = larger_of<X>(top[w], __shfl_xor_sync(kFullWarp, top[w], ColumnPlace::kPartner));
    }
    const bool full = kVector && t.last == kSide && t.cols == kSide;
    u8* const to_sf = sf + block / kFactorCols * kFactorBytes + factor_byte(p.c, block);
    Scale s[kFour];
    bool odd = false;
#pragma unroll
    for (int i = 0; i < kFour; i++) {
        s[i] = scale_of(top_of<X>(top[i / kPerWord], i % kPerWord), norm);
        odd = odd || s[i].odd;
    }
    if (kVec == kRun || p.run % 2 == 0) {
#pragma unroll
        for (int i = 0; i < kFour; i++) to_sf[factor_byte(i, 0)] = full || (i < have && block * kVec < t.last) ? (u8)s[i].code : 0;
    }
    if (!codes || have == 0 || n == 0) return;
    if constexpr (kLimited) {
        if (odd) {
            odd = false;
#pragma unroll
            for (int i = 0; i < kFour; i++) {
                settle(s[i], top_of<X>(top[i / kPerWord], i % kPerWord));
                odd = odd || s[i].odd;
            }
            if (odd) {
#pragma unroll
                for (int i = 0; i < kFour; i++) s[i].s = long_scale(top_of<X>(top[i / kPerWord], i % kPerWord));
            }
#pragma unroll
            for (int w = 0; w < kQuad; w++) {
#pragma unroll
                for (int r = 0; r < kRun; r++) x.row[r].word[w] = limited(x.row[r].word[w], s[2 * w].limit | s[2 * w + 1].limit << 16);
            }
        }
    }
    const i64 element = (t.batch * rows + t.row + first) * cols + t.col + p.c;                    // in the order of x
    const i64 place = ((i64)t.batch * cols + t.col + p.c) * rows + t.row + first;                 // transposed
    Codes<Value, kRun> run[kFour];
    column_codes(run, x, s, odd, element, cols, draw);
    if constexpr (Params::Transpose) {
#pragma unroll
        for (int i = 0; i < kFour; i++)
            if (full || i < have) store_run(run[i], codes, place + i * rows, full ? kRun : n);
    } else {
#pragma unroll
        for (int r = 0; r < kRun; r++) {
            if (r >= n) continue;
            Codes<Value, kFour> c;
            c.word[0] = 0;
#pragma unroll
            for (int i = 0; i < kFour; i++) c.word[0] |= run[i].code(r) << (i * code_bits<Value>());
            if constexpr (kVector) {
                c.store(codes, element + (i64)r * cols);
            } else {
                u8* out = (u8*)codes + Codes<Value, kFour>::byte(element + (i64)r * cols);
#pragma unroll
                for (int b = 0; b < Codes<Value, kFour>::kBytes; b++)
                    if (b * 8 < have * code_bits<Value>()) out[b] = (u8)(c.word[0] >> (8 * b));
            }
        }
    }
}
