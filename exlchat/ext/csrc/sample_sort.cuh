// Places in descending order: few in one block, all of a vocabulary by all blocks.
#pragma once
#include "sample_team.cuh"

namespace exl {

// Batcher's bitonic sort of the first `count` values in shared memory, for THREADS threads, ascending or descending;
// there is room for the next power of two.
template <int THREADS, bool RISES, class V> __device__ __forceinline__ void sort_network(V *values, int count) {
    int size = 2;
    while (size < count) size *= 2;
    for (int i = count + threadIdx.x; i < size; i += THREADS) values[i] = RISES ? ~V(0) : V(0);
    __syncthreads();
    for (int run = 2; run <= size; run *= 2)
        for (int step = run / 2; step; step /= 2) {
            for (int pair = threadIdx.x; pair < size / 2; pair += THREADS) {
                const int at = 2 * pair - (pair & (step - 1));
                const V a = values[at], b = values[at + step];
                if (RISES == ((at & run) == 0) ? a > b : a < b) values[at] = b, values[at + step] = a;
            }
            __syncthreads();
        }
}

// Numbers in ascending order, by half a block; `few`: at most one a thread, of which each is compared with all, for that
// takes fewer waits.
template <bool FEW> __device__ __noinline__ void sort_keys(uint32_t *keys, int count) {
    if constexpr (!FEW) sort_network<CHAIN_THREADS / 2, true>(keys, count);
    else {
        const uint32_t own = threadIdx.x < count ? keys[threadIdx.x] : 0;
        int smaller = 0;
        if (threadIdx.x < count)
#pragma unroll 8
            for (int other = 0; other < count; other++) smaller += keys[other] < own;
        __syncthreads();
        if (threadIdx.x < count) keys[smaller] = own;
        __syncthreads();
    }
}

// The list in descending order, by a whole block.
__device__ __noinline__ void sort_places(ChainShared &shared, int count) {
    constexpr int HALF = CHAIN_THREADS / 2;
    Wide *places = shared.few.places;
    if (count > HALF) {
        sort_network<CHAIN_THREADS, false>(places, count);
        return;
    }
    const int t = threadIdx.x, i = t % HALF, middle = count / 2;
    const Wide own = i < count ? places[i] : 0;
    int larger = 0;
    if (i < count) {
        const int end = t < HALF ? middle : count;
#pragma unroll 8
        for (int other = t < HALF ? 0 : middle; other < end; other++) larger += places[other] > own;
    }
    shared.few.ids[t] = larger;
    __syncthreads();
    if (t < count) places[larger + shared.few.ids[t + HALF]] = own;
    __syncthreads();
}

// How many earlier threads of the block have the same digit, and where the first of them goes: `base` moves on by what
// the block has of each. Threads without a digit have DIGITS.
__device__ __forceinline__ uint32_t target_of(ChainShared &shared, int digit) {
    const int t = threadIdx.x, lane = t % LANES, warp = t / LANES;
    for (int i = lane; i < DIGITS; i += LANES) shared.sort.warps[warp][i] = 0;
    __syncwarp();
    const uint32_t same = __match_any_sync(~0u, digit);
    const int earlier = __popc(same & ((1u << lane) - 1));
    if (digit < DIGITS && earlier == 0) shared.sort.warps[warp][digit] = __popc(same);
    __syncthreads();
    if (t < DIGITS) {
        uint32_t next = shared.sort.base[t];
#pragma unroll
        for (int w = 0; w < CHAIN_WARPS; w++) {
            const uint32_t count = shared.sort.warps[w][t];
            shared.sort.warps[w][t] = next;
            next += count;
        }
        shared.sort.base[t] = next;
    }
    __syncthreads();
    const uint32_t target = digit < DIGITS ? shared.sort.warps[warp][digit] + earlier : 0;
    __syncthreads();
    return target;
}

// A stable sort by the upper 32 bits, 8 at a time: the lower ones, the ids, are in order from the start.
__device__ __noinline__ void sort_vocabulary(GridTeam team) {
    ChainShared &shared = team.shared;
    const int t = threadIdx.x, first = team.first(), last = team.last();
    for (int pass = 0; pass < 4; pass++) {
        Wide *to = team.room(pass % 2);
        const int shift = 32 + 8 * pass;
        shared.sort.counts[t] = 0;
        __syncthreads();
        for (int i = first + t; i < last; i += CHAIN_THREADS)
            atomicAdd(&shared.sort.counts[DIGITS - 1 - (team.place_at(i) >> shift & (DIGITS - 1))], 1);
        __syncthreads();
        if (t < DIGITS) team.scratch().digits[team.block()][t] = shared.sort.counts[t];
        team.wait();
        // Many loads are under way at once: one after the other they took most of the sort.
        constexpr int STEP = CHAIN_THREADS / DIGITS, AT_ONCE = 16;
        uint32_t below = 0, total = 0;
#pragma unroll 1
        for (int from = t / DIGITS; from < team.blocks(); from += AT_ONCE * STEP) {
            uint32_t counts[AT_ONCE];
#pragma unroll
            for (int b = 0; b < AT_ONCE; b++) {
                const int block = from + b * STEP;
                counts[b] = block < team.blocks() ? produced(&team.scratch().digits[block][t % DIGITS]) : 0;
            }
#pragma unroll
            for (int b = 0; b < AT_ONCE; b++)
                total += counts[b], below += from + b * STEP < team.block() ? counts[b] : 0;
        }
        shared.sort.counts[t] = total, shared.sort.before[t] = below;
        __syncthreads();
        double smaller[1] = {0.0}, all[1];
        below = 0;
        if (t < DIGITS)
            for (int part = t; part < CHAIN_THREADS; part += DIGITS)
                smaller[0] += shared.sort.counts[part], below += shared.sort.before[part];
        block_below(shared, smaller, all);
        if (t < DIGITS) shared.sort.base[t] = (uint32_t)smaller[0] + below;
        __syncthreads();
        for (int from = first; from < last; from += CHAIN_THREADS) {
            const bool has = from + t < last;
            const Wide value = has ? team.place_at(from + t) : 0;
            const uint32_t target = target_of(shared, has ? DIGITS - 1 - (int)(value >> shift & (DIGITS - 1)) : DIGITS);
            if (has) to[target] = value;
        }
        team.wait();
        team.change([&] { shared.grid.sorted = to; });
    }
}

}  // namespace exl
