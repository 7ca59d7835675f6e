// y[t, i*D:(i+1)*D] = table[ids[t,i]]: rows copied in units of Params::Unit bytes, zeros for an id outside [0, V).
// Launch: rows.cuh, a row for each id.
#include "rows.cuh"

extern "C" __global__ void __launch_bounds__(256, 3)
    embedding(char* y, const int* ids, const char* table, const int* count, i64 tokens, i64 ids_per_token, i64 vocab, int row_bytes) {
    using U = Unit<Params::Unit>;
    for_rows<Params::Lanes>(rows_in_use(count, tokens) * ids_per_token, [&](i64 place, int lane) {
        const i64 id = ids[place];
        const char* from = id >= 0 && id < vocab ? table + id * row_bytes : nullptr;
        copy_row<Params::Lanes>((U*)(y + place * row_bytes), (const U*)from, row_bytes / Params::Unit, lane);
    });
}
