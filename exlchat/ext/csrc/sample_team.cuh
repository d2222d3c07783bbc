// Who works on the steps of a distribution: the whole grid on a list in global memory, or one block on one of its own.
//
// Both offer the same: a list of places, sums over all threads, and sums over what comes earlier in the list. Sums of
// doubles are taken in an order that depends on the sizes alone, so that every run gives the same.
#pragma once
#include "sample.cuh"

namespace exl {

constexpr int CHAIN_THREADS = 512;
constexpr int CHAIN_WARPS = CHAIN_THREADS / LANES;
constexpr int LIST = 2048;    // places that one block works on
constexpr int DIGITS = 256;   // of a pass of the sort
constexpr int VALUES = 4;     // that are summed at once

static_assert(CHAIN_THREADS == SAMPLE_THREADS, "the sums over bins of sample.cuh are used");

// Global memory of the chain: zero at first, and where it says so left zero by every step.
struct ChainScratch {
    unsigned ticket, turn;
    uint32_t listed, unused;  // left zero
    Wide list[LIST];
    Wide mass[BINS];       // left zero
    uint32_t count[BINS];  // left zero
    Wide parts[2][EXL_CHAIN_BLOCKS][VALUES];
    uint32_t digits[EXL_CHAIN_BLOCKS][DIGITS];
    // Behind it: Wide [vocab] twice, for the sort, and double [vocab].
};
static_assert(sizeof(ChainScratch) == EXL_CHAIN_SCRATCH_BYTES, "also in exlchat/ext/functions.py");

struct ChainShared {
    union {
        struct {
            Wide places[LIST];
            double sums[LIST];
        } block;
        struct {
            uint32_t low[BINS], high[BINS], count[BINS];
            int last;  // bin
            uint32_t listed;
        } bins;
        struct {
            uint32_t warps[CHAIN_WARPS][DIGITS], counts[CHAIN_THREADS], before[CHAIN_THREADS], base[DIGITS];
        } sort;
    };
    Wide warps[CHAIN_WARPS][2 * VALUES];
    ExlChain chain;
};
static_assert(sizeof(ChainShared) <= 48 * 1024, "what every card has");

struct Add {
    template <class V> __device__ __forceinline__ V operator()(V a, V b) const { return a + b; }
};
struct Most {
    template <class V> __device__ __forceinline__ V operator()(V a, V b) const { return max(a, b); }
};

// Over the block; every thread gets it.
template <class Op, class V, int N> __device__ __noinline__ void block_reduce(ChainShared &shared, V (&v)[N]) {
    static_assert(N <= 2 * VALUES && sizeof(V) == sizeof(Wide), "");
    const Op op;
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int d = 16; d; d /= 2) v[i] = op(v[i], __shfl_xor_sync(~0u, v[i], d));
    __syncthreads();  // an earlier call may still be read
    V *mine = reinterpret_cast<V *>(shared.warps[threadIdx.x / LANES]);
    if (threadIdx.x % LANES == 0)
#pragma unroll
        for (int i = 0; i < N; i++) mine[i] = v[i];
    __syncthreads();
    const V *theirs = reinterpret_cast<const V *>(shared.warps[threadIdx.x % CHAIN_WARPS]);
#pragma unroll
    for (int i = 0; i < N; i++) {
        v[i] = theirs[i];
#pragma unroll
        for (int d = CHAIN_WARPS / 2; d; d /= 2) v[i] = op(v[i], __shfl_xor_sync(~0u, v[i], d));
    }
}

// The sums over all lower threads take the place of the values; `all` becomes those over the block.
template <int N> __device__ __forceinline__ void block_below(ChainShared &shared, double (&v)[N], double (&all)[N]) {
    static_assert(N <= VALUES, "");
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int d = 1; d < LANES; d *= 2) {
            const double other = __shfl_up_sync(~0u, v[i], d);
            if (lane >= d) v[i] += other;
        }
    __syncthreads();
    if (lane == LANES - 1)
