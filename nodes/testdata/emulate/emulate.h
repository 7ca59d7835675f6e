// Runs a CUDA kernel on the processor: one thread block at a time, each of its threads a fiber that gives way wherever
// the warp or the block has to meet. What a GPU may do early or late is done as late, or as early, as it may be done.
#pragma once
#include <ucontext.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static
#define __align__(n) alignas(n)
#define __restrict__ __restrict

struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

namespace emulate {

struct Index { unsigned x = 0, y = 0, z = 0; };

[[noreturn]] inline void fail(const std::string& what);

// A meeting of all threads of a warp or block: the last to come opens it.
struct Meeting {
    int size = 0, came = 0;
    long opened = 0;
};

struct Copy {
    unsigned to;
    const void* from;
    unsigned bytes, size;  // read, written
};

struct BulkCopy {
    void* to;
    unsigned from, bytes;
};

struct Thread {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    Index index;
    int lane = 0, warp = 0;
    bool done = false;
    std::deque<std::vector<Copy>> groups;  // of asynchronous copies, the open one last
    std::deque<std::vector<BulkCopy>> bulk;  // the same of bulk copies
    bool vote = false;  // brought to a barrier
};

struct Warp {
    Meeting meeting;
    uint64_t words[32][8];  // what the lanes brought to the meeting
};

struct Range { uintptr_t first, last; };

struct Machine {
    Index block, grid, dim;
    std::vector<Thread> threads;
    std::vector<Warp> warps;
    Meeting all;
    Thread* current = nullptr;
    ucontext_t scheduler;
    unsigned char* shared = nullptr;
    unsigned shared_bytes = 0;
    bool late = true;
    std::vector<Range> ranges;  // device memory
    const char* kernel = "";
};
inline Machine machine;

inline void fail(const std::string& what) {
    const Thread* t = machine.current;
    fprintf(stderr, "%s: block %u,%u thread %u: %s\n", machine.kernel, machine.block.x, machine.block.y, t ? t->index.x : 0, what.c_str());
    exit(1);
}

inline void give_way() {
    Thread* t = machine.current;
    swapcontext(&t->context, &machine.scheduler);
}

inline void meet(Meeting& m) {
    const long now = m.opened;
    if (++m.came == m.size) {
        m.came = 0;
        m.opened++;
        return;
    }
    while (m.opened == now) {
        give_way();
    }
}

inline void meet_warp() { meet(machine.warps[machine.current->warp].meeting); }

// Brings value to the warp, and returns what every lane brought. Nobody goes on before all have read it.
template <class T, class Read>
auto exchange(const T& value, Read read) {
    static_assert(sizeof(T) <= 64);
    Warp& w = machine.warps[machine.current->warp];
    memcpy(w.words[machine.current->lane], &value, sizeof(T));
    meet_warp();
    auto result = read([&](int lane) {
        T v;
        memcpy(&v, w.words[lane & 31], sizeof(T));
        return v;
    });
    meet_warp();
    return result;
}

inline void check_device(const void* p, size_t bytes) {
    const uintptr_t a = reinterpret_cast<uintptr_t>(p);
    for (const Range& r : machine.ranges) {
        if (a >= r.first && a + bytes <= r.last) {
            return;
        }
    }
    fail("reads " + std::to_string(bytes) + " bytes outside of all operands");
}

inline void check_shared(unsigned at, unsigned bytes, unsigned align) {
    if (at % align != 0 || at + bytes > machine.shared_bytes) {
        fail("shared address " + std::to_string(at));
    }
}

inline void do_copy(const Copy& c) {
    memset(machine.shared + c.to, 0, c.size);
    if (c.bytes > 0) {
        memcpy(machine.shared + c.to, c.from, c.bytes);
    }
}

inline void fiber() {
    extern void (*entry)();
    entry();
    machine.current->done = true;
    for (;;) {
        give_way();
    }
}
inline void (*entry)();

inline void run_block(unsigned shared_bytes) {
    const int n = machine.dim.x * machine.dim.y;
    constexpr size_t kStack = 256 << 10, kGuard = 4096;
    std::vector<unsigned char> shared(shared_bytes + kGuard + 1024, 0xff);
    machine.shared = reinterpret_cast<unsigned char*>((reinterpret_cast<uintptr_t>(shared.data()) + 1023) & ~uintptr_t{1023});
    machine.shared_bytes = shared_bytes;
    machine.threads.resize(n);
    machine.warps.assign((n + 31) / 32, Warp());
    machine.all = Meeting();
    machine.all.size = n;
    for (int i = 0; i < n; i++) {
        Thread& t = machine.threads[i];
        if (!t.stack) {
            t.stack.reset(new char[kStack]);
        }
        t.index = {i % machine.dim.x, i / machine.dim.x, 0};
        t.lane = i % 32;
        t.warp = i / 32;
        t.done = false;
        t.groups.assign(1, {});
        t.bulk.assign(1, {});
        machine.warps[t.warp].meeting.size++;
        getcontext(&t.context);
        t.context.uc_stack.ss_sp = t.stack.get();
        t.context.uc_stack.ss_size = kStack;
        t.context.uc_link = nullptr;
        makecontext(&t.context, fiber, 0);
    }
    // Warps take turns; each goes as far as it can alone, so that a missing barrier shows. Which goes first changes.
    static unsigned turn = 0;
    for (int left = n; left > 0;) {
        turn = turn * 1664525 + 1013904223;
        const int warps = machine.warps.size(), first = (turn >> 8) % warps;
        long before = 0, after = 0;
        int alive = 0;
        for (int k = 0; k < warps; k++) {
            const int w = (first + k) % warps;
            for (long moved = -1; moved != machine.warps[w].meeting.opened;) {
                moved = machine.warps[w].meeting.opened;
                for (int i = w * 32; i < std::min(n, w * 32 + 32); i++) {
                    if (!machine.threads[i].done) {
                        machine.current = &machine.threads[i];
                        swapcontext(&machine.scheduler, &machine.current->context);
                    }
                }
            }
        }
        for (int i = 0; i < n; i++) {
            alive += !machine.threads[i].done;
        }
        (void)before, (void)after;
        static int stuck = 0;
        stuck = alive == left ? stuck + 1 : 0;
        left = alive;
        if (stuck > 100000) {
            fail("threads wait for ever");
        }
    }
    machine.current = nullptr;
    for (size_t i = shared_bytes; i < shared_bytes + kGuard - 1024; i++) {
        if (machine.shared[i] != 0xff) {
            fail("writes past its shared memory");
        }
    }
}

template <class... A, size_t... I>
void call(void (*kernel)(A...), void** args, std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_reference_t<A>*>(args[I])...);
}

