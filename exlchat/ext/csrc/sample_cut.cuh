// Where top-k and top-p end: the bins first, by sums over bins, then the place, by the tokens of those bins alone.
#pragma once
#include "sample.cuh"

namespace exl {

// Where a cut falls: bins before `first` stay whole; of those from `first` to `last`, and of the one that top-k
// divides, a place decides; the others go.
struct Cut {
    int first, last, divided;    // BINS where top-k divides none
    uint32_t rest;               // tokens that top-k leaves of the divided bin
    Wide least_kept, most_kept;  // bounds of the weight that top-k leaves

    __device__ __forceinline__ bool open(int bin) const { return bin >= first && bin <= last || bin == divided; }
};

// A token stays while the weight before it is below this; at least 1, so that the best always stays.
__device__ __forceinline__ Wide top_p_target(double top_p, Wide mass) {
    return max(min((Wide)ceil(top_p * (double)mass), mass), Wide(1));
}

// From the sums of the bins to the cut; `edge` becomes what lies before, between and up to the end of a thread's bins.
__device__ __forceinline__ void find_cut(const SampleScratch &scratch, const ExlDraw &draw, Cut &cut, Sum (&edge)[3]) {
    const int t = threadIdx.x;
    if (!is_cut(draw)) {
        if (t == 0) cut = {BINS, BINS - 1, BINS, 0, 0, 0};
        __syncthreads();
        return;
    }
    Sum bins[2], all;
#pragma unroll
    for (int i = 0; i < 2; i++) bins[i] = {produced(&scratch.mass[2 * t + i]), produced(&scratch.count[2 * t + i])};
    edge[0] = block_sum_below(bins[0] + bins[1], all);
    edge[1] = edge[0] + bins[0], edge[2] = edge[1] + bins[1];
    const uint32_t top_k = draw.top_k > 0 ? min((uint32_t)draw.top_k, all.count) : all.count;
#pragma unroll
    for (int i = 0; i < 2; i++)
        if (edge[i].count < top_k && top_k <= edge[i + 1].count) {
            const bool whole = top_k == edge[i + 1].count;
            cut = {2 * t + i + whole, 2 * t + i, whole ? BINS : 2 * t + i, top_k - edge[i].count,
                   whole ? edge[i + 1].mass : edge[i].mass, edge[i + 1].mass};
        }
    __syncthreads();
    if (draw.top_p >= 1.0) return;
    const Wide least = top_p_target(draw.top_p, cut.least_kept), most = top_p_target(draw.top_p, cut.most_kept);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (edge[i].mass < least && least <= edge[i + 1].mass) cut.first = 2 * t + i;
        if (edge[i].mass < most && most <= edge[i + 1].mass) cut.last = 2 * t + i;
    }
    __syncthreads();
}

// Shared memory of the last kernel.
struct Finish {
    Wide candidates[CANDIDATES];
    Wide below[BINS + 1];
    Cut cut;
    Wide least[SAMPLE_WARPS], most[SAMPLE_WARPS];
    uint32_t low[MAX_PIECES], high[MAX_PIECES];  // sums of weights, by digits first and by pieces then
    uint32_t count[SAMPLE_THREADS];
    int chosen;       // digit, bin or piece
    Sum before, sum;  // before it, and its own
};

// The places that the last kernel looks through: the list, or if that was too short for them all logits again.
struct Candidates {
    const ExlSample &job;
    const Finish &finish;
    const Scale &scale;
    int listed;

    __device__ __forceinline__ Wide weight(float logit) const { return weight_of(scale.octaves(logit)); }
    __device__ __forceinline__ int bin(float logit) const { return scale.bin(scale.octaves(logit)); }
    __device__ __forceinline__ bool list_fits() const { return listed <= CANDIDATES; }
    __device__ __forceinline__ int count() const { return list_fits() ? listed : job.vocab; }
    // One that is in an open bin, or 0.
    __device__ __forceinline__ Wide at(int i) const {
        if (list_fits()) return finish.candidates[i];
        const float logit = logit_at(job, i);
        return finish.cut.open(bin(logit)) && weight(logit) > 0 ? place(logit, i) : 0;
    }
};

