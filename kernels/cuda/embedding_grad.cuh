// dtable[v] = sum of dy over the places where id v stands, in float32, rounded once; the same bits in every run.
//
//   embedding_grad_count, _scan, _place   a stable radix sort of the places by id (counting_sort.cuh): one pass for
//                                         each Params::Bits bits of an id, the lowest first; the first pass leaves
//                                         out ids outside [0, V)
//   embedding_grad_sum                    finds each id's places by search, adds up their rows of dy
//
// Params::Warps warps share the places of an id, a run of neighbours each; their sums are added in order.
// Launch: counting_sort.cuh; sum 256 threads, or 1024 for 32 warps, the grid strides.
#include "counting_sort.cuh"

constexpr int kDigits = 1 << Params::Bits;

// Digit is the sort key of item i: Bits bits of the id at its place. The first pass takes places as they come.
struct Digit {
    const int *ids, *places;
    int shift;
    i64 vocab;
    __device__ __forceinline__ int operator()(i64 i) const {
        const int id = ids[places ? places[i] : i];
        return id < 0 || id >= vocab ? -1 : id >> shift & (kDigits - 1);
    }
};

// items_of returns how many items a pass sorts: all places, or what the first pass has kept.
__device__ __forceinline__ i64 items_of(const int* kept, const int* count, i64 tokens, i64 ids_per_token) {
    return kept ? *kept : rows_in_use(count, tokens) * ids_per_token;
}

extern "C" __global__ void __launch_bounds__(kSortThreads)
    embedding_grad_count(int* table, const int* ids, const int* places, int shift, i64 vocab, const int* kept, const int* count, i64 tokens,
                         i64 ids_per_token) {
    sort_count<kDigits>(table, items_of(kept, count, tokens, ids_per_token), Digit{ids, places, shift, vocab});
}

extern "C" __global__ void __launch_bounds__(1024) embedding_grad_scan(int* table, int* totals, int chunks) { sort_scan<kDigits>(table, totals, chunks); }

// embedding_grad_place writes the places in order of the digit; kept_out gets their number.
extern "C" __global__ void __launch_bounds__(kSortThreads)
    embedding_grad_place(int* out, int* kept_out, const int* table, const int* totals, const int* ids, const int* places, int shift, i64 vocab,
                         const int* kept, const int* count, i64 tokens, i64 ids_per_token) {
    extern __shared__ int next[];
    __shared__ int begins[kDigits], runs[kSortThreads];
    constexpr int kRun = (kDigits + kSortThreads - 1) / kSortThreads;
    int sum = 0;
    for (int i = 0; i < kRun; i++)
        if (threadIdx.x * kRun + i < kDigits) sum += totals[threadIdx.x * kRun + i];
    runs[threadIdx.x] = sum;
    __syncthreads();
    for (int d = 1; d < kSortThreads; d *= 2) {
        const int left = threadIdx.x >= d ? runs[threadIdx.x - d] : 0;
        __syncthreads();
        runs[threadIdx.x] += left;
        __syncthreads();
    }
    int at = runs[threadIdx.x] - sum;
    for (int i = 0; i < kRun; i++) {
        const int b = threadIdx.x * kRun + i;
        if (b >= kDigits) break;
        begins[b] = at;
        at += totals[b];
    }
    if (kept_out && blockIdx.x == 0 && threadIdx.x == kSortThreads - 1) *kept_out = runs[kSortThreads - 1];
    const i64 n = items_of(kept, count, tokens, ids_per_token);
    const auto put = [&](i64 i, int digit, int rank) { out[begins[digit] + rank] = places ? places[i] : (int)i; };
    sort_place<kDigits>(next, table, n, Digit{ids, places, shift, vocab}, put, [](i64) {});
}

// first_place returns the first of n sorted places whose id is at least v. The whole warp searches, 32 probes at a time.
__device__ __forceinline__ int first_place(const int* places, const int* ids, int n, i64 v) {
    int from = 0, to = n; // the answer is in [from, to]
    while (from < to) {
        const int step = (to - from + 31) / 32, probe = from + ((int)(threadIdx.x % 32) + 1) * step - 1;
        const bool below = probe < to && ids[places[probe]] < v;
        const int passed = __popc(__ballot_sync(kFullWarp, below));
        from += passed * step;
        to = min(to, from + step - 1);
    }
    return from;
}

// add_places adds elements [column, column + Elems) of the rows at places [from, to), in order, several in flight.
template <int Elems>
__device__ __forceinline__ void add_places(float (&acc)[Elems], const void* dy, const int* places, int from, int to, int width, int column) {
    constexpr int kUnroll = 4;
    for (int p = from; p < to; p += kUnroll) {
        Pack<Params::DYType, Elems> x[kUnroll];
#pragma unroll
        for (int u = 0; u < kUnroll; u++)
            if (p + u < to) x[u].load(dy, (i64)places[p + u] * width + column);
#pragma unroll
        for (int u = 0; u < kUnroll; u++)
            if (p + u < to)
#pragma unroll
                for (int i = 0; i < Elems; i++) acc[i] += x[u].get(i);
    }
}

constexpr int kShare = Params::Warps, kSumBlock = kShare > 8 ? 32 * kShare : 256, kTeams = kSumBlock / (32 * kShare);

// One warp takes a row of the table, several share 32 * Elems columns of one.
extern "C" __global__ void __launch_bounds__(kSumBlock)
    embedding_grad_sum(void* dtable, const void* dy, const int* ids, const int* places, const int* kept, i64 vocab, int width) {
    constexpr int kElems = Params::Elems;
    __shared__ float sums[kShare > 1 ? kShare : 1][kShare > 1 ? 32 * kElems : 1];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n = *kept;
    const int pieces = (width + 32 * kElems - 1) / (32 * kElems);
    const int apart = kShare > 1 ? pieces : 1; // teams that a row's columns are spread over
    for (i64 item = (i64)blockIdx.x * kTeams + warp / kShare; item < vocab * apart; item += (i64)gridDim.x * kTeams) {
        const i64 v = item / apart;
        int from = first_place(places, ids, n, v);
        int to = from < n && ids[places[from]] == v ? first_place(places, ids, n, v + 1) : from;
        if constexpr (kShare > 1) {
            const int part = (to - from + kShare - 1) / kShare, end = to;
            from = min(end, from + warp * part);
            to = min(end, from + part);
        }
        for (int piece = (int)(item % apart); piece < pieces; piece += apart) {
            const int column = (piece * 32 + lane) * kElems;
            float acc[kElems] = {};
            if (column < width) add_places(acc, dy, places, from, to, width, column);
            if constexpr (kShare > 1) {
                __syncthreads(); // sums may still be read
#pragma unroll
                for (int i = 0; i < kElems; i++) sums[warp][lane * kElems + i] = acc[i];
                __syncthreads();
                if (warp > 0) continue;
                for (int w = 1; w < kShare; w++)
#pragma unroll
                    for (int i = 0; i < kElems; i++) acc[i] += sums[w][lane * kElems + i];
            }
            if (column >= width) continue;
            Pack<Params::DTableType, kElems> p;
            p.put(acc);
            p.store(dtable, v * width + column);
        }
    }
}
