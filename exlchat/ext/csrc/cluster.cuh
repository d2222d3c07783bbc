// Blocks that stand side by side and see each other's shared memory: on Hopper and later.
#pragma once
#include "device.cuh"

namespace exl {

// Whether blocks that stand side by side can be sure to run at the same time, and to reach each other's shared memory.
#if __CUDA_ARCH__ >= 900
constexpr bool CLUSTERS = true;
#else
constexpr bool CLUSTERS = false;
#endif
// All threads of a cluster's blocks come by, and later, by turns with that, wait until all have. What they wrote to shared
// memory before they came by is seen then.
__device__ __forceinline__ void come_to_cluster() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}
// The same of threads that have nothing to show, who so need not wait until all that they have stored is in memory.
__device__ __forceinline__ void pass_by_cluster() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_cluster() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}
__device__ __forceinline__ uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

// What one neighbour gives, once, by stores that count themselves: nobody has to wait until his own have arrived.
struct Gift {
    uint64_t barrier;

    // By one thread, before its block comes to the cluster: so many bytes will come.
    __device__ __forceinline__ void expect(int bytes) {
#if __CUDA_ARCH__ >= 900
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&barrier)) : "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)), "r"(bytes)
                     : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
    }
    // To block `rank` of the cluster, at the place where `own` stands in this block's shared memory.
    __device__ __forceinline__ void give(float *own, int rank, float value) {
#if __CUDA_ARCH__ >= 900
        asm volatile("{.reg .u32 to, count; mapa.shared::cluster.u32 to, %0, %2; mapa.shared::cluster.u32 count, %1, %2;\n"
                     "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [to], %3, [count];}" ::"r"(shared_address(own)),
                     "r"(shared_address(&barrier)), "r"(rank), "f"(value)
                     : "memory");
#endif
    }
    __device__ __forceinline__ void wait() {
#if __CUDA_ARCH__ >= 900
        uint32_t there = 0;
        while (!there)
            asm volatile("{.reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0;\n"
                         "selp.u32 %0, 1, 0, p;}" : "=r"(there) : "r"(shared_address(&barrier)) : "memory");
#endif
    }
};
// What block `rank` of the cluster has at the place where `own` stands in this block's shared memory.
__device__ __forceinline__ float4 of_neighbour(const float4 *own, int rank) {
    float4 v = {};
#if __CUDA_ARCH__ >= 900
    asm volatile("{.reg .u32 a; mapa.shared::cluster.u32 a, %4, %5; ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [a];}"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(shared_address(own)), "r"(rank) : "memory");
#endif
    return v;
}

}  // namespace exl
