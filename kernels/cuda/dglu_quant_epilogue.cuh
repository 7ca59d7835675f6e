// The epilogue of dGLU where dC is quantized (contracts, sections 6 and 7): 32 columns of G make two tiles (quant_epilogue.cuh),
// one of gates and one of ups, or with kPairs two of both. The first is in registers, the second waits in the stage in place of G.
//
// P: those of dglu_epilogue.cuh and of QuantOutput. Parts of sums are those of dglu_epilogue.cuh.
#pragma once
#include "dglu_epilogue.cuh"
#include "quant_epilogue.cuh"

template <class P, class Extra>
struct DGLUQuantEpilogue : DGLUEpilogue<P, Extra> {
    using Tile = typename RowWork<P>::Tile;
    using Backward = DGLU<P>;
    static constexpr int kParts = P::WarpM / kSquare * 2;                // of the accumulators
    static constexpr int kAhead = sizeof(typename P::CType) > 2 || P::HasDBias ? 0 : 2;  // rows that C is loaded ahead, as registers allow
    static constexpr int kStep = P::Layout == kConcat ? P::N : kSquare;  // from the first tile to the second

    QuantOutput<P, typename P::DCType, 2 * P::N> output;

    // A lane's columns of 32 of G: four from one on, four from two on, so that in dC it has eight neighbours in each tile.
    static __device__ __forceinline__ int one() { return P::Layout == kPairs ? square_col() / 2 : square_col(); }
    static __device__ __forceinline__ int two() { return P::Layout == kPairs ? 16 + one() : one() + 4; }

    __device__ __forceinline__ void operator()(const Tile& t, int warp_m, int warp_n, const Accumulators<P::WarpM>& acc) const {
        const int first = warp_m * P::WarpM, real = t.rows - first, col = t.col + warp_n * 64;
        const int parts = clamp_of((t.last - t.first - first) / kSquare * 2, 0, kParts);
        if (col >= P::N) {
            return;
        }
        SquareStage& stage = SquareStage::of(this->stages[threadIdx.x / 32]);
        const float factor = this->extra.factor(t.group), scale = this->out.factor(t.group), norm = output.norm_const();
        const RowFactors<P::WarpM> factors(P::HasProb, this->out.prob + t.first + first, real);
        float turn[kParts][4][8];  // parts of the accumulators; the last one's place is free once the first has left
#pragma unroll
        for (int i = 0; i < kParts; i++) {
            part_of(turn[i], acc[i / 2 * 2], acc[i / 2 * 2 + 1], i % 2);
        }
        Square& v = turn[kParts - 1];
        float rows[kParts / 2] = {};  // parts of dprob: of row square_row(lane%4) of each block
        float cols[4] = {};           // of dbias: of column square_col()+lane/4 of the tiles of each half
        typename Backward::Seen none; // dC itself is seen
        constexpr int kSlots = max_of(kAhead, 1);
        typename Backward::Pre pre[kSlots];  // of the row at hand, and of the next one
        const auto load = [&](int part, int k) {
            const int row = part / 2 * kSquare + square_row(k), j = col + part % 2 * kSquare;
            if (row < real && j < P::N) {
                load_pre(pre[k % kSlots], t.first + first + row, j);
            }
        };
        const auto load_first = [&](int part) {
#pragma unroll
            for (int k = 0; k < kAhead; k++) {
                if (part < parts) {
                    load(part, k);
                }
            }
        };
        const auto load_ahead = [&](int part, int k) {  // kAhead rows after row k, as far as there are parts
            if (k + kAhead < 4 || part < parts - 1) {
                load(part + (k + kAhead) / 4, (k + kAhead) % 4);
            }
        };
        load_first(0);
#pragma unroll 1
        for (int part = 0; part < parts; part++) {
            const int block = part / 2, half = part % 2, j = col + half * kSquare;
            const int left = real - block * kSquare, m = t.first + first + block * kSquare;  // left: real rows from here on
            stage.put(turn[0], factor);
            take_turns<1>(turn, turn);
            if (j >= P::N) {
                load_first(part + 1);
                continue;
            }
            float sum[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int row = square_row(k);
                const float p = factors.in_block(block, row);
                if constexpr (kAhead == 0) {
                    load_ahead(part, k);
                }
                const typename Backward::Pre now = pre[k % kSlots];
                float gate[8] = {}, up[8] = {}, value[8] = {};
                sum[k] = 0;
                if (row < left) {
                    float g[8];
                    stage.get(g, row, one(), two());
                    this->out.template eight<false>(none, gate, up, value, sum[k], g, now, p, scale);
                }
                if constexpr (kAhead == 2) {  // to where the row at hand was
                    load_ahead(part, k);
                }
                if constexpr (P::HasAct) {
                    typename P::ActType* act = this->out.act + static_cast<i64>(m + row) * P::N + j;
                    if constexpr (P::Layout == kPairs) {
                        store4<0>(act + one(), value);
                        store4<4>(act + two(), value);
                    } else {
                        store8(act + one(), value);
                    }
                }
                if constexpr (P::Layout == kPairs) {
                    float second[8];
                    Backward::paired(v[k], second, gate, up);
                    stage.set(second, row, one(), two());
                } else {
#pragma unroll
                    for (int i = 0; i < 8; i++) {
                        v[k][i] = gate[i];
                    }
                    stage.set(up, row, one(), two());
                }
            }
            if constexpr (P::HasDProb) {
                add(rows, block, scattered<1>(sum, plus));
            }
#pragma unroll kAhead == 2 ? 2 : 1
            for (int tile = 0; tile < 2; tile++) {
                if (tile == 1) {
#pragma unroll
                    for (int k = 0; k < 4; k++) {
                        stage.get(v[k], square_row(k), one(), two());
                    }
                }
                if constexpr (P::HasDBias) {
                    float all[8];
#pragma unroll
                    for (int i = 0; i < 8; i++) {
                        all[i] = v[0][i] + v[1][i] + v[2][i] + v[3][i];
                    }
                    add(cols, half * 2 + tile, scattered<4>(all, plus));
                }
                output.store(v, m, (P::Layout == kConcat ? j : 2 * j) + tile * kStep, t.group, norm);
            }
        }
        leave(t, warp_m, col, parts, rows, cols);
    }

private:
    static __device__ __forceinline__ float plus(float a, float b) { return a + b; }
    // x[at] += by, where at is no constant.
    template <int kCount>
    static __device__ __forceinline__ void add(float (&x)[kCount], int at, float by) {
#pragma unroll
        for (int i = 0; i < kCount; i++) {
            x[i] += i == at ? by : 0.0f;
        }
    }

