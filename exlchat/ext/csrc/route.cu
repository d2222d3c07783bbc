// Which experts a token goes to: a warp for the logit of each, and the token's block that is done last chooses among them.
//
// The router's weights are constants, so a warp has most of its row in registers before the previous kernel ends.
#include "device.cuh"
#include "exlchat.h"
#include "launch.cuh"

namespace exl {

constexpr int ROUTE_WARPS = 4, ROUTE_THREADS = ROUTE_WARPS * LANES;
constexpr int EACH = EXL_MAX_EXPERTS / ROUTE_THREADS;  // experts of a thread of the choice

// Eight neighbouring weights of a row.
template <class Weight> struct Octet {
    static constexpr int LOADS = sizeof(Weight) / 2;
    uint4 loaded[LOADS];

    __device__ __forceinline__ void load(const Weight *from) {
#pragma unroll
        for (int i = 0; i < LOADS; i++) loaded[i] = __ldg(reinterpret_cast<const uint4 *>(from) + i);
    }
    __device__ __forceinline__ float2 pair(int i) const {
        if constexpr (LOADS == 2) return reinterpret_cast<const float2 *>(loaded)[i];
        else return __half22float2(reinterpret_cast<const half2 *>(loaded)[i]);
    }
    __device__ __forceinline__ float times(const uint4 &x, float sum) const {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 v = __half22float2(reinterpret_cast<const half2 *>(&x)[i]), w = pair(i);
            sum = fmaf(w.y, v.y, fmaf(w.x, v.x, sum));
        }
        return sum;
    }
};

// A warp's row times x. What does not fit the registers comes when x is there.
template <class Weight> struct Row {
    static constexpr int AHEAD = 32 / sizeof(Weight);
    const Weight *weights;
    int octets, lane;
    Octet<Weight> ahead[AHEAD];

    __device__ __forceinline__ Row(const Weight *weights, int octets)
        : weights(weights), octets(octets), lane(threadIdx.x % LANES) {
        ask(0);
    }
    __device__ __forceinline__ void ask(int base) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int at = base + i * LANES + lane;
            if (at < octets) ahead[i].load(weights + at * 8);
        }
    }
    __device__ __forceinline__ float times(const uint4 *x) {
        float sum = 0.f;
#pragma unroll 1
        for (int base = 0; base < octets; base += AHEAD * LANES) {
            if (base) ask(base);
            uint4 part[AHEAD];
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                const int at = base + i * LANES + lane;
                if (at < octets) part[i] = produced(x + at);
            }
#pragma unroll
            for (int i = 0; i < AHEAD; i++)
                if (base + i * LANES + lane < octets) sum = ahead[i].times(part[i], sum);
        }
        return warp_sum(sum);
    }
};

// What the choice is made with. Places behind the last expert hold 0, which no key is.
struct Choice {
    uint32_t keys[EXL_MAX_EXPERTS];
    float best[EXL_MAX_CHOSEN], sums[ROUTE_WARPS];
};

// How many experts come before this one. Of four at a time, all below it count where they equal it, none above.
__device__ __forceinline__ int place_of(const Choice &c, uint32_t key, int expert, int experts) {
    int before = 0;
#pragma unroll 4
    for (int quad = 0; quad < (experts + 3) / 4; quad++) {
        const uint4 other = reinterpret_cast<const uint4 *>(c.keys)[quad];
        const uint32_t least = quad < expert / 4 ? key - 1 : key;
        before += (other.x > least) + (other.y > least) + (other.z > least) + (other.w > least);
    }
    for (int other = expert / 4 * 4; other < expert; other++) before += c.keys[other] == key;
    return before;
}

