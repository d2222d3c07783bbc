// All blocks of a grid on one distribution: sums over all threads, and sums over what comes earlier in the list.
//
// Sums of doubles are taken in an order that depends on the sizes alone, so that every run gives the same.
#pragma once
#include "sample.cuh"

namespace exl {

constexpr int CHAIN_THREADS = 512;
constexpr int CHAIN_WARPS = CHAIN_THREADS / LANES;
constexpr int LIST = 2048;   // places that one block works on
constexpr int DIGITS = 256;  // of a pass of the sort
constexpr int VALUES = 5;    // that are summed at once

static_assert(CHAIN_THREADS == SAMPLE_THREADS, "the sums over bins of sample.cuh are used");

// Global memory of the chain: zero at first, and where it says so left zero by every step.
struct ChainScratch {
    unsigned ticket, meeting;
    uint32_t listed, unused;  // left zero
    Wide list[LIST];
    Wide mass[BINS];       // left zero
    uint32_t count[BINS];  // left zero
    Wide parts[2][EXL_CHAIN_BLOCKS][VALUES];
    uint32_t digits[EXL_CHAIN_BLOCKS][DIGITS];
    // Behind it: Wide [vocab] twice, for the sort, and double [vocab].
};
static_assert(sizeof(ChainScratch) == EXL_CHAIN_SCRATCH_BYTES, "also in exlchat/ext/functions.py");

// Of a logit so far below the best, in nats. In the code once: it is called from forty places.
__device__ __noinline__ double weight_at(double below) { return exp(below); }

// From adjusted logits to those of now.
struct Curve {
    bool smooth_first;
    bool smooth;
    double top, square, cube;  // of the smoothing: top - square x^2 + cube x^3, x below top
    double divisor;

    __device__ __forceinline__ double smoothed(double x) const {
        if (!smooth) return x;
        const double below = x - top;
        return top - square * below * below + cube * below * below * below;
    }
    __device__ __forceinline__ double at(double x) const {
        if (divisor == 1.0) return smoothed(x);
        return smooth_first ? smoothed(x) / divisor : smoothed(x / divisor);
    }
    __device__ __forceinline__ void smooth_by(const ExlChain &chain, double best) {
        top = best;
        square = (3.0 - chain.smoothing_curve) / 2.0 * chain.smoothing_factor;
        cube = (chain.smoothing_curve - 1.0) / 2.0 * chain.smoothing_factor;
        smooth = true;
    }
    __device__ __forceinline__ void heat(double temperature) {
        smooth_first = smooth;
        divisor = temperature;
    }
};

// What Mirostat left, in which the drawn token's surprise is taken.
struct Surprise {
    bool taken;
    Curve curve;
    double best, mass;
};

struct ChainShared {
    union {
        struct {
            union {
                Wide places[LIST];
                double distances[LIST];
                uint32_t keys[LIST];
            };
            double sums[LIST];
            uint32_t ids[LIST];
        } few;
        struct {
            uint32_t low[BINS], high[BINS], count[BINS];
            int last;  // bin
            uint32_t listed;
        } bins;
        struct {
            uint32_t warps[CHAIN_WARPS][DIGITS], counts[CHAIN_THREADS], before[CHAIN_THREADS], base[DIGITS];
        } sort;
    };
    Wide warps[CHAIN_WARPS][VALUES];
    Wide all[2 * VALUES];
    double few_warps[2][CHAIN_WARPS];
    Surprise surprise;
    ExlChain chain;
    ExlDraw draw;
    Wide lowest;
    bool goes_on;
};
static_assert(sizeof(ChainShared) <= 48 * 1024, "what every card has");

struct Add {
    template <class V> __device__ __forceinline__ V operator()(V a, V b) const { return a + b; }
};
struct Most {
    template <class V> __device__ __forceinline__ V operator()(V a, V b) const { return max(a, b); }
};

// Loops are not unrolled here: a step runs through this code a few times and then not again until the next one, so that
// longer code would be waited for.

// Over the warp; every lane gets it.
template <class Op, class V, int N> __device__ __forceinline__ void warp_all(V (&v)[N]) {
    const Op op;
#pragma unroll 1
    for (int d = 16; d; d /= 2)
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = op(v[i], __shfl_xor_sync(~0u, v[i], d));
}

// The sums over all lower threads take the place of the values; `all` becomes those over the block.
template <int N> __device__ __forceinline__ void block_below(ChainShared &shared, double (&v)[N], double (&all)[N]) {
    static_assert(N <= VALUES, "");
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll 1
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
    __device__ __forceinline__ void wait() {
        __syncthreads();
        if (threadIdx.x == 0) meet(&scratch.meeting, blocks);
        __syncthreads();
    }

    // What every block brings is read by the first warp of each: one wait suffices, for the parts of the next call lie
    // elsewhere, and those of the one after it are written when all blocks have passed the next one's wait.
    template <class Op, class V, int N> __device__ __forceinline__ const V *bring(V (&v)[N]) {
        static_assert(N <= VALUES && sizeof(V) == sizeof(Wide), "");
        const Op op;
        const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
        warp_all<Op>(v);
        if (lane == 0)
#pragma unroll
            for (int i = 0; i < N; i++) reinterpret_cast<V *>(shared.warps[warp])[i] = v[i];
        turn ^= 1;
        __syncthreads();
        V *parts = reinterpret_cast<V *>(scratch.parts[turn]);
        if (warp == 0) {
#pragma unroll
            for (int i = 0; i < N; i++)
                v[i] = lane < CHAIN_WARPS ? reinterpret_cast<const V *>(shared.warps[lane])[i] : V(0);
            warp_all<Op>(v);
            if (lane == 0) {
#pragma unroll
                for (int i = 0; i < N; i++) parts[blockIdx.x * VALUES + i] = v[i];
                meet(&scratch.meeting, blocks);
            }
            __syncwarp();
        }
        return parts;
    }
    // Over all threads of all blocks; every thread gets it.
    template <class Op, class V, int N> __device__ __noinline__ void reduce(V (&v)[N]) {
        const Op op;
        const V *parts = bring<Op>(v);
        V *all = reinterpret_cast<V *>(shared.all);
        if (threadIdx.x < LANES) {
#pragma unroll
            for (int i = 0; i < N; i++) v[i] = V(0);
#pragma unroll 1
            for (int block = threadIdx.x; block < blocks; block += LANES)
#pragma unroll
                for (int i = 0; i < N; i++) v[i] = op(v[i], produced(parts + block * VALUES + i));
            warp_all<Op>(v);
            if (threadIdx.x == 0)
#pragma unroll
                for (int i = 0; i < N; i++) all[i] = v[i];
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = all[i];
    }
    // Sums over all; `below` becomes what the threads of lower blocks bring.
    template <int N> __device__ __forceinline__ void add(double (&v)[N], double (&below)[N]) {
        const double *parts = bring<Add>(v);
        double *all = reinterpret_cast<double *>(shared.all);
        if (threadIdx.x < LANES) {
            double both[2 * N] = {};
#pragma unroll 1
            for (int block = threadIdx.x; block < blocks; block += LANES)
#pragma unroll
                for (int i = 0; i < N; i++) {
                    const double part = produced(parts + block * VALUES + i);
                    both[i] += part, both[N + i] += block < blockIdx.x ? part : 0.0;
                }
            warp_all<Add>(both);
            if (threadIdx.x == 0)
#pragma unroll
                for (int i = 0; i < 2 * N; i++) all[i] = both[i];
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = all[i], below[i] = all[N + i];
    }
};

}  // namespace exl
