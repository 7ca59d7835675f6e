// The main loop of products over few rows, where copying the weights is all the work: scaled_pipeline.cuh for one warp row of
// 32 or 64 rows. The weights' codes go from the ring to registers, and each is decoded once, by the warp that multiplies it.
// A's are decoded by all threads, a step ahead, to one of two tiles of bf16, for all warps.
//
// A block is 32 bytes of codes of each row: 32 codes of 8 bits, 64 of 4. Lane 4g+q reads bytes [8q, 8q+8) of row g of a
// piece, of A as of B, so that both meet in the same order of the reduction whatever the order of decoded pairs, and all
// codes of a lane share their factor. A slot of the ring has kThinWide blocks and the words of four factors that they need, so that
// more of a row is copied at once; threads meet once a step, which is kStep of its blocks. Rows change the places of their 16
// bytes so that lanes of different rows meet no bank twice.
//
// A's tile of bf16 is units of 16 bytes, fragments as mma.sync takes them: unit (block, part, piece, lane) has two decoded pairs of
// row g and of row g+8 of the piece's 16.
//
// Thread blocks take units, a group's columns [TileN c, TileN (c+1)), a grid apart: all of its row tiles one after the other, so
// that equal groups are equal work, and weights that several row tiles read are read from memory once.
#pragma once
#include "epilogue.cuh"
#include "scaled_operand.cuh"

constexpr int kThinWide = 2;  // chunk_place counts on it

// Codes that are NaN or Inf, and factors that leave bf16's range, are only looked for on the way. A tile that has any is made
// again, element by element, in float (exact_tile).
//
// Spec: that of scaled_pipeline.cuh, of one operand. kBlock: codes of a block. kUp: what is decoded is 2^kUp times as large, as
// the other operand is as much smaller. kFolded: a code's two multiplications (decode.cuh) are one, so that the factor's range is less.
template <class Spec, int kThreads, bool kTailed, int kUp = 0, bool kFolded = false>
struct ThinCodes {
    using Format = CodeFormat<Spec::kCodes>;
    static constexpr int kBits = Format::kBits, kChunk = Format::kChunk, kBlock = 2 * kChunk, kDeep = kThinWide * kBlock;
    static constexpr int kChunks = 2 * kThinWide, kRowBytes = 16 * kChunks;  // of a row in a slot
    static constexpr int kStride = kThreads / kChunks, kPasses = ceil_div(Spec::kRows, kStride);
    static constexpr int kSlotBytes = Spec::kRows * kRowBytes;
    // Words of factors in a slot, or slots that a word lasts for. A word of all rows is laid out as in memory: 128 rows after the other.
    static constexpr int kWord = 4 * Spec::kVec, kWords = max_of(1, kDeep / kWord), kPhases = max_of(1, kWord / kDeep);
    static constexpr int kSides = ceil_div(Spec::kRows, 128), kWordBytes = kSides * 512, kFactorBytes = kWords * kWordBytes;
    static constexpr int kPairs = 64 / kBits / 2;  // that a lane has of a row
    static constexpr bool kPowers = Spec::kFactors == kE8M0Factors;
    static constexpr u32 kMagnitudes = Format::kMagnitude * (kBits == 8 ? 0x01010101u : 0x11111111u);
    // What the exponent of a factor that codes are multiplied by is larger by.
    static constexpr int kRaised = kUp + (kFolded ? 127 - Format::kBias : 0);
    // The e8m0 factors from kLeast to kMost give normal numbers, and values that are multiples of 2^-133 and below 2^128.
    static constexpr int kLeast = kPowers ? max_of(0, max_of(1 - kRaised, -6 - Format::kLow - kUp)) : 0;
    static constexpr int kMost = min_of(254 - kRaised, 254 - Format::kHigh - kUp);
    static_assert(!kPowers || (kLeast < 128 && kMost >= 128), "any_large and any_small look at bits 7 first");
    static_assert(Spec::kMajor == kReduction && !Spec::kAlongOuter && (kStride % 64 == 0 || 32 % kStride == 0), "rows of the reduction");

