// Small device-side helpers: memory and tensor-core instructions, and the edges between dependent kernels.
#pragma once
#include <cuda_fp16.h>
#include <stdint.h>

namespace exl {

constexpr int LANES = 32;

// Declares the shared memory that a launch gives to each block. A macro: what a function returns of it is addressed by
// more instructions (decode attention over halves 3,024 instead of 2,992).
#define EXL_ALIGNED_SHARED_MEMORY(name, bytes) extern __shared__ __align__(bytes) uint8_t name[]
#define EXL_SHARED_MEMORY(name) EXL_ALIGNED_SHARED_MEMORY(name, 16)

// What an earlier kernel of the same step has written is read through L2: L1 may hold an older value, and the
// compiler may not move the load above the wait.
template <class T> __device__ __forceinline__ T produced(const T *p) {
    static_assert(sizeof(T) == 16 || sizeof(T) == 8 || sizeof(T) == 4 || sizeof(T) == 2, "");
    T value;
    if constexpr (sizeof(T) == 16) {
        uint4 &v = reinterpret_cast<uint4 &>(value);
        asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
    } else if constexpr (sizeof(T) == 8) {
        uint2 &v = reinterpret_cast<uint2 &>(value);
        asm volatile("ld.global.cg.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p) : "memory");
    } else if constexpr (sizeof(T) == 4) {
        asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(reinterpret_cast<uint32_t &>(value)) : "l"(p) : "memory");
    } else {
        asm volatile("ld.global.cg.u16 %0, [%1];" : "=h"(reinterpret_cast<uint16_t &>(value)) : "l"(p) : "memory");
    }
    return value;
}

// c += a b with a 16 x 16, b 16 x 8; halves in, floats out. Before sm_80 in two steps of 8.
__device__ __forceinline__ void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                    uint32_t b1) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#else
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(b0));
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a2), "r"(a3), "r"(b1));
#endif
}

// Four 8 x 8 blocks of halves from shared memory; lane i gives the address of row i % 8 of block i / 8.
__device__ __forceinline__ void load_blocks(uint32_t (&r)[4], const half *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row)) : "memory");
}
__device__ __forceinline__ void load_blocks_turned(uint32_t (&r)[4], const half *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row)) : "memory");
}

// 16 bytes to shared memory without passing through registers; before sm_80 through them, one copy after the other.
#if __CUDA_ARCH__ >= 800
constexpr bool COPIES_GO_ON = true;
#else
constexpr bool COPIES_GO_ON = false;
#endif
__device__ __forceinline__ void copy16(void *to, const void *from) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from)
                 : "memory");
#else
    *static_cast<uint4 *>(to) = __ldcg(static_cast<const uint4 *>(from));
#endif
}
// The same for some of the lanes, without a branch.
__device__ __forceinline__ void copy16_if(bool wanted, void *to, const void *from) {
#if __CUDA_ARCH__ >= 800
    asm volatile("{.reg .pred p; setp.ne.s32 p, %2, 0; @p cp.async.cg.shared.global [%0], [%1], 16;}" ::
                 "r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from), "r"((int)wanted) : "memory");
#else
    if (wanted) copy16(to, from);
#endif
}
// 8 bytes of shared memory for some of the lanes, without a branch; the others keep what they have.
__device__ __forceinline__ void load8_if(bool wanted, uint2 &value, const void *from) {
    asm volatile("{.reg .pred p; setp.ne.s32 p, %2, 0; @p ld.shared.v2.u32 {%0,%1}, [%3];}"
                 : "+r"(value.x), "+r"(value.y) : "r"((int)wanted), "r"((uint32_t)__cvta_generic_to_shared(from)));
}
// The same of 16 bytes.
__device__ __forceinline__ void load16_if(bool wanted, uint4 &value, const void *from) {
    asm volatile("{.reg .pred p; setp.ne.s32 p, %4, 0; @p ld.shared.v4.u32 {%0,%1,%2,%3}, [%5];}"
                 : "+r"(value.x), "+r"(value.y), "+r"(value.z), "+r"(value.w)
                 : "r"((int)wanted), "r"((uint32_t)__cvta_generic_to_shared(from)));
}
__device__ __forceinline__ void end_of_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Waits until at most PENDING of the ended groups are under way.
template <int PENDING> __device__ __forceinline__ void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

// Brings the line of an address to L2.
__device__ __forceinline__ void ask_for_l2(const void *p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

// (word & mask) | bits in one instruction.
__device__ __forceinline__ uint32_t picked(uint32_t word, uint32_t mask, uint32_t bits) {
    uint32_t v;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(v) : "r"(word), "r"(mask), "r"(bits));
    return v;
}

__device__ __forceinline__ float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// An 8 x 8 block of halves turned over its diagonal: lane has row lane / 4, columns lane % 4 * 2 and the next.
__device__ __forceinline__ uint32_t turned_block(uint32_t v) {
    uint32_t turned;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(v));
    return turned;
}

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int d = 16; d; d /= 2) v += __shfl_xor_sync(~0u, v, d);
    return v;
}

