// Every line of inline PTX, one small wrapper an instruction. Sections are those of the PTX ISA 8.x manual. All of
// it runs on sm_80 and later, but for what names another architecture, which kArch is asked for first. A wrapper that reads
// or writes memory behind the compiler's back clobbers memory.
#pragma once

namespace ptx {

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

// Ten times the number in the name of the architecture.
constexpr int kArch = __CUDA_ARCH__;
constexpr bool kBulk = kArch >= 900;  // has bulk copies

// The block's dynamic shared memory.
__device__ __forceinline__ unsigned char* dynamic_shared() {
    extern __shared__ __align__(1024) unsigned char bytes[];
    return bytes;
}

// The address inside the shared window that the instructions below take.
__device__ __forceinline__ u32 shared_address(const void* p) {
    return static_cast<u32>(__cvta_generic_to_shared(p));
}

// 9.7.9.25.3 cp.async (sm_80): 16 bytes from global to shared memory, around L1, if wanted; else the destination stays as
// it is. Complete for the issuing thread after a wait on its group, for others after a barrier that follows.
__device__ __forceinline__ void cp_async16(bool wanted, u32 dst, const void* src) {
    asm volatile("{.reg .pred p; setp.ne.u32 p, %2, 0; @p cp.async.cg.shared.global.L2::128B [%0], [%1], 16;}" ::"r"(dst), "l"(src),
                 "r"(static_cast<u32>(wanted))
                 : "memory");
}

// The first bytes (0 to 16) of the source; the rest of the destination becomes zero. With 0 the source is not read.
__device__ __forceinline__ void cp_async16_zero(bool wanted, u32 dst, const void* src, u32 bytes) {
    asm volatile("{.reg .pred p; setp.ne.u32 p, %3, 0; @p cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;}" ::"r"(dst), "l"(src),
                 "r"(bytes), "r"(static_cast<u32>(wanted))
                 : "memory");
}

// The same of 8 and of 4 bytes, through L1.
__device__ __forceinline__ void cp_async8_zero(u32 dst, const void* src, u32 bytes) {
    asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], 8, %2;" ::"r"(dst), "l"(src), "r"(bytes) : "memory");
}
__device__ __forceinline__ void cp_async4_zero(bool wanted, u32 dst, const void* src, u32 bytes) {
    asm volatile("{.reg .pred p; setp.ne.u32 p, %3, 0; @p cp.async.ca.shared.global [%0], [%1], 4, %2;}" ::"r"(dst), "l"(src),
                 "r"(bytes), "r"(static_cast<u32>(wanted))
                 : "memory");
}

// Closes the group of the copies issued since the last commit; it may be empty.
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most kPending of the newest groups are unfinished.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// 9.7.9.25.4.1 cp.async.bulk (sm_90): bytes from shared to global memory in the background, both addresses and bytes multiples
// of 16. Part of the thread's open bulk group. What other instructions have written is read after a bulk_fence.
__device__ __forceinline__ void cp_bulk(void* dst, u32 src, u32 bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(dst), "r"(src), "r"(bytes) : "memory");
}

// cp.async.bulk.commit_group (sm_90): closes the thread's group of the bulk copies issued since the last commit.
__device__ __forceinline__ void cp_bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// cp.async.bulk.wait_group.read (sm_90): waits until the copies of all of the thread's groups but the newest kPending have read their
// sources, which may change then. What they write is whole at the kernel's end.
template <int kPending>
__device__ __forceinline__ void cp_bulk_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
// The same of all groups, until the thread can see what its copies have written; then it may tell others.
__device__ __forceinline__ void cp_bulk_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// 9.7.12.4 fence.proxy.async (sm_90): bulk copies that follow, those of other threads after a barrier, read what this thread has
// written to shared memory.
__device__ __forceinline__ void bulk_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// elect.sync (sm_90): true in one lane, the same every time, of a warp whose lanes all call it. That there is only one the compiler
// knows, and tries no others with each bulk copy.
__device__ __forceinline__ bool elect() {
    u32 r;
    asm volatile("{.reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p;}" : "=r"(r));
    return r != 0;
}

