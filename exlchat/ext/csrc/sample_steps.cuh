// The steps of a distribution, each in doubles, for either team. `reference_chain.py` has the same formulas.
//
// Every step bends the logits, by a curve that never falls, or removes tokens. What is left is a range of the order of
// places, but for what XTC takes out, and a gap that locally typical sampling can leave among equal logits.
//
// What is long is a function that is called: inlined, all of it together takes ptxas half a minute for each card.
#pragma once
#include "sample_team.cuh"

namespace exl {

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
        return smooth_first ? smoothed(x) / divisor : smoothed(x / divisor);
    }
};

struct Left {
    Curve curve;
    Wide low, high;          // places of the last and the first token; both are left
    Wide gap_low, gap_high;  // of what is missing between them: nothing where low is above high
    Wide taken;              // XTC took the tokens before this place, but for sheltered ones; ~0: none
    const uint32_t *sheltered;

    __device__ __forceinline__ bool is_sheltered(Wide found) const {
        return produced(sheltered + id_of(found) / 32) >> (id_of(found) % 32) & 1;
    }
    __device__ __forceinline__ bool holds(Wide found) const {
        return found >= low && found <= high && (found < gap_low || found > gap_high) &&
               (found <= taken || is_sheltered(found));
    }
    __device__ __forceinline__ double logit(Wide found) const { return curve.at((double)logit_of(found)); }
    __device__ __forceinline__ double best() const { return logit(high); }
};

// Of the tokens left: sum of weights exp(x), where x is the logit below the best, their number, and two sums that the
// step chooses.
struct Measure {
    double mass, count, first, second;

    __device__ __forceinline__ double entropy() const { return log(mass) - first / mass; }
};

template <bool SQUARES, class Team> __device__ __noinline__ Measure measure(Team &team, const Left &given) {
    const Left left = given;  // in registers
    const double best = left.best();
    double v[SQUARES ? 4 : 3] = {};
    for (int i = team.first() + threadIdx.x; i < team.last(); i += CHAIN_THREADS) {
        const Wide found = team.place_at(i);
        if (!left.holds(found)) continue;
        const double x = left.logit(found) - best, weight = weight_at(x);
        v[0] += weight, v[1] += 1.0;
        if constexpr (SQUARES) v[2] += x, v[3] += x * x;
        else if (weight > 0.0) v[2] += x * weight;
    }
    team.template reduce<Add>(v);
    return {v[0], v[1], v[2], SQUARES ? v[sizeof(v) / sizeof(v[0]) - 1] : 0.0};
}

// Keeps what is at least `bound`, x or exp(x), and the best.
template <bool LOGITS, class Team> __device__ __noinline__ void keep_above(Team &team, Left &given, double bound) {
    const Left left = given;
    const double best = left.best();
    Wide lowest[1] = {~left.high};
    for (int i = team.first() + threadIdx.x; i < team.last(); i += CHAIN_THREADS) {
        const Wide found = team.place_at(i);
        if (!left.holds(found)) continue;
        const double x = left.logit(found) - best;
        if ((LOGITS ? x : weight_at(x)) >= bound) lowest[0] = max(lowest[0], ~found);
    }
    team.template reduce<Most>(lowest);
    given.low = ~lowest[0];
}

// For each token left, in the order of the list: `value(i, place)` gives N numbers, and `use(i, place, below)` gets what
// those before it sum to. Returns the sums of all in `all`.
template <int N, class Team, class Value, class Prepare, class Use>
__device__ __forceinline__ void walk(Team &team, const Left &left, Value value, Prepare prepare, Use use) {
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
template <class Team> __device__ void keep_from_top(Team &team, Left &left, Wide lowest) {
    Wide v[1] = {max(lowest, ~left.high)};
    team.template reduce<Most>(v);
    left.low = ~v[0];
}

template <class Team> __device__ __noinline__ void top_k(Team &team, Left &given, int k) {
    const Left left = given;
    Wide lowest = 0;
    walk<1>(
        team, left, [](int, Wide, double(&v)[1]) { v[0] = 1.0; }, [](double(&)[1]) {},
        [&](int, Wide found, bool is_left, double(&before)[1]) {
            if (is_left && before[0] < k) lowest = max(lowest, ~found);
        });
    keep_from_top(team, given, lowest);
}

// `known`: the weight of all tokens, where the list holds only the first; 0 where it holds all.
template <class Team> __device__ __noinline__ void top_p(Team &team, Left &given, double share, double known) {
    const Left left = given;
    const double best = left.best();
    double target = 0;
    Wide lowest = 0;
    walk<1>(
        team, left, [&](int, Wide found, double(&v)[1]) { v[0] = weight_at(left.logit(found) - best); },
        [&](double(&all)[1]) { target = share * (known > 0.0 ? known : all[0]); },
        [&](int, Wide found, bool is_left, double(&before)[1]) {
            if (is_left && before[0] < target) lowest = max(lowest, ~found);
        });
    keep_from_top(team, given, lowest);
}

// The next token that is left behind `i` in the list, or its size.
template <class Team> __device__ __forceinline__ int next_left(Team &team, const Left &left, int i) {
    do i++;
    while (i < team.size && !left.holds(team.place_at(i)));
    return i;
}

// Phénix and Egan, tail free sampling: by the second differences of the sorted probabilities.
template <class Team> __device__ __noinline__ void tail_free(Team &team, Left &given, double share) {
    const Left left = given;
    const double best = left.best();
    double target = 0, last = 0;
    Wide lowest = 0;
    walk<2>(
        team, left,
        [&](int i, Wide found, double(&v)[2]) {
            const int second = next_left(team, left, i);
            const int third = second < team.size ? next_left(team, left, second) : second;
            v[0] = 0.0, v[1] = 1.0;
            if (third < team.size)
                v[0] = fabs(weight_at(left.logit(found) - best) - 2.0 * weight_at(left.logit(team.place_at(second)) - best) +
                            weight_at(left.logit(team.place_at(third)) - best));
        },
        [&](double(&all)[2]) { target = all[0] > 0.0 && all[1] >= 3.0 ? share * all[0] : -1.0, last = all[1] - 1.0; },
        [&](int, Wide found, bool is_left, double(&before)[2]) {
            if (is_left && (target < 0.0 || before[0] <= target && before[1] < last)) lowest = max(lowest, ~found);
        });
    keep_from_top(team, given, lowest);
}

// The first place of the sorted list for which `reached(place)`, which stays so from there on.
template <class Team, class Reached> __device__ __forceinline__ int first_where(Team &team, Reached reached) {
    int low = 0, high = team.size;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (reached(team.place_at(middle))) high = middle;
        else low = middle + 1;
    }
    return low;
}

