// The epilogue of FC1 (contracts, section 5): a product's outputs are gate and up columns.
//
// A warp's 64 columns are one block of C, 32 gate and 32 up. With weights [gate; up] (UpRow) the copies bring the rows into
// that order; where gate and up alternate (Layout kPairs) the columns are sorted on the way out of the stage.
//
// P: that of row_product.cuh, BiasType, DType, CType, HasAlpha, HasProb, HasBias, HasD, HasC, Layout, Act. kCopies: padding is
// written by PaddingCopies.
#pragma once
#include "activation.cuh"
#include "row_product.cuh"

template <class P, class Extra = PlainExtra<P>, bool kCopies = false>
struct GLUEpilogue {
    using Tile = typename RowWork<P>::Tile;
    static constexpr bool kFast = sizeof(typename P::DType) <= 2;
    static constexpr bool kPads = true;  // PlainEpilogue
    using Padding = PaddingCopies<P, P::N / 2>;

    Stage* stages;
    Extra extra;
    const float* prob;
    const typename P::BiasType* bias;
    typename P::DType* d;
    typename P::CType* c;

    // Gate and up j of a block, from eight neighbours each or sixteen that alternate.
    static __device__ __forceinline__ void sort(float (&gate)[8], float (&up)[8], const float (&x)[8], const float (&y)[8]) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            gate[i] = P::Layout != kPairs ? x[i] : i < 4 ? x[2 * i] : y[2 * i - 8];
            up[i] = P::Layout != kPairs ? y[i] : i < 4 ? x[2 * i + 1] : y[2 * i - 7];
        }
    }

    // Where the eight gates and eight ups of lane column j are: in the stage, and in the bias.
    static __device__ __forceinline__ int one(int j) { return P::Layout == kPairs ? 2 * j : j; }
    static __device__ __forceinline__ int two(int j) { return P::Layout == kPairs ? 2 * j + 8 : j + 32; }

    // The biases of the lane's gates and ups in columns from col on.
    __device__ __forceinline__ void load_bias(float (&gate)[8], float (&up)[8], int group, int col, int j) const {
        if constexpr (P::HasBias) {
            float x[8], y[8];
            const typename P::BiasType* b = bias + static_cast<i64>(group) * P::N;
            load8(x, b + (P::Layout == kConcat ? col / 2 + j : col + one(j)));
            load8(y, b + (P::Layout == kConcat ? P::N / 2 + col / 2 + j : col + two(j)));
            sort(gate, up, x, y);
        }
    }

    // Gates, ups and values of row `staged` of the stage.
    static __device__ __forceinline__ void eight(float (&gate)[8], float (&up)[8], float (&value)[8], const Stage& stage, int staged, int j,
                                                 const float (&bias_gate)[8], const float (&bias_up)[8], float p) {
        float x[8], y[8];
        stage.get(x, staged, one(j));
        stage.get(y, staged, two(j));
        sort(gate, up, x, y);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (P::HasBias) {
                gate[i] += bias_gate[i];
                up[i] += bias_up[i];
            }
            value[i] = p * activate<typename P::Act, kFast>(gate[i], up[i]);
        }
    }

    __device__ __forceinline__ void begin(const Tile& t, int, int) const {
        extra.begin(t.group);
        if constexpr (kCopies) {
            Padding::begin(stages, t, c, d);
        }
    }

    __device__ __forceinline__ void operator()(const Tile& t, int warp_m, int warp_n, const Accumulators<P::WarpM>& acc) const {
        if constexpr (kCopies) {
            Padding::end();
        }
        const int first = warp_m * P::WarpM, rows = rows_of_warp<P>(t, warp_m), real = t.rows - first, j = threadIdx.x % 4 * 8;
        const int col = t.col + warp_n * 64;
        if (first >= rows || col >= P::N) {
            return;
        }
        const auto store = [&](int row, const float (&gate)[8], const float (&up)[8], const float (&value)[8]) {
            const i64 m = t.first + row;
            if constexpr (P::HasC) {
                store8(c + m * P::N + col + j, gate);
                store8(c + m * P::N + col + 32 + j, up);
            }
            if constexpr (P::HasD) {
                store8(d + m * (P::N / 2) + col / 2 + j, value);
            }
        };
        if constexpr (!kCopies) {
            for_padding<4>(real, rows - first, [&](int row) {
                const float none[8] = {};
                store(first + row, none, none, none);
            });
        }
        if (real <= 0) {
            return;
        }
        Stage& stage = stages[threadIdx.x / 32];
        float bias_gate[8], bias_up[8];
        load_bias(bias_gate, bias_up, t.group, col, j);
        const RowFactors<P::WarpM> factors(P::HasProb, prob + t.first + first, real);
        typename Extra::Seen seen;
        for_staged<4, P::WarpM>(stage, acc, real, extra.factor(t.group), [&](int slab, int staged) {
            const float p = factors.at(slab, staged);
            const int row = first + slab * 16 + staged;
            if (row >= rows) {
                return;
            }
            float gate[8] = {}, up[8] = {}, value[8] = {};
            if (row < t.rows) {
                eight(gate, up, value, stage, staged, j, bias_gate, bias_up, p);
            }
            store(row, gate, up, value);
            seen.see(value);
        });
        extra.leave(seen, t.group);
    }
};
