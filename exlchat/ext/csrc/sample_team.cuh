// All blocks of a grid on one distribution: sums over all threads, and sums over what comes earlier in the list.
//
// Sums of doubles are taken in an order that depends on the sizes alone, so that every run gives the same.
#pragma once
#include "sample_left.cuh"

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

// What Mirostat left, in which the drawn token's surprise is taken.
struct Surprise {
    bool taken;
    Curve curve;
    double best, mass;
};

// All blocks as one of them sees them.
struct Grid {
    ChainScratch *scratch;
    const float *logits;
    const Wide *sorted;  // null: the order of ids
    int size, blocks, block;  // of which this is one
    int first, last;  // of the stretch of the list that this block has
    int turn;         // of the memory for sums; only the first warp's
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
    Grid grid;
    Left left;
    Known known;
    Surprise surprise;
    ExlChain chain;
    ExlDraw draw;
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

    __device__ __forceinline__ ChainScratch &scratch() const { return *shared.grid.scratch; }
    __device__ __forceinline__ int size() const { return shared.grid.size; }
    __device__ __forceinline__ int blocks() const { return shared.grid.blocks; }
    __device__ __forceinline__ int block() const { return shared.grid.block; }
    __device__ __forceinline__ int first() const { return shared.grid.first; }
    __device__ __forceinline__ int last() const { return shared.grid.last; }
    __device__ __forceinline__ Wide place_at(int i) const {
        const Wide *sorted = shared.grid.sorted;
        return sorted ? produced(sorted + i) : place(produced(shared.grid.logits + i), i);
    }
    // What all threads share is changed by one, while none of the others reads it.
    template <class Change> __device__ __forceinline__ void change(Change change) const {
        __syncthreads();
        if (threadIdx.x == 0) change();
        __syncthreads();
    }
    // `use(i, place)` for each of a thread's tokens; the next one's load is under way meanwhile.
    template <class Use> __device__ __forceinline__ void each(Use use) const {
        const int end = last();
        int i = first() + threadIdx.x;
        Wide found = i < end ? place_at(i) : 0;
#pragma unroll 1
        while (i < end) {
            const int next = i + CHAIN_THREADS;
            const Wide following = next < end ? place_at(next) : 0;
            use(i, found);
            i = next, found = following;
        }
    }
    __device__ __forceinline__ Wide *room(int which) const {
        return reinterpret_cast<Wide *>(shared.grid.scratch + 1) + (size_t)which * size();
    }
    __device__ __forceinline__ double &sum(int i) const { return reinterpret_cast<double *>(room(2))[i]; }
    __device__ __forceinline__ double sum_at(int i) const { return produced(reinterpret_cast<const double *>(room(2)) + i); }
    __device__ __forceinline__ void wait() const {
        __syncthreads();
        if (threadIdx.x == 0) meet(&scratch().meeting, block(), blocks());
        __syncthreads();
    }

    // What every block brings is read by the first warp of each: one wait suffices, for the parts of the next call lie
    // elsewhere, and those of the one after it are written when all blocks have passed the next one's wait.
    template <class Op, class V, int N> __device__ __forceinline__ const V *bring(V (&v)[N]) const {
        static_assert(N <= VALUES && sizeof(V) == sizeof(Wide), "");
        const Op op;
        const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
        warp_all<Op>(v);
        if (lane == 0)
#pragma unroll
            for (int i = 0; i < N; i++) reinterpret_cast<V *>(shared.warps[warp])[i] = v[i];
        if (threadIdx.x == 0) shared.grid.turn ^= 1;
        __syncthreads();
        V *parts = reinterpret_cast<V *>(scratch().parts[shared.grid.turn]);
        if (warp == 0) {
#pragma unroll
            for (int i = 0; i < N; i++)
                v[i] = lane < CHAIN_WARPS ? reinterpret_cast<const V *>(shared.warps[lane])[i] : V(0);
            warp_all<Op>(v);
            if (lane == 0) {
#pragma unroll
                for (int i = 0; i < N; i++) parts[block() * VALUES + i] = v[i];
                meet(&scratch().meeting, block(), blocks());
            }
            __syncwarp();
        }
        return parts;
    }
    // `use(block, i, part)` for some blocks in each lane; 0 for blocks that are not there. Many loads are under way at once.
    template <int N, class V, class Use> __device__ __forceinline__ void each_part(const V *parts, Use use) const {
        constexpr int AT_ONCE = 5;
        const int blocks = this->blocks();
#pragma unroll 1
        for (int from = threadIdx.x; from < blocks; from += AT_ONCE * LANES) {
            V found[AT_ONCE][N];
#pragma unroll
            for (int b = 0; b < AT_ONCE; b++)
#pragma unroll
                for (int i = 0; i < N; i++)
                    found[b][i] = from + b * LANES < blocks ? produced(parts + (from + b * LANES) * VALUES + i) : V(0);
#pragma unroll
            for (int b = 0; b < AT_ONCE; b++)
#pragma unroll
                for (int i = 0; i < N; i++) use(from + b * LANES, i, found[b][i]);
        }
    }
    // Over all threads of all blocks; every thread gets it.
    template <class Op, class V, int N> __device__ __forceinline__ void reduce(V (&v)[N]) const {
        const Op op;
        const V *parts = bring<Op>(v);
        V *all = reinterpret_cast<V *>(shared.all);
        if (threadIdx.x < LANES) {
#pragma unroll
            for (int i = 0; i < N; i++) v[i] = V(0);
            each_part<N>(parts, [&](int, int i, V part) { v[i] = op(v[i], part); });
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
    template <int N> __device__ __forceinline__ void add(double (&v)[N], double (&below)[N]) const {
        const double *parts = bring<Add>(v);
        double *all = reinterpret_cast<double *>(shared.all);
        if (threadIdx.x < LANES) {
            double both[2 * N] = {};
            each_part<N>(parts, [&](int block, int i, double part) {
                both[i] += part, both[N + i] += block < this->block() ? part : 0.0;
            });
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

// The largest of two values over all threads of all blocks. In the code once.
__device__ __noinline__ Ends most_of(GridTeam team, Wide first, Wide second) {
    Wide v[2] = {first, second};
    team.reduce<Most>(v);
    return {v[0], v[1]};
}

}  // namespace exl
