// Grouped matrix product (contracts, section 4).
//
//   G = alpha[g] A_g B_g^T;  no bias: C = G, D = prob G;  bias: C = D = G + prob bias[g]
//
// Tiles, warps and shared memory: row_product.cuh. Padding rows are written as zeros; rows past the last offset are neither
// read nor written.
#include "row_product.cuh"

extern "C" __global__ void __launch_bounds__(Shape<RowSpec<Params>>::kThreads, Params::Blocks)
    grouped_gemm(const Params::OperandType* a, const void* b, const int* offsets, const int* counts, const int* rows_a,
                 const int* rows_prob, const float* alpha, const float* prob, const Params::BiasType* bias, Params::DType* d, Params::CType* c, int capacity) {
    row_product<Params>(a, b, offsets, counts, rows_in_use(capacity, rows_a, rows_prob), [&](RowSmem<Params>& smem) {
        return PlainEpilogue<Params>{smem.stages, alpha, prob, bias, d, c};
    });
}
