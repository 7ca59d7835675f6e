// What the epilogues share that quantize their outputs (contracts, section 7): a warp takes tiles of 32 by 32 numbers, whole blocks
// of both axes, because groups begin at multiples of 128 rows. Bytes are those of Quantize, which has the same arithmetic
// (block_scale.cuh).
//
// Factors are cleared before the product: what no tile has are zeros.
#pragma once
#include "block_scale.cuh"
#include "row_product.cuh"

// Rows and columns of a tile, which are those of its blocks.
constexpr int kSquare = 32;

// Lane 4r+q holds columns [8q, 8q+8) of rows r, r+8, r+16 and r+24.
using Square = float[4][8];

// Row number k of a lane's, and its first column.
__device__ __forceinline__ int square_row(int k) { return threadIdx.x % 32 / 4 + 8 * k; }
__device__ __forceinline__ int square_col() { return threadIdx.x % 4 * 8; }

// x[i] = from[i + kBy], as far as there are any: with x for from, accumulators or parts of them take turns at the first place, so
// that a loop over them is one piece of code that has the registers of those that have left.
template <int kBy, int kCount, int kRows, int kCols>
__device__ __forceinline__ void take_turns(float (&x)[kCount][kRows][kCols], const float (&from)[kCount][kRows][kCols]) {
#pragma unroll
    for (int i = 0; i < kCount - kBy; i++) {
#pragma unroll
        for (int r = 0; r < kRows; r++) {
#pragma unroll
            for (int c = 0; c < kCols; c++) {
                x[i][r][c] = from[i + kBy][r][c];
            }
        }
    }
}

// Columns from 32*half on of two pieces of accumulators, as mma.m16n8k16 spreads them.
__device__ __forceinline__ void part_of(Square& part, const float (&upper)[8][4], const float (&lower)[8][4], int half) {
#pragma unroll
    for (int k = 0; k < 2; k++) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            part[k][i] = upper[4 * half + i / 2][2 * k + i % 2];
            part[2 + k][i] = lower[4 * half + i / 2][2 * k + i % 2];
        }
    }
}

// A warp's stage, of 32 rows of 32 floats. Eight columns stay together; their place depends on the row, and their halves are swapped
// in odd rows, so that none of the accesses meets a bank twice.
struct SquareStage {
    float value[kSquare * kSquare];

    static __device__ __forceinline__ SquareStage& of(Stage& stage) {
        static_assert(sizeof(Stage) == sizeof(SquareStage), "the same memory");
        return reinterpret_cast<SquareStage&>(stage);
    }

    // Where four columns from col (a multiple of 4) on lie.
    static __device__ __forceinline__ int place(int row, int col) { return row * kSquare + (col ^ (row & 1) * 20 ^ (row & 2) << 2); }

    // Takes a part of the accumulators, times factor. All lanes of the warp call it together.
    __device__ __forceinline__ void put(const Square& part, float factor) {
        const int col = threadIdx.x % 4 * 2;
        __syncwarp();
#pragma unroll
        for (int k = 0; k < 4; k++) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                *reinterpret_cast<float2*>(value + place(square_row(k), 8 * j + col)) = make_float2(part[k][2 * j] * factor, part[k][2 * j + 1] * factor);
            }
        }
        __syncwarp();
    }

    // Four columns from one on, and four from two on.
    __device__ __forceinline__ void get(float (&v)[8], int row, int one, int two) const {
        const float4 x = *reinterpret_cast<const float4*>(value + place(row, one)), y = *reinterpret_cast<const float4*>(value + place(row, two));
        v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w;
        v[4] = y.x, v[5] = y.y, v[6] = y.z, v[7] = y.w;
    }
    __device__ __forceinline__ void set(const float (&v)[8], int row, int one, int two) {
        *reinterpret_cast<float4*>(value + place(row, one)) = make_float4(v[0], v[1], v[2], v[3]);
        *reinterpret_cast<float4*>(value + place(row, two)) = make_float4(v[4], v[5], v[6], v[7]);
    }
};

