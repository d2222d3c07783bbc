// The steps of a distribution that all blocks take, in doubles. `tests/ext/reference_chain.py` has the same formulas.
//
// Every step bends the logits, by a curve that never falls, or removes tokens. What is left is a range of the order of
// places, but for what XTC takes out, and a gap that locally typical sampling can leave among equal logits.
//
// What is long is a function that is called: inlined, all of it together takes ptxas half a minute for each card.
#pragma once
#include "sample_team.cuh"

namespace exl {

constexpr double LEAST_TEMPERATURE = 1e-2;  // of the dynamic one

// Sums up what is left, and knows it then.
__device__ __noinline__ void measure(GridTeam team) {
    const Left left = team.shared.left;  // in registers
    const double best = left.best();
    double v[5] = {};
    team.each([&](int, Wide found) {
        if (!left.holds(found)) return;
        const double x = left.logit(found) - best, weight = weight_at(x);
        v[0] += weight, v[2] += 1.0, v[3] += x, v[4] += x * x;
        if (weight > 0.0) v[1] += x * weight;
    });
    team.reduce<Add>(v);
    team.change([&] { team.shared.known = {{v[0], v[1], v[2], v[3], v[4]}, true, true}; });
}

__device__ __forceinline__ double dynamic_temperature(const ExlChain &chain, double entropy, double count) {
    const double share = count > 1.0 ? fmin(fmax(entropy / log(count), 0.0), 1.0) : 0.0;
    const double spread = chain.dynatemp_high - chain.dynatemp_low;
    return fmax(chain.dynatemp_low + spread * pow(share, chain.dynatemp_exponent), LEAST_TEMPERATURE);
}

// Hewitt, Manning, Liang 2022: the least probability that stays.
__device__ __forceinline__ double eta_bound(const ExlChain &chain, double entropy) {
    return fmin(chain.eta, sqrt(chain.eta) * exp(-entropy));
}

// In [0, 1), of 53 bits.
__device__ __noinline__ double uniform_of(const ExlDraw &draw, int coin) {
    return uniform_bits(draw.seed, draw.index, draw.attempt, coin) * 0x1p-64;
}

__device__ __forceinline__ bool xtc_happens(const ExlChain &chain, const ExlDraw &draw) {
    return uniform_of(draw, 1) < chain.xtc_probability;
}

// The first number from `low` on for which `reached(number)`, which stays so from there on, or `high`. A warp looks at
// 32 at a time.
template <class Reached> __device__ __forceinline__ uint32_t first_by_warp(uint32_t low, uint32_t high, Reached reached) {
    while (low < high) {
        const uint32_t step = (high - low) / LANES + 1, at = low + threadIdx.x % LANES * step;
        const uint32_t from_here = __ballot_sync(~0u, at >= high || reached(at));
        const int below = from_here ? __ffs(from_here) - 1 : LANES;  // of those looked at
        if (below < LANES) high = min(high, low + below * step);
        if (below) low += (below - 1) * step + 1;
    }
    return low;
}

// Keeps what is at least `bound`, x or exp(x), and the best. No token has to be looked at: curves never fall, so the
// least logit that stays is searched for among all there can be. A warp of each block does it.
template <bool LOGITS> __device__ __noinline__ void keep_above(GridTeam team, double bound) {
    Left &left = team.shared.left;
    const Curve curve = left.curve;
    const double best = left.best();
    const auto stays = [&](uint32_t key) {
        const double x = curve.at((double)unordered(key)) - best;
        return (LOGITS ? x : weight_at(x)) >= bound;
    };
    if (threadIdx.x < LANES) {
        const uint32_t low = first_by_warp(left.low >> 32, left.high >> 32, stays);
        const Wide lowest = stays(low) ? (Wide)low << 32 : left.high;
        __syncwarp();
        if (threadIdx.x == 0) left.low = max(left.low, lowest);
    }
    __syncthreads();
}

// For each token left, in the order of the list: `value(i, place)` gives N numbers, and `use(i, place, below)` gets what
// those before it sum to. Returns the sums of all in `all`.
template <int N, class Value, class Prepare, class Use>
__device__ __forceinline__ void walk(GridTeam team, const Left &left, Value value, Prepare prepare, Use use) {
    double all[N], below[N];
#pragma unroll
    for (int n = 0; n < N; n++) all[n] = 0;
    for (int i = team.first() + threadIdx.x; i < team.last(); i += CHAIN_THREADS) {
        const Wide found = team.place_at(i);
        if (!left.holds(found)) continue;
        double v[N];
        value(i, found, v);
#pragma unroll
        for (int n = 0; n < N; n++) all[n] += v[n];
    }
    team.add(all, below);
    prepare(all);
    for (int from = team.first(); from < team.last(); from += CHAIN_THREADS) {
        const int i = from + threadIdx.x;
        const Wide found = i < team.last() ? team.place_at(i) : 0;
        const bool is_left = i < team.last() && left.holds(found);
        double v[N], of_round[N], before[N];
#pragma unroll
        for (int n = 0; n < N; n++) v[n] = 0;
        if (is_left) value(i, found, v);
#pragma unroll
        for (int n = 0; n < N; n++) before[n] = v[n];
        block_below(team.shared, before, of_round);
#pragma unroll
        for (int n = 0; n < N; n++) before[n] += below[n], below[n] += of_round[n];
        use(i, found, is_left, before);
    }
}

// Keeps a beginning of the sorted list: a token stays while `kept(below)`, and the best always.
__device__ __forceinline__ void keep_from_top(GridTeam team, Wide lowest) {
    __syncthreads();  // the memory in which the warps bring their parts may still be read
    const Wide last = most_of(team, max(lowest, ~team.shared.left.high), 0).best;
    team.change([&] { team.shared.left.low = ~last; });
}

__device__ __noinline__ void top_k(GridTeam team, int k) {
    const Left left = team.shared.left;
    Wide lowest = 0;
    walk<1>(
        team, left, [](int, Wide, double(&v)[1]) { v[0] = 1.0; }, [](double(&)[1]) {},
        [&](int, Wide found, bool is_left, double(&before)[1]) {
            if (is_left && before[0] < k) lowest = max(lowest, ~found);
        });
    keep_from_top(team, lowest);
}

__device__ __noinline__ void top_p(GridTeam team, double share) {
    const Left left = team.shared.left;
    const double best = left.best();
    double target = 0;
    Wide lowest = 0;
    walk<1>(
        team, left, [&](int, Wide found, double(&v)[1]) { v[0] = weight_at(left.logit(found) - best); },
        [&](double(&all)[1]) { target = share * all[0]; },
        [&](int, Wide found, bool is_left, double(&before)[1]) {
            if (is_left && before[0] < target) lowest = max(lowest, ~found);
        });
    keep_from_top(team, lowest);
}

// The next token that is left behind `i` in the list, or its size. Behind the lowest nothing is looked at: of a list that
// was cut before, that would be all of the vocabulary, one load after the other.
__device__ __forceinline__ int next_left(GridTeam team, const Left &left, int i) {
    const int size = team.size();
    while (++i < size) {
        const Wide found = team.place_at(i);
        if (found < left.low) return size;
        if (left.holds(found)) return i;
    }
    return size;
}

// Phénix and Egan, tail free sampling: by the second differences of the sorted probabilities.
__device__ __noinline__ void tail_free(GridTeam team, double share) {
    const Left left = team.shared.left;
    const double best = left.best();
    double target = 0, last = 0;
    Wide lowest = 0;
    walk<2>(
        team, left,
        [&](int i, Wide found, double(&v)[2]) {
            const int second = next_left(team, left, i);
            const int third = second < team.size() ? next_left(team, left, second) : second;
            v[0] = 0.0, v[1] = 1.0;
            if (third < team.size())
                v[0] = fabs(weight_at(left.logit(found) - best) - 2.0 * weight_at(left.logit(team.place_at(second)) - best) +
                            weight_at(left.logit(team.place_at(third)) - best));
        },
        [&](double(&all)[2]) { target = all[0] > 0.0 && all[1] >= 3.0 ? share * all[0] : -1.0, last = all[1] - 1.0; },
        [&](int, Wide found, bool is_left, double(&before)[2]) {
            if (is_left && (target < 0.0 || before[0] <= target && before[1] < last)) lowest = max(lowest, ~found);
        });
    keep_from_top(team, lowest);
}

// The first index of the sorted list from `low` on for which `reached(place)`, which stays so from there on, or `high`.
template <class Reached> __device__ __forceinline__ int first_where(GridTeam team, int low, int high, Reached reached) {
    while (low < high) {
        const int middle = (low + high) / 2;
        if (reached(team.place_at(middle))) high = middle;
        else low = middle + 1;
    }
    return low;
}

// Meister et al. 2022, doi 10.1162/tacl_a_00536. Each token looks up the weight of those whose surprise is nearer to the
// entropy: a stretch of the list around it, of which `sum` has the sums.
__device__ __noinline__ void typical(GridTeam team, double share) {
    const Left left = team.shared.left;
    const double best = left.best();
    double mass = 0;
    walk<1>(
        team, left, [&](int, Wide found, double(&v)[1]) { v[0] = weight_at(left.logit(found) - best); },
        [&](double(&all)[1]) { mass = all[0]; },
        [&](int i, Wide, bool, double(&before)[1]) {
            if (i < team.last()) team.sum(i) = before[0];
        });
    team.wait();
    measure(team);
    const double entropy = team.shared.known.found.entropy(), whole = log(mass);
    const auto surprise = [&](Wide found) { return whole - (left.logit(found) - best); };
    const auto through = [&](int i) { return i < team.size() ? team.sum_at(i) : mass; };
    const int size = team.size();
    const int middle = first_by_warp(0, size, [&](int i) { return surprise(team.place_at(i)) >= entropy; });
    // Before the middle: logits that are alike are nearly always one, which a look at the neighbours tells.
    const auto likely_stays = [&](int i, Wide found) {
        const double distance = entropy - surprise(found);
        const uint32_t value = found >> 32;
        int begin = i, end = i + 1;
        if (i > 0 && team.place_at(i - 1) >> 32 == value)
            begin = first_where(team, 0, i, [&](Wide other) { return other >> 32 <= value; });
        if (end < middle && team.place_at(end) >> 32 == value)
            end = first_where(team, end, middle, [&](Wide other) { return other >> 32 < value; });
        const int right =
            first_where(team, middle, size, [&](Wide other) { return surprise(other) - entropy >= distance; });
        return through(i) - through(begin) + through(right) - through(end) < share * mass;
    };
    const auto stays = [&](int i, Wide found) {
        if (i < middle) return likely_stays(i, found);
        const double distance = surprise(found) - entropy;
        const int begin =
            first_where(team, 0, middle, [&](Wide other) { return entropy - surprise(other) <= distance; });
        return through(i) - through(begin) < share * mass;
    };
    Wide ends[2] = {0, 0};  // the first that stays, and ~ the last
    uint32_t stayed = 0;    // of a thread's first 32 tokens
    int round = 0;
    for (int i = team.first() + threadIdx.x; i < team.last(); i += CHAIN_THREADS, round++) {
        const Wide found = team.place_at(i);
        if (!left.holds(found) || !stays(i, found)) continue;
        ends[0] = max(ends[0], found), ends[1] = max(ends[1], ~found);
        if (round < 32) stayed |= 1u << round;
    }
    const Ends kept = most_of(team, ends[0], ends[1]);
    const Wide high = kept.best, low = ~kept.least;
    Wide gap[2] = {0, 0};
    round = 0;
    for (int i = team.first() + threadIdx.x; i < team.last(); i += CHAIN_THREADS, round++) {
        const Wide found = team.place_at(i);
        if (found > high || found < low || !left.holds(found)) continue;
        if (round < 32 ? stayed >> round & 1 : stays(i, found)) continue;
        gap[0] = max(gap[0], found), gap[1] = max(gap[1], ~found);
    }
    const Ends gone = most_of(team, gap[0], gap[1]);
    team.change([&] {
        Left &now = team.shared.left;
        now.low = low, now.high = high;
        if (gone.best) now.gap_high = gone.best, now.gap_low = ~gone.least;
    });
}

// p-e-w 2024: of the likely tokens only the least likely one stays.
__device__ __noinline__ void exclude_top(GridTeam team, double threshold) {
    measure(team);
    Left left = team.shared.left;
    const double best = left.best(), bound = threshold * team.shared.known.found.mass;
    Wide ends[2] = {0, 0};
    for (int i = team.first() + threadIdx.x; i < team.last(); i += CHAIN_THREADS) {
        const Wide found = team.place_at(i);
        if (!left.holds(found) || left.is_sheltered(found) || weight_at(left.logit(found) - best) < bound) continue;
        ends[0] = max(ends[0], found), ends[1] = max(ends[1], ~found);
    }
    const Ends likely = most_of(team, ends[0], ends[1]);
    if (likely.best == 0 || likely.best == ~likely.least) return;
    left.taken = ~likely.least;
    Wide high = 0;
    for (int i = team.first() + threadIdx.x; i < team.last(); i += CHAIN_THREADS) {
        const Wide found = team.place_at(i);
        if (left.holds(found)) high = max(high, found);
    }
    high = most_of(team, high, 0).best;
    team.change([&] { team.shared.left.taken = left.taken, team.shared.left.high = high; });
}

}  // namespace exl