    // Whether words are copied for 128 rows at a time, those of a tile among them; without, row by row.
    static constexpr bool kEven = Spec::kUpRow == 0 && Spec::kLd % kWord == 0;
    static constexpr int kPieces = kWords * kSides * 32, kTurns = kEven ? ceil_div(kPieces, kThreads) : ceil_div(Spec::kRows, kThreads);
    static constexpr int kPointers = kEven ? 1 : kTurns;
    static_assert(!kEven || kTurns == 1 || kThreads % (32 * kSides) == 0, "whole words a turn");

    const unsigned char* from;
    const unsigned char* factors[kPointers];
    int extent;

    static __device__ __forceinline__ constexpr i64 bytes(i64 codes) { return codes * kBits / 8; }
    // The place of 16 bytes of a row, and of a row's word.
    static __device__ __forceinline__ int chunk_place(int row, int chunk) { return (chunk ^ (row & 2)) * 16; }
    static __device__ __forceinline__ int row_place(int row) { return row / 128 * 512 + row % 32 * 16 + row / 32 % 4 * 4; }
    // Where the words of a tile whose first row is this begin.
    static __device__ __forceinline__ int words_from(int first) { return kEven ? first % 128 : 0; }

    __device__ __forceinline__ void start(const CodeSource& s) {
        const int row = threadIdx.x / kChunks;
        from = s.codes + bytes(weight_row<Spec>(row) * Spec::kLd) + threadIdx.x % kChunks * 16;
        extent = s.extent;
        if constexpr (kEven) {
            const int piece = threadIdx.x / 32, side = piece % kSides;
            factors[0] = s.factors + static_cast<i64>(s.row / 128 + side) * s.words * 512 + piece / kSides * 512 + threadIdx.x % 32 * 16;
        } else {
#pragma unroll
            for (int i = 0; i < kPointers; i++) {
                factors[i] = s.factors + factor_row(s.row + static_cast<int>(weight_row<Spec>(threadIdx.x + i * kThreads)), s.words);
            }
        }
    }

    // Copies the next blocks; left: what remains of the reduction, 0 for nothing to copy.
    __device__ __forceinline__ void issue(int thread, u32 slot, int left) const {
        int n = 16;
        if constexpr (kTailed) {
            n = static_cast<int>(bytes(clamp_of(left - thread % kChunks * kChunk, 0, kChunk) + (kBits == 4)));
        }
        const u32 to = slot + thread / kChunks * kRowBytes + chunk_place(thread / kChunks, thread % kChunks);
#pragma unroll
        for (int pass = 0; pass < kPasses; pass++) {
            const int row = thread / kChunks + pass * kStride;
            const bool mine = Spec::kRows % kStride == 0 || row < Spec::kRows;
            // What does not exist becomes zero: stale codes must not look like NaNs.
            ptx::cp_async16_zero(left > 0 && mine, to + pass * kStride * kRowBytes, from + bytes(weight_row<Spec>(pass * kStride) * Spec::kLd),
                                 Spec::kFull || row < extent ? n : 0);
        }
    }

    // Copies their words of factors; left: from the first word on.
    __device__ __forceinline__ void issue_factors(int thread, u32 words, int left) const {
#pragma unroll
        for (int i = 0; i < kTurns; i++) {
            if constexpr (kEven) {
                const int piece = thread / 32 + i * (kThreads / 32);
                const bool there = (Spec::kFull || kSides == 1 || piece % kSides * 128 < extent) && (!kTailed || piece / kSides * kWord < left);
                ptx::cp_async16_zero(left > 0 && (kPieces % kThreads == 0 || piece * 32 < kPieces), words + (i * kThreads + thread) * 16,
                                     factors[0] + i * (kThreads / (32 * kSides)) * 512, there ? 16 : 0);
            } else {
                const int row = thread + i * kThreads;
                const bool mine = Spec::kRows % kThreads == 0 || row < Spec::kRows;
#pragma unroll
                for (int w = 0; w < kWords; w++) {
                    const int n = kTailed ? clamp_of(ceil_div(left - w * kWord, Spec::kVec), 0, 4) : 4;  // factors past the end may be NaN
                    ptx::cp_async4_zero(left > 0 && mine, words + w * kWordBytes + row_place(row), factors[i] + w * 512, Spec::kFull || row < extent ? n : 0);
                }
            }
        }
    }