// By one block, of its token. Every expert has a place of its own, so that no choice can be none or twice the same, not even of NaN.
__device__ __forceinline__ void choose(const ExlRoute &job, Choice &c) {
    const int t = threadIdx.x, token = blockIdx.y;
    const float *logits = static_cast<const float *>(job.logits) + (size_t)token * job.rows;
    float logit[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int expert = i * ROUTE_THREADS + t;
        const bool real = expert < job.experts;
        logit[i] = real ? produced(logits + expert) : 0.f;
        c.keys[expert] = real ? max(ordered(logit[i]), 1u) : 0;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int expert = i * ROUTE_THREADS + t;
        if (expert >= job.experts) break;
        const int place = place_of(c, c.keys[expert], expert, job.experts);
        if (place >= job.slots) continue;
        static_cast<int *>(job.chosen)[token * job.slots + place] = expert;
        c.best[place] = logit[i];
    }
    __syncthreads();
    float sum = 0.f;
    if (!job.renormalised) {
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (i * ROUTE_THREADS + t < job.experts) sum += expf(logit[i] - c.best[0]);
        sum = warp_sum(sum);
        if (t % LANES == 0) c.sums[t / LANES] = sum;
        __syncthreads();
        sum = 0.f;
#pragma unroll
        for (int i = 0; i < ROUTE_WARPS; i++) sum += c.sums[i];
    }
    if (t >= LANES) return;
    const float weight = t < job.slots ? expf(c.best[t] - c.best[0]) : 0.f;
    if (job.renormalised) sum = warp_sum(weight);
    if (t < job.slots) static_cast<float *>(job.weights)[token * job.slots + t] = weight / sum;
}

template <class Weight>
__global__ void __launch_bounds__(ROUTE_THREADS) route(const __grid_constant__ ExlRoute job) {
    __shared__ __align__(16) Choice choice;
    __shared__ bool last;
    let_next_start();
    const int number = blockIdx.x * ROUTE_WARPS + threadIdx.x / LANES, token = blockIdx.y;
    const bool any = number < job.rows;
    Row<Weight> row(static_cast<const Weight *>(job.router) + (size_t)number * job.width, any ? job.width / 8 : 0);
    const float bias = any && job.bias ? __ldg(static_cast<const float *>(job.bias) + number) : 0.f;
    wait_for_previous();
    const float sum = row.times(static_cast<const uint4 *>(job.x) + (size_t)token * job.width / 8);
    if (any && threadIdx.x % LANES == 0) static_cast<float *>(job.logits)[(size_t)token * job.rows + number] = sum + bias;
    __syncthreads();
    if (threadIdx.x == 0) last = arrive(static_cast<unsigned *>(job.tickets) + token, gridDim.x);
    __syncthreads();
    if (last) choose(job, choice);
}

static bool route_ok(const ExlRoute &job) {
    if (!job.x || !job.router || !job.logits || !job.chosen || !job.weights || !job.tickets) return false;
    if (job.tokens < 1 || job.tokens > EXL_MAX_ROWS) return false;
    if (reinterpret_cast<uintptr_t>(job.x) % 16 || reinterpret_cast<uintptr_t>(job.router) % 16) return false;
    if (job.experts < 1 || job.experts > EXL_MAX_EXPERTS || job.rows < job.experts) return false;
    if (job.slots < 1 || job.slots > EXL_MAX_CHOSEN || job.slots > job.experts) return false;
    return job.width >= 8 && job.width % 8 == 0;
}

}  // namespace exl

extern "C" int exl_route(const ExlRoute *job, int dependent, void *stream) {
    if (!job || !exl::route_ok(*job)) return EXL_BAD_ARGUMENT;
    const dim3 blocks((job->rows + exl::ROUTE_WARPS - 1) / exl::ROUTE_WARPS, job->tokens);
    const cudaStream_t s = static_cast<cudaStream_t>(stream);
    if (job->router_float) return exl::launch(exl::route<float>, blocks, exl::ROUTE_THREADS, 0, dependent, s, *job);
    return exl::launch(exl::route<half>, blocks, exl::ROUTE_THREADS, 0, dependent, s, *job);
}
