// Quantizes matrices block by block, along rows, columns or both, and reads them once (contracts, section 7; nodes/quantize.go).
//
// A tile of quant_tiles.cuh at a time. For row blocks sixteen threads hold a row, eight columns each, rows 16 apart; the 2 or 4
// threads that share a block make the factors of different rows, and hand them out. For column blocks a thread takes four
// columns of 16 rows. Row factors change places among the threads of a row so that 16 bytes lie together, column factors
// meet in shared memory.
//
// With columns, tiles go through shared memory, in the format of x, and the next one is on its way while a tile is worked
// at. A row's units of 16 bytes change places there, by the number of its 16 rows, so that no bank is asked twice by
// threads of different rows.
//
// Only blocks whose factor or norm is not finite look for products that are NaN.
//
// Launch: 256 threads, Params::PerUnit blocks a multiprocessor; the grid strides over tiles. Dynamic shared memory with
// columns: Params::Stages tiles of x, then two tiles' column factors.
//
// Params: XType, ValueType, FactorType, Vec, Groups (0: none), Align, HasRow, HasCol, Transpose, Discrete, Norm, NormEach, Unit, Random,
// Vector, CodeUnit (bytes of a store of transposed codes), PerUnit, Stages (tiles in shared memory, 1 or 2).
#include "philox.cuh"
#include "quant_tiles.cuh"

using Value = Params::ValueType;
using Factor = Params::FactorType;

constexpr int kSharers = kVec / 8;      // threads that share a row block
constexpr int kRun = 16, kFour = 4;     // rows and columns of a thread that makes column blocks
constexpr int kPerWord = 4 / sizeof(X); // elements of a word
constexpr int kQuad = kFour / kPerWord; // words of four columns
constexpr bool kNarrow = code_bits<Value>() == 4;
constexpr int kTileBytes = kSide * kSide * sizeof(X), kTileFactors = kSub * kFactorBytes;
static_assert(kLines == 16, "rows of two turns are the 32 that a block of factors counts first");
static_assert(kVec == kRun || kVec == 2 * kRun);

// is_e8m0 and is_bf16 are for formats that only their names tell apart.
template <class T> constexpr bool is_e8m0 = false;
template <> constexpr bool is_e8m0<e8m0> = true;
template <class T> constexpr bool is_bf16 = false;
template <> constexpr bool is_bf16<bf16> = true;

// kShort: products are numbers of 16 bits times powers of two, at most the largest value, so that short ways to encode take
// them. A block's largest cannot exceed it either, for the factor rounds up and the nearest larger number of 16 bits is
// further off than the products round. (What is not finite is not short.)
constexpr bool kPlain = sizeof(X) == 2 && Params::Norm == kNormOne && !Params::Unit && !Params::Random;
constexpr bool kShort = kPlain && is_e8m0<Factor>;
// kPaired: PairScale (block_scale.cuh) makes the codes. kLimited: it has to be kept from products that are too large.
constexpr bool kPaired = kPlain && kNarrow && is_bf16<X>;
constexpr bool kLimited = kPaired && !is_e8m0<Factor>;

struct Outputs {
    void *row, *row_sf, *col, *col_sf; // null: not wanted
};

// Largest is a running maximum of magnitudes: of the two elements of a word, or of one float. NaNs are above all; the signs
// of a maximum mean nothing.
template <class T> __device__ __forceinline__ u32 larger_of(u32 top, u32 word) {
    if constexpr (sizeof(T) == 4) return larger(top & ~kSign, word & ~kSign);
    if constexpr (ptx::kArch >= 860) return is_bf16<T> ? ptx::max_abs_bf16x2(top, word) : ptx::max_abs_f16x2(top, word);
    return __vmaxu2(top & 0x7fff7fffu, word & 0x7fff7fffu);
}
// top_of is element i of such a maximum, as bits of a float.
template <class T> __device__ __forceinline__ u32 top_of(u32 top, int i) {
    if constexpr (sizeof(T) == 4) return top & ~kSign;
    else return magnitude(i == 0 ? Pair<T>::low(top) : Pair<T>::high(top));
}

// Scale is what a block's elements are multiplied by. With kPaired, brief is for PairScale; with kLimited, limit is limit_of.
struct Scale {
    float s;
    u32 code; // the factor
    bool odd; // the long way is needed; with kLimited, settle before the scale is used
    u32 brief, limit;
};

