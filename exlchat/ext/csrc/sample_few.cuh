// The steps of a distribution with few tokens: a sorted list, of which each thread has some in registers.
//
// Once it is short enough one warp goes on alone, which waits for nobody: what costs here is waiting, not arithmetic.
// What is left is always the beginning of the list; steps that take tokens elsewhere close the gaps. Formulas and their
// sources stand in `sample_steps.cuh`.
#pragma once
#include "sample_sort.cuh"
#include "sample_steps.cuh"

namespace exl {

constexpr int EACH = 8;            // tokens of a thread, one behind the other
constexpr int FEW = EACH * LANES;  // that one warp takes
constexpr int FEW_WARPS = LIST / FEW;
constexpr int INDEX_BITS = 11;     // of a token in the list; its id has the bits above them
static_assert(LIST <= 1 << INDEX_BITS && EXL_MAX_VOCAB < 1 << (30 - INDEX_BITS), "");

// exp of each. In the code once.
__device__ __noinline__ void weights_at(double (&below)[EACH]) {
#pragma unroll
    for (int j = 0; j < EACH; j++) below[j] = exp(below[j]);
}

struct FewLeft {
    Curve curve;  // of the logits of now
    int count;    // of tokens
    double logit[EACH];
};

template <int WARPS> struct Few {
    ChainShared &shared;
    const uint32_t *sheltered;
    Curve curve;
    int count;
    double logit[EACH], weight[EACH];  // exp of what the logit is below the best; 0 behind the end
    double best;
    bool measured;
    double mass, slope;  // sums of weights, and of weights times what the logit is below the best

    __device__ __forceinline__ int index(int j) const { return threadIdx.x * EACH + j; }
    __device__ __forceinline__ bool has(int j) const { return index(j) < count; }
    __device__ __forceinline__ double below(int j) const { return logit[j] - best; }
    __device__ __forceinline__ void wait() const {
        if constexpr (WARPS == 1) __syncwarp();
        else __syncthreads();
    }

    // From the sums of warps: those of all take the place, `lower` becomes those of the lower warps.
    template <class V, int N> __device__ __forceinline__ void over_warps(V (&v)[N], V (&lower)[N]) {
#pragma unroll
        for (int n = 0; n < N; n++) lower[n] = 0;
        if constexpr (WARPS > 1) {
            const int warp = threadIdx.x / LANES;
            __syncthreads();  // an earlier call may still be read
            if (threadIdx.x % LANES == 0)
#pragma unroll
                for (int n = 0; n < N; n++) reinterpret_cast<V *>(shared.warps[warp])[n] = v[n];
            __syncthreads();
#pragma unroll
            for (int n = 0; n < N; n++) {
                v[n] = 0;
#pragma unroll
                for (int w = 0; w < WARPS; w++) {
                    if (w == warp) lower[n] = v[n];
                    v[n] += reinterpret_cast<const V *>(shared.warps[w])[n];
                }
            }
        }
    }
    template <int N> __device__ __forceinline__ void add(double (&v)[N]) {
        double lower[N];
        warp_all<Add>(v);
        over_warps(v, lower);
    }
    // The sum over all lower threads; `all` becomes that over all.
    template <class V> __device__ __forceinline__ V sum_below(V mine, V &all) {
        const int lane = threadIdx.x % LANES;
        V through = mine;
#pragma unroll
        for (int d = 1; d < LANES; d *= 2) {
            const V other = __shfl_up_sync(~0u, through, d);
            if (lane >= d) through += other;
        }
        V v[1] = {__shfl_sync(~0u, through, LANES - 1)}, lower[1];
        const V before = __shfl_up_sync(~0u, through, 1);
        over_warps(v, lower);
        all = v[0];
        return lower[0] + (lane ? before : V(0));
    }
    template <class Holds> __device__ __forceinline__ int how_many(Holds holds) {
        int v[1] = {0}, lower[1];
#pragma unroll
        for (int j = 0; j < EACH; j++) v[0] += __popc(__ballot_sync(~0u, has(j) && holds(j)));
        over_warps(v, lower);
        return v[0];
    }
    __device__ __forceinline__ int most(int mine) {
        int v[1] = {mine};
        warp_all<Most>(v);
        if constexpr (WARPS > 1) {
            __syncthreads();
            if (threadIdx.x % LANES == 0) shared.warps[threadIdx.x / LANES][0] = v[0];
            __syncthreads();
#pragma unroll
            for (int w = 0; w < WARPS; w++) v[0] = max(v[0], (int)shared.warps[w][0]);
        }
        return v[0];
    }

    // After the logits have changed, or the best has gone.
    __device__ __forceinline__ void weigh() {
        if constexpr (WARPS == 1) best = __shfl_sync(~0u, logit[0], 0);
        else {
            __syncthreads();
            if (threadIdx.x == 0) reinterpret_cast<double *>(shared.all)[0] = logit[0];
            __syncthreads();
            best = reinterpret_cast<const double *>(shared.all)[0];
        }
        double v[EACH];
#pragma unroll
        for (int j = 0; j < EACH; j++) v[j] = has(j) ? below(j) : -INFINITY;
        weights_at(v);
#pragma unroll
        for (int j = 0; j < EACH; j++) weight[j] = v[j];
        measured = false;
    }
    __device__ __forceinline__ void measure() {
        if (measured) return;
        double v[2] = {0.0, 0.0};
#pragma unroll
        for (int j = 0; j < EACH; j++) v[0] += weight[j], v[1] += weight[j] * below(j);
        add(v);
        mass = v[0], slope = v[1], measured = true;
    }
    __device__ __forceinline__ double entropy() const { return log(mass) - slope / mass; }

    // Keeps the first ones, and the best always.
    __device__ __forceinline__ void keep(int first) {
        first = max(first, 1);
        if (first >= count) return;
        count = first, measured = false;
#pragma unroll
        for (int j = 0; j < EACH; j++)
            if (!has(j)) weight[j] = 0.0;
    }
    __device__ __forceinline__ void keep_heavy(double bound) {
        keep(how_many([&](int j) { return weight[j] >= bound; }));
    }
    // Keeps those whose bit is set.
    __device__ __forceinline__ void close_gaps(uint32_t kept) {
        uint32_t id[EACH];
        int all;
        int at = sum_below(__popc(kept), all);
#pragma unroll
        for (int j = 0; j < EACH; j++) id[j] = shared.few.ids[index(j)];
        wait();
#pragma unroll
        for (int j = 0; j < EACH; j++)
            if (kept >> j & 1) shared.few.ids[at] = id[j], shared.few.sums[at] = logit[j], at++;
        count = all;
        wait();
#pragma unroll
        for (int j = 0; j < EACH; j++) logit[j] = has(j) ? shared.few.sums[index(j)] : 0.0;
        weigh();
    }

    __device__ __forceinline__ void smooth() {
        curve.top = best;
        curve.square = (3.0 - shared.chain.smoothing_curve) / 2.0 * shared.chain.smoothing_factor;
        curve.cube = (shared.chain.smoothing_curve - 1.0) / 2.0 * shared.chain.smoothing_factor;
        curve.smooth = true;
#pragma unroll
        for (int j = 0; j < EACH; j++) logit[j] = curve.smoothed(logit[j]);
        weigh();
    }
    __device__ __forceinline__ void heat() {
        double temperature = shared.chain.temperature;
        if (shared.chain.dynatemp_high > 0.0) {
            measure();
            temperature = dynamic_temperature(shared.chain, entropy(), count);
        }
        curve.smooth_first = curve.smooth;
        curve.divisor = temperature;
#pragma unroll
        for (int j = 0; j < EACH; j++) logit[j] /= temperature;
        weigh();
    }
    __device__ __forceinline__ void top_n_sigma() {
        double v[2] = {0.0, 0.0};
#pragma unroll
        for (int j = 0; j < EACH; j++)
            if (has(j)) v[0] += below(j), v[1] += below(j) * below(j);
        add(v);
        const double mean = v[0] / count, deviation = sqrt(fmax(v[1] / count - mean * mean, 0.0));
        const double bound = -shared.chain.top_n_sigma * deviation;
        keep(how_many([&](int j) { return below(j) >= bound; }));
    }
    // `known`: the weight of all tokens, where the list holds only the first; 0 where it holds all.
    __device__ __forceinline__ void top_p(double known) {
        double before[EACH], mine = 0.0, all;
#pragma unroll
        for (int j = 0; j < EACH; j++) before[j] = mine, mine += weight[j];
        const double lower = sum_below(mine, all), target = shared.chain.top_p * (known > 0.0 ? known : all);
        keep(how_many([&](int j) { return lower + before[j] < target; }));
    }
    __device__ __forceinline__ void tail_free() {
        if (count < 3) return;
        double next[2] = {__shfl_down_sync(~0u, weight[0], 1), __shfl_down_sync(~0u, weight[1], 1)};
        if constexpr (WARPS > 1) {
            const int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
            __syncthreads();
            if (lane == 0)
#pragma unroll
                for (int n = 0; n < 2; n++) reinterpret_cast<double *>(shared.warps[warp])[n] = weight[n];
            __syncthreads();
            if (lane == LANES - 1 && warp + 1 < WARPS)
#pragma unroll
                for (int n = 0; n < 2; n++) next[n] = reinterpret_cast<const double *>(shared.warps[warp + 1])[n];
        }
        double before[EACH], mine = 0.0, all;
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const double second = j + 1 < EACH ? weight[(j + 1) % EACH] : next[0];
            const double third = j + 2 < EACH ? weight[(j + 2) % EACH] : next[(j + 2) % EACH];
            before[j] = mine;
            mine += index(j) + 2 < count ? fabs(weight[j] - 2.0 * second + third) : 0.0;
        }
        const double lower = sum_below(mine, all), target = shared.chain.tfs * all;
        if (all > 0.0) keep(how_many([&](int j) { return index(j) + 1 < count && lower + before[j] <= target; }));
    }
    // Each token looks up, by their distances from the entropy, what those that come before it weigh.
    __device__ __forceinline__ void typical() {
        double *distances = shared.few.distances, *sums = shared.few.sums;
        measure();
        const double whole = log(mass), middle_of = entropy(), target = shared.chain.typical * mass;
        const auto above = [&](int j) { return whole - below(j) - middle_of; };
        const int middle = how_many([&](int j) { return above(j) < 0.0; });
        double before = 0.0, all;
#pragma unroll
        for (int j = 0; j < EACH; j++) before += weight[j];
        before = sum_below(before, all);
        wait();
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            if (has(j)) distances[index(j)] = fabs(above(j)), sums[index(j)] = before;
            before += weight[j];
        }
        wait();
        // Of what lies before the middle, the beginnings with larger and with no smaller distances; of the rest, the
        // beginning with smaller ones.
        int larger[EACH] = {}, no_smaller[EACH] = {}, smaller[EACH] = {};
        for (int step = 1 << (INDEX_BITS); step; step /= 2) {
            if (step > count) continue;
#pragma unroll
            for (int j = 0; j < EACH; j++) {
                if (!has(j)) continue;
                const double own = distances[index(j)];
                if (larger[j] + step <= middle && distances[larger[j] + step - 1] > own) larger[j] += step;
                if (no_smaller[j] + step <= middle && distances[no_smaller[j] + step - 1] >= own) no_smaller[j] += step;
                if (middle + smaller[j] + step <= count && distances[middle + smaller[j] + step - 1] < own)
                    smaller[j] += step;
            }
        }
        const auto through = [&](int i) { return i < count ? sums[i] : all; };
        uint32_t kept = 0;
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            if (!has(j)) continue;
            double nearer = through(index(j)) - through(larger[j]);
            if (index(j) < middle) nearer += through(middle + smaller[j]) - through(no_smaller[j]);
            kept |= (uint32_t)(nearer < target) << j;
        }
        close_gaps(kept);
    }
    __device__ __forceinline__ void exclude_top() {
        measure();
        const double bound = shared.chain.xtc_threshold * mass;
        uint32_t likely = 0;
        int last = -1;
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            if (!has(j) || weight[j] < bound) continue;
            const uint32_t id = shared.few.ids[index(j)];
            if (produced(sheltered + id / 32) >> (id % 32) & 1) continue;
            likely |= 1u << j, last = index(j);
        }
        last = most(last);
        const int number = how_many([&](int j) { return likely >> j & 1; });
        if (number < 2) return;
        uint32_t kept = 0;
