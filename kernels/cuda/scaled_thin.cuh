// The main loop of products over few rows, where copying the weights is all the work: scaled_pipeline.cuh for one warp row of
// 32 or 64 rows. The weights' codes go from the ring to registers, and each is decoded once, by the warp that multiplies it.
// A's are decoded by all threads, a block ahead, to one of two tiles of bf16, for all warps.
//
// A block is 32 bytes of codes of each row: 32 codes of 8 bits, 64 of 4. Lane 4g+q reads bytes [8q, 8q+8) of row g of a
// piece, of A as of B, so that both meet in the same order of the reduction whatever the order of decoded pairs, and all
// codes of a lane share their factor. A word of four factors lasts for kPeriod blocks; it lies in a ring of its own.
//
// A tile of bf16 is planes of four decoded pairs, 16 bytes, of each row and q: a lane's fragments of a row.
//
// Thread blocks take units, a group's columns [TileN c, TileN (c+1)), a grid apart: all of its row tiles one after the other, so
// that equal groups are equal work, and weights that several row tiles read are read from memory once.
#pragma once
#include "epilogue.cuh"
#include "scaled_operand.cuh"

// NaN codes and NaN factors make all of a row or a column NaN, whatever they meet; they are counted beside the decoding, and
// made up for once a tile. Only e5m2, which has Inf, is put right on the way.
//
// Spec: that of scaled_pipeline.cuh, of one operand. kBlock: codes of a block. kFolded: a code's two multiplications (decode.cuh)
// are one, with factors that are kFold, a bf16, times as large; without, kFold, unless 0, is only that.
template <class Spec, int kThreads, bool kTailed, bool kFolded = false, u32 kFold = 0>
struct ThinCodes {
    using Format = CodeFormat<Spec::kCodes>;
    static constexpr int kBits = Format::kBits, kChunk = Format::kChunk, kBlock = 2 * kChunk;
    static constexpr int kStride = kThreads / 2, kPasses = ceil_div(Spec::kRows, kStride), kWords = ceil_div(Spec::kRows, kThreads);
    static constexpr int kSlotBytes = Spec::kRows * 32, kWordBytes = Spec::kRows * 4;
    static constexpr int kPeriod = 4 * Spec::kVec / kBlock;
    static constexpr int kPairs = 64 / kBits / 2;  // that a lane has of a row
    static constexpr bool kInf = Spec::kCodes == kE5M2;
    static_assert(Spec::kMajor == kReduction && !Spec::kAlongOuter && kStride % 64 == 0 && kPeriod >= 1, "rows of the reduction");

    // Thread i's rows i and i+kThreads: tiles begin at a multiple of 128 rows, so that words of rows 128 apart are so as well.
    static constexpr bool kEven = Spec::kUpRow == 0 && kThreads % 128 == 0;
    static constexpr int kPointers = kEven ? 1 : kWords;
    static constexpr int kBetween = kThreads / 128 * ceil_div(static_cast<int>(Spec::kLd), 4 * Spec::kVec) * 512;

    const unsigned char* from;
    const unsigned char* factors[kPointers];
    int extent;

    static __device__ __forceinline__ constexpr i64 bytes(i64 codes) { return codes * kBits / 8; }

    __device__ __forceinline__ void start(const CodeSource& s) {
        const int row = threadIdx.x / 2;
        from = s.codes + bytes(weight_row<Spec>(row) * Spec::kLd) + threadIdx.x % 2 * 16;
        extent = s.extent;
#pragma unroll
        for (int i = 0; i < kPointers; i++) {
            factors[i] = s.factors + factor_row(s.row + static_cast<int>(weight_row<Spec>(threadIdx.x + i * kThreads)), s.words);
        }
    }

