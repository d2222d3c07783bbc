// The small ends of a decode step.
#include "device.cuh"
#include "exlchat.h"
#include "launch.cuh"
#include "matrix.cuh"
#include "residual.cuh"

namespace exl {

constexpr int EMBED_THREADS = 128;

__global__ void embed(const __grid_constant__ ExlEmbed job) {
    let_next_start();
    const int at = blockIdx.x * EMBED_THREADS + threadIdx.x, number = blockIdx.y;
    if (at >= job.width) return;
    const ResidualConstants constants(job.residual, at);
    wait_for_previous();
    const int64_t token = produced(static_cast<const int64_t *>(job.token) + number);
    const half *row = static_cast<const half *>(job.table) + (size_t)token * job.width;
    const float value = __half2float(__ldg(row + at)) * job.multiplier;
    const int lane = threadIdx.x % LANES;
    if (job.residual.delta) put_residual<true>(job.residual, constants, half(), number, at, value, 0.f, lane);
    else if (job.residual.squares) put_residual<false>(job.residual, constants, half(), number, at, value, 0.f, lane);
    else job.residual.hidden[(size_t)number * job.width + at] = value;
}

constexpr int SCALE_THREADS = 256;

__device__ __forceinline__ float scaled_logit(const ExlScaleLogits &job, float logit) {
    const float x = logit * job.scale;
    return job.softcap == 0.f ? x : job.softcap * tanhf(x / job.softcap);
}

// Four logits a thread, and the last few one by one.
__global__ void __launch_bounds__(SCALE_THREADS) scale_logits(const __grid_constant__ ExlScaleLogits job) {
    let_next_start();
    wait_for_previous();
    const int at = (blockIdx.x * SCALE_THREADS + threadIdx.x) * 4;
    float *logits = static_cast<float *>(job.logits) + at;
    if (at + 4 <= job.count) {
        const float4 v = produced(reinterpret_cast<const float4 *>(logits));
        *reinterpret_cast<float4 *>(logits) = float4{scaled_logit(job, v.x), scaled_logit(job, v.y),
                                                     scaled_logit(job, v.z), scaled_logit(job, v.w)};
    } else {
        for (int i = 0; i < job.count - at; i++) logits[i] = scaled_logit(job, produced(logits + i));
    }
}

// Without squares there are no copies either, and nothing is deferred.
static bool stream_ok(const ExlResidual &residual) {
    if (residual.squares) return residual_ok(residual);
    for (const ExlNormCopy &copy : residual.copies)
        if (copy.values) return false;
    return residual.hidden && !residual.delta;
}

}  // namespace exl

extern "C" int exl_embed(const ExlEmbed *job, int dependent, void *stream) {
    if (!job || !job->table || !job->token || job->width < 16 || job->width % 16 || !exl::stream_ok(job->residual))
        return EXL_BAD_ARGUMENT;
    if (job->rows < 1 || job->rows > EXL_MAX_ROWS || (job->residual.squares && job->residual.columns != job->width))
        return EXL_BAD_ARGUMENT;
    const dim3 blocks((job->width + exl::EMBED_THREADS - 1) / exl::EMBED_THREADS, job->rows);
    return exl::launch(exl::embed, blocks, exl::EMBED_THREADS, 0, dependent, static_cast<cudaStream_t>(stream), *job);
}

extern "C" int exl_scale_logits(const ExlScaleLogits *job, int dependent, void *stream) {
    if (!job || !job->logits || reinterpret_cast<uintptr_t>(job->logits) % 16 || job->count < 1) return EXL_BAD_ARGUMENT;
    if (!(job->softcap >= 0.f) || job->count > EXL_MAX_ROWS * EXL_MAX_VOCAB) return EXL_BAD_ARGUMENT;
    const int each = exl::SCALE_THREADS * 4, blocks = (job->count + each - 1) / each;
    return exl::launch(exl::scale_logits, blocks, exl::SCALE_THREADS, 0, dependent, static_cast<cudaStream_t>(stream), *job);
}