#pragma unroll
        for (int i = 0; i < N; i++) reinterpret_cast<double *>(shared.warps[warp])[i] = v[i];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < N; i++) {
        double below = 0;
        all[i] = 0;
#pragma unroll
        for (int w = 0; w < CHAIN_WARPS; w++) {
            if (w == warp) below = all[i];
            all[i] += reinterpret_cast<const double *>(shared.warps[w])[i];
        }
        const double lower = __shfl_up_sync(~0u, v[i], 1);
        v[i] = below + (lane ? lower : 0.0);
    }
}

// One block, and places in its shared memory.
struct BlockTeam {
    ChainShared &shared;
    int size;

    __device__ __forceinline__ int first() const { return 0; }
    __device__ __forceinline__ int last() const { return size; }
    __device__ __forceinline__ Wide place_at(int i) const { return shared.block.places[i]; }
    __device__ __forceinline__ double &sum(int i) { return shared.block.sums[i]; }
    __device__ __forceinline__ double sum_at(int i) const { return shared.block.sums[i]; }
    __device__ __forceinline__ void wait() { __syncthreads(); }
    template <class Op, class V, int N> __device__ __forceinline__ void reduce(V (&v)[N]) {
        block_reduce<Op>(shared, v);
    }
    // Sums over all; `below` becomes what the threads of lower blocks bring.
    template <int N> __device__ __forceinline__ void add(double (&v)[N], double (&below)[N]) {
        block_reduce<Add>(shared, v);
#pragma unroll
        for (int i = 0; i < N; i++) below[i] = 0;
    }
};

// All blocks. The list is the vocabulary, in the order of ids or, once it has been sorted, in that of places; each block
// has a stretch of it.
struct GridTeam {
    ChainShared &shared;
    ChainScratch &scratch;
    const float *logits;
    int size, blocks;
    const Wide *sorted;  // null: the order of ids
    int turn;

    __device__ __forceinline__ int stretch() const { return (size + blocks - 1) / blocks; }
    __device__ __forceinline__ int first() const { return min((int)blockIdx.x * stretch(), size); }
    __device__ __forceinline__ int last() const { return min(first() + stretch(), size); }
    __device__ __forceinline__ Wide place_at(int i) const {
        return sorted ? produced(sorted + i) : place(produced(logits + i), i);
    }
    __device__ __forceinline__ Wide *room(int which) {
        return reinterpret_cast<Wide *>(&scratch + 1) + (size_t)which * size;
    }
    __device__ __forceinline__ double &sum(int i) { return reinterpret_cast<double *>(room(2))[i]; }
    __device__ __forceinline__ double sum_at(int i) { return produced(reinterpret_cast<const double *>(room(2)) + i); }
    __device__ __forceinline__ void wait() { meet(&scratch.ticket, &scratch.turn, blocks); }

    // What the block of each thread's number brings, where there is one. One wait suffices: the parts of the next call
    // lie elsewhere, and those of the one after it are written when all blocks have passed the next one's wait.
    template <class V, int N> __device__ __forceinline__ bool exchange(V (&v)[N]) {
        turn ^= 1;
        V *mine = reinterpret_cast<V *>(scratch.parts[turn][blockIdx.x]);
        if (threadIdx.x == 0)
#pragma unroll
            for (int i = 0; i < N; i++) mine[i] = v[i];
        wait();
        const bool has = threadIdx.x < blocks;
        if (has)
#pragma unroll
            for (int i = 0; i < N; i++) v[i] = produced(reinterpret_cast<const V *>(scratch.parts[turn][threadIdx.x]) + i);
        return has;
    }
    template <class Op, class V, int N> __device__ __forceinline__ void reduce(V (&v)[N]) {
        static_assert(N <= VALUES, "");
        block_reduce<Op>(shared, v);
        const bool has = exchange(v);
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = has ? v[i] : V(0);
        block_reduce<Op>(shared, v);
    }
    template <int N> __device__ __forceinline__ void add(double (&v)[N], double (&below)[N]) {
        block_reduce<Add>(shared, v);
        const bool has = exchange(v);
        double both[2 * N];
#pragma unroll
        for (int i = 0; i < N; i++)
            both[i] = has ? v[i] : 0.0, both[N + i] = threadIdx.x < blockIdx.x ? both[i] : 0.0;
        block_reduce<Add>(shared, both);
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = both[i], below[i] = both[N + i];
    }
};

}  // namespace exl
