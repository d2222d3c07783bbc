// What a prompt needs between its products. Every tensor is read and written once, many rows at a time.
#include "activation.cuh"
#include "device.cuh"
#include "exlchat.h"
#include "launch.cuh"

#include <algorithm>

namespace exl {

constexpr int PROMPT_THREADS = 256;

union Halves8 {
    uint4 words;
    half2 pairs[4];
};

constexpr int MOST_NORM_THREADS = 1024, HELD = 2;

__device__ __forceinline__ float4 floats_of(uint2 words) {
    const float2 low = __half22float2(reinterpret_cast<const half2 &>(words.x));
    const float2 high = __half22float2(reinterpret_cast<const half2 &>(words.y));
    return {low.x, low.y, high.x, high.y};
}
// One row a block: the residual stream takes what the last product adds, and the next one gets it normed, in its order. Few
// rows leave most of a card idle, and then a row is as slow as its loads behind each other: hence many threads, which hold
// what they read.
__global__ void __launch_bounds__(MOST_NORM_THREADS) add_norm(const __grid_constant__ ExlAddNorm job) {
    __shared__ float sums[MOST_NORM_THREADS / LANES];
    EXL_SHARED_MEMORY(row_memory);
    half *ordered = reinterpret_cast<half *>(row_memory);
    const int width = job.width, stride = blockDim.x * 4, mine = threadIdx.x * 4;
    const size_t row = (size_t)blockIdx.x * width;
    float *hidden = static_cast<float *>(job.hidden) + row;
    const half *added = static_cast<const half *>(job.added) + row;
    half *y = static_cast<half *>(job.y) + row;
    const uint2 *weights = static_cast<const uint2 *>(job.weight), *places = static_cast<const uint2 *>(job.permutation);
    float squares = 0.f;
    float4 held[HELD];
    uint2 weight[HELD], place[HELD];
    // What is constant, before the previous kernel has ended.
#pragma unroll
    for (int i = 0; i < HELD; i++)
        if (const int at = mine + i * stride; at < width) {
            weight[i] = __ldg(weights + at / 4);
            if (places) place[i] = __ldg(places + at / 4);
        }
    wait_for_previous();
    let_next_start();
    const auto take = [&](int at) {
        float4 v = produced(reinterpret_cast<const float4 *>(hidden + at));
        if (job.added) {
            const float4 a = floats_of(produced(reinterpret_cast<const uint2 *>(added + at)));
            v.x += a.x, v.y += a.y, v.z += a.z, v.w += a.w;
            *reinterpret_cast<float4 *>(hidden + at) = v;
        }
        squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
        return v;
    };
#pragma unroll
    for (int i = 0; i < HELD; i++)
        if (const int at = mine + i * stride; at < width) held[i] = take(at);
    for (int at = mine + HELD * stride; at < width; at += stride) take(at);
    squares = warp_sum(squares);
    if (threadIdx.x % LANES == 0) sums[threadIdx.x / LANES] = squares;
    __syncthreads();
    const int lane = threadIdx.x % LANES;
    const float scale = rsqrtf(warp_sum(lane < blockDim.x / LANES ? sums[lane] : 0.f) / width + job.eps);
    const auto give = [&](int at, float4 v, uint2 weight, uint2 place) {
        const float4 w = floats_of(weight);
        half2 out[2] = {__floats2half2_rn(v.x * scale * w.x, v.y * scale * w.y),
                        __floats2half2_rn(v.z * scale * w.z, v.w * scale * w.w)};
        if (!places) {
            *reinterpret_cast<uint2 *>(y + at) = reinterpret_cast<const uint2 &>(out);
            return;
        }
        ordered[place.x & 0xffff] = __low2half(out[0]), ordered[place.x >> 16] = __high2half(out[0]);
        ordered[place.y & 0xffff] = __low2half(out[1]), ordered[place.y >> 16] = __high2half(out[1]);
    };
#pragma unroll
    for (int i = 0; i < HELD; i++)
        if (const int at = mine + i * stride; at < width) give(at, held[i], weight[i], place[i]);
    for (int at = mine + HELD * stride; at < width; at += stride)
        give(at, produced(reinterpret_cast<const float4 *>(hidden + at)), __ldg(weights + at / 4),
             places ? __ldg(places + at / 4) : uint2{});
    if (!places) return;
    __syncthreads();
    for (int at = threadIdx.x * 8; at < width; at += blockDim.x * 8)
        *reinterpret_cast<uint4 *>(y + at) = *reinterpret_cast<const uint4 *>(ordered + at);
}

// x [rows][2 * inner] -> y [rows][inner], eight columns a thread.
template <int ACTIVATION>
__global__ void __launch_bounds__(PROMPT_THREADS) gate(const half *x, half *y, int64_t count, int inner) {
    const int64_t at = ((int64_t)blockIdx.x * PROMPT_THREADS + threadIdx.x) * 8;
    wait_for_previous();
    let_next_start();
    if (at >= count) return;
    const half *first = x + at / inner * 2 * inner + at % inner;
    Halves8 gate, up;
    gate.words = produced(reinterpret_cast<const uint4 *>(first));
    up.words = produced(reinterpret_cast<const uint4 *>(first + inner));
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 g = __half22float2(gate.pairs[i]), u = __half22float2(up.pairs[i]);
        gate.pairs[i] = __floats2half2_rn(activated(ACTIVATION, g.x) * u.x, activated(ACTIVATION, g.y) * u.y);
    }
    *reinterpret_cast<uint4 *>(y + at) = gate.words;
}

