// The small ends of a decode step.
#include "exlchat.h"
#include "launch.cuh"
#include "residual.cuh"

namespace exl {

bool residual_ok(const ExlResidual &residual);

constexpr int EMBED_THREADS = 128;

__global__ void embed(const __grid_constant__ ExlEmbed job) {
    let_next_start();
    const int at = blockIdx.x * EMBED_THREADS + threadIdx.x;
    if (at >= job.width) return;
    const ResidualConstants constants(job.residual, at);
    wait_for_previous();
    const half *row = static_cast<const half *>(job.table) + (size_t)produced(static_cast<const int64_t *>(job.token)) * job.width;
    put_residual(job.residual, constants, at, __half2float(__ldg(row + at)), threadIdx.x % LANES);
}

}  // namespace exl

extern "C" int exl_embed(const ExlEmbed *job, int dependent, void *stream) {
    if (!job || !job->table || !job->token || job->width < 16 || job->width % 16 || !exl::residual_ok(job->residual))
        return EXL_BAD_ARGUMENT;
    const int blocks = (job->width + exl::EMBED_THREADS - 1) / exl::EMBED_THREADS;
    return exl::launch(exl::embed, blocks, exl::EMBED_THREADS, 0, dependent, static_cast<cudaStream_t>(stream), *job);
}
