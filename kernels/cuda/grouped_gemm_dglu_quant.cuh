// Grouped matrix product of block-scaled operands, or of block-scaled weights beside a plain dY, with the backward of a gated
// activation (contracts, sections 6 and 7).
//
//   G = alpha[g] global_a[g] global_b[g] A_g B_g;  dC, act, and parts of dprob, dbias and amax from G and beta[g] C (dglu.cuh)
//
// Tiles, warps and shared memory: scaled_rows.cuh; outputs: dglu_epilogue.cuh; those of a quantized dC, as grouped_gemm_quant.cuh
// has them: dglu_quant_epilogue.cuh.
//
// Params: those of scaled_rows.cuh, of DGLUEpilogue and of QuantOutput.
#include "dglu_quant_epilogue.cuh"
#include "scaled_rows.cuh"

extern "C" __global__ void __launch_bounds__(Shape<ScaledRowSpec<Params>>::kThreads, Params::Blocks)
    grouped_gemm_dglu_quant(const void* a, const void* b, const unsigned char* sfa, const void* sfb, bf16* left, bf16* right, u32* progress, const int* offsets,
                            const int* counts, const int* rows_a, const int* rows_c, const int* rows_prob, const float* alpha, const float* global_a, const float* global_b,
                            const float* prob, const float* beta, const Params::CType* c, Params::DCType* dc, Params::ActType* act,
                            float* row_parts, float* col_parts, u32* amax_parts, int capacity, const float* norm, unsigned char* dc_sf, Params::DCType* dc_col,
                            unsigned char* dc_col_sf) {
    using Extra = ScaledExtra<Params>;
    scaled_rows<Params>({a, b, sfa, sfb, left, right, progress}, offsets, counts, rows_in_use(capacity, rows_a, rows_c, rows_prob), [&](ScaledRowSmem<Params>& smem) {
        return quantizing_or<DGLUQuantEpilogue<Params, Extra>>(
            DGLUEpilogue<Params, Extra>{smem.stages, {alpha, global_a, global_b, nullptr}, {prob, beta, c, dc, act, row_parts, col_parts, amax_parts, capacity}},
            QuantOutput<Params, Params::DCType, 2 * Params::N>{smem.groups, norm, dc, dc_sf, dc_col, dc_col_sf, capacity});
    });
}
