// Quantizes matrices block by block, along rows, columns or both, and reads them once (contracts, section 7; nodes/quantize.go).
//
// A tile of quant_tiles.cuh at a time: sixteen threads hold a row, eight columns each, rows 16 apart. Row blocks are made
// from these registers, by exchanges between the 2 or 4 threads that share one; column blocks from a copy in shared memory,
// in the format of x, where a thread takes two columns of 32 rows. Row factors change places among the threads of a row so
// that 16 bytes lie together, column factors meet in shared memory.
//
// Only blocks whose factor or norm is not finite look for products that are NaN.
//
// Launch: 256 threads, Params::PerUnit blocks a multiprocessor; the grid strides over tiles. Dynamic shared memory with
// columns: a tile of x, then the column factors.
//
// Params: XType, ValueType, FactorType, Vec, Groups (0: none), Align, HasRow, HasCol, Transpose, Discrete, Norm, NormEach, Unit, Random,
// Vector, CodeUnit (bytes of a store of transposed codes), PerUnit.
#include "philox.cuh"
#include "quant_tiles.cuh"

using Value = Params::ValueType;
using Factor = Params::FactorType;

constexpr int kSharers = kVec / 8;       // threads that share a row block
constexpr int kRun = 32;                                    // rows of a thread's two columns
constexpr bool kNarrow = code_bits<Value>() == 4;
static_assert(kLines == 16, "rows of two turns are the 32 that a block of factors counts first");

// is_e8m0 is for formats that only their names tell apart.
template <class T> constexpr bool is_e8m0 = false;
template <> constexpr bool is_e8m0<e8m0> = true;

// kShort: numbers of 16 bits times powers of two, at most the largest value: encode_short takes them. A block's largest
// cannot exceed it either, for the factor rounds up and the nearest larger number of 16 bits is further off than the
// products round. (What is not finite is not short.)
constexpr bool kShort = sizeof(X) == 2 && code_bits<Value>() == 8 && is_e8m0<Factor> && Params::Norm == kNormOne && !Params::Unit && !Params::Random;

struct Outputs {
    void *row, *row_sf, *col, *col_sf; // null: not wanted
};