    // phase: of the slot among those of its word.
    __device__ __forceinline__ void advance(int phase) {
        from += kRowBytes;
#pragma unroll
        for (int i = 0; i < kPointers; i++) {
            factors[i] += kPhases == 1 ? kWords * 512 : phase == kPhases - 1 ? 512 : 0;
        }
    }

    // Whether one of four factors is beyond kMost, or NaN.
    static __device__ __forceinline__ u32 any_large(u32 four) {
        return (kPowers ? ((four & 0x7f7f7f7fu) + (0xff - kMost) * 0x01010101u) & four : specials<kE4M3>(four)) & 0x80808080u;
    }
    // Whether one is below kLeast.
    static __device__ __forceinline__ u32 any_small(u32 four) {
        return kLeast == 0 ? 0 : factors_below(four, kLeast);
    }

    // Block at, among those of a slot or of the slots of a word: its word in the slot, and which of the word's factors is this lane's.
    static __device__ __forceinline__ int word_of(u32 at) { return kWords == 1 ? 0 : at * kBlock / kWord; }
    static __device__ __forceinline__ int factor_of(int thread, u32 at) { return at * (kBlock / Spec::kVec) % 4 + thread % 4 * (kBlock / 4) / Spec::kVec; }

    // Where a lane reads the word of row `row`, and its codes of that row in a slot.
    static __device__ __forceinline__ u32 word_place(u32 words, int row, u32 at) { return words + word_of(at) * kWordBytes + row_place(row); }
    static __device__ __forceinline__ u32 place(int thread, u32 slot, int row, int block) {
        return slot + row * kRowBytes + chunk_place(row, block * 2 + thread % 4 / 2) + thread % 2 * 8;
    }

    // This lane's factors of the words at place and 128 bytes on, as codes are multiplied by them, in both halves.
    static __device__ __forceinline__ void read_factors(int thread, u32 (&out)[2], u32 place, u32 at) {
        const u32 four[2] = {ptx::ld_shared4(place), ptx::ld_shared4(place + 128)};
        const int i = factor_of(thread, at);
        if constexpr (kPowers) {
#pragma unroll
            for (int k = 0; k < 2; k++) {
                out[k] = ptx::pick_bytes(four[k], 0, 0x4040 + 0x0101 * i) * 128 + kRaised * 0x00800080;
            }
        } else {
            constexpr u32 kBy = static_cast<u32>(127 + kRaised) << 7;
            const u32 both = ptx::mul_bf16x2(byte_pair<kE4M3>(ptx::pick_bytes(four[0], four[1], 0x4000 + 0x1111 * i)), kBy * 0x00010001u);
            out[0] = ptx::pick_bytes(both, 0, 0x1010);
            out[1] = ptx::pick_bytes(both, 0, 0x3232);
        }
    }

    // Decodes this lane's codes at from, from word kFirst of its two on. top is what see makes of them.
    template <int kFirst, int kCount>
    static __device__ __forceinline__ void read(u32 (&out)[kPairs / 2 * kCount], u32& top, u32 from, u32 factor) {
        u32 w[2];
        if constexpr (kCount == 2) {
            ptx::ld_shared8(w, from);
        } else {
            w[0] = ptx::ld_shared4(from + kFirst * 4);
        }
#pragma unroll
        for (int i = 0; i < kCount; i++) {
            if constexpr (kBits == 8) {
                out[2 * i] = byte_bits<Spec::kCodes>(w[i] << 8);
                out[2 * i + 1] = byte_bits<Spec::kCodes>(w[i]);
                see(top, out[2 * i]);
                see(top, out[2 * i + 1]);
            } else {
                repeat<0, 4>([&](auto k) { out[4 * i + decltype(k)::value] = nibble_bits<decltype(k)::value>(w[i]); });
            }
        }
#pragma unroll
        for (int i = 0; i < kPairs / 2 * kCount; i++) {
            out[i] = ptx::mul_bf16x2(kFolded ? out[i] : restored<Spec::kCodes>(out[i]), factor);
        }
    }

    // Whether this lane has a code that is not zero at from.
    static __device__ __forceinline__ bool any_code(u32 from) {
        u32 w[2];
        ptx::ld_shared8(w, from);
        return ((w[0] | w[1]) & kMagnitudes) != 0;
    }