    // Copies the block; left: what remains of the reduction, 0 for nothing to copy.
    __device__ __forceinline__ void issue(u32 slot, int left) const {
        int n = 16;
        if constexpr (kTailed) {
            n = static_cast<int>(bytes(clamp_of(left - static_cast<int>(threadIdx.x) % 2 * kChunk, 0, kChunk) + (kBits == 4)));
        }
#pragma unroll
        for (int pass = 0; pass < kPasses; pass++) {
            const int row = threadIdx.x / 2 + pass * kStride;
            const bool mine = Spec::kRows % kStride == 0 || row < Spec::kRows;
            // What does not exist becomes zero: stale codes must not look like NaNs.
            ptx::cp_async16_zero(left > 0 && mine, slot + (pass * kThreads + threadIdx.x) * 16, from + bytes(weight_row<Spec>(pass * kStride) * Spec::kLd),
                                 Spec::kFull || row < extent ? n : 0);
        }
    }

    // Copies the words of factors of the kPeriod blocks from this one on.
    __device__ __forceinline__ void issue_factors(u32 words, int left) const {
        const int n = kTailed ? clamp_of(ceil_div(left, Spec::kVec), 0, 4) : 4;  // factors past the end may be NaN
#pragma unroll
        for (int i = 0; i < kWords; i++) {
            const int row = threadIdx.x + i * kThreads;
            const bool mine = Spec::kRows % kThreads == 0 || row < Spec::kRows;
            ptx::cp_async4_zero(left > 0 && mine, words + row * 4, kEven ? factors[0] + i * kBetween : factors[i], Spec::kFull || row < extent ? n : 0);
        }
    }

    // last: the word of factors ends with this block.
    __device__ __forceinline__ void advance(bool last) {
        from += 32;
#pragma unroll
        for (int i = 0; i < kPointers; i++) {
            factors[i] += last ? 512 : 0;
        }
    }

    // The factor of this lane's codes of row `row`, in both halves; at: of the block among those of its word. Bits 7 of special's
    // bytes are set where the factor is NaN.
    static __device__ __forceinline__ u32 factor_of_row(u32& special, u32 words, int row, int at) {
        const u32 four = ptx::ld_shared4(words + row * 4);
        const int block = at * (kBlock / Spec::kVec) + threadIdx.x % 4 * (kBlock / 4) / Spec::kVec;
        u32 factor;
        if constexpr (kBits == 8) {
            // Factor 0 is left 0 here: its codes are zeros, or another kernel runs (scaled_pipeline.cuh).
            factor = ptx::pick_bytes(four, 0, 0x4040 + 0x0101 * block) << 7;
            special |= (factor + 0x00800080u) & 0x80008000u;
        } else if constexpr (Spec::kFactors == kE4M3Factors) {
            const u32 codes = ptx::pick_bytes(four, 0, 0x0404 + 0x1010 * block);
            factor = byte_pair<kE4M3>(codes);
            special |= specials<kE4M3>(codes);
        } else {
            factor = factor_pair<Spec::kFactors>(four >> 8 * block & 0xff);
        }
        return kFold == 0 ? factor : ptx::mul_bf16x2(factor, kFold * 0x00010001u);
    }

    // kCount planes of this lane's codes of row `row` from plane `plane` on. Special as above, of codes that are NaN and whose
    // values are not.
    template <int kCount>
    static __device__ __forceinline__ void read(u32 (&out)[4 * kCount], u32& special, u32 slot, int row, int plane, u32 factor) {
        constexpr int kCodeWords = kCount * kBits / 4;
        u32 w[kCodeWords];
        if constexpr (kCodeWords == 2) {
            ptx::ld_shared8(w, slot + row * 32 + threadIdx.x % 4 * 8);
        } else {
            w[0] = ptx::ld_shared4(slot + row * 32 + threadIdx.x % 4 * 8 + plane * 4);
        }
#pragma unroll
        for (int i = 0; i < kCodeWords; i++) {
            if constexpr (kBits == 8) {
                out[2 * i] = byte_bits<Spec::kCodes>(w[i] << 8);
                out[2 * i + 1] = byte_bits<Spec::kCodes>(w[i]);
                special |= kInf ? 0 : specials<Spec::kCodes>(w[i]);
            } else {
                repeat<0, 4>([&](auto k) { out[4 * i + decltype(k)::value] = nibble_bits<decltype(k)::value>(w[i]); });
            }
        }
#pragma unroll
        for (int i = 0; i < 4 * kCount; i++) {
            out[i] = ptx::mul_bf16x2(kFolded ? out[i] : restored<Spec::kCodes>(out[i]), factor);
        }
        if constexpr (kInf) {
            if (((specials<Spec::kCodes>(w[0]) | specials<Spec::kCodes>(w[1])) & 0x80808080u) != 0) {
                restore(out, w);
            }
        }
    }

private:
    // Puts Inf and NaN where codes are.
    static __device__ __forceinline__ void restore(u32 (&out)[kPairs], const u32 (&w)[2]) {
#pragma unroll
        for (int i = 0; i < kPairs; i++) {
            const u32 codes = i % 2 == 0 ? w[i / 2] << 8 : w[i / 2];
            const u32 where = (specials<Spec::kCodes>(codes) >> 15 & 0x00010001u) * 0xffff;
            out[i] = (out[i] & ~where) | (((codes & 0x80008000u) | 0x7f807f80u | (codes >> 3 & 0x00600060u)) & where);
        }
    }
};

