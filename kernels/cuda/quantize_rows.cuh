// The row blocks of a tile of quantize.cuh, from its copy in shared memory. Eight threads hold a row, sixteen columns each, and
// four rows 32 apart. Of the two threads that share a block of 32 each makes the factors of half the rows, and hands them out.
// The factors change places among the threads of a row so that 16 bytes lie together.
//
// Whole tiles whose products are all short take the short way, without a question for each row.
#pragma once
#include "quantize_block.cuh"

constexpr int kAcross = kSide / kRun, kDown = kThreads / kAcross; // threads of a row, and rows that a thread block takes at a time
constexpr int kRows = kSide / kDown;                              // rows of a thread
constexpr int kHeldRows = sizeof(X) == 2 ? kRows : kRows / 2;     // those that are in registers at once
static_assert(kDown == 32, "a block of factors has those of rows 32 apart beside each other");

// RowPlace is where a thread stands in a tile when rows are made: rows first, first+32 and so on, sixteen columns from
// kRun*unit on. Eight lanes have four units of two rows 16 apart: different banks.
struct RowPlace {
    int unit, row, run; // row of kRun, of run 0 or 1
    int part;           // which of the threads that share a block
    __device__ __forceinline__ RowPlace() {
        const int thread = threadIdx.x;
        unit = thread % 4 + thread / 8 % 2 * 4;
        row = thread / 16;
        run = thread / 4 % 2;
        part = thread % kSharers;
    }
    __device__ __forceinline__ int first() const { return run * kRun + row; }
    // from is where the columns of row first are in the copy; rows further on are kDownBytes apart.
    static constexpr int kDownBytes = kDown / kRun * kCopyRun;
    __device__ __forceinline__ int from() const { return run * kCopyRun + row * kCopyRow + unit * kRun * (int)sizeof(X); }
};

// Sixteen is what a thread holds of a row.
struct Sixteen {
    Pack<X, 8> half[2];

    __device__ __forceinline__ void load(const u8* from) {
#pragma unroll
        for (int h = 0; h < 2; h++) half[h].load(from, h * 8);
    }
    __device__ __forceinline__ u32 top() const { // the largest magnitude, of both elements of words
        constexpr int kWords = Pack<X, 8>::kBytes / 4;
        u32 top = half[0].word[0];
#pragma unroll
        for (int w = 1; w < 2 * kWords; w++) top = larger_of<X>(top, half[w / kWords].word[w % kWords]);
        return top;
    }
    __device__ __forceinline__ void limit(u32 limits) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
#pragma unroll
            for (int w = 0; w < Pack<X, 8>::kBytes / 4; w++) half[h].word[w] = limited(half[h].word[w], limits);
        }
    }
};

// row_codes makes the codes of eight columns from at on, n of which are there.
__device__ __forceinline__ void row_codes(Codes<Value, 8>& c, const Pack<X, 8>& p, i64 at, int n, float s, bool odd, const Draw& draw) {
    float v[8];
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = __fmul_rn(p.get(i), s);
    if constexpr (Params::Random && kVector) { // at is a multiple of 8
#pragma unroll
        for (int i = 0; i < 8; i += 4) {
            const uint4 four = draw.four((u64)(at + i) / 4);
            v[i] = rounded_at_random(v[i], four.x);
            v[i + 1] = rounded_at_random(v[i + 1], four.y);
            v[i + 2] = rounded_at_random(v[i + 2], four.z);
            v[i + 3] = rounded_at_random(v[i + 3], four.w);
        }
    } else if constexpr (Params::Random) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (i < n) v[i] = rounded_at_random(v[i], draw.word((u64)(at + i)));
    }
    encode_products<8>(c, v, odd);
}

// long_row_codes makes those of sixteen the long way.
__device__ __forceinline__ void long_row_codes(Codes<Value, kRun>& c, const Sixteen& x, i64 at, int n, float s, bool odd, const Draw& draw) {
    constexpr int kWords = Codes<Value, 8>::kWords;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        Codes<Value, 8> eight;
        row_codes(eight, x.half[h], at + 8 * h, n - 8 * h, s, odd, draw);
#pragma unroll
        for (int w = 0; w < kWords; w++) c.word[h * kWords + w] = eight.word[w];
    }
}

