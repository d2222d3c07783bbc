// Exchanges that no product does at its end: sums of other layers, parts of the logits, tokens.
#include <cuda_runtime.h>

#include "launch.cuh"
#include "peers.cuh"

namespace exl {

constexpr int EXCHANGE_THREADS = 256;

// Every thread sends all that it has to send before it waits, and those of all cards go through the words in one order: so
// blocks that find no room yet hold up nobody for good.
template <bool HALVES>
__global__ void __launch_bounds__(EXCHANGE_THREADS) exchange_sums(const __grid_constant__ ExlExchange job) {
    let_next_start();
    const int at = blockIdx.x * EXCHANGE_THREADS + threadIdx.x;
    wait_for_previous();
    if (at >= job.rows * job.columns) return;
    const Exchange exchange(*job.peers, tag_of(*job.peers, job.number));
    if constexpr (HALVES) {
        uint32_t *value = static_cast<uint32_t *>(job.values) + at;
        const uint32_t own = produced(value);
        exchange.send_all(at, own);
        float2 sum = {0.f, 0.f};
        for (int card = 0; card < exchange.peers.cards; card++) {
            const uint32_t word = card == exchange.peers.card ? own : exchange.receive(card, at);
            const float2 part = __half22float2(reinterpret_cast<const half2 &>(word));
            sum = {sum.x + part.x, sum.y + part.y};
        }
        *reinterpret_cast<half2 *>(value) = __floats2half2_rn(sum.x, sum.y);
    } else {
        float *value = static_cast<float *>(job.values) + at;
        const float own = produced(value);
        exchange.send_all(at, __float_as_uint(own));
        *value = exchange.sum(at, own);
    }
}

__global__ void __launch_bounds__(EXCHANGE_THREADS) exchange_parts(const __grid_constant__ ExlExchange job) {
    let_next_start();
    const int at = blockIdx.x * EXCHANGE_THREADS + threadIdx.x;
    wait_for_previous();
    if (at >= job.rows * job.columns) return;
    const Exchange exchange(*job.peers, tag_of(*job.peers, job.number));
    const int me = job.peers->card, row = at / job.columns, column = at % job.columns;
    int from = 0;
    while (column >= job.ends[from]) from++;
    const bool receives = job.receivers >> me & 1;
    uint32_t *value = static_cast<uint32_t *>(job.values) + (size_t)row * job.stride + column - job.first;
    if (from == me) {
        const uint32_t own = produced(value);
        for (int card = 0; card < job.peers->cards; card++)
            if (card != me && job.receivers >> card & 1) exchange.send(card, at, own);
    } else if (receives) {
        *value = exchange.receive(from, at);
    }
}

__global__ void count_exchanges(const ExlPeers *peers, int count) {
    let_next_start();
    wait_for_previous();
    if (threadIdx.x == 0) peers->state[0] += count;
}

constexpr int SEND_BLOCKS = 8;  // of each part

__global__ void __launch_bounds__(EXCHANGE_THREADS) send_words(const __grid_constant__ ExlSend job) {
    let_next_start();
    wait_for_previous();
    const uint32_t *from = static_cast<const uint32_t *>(job.source[blockIdx.y]);
    uint32_t *to = static_cast<uint32_t *>(job.target[blockIdx.y]);
    for (int at = blockIdx.x * EXCHANGE_THREADS + threadIdx.x; at < job.words[blockIdx.y]; at += SEND_BLOCKS * EXCHANGE_THREADS)
        to[at] = produced(from + at);
}

static bool exchange_ok(const ExlExchange &job) {
    return job.peers && job.values && job.number >= 0 && job.rows >= 1 && job.columns >= 1 &&
           (int64_t)job.rows * job.columns < (1 << 30);
}

static int blocks_of(const ExlExchange &job) {
    return (job.rows * job.columns + EXCHANGE_THREADS - 1) / EXCHANGE_THREADS;
}

}  // namespace exl

extern "C" int exl_exchange_sums(const ExlExchange *job, int dependent, void *stream) {
    if (!job || !exl::exchange_ok(*job)) return EXL_BAD_ARGUMENT;
    const auto kernel = job->halves ? exl::exchange_sums<true> : exl::exchange_sums<false>;
    return exl::launch(kernel, exl::blocks_of(*job), exl::EXCHANGE_THREADS, 0, dependent, static_cast<cudaStream_t>(stream), *job);
}

extern "C" int exl_exchange_parts(const ExlExchange *job, int dependent, void *stream) {
    if (!job || !exl::exchange_ok(*job) || job->stride < 1 || job->first < 0) return EXL_BAD_ARGUMENT;
    if (job->ends[EXL_MAX_CARDS - 1] < job->columns) return EXL_BAD_ARGUMENT;
    return exl::launch(exl::exchange_parts, exl::blocks_of(*job), exl::EXCHANGE_THREADS, 0, dependent,
                       static_cast<cudaStream_t>(stream), *job);
}

extern "C" int exl_count_exchanges(const ExlCount *job, int dependent, void *stream) {
    if (!job || !job->peers || job->count < 0) return EXL_BAD_ARGUMENT;
    return exl::launch(exl::count_exchanges, 1, 32, 0, dependent, static_cast<cudaStream_t>(stream), job->peers, job->count);
}

extern "C" int exl_send(const ExlSend *job, int dependent, void *stream) {
    if (!job || job->count < 1 || job->count > EXL_MAX_SENT) return EXL_BAD_ARGUMENT;
    for (int i = 0; i < job->count; i++)
        if (!job->source[i] || !job->target[i] || job->words[i] < 1) return EXL_BAD_ARGUMENT;
    return exl::launch(exl::send_words, dim3(exl::SEND_BLOCKS, job->count), exl::EXCHANGE_THREADS, 0, dependent,
                       static_cast<cudaStream_t>(stream), *job);
}

// Asking for a kernel's attributes loads its code, which must not wait for one that waits for another card.
static cudaError_t load_exchanges() {
    cudaFuncAttributes attributes;
    cudaError_t error = cudaFuncGetAttributes(&attributes, exl::exchange_sums<false>);
    if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, exl::exchange_sums<true>);
    if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, exl::exchange_parts);
    if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, exl::count_exchanges);
    if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, exl::send_words);
    return error;
}

static cudaError_t reach(int device, int peer, int32_t *reaches) {
    int can = 0;
    cudaError_t error = cudaDeviceCanAccessPeer(&can, device, peer);
    if (error != cudaSuccess) return error;
    if (!can) {
        *reaches = 0;
        return cudaSuccess;
    }
    error = cudaDeviceEnablePeerAccess(peer, 0);
    if (error != cudaErrorPeerAccessAlreadyEnabled) return error;
    cudaGetLastError();
    return cudaSuccess;
}

extern "C" int exl_reach(int device, int peer, int32_t *reaches) {
    int before = 0;
    if (!reaches || device < 0 || peer < 0 || device == peer) return EXL_BAD_ARGUMENT;
    cudaError_t error = cudaGetDevice(&before);
    if (error == cudaSuccess) error = cudaSetDevice(device);
    if (error == cudaSuccess) error = load_exchanges();
    if (error == cudaSuccess) error = reach(device, peer, reaches);
    cudaSetDevice(before);
    return error;
}