// Runs the kernel over its grid. Arguments are 8 bytes each.
template <class... A>
void run(void (*kernel)(A...), const char* name, Index grid, Index dim, unsigned shared_bytes, bool late, const std::vector<Range>& ranges, void** args, int count) {
    static void (*the_kernel)(A...);
    static void** the_args;
    the_kernel = kernel, the_args = args;
    machine.kernel = name, machine.grid = grid, machine.dim = dim, machine.late = late, machine.ranges = ranges;
    if (count != sizeof...(A)) {
        fail("got " + std::to_string(count) + " arguments, want " + std::to_string(sizeof...(A)));
    }
    entry = [] { call(the_kernel, the_args, std::index_sequence_for<A...>()); };
    for (unsigned y = 0; y < grid.y; y++) {
        for (unsigned x = 0; x < grid.x; x++) {
            machine.block = {x, y, 0};
            run_block(shared_bytes);
        }
    }
}

}  // namespace emulate

#define threadIdx (emulate::machine.current->index)
#define blockIdx (emulate::machine.block)
#define gridDim (emulate::machine.grid)
#define blockDim (emulate::machine.dim)

inline void __syncthreads() { emulate::meet(emulate::machine.all); }
inline int __syncthreads_or(int v) {
    emulate::machine.current->vote = v != 0;
    __syncthreads();
    int any = 0;
    for (const emulate::Thread& t : emulate::machine.threads) any |= t.vote;
    __syncthreads();
    return any;
}
inline void __syncwarp(unsigned = ~0u) { emulate::meet_warp(); }
template <class T>
T __shfl_sync(unsigned, T v, int from) { return emulate::exchange(v, [&](auto at) { return at(from); }); }
template <class T>
T __shfl_xor_sync(unsigned, T v, int mask) { return emulate::exchange(v, [&](auto at) { return at(emulate::machine.current->lane ^ mask); }); }
template <class T>
T __shfl_up_sync(unsigned, T v, unsigned d) {
    const int lane = emulate::machine.current->lane;
    return emulate::exchange(v, [&](auto at) { return at(lane < int(d) ? lane : lane - d); });
}
inline bool __any_sync(unsigned, bool v) {
    return emulate::exchange(int(v), [&](auto at) {
        int any = 0;
        for (int i = 0; i < 32; i++) any |= at(i);
        return any;
    });
}
inline unsigned __float_as_uint(float x) { unsigned u; memcpy(&u, &x, 4); return u; }
inline float __uint_as_float(unsigned u) { float x; memcpy(&x, &u, 4); return x; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned pick) {
    const uint64_t both = uint64_t{b} << 32 | a;
    unsigned r = 0;
    for (int i = 0; i < 4; i++) r |= unsigned(both >> (8 * (pick >> (4 * i) & 7)) & 0xff) << (8 * i);
    return r;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned n) { return unsigned((uint64_t{high} << 32 | low) << (n & 31) >> 32); }
inline unsigned __vmaxu2(unsigned a, unsigned b) {
    const unsigned high = std::max(a >> 16, b >> 16), low = std::max(a & 0xffff, b & 0xffff);
    return high << 16 | low;
}
inline unsigned __vminu2(unsigned a, unsigned b) {
    const unsigned high = std::min(a >> 16, b >> 16), low = std::min(a & 0xffff, b & 0xffff);
    return high << 16 | low;
}
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
template <class T>
T atomicMax(T* p, T v) { T old = *p; *p = old > v ? old : v; return old; }
