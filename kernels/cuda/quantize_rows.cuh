// The row blocks of a tile of quantize.cuh. Sixteen threads hold a row, eight columns each, rows 16 apart; the 2 or 4 threads
// that share a block make the factors of different rows, and hand them out. The factors change places among the threads of a
// row so that 16 bytes lie together.
//
// Whole tiles whose products are all short take the short way, without a question for each row.
#pragma once
#include "quantize_block.cuh"

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

// store_eight stores the first n codes; in fp4 n is even.
__device__ __forceinline__ void store_eight(const Codes<Value, 8>& c, u8* out, int n) {
    if constexpr (kVector) {
        if (n > 0) c.store(out, 0);
    } else {
        const int bytes = kNarrow ? n / 2 : n;
#pragma unroll
        for (int i = 0; i < Codes<Value, 8>::kBytes; i++)
            if (i < bytes) out[i] = (u8)(c.word[i / 4] >> (i % 4 * 8));
    }
}

// store_row_factors writes a thread's share of row factors: codes are those of rows r, r+32, r+64 and r+96, a byte each, and of
// the rows kLines further on, of the block that it shares, of which threads that share it have one row each. Four threads
// join theirs.
__device__ __forceinline__ void store_row_factors(const u32 (&codes)[2], int r, int line, int subs, u8* sf) {
    const int part = line % kSharers, factor = line / kSharers, c = factor % kFactorCols;
    const u32 pick = (0x4444u & ~(15u << 4 * c)) | (u32)part << 4 * c; // byte part to byte c, zeros elsewhere
    u32 word[2][4 / kSharers];
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int j = 0; j < 4 / kSharers; j++) {
            u32 w = __byte_perm(codes[i], 0, pick + ((u32)(j * kSharers) << 4 * c));
            w |= __shfl_xor_sync(kFullWarp, w, kSharers);
            word[i][j] = w | __shfl_xor_sync(kFullWarp, w, 2 * kSharers);
        }
    }
    if (c != 0 || factor / kFactorCols >= subs) return;
    u8* const to = sf + factor / kFactorCols * kFactorBytes + factor_byte(r + 32 * part, 0);
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int j = 0; j < 4 / kSharers; j++) *(u32*)(to + factor_byte(i * kLines + 32 * j * kSharers, 0)) = word[i][j];
    }
}

// split halves the maxima of two words among two threads: the thread keeps one of both, the other's with its own.
__device__ __forceinline__ u32 split(u32 even, u32 odd, int lanes) {
    const bool second = threadIdx.x & lanes;
    const u32 other = __shfl_xor_sync(kFullWarp, second ? even : odd, lanes);
    return larger_of<X>(second ? odd : even, other);
}