// Meister et al. 2022, doi 10.1162/tacl_a_00536. Each token looks up the weight of those whose surprise is nearer to the
// entropy: a stretch of the list around it, of which `sum` has the sums.
template <class Team> __device__ __noinline__ void typical(Team &team, Left &given, double share) {
    const Left left = given;
    const double best = left.best();
    double mass = 0;
    walk<1>(
        team, left, [&](int, Wide found, double(&v)[1]) { v[0] = weight_at(left.logit(found) - best); },
        [&](double(&all)[1]) { mass = all[0]; },
        [&](int i, Wide, bool, double(&before)[1]) {
            if (i < team.last()) team.sum(i) = before[0];
        });
    team.wait();
    const double entropy = measure<false>(team, left).entropy(), whole = log(mass);
    const auto surprise = [&](Wide found) { return whole - (left.logit(found) - best); };
    const auto through = [&](int i) { return i < team.size ? team.sum_at(i) : mass; };
    const int middle = first_where(team, [&](Wide found) { return surprise(found) >= entropy; });
    const auto stays = [&](int i, Wide found) {
        double nearer;
        if (i < middle) {
            const double distance = entropy - surprise(found);
            const uint32_t value = found >> 32;
            const int begin = first_where(team, [&](Wide other) { return other >> 32 <= value; });
            const int end = first_where(team, [&](Wide other) { return other >> 32 < value; });
            const int right = first_where(team, [&](Wide other) { return surprise(other) - entropy >= distance; });
            nearer = through(i) - through(begin) + through(max(right, middle)) - through(min(end, middle));
        } else {
            const double distance = surprise(found) - entropy;
            const int begin = first_where(team, [&](Wide other) { return entropy - surprise(other) <= distance; });
            nearer = through(i) - through(min(begin, middle));
        }
        return nearer < share * mass;
    };
    Wide ends[2] = {0, 0};  // the first that stays, and ~ the last
    for (int i = team.first() + threadIdx.x; i < team.last(); i += CHAIN_THREADS) {
        const Wide found = team.place_at(i);
        if (left.holds(found) && stays(i, found)) ends[0] = max(ends[0], found), ends[1] = max(ends[1], ~found);
    }
    team.template reduce<Most>(ends);
    const Wide high = ends[0], low = ~ends[1];
    Wide gap[2] = {0, 0};
    for (int i = team.first() + threadIdx.x; i < team.last(); i += CHAIN_THREADS) {
        const Wide found = team.place_at(i);
        if (found > high || found < low || !left.holds(found) || stays(i, found)) continue;
        gap[0] = max(gap[0], found), gap[1] = max(gap[1], ~found);
    }
    team.template reduce<Most>(gap);
    given.low = low, given.high = high;
    if (gap[0]) given.gap_high = gap[0], given.gap_low = ~gap[1];
}

// p-e-w 2024: of the likely tokens only the least likely one stays.
template <class Team> __device__ __noinline__ void exclude_top(Team &team, Left &left, double threshold) {
    const double best = left.best(), bound = threshold * measure<false>(team, left).mass;
    Wide ends[2] = {0, 0};
    for (int i = team.first() + threadIdx.x; i < team.last(); i += CHAIN_THREADS) {
        const Wide found = team.place_at(i);
        if (!left.holds(found) || left.is_sheltered(found) || weight_at(left.logit(found) - best) < bound) continue;
        ends[0] = max(ends[0], found), ends[1] = max(ends[1], ~found);
    }
    team.template reduce<Most>(ends);
    if (ends[0] == 0 || ends[0] == ~ends[1]) return;
    left.taken = ~ends[1];
    Wide high[1] = {0};
    for (int i = team.first() + threadIdx.x; i < team.last(); i += CHAIN_THREADS) {
        const Wide found = team.place_at(i);
        if (left.holds(found)) high[0] = max(high[0], found);
    }
    team.template reduce<Most>(high);
    left.high = high[0];
}

}  // namespace exl
