// The work of a product of rows whose operands are codes with factors and which has many rows a group: some thread blocks decode both
// operands to bf16 in device memory while the others multiply what has been decoded, by the plain main loop. Decoding is bound by memory
// and multiplying is not, so that both take less time at once than one after the other.
//
// What there is to decode is cut into strips of a few rows, in the order of need: group after group, A's rows, then B's. Warps take strips
// by a counter: at first those of all thread blocks, until what their own first tile needs is taken, then those of the decoders, to the
// end. Copies wait for the strips of a group by another counter. Nobody waits for ever: the thread blocks that come first are the
// decoders, so that who waits, waits for one that runs and waits for nobody.
//
// P: that of scaled_rows.cuh.
#pragma once
#include "code_strips.cuh"
#include "row_product.cuh"

// Words of device memory of a launch, zeros before: whether a value has been found that bf16 does not hold; the thread blocks that have
// come; the strips that are taken; those of each group that are decoded, and whether all of its are. What some wait for is in other
// lines than what others count.
template <int kGroups>
struct Progress {
    u32* words;

    __device__ __forceinline__ u32* extreme() const { return words; }
    __device__ __forceinline__ u32* come() const { return words + 1; }
    __device__ __forceinline__ u32* taken() const { return words + 32; }
    __device__ __forceinline__ u32* decoded(int group) const { return words + 64 + group; }
    __device__ __forceinline__ u32* ready(int group) const { return words + ceil_div(64 + kGroups, 32) * 32 + group; }
};

// Operands of the kernels of this family, as their arguments. left (capacity,K) and right (E,N,K): room for what is decoded ahead;
// progress: the words of Progress, of which other loops know extreme() alone.
struct ScaledOperands {
    const void* a;
    const void* b;
    const unsigned char* sfa;
    const void* sfb;
    bf16* left;
    bf16* right;
    u32* progress;
};

template <class P>
struct AheadWork : RowWork<P> {
    using Rows = RowWork<P>;
    using Tile = typename Rows::Tile;
    using Smem = RowSmem<P>;
    static constexpr int kRows = P::K >= 6144 ? 16 : P::K >= 3072 ? 32 : 64;  // of a strip, so that it is worth its beginning
    static constexpr int kStrips = ceil_div(P::N, kRows);                     // of a group's B
    // A warp's part of the ring, which nobody uses before the product, in steps of 2048 codes if two of them go in.
    static constexpr int kRoom = sizeof(Smem::slots) / (Shape<RowSpec<P>>::kThreads / 32) / 128 * 128;
    static constexpr int kTurns = sizeof(typename StripDecoder<P, 8, 2>::Shared) <= kRoom ? 8 : 4;
    using Least = StripDecoder<P, kTurns, 2>;
    static constexpr int kSlots = min_of(12, (kRoom - static_cast<int>(sizeof(typename Least::Shared))) / static_cast<int>(sizeof(typename Least::Slot)) + 2);
    using Decoder = StripDecoder<P, kTurns, kSlots>;
    static_assert(sizeof(typename Decoder::Shared) <= kRoom && kSlots >= 2, "there is room");
    static_assert(P::CodesA == P::CodesB && !P::NMajor && P::K % 8 == 0, "what is decoded");

    ScaledOperands x;
    Progress<P::E> progress;
    int number, multipliers;  // of this thread block among those that multiply; how many there are

    __device__ __forceinline__ AheadWork(const Groups<P::E>& groups, const ScaledOperands& x) : Rows{{}, groups, x.left, x.right}, x(x), progress{x.progress} {}

    __device__ __forceinline__ int first() const { return number; }
    __device__ __forceinline__ int step() const { return multipliers; }
    __device__ __forceinline__ Source<bf16> b(const Tile& t) const { return Rows::b(t, Rows::dense(x.right, t.group)); }

    // Waits until the operands of the tile are decoded. All lanes of a warp call it together.
    __device__ __forceinline__ void await(const Tile& t) const {
        if (threadIdx.x % 32 == 0) {
            while (ptx::load_acquire(progress.ready(t.group)) == 0) {
                ptx::sleep(500);  // who waits slows down those waited for
            }
        }
        __syncwarp();
    }

    // Does the part of this thread block in the decoding; false: it has none in the product. All of its threads call it.
    __device__ __forceinline__ bool decode(Smem& smem) {
        Plan& plan = *reinterpret_cast<Plan*>(smem.stages);
        static_assert(sizeof(Plan) <= sizeof(smem.stages), "nobody uses the stages before the product");
        const int lane = threadIdx.x % 32;
        if (threadIdx.x < 32) {
            make(plan);
        }
        __syncthreads();
        const int all = plan.first[P::E];
        number = plan.number;
        multipliers = gridDim.x - plan.decoders;
        const int target = number < 0 || plan.decoders == 0 ? all : needed(plan);
        const auto take = [&] {  // in lane 0; all: none
            return lane != 0 || static_cast<int>(ptx::load_relaxed(progress.taken())) >= target ? all : static_cast<int>(ptx::fetch_add(progress.taken(), 1));
        };
        const auto from_first = [&](int strip) { return __shfl_sync(0xffffffffu, strip, 0); };
        Decoder decoder(*reinterpret_cast<typename Decoder::Shared*>(smem.slots + threadIdx.x / 32 * kRoom));
        int strip = from_first(take()), group = 0;
        Strip s = place(plan, strip, group);
        decoder.begin(s);
        while (strip < all) {
            const int ahead = take(), of = group;  // it is known when it is needed
            decoder.decode(s);
            strip = from_first(ahead);
            s = place(plan, strip, group);
            decoder.begin(s);
            decoder.finish();
            __syncwarp();
            if (lane == 0 && static_cast<int>(ptx::fetch_add_release(progress.decoded(of), 1)) == count(of) - 1) {
                ptx::store_release(progress.ready(of), 1);
            }
        }
        if (decoder.found) {
            *progress.extreme() = 1;
        }
        ptx::cp_async_wait<0>();
        __syncthreads();
        return number >= 0;
    }

private:
    // What the threads of a block know before the product.
    struct Plan {
        int first[P::E + 1];   // the number of a group's first strip; the last element counts all strips
        int decoders, number;  // that is this thread block's among those that multiply, below 0 for a decoder
    };