// A plain A beside such codes: like names, the same order of the reduction.
template <class Spec, class Codes, int kThreads, bool kTailed>
struct ThinPlain {
    static constexpr int kBlock = Codes::kBlock, kPairs = Codes::kPairs, kPeriod = Codes::kPeriod;
    static constexpr int kLine = kBlock * 2, kChunks = kLine / 16, kStride = kThreads / kChunks, kPasses = ceil_div(Spec::kRows, kStride);
    static constexpr int kSlotBytes = Spec::kRows * kLine, kWordBytes = 0;
    static_assert(sizeof(typename Spec::T) == 2 && Spec::kRows % kStride == 0, "bf16, whole passes");

    const unsigned char* from;
    int extent;

    // Chunks of 128 bytes change place so that two rows' chunks, every other one, meet no bank twice.
    static __device__ __forceinline__ u32 place(int row, int chunk) { return row * kLine + ((kChunks == 8 ? chunk ^ (row & 7) : chunk) << 4); }

    __device__ __forceinline__ void start(const Source<typename Spec::T>& s) {
        from = reinterpret_cast<const unsigned char*>(s.first + threadIdx.x / kChunks * Spec::kLd) + threadIdx.x % kChunks * 16;
        extent = s.extent;
    }

    __device__ __forceinline__ void issue(u32 slot, int left) const {
        const int chunk = threadIdx.x % kChunks, n = kTailed ? clamp_of(left - chunk * 8, 0, 8) * 2 : 16;
#pragma unroll
        for (int pass = 0; pass < kPasses; pass++) {
            const int row = threadIdx.x / kChunks + pass * kStride;
            ptx::cp_async16_zero(left > 0, slot + place(row, chunk), from + pass * kStride * Spec::kLd * 2, row < extent ? n : 0);
        }
    }

    __device__ __forceinline__ void issue_factors(u32, int) const {}
    __device__ __forceinline__ void advance(bool) { from += kLine; }

    static __device__ __forceinline__ u32 factor_of_row(u32&, u32, int, int) { return 0; }

    template <int kCount>
    static __device__ __forceinline__ void read(u32 (&out)[4 * kCount], u32&, u32 slot, int row, int plane, u32) {
        constexpr int kApart = Codes::kBits == 8 ? 2 : 4;  // of the codes of a decoded pair
        static_assert(kCount == 1, "a chunk is a plane");
        u32 w[4];
        ptx::ld_shared16(w, slot + place(row, threadIdx.x % 4 * (kPairs / 4) + plane));
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const int e = kApart == 4 ? k : k / 2 * 4 + k % 2;  // the pair's first element
            out[k] = ptx::pick_bytes(w[e / 2], w[(e + kApart) / 2], e % 2 == 0 ? 0x5410 : 0x7632);
        }
    }
};