// scale_of makes a block's factor of its largest magnitude.
__device__ __forceinline__ Scale scale_of(u32 top, float norm) {
    if constexpr (kLimited) {
        const u32 code = encode_magnitude(__fmul_rn(__uint_as_float(top), NarrowFormat<Value>::kRcp));
        return Scale{0, code, is_extreme(code), PairScale<Factor>::brief(code), 0x7fff};
    }
    const BlockScale b = block_scale<Value, Factor, Params::Unit>(top, norm);
    return Scale{b.s, b.code, b.odd, kPaired ? PairScale<Factor>::brief(b.code) : 0, 0x7fff};
}

// settle is the rest of it, for the long way, and for extreme factors.
__device__ __forceinline__ void settle(Scale& s, u32 top) {
    const BlockScale b = block_scale<Value, Factor>(top, 1.f);
    s.s = b.s;
    s.odd = b.odd || (top != 0 && b.code == 0);
    s.brief = PairScale<Factor>::brief(normal_factor(b.code));
    if (top != 0 && !s.odd) s.limit = limit_of(b.code);
}

// rounded_at_random replaces a number by one of its two neighbours in the format, the nearer the likelier. A NaN stays.
__device__ __forceinline__ float rounded_at_random(float v, u32 word) {
    using N = NarrowFormat<Value>;
    if (magnitude(v) > kInf) return v;
    const u32 mag = smaller(magnitude(v), N::kTop);
    const int top = (int)(mag >> 23) - 127, exp = top > N::kMinExp ? top : N::kMinExp;
    const float unit = __uint_as_float((u32)(exp - N::kMantissa + 127) << 23), units = __uint_as_float((u32)(N::kMantissa - exp + 127) << 23);
    const float steps = __fmul_rn(__uint_as_float(mag), units);
    float whole = (float)(int)steps;
    if (__fmul_rn((float)(word >> 8), 0x1p-24f) < __fsub_rn(steps, whole)) whole += 1.f;
    return __uint_as_float(__float_as_uint(__fmul_rn(whole, unit)) | (__float_as_uint(v) & kSign));
}

// encode_products makes codes of N numbers that are NaN only if odd.
template <int N> __device__ __forceinline__ void encode_products(Codes<Value, N>& c, const float (&v)[N], bool odd) {
    if constexpr (Params::Random) {
        c.put(v);
    } else {
        if constexpr (kShort && !kNarrow) {
            if (!odd) return c.template put_finite<true>(v);
        }
        c.put_finite(v);
        if (odd) c.mark_nans(v);
    }
}

// ShortPair makes the codes of two elements of a word, of blocks that are not odd.
template <class T> struct ShortPair {
    float a, b;
    __device__ __forceinline__ u32 codes(u32 word) const {
        const u32 mags = word & 0x7fff7fffu;
        return encode_f16_pair(ptx::pack_f16(__fmul_rn(Pair<T>::low(mags), a), __fmul_rn(Pair<T>::high(mags), b)), word);
    }
};
// short_scale is for the elements of a word.
__device__ __forceinline__ auto short_scale(const Scale& a, const Scale& b) {
    if constexpr (kPaired) return PairScale<Factor>::of(a.brief, b.brief);
    else return ShortPair<X>{a.s, b.s};
}

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

// unit_at is the place of eight columns of a row of the copy, in bytes; they are of one unit, or of two for float.
__device__ __forceinline__ int unit_at(int r, int unit) { return (r * kSide + ((unit ^ r / kRun) * 8)) * (int)sizeof(X); }
// turned_at is unit_at(first + turn * kLines, line) of at = unit_at(first, line), first below kLines.
__device__ __forceinline__ int turned_at(int at, int turn) { return (at ^ turn * 8 * (int)sizeof(X)) + turn * kLines * kSide * (int)sizeof(X); }

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