    // The rows of A that group g has, and its strips: none where nothing is multiplied.
    __device__ __forceinline__ int rows(int g) const { return this->groups.real[g] - this->groups.begin(g); }
    __device__ __forceinline__ int count(int g) const { return rows(g) > 0 ? ceil_div(rows(g), kRows) + kStrips : 0; }

    // Makes the plan, by one warp.
    __device__ __forceinline__ void make(Plan& plan) const {
        const int lane = threadIdx.x;
        int strips = 0, tiles = 0;
        for (int base = 0; base < P::E; base += 32) {
            const int g = base + lane;
            int n = g < P::E ? count(g) : 0, t = g < P::E ? ceil_div(rows(g), P::TileM) * Rows::kCols : 0;
            for (int d = 1; d < 32; d *= 2) {
                const int before = __shfl_up_sync(0xffffffffu, n, d);
                n += lane >= d ? before : 0;
                t += __shfl_xor_sync(0xffffffffu, t, d);
            }
            if (g < P::E) {
                plan.first[g + 1] = strips + n;
            }
            strips += __shfl_sync(0xffffffffu, n, 31);
            tiles += t;
        }
        if (lane == 0) {
            plan.first[0] = 0;
            plan.decoders = decoders(strips, tiles);
            plan.number = static_cast<int>(ptx::fetch_add(progress.come(), 1)) - plan.decoders;
        }
    }

    // How many thread blocks decode to the end. The others take a number of tiles one after the other: of all such numbers, the one
    // with which multiplying and decoding, by the thread blocks that are left, take the shortest time. A thread block decodes 2^14
    // codes in the time of kPart multiplications.
    static __device__ __forceinline__ int decoders(int strips, int tiles) {
        constexpr float kPart = P::CodesB == kE2M1 ? 1.75e6f : 1.5e6f, kTile = static_cast<float>(P::TileM) * P::TileN * P::K;
        const int all = gridDim.x;
        if (all == 1) {
            return 0;
        }
        const float decoding = kPart * (kRows * P::K / 16384.0f) * strips;
        float least = decoding + kTile * tiles;
        int best = 1;
        for (int turns = ceil_div(max_of(tiles, 1), all - 1); turns * kTile < least; turns++) {
            const int left = all - ceil_div(tiles, turns);
            const float alone = decoding / left, time = alone > turns * kTile ? alone : turns * kTile;
            best = time < least ? left : best;
            least = time < least ? time : least;
        }
        return best;
    }

    // The strips of all groups up to that of the block's first tile.
    __device__ __forceinline__ int needed(const Plan& plan) const {
        for (int n = number; n < this->tiles(); n += multipliers) {
            const Tile t = this->tile(n);
            if (t.depth > 0) {
                return plan.first[t.group + 1];
            }
        }
        return 0;
    }

    // Where a strip lies, and its group; empty, and no group, where there is none.
    __device__ __forceinline__ Strip place(const Plan& plan, int strip, int& group) const {
        constexpr i64 kMatrix = static_cast<i64>(P::N) * P::K;
        constexpr int kWords = Decoder::kWords;
        Strip s{};
        if (strip >= plan.first[P::E]) {
            return s;
        }
        group = group_of(plan.first, strip);
        const int i = strip - plan.first[group], ofA = ceil_div(rows(group), kRows);
        const bool a = i < ofA;
        const int row = a ? this->groups.begin(group) + i * kRows : (i - ofA) * kRows;
        const unsigned char* codes = a ? static_cast<const unsigned char*>(x.a) : group_piece<P::Ptrs>(x.b, group, Decoder::bytes(kMatrix));
        const unsigned char* factors = a ? x.sfa : group_piece<P::Ptrs>(x.sfb, group, static_cast<i64>(ceil_div(P::N, 128)) * kWords * 512);
        s.rows = min_of((a ? this->groups.real[group] : P::N) - row, kRows);
        s.codes = codes + Decoder::bytes(static_cast<i64>(row) * P::K);
        s.out = (a ? x.left : x.right + group * kMatrix) + static_cast<i64>(row) * P::K;
        s.factors = factors + factor_row(row, kWords);  // a multiple of 32, or else the strip ends before the next one
        return s;
    }
};