    // Whether top has seen NaN or Inf.
    static __device__ __forceinline__ bool any_special(u32 top) {
        return kBits == 8 && ((kMaxima ? (top & 0x7fff7fffu) + kBelow : top) & 0x80008000u) != 0;
    }

private:
    static constexpr bool kMaxima = ptx::kArch >= 860;  // has maxima of magnitudes
    // What takes the moved bits of NaN and Inf to bit 15, and none below.
    static constexpr u32 kBelow = (0x8000 - (Spec::kCodes == kE4M3 ? 0x7f << 4 : 0x7c << 5)) * 0x00010001u;

    static __device__ __forceinline__ void see(u32& top, u32 pair) {
        if constexpr (kMaxima) {
            top = ptx::max_abs_bf16x2(top, pair);
        } else {
            top |= (pair & 0x7fff7fffu) + kBelow;
        }
    }
};

// A plain A beside such codes: like names, the same order of the reduction.
template <class Spec, class Codes, int kThreads, bool kTailed>
struct ThinPlain {
    static constexpr int kPairs = Codes::kPairs, kChunks = Codes::kDeep / 8, kRowBytes = kChunks * 16;  // chunks of a row in a slot
    static constexpr int kOfBlock = kChunks / kThinWide;
    static constexpr int kStride = kThreads / kChunks, kPasses = ceil_div(Spec::kRows, kStride);
    static constexpr int kSlotBytes = Spec::kRows * kRowBytes, kFactorBytes = 0;
    static_assert(sizeof(typename Spec::T) == 2 && Spec::kRows % kStride == 0, "bf16, whole passes");

    const unsigned char* from;
    int extent;

    static __device__ __forceinline__ int chunk_place(int row, int chunk) { return (chunk ^ (kOfBlock == 4 ? (row & 1) * 4 : row & 1)) * 16; }

    __device__ __forceinline__ void start(const Source<typename Spec::T>& s) {
        from = reinterpret_cast<const unsigned char*>(s.first + threadIdx.x / kChunks * Spec::kLd) + threadIdx.x % kChunks * 16;
        extent = s.extent;
    }

    __device__ __forceinline__ void issue(int thread, u32 slot, int left) const {
        const int chunk = thread % kChunks, n = kTailed ? clamp_of(left - chunk * 8, 0, 8) * 2 : 16;
#pragma unroll
        for (int pass = 0; pass < kPasses; pass++) {
            const int row = thread / kChunks + pass * kStride;
            ptx::cp_async16_zero(left > 0, slot + row * kRowBytes + chunk_place(row, chunk), from + pass * kStride * Spec::kLd * 2, row < extent ? n : 0);
        }
    }

    __device__ __forceinline__ void issue_factors(int, u32, int) const {}
    __device__ __forceinline__ void advance(int) { from += kRowBytes; }

    // The place of the elements that go with word kFirst of codes.
    template <int kFirst>
    static __device__ __forceinline__ u32 place_of(int thread, u32 slot, int row, int block) {
        const int chunk = block * kOfBlock + (kOfBlock == 4 ? thread % 4 : thread % 4 * 2 + kFirst);
        return slot + row * kRowBytes + chunk_place(row, chunk) + (kOfBlock == 4 ? kFirst * 8 : 0);
    }

    template <int kFirst, int kCount>
    static __device__ __forceinline__ void read(u32 (&out)[kPairs / 2], u32&, u32 from, u32) {
        static_assert(kCount == 1, "as much as goes with a word of codes");
        constexpr int kWords = kPairs / 2, kApart = kPairs / 2;  // of the elements; the elements between those of a pair
        u32 w[kWords];
        if constexpr (kWords == 2) {
            ptx::ld_shared8(w, from);
        } else {
            ptx::ld_shared16(w, from);
        }
#pragma unroll
        for (int k = 0; k < kWords; k++) {  // the pair's first element is k
            out[k] = ptx::pick_bytes(w[k / 2], w[(k + kApart) / 2], k % 2 == 0 ? 0x5410 : 0x7632);
        }
    }
};

