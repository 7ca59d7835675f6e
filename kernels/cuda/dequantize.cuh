// y = code * factor (* global_scale), rounded once. A thread takes eight columns of eight rows, whose factors are one for
// each row, or with blocks down the columns one for each column. Launch: 256 threads, 3 blocks a multiprocessor; the grid
// strides.
//
// Params: ValueType, FactorType, YType, Vec, Down (blocks down the columns), Scaled, Vector (rows are multiples of 8 columns).
#include "block_scale.cuh"
#include "decode.cuh"

using Value = Params::ValueType;
using Factor = Params::FactorType;
using Y = Params::YType;
constexpr bool kVector = Params::Vector;
constexpr int kRows = 8; // of a thread

// kPacked: codes of 8 bits and factors that are powers of two go to bf16 two at a time, where bf16 holds both, so that their
// product is rounded once. NaN and Inf go the long way.
template <class T> constexpr bool is_bf16 = false;
template <> constexpr bool is_bf16<bf16> = true;
template <class T> constexpr bool is_e8m0 = false;
template <> constexpr bool is_e8m0<e8m0> = true;
constexpr bool kPacked = kVector && is_bf16<Y> && is_e8m0<Factor> && code_bits<Value>() == 8 && !Params::Scaled;

// times_packed makes eight numbers of codes none of which is NaN or Inf; factor(i) are those of elements 2i and 2i+1.
template <class F> __device__ __forceinline__ void times_packed(Pack<Y, 8>& y, const Codes<Value, 8>& codes, const F& factor) {
    constexpr CodeKind kKind = NarrowFormat<Value>::kMantissa == 3 ? kE4M3 : kE5M2;
#pragma unroll
    for (int w = 0; w < 2; w++) {
        u32 low, high;
        decode_bytes<kKind>(low, high, codes.word[w]);
        y.word[2 * w] = ptx::mul_bf16x2(low, factor(2 * w));
        y.word[2 * w + 1] = ptx::mul_bf16x2(high, factor(2 * w + 1));
    }
}
__device__ __forceinline__ bool has_specials(const Codes<Value, 8>& codes) {
    constexpr CodeKind kKind = NarrowFormat<Value>::kMantissa == 3 ? kE4M3 : kE5M2;
    return ((specials<kKind>(codes.word[0]) | specials<kKind>(codes.word[1])) & 0x80808080u) != 0;
}

// times_once returns x*y such that rounding it to 16 bits rounds the product once: where it is not exact, the neighbour
// whose last bit is odd, which no tie of a shorter format has.
template <class To> __device__ __forceinline__ float times_once(float x, float y) {
    const float p = __fmul_rn(x, y);
    if (sizeof(To) == 4 || magnitude(p) >= kInf) return p;
    const double exact = (double)x * (double)y; // 48 bits
    const u32 b = __float_as_uint(p);
    if ((double)p == exact || b % 2 == 1) return p;
    return __uint_as_float(fabs(exact) > fabs((double)p) ? b + 1 : b - 1);
}

extern "C" __global__ void __launch_bounds__(256, 3)
    dequantize(void* y, const void* x, const u8* sf, const float* scale, const int* count, i64 rows, int cols, int batches, int scale_each) {
    const i64 in_use = rows_in_use(count, rows), runs = div_up(in_use, kRows), chunks = div_up(cols, 8);
    const i64 factor_rows = Params::Down ? cols : rows, factors = div_up(Params::Down ? rows : cols, Params::Vec);
    const i64 row_blocks = div_up(factor_rows, kFactorRows), col_blocks = div_up(factors, kFactorCols);
    const i64 all = batches * runs * chunks;
    const bool small = all <= 0xffffffff;
    const auto quotient = [&](i64 a, i64 b) { return small ? (i64)((u32)a / (u32)b) : a / b; };
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < all; i += (i64)gridDim.x * blockDim.x) {
        const i64 line = quotient(i, chunks), batch = quotient(line, runs), r0 = (line - batch * runs) * kRows;
        const int col = (int)(i - line * chunks) * 8, n = min_of(8, cols - col);
        const int m = in_use - r0 < kRows ? (int)(in_use - r0) : kRows;
        const float s = Params::Scaled ? scale[scale_each ? batch : 0] : 1.f;
        const i64 at = (batch * rows + r0) * cols + col;
        // Factors of eight rows, or columns, from a multiple of eight on: 16 bytes apart, and there even where those are not.
        const i64 row = Params::Down ? col : r0, factor = (Params::Down ? r0 : col) / Params::Vec;
        const u8* const from = sf + ((batch * row_blocks + row / kFactorRows) * col_blocks + factor / kFactorCols) * kFactorBytes +
                               factor_byte((int)(row % kFactorRows), (int)(factor % kFactorCols));
        u8 factors[8];
        Codes<Value, 8> codes[kRows];
#pragma unroll
        for (int j = 0; j < 8; j++) factors[j] = from[factor_byte(j, 0)];
#pragma unroll
        for (int r = 0; r < kRows; r++) {
            if constexpr (kVector) {
                if (r < m) codes[r].load(x, at + (i64)r * cols);
            } else {
#pragma unroll
                for (int w = 0; w < Codes<Value, 8>::kWords; w++) codes[r].word[w] = 0;
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    if (r >= m || j >= n) continue;
                    const i64 e = at + (i64)r * cols + j;
                    const u32 byte = ((const u8*)x)[Codes<Value, 8>::byte(e)];
                    const u32 code = code_bits<Value>() == 4 ? byte >> (e % 2 * 4) & 15 : byte;
                    codes[r].word[j / Codes<Value, 8>::kPerWord] |= code << (j % Codes<Value, 8>::kPerWord * code_bits<Value>());
                }
            }
        }
        float f[8];
#pragma unroll
        for (int j = 0; j < 8; j++) f[j] = to_float(Factor{factors[j]});
        Y* to = (Y*)y + at;
#pragma unroll
        for (int r = 0; r < kRows; r++, to += cols) {
            if (r >= m) continue;
            if constexpr (kPacked) {
                if (!has_specials(codes[r])) {
                    Pack<Y, 8> p;
                    times_packed(p, codes[r], [&](int i) {
                        return __byte_perm(__float_as_uint(f[Params::Down ? 2 * i : r]), __float_as_uint(f[Params::Down ? 2 * i + 1 : r]), 0x7632);
                    });
                    p.store(to, 0);
                    continue;
                }
            }
            float v[8];
#pragma unroll
            for (int j = 0; j < 8; j++) {
                v[j] = __fmul_rn(codes[r].get(j), Params::Down ? f[j] : f[r]);
                if (Params::Scaled) v[j] = times_once<Y>(v[j], s);
            }
            if constexpr (kVector) {
                Pack<Y, 8> p;
                p.put(v);
                p.store(to, 0);
            } else {
#pragma unroll
                for (int j = 0; j < 8; j++)
                    if (j < n) store_float<Y>(to, j, v[j]);
            }
        }
    }
}
