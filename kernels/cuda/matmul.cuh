// y = a op(b) (+ bias): a (M,K), its rows perhaps counted, b (N,K) or with NMajor (K,N). One group of row_product.cuh.
#include "row_product.cuh"

extern "C" __global__ void __launch_bounds__(Shape<RowSpec<Params>>::kThreads, Params::Blocks)
    matmul(const Params::OperandType* a, const void* b, const int* rows_a, const Params::BiasType* bias, Params::DType* y, int capacity) {
    row_product<Params>(a, b, nullptr, nullptr, rows_in_use(capacity, rows_a), [&](RowSmem<Params>& smem) {
        return PlainEpilogue<Params>{smem.stages, nullptr, nullptr, bias, y, nullptr};
    });
}