// Largest is a running maximum of magnitudes: of the two elements of a word, or of one float.
template <class T> __device__ __forceinline__ u32 larger_of(u32 top, u32 word) {
    if constexpr (sizeof(T) == 2) return __vmaxu2(top, word & 0x7fff7fffu);
    return larger(top, word & ~kSign);
}
template <class T> __device__ __forceinline__ u32 largest_of(u32 top) {
    if constexpr (sizeof(T) == 2) return larger(__float_as_uint(Pair<T>::low(top)), __float_as_uint(Pair<T>::high(top)));
    return top;
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

// quantize_row makes the codes of eight columns from at on, n of which are there, and returns the factor of their block.
__device__ __forceinline__ u32 quantize_row(const Pack<X, 8>& p, i64 at, int n, bool there, float norm, void* codes, const Draw& draw) {
    u32 top = 0;
#pragma unroll
    for (int i = 0; i < Pack<X, 8>::kBytes / 4; i++) top = larger_of<X>(top, p.word[i]);
    top = largest_of<X>(top);
#pragma unroll
    for (int d = 1; d < kSharers; d *= 2) top = larger(top, __shfl_xor_sync(kFullWarp, top, d));
    const BlockScale b = block_scale<Value, Factor, Params::Unit>(top, norm);
    if (!codes || !there || n <= 0) return b.code;
    Codes<Value, 8> c;
    if constexpr (kShort) {
#pragma unroll
        for (int w = 0; w < 2; w++) {
            float mag[4];
#pragma unroll
            for (int i = 0; i < 4; i++) mag[i] = __fmul_rn(fabsf(p.get(4 * w + i)), b.s);
            c.word[w] = encode_short<Value>(mag, __byte_perm(p.word[2 * w], p.word[2 * w + 1], 0x7531));
        }
    }
    if (!kShort || b.odd) {
        float v[8];
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = __fmul_rn(p.get(i), b.s);
        if constexpr (Params::Random) {
            if constexpr (kVector) { // at is a multiple of 8
#pragma unroll
                for (int i = 0; i < 8; i += 4) {
                    const uint4 four = draw.four((u64)(at + i) / 4);
                    v[i] = rounded_at_random(v[i], four.x);
                    v[i + 1] = rounded_at_random(v[i + 1], four.y);
                    v[i + 2] = rounded_at_random(v[i + 2], four.z);
                    v[i + 3] = rounded_at_random(v[i + 3], four.w);
                }
            } else {
#pragma unroll
                for (int i = 0; i < 8; i++)
                    if (i < n) v[i] = rounded_at_random(v[i], draw.word((u64)(at + i)));
            }
            c.put(v);
        } else {
            c.put_finite(v);
            if (b.odd) c.mark_nans(v);
        }
    }
    if constexpr (kVector) {
        c.store(codes, at);
    } else {
        u8* out = (u8*)codes + Codes<Value, 8>::byte(at); // an even element in fp4
        const int bytes = kNarrow ? n / 2 : n;
#pragma unroll
        for (int i = 0; i < Codes<Value, 8>::kBytes; i++)
            if (i < bytes) out[i] = (u8)(c.word[i / 4] >> (i % 4 * 8));
    }
    return b.code;
}

// store_row_factors writes a thread's share of the row factors of its rows with the same parity of turn: codes are those of
// rows r, r+32, r+64 and r+96, a byte each, of the block that it shares. Threads that share a block have one row each.
__device__ __forceinline__ void store_row_factors(u32 codes, int r, int line, int subs, u8* sf) {
    const int part = line % kSharers, factor = line / kSharers, c = factor % kFactorCols;
#pragma unroll
    for (int j = 0; j < 4; j += kSharers) {
        u32 word = (codes >> (8 * (j + part)) & 0xff) << (8 * c);
        word |= __shfl_xor_sync(kFullWarp, word, kSharers);
        word |= __shfl_xor_sync(kFullWarp, word, 2 * kSharers);
        if (c == 0 && factor / kFactorCols < subs) *(u32*)(sf + factor / kFactorCols * kFactorBytes + factor_byte(r + 32 * (j + part), 0)) = word;
    }
}

// rows_of_tile makes the row blocks of a tile, and the copy of it in shared memory.
__device__ __forceinline__ void rows_of_tile(const QuantTile& t, const void* x, i64 rows, int cols, float norm, const Outputs& out, const Draw& draw,
                                             u8* copy) {
    const int line = threadIdx.x % kLine, first = threadIdx.x / kLine, n = clamp_of(t.cols - line * 8, 0, 8);
    const i64 at = (t.batch * rows + t.row + first) * cols + t.col + line * 8;
    const bool factor = t.col + line * 8 / kVec * kVec < cols; // the block begins inside of the matrix
    u32 codes[2] = {};
#pragma unroll
    for (int base = 0; base < kTurns; base += kHeld) {
        Pack<X, 8> held[kHeld];
#pragma unroll
        for (int i = 0; i < kHeld; i++) {
            const int r = first + (base + i) * kLines;
            load_eight(held[i], x, at + (i64)(base + i) * kLines * cols, r < t.mid ? n : 0);
        }
#pragma unroll
        for (int i = 0; i < kHeld; i++) {
            const int turn = base + i, r = first + turn * kLines;
            if constexpr (Params::HasCol) held[i].store(copy, r * kSide + line * 8);
            if constexpr (Params::HasRow) {
                const u32 code = quantize_row(held[i], at + (i64)turn * kLines * cols, n, r < t.last, norm, out.row, draw);
                if (factor && r < t.last) codes[turn % 2] |= code << (turn / 2 * 8);
            }
        }
    }
    if constexpr (Params::HasRow) {
        if (!out.row_sf) return;
#pragma unroll
        for (int i = 0; i < 2; i++) store_row_factors(codes[i], first + i * kLines, line, t.row_subs, (u8*)out.row_sf + t.row_sf);
    }
}

// Copy reads the copy of a tile in format T, two columns at a time.
template <class T> struct Copy {
    const u8* bytes;
    __device__ __forceinline__ u32 word(int r, int c) const { return *(const u32*)(bytes + (r * kSide + c) * 2); }
    __device__ __forceinline__ float2 two(int r, int c) const { return make_float2(Pair<T>::low(word(r, c)), Pair<T>::high(word(r, c))); }
    // short_codes are the codes of rows r and r+1, row after row, for encode_short.
    template <class Value> __device__ __forceinline__ u32 short_codes(int r, int c, float s0, float s1) const {
        const u32 a = word(r, c), b = word(r + 1, c);
        const float mag[4] = {__fmul_rn(fabsf(Pair<T>::low(a)), s0), __fmul_rn(fabsf(Pair<T>::high(a)), s1), __fmul_rn(fabsf(Pair<T>::low(b)), s0),
                              __fmul_rn(fabsf(Pair<T>::high(b)), s1)};
        return encode_short<Value>(mag, __byte_perm(a, b, 0x7531));
    }
    // tops are the largest magnitudes of the kVec rows from r on.
    __device__ __forceinline__ void tops(u32 (&top)[2], int r, int c) const {
        u32 both = 0;
#pragma unroll
        for (int i = 0; i < kVec; i++) both = larger_of<T>(both, word(r + i, c));
        top[0] = __float_as_uint(Pair<T>::low(both));
        top[1] = __float_as_uint(Pair<T>::high(both));
    }
};
template <> struct Copy<float> {
    const u8* bytes;
    template <class Value> __device__ u32 short_codes(int, int, float, float) const; // not for float
    __device__ __forceinline__ float2 two(int r, int c) const { return *(const float2*)(bytes + (r * kSide + c) * 4); }
    __device__ __forceinline__ void tops(u32 (&top)[2], int r, int c) const {
        top[0] = top[1] = 0;
#pragma unroll
        for (int i = 0; i < kVec; i++) {
            const float2 x = two(r + i, c);
            top[0] = larger(top[0], magnitude(x.x));
            top[1] = larger(top[1], magnitude(x.y));
        }
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

// scale_two multiplies what stands in two columns, the first of which is an element of x, by their blocks' scales.
__device__ __forceinline__ void scale_two(float& a, float& b, float2 x, const BlockScale (&s)[2], i64 element, const Draw& draw) {
    a = __fmul_rn(x.x, s[0].s);
    b = __fmul_rn(x.y, s[1].s);
    if constexpr (Params::Random && kVector) { // element is even
        const uint4 four = draw.four((u64)element / 4);
        a = rounded_at_random(a, element % 4 == 0 ? four.x : four.z);
        b = rounded_at_random(b, element % 4 == 0 ? four.y : four.w);
    } else if constexpr (Params::Random) {
        a = rounded_at_random(a, draw.word((u64)element));
        b = rounded_at_random(b, draw.word((u64)element + 1));
    }
}

// encode_all makes a word of codes of numbers that may be NaN if odd says so.
template <int N> __device__ __forceinline__ u32 encode_all(const float (&v)[N], bool odd) {
    Codes<Value, N> w;
    if constexpr (Params::Random) {
        w.put(v);
    } else {
        w.put_finite(v);
        if (odd) w.mark_nans(v);
    }
    return w.word[0];
}

// two_rows makes the codes of two columns of rows r and r+1, row after row, of 8 bits.
__device__ __forceinline__ u32 two_rows(const Copy<X>& copy, int r, int c, const BlockScale (&b)[2], i64 element, int cols, const Draw& draw) {
    if constexpr (kShort) {
        if (!b[0].odd && !b[1].odd) return copy.template short_codes<Value>(r, c, b[0].s, b[1].s);
    }
    float v[4];
    scale_two(v[0], v[1], copy.two(r, c), b, element, draw);
    scale_two(v[2], v[3], copy.two(r + 1, c), b, element + cols, draw);
    return encode_all<4>(v, b[0].odd || b[1].odd);
}

// columns_of_tile makes the column blocks of a tile from its copy, and leaves the factors in sf.
__device__ __forceinline__ void columns_of_tile(const QuantTile& t, i64 rows, int cols, float norm, void* codes, const Draw& draw,
                                                const Copy<X>& copy, u8* sf) {
    const int c = threadIdx.x % (kSide / 2) * 2, first = threadIdx.x / (kSide / 2) * kRun;
    const int have = clamp_of(t.cols - c, 0, 2), n = clamp_of(t.last - first, 0, kRun); // columns and rows that are there
    BlockScale s[kRun / kVec][2];
#pragma unroll
    for (int k = 0; k < kRun / kVec; k++) {
        u32 top[2];
        copy.tops(top, first + k * kVec, c);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            s[k][i] = block_scale<Value, Factor, Params::Unit>(top[i], norm);
            const int block = first / kVec + k;
            sf[block / kFactorCols * kFactorBytes + factor_byte(c + i, block)] = i < have && k * kVec < n ? (u8)s[k][i].code : 0;
        }
    }
    if (!codes || have == 0 || n == 0) return;
    const i64 element = (t.batch * rows + t.row + first) * cols + t.col + c;                      // in the order of x
    const i64 place = ((i64)t.batch * cols + t.col + c) * rows + t.row + first;                   // transposed
    Codes<Value, kRun> run[2];
    if constexpr (kNarrow) {
#pragma unroll
        for (int at = 0; at < kRun; at += 8) {
            const BlockScale(&b)[2] = s[at / kVec];
            float v[2][8];
#pragma unroll
            for (int r = 0; r < 8; r++) scale_two(v[0][r], v[1][r], copy.two(first + at + r, c), b, element + (i64)(at + r) * cols, draw);
#pragma unroll
            for (int i = 0; i < 2; i++) run[i].word[at / 8] = encode_all<8>(v[i], b[i].odd);
            if constexpr (!Params::Transpose) {
#pragma unroll
                for (int r = 0; r < 8; r++)
                    if (at + r < n) ((u8*)codes)[(element + (i64)(at + r) * cols) / 2] = (u8)(run[0].code(at + r) | run[1].code(at + r) << 4);
            }
        }
    } else {
#pragma unroll
        for (int at = 0; at < kRun; at += 4) {
            const BlockScale(&b)[2] = s[at / kVec];
            u32 two[2]; // the codes of two rows each, row after row
#pragma unroll
            for (int h = 0; h < 2; h++) two[h] = two_rows(copy, first + at + 2 * h, c, b, element + (i64)(at + 2 * h) * cols, cols, draw);
            if constexpr (Params::Transpose) {
                run[0].word[at / 4] = __byte_perm(two[0], two[1], 0x6420);
                run[1].word[at / 4] = __byte_perm(two[0], two[1], 0x7531);
            } else {
#pragma unroll
                for (int r = 0; r < 4; r++) {
                    if (at + r >= n) continue;
                    u8* out = (u8*)codes + element + (i64)(at + r) * cols;
                    const u32 pair = two[r / 2] >> (r % 2 * 16);
                    if constexpr (kVector) {
                        *(u16*)out = (u16)pair;
                    } else {
                        out[0] = (u8)pair;
                        if (have == 2) out[1] = (u8)(pair >> 8);
                    }
                }
            }
        }
    }
    if constexpr (Params::Transpose) {
        store_run(run[0], codes, place, n);
        if (have == 2) store_run(run[1], codes, place + rows, n);
    }
}

// store_blocks writes blocks of factors from shared memory, zeros where from is null.
__device__ __forceinline__ void store_blocks(void* sf, i64 at, int subs, const u8* from) {
    for (int i = threadIdx.x; i < subs * (kFactorBytes / 16); i += kThreads)
        ((uint4*)((u8*)sf + at))[i] = from ? ((const uint4*)from)[i] : uint4{};
}

extern "C" __global__ void __launch_bounds__(kThreads, Params::PerUnit)
    quantize(void* row, void* row_sf, void* col, void* col_sf, float* scale, const void* x, const int* offsets, const int* counts,
             const int* count, const void* norms, const u64* random, i64 rows, int cols, int batches, u32 salt, int scales) {
    __shared__ Groups<QuantTiles::kGroups> groups;
    u8* const copy = ptx::dynamic_shared();
    u8* const factors = copy + kSide * kSide * sizeof(X);
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
    if constexpr (Params::HasRow || Params::HasCol) {
        for (i64 i = blockIdx.x; i < tiles.count(); i += gridDim.x) {
            const QuantTile t = tiles.at(i);
            if (t.last == 0) {
                if (row_sf) store_blocks(row_sf, t.row_sf, t.row_subs, nullptr);
                if (col_sf) store_blocks(col_sf, t.col_sf, t.col_subs, nullptr);
                continue;
            }
            const float norm = norm_of(norms, t.owner);
            rows_of_tile(t, x, rows, cols, norm, out, of_row, copy);
            if constexpr (Params::HasCol) {
                __syncthreads();
                columns_of_tile(t, rows, cols, norm, col, of_col, Copy<X>{copy}, factors);
                __syncthreads();
                if (col_sf) store_blocks(col_sf, t.col_sf, t.col_subs, factors);
            }
        }
    }
}
