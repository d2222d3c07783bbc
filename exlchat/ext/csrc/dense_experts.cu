// Products of chosen experts whose weights are halves: a warp takes two rows of weights at a time, of a gate and its up
// or two neighbours, and all of x, which its block has in shared memory.
#include "experts.cuh"
#include "launch.cuh"

namespace exl {

// Sums of eight products each.
__device__ __forceinline__ void add_octets(float (&sums)[2], const uint4 &x, const uint4 &first, const uint4 &second) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 v = __half22float2(reinterpret_cast<const half2 *>(&x)[i]);
        const float2 a = __half22float2(reinterpret_cast<const half2 *>(&first)[i]);
        const float2 b = __half22float2(reinterpret_cast<const half2 *>(&second)[i]);
        sums[0] = fmaf(a.y, v.y, fmaf(a.x, v.x, sums[0]));
        sums[1] = fmaf(b.y, v.y, fmaf(b.x, v.x, sums[1]));
    }
}

// Two rows times x.
__device__ __forceinline__ void multiply(float (&sums)[2], const uint4 *x, const half *first, const half *second, int octets) {
    constexpr int AT_ONCE = 4;
    const int lane = threadIdx.x % LANES;
#pragma unroll 1
    for (int base = lane; base < octets; base += AT_ONCE * LANES) {
        uint4 a[AT_ONCE], b[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int at = base + i * LANES;
            if (at < octets) a[i] = __ldcs(reinterpret_cast<const uint4 *>(first) + at);
            if (at < octets) b[i] = __ldcs(reinterpret_cast<const uint4 *>(second) + at);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (base + i * LANES < octets) add_octets(sums, x[base + i * LANES], a[i], b[i]);
    }
    sums[0] = warp_sum(sums[0]), sums[1] = warp_sum(sums[1]);
}

__device__ __forceinline__ float dense_bias(const void *bias, size_t at) {
    return bias ? __half2float(__ldg(static_cast<const half *>(bias) + at)) : 0.f;
}

__global__ void __launch_bounds__(THREADS) dense_experts(const __grid_constant__ ExlDenseProduct job) {
    extern __shared__ __align__(16) uint4 x[];
    let_next_start();
    const int slot = blockIdx.y, octets = job.inputs / 8;
    const bool pair = job.y_kind == EXL_Y_GATED;
    wait_for_previous();
    const int expert = produced(static_cast<const int *>(job.chosen) + slot);
    const uint4 *source = reinterpret_cast<const uint4 *>(static_cast<const half *>(job.x) + (size_t)(slot / job.x_slots) * job.x_stride);
#pragma unroll 2
    for (int i = threadIdx.x; i < octets; i += THREADS) x[i] = produced(source + i);
    __syncthreads();
    const size_t begin = (size_t)expert * job.expert_stride, of_y = (size_t)slot * job.y_stride;
    const size_t of_bias = (size_t)expert * job.outputs;
    const half *first = static_cast<const half *>(job.weights[0]) + begin;
    const half *second = pair ? static_cast<const half *>(job.weights[1]) + begin : first + job.inputs;
    const int rows = pair ? job.outputs : job.outputs / 2, step = pair ? 1 : 2;
#pragma unroll 1
    for (int row = blockIdx.x * WARPS + threadIdx.x / LANES; row < rows; row += gridDim.x * WARPS) {
        const size_t offset = (size_t)row * step * job.inputs;
        float sums[2] = {};
        multiply(sums, x, first + offset, second + offset, octets);
        if (threadIdx.x % LANES) continue;
        if (pair) {
            const float gate = sums[0] + dense_bias(job.bias[0], of_bias + row);
            const float up = sums[1] + dense_bias(job.bias[1], of_bias + row);
            static_cast<half *>(job.y)[of_y + row] = __float2half_rn(gated(job.activation, job.limit, gate, up));
        } else {
            float *y = static_cast<float *>(job.y) + of_y + row * 2;
            y[0] = sums[0] + dense_bias(job.bias[0], of_bias + row * 2);
            y[1] = sums[1] + dense_bias(job.bias[0], of_bias + row * 2 + 1);
        }
    }
}

static bool dense_ok(const ExlDenseProduct &job) {
    if (job.matrices < 1 || job.matrices > EXL_EXPERT_MATRICES || !job.chosen || !slots_ok(job)) return false;
    for (int i = 0; i < job.matrices; i++)
        if (!job.weights[i] || reinterpret_cast<uintptr_t>(job.weights[i]) % 16) return false;
    if (job.inputs < 8 || job.inputs % 8 || job.inputs > EXL_MAX_DENSE_INPUTS) return false;
    if (job.outputs < 2 || job.outputs % 2 || job.expert_stride % 8) return false;
    if (job.expert_stride < (int64_t)job.inputs * job.outputs) return false;
    if (job.x_slots < job.slots && job.x_stride < job.inputs) return false;
    return job.y_stride >= job.outputs && job.blocks >= 1;
}

}  // namespace exl

extern "C" int exl_dense_product(const ExlDenseProduct *job, int dependent, void *stream) {
    if (!job || !exl::dense_ok(*job)) return EXL_BAD_ARGUMENT;
    const dim3 grid(job->blocks, job->slots);
    return exl::launch(exl::dense_experts, grid, exl::THREADS, job->inputs * 2, dependent, static_cast<cudaStream_t>(stream), *job);
}