template <class Spec>
struct ThinShape {
    static constexpr int kThreads = Shape<Spec>::kThreads;
    // Beside codes, B is smaller and A larger by a power that leaves room for both multiplications in one.
    static constexpr bool kFolded = Spec::A::kCodes != kNoCodes;
    static constexpr int kUp = !kFolded ? 0 : Spec::B::kFactors == kE4M3Factors ? 8 : 32;
    using B = ThinCodes<typename Spec::B, kThreads, Spec::kThinTailed, -kUp, kFolded>;
    template <class A, bool kPlain>
    struct Other {
        using Type = ThinCodes<A, kThreads, Spec::kThinTailed, kUp>;
    };
    template <class A>
    struct Other<A, true> {
        using Type = ThinPlain<A, B, kThreads, Spec::kThinTailed>;
    };
    using A = typename Other<typename Spec::A, Spec::A::kCodes == kNoCodes>::Type;
    // A slot: A, B, A's words of factors, B's.
    static constexpr int kFactorsAt = A::kSlotBytes + B::kSlotBytes, kSlotBytes = kFactorsAt + A::kFactorBytes + B::kFactorBytes;
    static constexpr int kBlock = B::kBlock, kDeep = B::kDeep, kPhases = B::kPhases;
    static constexpr int kStep = B::kBits == 8 ? 2 : 1, kSpan = kThinWide / kStep;  // blocks of a step, steps of a slot
    static constexpr int kParts = B::kPairs / 2, kPartBytes = Spec::kTileM * 32, kTileBytes = kStep * kParts * kPartBytes;  // parts of a block
    static_assert(Spec::kTileM == Spec::kWarpM && kThreads % 32 == 0, "one warp row");
    static_assert(kThinWide % kStep == 0 && Spec::kStages >= (kSpan == 1 ? 3 : 2), "a slot is copied while another is read, or awaited");
};

template <class Spec, int kGroups>
struct ThinSmem {
    using S = ThinShape<Spec>;
    alignas(128) unsigned char slots[2 * S::kTileBytes + Spec::kStages * S::kSlotBytes];  // A's tiles, the ring
    Stage stages[Shape<Spec>::kThreads / 32];
    Groups<kGroups> groups;
};

// Where a thread block is among its units' row tiles.
struct ThinCursor {
    int unit, row;
};

// Fills the ring. Work: bool take<kPads>(ThinCursor&, Tile&), the next tile; a(tile), b(tile).
template <class Spec, class Work, bool kPads>
struct ThinFeeder {
    using S = ThinShape<Spec>;

    const Work& work;
    typename S::A a;
    typename S::B b;
    ThinCursor cursor;
    int left, phase;  // of the reduction; the slot among those of a word of factors

    __device__ __forceinline__ explicit ThinFeeder(const Work& w) : work(w), cursor{static_cast<int>(blockIdx.x), 0} { find(); }

    // Copies the next blocks to a slot.
    __device__ __forceinline__ void issue(u32 to) {
        const int thread = Spec::kWarpM > 32 ? ptx::thread() : static_cast<int>(threadIdx.x);  // multiply_thin
        a.issue(thread, to, left);
        b.issue(thread, to + S::A::kSlotBytes, left);
        const int of_words = Spec::kThinTailed && left > 0 ? left + phase * S::kDeep : left;  // from where the first word of factors begins
        a.issue_factors(thread, to + S::kFactorsAt, of_words);
        b.issue_factors(thread, to + S::kFactorsAt + S::A::kFactorBytes, of_words);
        ptx::cp_async_commit();
        if (left > S::kDeep) {
            left -= S::kDeep;
            a.advance(phase);
            b.advance(phase);
            phase = phase == S::kPhases - 1 ? 0 : phase + 1;
        } else if (left > 0) {
            find();
        }
    }

private:
    __device__ __forceinline__ void find() {
        typename Work::Tile t;
        left = phase = 0;
        while (left == 0 && work.template take<kPads>(cursor, t)) {
            if (t.depth > 0) {
                left = t.depth;
                a.start(work.a(t));
                b.start(work.b(t));
            }
        }
    }
};

// The step that is worked on.
template <class Spec>
struct ThinPlace {
    using S = ThinShape<Spec>;

    u32 slot;
    u32 at = 0;  // its first block among those of the slot, or of the slots of a word of factors

    __device__ __forceinline__ bool begins() const { return at % kThinWide == 0; }  // the slot
    __device__ __forceinline__ bool ends() const { return at % kThinWide == kThinWide - S::kStep; }