// fetch_tile begins to bring a tile to shared memory, zeros where x has nothing.
__device__ __forceinline__ void fetch_tile(const QuantTile& t, const void* x, i64 rows, int cols, u8* copy) {
    const int line = threadIdx.x % kLine, first = threadIdx.x / kLine, n = clamp_of(t.cols - line * 8, 0, 8);
    const char* from = (const char*)x + ((t.batch * rows + t.row + first) * cols + t.col + line * 8) * (i64)sizeof(X);
    if (kVector && t.mid == kSide && t.cols == kSide) { // without a question for each row
#pragma unroll
        for (int turn = 0; turn < kTurns; turn++) {
            const u32 to = ptx::shared_address(copy + turned_at(unit_at(first, line), turn));
#pragma unroll
            for (int b = 0; b < Pack<X, 8>::kBytes; b += 16) ptx::cp_async16(true, to + b, from + b);
            from += (i64)cols * kLines * (i64)sizeof(X);
        }
        return;
    }
#pragma unroll
    for (int turn = 0; turn < kTurns; turn++) {
        const int r = first + turn * kLines, have = r < t.mid ? n : 0;
        u8* const to = copy + turned_at(unit_at(first, line), turn);
        if constexpr (kVector) {
            // Where nothing is there, nothing is read either.
#pragma unroll
            for (int b = 0; b < Pack<X, 8>::kBytes; b += 16) ptx::cp_async16_zero(true, ptx::shared_address(to + b), from + b, have ? 16 : 0);
        } else {
            Pack<X, 8> p;
            load_eight(p, from, 0, have);
            p.store(to, 0);
        }
        from += (i64)cols * kLines * (i64)sizeof(X);
    }
}

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
__device__ __forceinline__ void column_codes(Codes<Value, kRun> (&run)[kFour], const Columns& x, const Scale (&s)[kFour], bool odd, i64 element, int cols,
                                             const Draw& draw) {
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
__device__ __forceinline__ void columns_of_tile(const QuantTile& t, i64 rows, int cols, float norm, void* codes, const Draw& draw, const u8* copy, u8* sf) {
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
    if constexpr (!Params::HasCol) {
        for (; tiles.has(p); tiles.advance(p, step)) {
            const QuantTile t = tiles.at(p);
            if (t.last > 0) rows_of_tile(t, x, rows, cols, norm_of(norms, t.owner), out, of_row, nullptr);
            else if (row_sf) store_blocks(row_sf, t.row_sf, t.row_subs, nullptr);
        }
        return;
    }
    if (!tiles.has(p)) return;
    u8* const copies = ptx::dynamic_shared();
    u8* const factors = copies + Params::Stages * kTileBytes;
    QuantTile t = tiles.at(p);
    u32 done_sf = 0; // the tile before: its column factors wait in shared memory for a barrier
    int done_subs = 0;
    fetch_tile(t, x, rows, cols, copies);
    ptx::cp_async_commit();
    for (int turn = 0;; turn++) {
        u8* const copy = copies + turn % Params::Stages * kTileBytes;
        ptx::cp_async_wait<0>();
        __syncthreads(); // the tile is there, and nobody looks at the one before
        store_blocks(col_sf, done_sf, done_subs, factors + (turn + 1) % 2 * kTileFactors);
        tiles.advance(p, step);
        const bool more = tiles.has(p);
        const QuantTile next = more ? tiles.at(p) : t;
        if (more && Params::Stages == 2) fetch_tile(next, x, rows, cols, copies + (turn + 1) % 2 * kTileBytes);
        ptx::cp_async_commit();
        done_subs = 0;
        if (t.last == 0) {
            if (row_sf) store_blocks(row_sf, t.row_sf, t.row_subs, nullptr);
            if (col_sf) store_blocks(col_sf, t.col_sf, t.col_subs, nullptr);
        } else {
            const float norm = norm_of(norms, t.owner);
            if constexpr (Params::HasRow) rows_of_tile(t, x, rows, cols, norm, out, of_row, copy);
            columns_of_tile(t, rows, cols, norm, col, of_col, copy, factors + turn % 2 * kTileFactors);
            done_sf = t.col_sf;
            done_subs = col_sf ? t.col_subs : 0;
        }
        if (!more) {
            __syncthreads();
            return store_blocks(col_sf, done_sf, done_subs, factors + turn % 2 * kTileFactors);
        }
        if constexpr (Params::Stages == 1) {
            __syncthreads();
            fetch_tile(next, x, rows, cols, copy);
            ptx::cp_async_commit();
        }
        t = next;
    }
}
