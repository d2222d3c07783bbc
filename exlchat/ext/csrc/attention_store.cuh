// New tokens of one sequence into the cache, before the attention: each sees those before it.
#pragma once
#include "attention_math.cuh"

namespace exl {

constexpr int STORE_WARPS = 4;

// New tokens into the cache, a block for each and each key-value head.
template <int KEY, int VALUE, int DIM>
__global__ void __launch_bounds__(STORE_WARPS *LANES) store_tokens(const __grid_constant__ ExlAttention job) {
    __shared__ float parts[2][DIM];
    let_next_start();
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    const int token = blockIdx.x / job.kv_heads, kv = blockIdx.x % job.kv_heads;
    if (token >= job.rows) {  // it only keeps its place
        wait_for_previous();
        return;
    }
    const int position = produced(static_cast<const int *>(job.position) + token);
    const Turns<DIM> turns(job, position, lane);
    const int at = cache_row(job, token, kv, position);
    wait_for_previous();
    if (warp < 2) {
        float x[SHARE<DIM>];
        read_new<KEY, DIM>(x, job, heads_of<DIM>(job, token), kv, warp == 1, turns, lane);
#pragma unroll
        for (int i = 0; i < SHARE<DIM>; i++)
            if (i * LANES + lane < DIM) parts[warp][i * LANES + lane] = x[i];
    }
    __syncthreads();
    store_token<KEY, VALUE, DIM>(job, at, parts[0], parts[1], warp, STORE_WARPS, lane);
}

}  // namespace exl