// short_row_codes makes those of sixteen in fp4 the short way.
template <class S> __device__ __forceinline__ void short_row_codes(Codes<Value, kRun>& c, const Sixteen& x, const S& scale) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        u32 pair[4];
#pragma unroll
        for (int w = 0; w < 4; w++) pair[w] = scale.codes(x.half[h].word[w]);
        c.word[h] = four_pairs(pair);
    }
}

// store_row_factors writes a thread's row factors, a byte each: those of its rows; or, where two threads share a block, of the
// first two of them or the others. Four threads join theirs.
__device__ __forceinline__ void store_row_factors(u32 codes, const RowPlace& p, int subs, u8* sf) {
    constexpr int kNext = kSharers == 1 ? 1 : 2, kFar = kSharers == 1 ? 2 : 8; // lanes to the next factor, and to the one after that
    const bool next = threadIdx.x & kNext, far = threadIdx.x & kFar;
    u32 other = __shfl_xor_sync(kFullWarp, codes, kNext);
    const u32 two = __byte_perm(codes, other, next ? 0x3715 : 0x6240); // of rows 0 and 2, or 1 and 3
    other = __shfl_xor_sync(kFullWarp, two, kFar);
    const u32 four = __byte_perm(two, other, far && kSharers == 1 ? 0x3276 : 0x5410);
    const int row = kSharers == 1 ? threadIdx.x % 4 : threadIdx.x / 2 % 2 + 2 * p.part, sub = kSharers == 1 ? threadIdx.x / 8 % 2 : 0;
    if ((kSharers == 2 && far) || sub >= subs) return;
    *(u32*)(sf + sub * kFactorBytes + (p.first() * kRows + row) * kFactorCols) = four; // factor_byte of row first+32*row
}

// split halves the maxima of two words among two threads: the thread keeps one of both, the other's with its own.
__device__ __forceinline__ u32 split(u32 even, u32 odd, int lanes) {
    const bool second = threadIdx.x & lanes;
    const u32 other = __shfl_xor_sync(kFullWarp, second ? even : odd, lanes);
    return larger_of<X>(second ? odd : even, other);
}

