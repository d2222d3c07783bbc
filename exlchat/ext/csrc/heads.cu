// Norms of queries and keys before the attention, other than an RMS norm of each head with one weight for all heads,
// which the attention does itself.
#include "device.cuh"
#include "exlchat.h"
#include "launch.cuh"

namespace exl {

constexpr int EACH_WARPS = 4, EACH_PAIRS = 4;  // pairs of elements that a lane has: heads of up to 256
constexpr int TOGETHER_THREADS = 512, TOGETHER_CHUNKS = 4;
constexpr int MOST_TOGETHER = TOGETHER_THREADS * TOGETHER_CHUNKS * 8;

// LayerNorm of each head, a warp each, with weights of its own.
__global__ void __launch_bounds__(EACH_WARPS *LANES) norm_each_head(const __grid_constant__ ExlNormHeads job) {
    let_next_start();
    const int head = blockIdx.x * EACH_WARPS + threadIdx.x / LANES, lane = threadIdx.x % LANES;
    const bool query = head < job.heads;
    const void *weights = query ? job.query_norm : job.key_norm;
    if (head >= job.heads + job.kv_heads || !weights) {
        wait_for_previous();
        return;
    }
    const half2 *weight = static_cast<const half2 *>(weights) + (query ? head : head - job.heads) * job.head_dim / 2;
    half2 *x = static_cast<half2 *>(job.qkv) + (blockIdx.y * (job.heads + 2 * job.kv_heads) + head) * job.head_dim / 2;
    half2 w[EACH_PAIRS], v[EACH_PAIRS];
    const auto inside = [&](int i) { return i * LANES + lane < job.head_dim / 2; };
#pragma unroll
    for (int i = 0; i < EACH_PAIRS; i++) w[i] = inside(i) ? __ldg(weight + i * LANES + lane) : half2{};
    wait_for_previous();
#pragma unroll
    for (int i = 0; i < EACH_PAIRS; i++) v[i] = inside(i) ? produced(x + i * LANES + lane) : half2{};
    float sum = 0.f, squares = 0.f;
#pragma unroll
    for (int i = 0; i < EACH_PAIRS; i++) sum += __low2float(v[i]) + __high2float(v[i]);
    const float mean = warp_sum(sum) / job.head_dim;
    float2 centred[EACH_PAIRS];
#pragma unroll
    for (int i = 0; i < EACH_PAIRS; i++) {
        centred[i] = inside(i) ? float2{__low2float(v[i]) - mean, __high2float(v[i]) - mean} : float2{0.f, 0.f};
        squares += centred[i].x * centred[i].x + centred[i].y * centred[i].y;
    }
    const float scale = rsqrtf(warp_sum(squares) / job.head_dim + job.eps);
#pragma unroll
    for (int i = 0; i < EACH_PAIRS; i++)
        if (inside(i))
            x[i * LANES + lane] = __floats2half2_rn(scale * centred[i].x * __low2float(w[i]),
                                                    scale * centred[i].y * __high2float(w[i]));
}

struct __align__(16) Halves8 {
    half2 pairs[4];
};

// RMS norm of all queries of a row together, and of all its keys: a block each.
__global__ void __launch_bounds__(TOGETHER_THREADS) norm_heads_together(const __grid_constant__ ExlNormHeads job) {
    __shared__ float parts[TOGETHER_THREADS / LANES];
    let_next_start();
    const void *weights = blockIdx.x == 0 ? job.query_norm : job.key_norm;
    if (blockIdx.x > 1 || !weights) {  // it only keeps its place
        wait_for_previous();
        return;
    }
    const int width = (blockIdx.x == 0 ? job.heads : job.kv_heads) * job.head_dim;
    const int first = blockIdx.y * (job.heads + 2 * job.kv_heads) + (blockIdx.x == 0 ? 0 : job.heads);
    Halves8 *x = static_cast<Halves8 *>(job.qkv) + first * job.head_dim / 8;
    Halves8 w[TOGETHER_CHUNKS], v[TOGETHER_CHUNKS];
    const auto at = [&](int i) { return i * TOGETHER_THREADS + (int)threadIdx.x; };
    const auto inside = [&](int i) { return at(i) * 8 < width; };
#pragma unroll
    for (int i = 0; i < TOGETHER_CHUNKS; i++)
        if (inside(i)) {
            const uint4 words = __ldg(static_cast<const uint4 *>(weights) + at(i));
            w[i] = reinterpret_cast<const Halves8 &>(words);
        }
    wait_for_previous();
#pragma unroll
    for (int i = 0; i < TOGETHER_CHUNKS; i++) v[i] = inside(i) ? produced(x + at(i)) : Halves8{};
    float squares = 0.f;
#pragma unroll
    for (int i = 0; i < TOGETHER_CHUNKS; i++)
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const float2 f = __half22float2(v[i].pairs[k]);
            squares += f.x * f.x + f.y * f.y;
        }
    squares = warp_sum(squares);
    if (threadIdx.x % LANES == 0) parts[threadIdx.x / LANES] = squares;
    __syncthreads();
    float total = 0.f;
#pragma unroll
    for (int i = 0; i < TOGETHER_THREADS / LANES; i++) total += parts[i];
    const float scale = rsqrtf(total / width + job.eps);
#pragma unroll
    for (int i = 0; i < TOGETHER_CHUNKS; i++) {
        if (!inside(i)) continue;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const float2 f = __half22float2(v[i].pairs[k]), g = __half22float2(w[i].pairs[k]);
            v[i].pairs[k] = __floats2half2_rn(scale * f.x * g.x, scale * f.y * g.y);
        }
        x[at(i)] = v[i];
    }
}

static bool norm_heads_ok(const ExlNormHeads &job) {
    const auto whole = [](const void *p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
    if (!job.qkv || (!job.query_norm && !job.key_norm)) return false;
    if (!whole(job.qkv) || !whole(job.query_norm) || !whole(job.key_norm)) return false;
    if (job.rows < 1 || job.rows > EXL_MAX_ROWS) return false;
    if (job.heads < 1 || job.kv_heads < 1 || job.head_dim < 8 || job.head_dim > 256 || job.head_dim % 8) return false;
    if (job.kind != EXL_NORM_LAYER && job.kind != EXL_NORM_RMS) return false;
    const int most = MOST_TOGETHER / job.head_dim;
    return job.kind == EXL_NORM_LAYER ? job.heads <= 65535 && job.kv_heads <= 65535
                                      : job.heads <= most && job.kv_heads <= most;
}

}  // namespace exl

extern "C" int exl_norm_heads(const ExlNormHeads *job, int dependent, void *stream) {
    if (!job || !exl::norm_heads_ok(*job)) return EXL_BAD_ARGUMENT;
    const cudaStream_t s = static_cast<cudaStream_t>(stream);
    const bool each = job->kind == EXL_NORM_LAYER;
    int blocks = each ? (job->heads + job->kv_heads + exl::EACH_WARPS - 1) / exl::EACH_WARPS : 2;
    if (const cudaError_t error = exl::places_to_keep(dependent, blocks, job->rows)) return error;
    const dim3 grid(blocks, job->rows);
    return each ? exl::launch(exl::norm_each_head, grid, exl::EACH_WARPS * exl::LANES, 0, dependent, s, *job)
                : exl::launch(exl::norm_heads_together, grid, exl::TOGETHER_THREADS, 0, dependent, s, *job);
}
