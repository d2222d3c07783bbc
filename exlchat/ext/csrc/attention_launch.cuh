// How the kernels of attention_kernel.cuh and attention_store.cuh are launched.
#pragma once
#include <cuda_runtime.h>

#include "attention_kernel.cuh"
#include "attention_store.cuh"
#include "launch.cuh"

namespace exl {

// As many warps as the card has shared memory for.
template <int KEY, int VALUE, int DIM>
int launch_attention(const ExlAttention &job, int dependent, cudaStream_t stream) {
    using A = Attention<KEY, VALUE, DIM, 1>;
    int device = 0, most = 0, processors = 0, of_sm = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&of_sm, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    if (error != cudaSuccess) return error;
    const int fixed = sizeof(typename A::Common), room = (most < MOST_SHARED ? most : MOST_SHARED) - fixed - 16;
    const int warps = room / A::RING < A::WARPS ? room / A::RING : A::WARPS;
    // A block on every multiprocessor, though some only wait: where one stays empty, two blocks of the product behind
    // this start there early, and it takes twice as long.
    // Of several tokens the blocks do one piece of work after the other, two blocks to a multiprocessor where it has room for
    // them, as one hides what the other waits for between its pieces. A kilobyte of each is CUDA's.
    const int working = columns_of(job) * job.splits;
    const bool two = job.rows > 1 && 2 * (fixed + warps * A::RING + 1024) <= of_sm;
    const int grid = two ? 2 * processors : working > processors ? working : processors;
    if (job.rows > 1 && follow_each_other(job)) {
        int blocks = job.rows * job.kv_heads;
        if ((error = places_to_keep(dependent, blocks)) != cudaSuccess) return error;
        const int code = launch(store_tokens<KEY, VALUE, DIM>, blocks, STORE_WARPS * LANES, 0, dependent, stream, job);
        if (code) return code;
    }
    const auto kernel = job.rows > EXL_MAX_ROWS ? attention<KEY, VALUE, DIM, EXL_WIDE_ROWS>
                        : job.rows > 1          ? attention<KEY, VALUE, DIM, EXL_MAX_ROWS>
                                                : attention<KEY, VALUE, DIM, 1>;
    return launch(kernel, grid, warps * LANES, fixed + warps * A::RING, dependent, stream, job);
}

// The heads that one kind of cache allows.
template <int KEY, int VALUE>
int attention_of(const ExlAttention &job, int dependent, cudaStream_t stream) {
    switch (job.head_dim) {
        case 64: return launch_attention<KEY, VALUE, 64>(job, dependent, stream);
        case 80:
            // 80 is no multiple of the 32 elements that are coded together.
            if constexpr (KEY == EXL_CACHE_HALF) return launch_attention<KEY, VALUE, 80>(job, dependent, stream);
            return EXL_BAD_ARGUMENT;
        case 96: return launch_attention<KEY, VALUE, 96>(job, dependent, stream);
        case 128: return launch_attention<KEY, VALUE, 128>(job, dependent, stream);
        case 256: return launch_attention<KEY, VALUE, 256>(job, dependent, stream);
        default: return EXL_BAD_ARGUMENT;
    }
}

}  // namespace exl