// rows_of_tile makes the row blocks of a tile.
__device__ __forceinline__ void rows_of_tile(const QuantTile& t, int cols, float norm, const Outputs& out, const Draw& draw, const u8* copy) {
    constexpr int kMade = kHeldRows / kSharers; // factors that a thread makes at a time
    constexpr int kOwn = 2 / kSharers;          // words of maxima for them
    const RowPlace p;
    const int n = clamp_of(t.cols - p.unit * kRun, 0, kRun);
    const i64 at = t.origin + (i64)p.first() * cols + p.unit * kRun;
    const i64 pitch = (i64)cols * kDown; // elements from a row to the next
    const u8* const from = copy + p.from();
    const bool full = kVector && t.last == kSide && t.cols == kSide;
    u32 codes = 0;
#pragma unroll
    for (int group = 0; group < kRows / kHeldRows; group++) {
        const auto row = [&](int i) { return kHeldRows == kRows ? i : 2 * i + group; }; // that of held i
        Sixteen held[kHeldRows];
#pragma unroll
        for (int i = 0; i < kHeldRows; i++) held[i].load(from + row(i) * RowPlace::kDownBytes);
        u32 word[2], own[kOwn]; // maxima
#pragma unroll
        for (int k = 0; k < 2; k++) {
            if constexpr (kPerWord == 2) {
                const u32 a = held[2 * k].top(), b = held[2 * k + 1].top();
                word[k] = larger_of<X>(__byte_perm(a, b, 0x5410), __byte_perm(a, b, 0x7632));
            } else {
                word[k] = held[k].top();
            }
        }
        if constexpr (kSharers == 2) {
            own[0] = split(word[0], word[1], 1);
        } else {
            own[0] = word[0];
            own[1] = word[1];
        }
        Scale mine[kMade];
        bool any = false;
        if constexpr (kLimited) {
            codes = factors_of<X>(own[0], own[1]);
            any = any_extreme(codes);
        } else {
#pragma unroll
            for (int i = 0; i < kMade; i++) {
                mine[i] = scale_of(top_of<X>(own[i / kPerWord], i % kPerWord), norm);
                any = any || mine[i].odd;
                codes |= mine[i].code << (kHeldRows == kRows ? i : row(i) % (kRows / kSharers)) * 8;
            }
        }
        if (!out.row) continue;
        bool any_odd = __any_sync(kFullWarp, any);
        const auto of_row = [&](int i, auto field) { // from the thread that made it
            if constexpr (kSharers == 1) return mine[i].*field;
            else return __shfl_sync(kFullWarp, mine[i % kMade].*field, threadIdx.x % 32 - p.part + i / kMade);
        };
        u32 biased = codes + QuadScale<e4m3>::kBias * 0x01010101u;
        if constexpr (kLimited) {
            if (any_odd) {
                any = false;
                biased = 0;
#pragma unroll
                for (int i = 0; i < kRows; i++) {
                    const Settled of = settle(codes >> 8 * i & 0xff, top_of<X>(own[i / 2], i % 2));
                    biased |= of.biased << 8 * i;
                    held[i].limit(of.limit * 0x10001);
                    any = any || of.odd;
                }
                any_odd = __any_sync(kFullWarp, any);
            }
        }
        u8* const to = (u8*)out.row + Codes<Value, kRun>::byte(at);
        const i64 to_pitch = Codes<Value, kRun>::byte(pitch); // pitch is a multiple of 32
        if constexpr (kShort || kPaired) {
            if (!any_odd && full) {
                u32 brief[kHeldRows];
                if constexpr (kNarrow && kPaired && !kLimited) {
#pragma unroll
                    for (int i = 0; i < kHeldRows; i++) brief[i] = of_row(i, &Scale::brief);
                }
#pragma unroll
                for (int i = 0; i < kHeldRows; i++) {
                    Codes<Value, kRun> c;
                    if constexpr (kLimited) {
                        short_row_codes(c, held[i], QuadScale<e4m3>::of(biased).at(i, i));
                    } else if constexpr (kPaired) {
                        short_row_codes(c, held[i], QuadScale<e8m0>{brief[0], brief[1], brief[2], brief[3]}.at(i, i));
                    } else {
                        const float s = of_row(i, &Scale::s);
                        if constexpr (kNarrow) short_row_codes(c, held[i], ShortPair<X>{s, s});
                        else long_row_codes(c, held[i], 0, kRun, s, false, draw);
                    }
                    store_codes<Params::RowUnit>(c, to + row(i) * to_pitch, kRun);
                }
                continue;
            }
        }
        constexpr bool kAgain = kShort || kPaired; // the short way is short
        constexpr int kUnroll = kAgain ? 1 : kHeldRows;
#pragma unroll kUnroll
        for (int i = 0; i < kHeldRows; i++) {
            float s = 0;
            Sixteen x;
            if constexpr (kAgain) x.load(from + row(i) * RowPlace::kDownBytes);
#pragma unroll
            for (int j = 0; j < kHeldRows; j++) {
                if (i != j) continue;
                if constexpr (kLimited) s = long_scale(top_of<X>(own[j / 2], j % 2));
                else s = of_row(j, &Scale::s);
                if constexpr (!kAgain) x = held[j];
            }
            Codes<Value, kRun> c;
            long_row_codes(c, x, at + row(i) * pitch, n, s, any_odd, draw);
            store_codes<Params::RowUnit>(c, to + row(i) * to_pitch, p.first() + row(i) * kDown < t.last ? n : 0);
        }
    }
    if (!out.row_sf) return;
    if (!full) { // factors of what is not there
        const bool inside = (p.unit - p.part) * kRun < t.cols;
#pragma unroll
        for (int i = 0; i < kRows / kSharers; i++)
            if (!inside || p.first() + (p.part * (kRows / kSharers) + i) * kDown >= t.last) codes &= ~(0xffu << 8 * i);
    }
    store_row_factors(codes, p, t.row_subs(), (u8*)out.row_sf + (i64)t.row_sf * kFactorBytes);
}