// The first `heads` of `all_heads` of every row, two neighbouring pairs a thread.
template <bool INTERLEAVED>
__global__ void __launch_bounds__(PROMPT_THREADS)
    turn(half *x, const float *turns, int64_t count, int heads, int all_heads, int head_dim, int rotary_dim) {
    const int64_t at = (int64_t)blockIdx.x * PROMPT_THREADS + threadIdx.x;
    wait_for_previous();
    let_next_start();
    if (at >= count) return;
    const int per_head = rotary_dim / 4, pair = at % per_head * 2;
    const int head = at / per_head % heads;
    const int64_t row = at / per_head / heads;
    half *of_head = x + (row * all_heads + head) * head_dim;
    const float4 t = *reinterpret_cast<const float4 *>(turns + row * rotary_dim + pair * 2);
    half2 *first = reinterpret_cast<half2 *>(of_head + (INTERLEAVED ? pair * 2 : pair));
    half2 *second = INTERLEAVED ? first + 1 : first + rotary_dim / 4;
    const float2 a = __half22float2(produced(first)), b = __half22float2(produced(second));
    if constexpr (INTERLEAVED) {
        *first = __floats2half2_rn(a.x * t.x - a.y * t.y, a.y * t.x + a.x * t.y);
        *second = __floats2half2_rn(b.x * t.z - b.y * t.w, b.y * t.z + b.x * t.w);
    } else {
        *first = __floats2half2_rn(a.x * t.x - b.x * t.y, a.y * t.z - b.y * t.w);
        *second = __floats2half2_rn(b.x * t.x + a.x * t.y, b.y * t.z + a.y * t.w);
    }
}

inline int64_t blocks_of(int64_t threads) { return (threads + PROMPT_THREADS - 1) / PROMPT_THREADS; }

}  // namespace exl

extern "C" int exl_add_norm(const ExlAddNorm *job, void *stream) {
    if (!job || !job->hidden || !job->weight || !job->y || job->rows < 1) return EXL_BAD_ARGUMENT;
    if (job->width < 4 || job->width % 4) return EXL_BAD_ARGUMENT;
    if (job->permutation && job->width % 8) return EXL_BAD_ARGUMENT;
    const int threads = std::min((job->width / 4 + exl::LANES - 1) / exl::LANES * exl::LANES, exl::MOST_NORM_THREADS);
    return exl::launch(exl::add_norm, job->rows, threads, job->permutation ? job->width * 2 : 0, 1,
                       static_cast<cudaStream_t>(stream), *job);
}

extern "C" int exl_gate(const void *x, void *y, int rows, int inner, int activation, void *stream) {
    if (!x || !y || rows < 1 || inner < 8 || inner % 8 || !exl::is_activation(activation)) return EXL_BAD_ARGUMENT;
    const int64_t count = (int64_t)rows * inner;
    const auto kernel = activation == EXL_SILU        ? exl::gate<EXL_SILU>
                        : activation == EXL_GELU_TANH ? exl::gate<EXL_GELU_TANH>
                                                      : exl::gate<EXL_GELU_ERF>;
    return exl::launch(kernel, dim3((unsigned)exl::blocks_of(count / 8)), exl::PROMPT_THREADS, 0, 1,
                       static_cast<cudaStream_t>(stream), static_cast<const half *>(x), static_cast<half *>(y), count,
                       inner);
}

extern "C" int exl_turn(void *x, const void *turns, int rows, int heads, int all_heads, int head_dim, int rotary_dim,
                        int interleaved, void *stream) {
    if (!x || !turns || rows < 1 || heads < 1 || all_heads < heads || head_dim < 4 || head_dim % 4) return EXL_BAD_ARGUMENT;
    if (rotary_dim < 4 || rotary_dim % 4 || rotary_dim > head_dim) return EXL_BAD_ARGUMENT;
    const int64_t count = (int64_t)rows * heads * (rotary_dim / 4);
    return exl::launch(interleaved ? exl::turn<true> : exl::turn<false>, dim3((unsigned)exl::blocks_of(count)),
                       exl::PROMPT_THREADS, 0, 1, static_cast<cudaStream_t>(stream), static_cast<half *>(x),
                       static_cast<const float *>(turns), count, heads, all_heads, head_dim, rotary_dim);
}