// Joins x[i] over kCount lanes that are kApart, 2*kApart, ... apart: a lane gets that of its number i among them.
template <int kApart, int kCount, class Join>
__device__ __forceinline__ float scattered(const float (&x)[kCount], Join join) {
    if constexpr (kCount == 1) {
        return x[0];
    } else {
        const bool second = (threadIdx.x & kApart) != 0;
        float half[kCount / 2];
#pragma unroll
        for (int i = 0; i < kCount / 2; i++) {
            const float other = __shfl_xor_sync(0xffffffffu, second ? x[2 * i] : x[2 * i + 1], kApart);
            half[i] = join(second ? x[2 * i + 1] : x[2 * i], other);
        }
        return scattered<2 * kApart>(half, join);
    }
}

// What becomes of a matrix of kWidth columns in format V, along rows and columns: codes and factors.
//
// P, the constants: E; HasRow, HasRowSF, HasCol, HasColSF; DiscreteCol: column factors are a tensor for each group.
template <class P, class V, int kWidth>
struct QuantOutput {
    using Value = V;
    static constexpr bool kWhole = kWidth % kSquare == 0;  // no tile is cut
    static constexpr int kAcross = ceil_div(kWidth, kFactorRows);

    const Groups<P::E>& groups;
    const float* norm;  // null: 1
    Value* row;
    unsigned char* row_sf;
    Value* col;
    unsigned char* col_sf;
    int capacity;

    __device__ __forceinline__ float norm_const() const { return norm == nullptr ? 1.0f : *norm; }

    // Whether the lane's columns of a tile from column c on exist.
    static __device__ __forceinline__ bool inside(int c) { return kWhole || c + square_col() < kWidth; }

    // Writes the tile whose first row is m, of group g, and first column c; padding, and columns that do not exist, are zeros. All
    // lanes of the warp call it together.
    __device__ __forceinline__ void store(const Square& v, int m, int c, int g, float norm) const {
        const int lane = threadIdx.x % 32;
        const i64 at = static_cast<i64>(m + square_row(0)) * kWidth + c + square_col();
        const auto join = [](float a, float b) { return ptx::max_nan(a, b); };
        if constexpr (P::HasRow || P::HasRowSF) {
            float top[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                top[k] = fabsf(v[k][0]);
#pragma unroll
                for (int i = 1; i < 8; i++) {
                    top[k] = ptx::max_nan(top[k], fabsf(v[k][i]));
                }
            }
            const BlockScale mine = block_scale<Value, e8m0>(__float_as_uint(scattered<1>(top, join)), norm);
            if constexpr (P::HasRowSF) {
                const i64 block = static_cast<i64>(m / kFactorRows) * kAcross + c / kFactorRows;
                row_sf[block * kFactorBytes + factor_byte(m + square_row(lane % 4), c / kSquare)] = static_cast<unsigned char>(mine.code);
            }
            if constexpr (P::HasRow) {
                const bool odd = __any_sync(0xffffffffu, mine.odd);
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    const float one = __shfl_sync(0xffffffffu, mine.s, lane / 4 * 4 + k);
                    const float s[8] = {one, one, one, one, one, one, one, one};
                    put(row, at + k * 8 * kWidth, v[k], s, odd, c);
                }
            }
        }
        if constexpr (P::HasCol || P::HasColSF) {
            float top[8];
#pragma unroll
            for (int i = 0; i < 8; i++) {
                top[i] = ptx::max_nan(ptx::max_nan(fabsf(v[0][i]), fabsf(v[1][i])), ptx::max_nan(fabsf(v[2][i]), fabsf(v[3][i])));
            }
            const BlockScale mine = block_scale<Value, e8m0>(__float_as_uint(scattered<4>(top, join)), norm);
            if constexpr (P::HasColSF) {
                const int own = square_col() + lane / 4;
                if (kWhole || c + own < kWidth) {
                    col_sf[column_block(m, c, g) * kFactorBytes + factor_byte(c + own, m / kSquare)] = static_cast<unsigned char>(mine.code);
                }
            }
            if constexpr (P::HasCol) {
                const bool odd = __any_sync(0xffffffffu, mine.odd);
                float s[8];
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    s[i] = __shfl_sync(0xffffffffu, mine.s, 4 * i + lane % 4);
                }
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    put(col, at + k * 8 * kWidth, v[k], s, odd, c);
                }
            }
        }
    }

