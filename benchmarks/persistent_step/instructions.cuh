// Instructions of sm_90 that C++ has no words for.
#pragma once
#include <cstdint>

#include <cuda_runtime.h>

#ifndef CLUSTER
#define CLUSTER 2
#endif
constexpr int C = CLUSTER;  // blocks of a cluster share the rows of a product
static_assert(C == 1 || C == 2, "gate and up of a pair are dealt to one block or two");

__device__ __forceinline__ uint32_t smem(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }
// Looks number n at something that has to come: never without end.
__device__ __forceinline__ void bounded(int &n) {
    if (++n > (1 << 20)) __trap();
}
__device__ __forceinline__ void mbar_init(void *b, int n) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem(b)), "r"(n));
}
__device__ __forceinline__ void mbar_expect(void *b, int n) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem(b)), "r"(n) : "memory");
}
__device__ __forceinline__ void mbar_arrive(void *b) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(smem(b)) : "memory");
}
__device__ __forceinline__ void mbar_wait(void *b, int phase) {
    uint32_t ok;
    int n = 0;
    do {
        asm volatile(
            "{\n.reg .pred p;\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, "
            "0, p;\n}"
            : "=r"(ok)
            : "r"(smem(b)), "r"(phase)
            : "memory");
        if (!ok) bounded(n);
    } while (!ok);
}
__device__ __forceinline__ void bulk(void *d, const void *s, int n, void *b, uint64_t policy) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
            "r"(smem(d)),
        "l"(s), "r"(n), "r"(smem(b)), "l"(policy)
        : "memory");
}
__device__ __forceinline__ uint32_t at_rank(const void *p, int rank) {
    uint32_t a;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(a) : "r"(smem(p)), "r"(rank));
    return a;
}
__device__ __forceinline__ void give(uint32_t at, float a, float b, uint32_t barrier) {
    if (C == 1) asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(a), "f"(b) : "memory");
    else
        asm volatile(
            "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(at),
            "r"(__float_as_uint(a)), "r"(__float_as_uint(b)), "r"(barrier)
            : "memory");
}
__device__ __forceinline__ void give(uint32_t at, float a, uint32_t barrier) {
    if (C == 1) asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(a) : "memory");
    else
        asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(at),
                     "r"(__float_as_uint(a)), "r"(barrier)
                     : "memory");
}
__device__ __forceinline__ void bar(int id, int n) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(n) : "memory"); }
__device__ __forceinline__ void imma(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                     uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%10,%10,%10,%10};"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(0));
}
__device__ __forceinline__ uint32_t masked(uint32_t w, uint32_t mask, uint32_t flip) {
    uint32_t v;
    asm("lop3.b32 %0, %1, %2, %3, 0x78;" : "=r"(v) : "r"(flip), "r"(w), "r"(mask));
    return v;
}  // flip ^ (w & mask)
__device__ __forceinline__ void leave(float *p, float v, int parity) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"((__float_as_uint(v) & ~1u) | parity) : "memory");
}
__device__ __forceinline__ float4 look(const float *p) {
    float4 v;
    asm volatile("ld.relaxed.gpu.global.v4.f32 {%0,%1,%2,%3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}
__device__ __forceinline__ bool is(float4 v, int parity) {
    const uint32_t p = parity;
    return (((__float_as_uint(v.x) ^ p) | (__float_as_uint(v.y) ^ p) | (__float_as_uint(v.z) ^ p) |
             (__float_as_uint(v.w) ^ p)) &
            1) == 0;
}
// What a tagged float stands for: without its tag, or sums would differ from one pass to the next.
__device__ __forceinline__ float plain(float v) { return __uint_as_float(__float_as_uint(v) & ~1u); }
__device__ __forceinline__ float4 plain(float4 v) {
    return make_float4(plain(v.x), plain(v.y), plain(v.z), plain(v.w));
}
__device__ __forceinline__ float4 take(const float *p, int parity) {
    float4 v;
    int n = 0;
    do v = look(p), bounded(n);
    while (!is(v, parity));
    return v;
}
