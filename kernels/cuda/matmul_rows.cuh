// y = a^T op(b) (+ bias), summed over the rows of a, which may be counted: a (K,M), b (K,N) or (N,K).
//
// The rows are cut into E even splits, each a group of group_product.cuh that writes a product of its own; split_sum.cuh adds
// them up where there are several.
#include "group_product.cuh"

extern "C" __global__ void __launch_bounds__(Shape<GroupSpec<Params>>::kThreads, Params::Blocks)
    matmul_rows(const Params::OperandType* a, const Params::OperandType* b, const int* rows_a, const Params::BiasType* bias,
                Params::OutType* y, int capacity) {
    using Smem = GroupSmem<Params>;
    static_assert(sizeof(Smem) == Params::SharedBytes, "the launch gives SharedBytes of shared memory");
    Smem& smem = *reinterpret_cast<Smem*>(ptx::dynamic_shared());
    smem.groups.split(rows_in_use(capacity, rows_a), Shape<GroupSpec<Params>>::kBlock);
    const GroupWork<Params> work{{}, smem.groups, a, b, capacity};
    GroupEpilogue<Params> epilogue{smem.stages, nullptr, bias, y};
    multiply_tiles<GroupSpec<Params>>(smem.slots, work, epilogue);
}
