// The instructions of kernels/cuda/ptx.cuh by their definition in the PTX ISA, for emulate.h.
#pragma once
#include <array>

namespace ptx {

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using namespace emulate;

constexpr int kArch = 800; // what later architectures do in hardware, code for this one does itself
#ifdef EMULATE_BULK
constexpr bool kBulk = true;
#else
constexpr bool kBulk = false;
#endif

inline unsigned char* dynamic_shared() { return machine.shared; }
inline u32 shared_address(const void* p) { return static_cast<u32>(static_cast<const unsigned char*>(p) - machine.shared); }

inline void cp_async_zero(bool wanted, u32 dst, const void* src, u32 bytes, u32 size) {
    if (!wanted) return;
    check_shared(dst, size, size);
    if (bytes > size) fail("cp.async of more than it writes");
    if (reinterpret_cast<uintptr_t>(src) % size != 0) fail("cp.async from an address that is not aligned");
    if (bytes > 0) check_device(src, bytes);
    const Copy c{dst, src, bytes, size};
    if (machine.late) {
        machine.current->groups.back().push_back(c);
        return;
    }
    do_copy(c);
}
inline int thread() { return threadIdx.x; }
inline void cp_async16_zero(bool wanted, u32 dst, const void* src, u32 bytes) { cp_async_zero(wanted, dst, src, bytes, 16); }
inline void cp_async8_zero(u32 dst, const void* src, u32 bytes) { cp_async_zero(true, dst, src, bytes, 8); }
inline void cp_async4_zero(bool wanted, u32 dst, const void* src, u32 bytes) { cp_async_zero(wanted, dst, src, bytes, 4); }
inline void cp_async16(bool wanted, u32 dst, const void* src) { cp_async16_zero(wanted, dst, src, 16); }
inline int fresh(int x) { return x; }
inline void cp_async_commit() { machine.current->groups.emplace_back(); }
template <int kPending>
void cp_async_wait() {
    auto& groups = machine.current->groups;
    while (static_cast<int>(groups.size()) - 1 > kPending) {
        for (const Copy& c : groups.front()) do_copy(c);
        groups.pop_front();
    }
}
inline void cp_bulk(void* dst, u32 src, u32 bytes) {
    check_shared(src, bytes, 16);
    if (bytes % 16 != 0 || reinterpret_cast<uintptr_t>(dst) % 16 != 0) fail("a bulk copy of what is not aligned");
    check_device(dst, bytes);
    if (machine.late) {
        machine.current->bulk.back().push_back({dst, src, bytes});
        return;
    }
    memcpy(dst, machine.shared + src, bytes);
}
inline void cp_bulk_commit() { machine.current->bulk.emplace_back(); }
template <int kPending>
void cp_bulk_wait_read() {
    auto& groups = machine.current->bulk;
    while (static_cast<int>(groups.size()) - 1 > kPending) {
        for (const BulkCopy& c : groups.front()) memcpy(c.to, machine.shared + c.from, c.bytes);
        groups.pop_front();
    }
}
inline void cp_bulk_wait() { cp_bulk_wait_read<0>(); }
inline void bulk_fence() {}
inline bool elect() { return threadIdx.x % 32 == 0; }
inline void prefetch_l1(const void* p) { check_device(p, 1); }
inline void prefetch_l2(const void* p) { check_device(p, 1); }

inline u32 load_relaxed(const u32* p) {
    check_device(p, 4);
    return *p;
}
inline u32 load_acquire(const u32* p) {
    give_way();
    return load_relaxed(p);
}
inline void sleep(u32) { give_way(); }
inline u32 fetch_add(u32* p, u32 by) {
    check_device(p, 4);
    const u32 old = *p;
    *p += by;
    return old;
}
inline u32 fetch_add_release(u32* p, u32 by) { return fetch_add(p, by); }
inline void store_release(u32* p, u32 v) {
    check_device(p, 4);
    *p = v;
}

inline void st_shared16(u32 dst, const u32 (&v)[4]) {
    check_shared(dst, 16, 16);
    memcpy(machine.shared + dst, v, 16);
}
inline void st_shared2(u32 dst, u16 v) {
    check_shared(dst, 2, 2);
    memcpy(machine.shared + dst, &v, 2);
}
inline void st_shared4(u32 dst, u32 v) {
    check_shared(dst, 4, 4);
    memcpy(machine.shared + dst, &v, 4);
}
inline u32 ld_shared4(u32 src) {
    check_shared(src, 4, 4);
    u32 v;
    memcpy(&v, machine.shared + src, 4);
    return v;
}
inline void ld_shared8(u32 (&v)[2], u32 src) {
    check_shared(src, 8, 8);
    memcpy(v, machine.shared + src, 8);
}
inline void ld_shared16(u32 (&v)[4], u32 src) {
    check_shared(src, 16, 16);
    memcpy(v, machine.shared + src, 16);
}
inline float ld_shared(u32 src) {
    check_shared(src, 4, 4);
    float v;
    memcpy(&v, machine.shared + src, 4);
    return v;
}

inline void ldmatrix(u32 (&r)[4], u32 row, bool trans) {
    check_shared(row, 16, 16);
    exchange(row, [&](auto at) {
        const int lane = machine.current->lane;
        for (int i = 0; i < 4; i++) {
            u16 e[2];
            for (int k = 0; k < 2; k++) {
                const int line = trans ? lane % 4 * 2 + k : lane / 4, col = trans ? lane / 4 : lane % 4 * 2 + k;
                memcpy(&e[k], machine.shared + at(8 * i + line) + 2 * col, 2);
            }
            r[i] = e[0] | static_cast<u32>(e[1]) << 16;
        }
        return 0;
    });
}
inline void ldmatrix_x4(u32 (&r)[4], u32 row) { ldmatrix(r, row, false); }
inline void ldmatrix_x4_trans(u32 (&r)[4], u32 row) { ldmatrix(r, row, true); }

inline float bf16_value(u16 x) { return __uint_as_float(static_cast<u32>(x) << 16); }
inline float from_f16(u16 x) {
    const int e = x >> 10 & 31, m = x & 1023;
    const float v = e == 0 ? ldexpf(m, -24) : e == 31 ? (m ? NAN : INFINITY) : ldexpf(1024 + m, e - 25);
    return x & 0x8000 ? -v : v;
}

// Of m16n8k16: A (16,16) and B (16,8), gathered from the lanes as section 9.7.14.5.8 spreads them.
template <class Value>
void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, Value value) {
    struct Lane { u32 a[4], b[2]; } mine{{a[0], a[1], a[2], a[3]}, {b0, b1}};
    exchange(mine, [&](auto at) {
        const int lane = machine.current->lane, g = lane / 4, q = lane % 4;
        for (int i = 0; i < 4; i++) {
            const int row = g + (i >= 2 ? 8 : 0), col = 2 * q + i % 2;
            double sum = d[i];
            for (int k = 0; k < 16; k++) {
                // a[row][k]: rows 0-7 in registers 0 and 2, columns 8-15 in registers 2 and 3.
                const u32 x = at(row % 8 * 4 + k % 8 / 2).a[(row >= 8) + 2 * (k >= 8)];
                const u32 y = at(col * 4 + k % 8 / 2).b[k >= 8];
                sum += static_cast<double>(value(static_cast<u16>(k % 2 ? x >> 16 : x))) * value(static_cast<u16>(k % 2 ? y >> 16 : y));
            }
            d[i] = static_cast<float>(sum);
        }
        return 0;
    });
}
inline void mma_bf16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) { mma(d, a, b0, b1, bf16_value); }
inline void mma_f16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) { mma(d, a, b0, b1, from_f16); }

