// The epilogue of FC1 where D is quantized (contracts, sections 5 and 7): 64 columns of the product make 32 of D, whose tiles
// (quant_epilogue.cuh) meet in registers.
//
// P: those of glu_epilogue.cuh and of QuantOutput.
#pragma once
#include "glu_epilogue.cuh"
#include "quant_epilogue.cuh"

template <class P, class Extra>
struct GLUQuantEpilogue : GLUEpilogue<P, Extra> {
    using Base = GLUEpilogue<P, Extra>;
    using Tile = typename RowWork<P>::Tile;

    QuantOutput<P, typename P::DType, P::N / 2> output;

    __device__ __forceinline__ void operator()(const Tile& t, int warp_m, int warp_n, const Accumulators<P::WarpM>& acc) const {
        const int first = warp_m * P::WarpM, rows = rows_of_warp<P>(t, warp_m) - first, real = t.rows - first;
        const int col = t.col + warp_n * 64, j = square_col();
        if (col >= P::N) {
            return;
        }
        Stage& stage = this->stages[threadIdx.x / 32];
        const float factor = this->extra.factor(t.group), norm = output.norm_const();
        const RowFactors<P::WarpM> factors(P::HasProb, this->prob + t.first + first, real);
        float bias_gate[8], bias_up[8];
        this->load_bias(bias_gate, bias_up, t.group, col, j);
        Accumulators<P::WarpM> turn;
        take_turns<0>(turn, acc);
#pragma unroll 1
        for (int block = 0; block * kSquare < rows; block++) {
            const int left = real - block * kSquare, m = t.first + first + block * kSquare;  // left: real rows from here on
            Square v = {};
#pragma unroll
            for (int k = 0; k < 4; k++) {
                if (k % 2 == 0 && k * 8 < left) {
                    __syncwarp();
                    stage.put(turn[k / 2], factor);
                    __syncwarp();
                }
                const float p = factors.in_block(block, square_row(k));
                float gate[8] = {}, up[8] = {};
                if (square_row(k) < left) {
                    this->eight(gate, up, v[k], stage, square_row(k) % 16, j, bias_gate, bias_up, p);
                }
                if constexpr (P::HasC) {
                    typename P::CType* c = this->c + static_cast<i64>(m + square_row(k)) * P::N + col + j;
                    store8(c, gate);
                    store8(c + 32, up);
                }
            }
            output.store(v, m, col / 2, t.group, norm);
            take_turns<2>(turn, turn);
        }
    }
};