// Order of unsigned integers = order of the floats; both zeros alike.
__device__ __forceinline__ uint32_t ordered(float logit) {
    const uint32_t bits = __float_as_uint(logit + 0.f);
    return bits ^ (bits >> 31 ? ~0u : 1u << 31);
}

// Whether this block is the last of `blocks`; what all of them wrote before is seen then. The ticket begins again at 0.
// The block's barriers before and after carry the order from thread 0 to the others.
__device__ __forceinline__ bool arrive(unsigned *ticket, int blocks) {
    unsigned before;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
                 : "=r"(before) : "l"(ticket), "r"(blocks - 1) : "memory");
    return before == blocks - 1;
}

// The same of blocks that do several parts each: whether this one, with `done` of them, is the last of `parts`.
__device__ __forceinline__ bool arrive(unsigned *ticket, int done, int parts) {
    unsigned before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(ticket), "r"(done) : "memory");
    if (before + done != parts) return false;
    *ticket = 0;
    return true;
}

// A whole aligned word at once, to be seen by the host.
__device__ __forceinline__ void tell_host(unsigned long long *slot, unsigned long long word) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(slot), "l"(word) : "memory");
}

// Words that cards tell each other, and what a card looks for.
__device__ __forceinline__ void send_word(uint64_t *to, uint64_t word) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}
__device__ __forceinline__ uint64_t look(const uint64_t *at) {
    uint64_t word;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(word) : "l"(at) : "memory");
    return word;
}
__device__ __forceinline__ uint32_t look(const uint32_t *at) {
    uint32_t word;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(word) : "l"(at) : "memory");
    return word;
}
__device__ __forceinline__ unsigned long long nanoseconds() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}

__device__ __forceinline__ unsigned acquired(const unsigned *p) {
    unsigned value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(p) : "memory");
    return value;
}
// What this thread, and those it has met in a barrier, have written is seen by whoever acquires the word.
__device__ __forceinline__ void release(unsigned *p, unsigned value) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(value) : "memory");
}

// Of whoever waits for other blocks of the same kernel. All of them are on the card at once, so that takes microseconds; where one
// does not come, the kernel ends after some seconds (a look takes a part of a microsecond) with an error, which the host is told.
class Patience {
    unsigned looks = 0;  // a clock in its place takes registers that spill in products of many rows

  public:
    __device__ __forceinline__ void look_again() {
        if (++looks == 1u << 24) __trap();
    }
};

// Blocks wait for each other here, each with its number among them, so all of them must be on the card at once; one thread of each calls it.
// What these threads saw before is seen then by loads that bypass L1 (`produced`). The word begins at 0: the last to come
// turns its upper bit over, and leaves the others at 0.
__device__ __forceinline__ void meet(unsigned *word, int block, int blocks) {
    const unsigned part = block == 0 ? (1u << 31) - (blocks - 1) : 1;
    unsigned before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(word), "r"(part) : "memory");
    for (Patience patience; (acquired(word) ^ before) >> 31 == 0;) patience.look_again();
}

// Edges of dependent launches. Every kernel of the step lets its successor start at once, may then read weights,
// and waits before it touches anything an earlier kernel writes. Before sm_90 the edges are plain and this is nothing.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace exl