template <class Spec>
struct ThinShape {
    static constexpr int kThreads = Shape<Spec>::kThreads;
    // e2m1 with factors e4m3: 2^-8 of the weights' value has room for both multiplications in one, and 2^8 of A's makes up for it.
    static constexpr bool kFolded = Spec::A::kCodes == kE2M1 && Spec::B::kFactors == kE4M3Factors;
    static constexpr u32 kFoldA = kFolded ? (127 + 8) << 7 : 0, kFoldB = kFolded ? CodeFormat<kE2M1>::kRestore - (8 << 7) : 0;
    using B = ThinCodes<typename Spec::B, kThreads, Spec::kThinTailed, kFolded, kFoldB>;
    template <class A, bool kPlain>
    struct Other {
        using Type = ThinCodes<A, kThreads, Spec::kThinTailed, false, kFoldA>;
    };
    template <class A>
    struct Other<A, true> {
        using Type = ThinPlain<A, B, kThreads, Spec::kThinTailed>;
    };
    using A = typename Other<typename Spec::A, Spec::A::kCodes == kNoCodes>::Type;
    // A slot: A, B; then the rings of factors, A's and B's words in each.
    static constexpr int kSlotBytes = A::kSlotBytes + B::kSlotBytes, kWordBytes = A::kWordBytes + B::kWordBytes;
    static constexpr int kBlock = B::kBlock, kPeriod = B::kPeriod;
    static constexpr int kPlaneBytes = Spec::kTileM * 64, kTileBytes = kPlaneBytes * (B::kPairs / 4);
    static_assert(Spec::kTileM == Spec::kWarpM && kThreads % 32 == 0, "one warp row");
    static_assert(Spec::kStages >= 3, "a block is copied while another is awaited");
};

template <class Spec, int kGroups>
struct ThinSmem {
    using S = ThinShape<Spec>;
    alignas(128) unsigned char slots[2 * S::kTileBytes + Spec::kStages * (S::kSlotBytes + S::kWordBytes)];  // A's tiles, the rings
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
    int left, at;     // of the reduction; the block among those of a word of factors
    int words;        // where the next words go
    u32 base;

    __device__ __forceinline__ ThinFeeder(const Work& w, u32 slots) : work(w), cursor{static_cast<int>(blockIdx.x), 0}, words(0), base(slots) { find(); }

    // Copies the next block to a slot.
    __device__ __forceinline__ void issue(int slot) {
        const u32 to = base + slot * S::kSlotBytes;
        a.issue(to, left);
        b.issue(to + S::A::kSlotBytes, left);
        if (at == 0) {
            const u32 factors = base + Spec::kStages * S::kSlotBytes + words * S::kWordBytes;
            a.issue_factors(factors, left);
            b.issue_factors(factors + S::A::kWordBytes, left);
            words = words == Spec::kStages - 1 ? 0 : words + 1;
        }
        ptx::cp_async_commit();
        if (left > S::kBlock) {
            const bool last = at == S::kPeriod - 1;
            left -= S::kBlock;
            at = last ? 0 : at + 1;
            a.advance(last);
            b.advance(last);
        } else if (left > 0) {
            find();
        }
    }

private:
    __device__ __forceinline__ void find() {
        typename Work::Tile t;
        left = at = 0;
        while (left == 0 && work.template take<kPads>(cursor, t)) {
            if (t.depth > 0) {
                left = t.depth;
                a.start(work.a(t));
                b.start(work.b(t));
            }
        }
    }
};

// Columns of a warp's piece that hold a NaN: bit j of lane 4g+q stands for what it reads of column 8j+g.
template <int kRows>
__device__ __forceinline__ void put_nans(Accumulators<kRows>& acc, u32 columns) {
    const int q = threadIdx.x % 4;
#pragma unroll
    for (int d = 1; d < 4; d *= 2) {
        columns |= __shfl_xor_sync(0xffffffffu, columns, d);
    }
    const u32 here[2] = {__shfl_sync(0xffffffffu, columns, 8 * q), __shfl_sync(0xffffffffu, columns, 8 * q + 4)};  // columns 2q, 2q+1
    if ((here[0] | here[1]) == 0) {
        return;
    }
#pragma unroll
    for (int i = 0; i < kRows / 16; i++) {
#pragma unroll
        for (int j = 0; j < 8; j++) {
#pragma unroll
            for (int k = 0; k < 4; k++) {
                if ((here[k % 2] >> j & 1) != 0) {
                    acc[i][j][k] = __uint_as_float(0x7fffffffu);
                }
            }
        }
    }
}