    // Row m of C, beside the lane's columns of G from column j on.
    __device__ __forceinline__ void load_pre(typename Backward::Pre& pre, int m, int j) const {
        if constexpr (P::Layout == kPairs) {
            const typename P::CType* c = this->out.c + Backward::place(m, j);
            pre.gate.load(c + one(), c + two());
            pre.up.load(c + kSquare + one(), c + kSquare + two());
        } else {
            this->out.load(pre, m, j + one());
        }
    }

    // Leaves the parts of sums: dprob's beside its rows, dbias's in blocks of 32 gate and 32 up.
    __device__ __forceinline__ void leave(const Tile& t, int warp_m, int col, int parts, const float (&rows)[kParts / 2], const float (&cols)[4]) const {
        const int lane = threadIdx.x % 32;
        if constexpr (P::HasDProb) {
            float* to = this->out.row_parts + static_cast<i64>(col / 64) * this->out.capacity + t.first + warp_m * P::WarpM + square_row(lane % 4);
#pragma unroll
            for (int b = 0; b < kParts / 2; b++) {
                if (2 * b < parts) {
                    to[b * kSquare] = rows[b];
                }
            }
        }
        if constexpr (P::HasDBias) {
            if (t.rows > 0) {  // only tiles with real rows have parts
                const int own = square_col() + lane / 4;
                float* to = this->out.col_parts + Backward::place(t.index * (P::TileM / P::WarpM) + warp_m, col);
#pragma unroll
                for (int i = 0; i < 4; i++) {  // pairs: a tile has 16 columns of G, gate and up of each
                    const int half = i / 2 * 2 * kSquare, tile = i % 2;
                    if (col + i / 2 * kSquare < P::N) {
                        to[half + (P::Layout == kPairs ? own % 2 * kSquare + tile * 16 + own / 2 : tile * kSquare + own)] = cols[i];
                    }
                }
            }
        }
    }
};
