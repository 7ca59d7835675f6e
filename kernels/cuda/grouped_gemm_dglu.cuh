// Grouped matrix product with the backward of a gated activation (contracts, section 6).
//
//   G = alpha[g] A_g B_g;  dC, act, and parts of dprob, dbias and amax from G and beta[g] C (dglu.cuh)
//
// Tiles, warps and shared memory: row_product.cuh; outputs: dglu_epilogue.cuh.
//
// Params: those of row_product.cuh and of DGLUEpilogue.
#include "dglu_epilogue.cuh"

extern "C" __global__ void __launch_bounds__(Shape<RowSpec<Params>>::kThreads, Params::Blocks)
    grouped_gemm_dglu(const Params::OperandType* a, const void* b, const int* offsets, const int* counts, const int* rows_a,
                      const int* rows_c, const int* rows_prob, const float* alpha, const float* prob, const float* beta, const Params::CType* c,
                      Params::DCType* dc, Params::ActType* act, float* row_parts, float* col_parts, u32* amax_parts, int capacity) {
    const int limit = rows_in_use(capacity, rows_a, rows_c, rows_prob);
    row_product<Params>(a, b, offsets, counts, limit, [&](RowSmem<Params>& smem) {
        return DGLUEpilogue<Params>{smem.stages, alpha, {prob, beta, c, dc, act, row_parts, col_parts, amax_parts, capacity}};
    });
}