#pragma unroll
        for (int j = 0; j < EACH; j++) kept |= (uint32_t)(has(j) && (!(likely >> j & 1) || index(j) == last)) << j;
        close_gaps(kept);
    }

    __device__ __forceinline__ void take(int step, double known) {
        const ExlChain &chain = shared.chain;
        const ExlDraw &draw = shared.draw;
        const bool by_mass = step == EXL_TOP_A || step == EXL_EPSILON || step == EXL_ETA || step == EXL_MIROSTAT;
        if (by_mass || step == EXL_MIN_P) {
            double bound = chain.min_p;
            if (by_mass) {
                measure();
                bound = step == EXL_TOP_A     ? chain.top_a / mass
                        : step == EXL_EPSILON ? chain.epsilon * mass
                        : step == EXL_ETA     ? eta_bound(chain, entropy()) * mass
                                              : exp2(-draw.mu) * mass;
            }
            keep_heavy(bound);
        }
        switch (step) {
        case EXL_SMOOTHING: smooth(); break;
        case EXL_TEMPERATURE: heat(); break;
        case EXL_TOP_N_SIGMA: top_n_sigma(); break;
        case EXL_TOP_K: keep(chain.top_k); break;
        case EXL_TOP_P: top_p(known); break;
        case EXL_TFS: tail_free(); break;
        case EXL_TYPICAL: typical(); break;
        case EXL_MIROSTAT:
            measure();
            if (threadIdx.x == 0) shared.surprise = {true, curve, best, mass};
            break;
        case EXL_XTC:
            if (xtc_happens(chain, draw)) exclude_top();
            break;
        }
    }

    // The id, of every thread.
    __device__ __forceinline__ int drawn() {
        const Wide uniform = uniform_bits(shared.draw.seed, shared.draw.index, shared.draw.attempt, 0);
        uint32_t *keys = shared.few.keys;
        wait();
#pragma unroll
        for (int j = 0; j < EACH; j++)
            if (has(j)) {
                shared.few.sums[index(j)] = weight[j];
                keys[index(j)] = shared.few.ids[index(j)] << INDEX_BITS | index(j);
            }
        wait();
        sort_keys<WARPS>(keys, count);
        double before[EACH], mine = 0.0, all;
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            before[j] = mine;
            mine += has(j) ? shared.few.sums[keys[index(j)] % (1 << INDEX_BITS)] : 0.0;
        }
        const double lower = sum_below(mine, all), target = uniform * 0x1p-64 * all;
        int first = 0, last = 0;  // the first above the target, and the last that weighs anything
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            if (!has(j)) continue;
            const int key = keys[index(j)];
            const double own = shared.few.sums[key % (1 << INDEX_BITS)];
            if (own <= 0.0) continue;
            if (lower + before[j] + own > target) first = max(first, (1 << 30) - key);
            last = max(last, key);
        }
        first = most(first), last = most(last);
        return (first ? (1 << 30) - first : last) >> INDEX_BITS;
    }
};

// Takes the steps from `at` on until one warp can go on, or to the end, where it draws: the id, of every thread, or -1.
template <int WARPS>
__device__ __noinline__ int take_few(ChainShared &shared, const uint32_t *sheltered, FewLeft &left, int &at, double &known) {
    Few<WARPS> few{shared, sheltered, left.curve, left.count};
#pragma unroll
    for (int j = 0; j < EACH; j++) few.logit[j] = left.logit[j];
    few.weigh();
    int next = at;
    while (next < shared.chain.step_count && (WARPS == 1 || few.count > FEW)) {
        few.take(shared.chain.steps[next], known);
        next++, known = 0.0;
    }
    if (WARPS == 1 || few.count > FEW) return few.drawn();
    left.curve = few.curve, left.count = few.count, at = next;
#pragma unroll
    for (int j = 0; j < EACH; j++) left.logit[j] = few.logit[j];
    return -1;
}

}  // namespace exl