    // last: of the tile; ring: where it begins.
    __device__ __forceinline__ void advance(bool last, u32 ring) {
        if (S::kSpan == 1 || last || ends()) {
            slot = slot == ring + (Spec::kStages - 1) * S::kSlotBytes ? ring : slot + S::kSlotBytes;
        }
        at = last || at == kThinWide * S::kPhases - S::kStep ? 0 : at + S::kStep;
    }

    // The step's block number block in its slot.
    __device__ __forceinline__ int in_slot(int block) const { return (S::kSpan == 1 ? 0 : at % kThinWide) + block; }
    __device__ __forceinline__ u32 codes_b() const { return slot + S::A::kSlotBytes; }
    __device__ __forceinline__ u32 words_a() const { return slot + S::kFactorsAt; }
    __device__ __forceinline__ u32 words_b() const { return words_a() + S::A::kFactorBytes; }
};

// What a thread has met in a tile.
struct ThinSeen {
    u32 top = 0;    // ThinCodes::read
    u32 large = 0;  // not 0: a factor too large, or a small one of a code that is not zero
    u32 small = 0;  // not 0: in the word at hand is a factor of B that may be too small
};

// Looks at the words of factors at place p, of the rows of both that exist; first: of A's tile.
template <class Spec>
__device__ __forceinline__ void see_factors(ThinSeen& seen, const ThinPlace<Spec>& p, int first, int rows, int columns) {
    using S = ThinShape<Spec>;
    seen.small = 0;
#pragma unroll
    for (int word = 0; word < S::B::kWords; word++) {
#pragma unroll
        for (int i = 0; i < ceil_div(Spec::kTileN, S::kThreads); i++) {
            const int row = threadIdx.x + i * S::kThreads;
            if (row < (Spec::B::kFull ? Spec::kTileN : min_of(columns, Spec::kTileN))) {
                const u32 four = ptx::ld_shared4(p.words_b() + word * S::B::kWordBytes + S::B::row_place(row));
                seen.large |= S::B::any_large(four);
                seen.small |= S::B::any_small(four);
            }
        }
        if constexpr (S::A::kFactorBytes > 0) {
            if (threadIdx.x < rows) {
                seen.large |= S::A::any_large(ptx::ld_shared4(p.words_a() + word * S::A::kWordBytes + S::A::row_place(S::A::words_from(first) + threadIdx.x)));
            }
        }
    }
}

// Decodes the first kPieces times 16 rows of A's blocks at place p to the tile at `to`; first: row of the tile. All threads call it:
// a warp takes one of the words of codes that a lane has of a step, of one piece or every other.
template <class Spec, int kPieces>
__device__ __forceinline__ void decode_thin(ThinSeen& seen, int thread, u32 to, const ThinPlace<Spec>& p, int first) {
    using S = ThinShape<Spec>;
    using A = typename S::A;
    constexpr int kHalf = S::kParts / 2, kAcross = S::kThreads / (64 * S::kStep);  // parts of a word of codes; pieces at once
    static_assert(S::kThreads % (64 * S::kStep) == 0, "whole warps");
    const int lane = thread % 32, block = thread / 64 % S::kStep;
    const u32 at = p.at + block;
    const auto decode = [&](auto number) {
        constexpr int kWord = decltype(number)::value;
#pragma unroll
        for (int pass = 0; pass < ceil_div(kPieces, kAcross); pass++) {
            const int piece = pass * kAcross + thread / (64 * S::kStep), row = piece * 16 + lane / 4;
            if (kPieces % kAcross != 0 && piece >= kPieces) {
                break;
            }
            u32 one[2 * kHalf], two[2 * kHalf], from, factors[2] = {};
            if constexpr (A::kFactorBytes > 0) {
                A::read_factors(thread, factors, A::word_place(p.words_a(), A::words_from(first) + row, at), at);
                from = A::place(thread, p.slot, row, p.in_slot(block));
            } else {
                from = A::template place_of<kWord>(thread, p.slot, row, p.in_slot(block));
            }
            A::template read<kWord, 1>(one, seen.top, from, factors[0]);
            A::template read<kWord, 1>(two, seen.top, from + 8 * A::kRowBytes, factors[1]);
#pragma unroll
            for (int i = 0; i < kHalf; i++) {
                const u32 fragment[4] = {one[2 * i], two[2 * i], one[2 * i + 1], two[2 * i + 1]};
                ptx::st_shared16(to + (block * S::kParts + kWord * kHalf + i) * S::kPartBytes + piece * 512 + lane * 16, fragment);
            }
        }
    };
    if (thread / 32 % 2 == 0) {
        decode(Int<0>{});
    } else {
        decode(Int<1>{});
    }
}