// Where the block that is worked on is in the rings.
template <class Spec>
struct ThinPlace {
    using S = ThinShape<Spec>;

    int slot = 0, words = 0, at = 0;  // at: of the block among those of its word of factors

    // last: of the tile.
    __device__ __forceinline__ void advance(bool last) {
        slot = slot == Spec::kStages - 1 ? 0 : slot + 1;
        at = at == S::kPeriod - 1 || last ? 0 : at + 1;
        if (at == 0) {
            words = words == Spec::kStages - 1 ? 0 : words + 1;
        }
    }

    // In rings that begin at base.
    __device__ __forceinline__ u32 slot_at(u32 base) const { return base + slot * S::kSlotBytes; }
    __device__ __forceinline__ u32 words_at(u32 base) const { return base + Spec::kStages * S::kSlotBytes + words * S::kWordBytes; }
};

// Decodes the first kRows rows of A's block at place p to the tile at `to`. All threads call it.
template <class Spec, int kRows>
__device__ __forceinline__ void decode_thin(u32 to, u32 rings, const ThinPlace<Spec>& p) {
    using S = ThinShape<Spec>;
    constexpr int kStride = S::kThreads / 4;
#pragma unroll
    for (int pass = 0; pass < ceil_div(kRows, kStride); pass++) {
        const int row = pass * kStride + threadIdx.x / 4;
        if (kRows % kStride != 0 && row >= kRows) {
            return;
        }
        u32 special = 0;
        const u32 factor = S::A::factor_of_row(special, p.words_at(rings), row, p.at);
#pragma unroll
        for (int plane = 0; plane < S::A::kPairs / 4; plane++) {
            u32 out[4];
            S::A::template read<1>(out, special, p.slot_at(rings), row, plane, factor);
            if ((special & 0x80808080u) != 0) {
                out[0] = out[1] = out[2] = out[3] = 0x7fff7fffu;
            }
            ptx::st_shared16(to + plane * S::kPlaneBytes + row * 64 + threadIdx.x % 4 * 16, out);
        }
    }
}

// The first kPieces times 16 rows of a tile by the block at place p: a is A's tile. Columns of NaNs are added to nans.
template <class Spec, int kPieces>
__device__ __forceinline__ void multiply_thin_block(Accumulators<Spec::kWarpM>& acc, u32& nans, u32 a, u32 rings, const ThinPlace<Spec>& p) {
    using S = ThinShape<Spec>;
    constexpr int kPlanes = S::B::kPairs / 4, kCount = kPieces > 2 ? 1 : kPlanes;  // at once, as registers allow
    const int column = threadIdx.x / 32 * 64 + threadIdx.x % 32 / 4;
    const u32 slot = p.slot_at(rings) + S::A::kSlotBytes, words = p.words_at(rings) + S::A::kWordBytes;
    u32 factors[4], special = 0;  // of columns 2i and 2i+1
#pragma unroll
    for (int first = 0; first < kPlanes; first += kCount) {
        u32 left[2 * kPieces][kCount][4];
#pragma unroll
        for (int i = 0; i < 2 * kPieces; i++) {
#pragma unroll
            for (int plane = 0; plane < kCount; plane++) {
                ptx::ld_shared16(left[i][plane], a + (first + plane) * S::kPlaneBytes + i * 512 + threadIdx.x % 32 * 16);
            }
        }
#pragma unroll
        for (int j = 0; j < 8; j++) {
            u32 factor, b[4 * kCount];
            if (first == 0) {
                factor = S::B::factor_of_row(special, words, column + 8 * j, p.at);
                factors[j / 2] = j % 2 == 0 ? factor : ptx::pick_bytes(factors[j / 2], factor, 0x5410);
            } else {
                factor = ptx::pick_bytes(factors[j / 2], 0, j % 2 == 0 ? 0x1010 : 0x3232);
            }
            S::B::template read<kCount>(b, special, slot, column + 8 * j, first, factor);
#pragma unroll
            for (int step = 0; step < 2 * kCount; step++) {
#pragma unroll
                for (int i = 0; i < kPieces; i++) {
                    const u32 (&upper)[4] = left[2 * i][step / 2], (&lower)[4] = left[2 * i + 1][step / 2];
                    const int at = step % 2 * 2;
                    const u32 piece[4] = {upper[at], lower[at], upper[at + 1], lower[at + 1]};
                    ptx::mma_bf16(acc[i][j], piece, b[2 * step], b[2 * step + 1]);
                }
            }
        }
    }
    if ((special & 0x80808080u) != 0) {
#pragma unroll 1
        for (int j = 0; j < 8; j++) {  // which, again
            u32 b[S::B::kPairs], one = 0;
            S::B::template read<kPlanes>(b, one, slot, column + 8 * j, 0, S::B::factor_of_row(one, words, column + 8 * j, p.at));
            nans |= (one & 0x80808080u) != 0 ? 1 << j : 0;
        }
    }
}

