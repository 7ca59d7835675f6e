// Grouped matrix product with a gated activation (contracts, section 5): FC1.
//
//   C = alpha[g] A_g B_g^T (+ bias[g]);  D = prob act(gate, up), gate and up from the float32 C
//
// Tiles, warps and shared memory: row_product.cuh; outputs: glu_epilogue.cuh.
//
// Params: those of row_product.cuh and of GLUEpilogue.
#include "glu_epilogue.cuh"

extern "C" __global__ void __launch_bounds__(Shape<RowSpec<Params>>::kThreads, Params::Blocks)
    grouped_gemm_glu(const Params::OperandType* a, const void* b, const int* offsets, const int* counts, const int* rows_a,
                     const int* rows_prob, const float* alpha, const float* prob, const Params::BiasType* bias, Params::DType* d, Params::CType* c,
                     int capacity) {
    row_product<Params>(a, b, offsets, counts, rows_in_use(capacity, rows_a, rows_prob), [&](RowSmem<Params>& smem) {
        return GLUEpilogue<Params>{smem.stages, alpha, prob, bias, d, c};
    });
}