// The first kPieces times 16 rows of a tile by block kAt of the step at place p: a is A's tile.
template <class Spec, int kPieces, int kAt>
__device__ __forceinline__ void multiply_thin_block(Accumulators<Spec::kWarpM>& acc, ThinSeen& seen, int thread, u32 a, const ThinPlace<Spec>& p) {
    using S = ThinShape<Spec>;
    constexpr int kCount = kPieces > 2 ? 1 : 2;  // words of codes at once, as registers allow
    constexpr int kParts = S::kParts / 2 * kCount;
    const int column = thread / 32 * 64 + thread % 32 / 4;
    const u32 at = p.at + kAt;
    const u32 codes = S::B::place(thread, p.codes_b(), column, p.in_slot(kAt)), words = S::B::word_place(p.words_b(), column, at);
    u32 factors[2];  // of columns j and j+1
    repeat<0, 2 / kCount>([&](auto number) {
        constexpr int kFirst = decltype(number)::value;
        u32 left[kParts][kPieces][4];
#pragma unroll
        for (int part = 0; part < kParts; part++) {
#pragma unroll
            for (int i = 0; i < kPieces; i++) {
                ptx::ld_shared16(left[part][i], a + (kAt * S::kParts + kFirst * kParts + part) * S::kPartBytes + i * 512 + thread % 32 * 16);
            }
        }
#pragma unroll
        for (int j = 0; j < 8; j++) {
            if (j % 2 == 0) {
                S::B::read_factors(thread, factors, words + j % 4 * 128 + j / 4 * 4, at);  // row_place(column + 8j)
            }
            u32 b[2 * kParts];
            S::B::template read<kFirst, kCount>(b, seen.top, codes + 8 * j * S::B::kRowBytes, factors[j % 2]);
#pragma unroll
            for (int part = 0; part < kParts; part++) {
#pragma unroll
                for (int i = 0; i < kPieces; i++) {
                    ptx::mma_bf16(acc[i][j], left[part][i], b[2 * part], b[2 * part + 1]);
                }
            }
        }
    });
}

// Looks for codes beside factors that are too small for them, in the warp's columns of the step at place p.
template <class Spec>
__device__ __forceinline__ void see_small(ThinSeen& seen, const ThinPlace<Spec>& p) {
    using S = ThinShape<Spec>;
#pragma unroll 1
    for (int i = 0; i < 8 * S::kStep; i++) {
        const int column = threadIdx.x / 32 * 64 + threadIdx.x % 32 / 4 + i % 8 * 8, at = p.at + i / 8;
        const u32 factor = ptx::ld_shared4(S::B::word_place(p.words_b(), column, at)) >> 8 * S::B::factor_of(threadIdx.x, at) & 0xff;
        seen.large |= static_cast<int>(factor) < S::B::kLeast && S::B::any_code(S::B::place(threadIdx.x, p.codes_b(), column, p.in_slot(i / 8)));
    }
}

// A tile's accumulators again, each by itself, whatever its codes and factors are.
template <class Spec, class SourceA, class SourceB>
__device__ __forceinline__ void exact_tile(Accumulators<Spec::kWarpM>& acc, const SourceA& a, const SourceB& b, int depth) {
    const int row = threadIdx.x % 32 / 4, column = threadIdx.x / 32 * 64 + threadIdx.x % 4 * 2;
#pragma unroll 1
    for (int at = 0; at < Spec::kWarpM / 2; at++) {  // acc[at / 8][at % 8]
        const int r = at / 8 * 16 + row, c = at % 8 * 8 + column;
        float sum[4] = {};
#pragma unroll 1
        for (int k = 0; k < depth; k++) {
            float left[2], right[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                left[i] = r + 8 * i < a.extent ? element<typename Spec::A>(a, r + 8 * i, k) : 0;
                right[i] = c + i < b.extent ? element<typename Spec::B>(b, c + i, k) : 0;
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                sum[i] = __fmaf_rn(left[i / 2], right[i % 2], sum[i]);  // a product alone could overflow
            }
        }
#pragma unroll
        for (int i = 0; i < Spec::kWarpM / 2; i++) {
#pragma unroll
            for (int k = 0; k < 4; k++) {
                acc[i / 8][i % 8][k] = i == at ? sum[k] : acc[i / 8][i % 8][k];
            }
        }
    }
}

