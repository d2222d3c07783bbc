// The steps of a distribution with few tokens: a sorted list in the registers of one block's first warps.
//
// What costs here is waiting, for other threads and for code that no cache has, not arithmetic: so each sum waits once,
// and what several steps do stands in one place. What is left is always the beginning of the list; steps that take
// tokens elsewhere close the gaps. Formulas and their sources stand in `sample_steps.cuh`.
#pragma once
#include "sample_sort.cuh"
#include "sample_steps.cuh"

namespace exl {

constexpr int FEW_WARPS = CHAIN_WARPS / 2;
constexpr int FEW = FEW_WARPS * LANES;  // threads
constexpr int INDEX_BITS = 11;          // of a token in the list; its id has the bits above them
static_assert(LIST <= 1 << INDEX_BITS && EXL_MAX_VOCAB < 1 << (30 - INDEX_BITS) && LIST % FEW == 0, "");

struct FewLeft {
    Curve curve;  // of the logits of now, which `sums` has
    int count;    // of tokens
};

// Sums over the threads of the few; `turn` chooses memory. One wait suffices: the next call uses the other half, and when
// the one after it writes, all have passed the next one's wait. In the code once, with what it costs to call it.
struct Pair {
    double first, second;
};
template <class Op> __device__ __noinline__ Pair over_few(ChainShared &shared, int turn, double first, double second) {
    const Op op;
    double v[2] = {first, second};
    warp_all<Op>(v);
    Pair *parts = reinterpret_cast<Pair *>(shared.few_warps) + turn * FEW_WARPS;
    if (threadIdx.x % LANES == 0) parts[threadIdx.x / LANES] = {v[0], v[1]};
    __syncthreads();
    Pair all = parts[0];
#pragma unroll
    for (int w = 1; w < FEW_WARPS; w++) all = {op(all.first, parts[w].first), op(all.second, parts[w].second)};
    return all;
}
// Over all lower threads, and over all.
__device__ __noinline__ Pair below_few(ChainShared &shared, int turn, double mine) {
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    double through = mine;
#pragma unroll 1
    for (int d = 1; d < LANES; d *= 2) {
        const double other = __shfl_up_sync(~0u, through, d);
        if (lane >= d) through += other;
    }
    const double before = __shfl_up_sync(~0u, through, 1);
    Pair *parts = reinterpret_cast<Pair *>(shared.few_warps) + turn * FEW_WARPS;
    if (lane == LANES - 1) parts[warp].first = through;
    __syncthreads();
    double lower = 0.0, all = 0.0;
#pragma unroll
    for (int w = 0; w < FEW_WARPS; w++) {
        if (w == warp) lower = all;
        all += parts[w].first;
    }
    return {lower + (lane ? before : 0.0), all};
}
// What every warp has counted.
__device__ __noinline__ int count_few(ChainShared &shared, int turn, int of_warp) {
    int *parts = reinterpret_cast<int *>(reinterpret_cast<Pair *>(shared.few_warps) + turn * FEW_WARPS);
    if (threadIdx.x % LANES == 0) parts[threadIdx.x / LANES] = of_warp;
    __syncthreads();
    int all = 0;
#pragma unroll
    for (int w = 0; w < FEW_WARPS; w++) all += parts[w];
    return all;
}
__device__ __noinline__ double log_of(double x) { return log(x); }

// EACH: tokens of a thread, one behind the other.
template <int EACH> struct Few {
    static constexpr uint32_t ALL = (1u << EACH) - 1;

    ChainShared &shared;
    const uint32_t *sheltered;
    Curve curve;
    int count;
    double logit[EACH], weight[EACH];  // exp of what the logit is below the best; 0 behind the end
    double best;
    bool measured;
    double mass, slope;  // sums of weights, and of weights times what the logit is below the best
    int turn;

    __device__ __forceinline__ int index(int j) const { return threadIdx.x * EACH + j; }
    __device__ __forceinline__ bool has(int j) const { return index(j) < count; }
    __device__ __forceinline__ double below(int j) const { return logit[j] - best; }
    template <class Holds> __device__ __forceinline__ static uint32_t bits(Holds holds) {
        uint32_t found = 0;
#pragma unroll
        for (int j = 0; j < EACH; j++) found |= (uint32_t)holds(j) << j;
        return found;
    }

    template <class Op> __device__ __forceinline__ Pair over_all(double first, double second) {
        return over_few<Op>(shared, turn ^= 1, first, second);
    }
    // The sum over all lower threads; `all` becomes that over all.
    __device__ __forceinline__ double sum_below(double mine, double &all) {
        const Pair found = below_few(shared, turn ^= 1, mine);
        all = found.second;
        return found.first;
    }
    __device__ __forceinline__ int how_many(uint32_t holds) {
        int of_warp = 0;
#pragma unroll
        for (int j = 0; j < EACH; j++) of_warp += __popc(__ballot_sync(~0u, has(j) && (holds >> j & 1)));
        return count_few(shared, turn ^= 1, of_warp);
    }

    // After the logits have changed, or the best has gone.
    __device__ __forceinline__ void weigh() {
        __syncthreads();
        if (threadIdx.x == 0) reinterpret_cast<double *>(shared.all)[0] = logit[0];
        __syncthreads();
        best = reinterpret_cast<const double *>(shared.all)[0];
#pragma unroll
        for (int j = 0; j < EACH; j++) weight[j] = has(j) ? weight_at(below(j)) : 0.0;
        measured = false;
    }
    __device__ __forceinline__ void measure() {
        double v[2] = {0.0, 0.0};
#pragma unroll
        for (int j = 0; j < EACH; j++) v[0] += weight[j], v[1] += weight[j] * below(j);
        const Pair all = over_all<Add>(v[0], v[1]);
        mass = all.first, slope = all.second, measured = true;
    }
    // Keeps the first ones, and the best always.
    __device__ __forceinline__ void keep(int first) {
        first = max(first, 1);
        if (first >= count) return;
        count = first, measured = false;
#pragma unroll
        for (int j = 0; j < EACH; j++)
            if (!has(j)) weight[j] = 0.0;
    }
    // Keeps those whose bit is set.
    __device__ __forceinline__ void close_gaps(uint32_t kept) {
        uint32_t id[EACH];
#pragma unroll
        for (int j = 0; j < EACH; j++) id[j] = shared.few.ids[index(j)];
        double all;
        int at = sum_below(__popc(kept), all);  // and all wait
#pragma unroll
        for (int j = 0; j < EACH; j++)
            if (kept >> j & 1) shared.few.ids[at] = id[j], shared.few.sums[at] = logit[j], at++;
        count = all;
        __syncthreads();
        load();
    }
    __device__ __forceinline__ void load() {
#pragma unroll
        for (int j = 0; j < EACH; j++) logit[j] = has(j) ? shared.few.sums[index(j)] : 0.0;
    }

    // `known`: the weight of all tokens, where the list holds only the first; 0 where it holds all.
    __device__ __forceinline__ uint32_t top_p(double known) {
        double before[EACH], mine = 0.0, all;
#pragma unroll
        for (int j = 0; j < EACH; j++) before[j] = mine, mine += weight[j];
        const double lower = sum_below(mine, all), target = shared.chain.top_p * (known > 0.0 ? known : all);
        return bits([&](int j) { return lower + before[j] < target; });
    }
    __device__ __forceinline__ uint32_t tail_free() {
        double *weights = shared.few.sums;
        __syncthreads();
#pragma unroll
        for (int j = 0; j < EACH; j++) weights[index(j)] = weight[j];
        __syncthreads();
        double before[EACH], mine = 0.0, all;
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const int i = index(j);
            before[j] = mine;
            mine += i + 2 < count ? fabs(weight[j] - 2.0 * weights[i + 1] + weights[i + 2]) : 0.0;
        }
        const double lower = sum_below(mine, all), target = shared.chain.tfs * all;
        if (all <= 0.0) return ALL;
        return bits([&](int j) { return index(j) + 1 < count && lower + before[j] <= target; });
    }
    // Each token looks up, by their distances from the entropy, what those that come before it weigh.
    __device__ __forceinline__ uint32_t typical(double entropy) {
        double *distances = shared.few.distances, *sums = shared.few.sums;
        const double whole = log_of(mass), target = shared.chain.typical * mass;
        const auto above = [&](int j) { return whole - below(j) - entropy; };
        double before = 0.0, all;
#pragma unroll
        for (int j = 0; j < EACH; j++) before += weight[j];
        before = sum_below(before, all);  // and all wait
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            distances[index(j)] = fabs(above(j)), sums[index(j)] = before;
            before += weight[j];
        }
        const int middle = how_many(bits([&](int j) { return above(j) < 0.0; }));  // and all wait
        // Of what lies before the middle, the beginnings with larger and with no smaller distances; of the rest, the
        // beginning with smaller ones.
        int larger[EACH] = {}, no_smaller[EACH] = {}, smaller[EACH] = {};
        for (int step = 1 << (31 - __clz(count)); step; step /= 2)
#pragma unroll
            for (int j = 0; j < EACH; j++) {
                const double own = distances[index(j)];
                const int a = larger[j] + step, b = no_smaller[j] + step, c = middle + smaller[j] + step;
                if (a <= middle && distances[a - 1] > own) larger[j] = a;
                if (b <= middle && distances[b - 1] >= own) no_smaller[j] = b;
                if (c <= count && distances[c - 1] < own) smaller[j] = c - middle;
            }
        const auto through = [&](int i) { return i < count ? sums[i] : all; };
        return bits([&](int j) {
            double nearer = through(index(j)) - through(larger[j]);
            if (index(j) < middle) nearer += through(middle + smaller[j]) - through(no_smaller[j]);
            return has(j) && nearer < target;
        });
    }
    __device__ __forceinline__ uint32_t without_top() {
        const double bound = shared.chain.xtc_threshold * mass;
        double last = -1.0;
        const uint32_t likely = bits([&](int j) {
            if (!has(j) || weight[j] < bound) return false;
            const uint32_t id = shared.few.ids[index(j)];
            if (produced(sheltered + id / 32) >> (id % 32) & 1) return false;
            last = index(j);
            return true;
        });
        last = over_all<Most>(last, 0.0).first;
        return bits([&](int j) { return has(j) && (!(likely >> j & 1) || index(j) == last); });
    }
    __device__ __forceinline__ double temperature(double entropy) const {
        const ExlChain &chain = shared.chain;
        return chain.dynatemp_high > 0.0 ? dynamic_temperature(chain, entropy, count) : chain.temperature;
    }
    __device__ __forceinline__ void bend(int step, double entropy) {
        if (step == EXL_SMOOTHING) curve.smooth_by(shared.chain, best);
        else curve.heat(temperature(entropy));
#pragma unroll
        for (int j = 0; j < EACH; j++)
            logit[j] = step == EXL_SMOOTHING ? curve.smoothed(logit[j]) : logit[j] / curve.divisor;
    }
    __device__ __forceinline__ double sigma_bound() {
        double v[2] = {0.0, 0.0};
#pragma unroll
        for (int j = 0; j < EACH; j++)
            if (has(j)) v[0] += below(j), v[1] += below(j) * below(j);
        const Pair all = over_all<Add>(v[0], v[1]);
        const double mean = all.first / count;
        return -shared.chain.top_n_sigma * sqrt(fmax(all.second / count - mean * mean, 0.0));
    }
    __device__ __forceinline__ double bound_of(int step, double entropy) const {
        const ExlChain &chain = shared.chain;
        switch (step) {
        case EXL_TOP_A: return chain.top_a / mass;
        case EXL_EPSILON: return chain.epsilon * mass;
        case EXL_ETA: return eta_bound(chain, entropy) * mass;
        case EXL_MIROSTAT: return exp2(-shared.draw.mu) * mass;
        default: return chain.min_p;
        }
    }

    __device__ __forceinline__ void take(int step, double known) {
        constexpr uint32_t BY_MASS = 1u << EXL_TEMPERATURE | 1u << EXL_TOP_A | 1u << EXL_EPSILON | 1u << EXL_ETA |
                                     1u << EXL_TYPICAL | 1u << EXL_MIROSTAT | 1u << EXL_XTC;
        constexpr uint32_t BY_ENTROPY = 1u << EXL_TEMPERATURE | 1u << EXL_ETA | 1u << EXL_TYPICAL;
        if (step == EXL_XTC && !xtc_happens(shared.chain, shared.draw)) return;
        const bool fixed = step == EXL_TEMPERATURE && shared.chain.dynatemp_high <= 0.0;
        if ((BY_MASS >> step & 1) && !fixed && !measured) measure();
        const double entropy = (BY_ENTROPY >> step & 1) && !fixed ? log_of(mass) - slope / mass : 0.0;
        uint32_t kept = ALL;
        switch (step) {
        case EXL_SMOOTHING:
        case EXL_TEMPERATURE: bend(step, entropy); break;
        case EXL_TOP_N_SIGMA: {
            const double bound = sigma_bound();
            kept = bits([&](int j) { return below(j) >= bound; });
            break;
        }
        case EXL_TOP_K: kept = bits([&](int j) { return index(j) < shared.chain.top_k; }); break;
        case EXL_TOP_P: kept = top_p(known); break;
        case EXL_TFS: kept = tail_free(); break;
        case EXL_TYPICAL: kept = typical(entropy); break;
        case EXL_XTC: kept = without_top(); break;
        default: {
            const double bound = bound_of(step, entropy);
            kept = bits([&](int j) { return weight[j] >= bound; });
        }
        }
        if (step == EXL_SMOOTHING || step == EXL_TEMPERATURE || step == EXL_TYPICAL || step == EXL_XTC) {
            if (step == EXL_TYPICAL || step == EXL_XTC) close_gaps(kept);
            weigh();
        } else keep(how_many(kept));
        if (step != EXL_MIROSTAT) return;
        measure();
        if (threadIdx.x == 0) shared.surprise = {true, curve, best, mass};
    }

    // The id, of every thread.
    __device__ __forceinline__ int drawn() {
        uint32_t *keys = shared.few.keys;
        __syncthreads();
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            shared.few.sums[index(j)] = weight[j];
            if (has(j)) keys[index(j)] = shared.few.ids[index(j)] << INDEX_BITS | index(j);
        }
        __syncthreads();
        sort_keys<EACH == 1>(keys, count);
        double before[EACH], own[EACH], mine = 0.0, all;
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            own[j] = has(j) ? shared.few.sums[keys[index(j)] % (1 << INDEX_BITS)] : 0.0;
            before[j] = mine;
            mine += own[j];
        }
        const double lower = sum_below(mine, all), target = uniform_of(shared.draw, 0) * all;
        int ends[2] = {0, 0};  // the first above the target, and the last that weighs anything
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            if (own[j] <= 0.0) continue;
            const int key = keys[index(j)];
            if (lower + before[j] + own[j] > target) ends[0] = max(ends[0], (1 << 30) - key);
            ends[1] = max(ends[1], key);
        }
        const Pair found = over_all<Most>(ends[0], ends[1]);
        return (found.first > 0.0 ? (1 << 30) - (int)found.first : (int)found.second) >> INDEX_BITS;
    }
};

// Takes the steps from `at` on until one token a thread is left, or to the end, where it draws: the id, of every thread,
// or -1.
template <int EACH>
__device__ __noinline__ int take_few(ChainShared &shared, const uint32_t *sheltered, FewLeft &left, int &at, double &known) {
    Few<EACH> few{shared, sheltered, left.curve, left.count};
    few.turn = 0;
    few.load();
    few.weigh();
    int next = at;
    while (next < shared.chain.step_count && (EACH == 1 || few.count > FEW)) {
        few.take(shared.chain.steps[next], known);
        next++, known = 0.0;
    }
    if (EACH == 1 || few.count > FEW) return few.drawn();
    __syncthreads();
#pragma unroll
    for (int j = 0; j < EACH; j++) shared.few.sums[few.index(j)] = few.logit[j];
    __syncthreads();
    left.curve = few.curve, left.count = few.count, at = next;
    return -1;
}

}  // namespace exl
