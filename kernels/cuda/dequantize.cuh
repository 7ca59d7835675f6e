// y = code * factor (* global_scale), rounded once. A thread takes eight columns of eight rows, whose factors are one for
// each row, or with blocks down the columns one for each column. Launch: 256 threads, 3 blocks a multiprocessor; the grid
// strides.
//
// Params: ValueType, FactorType, YType, Vec, Down (blocks down the columns), Scaled, Vector (rows are multiples of 8 columns).
#include "block_scale.cuh"

using Value = Params::ValueType;
using Factor = Params::FactorType;
using Y = Params::YType;
constexpr bool kVector = Params::Vector;

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
    constexpr int kRows = 8;
    const i64 in_use = rows_in_use(count, rows), runs = div_up(in_use, kRows), chunks = div_up(cols, 8);
    const i64 factor_rows = Params::Down ? cols : rows, factors = div_up(Params::Down ? rows : cols, Params::Vec);
    const i64 row_blocks = div_up(factor_rows, kFactorRows), col_blocks = div_up(factors, kFactorCols);
    // The factor of row r of the matrix of factors, in its column c.
    const auto factor_at = [&](i64 batch, i64 r, i64 c) {
        const i64 block = (batch * row_blocks + r / kFactorRows) * col_blocks + c / kFactorCols;
        return to_float(Factor{sf[block * kFactorBytes + factor_byte((int)(r % kFactorRows), (int)(c % kFactorCols))]});
    };
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < batches * runs * chunks; i += (i64)gridDim.x * blockDim.x) {
        const i64 line = i / chunks, batch = line / runs, r0 = (line - batch * runs) * kRows;
        const int col = (int)(i - line * chunks) * 8, n = min_of(8, cols - col);
        const int m = in_use - r0 < kRows ? (int)(in_use - r0) : kRows;
        const float s = Params::Scaled ? scale[scale_each ? batch : 0] : 1.f;
        const i64 at = (batch * rows + r0) * cols + col;
        Codes<Value, 8> codes[kRows];
        float f[8];
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
#pragma unroll
        for (int j = 0; j < 8; j++) {
            f[j] = 0;
            if (Params::Down && j < n) f[j] = factor_at(batch, col + j, r0 / Params::Vec);
            if (!Params::Down && j < m) f[j] = factor_at(batch, r0 + j, col / Params::Vec);
        }
#pragma unroll
        for (int r = 0; r < kRows; r++) {
            if (r >= m) continue;
            float v[8];
#pragma unroll
            for (int j = 0; j < 8; j++) {
                v[j] = __fmul_rn(codes[r].get(j), Params::Down ? f[j] : f[r]);
                if (Params::Scaled) v[j] = times_once<Y>(v[j], s);
            }
            if constexpr (kVector) {
                Pack<Y, 8> p;
                p.put(v);
                p.store(y, at + (i64)r * cols);
            } else {
#pragma unroll
                for (int j = 0; j < 8; j++)
                    if (j < n) store_float<Y>(y, at + (i64)r * cols + j, v[j]);
            }
        }
    }
}
