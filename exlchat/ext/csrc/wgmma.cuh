// Products of a warpgroup (four warps) on the tensor cores of Hopper, which go on while the warps do something else.
//
// PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions": a comes from registers, 16 rows of each warp, in the order of
// `mma` (device.cuh), b from shared memory, and so do the sums lie as those of `mma`.
#pragma once
#include <stdint.h>

// Only code for this very card has them (sm_90a).
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define EXL_WGMMA 1
#else
#define EXL_WGMMA 0
#endif

namespace exl {

// Before products read registers that were written since the last one.
__device__ __forceinline__ void before_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void end_of_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most PENDING of the ended groups are under way.
template <int PENDING> __device__ __forceinline__ void wait_for_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
// What ordinary stores and copies have written is seen by products from now on.
__device__ __forceinline__ void show_to_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// The compiler moves no reading or writing of these registers past here.
template <int N> __device__ __forceinline__ void hold(float (&c)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; n++)
        asm volatile("" : "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])::"memory");
}
__device__ __forceinline__ void hold(uint32_t (&a)[4]) {
    asm volatile("" : "+r"(a[0]), "+r"(a[1]), "+r"(a[2]), "+r"(a[3])::"memory");
}

// How b lies in shared memory: rows of 128 bytes, that is of 64 halves of one column, their 16 bytes number c at
// c ^ (row % 8), eight rows behind each other; the first at a multiple of 1,024 bytes. All lanes ask for the same: where the
// compiler does not know that, it moves every descriptor from vector registers, four instructions a product.
__device__ __forceinline__ uint64_t described(const char *b) {
    constexpr uint64_t SWIZZLE_128 = 1, EIGHT_ROWS = 1024;
    const uint32_t address = __cvta_generic_to_shared(b);
    return SWIZZLE_128 << 62 | EIGHT_ROWS / 16 << 32 | __shfl_sync(~0u, 1u << 16 | (address & 0x3ffff) >> 4, 0);
}

#define EXL_SUMS(n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define EXL_PRODUCT(SHAPE, SUMS, A, B, ONE)                                                                            \
    "{.reg .pred p; setp.ne.b32 p, " ONE ", 0;\n"                                                                      \
    "wgmma.mma_async.sync.aligned." SHAPE ".f32.f16.f16 {" SUMS "}, {" A "}, " B ", p, 1, 1, 0;}"
#define EXL_OPERANDS "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1)
#define EXL_8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define EXL_16 EXL_8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define EXL_24 EXL_16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define EXL_28 EXL_24 ",%24,%25,%26,%27"
#define EXL_32 EXL_28 ",%28,%29,%30,%31"

// c += a b, where b has 8 N columns and 16 rows.
__device__ __forceinline__ void wgmma(float (&c)[4][4], const uint32_t (&a)[4], uint64_t b) {
    asm volatile(EXL_PRODUCT("m64n32k16", EXL_16, "%16,%17,%18,%19", "%20", "%21")
                 : EXL_SUMS(0), EXL_SUMS(1), EXL_SUMS(2), EXL_SUMS(3) : EXL_OPERANDS);
}
__device__ __forceinline__ void wgmma(float (&c)[6][4], const uint32_t (&a)[4], uint64_t b) {
    asm volatile(EXL_PRODUCT("m64n48k16", EXL_24, "%24,%25,%26,%27", "%28", "%29")
                 : EXL_SUMS(0), EXL_SUMS(1), EXL_SUMS(2), EXL_SUMS(3), EXL_SUMS(4), EXL_SUMS(5) : EXL_OPERANDS);
}
__device__ __forceinline__ void wgmma(float (&c)[7][4], const uint32_t (&a)[4], uint64_t b) {
    asm volatile(EXL_PRODUCT("m64n56k16", EXL_28, "%28,%29,%30,%31", "%32", "%33")
                 : EXL_SUMS(0), EXL_SUMS(1), EXL_SUMS(2), EXL_SUMS(3), EXL_SUMS(4), EXL_SUMS(5), EXL_SUMS(6)
                 : EXL_OPERANDS);
}
__device__ __forceinline__ void wgmma(float (&c)[8][4], const uint32_t (&a)[4], uint64_t b) {
    asm volatile(EXL_PRODUCT("m64n64k16", EXL_32, "%32,%33,%34,%35", "%36", "%37")
                 : EXL_SUMS(0), EXL_SUMS(1), EXL_SUMS(2), EXL_SUMS(3), EXL_SUMS(4), EXL_SUMS(5), EXL_SUMS(6), EXL_SUMS(7)
                 : EXL_OPERANDS);
}
#undef EXL_SUMS
#undef EXL_PRODUCT
#undef EXL_OPERANDS
#undef EXL_8
#undef EXL_16
#undef EXL_24
#undef EXL_28
#undef EXL_32

}  // namespace exl