// rows_of_tile makes the row blocks of a tile, from its copy if there is one. The maxima of a block's threads come in words
// of kPerWord turns, four of them, of which each of the threads gets its share and makes the factors.
__device__ __forceinline__ void rows_of_tile(const QuantTile& t, const void* x, i64 rows, int cols, float norm, const Outputs& out, const Draw& draw,
                                             const u8* copy) {
    constexpr int kOwn = 4 / kSharers; // words of maxima that a thread gets
    const int line = threadIdx.x % kLine, first = threadIdx.x / kLine, n = clamp_of(t.cols - line * 8, 0, 8);
    const int part = line % kSharers, lane = threadIdx.x % 32;
    const i64 at = (t.batch * rows + t.row + first) * cols + t.col + line * 8;
    const i64 pitch = (i64)cols * kLines; // elements from a turn to the next
    const X* const from = (const X*)x + at;
    const bool full = kVector && t.last == kSide && t.cols == kSide;
    u32 codes[2] = {};
#pragma unroll
    for (int group = 0; group < kTurns / kHeld; group++) {
        // The turn of held pack i: those of a word of maxima are of the same 32 rows, the next word 32 rows on.
        const auto turn = [&](int i) { return kPerWord == 2 ? i : 2 * i + group; };
        Pack<X, 8> held[kHeld];
        if (Params::HasCol) {
#pragma unroll
            for (int i = 0; i < kHeld; i++) held[i].load(copy + turned_at(unit_at(first, line), turn(i)), 0);
        } else if (full && t.mid == kSide) {
#pragma unroll
            for (int i = 0; i < kHeld; i++) held[i].load(from, turn(i) * pitch);
        } else {
#pragma unroll
            for (int i = 0; i < kHeld; i++) load_eight(held[i], from, turn(i) * pitch, first + turn(i) * kLines < t.mid ? n : 0);
        }
        u32 top[kHeld], word[4];
#pragma unroll
        for (int i = 0; i < kHeld; i++) {
            top[i] = 0;
#pragma unroll
            for (int w = 0; w < Pack<X, 8>::kBytes / 4; w++) top[i] = larger_of<X>(top[i], held[i].word[w]);
        }
#pragma unroll
        for (int k = 0; k < 4; k++) {
            if constexpr (kPerWord == 2)
                word[k] = larger_of<X>(__byte_perm(top[2 * k], top[2 * k + 1], 0x5410), __byte_perm(top[2 * k], top[2 * k + 1], 0x7632));
            else
                word[k] = top[k];
        }
        u32 own[kOwn]; // words part, and part+2
        own[0] = split(word[0], word[1], 1);
        const u32 next = split(word[2], word[3], 1);
        if constexpr (kSharers == 4) own[0] = split(own[0], next, 2);
        else own[1] = next;
        Scale mine[kOwn][kPerWord];
        bool any = false;
#pragma unroll
        for (int k = 0; k < kOwn; k++) {
#pragma unroll
            for (int h = 0; h < kPerWord; h++) {
                mine[k][h] = scale_of(top_of<X>(own[k], h), norm);
                any = any || mine[k][h].odd;
                codes[kPerWord == 2 ? h : group] |= mine[k][h].code << ((part + kSharers * k) * 8);
            }
        }
        if (!out.row) continue;
        bool any_odd = __any_sync(kFullWarp, any);
        const auto of_turn = [&](int i, auto field) { // from the thread that made it
            const int k = i / kPerWord;
            return __shfl_sync(kFullWarp, mine[k / kSharers][i % kPerWord].*field, lane - part + k % kSharers);
        };
        if constexpr (kLimited) {
            if (any_odd || !full) {
                any = false;
#pragma unroll
                for (int k = 0; k < kOwn; k++) {
#pragma unroll
                    for (int h = 0; h < kPerWord; h++) {
                        settle(mine[k][h], top_of<X>(own[k], h));
                        mine[k][h].s = long_scale(top_of<X>(own[k], h));
                        any = any || mine[k][h].odd;
                    }
                }
                any_odd = __any_sync(kFullWarp, any);
#pragma unroll
                for (int i = 0; i < kHeld; i++) {
                    const u32 limit = of_turn(i, &Scale::limit);
#pragma unroll
                    for (int w = 0; w < 4; w++) held[i].word[w] = limited(held[i].word[w], limit * 0x10001);
                }
            }
        }
        u8* const to = (u8*)out.row + Codes<Value, 8>::byte(at);
        const i64 to_pitch = Codes<Value, 8>::byte(pitch); // pitch is a multiple of 16
        if constexpr (kShort || kPaired) {
            if (!any_odd && full) {
#pragma unroll
                for (int i = 0; i < kHeld; i++) {
                    Scale s{};
                    if constexpr (kPaired) s.brief = of_turn(i, &Scale::brief);
                    else s.s = of_turn(i, &Scale::s);
                    Codes<Value, 8> c;
                    if constexpr (kNarrow) {
                        const auto scale = short_scale(s, s);
                        u32 pair[4];
#pragma unroll
                        for (int w = 0; w < 4; w++) pair[w] = scale.codes(held[i].word[w]);
                        c.word[0] = four_pairs(pair);
                    } else {
                        row_codes(c, held[i], 0, n, s.s, false, draw);
                    }
                    c.store(to + turn(i) * to_pitch, 0);
                }
                continue;
            }
        }
        constexpr int kUnroll = kShort || kPaired ? 1 : kHeld; // the short way is short
#pragma unroll kUnroll
        for (int i = 0; i < kHeld; i++) {
            Pack<X, 8> p;
            float s = 0;
            bool is_odd = false;
#pragma unroll
            for (int j = 0; j < kHeld; j++) {
                if (i != j) continue;
                p = held[j];
                s = of_turn(j, &Scale::s);
                is_odd = of_turn(j, &Scale::odd);
            }
            Codes<Value, 8> c;
            row_codes(c, p, at + turn(i) * pitch, n, s, is_odd, draw);
            store_eight(c, to + turn(i) * to_pitch, first + turn(i) * kLines < t.last ? n : 0);
        }
    }
    if (!out.row_sf) return;
    if (!full) { // factors of what is not there
        const bool inside = t.col + line * 8 / kVec * kVec < cols;
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (!inside || first + i * kLines >= t.last) codes[i % 2] &= ~(0xffu << (i / 2 * 8));
    }
    store_row_factors(codes, first, line, t.row_subs, (u8*)out.row_sf + (i64)t.row_sf * kFactorBytes);
}