// memory: A's tiles, then the ring.
template <class Spec, class Work, class Epilogue>
__device__ __forceinline__ void multiply_thin(unsigned char* memory, const Work& work, Epilogue& epilogue) {
    using S = ThinShape<Spec>;
    const u32 tiles = ptx::shared_address(memory), ring = tiles + 2 * S::kTileBytes;
    const int warp = threadIdx.x / 32;
    ThinPlace<Spec> place{ring};
    u32 tile = tiles;
    ThinFeeder<Spec, Work, Epilogue::kPads> feeder(work);
    for (int i = 0; i < Spec::kStages - 1; i++) {
        feeder.issue(ring + i * S::kSlotBytes);
    }
    ThinCursor cursor{static_cast<int>(blockIdx.x), 0};
    typename Work::Tile t;
    for (ThinCursor next = cursor; work.template take<Epilogue::kPads>(next, t); next = cursor) {
        epilogue.begin(t, 0, warp);
        ThinSeen seen;
        Accumulators<Spec::kWarpM> acc;
        clear<Spec::kWarpM>(acc);
        const auto multiply = [&](auto pieces) {
            constexpr int kPieces = decltype(pieces)::value;
            const auto prepare = [&](int thread) {
                if (place.at == 0) {
                    see_factors<Spec>(seen, place, t.first, t.rows, work.columns(t));
                }
                decode_thin<Spec, kPieces>(seen, thread, tile, place, t.first);
            };
            constexpr int kLong = S::kStep * S::kBlock;
            ptx::cp_async_wait<Spec::kStages - 2>();
            __syncthreads();  // the first slot has arrived for all threads, and all have done with the tile before
            prepare(threadIdx.x);
#pragma unroll 1
            for (int left = t.depth; left > 0; left -= kLong) {
                const bool last = left <= kLong;
                // Read anew, nothing made of it takes registers all the time.
                const int thread = kPieces > 2 ? ptx::thread() : static_cast<int>(threadIdx.x);
                if (S::kSpan == 1 || place.ends()) {
                    ptx::cp_async_wait<Spec::kStages - (S::kSpan == 1 ? 3 : 2)>();
                }
                // The next step has arrived, A's tile of this one is whole, and all have done with the one before.
                const bool small = S::B::kLeast != 0 ? __syncthreads_or(seen.small) : (__syncthreads(), false);
                if (S::kSpan == 1 || place.begins()) {
                    feeder.issue(place.slot == ring ? ring + (Spec::kStages - 1) * S::kSlotBytes : place.slot - S::kSlotBytes);
                }
                const ThinPlace<Spec> here = place;
                const u32 a = tile;
                place.advance(last, ring);
                tile = 2 * tiles + S::kTileBytes - tile;  // the other one
                if (!last) {
                    prepare(S::B::kBits == 4 || Spec::kSees ? thread : static_cast<int>(threadIdx.x));
                }
                repeat<0, S::kStep>([&](auto block) { multiply_thin_block<Spec, kPieces, decltype(block)::value>(acc, seen, thread, a, here); });
                if constexpr (S::B::kLeast != 0) {
                    if (small) {
                        see_small<Spec>(seen, here);
                    }
                }
            }
        };
        if (Spec::kWarpM > 32 && t.rows > 32) {
            multiply(Int<Spec::kWarpM / 16>{});
        } else if (t.rows > 16) {
            multiply(Int<2>{});
        } else if (t.rows > 0) {
            multiply(Int<1>{});
        }
        work.template take<Epilogue::kPads>(cursor, t);  // again: meanwhile it would take registers
        if (__syncthreads_or(seen.large != 0 || S::B::any_special(seen.top))) {
            exact_tile<Spec>(acc, work.a(t), work.b(t), t.depth);
        }
        epilogue(t, 0, warp, acc);
    }
    ptx::cp_async_wait<0>();
}
