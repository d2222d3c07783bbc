// Which experts a token goes to: a block for the logit of each, and the token's block that is done last chooses among them; or
// the kernels behind it do (choice.cuh).
//
// The router's weights are constants, so a thread has its own in registers before the previous kernel ends. A block of eight warps
// has little to do for each: its instructions are run once, and come from L2.
#include "choice.cuh"
#include "device.cuh"
#include "exlchat.h"
#include "launch.cuh"
#include "residual.cuh"

namespace exl {

constexpr int ROUTE_WARPS = 8, ROUTE_THREADS = ROUTE_WARPS * LANES;

// Eight neighbouring numbers of a row, halves or floats.
template <class Number> struct Octet {
    static constexpr int LOADS = sizeof(Number) / 2;
    uint4 loaded[LOADS];

    __device__ __forceinline__ void load_constants(const Number *from) {
#pragma unroll
        for (int i = 0; i < LOADS; i++) loaded[i] = __ldg(reinterpret_cast<const uint4 *>(from) + i);
    }
    __device__ __forceinline__ void load(const Number *from) {
#pragma unroll
        for (int i = 0; i < LOADS; i++) loaded[i] = produced(reinterpret_cast<const uint4 *>(from) + i);
    }
    __device__ __forceinline__ float2 pair(int i) const {
        if constexpr (LOADS == 2) return reinterpret_cast<const float2 *>(loaded)[i];
        else return __half22float2(reinterpret_cast<const half2 *>(loaded)[i]);
    }
    template <class X> __device__ __forceinline__ float times(const Octet<X> &x, float sum) const {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 v = x.pair(i), w = pair(i);
            sum = fmaf(w.y, v.y, fmaf(w.x, v.x, sum));
        }
        return sum;
    }
};

// What the threads of a block have of a row of weights, an x, and the squares of a vector that x is made from.
template <class Weight, class X> struct RowAndX {
    static constexpr int AHEAD = 2;  // octets of a thread before the previous kernel ends
    static constexpr bool NORMED = sizeof(X) == 4;
    const Weight *weights;
    int octets;
    Octet<Weight> ahead[AHEAD];

    __device__ __forceinline__ RowAndX(const Weight *weights, int octets) : weights(weights), octets(octets) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            if (at(i) < octets) ahead[i].load_constants(weights + at(i) * 8);
    }
    __device__ __forceinline__ static int at(int i) { return i * ROUTE_THREADS + threadIdx.x; }

    // Of this thread: the product, and what it adds to the squares.
    __device__ __forceinline__ float2 times(const X *x, const float *squares) const {
        float2 sums = {0.f, 0.f};
        float square = 0.f;
        const int count = octets / 2;
        if (NORMED && threadIdx.x < count) square = produced(squares + threadIdx.x);
        Octet<X> part[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            if (at(i) < octets) part[i].load(x + at(i) * 8);
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            if (at(i) < octets) sums.x = ahead[i].times(part[i], sums.x);
#pragma unroll 1
        for (int i = AHEAD; at(i) < octets; i++) {
            Octet<Weight> weight;
            Octet<X> more;
            weight.load_constants(weights + at(i) * 8), more.load(x + at(i) * 8);
            sums.x = weight.times(more, sums.x);
        }
        if (NORMED) {
            sums.y = square;
#pragma unroll 1
            for (int i = threadIdx.x + ROUTE_THREADS; i < count; i += ROUTE_THREADS) sums.y += produced(squares + i);
        }
        return sums;
    }
};

// The choice of a token, by its last block.
__device__ __forceinline__ void tell_choice(const ExlRoute &job, Choice &choice, int token) {
    const Chooser<ROUTE_THREADS> chooser(static_cast<const float *>(job.logits) + (size_t)token * job.rows, job.experts);
    chooser.choose(choice, job.slots);
    chooser.weigh(choice, job.slots, job.renormalised);
    const int t = threadIdx.x, place = token * job.slots + t;
    if (t >= job.slots) return;
    static_cast<int *>(job.chosen)[place] = choice.chosen[t];
    static_cast<float *>(job.weights)[place] = choice.weights[t];
}

template <class Weight, class X>
__global__ void __launch_bounds__(ROUTE_THREADS) route(const __grid_constant__ ExlRoute job) {
    __shared__ Choice choice;
    __shared__ float2 parts[ROUTE_WARPS];
    __shared__ bool last;
    let_next_start();
    const int number = blockIdx.x, token = blockIdx.y, octets = job.width / 8;
    if (number >= job.rows) {  // it only keeps its place
        wait_for_previous();
        return;
    }
    const RowAndX<Weight, X> row(static_cast<const Weight *>(job.router) + (size_t)number * job.width, octets);
    const float bias = job.bias ? __ldg(static_cast<const float *>(job.bias) + number) : 0.f;
    wait_for_previous();
    const float2 mine = row.times(static_cast<const X *>(job.x) + (size_t)token * job.width,
                                  static_cast<const float *>(job.squares) + (size_t)token * (job.width / 16));
    const float2 of_warp = {warp_sum(mine.x), row.NORMED ? warp_sum(mine.y) : 0.f};
    if (threadIdx.x % LANES == 0) parts[threadIdx.x / LANES] = of_warp;
    __syncthreads();
    if (threadIdx.x == 0) {
        float2 sum = {0.f, 0.f};
#pragma unroll
        for (int i = 0; i < ROUTE_WARPS; i++) sum.x += parts[i].x, sum.y += parts[i].y;
        if (row.NORMED) sum.x *= over_rms(sum.y, job.width, job.eps);
        static_cast<float *>(job.logits)[(size_t)token * job.rows + number] = sum.x + bias;
        if (job.chosen) last = arrive(static_cast<unsigned *>(job.tickets) + token, job.rows);
    }
    if (!job.chosen) return;
    __syncthreads();
    if (last) tell_choice(job, choice, token);
}

static bool route_ok(const ExlRoute &job) {
    if (!job.x || !job.router || !job.logits) return false;
    if (job.chosen && (!job.weights || !job.tickets)) return false;
    if (job.tokens < 1 || job.tokens > EXL_MAX_ROWS) return false;
    if (reinterpret_cast<uintptr_t>(job.x) % 16 || reinterpret_cast<uintptr_t>(job.router) % 16) return false;
    if (!choice_ok(job.experts, job.slots) || job.rows < job.experts) return false;
    return job.width >= 8 && job.width % (job.squares ? 16 : 8) == 0;
}

template <class Weight> static int launch_route(const ExlRoute &job, int dependent, cudaStream_t stream) {
    int blocks = job.rows;
    if (const int error = places_to_keep(dependent, blocks, job.tokens)) return error;
    const auto kernel = job.squares ? route<Weight, float> : route<Weight, half>;
    return launch(kernel, dim3(blocks, job.tokens), ROUTE_THREADS, 0, dependent, stream, job);
}

}  // namespace exl

extern "C" int exl_route(const ExlRoute *job, int dependent, void *stream) {
    if (!job || !exl::route_ok(*job)) return EXL_BAD_ARGUMENT;
    const cudaStream_t s = static_cast<cudaStream_t>(stream);
    return job->router_float ? exl::launch_route<float>(*job, dependent, s) : exl::launch_route<half>(*job, dependent, s);
}
