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
        const u8* from = copy + p.run * kCopyRun + p.c * sizeof(X);
#pragma unroll
        for (int r = 0; r < kRun; r++) row[r].load(from, r * kSide);
    }
};

// products multiplies row r of four columns, the first of which is an element of x, by their blocks' scales.
__device__ __forceinline__ void products(float (&v)[kFour], const Columns& x, int r, const float (&s)[kFour], i64 element, const Draw& draw) {
#pragma unroll
    for (int i = 0; i < kFour; i++) v[i] = __fmul_rn(x.row[r].get(i), s[i]);
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

// short_column_codes makes the codes of a thread's four columns of two scales, of a word each.
template <class S> __device__ __forceinline__ void short_column_codes(Codes<Value, kRun> (&run)[kFour], const Columns& x, const S (&scale)[2]) {
#pragma unroll
    for (int w = 0; w < 2; w++) {
        u32 two[kRun / 2];
#pragma unroll
        for (int r = 0; r < kRun; r += 2) two[r / 2] = two_pairs(scale[w].codes(x.row[r].word[w]), scale[w].codes(x.row[r + 1].word[w]));
#pragma unroll
        for (int k = 0; k < kRun / 8; k++) {
            run[2 * w].word[k] = bytes_of(two[4 * k], two[4 * k + 1], two[4 * k + 2], two[4 * k + 3], 1);
            run[2 * w + 1].word[k] = bytes_of(two[4 * k], two[4 * k + 1], two[4 * k + 2], two[4 * k + 3], 3);
        }
    }
}

// column_codes is the long way.
__device__ __forceinline__ void column_codes(Codes<Value, kRun> (&run)[kFour], const Columns& x, const float (&s)[kFour], bool odd, i64 element,
                                             int cols, const Draw& draw) {
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
    u32 factors = 0; // a byte each
    float s[kFour];
    u32 brief[kFour];
    bool odd = false;
    if constexpr (kLimited) {
        factors = factors_of<X>(top[0], top[1]);
        odd = any_extreme(factors);
    } else {
#pragma unroll
        for (int i = 0; i < kFour; i++) {
            const Scale of = scale_of(top_of<X>(top[i / kPerWord], i % kPerWord), norm);
            factors |= of.code << 8 * i;
            s[i] = of.s;
            brief[i] = of.brief;
            odd = odd || of.odd;
        }
    }
    if (kSharers == 1 || p.run % 2 == 0) {
        u32 kept = factors;
        if (!full) kept = block * kVec >= t.last || have == 0 ? 0 : factors & 0xffffffffu >> (4 - have) * 8;
#pragma unroll
        for (int i = 0; i < kFour; i++) to_sf[factor_byte(i, 0)] = (u8)(kept >> 8 * i);
    }
    if (!codes || have == 0 || n == 0) return;
    u32 biased = factors + QuadScale<e4m3>::kBias * 0x01010101u;
    if constexpr (kLimited) {
        if (odd) {
            odd = false;
            biased = 0;
            u32 limit[kFour];
#pragma unroll
            for (int i = 0; i < kFour; i++) {
                const u32 most = top_of<X>(top[i / kPerWord], i % kPerWord);
                const Settled of = settle(factors >> 8 * i & 0xff, most);
                biased |= of.biased << 8 * i;
                limit[i] = of.limit;
                odd = odd || of.odd;
            }
            if (odd) {
#pragma unroll
                for (int i = 0; i < kFour; i++) s[i] = long_scale(top_of<X>(top[i / kPerWord], i % kPerWord));
            }
#pragma unroll
            for (int w = 0; w < kQuad; w++) {
#pragma unroll
                for (int r = 0; r < kRun; r++) x.row[r].word[w] = limited(x.row[r].word[w], limit[2 * w] | limit[2 * w + 1] << 16);
            }
        }
    }
    const i64 element = t.origin + (i64)first * cols + p.c, place = t.turned + p.c * rows + first; // in the order of x, and transposed
    Codes<Value, kRun> run[kFour];
    if (kNarrow && (kShort || kPaired) && !odd) {
        if constexpr (kLimited) {
            const auto quad = QuadScale<e4m3>::of(biased);
            short_column_codes(run, x, {quad.at(0, 1), quad.at(2, 3)});
        } else if constexpr (kNarrow && kPaired) {
            const QuadScale<e8m0> quad{brief[0], brief[1], brief[2], brief[3]};
            short_column_codes(run, x, {quad.at(0, 1), quad.at(2, 3)});
        } else if constexpr (kNarrow && kShort) {
            short_column_codes(run, x, {ShortPair<X>{s[0], s[1]}, ShortPair<X>{s[2], s[3]}});
        }
    } else {
        column_codes(run, x, s, odd, element, cols, draw);
    }
    if constexpr (Params::Transpose) {
        u8* const to = (u8*)codes + Codes<Value, kRun>::byte(place);
        const i64 pitch = Codes<Value, kRun>::byte(rows); // in fp4 rows are even
        if (full) {
#pragma unroll
            for (int i = 0; i < kFour; i++) store_codes<Params::CodeUnit>(run[i], to + i * pitch, kRun);
        } else {
#pragma unroll
            for (int i = 0; i < kFour; i++)
                if (i < have) store_codes<Params::CodeUnit>(run[i], to + i * pitch, n);
        }
    } else {
        u8* const to = (u8*)codes + Codes<Value, kFour>::byte(element);
        const i64 pitch = Codes<Value, kFour>::byte(cols); // in fp4 columns are even
#pragma unroll
        for (int r = 0; r < kRun; r++) {
            if (r >= n) continue;
            Codes<Value, kFour> c;
            c.word[0] = 0;
#pragma unroll
            for (int i = 0; i < kFour; i++) c.word[0] |= run[i].code(r) << (i * code_bits<Value>());
            if constexpr (kVector) {
                c.store(to + r * pitch, 0);
            } else {
                u8* const out = to + r * pitch;
#pragma unroll
                for (int b = 0; b < Codes<Value, kFour>::kBytes; b++)
                    if (b * 8 < have * code_bits<Value>()) out[b] = (u8)(c.word[0] >> (8 * b));
            }
        }
    }
}