// 9.7.9.15 prefetch: asks for the line of the address to be brought to the L1 cache; nothing waits for it.
__device__ __forceinline__ void prefetch_l1(const void* p) { asm volatile("prefetch.global.L1 [%0];" ::"l"(p)); }
// The same, to the L2 cache.
__device__ __forceinline__ void prefetch_l2(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

// 9.7.8.8 ld of a counter that other thread blocks change.
__device__ __forceinline__ u32 load_relaxed(const u32* p) {
    u32 v;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
// The same: what they wrote before a release that it shows is seen by this thread, and after a barrier by others.
__device__ __forceinline__ u32 load_acquire(const u32* p) {
    u32 v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

// 9.7.19.2 nanosleep: for about so long.
__device__ __forceinline__ void sleep(u32 ns) { asm volatile("nanosleep.u32 %0;" ::"r"(ns) : "memory"); }

// 9.7.12.5 atom.add: returns what was there.
__device__ __forceinline__ u32 fetch_add(u32* p, u32 by) {
    u32 v;
    asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;" : "=r"(v) : "l"(p), "r"(by) : "memory");
    return v;
}

// The same: what this thread has written, and others before a barrier, is seen by those who see the sum, or what follows from it, by
// load_acquire; and it sees what those have written who added before.
__device__ __forceinline__ u32 fetch_add_release(u32* p, u32 by) {
    u32 v;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(v) : "l"(p), "r"(by) : "memory");
    return v;
}

// 9.7.8.11 st.release: for load_acquire.
__device__ __forceinline__ void store_release(u32* p, u32 v) { asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }

// 9.7.8.9 st.shared of 16 bytes.
__device__ __forceinline__ void st_shared16(u32 dst, const u32 (&v)[4]) {
    asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(dst), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
}

// 9.7.8.9 st.shared of 2 and 4 bytes.
__device__ __forceinline__ void st_shared2(u32 dst, u16 v) { asm volatile("st.shared.b16 [%0], %1;" ::"r"(dst), "h"(v) : "memory"); }
__device__ __forceinline__ void st_shared4(u32 dst, u32 v) { asm volatile("st.shared.b32 [%0], %1;" ::"r"(dst), "r"(v) : "memory"); }

// 9.7.8.8 ld.shared of 4, 8 and 16 bytes.
__device__ __forceinline__ u32 ld_shared4(u32 src) {
    u32 v;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(src) : "memory");
    return v;
}
__device__ __forceinline__ void ld_shared8(u32 (&v)[2], u32 src) {
    asm volatile("ld.shared.v2.b32 {%0,%1}, [%2];" : "=r"(v[0]), "=r"(v[1]) : "r"(src) : "memory");
}
__device__ __forceinline__ void ld_shared16(u32 (&v)[4], u32 src) {
    asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];" : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"(src) : "memory");
}

// 9.7.8.8 ld.shared of one float.
__device__ __forceinline__ float ld_shared(u32 src) {
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(src) : "memory");
    return v;
}

// 9.7.14.5.15 ldmatrix (sm_75): four 8x8 matrices of 16-bit elements. Lanes 8i to 8i+7 hold the addresses of the rows of
// matrix i. Lane l gets in r[i] elements 2(l%4) and 2(l%4)+1 of row l/4 of matrix i.
__device__ __forceinline__ void ldmatrix_x4(u32 (&r)[4], u32 row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row)
                 : "memory");
}

// The same of the transposed matrices: lane l gets in r[i] elements l/4 of rows 2(l%4) and 2(l%4)+1 of matrix i.
__device__ __forceinline__ void ldmatrix_x4_trans(u32 (&r)[4], u32 row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row)
                 : "memory");
}

// 9.7.14.5.8 mma.m16n8k16 (sm_80): d += a b with float32 sums. With g = lane/4 and q = lane%4 a lane holds
//   a: rows g, g+8, g, g+8 of columns 2q, 2q, 2q+8, 2q+8 (and the next column in the upper half)
//   b: rows 2q, 2q+8 (and the next row in the upper half) of column g
//   d: (g,2q) (g,2q+1) (g+8,2q) (g+8,2q+1)
__device__ __forceinline__ void mma_bf16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void mma_f16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// 9.7.9.21 cvt: two floats to bf16 (sm_80) or f16, to nearest even, the first in the lower half. A NaN becomes 0x7fff; f16
// overflows to Inf.
__device__ __forceinline__ u32 pack_bf16(float low, float high) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