// memory: A's tiles, then the rings.
template <class Spec, class Work, class Epilogue>
__device__ __forceinline__ void multiply_thin(unsigned char* memory, const Work& work, Epilogue& epilogue) {
    using S = ThinShape<Spec>;
    const u32 tiles = ptx::shared_address(memory), rings = tiles + 2 * S::kTileBytes;
    const int warp = threadIdx.x / 32;
    ThinPlace<Spec> place;
    u32 tile = tiles;
    ThinFeeder<Spec, Work, Epilogue::kPads> feeder(work, rings);
    for (int i = 0; i < Spec::kStages - 1; i++) {
        feeder.issue(i);
    }
    ThinCursor cursor{static_cast<int>(blockIdx.x), 0};
    typename Work::Tile t;
    for (ThinCursor next = cursor; work.template take<Epilogue::kPads>(next, t); next = cursor) {
        epilogue.begin(t, 0, warp);
        u32 nans = 0;
        Accumulators<Spec::kWarpM> acc;
        clear<Spec::kWarpM>(acc);
        const auto multiply = [&](auto pieces) {
            constexpr int kPieces = decltype(pieces)::value;
            ptx::cp_async_wait<Spec::kStages - 2>();
            __syncthreads();  // the first block has arrived for all threads, and all have done with the tile before
            decode_thin<Spec, 16 * kPieces>(tile, rings, place);
#pragma unroll 1
            for (int left = t.depth; left > 0; left -= S::kBlock) {
                const bool last = left <= S::kBlock;
                ptx::cp_async_wait<Spec::kStages - 3>();
                __syncthreads();  // the next block has arrived, A's tile of this one is whole, and all have done with the one before
                feeder.issue(place.slot == 0 ? Spec::kStages - 1 : place.slot - 1);
                const ThinPlace<Spec> here = place;
                const u32 a = tile;
                place.advance(last);
                tile = 2 * tiles + S::kTileBytes - tile;  // the other one
                if (!last) {
                    decode_thin<Spec, 16 * kPieces>(tile, rings, place);
                }
                multiply_thin_block<Spec, kPieces>(acc, nans, a, rings, here);
            }
        };
        if (Spec::kWarpM > 32 && t.rows > 32) {
            multiply(Int<Spec::kWarpM / 16>{});
        } else if (t.rows > 16) {
            multiply(Int<2>{});
        } else if (t.rows > 0) {
            multiply(Int<1>{});
        }
        put_nans<Spec::kWarpM>(acc, nans);
        work.template take<Epilogue::kPads>(cursor, t);  // again: meanwhile it would take registers
        epilogue(t, 0, warp, acc);
    }
    ptx::cp_async_wait<0>();
}