// The last place of `bin` that stays, where a token stays while what the bin has before it is under `target`: tokens
// if `by_count`, else weight. `kept` becomes the weight that stays. Digit by digit from the range of the places down.
__device__ Wide last_kept(const Candidates &from, Finish &finish, int bin, bool by_count, Wide target, Wide &kept) {
    const int t = threadIdx.x;
    Wide lowest = ~Wide(0), highest = 0;
    for (int i = t; i < from.count(); i += SAMPLE_THREADS) {
        const Wide found = from.at(i);
        if (found && from.bin(logit_of(found)) == bin) lowest = min(lowest, found), highest = max(highest, found);
    }
    lowest = ~warp_max(~lowest), highest = warp_max(highest);
    if (t % LANES == 0) finish.least[t / LANES] = lowest, finish.most[t / LANES] = highest;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < SAMPLE_WARPS; i++)
        lowest = min(lowest, finish.least[i]), highest = max(highest, finish.most[i]);
    Wide span = highest - lowest;
    Sum passed{0, 0};
    while (true) {
        const int shift = max(64 - __clzll(span) - 9, 0);
        finish.low[t] = finish.high[t] = finish.count[t] = 0;
        __syncthreads();
        for (int i = t; i < from.count(); i += SAMPLE_THREADS) {
            const Wide found = from.at(i);
            if (found < lowest || found - lowest > span) continue;
            const int digit = (found - lowest) >> shift;
            add_mass(&finish.low[digit], &finish.high[digit], from.weight(logit_of(found)), 0);
            atomicAdd(&finish.count[digit], 1);
        }
        __syncthreads();
        const int digit = SAMPLE_THREADS - 1 - t;  // the largest places come first
        const Sum mine{(Wide)finish.high[digit] << 32 | finish.low[digit], finish.count[digit]};
        Sum all;
        const Sum before = passed + block_sum_below(mine, all), through = before + mine;
        const Wide from_here = by_count ? before.count : before.mass, to_here = by_count ? through.count : through.mass;
        if (from_here < target && target <= to_here)
            finish.chosen = digit, finish.before = before, finish.sum = mine;
        __syncthreads();
        lowest += (Wide)finish.chosen << shift, span = (Wide(1) << shift) - 1, passed = finish.before;
        if (shift == 0 || finish.sum.count == 1) break;
    }
    kept = finish.before.mass + finish.sum.mass;
    __syncthreads();
    return lowest;
}

// What `end_of_kept` finds, where the list is no longer than a warp, which it nearly always is: each candidate is
// compared with all. Every warp does it for itself.
__device__ __forceinline__ Wide end_of_few(const Candidates &from, const ExlDraw &draw, const Finish &finish) {
    const Cut &cut = finish.cut;
    const int lane = threadIdx.x % LANES;
    const Wide mine = lane < from.listed ? finish.candidates[lane] : 0;
    const int bin = mine ? from.bin(logit_of(mine)) : BINS;
    const Wide weight = mine ? from.weight(logit_of(mine)) : 0;
    Sum before{0, 0};  // in its bin
    for (int i = 0; i < from.listed; i++) {
        const Wide other = __shfl_sync(~0u, mine, i), its_weight = __shfl_sync(~0u, weight, i);
        const int its_bin = __shfl_sync(~0u, bin, i);
        if (its_bin == bin && other > mine) before = before + Sum{its_weight, 1};
    }
    Wide kept = cut.most_kept;
    bool stays = bin == cut.divided && mine && before.count < cut.rest;
    if (cut.divided < BINS) kept = finish.below[cut.divided] + warp_total(stays ? weight : 0);
    if (draw.top_p < 1.0) stays = mine && finish.below[bin] + before.mass < top_p_target(draw.top_p, kept);
    return ~warp_max(stays ? ~mine : Wide(0));
}

// The place at which the open bins end: of top-k and top-p, the nearer. Without open bins none of theirs stays.
__device__ Wide end_of_kept(const Candidates &from, const ExlDraw &draw, Finish &finish) {
    if (from.listed <= LANES) return end_of_few(from, draw, finish);
    const Cut &cut = finish.cut;
    Wide end = ~Wide(0), kept = cut.most_kept;
    if (cut.divided < BINS) {
        end = last_kept(from, finish, cut.divided, true, cut.rest, kept);
        kept += finish.below[cut.divided];
    }
    if (draw.top_p >= 1.0) return end;
    const Wide target = top_p_target(draw.top_p, kept);
    for (int bin = cut.first + threadIdx.x; bin <= cut.last; bin += SAMPLE_THREADS)
        if (finish.below[bin] < target && target <= finish.below[bin + 1]) finish.chosen = bin;
    __syncthreads();
    const int bin = finish.chosen;
    return last_kept(from, finish, bin, false, target - finish.below[bin], kept);
}

}  // namespace exl