inline u16 to_bf16(float x) {
    if (x != x) return 0x7fff;
    const u32 u = __float_as_uint(x);
    return static_cast<u16>((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
inline u16 to_f16(float x) {
    if (x != x) return 0x7fff;
    _Float16 h = static_cast<_Float16>(x);
    u16 r;
    memcpy(&r, &h, 2);
    return r;
}
inline u32 pack_bf16(float low, float high) { return to_bf16(low) | static_cast<u32>(to_bf16(high)) << 16; }
inline u32 pack_f16(float low, float high) { return to_f16(low) | static_cast<u32>(to_f16(high)) << 16; }
inline u16 fma_bf16(u16 a, u16 b, u16 c) {  // exact in double, unless c is 2^37 times smaller
    const double sum = static_cast<double>(bf16_value(a)) * bf16_value(b) + bf16_value(c);
    const float f = static_cast<float>(sum);
    if (f != f || f == sum || std::isinf(f)) return to_bf16(f);
    const u32 down = fabs(f) > fabs(sum) ? __float_as_uint(f) - 1 : __float_as_uint(f);
    return to_bf16(__uint_as_float(down | 1));  // an odd last place: rounding twice is rounding once
}
inline u32 fma_bf16x2(u32 a, u32 b, u32 c) {
    return fma_bf16(static_cast<u16>(a), static_cast<u16>(b), static_cast<u16>(c)) |
           static_cast<u32>(fma_bf16(static_cast<u16>(a >> 16), static_cast<u16>(b >> 16), static_cast<u16>(c >> 16))) << 16;
}
inline u32 mul_bf16x2(u32 a, u32 b) { return fma_bf16x2(a, b, 0x80008000u); }
inline u16 fma_f16(u16 a, u16 b, u16 c) {  // exact in double
    const _Float16 h = static_cast<_Float16>(static_cast<double>(from_f16(a)) * from_f16(b) + from_f16(c));
    u16 r;
    memcpy(&r, &h, 2);
    return h != h ? 0x7fff : r;
}
inline u32 fma_f16x2(u32 a, u32 b, u32 c) {
    return fma_f16(static_cast<u16>(a), static_cast<u16>(b), static_cast<u16>(c)) |
           static_cast<u32>(fma_f16(static_cast<u16>(a >> 16), static_cast<u16>(b >> 16), static_cast<u16>(c >> 16))) << 16;
}
// Not for kArch.
u32 max_abs_bf16x2(u32 a, u32 b);
u32 max_abs_f16x2(u32 a, u32 b);
u16 to_e4m3x2(float low, float high);
u16 to_e5m2x2(float low, float high);
inline float max_nan(float a, float b) { return a != a || b != b ? __uint_as_float(0x7fffffff) : a > b ? a : b; }
inline u32 abs_bf16x2(u32 a) { return a & 0x7fff7fff; }
inline u32 select_bits(u32 mask, u32 a, u32 b) { return (a & ~mask) | (b & mask); }
inline u32 pick_bytes(u32 a, u32 b, u32 selector) {
    const u64 all = static_cast<u64>(b) << 32 | a;
    u32 r = 0;
    for (int i = 0; i < 4; i++) r |= static_cast<u32>(all >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    return r;
}
inline float exp2_approx(float x) { return exp2f(x); }
inline float rcp_approx(float x) { return 1.0f / x; }

}  // namespace ptx