private:
    // Codes of eight columns from element at on, in a tile from column c on.
    static __device__ __forceinline__ void put(Value* to, i64 at, const float (&v)[8], const float (&s)[8], bool odd, int c) {
        float x[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            x[i] = __fmul_rn(v[i], s[i]);
        }
        Codes<Value, 8> codes;
        codes.put_finite(x);
        if (odd) {
            codes.mark_nans(x);
        }
        if (inside(c)) {
            codes.store(to, at);
        }
    }

    // The block of factors of columns from c on and rows from m on.
    __device__ __forceinline__ i64 column_block(int m, int c, int g) const {
        if constexpr (P::DiscreteCol) {
            const int begin = groups.begin(g), size = (groups.end[g] - begin) / kFactorRows;
            return static_cast<i64>(begin / kFactorRows) * kAcross + static_cast<i64>(c / kFactorRows) * size + (m - begin) / kFactorRows;
        }
        return static_cast<i64>(c / kFactorRows) * ceil_div(capacity, kFactorRows) + m / kFactorRows;
    }
};

// The epilogue Quantizing, where the output is codes, or else plain, which it is made of.
template <class Quantizing, class Plain, class Output>
__device__ __forceinline__ auto quantizing_or(const Plain& plain, const Output& output) {
    if constexpr (sizeof(typename Output::Value) == 1) {
        return Quantizing{plain, output};
    } else {
        return plain;
    }
}

// D of section 7, quantized.
template <class P, class Extra>
struct PlainQuantEpilogue : PlainEpilogue<P, Extra> {
    using Tile = typename RowWork<P>::Tile;

    QuantOutput<P, typename P::DType, P::N> output;

    __device__ __forceinline__ void operator()(const Tile& t, int warp_m, int warp_n, const Accumulators<P::WarpM>& acc) const {
        const int first = warp_m * P::WarpM, rows = rows_of_warp<P>(t, warp_m) - first, real = t.rows - first, lane_col = square_col();
        SquareStage& stage = SquareStage::of(this->stages[threadIdx.x / 32]);
        const float factor = this->extra.factor(t.group), norm = output.norm_const();
        const RowFactors<P::WarpM> factors(P::HasProb, this->prob + t.first + first, real);
        Accumulators<P::WarpM> turn;
        take_turns<0>(turn, acc);
#pragma unroll 1
        for (int block = 0; block * kSquare < rows; block++) {
            const int left = real - block * kSquare;  // real rows from here on
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int col = t.col + warp_n * 64 + half * kSquare;
                if (col >= P::N) {
                    break;
                }
                const bool inside = output.inside(col);
                float b[8];
                if constexpr (P::HasBias) {
                    load8<true>(b, this->bias + static_cast<i64>(t.group) * P::N + col + lane_col, inside ? 8 : 0);
                }
                Square v = {};
                if (left > 0) {
                    part_of(v, turn[0], turn[1], half);
                    stage.put(v, factor);
#pragma unroll
                    for (int k = 0; k < 4; k++) {
                        const float p = factors.in_block(block, square_row(k));
                        stage.get(v[k], square_row(k), lane_col, lane_col + 4);
                        const bool real = square_row(k) < left && inside;
                        if constexpr (P::HasBias) {
                            add_scaled(v[k], b, p);
                        }
#pragma unroll
                        for (int i = 0; i < 8; i++) {
                            v[k][i] = !real ? 0.0f : P::HasBias || !P::HasProb ? v[k][i] : v[k][i] * p;
                        }
                    }
                }
                output.store(v, t.first + first + block * kSquare, col, t.group, norm);
            }
            take_turns<2>(turn, turn);
        }
    }
};