__device__ __forceinline__ u32 pack_f16(float low, float high) {
    u32 r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

__device__ __forceinline__ u16 to_bf16(float x) {
    u16 r;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(x));
    return r;
}

__device__ __forceinline__ u16 to_f16(float x) {
    u16 r;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(x));
    return r;
}

__device__ __forceinline__ float from_f16(u16 x) {
    float r;
    asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x));
    return r;
}

// 9.7.4.4 fma.rn.bf16x2 (sm_80): a*b + c of two bf16, rounded once to nearest even, subnormals kept.
__device__ __forceinline__ u32 fma_bf16x2(u32 a, u32 b, u32 c) {
    u32 r;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}
// The product (mul.bf16x2 wants sm_90): the addend is -0, which leaves the sign of a zero.
__device__ __forceinline__ u32 mul_bf16x2(u32 a, u32 b) { return fma_bf16x2(a, b, 0x80008000u); }

// 9.7.4.4 fma.rn.f16x2 (sm_80): a*b + c of two f16, rounded once to nearest even, subnormals kept.
__device__ __forceinline__ u32 fma_f16x2(u32 a, u32 b, u32 c) {
    u32 r;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}

// 9.7.4.7 abs.bf16x2 (sm_80).
__device__ __forceinline__ u32 abs_bf16x2(u32 a) {
    u32 r;
    asm("abs.bf16x2 %0, %1;" : "=r"(r) : "r"(a));
    return r;
}

// 9.7.4.10 max.NaN.xorsign.abs (sm_86): the larger magnitudes of two pairs, a NaN's above all, with the product's sign.
__device__ __forceinline__ u32 max_abs_bf16x2(u32 a, u32 b) {
    u32 r;
    asm("max.NaN.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
__device__ __forceinline__ u32 max_abs_f16x2(u32 a, u32 b) {
    u32 r;
    asm("max.NaN.xorsign.abs.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

// 9.7.3.12 max (sm_80): the larger one, a NaN above all.
__device__ __forceinline__ float max_nan(float a, float b) {
    float r;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
    return r;
}

// 9.7.9.21 cvt (sm_89): two floats to codes of 8 bits, to nearest even and at most the largest value, the first in the low
// byte. Subnormals and the signs of zeros are kept.
__device__ __forceinline__ u16 to_e4m3x2(float low, float high) {
    u16 r;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(high), "f"(low));
    return r;
}
__device__ __forceinline__ u16 to_e5m2x2(float low, float high) {
    u16 r;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(r) : "f"(high), "f"(low));
    return r;
}

// 9.7.8.6 lop3: bits of b where the mask has ones, of a elsewhere.
__device__ __forceinline__ u32 select_bits(u32 mask, u32 a, u32 b) {
    u32 r;
    asm("lop3.b32 %0, %1, %2, %3, 0xca;" : "=r"(r) : "r"(mask), "r"(b), "r"(a));
    return r;
}

// 10.1 %tid.x, read here and now.
__device__ __forceinline__ int thread() {
    int t;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(t));
    return t;
}

// 9.7.9.7 prmt: byte i of the result is byte (selector >> 4i) % 8 of b:a.
__device__ __forceinline__ u32 pick_bytes(u32 a, u32 b, u32 selector) {
    u32 r;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(selector));
    return r;
}

// 9.7.3.20 ex2.approx: 2^x within 2 units in the last place, subnormals included.
__device__ __forceinline__ float exp2_approx(float x) {
    float r;
    asm("ex2.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

// 9.7.3.14 rcp.approx: 1/x within 1 unit in the last place.
__device__ __forceinline__ float rcp_approx(float x) {
    float r;
    asm("rcp.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

// No instruction: the same number, of which the compiler knows nothing, so that what is made of it is not kept from one turn
// of a loop to the next.
__device__ __forceinline__ int fresh(int x) {
    asm volatile("" : "+r"(x));
    return x;
}

}  // namespace ptx
