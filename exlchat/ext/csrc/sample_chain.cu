// The sampler for every chain of steps, as one kernel whose blocks wait for each other.
//
// Steps that need no order (temperatures, bounds of probability) are taken by the whole grid over the vocabulary as it
// lies there. At the first that needs one, few tokens that are left, or a beginning of the order that surely holds what
// top-k or top-p will leave, go to one block, which sorts them in its shared memory and takes all steps that follow.
// Where too many are left the grid sorts the vocabulary, and goes on. Everything that a thread keeps of the
// distribution (`Left`) is the same in all threads of a team.
//
// No kernel may start beside this one before all its blocks run, for it would take their place: it lets none start.
#include "launch.cuh"
#include "sample_sort.cuh"
#include "sample_steps.cuh"

namespace exl {

constexpr double LEAST_TEMPERATURE = 1e-2;  // of the dynamic one
constexpr double DEEPEST = 40.0;            // nats below the best, over which bins are spread

// What Mirostat left, in which the drawn token's surprise is taken.
struct Surprise {
    bool taken;
    Curve curve;
    double best, mass;
};

template <class Team>
__device__ __noinline__ void take_step(Team &team, Left &left, Surprise &surprise, const ExlDraw &draw, int step, double known) {
    const ExlChain &chain = team.shared.chain;
    switch (step) {
    case EXL_SMOOTHING:
        left.curve.top = left.best();
        left.curve.square = (3.0 - chain.smoothing_curve) / 2.0 * chain.smoothing_factor;
        left.curve.cube = (chain.smoothing_curve - 1.0) / 2.0 * chain.smoothing_factor;
        left.curve.smooth = true;
        break;
    case EXL_TEMPERATURE: {
        double temperature = chain.temperature;
        if (chain.dynatemp_high > 0.0) {
            const Measure found = measure<false>(team, left);
            const double share = found.count > 1.0 ? fmin(fmax(found.entropy() / log(found.count), 0.0), 1.0) : 0.0;
            temperature = chain.dynatemp_low +
                          (chain.dynatemp_high - chain.dynatemp_low) * pow(share, chain.dynatemp_exponent);
            temperature = fmax(temperature, LEAST_TEMPERATURE);
        }
        left.curve.smooth_first = left.curve.smooth;
        left.curve.divisor = temperature;
        break;
    }
    case EXL_TOP_N_SIGMA: {
        const Measure found = measure<true>(team, left);
        const double mean = found.first / found.count;
        const double deviation = sqrt(fmax(found.second / found.count - mean * mean, 0.0));
        keep_above<true>(team, left, -chain.top_n_sigma * deviation);
        break;
    }
    case EXL_TOP_K: top_k(team, left, chain.top_k); break;
    case EXL_TOP_P: top_p(team, left, chain.top_p, known); break;
    case EXL_TOP_A: keep_above<false>(team, left, chain.top_a / measure<false>(team, left).mass); break;
    case EXL_MIN_P: keep_above<false>(team, left, chain.min_p); break;
    case EXL_TFS: tail_free(team, left, chain.tfs); break;
    case EXL_TYPICAL: typical(team, left, chain.typical); break;
    case EXL_EPSILON: keep_above<false>(team, left, chain.epsilon * measure<false>(team, left).mass); break;
    case EXL_ETA: {
        const Measure found = measure<false>(team, left);
        keep_above<false>(team, left, fmin(chain.eta, sqrt(chain.eta) * weight_at(-found.entropy())) * found.mass);
        break;
    }
    case EXL_MIROSTAT:
        keep_above<false>(team, left, exp2(-draw.mu) * measure<false>(team, left).mass);
        surprise = {true, left.curve, left.best(), measure<false>(team, left).mass};
        break;
    case EXL_XTC:
        if (uniform_bits(draw.seed, draw.index, draw.attempt, 1) * 0x1p-64 < chain.xtc_probability)
            exclude_top(team, left, chain.xtc_threshold);
        break;
    }
}

__device__ __forceinline__ bool needs_order(int step) {
    return step == EXL_TOP_K || step == EXL_TOP_P || step == EXL_TFS || step == EXL_TYPICAL;
}

// Draws from a list in the order of ids. Every thread of the team gets the id.
template <class Team> __device__ __noinline__ int draw_id(Team &team, const Left &left, Wide uniform) {
    const double best = left.best();
    double target = 0;
    Wide found_id[2] = {0, 0};  // ~ the first above the target, and the last that weighs anything
    walk<1>(
        team, left, [&](int, Wide found, double(&v)[1]) { v[0] = weight_at(left.logit(found) - best); },
        [&](double(&all)[1]) { target = uniform * 0x1p-64 * all[0]; },
        [&](int, Wide found, bool is_left, double(&before)[1]) {
            const double weight = is_left ? weight_at(left.logit(found) - best) : 0.0;
            if (weight <= 0.0) return;
            const int id = id_of(found);
            if (before[0] + weight > target) found_id[0] = max(found_id[0], (Wide)(uint32_t)~id);
            found_id[1] = max(found_id[1], (Wide)id);
        });
    team.template reduce<Most>(found_id);
    return found_id[0] ? ~(int)found_id[0] : (int)found_id[1];
}

// Reports a token, and moves Mirostat's mu by its surprise. One thread.
__device__ void finish(const ExlChainJob &job, const ExlDraw &draw, const ExlChain &chain, const Surprise &surprise,
                       int id) {
    if (surprise.taken) {
        const double logit = produced(static_cast<const float *>(job.sample.logits) + id);
        const double bits = (log(surprise.mass) - (surprise.curve.at(logit) - surprise.best)) * M_LOG2E;
        job.sample.draw->mu = draw.mu - chain.mirostat_eta * (bits - chain.mirostat_tau);
    }
    report(job.sample, draw, id, EXL_DRAWN);
}

// How far below the best, over bins.
struct Bins {
    double best, scale;

    __device__ __forceinline__ int of(const Left &left, Wide found) const {
        return (int)fmin((best - left.logit(found)) * scale, BINS - 1.0);
    }
};

// The last bin that top-k or top-p can reach, and how many tokens lie in the bins up to it. Weights are integers, cut
// and not rounded: bins that reach the target by them surely do.
__device__ __noinline__ int last_bin(GridTeam &team, const Left &left, const Bins &bins, int step, double known, uint32_t &listed) {
    ChainShared &shared = team.shared;
    ChainScratch &scratch = team.scratch;
    const int t = threadIdx.x;
    for (int bin = t; bin < BINS; bin += CHAIN_THREADS)
        shared.bins.low[bin] = shared.bins.high[bin] = shared.bins.count[bin] = 0;
    __syncthreads();
    for (int i = team.first() + t; i < team.last(); i += CHAIN_THREADS) {
        const Wide found = team.place_at(i);
        if (!left.holds(found)) continue;
        const int bin = bins.of(left, found);
        add_mass(&shared.bins.low[bin], &shared.bins.high[bin], (Wide)(weight_at(left.logit(found) - bins.best) * ONE), 0);
        atomicAdd(&shared.bins.count[bin], 1);
    }
    __syncthreads();
    for (int bin = t; bin < BINS; bin += CHAIN_THREADS)
        if (shared.bins.count[bin]) {
            atomicAdd(&scratch.mass[bin], (Wide)shared.bins.high[bin] << 32 | shared.bins.low[bin]);
            atomicAdd(&scratch.count[bin], shared.bins.count[bin]);
        }
    if (t == 0) shared.bins.last = BINS - 1, shared.bins.listed = ~0u;
    team.wait();
    Sum mine[2], all;
#pragma unroll
    for (int i = 0; i < 2; i++) mine[i] = {produced(&scratch.mass[2 * t + i]), produced(&scratch.count[2 * t + i])};
    Sum before = block_sum_below(mine[0] + mine[1], all);
    const double target = team.shared.chain.top_p * known * ONE + 1.0;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const Sum after = before + mine[i];
        const bool was = step == EXL_TOP_K ? before.count >= shared.chain.top_k : (double)before.mass >= target;
        const bool is = step == EXL_TOP_K ? after.count >= shared.chain.top_k : (double)after.mass >= target;
        if (is && !was) shared.bins.last = 2 * t + i, shared.bins.listed = after.count;
        before = after;
    }
    __syncthreads();
    listed = shared.bins.listed;
    const int last = shared.bins.last;
    __syncthreads();
    return last;
}

// Puts the tokens of the bins up to `last` into the list that one block takes.
__device__ __noinline__ void gather(GridTeam &team, const Left &left, const Bins &bins, int last) {
    const int lane = threadIdx.x % LANES;
    for (int from = team.first(); from < team.last(); from += CHAIN_THREADS) {
        const int i = from + threadIdx.x;
        const Wide found = i < team.last() ? team.place_at(i) : 0;
        const bool wanted = i < team.last() && left.holds(found) && (last == BINS - 1 || bins.of(left, found) <= last);
        const uint32_t with = __ballot_sync(~0u, wanted);
        uint32_t at = 0;
        if (with && lane == 0) at = atomicAdd(&team.scratch.listed, __popc(with));
        at = __shfl_sync(~0u, at, 0) + __popc(with & ((1u << lane) - 1));
        if (wanted && at < LIST) team.scratch.list[at] = found;
    }
    team.wait();
}

// Whether one block can go on, which then has its list; else the vocabulary is sorted. `known`: see `top_p`.
__device__ __noinline__ bool narrow(GridTeam &team, const Left &left, Wide least, int step, double &known) {
    const Measure found = measure<false>(team, left);
    const double best = left.best();
    const Bins bins{best, BINS / fmin(fmax(best - left.logit(least), 1e-9), DEEPEST)};
    uint32_t listed = (uint32_t)found.count;
    int last = BINS - 1;
    const bool by_bins = listed > LIST && (step == EXL_TOP_P || step == EXL_TOP_K && team.shared.chain.top_k <= LIST);
    if (by_bins) {
        known = found.mass;
        last = last_bin(team, left, bins, step, known, listed);
    }
    if (listed <= LIST) gather(team, left, bins, last);
    else known = 0.0;
    return listed <= LIST;
}

// For the next step. All blocks have waited for each other since they read the bins.
__device__ void clear_bins(ChainScratch &scratch) {
    if (blockIdx.x) return;
    for (int bin = threadIdx.x; bin < BINS; bin += CHAIN_THREADS) scratch.mass[bin] = scratch.count[bin] = 0;
}

// One block takes the steps from `at` on, and draws.
__device__ __noinline__ void finish_in_block(const ExlChainJob &job, GridTeam &grid, Left &left, Surprise &surprise,
                                const ExlDraw &draw, int at, double known) {
    ChainShared &shared = grid.shared;
    const int count = produced(&grid.scratch.listed);
    __syncthreads();
    if (threadIdx.x == 0) grid.scratch.listed = 0;
    for (int i = threadIdx.x; i < count; i += CHAIN_THREADS) shared.block.places[i] = produced(&grid.scratch.list[i]);
    __syncthreads();
    sort_list(shared.block.places, count, [](Wide found) { return found; });
    BlockTeam team{shared, count};
    for (; at < shared.chain.step_count; at++, known = 0.0)
        take_step(team, left, surprise, draw, shared.chain.steps[at], known);
    sort_list(shared.block.places, count, [](Wide found) { return found << 32; });  // larger ~id, lower id
    const Wide uniform = uniform_bits(draw.seed, draw.index, draw.attempt, 0);
    const int id = draw_id(team, left, uniform);
    if (threadIdx.x == 0) finish(job, draw, shared.chain, surprise, id);
}

__global__ void __launch_bounds__(CHAIN_THREADS) sample_chain(const __grid_constant__ ExlChainJob job) {
    __shared__ ChainShared shared;
    const int t = threadIdx.x;
    for (int i = t; i < sizeof(ExlChain) / 8; i += CHAIN_THREADS)
        reinterpret_cast<Wide *>(&shared.chain)[i] = produced(reinterpret_cast<const Wide *>(job.chain) + i);
    wait_for_previous();
    __syncthreads();
    const ExlDraw draw = draw_of(job.sample);
    GridTeam grid{shared, *static_cast<ChainScratch *>(job.scratch), static_cast<const float *>(job.sample.logits),
                  job.sample.vocab, job.blocks, nullptr, 0};
    Wide ends[2] = {0, 0};
    for (int i = grid.first() + t; i < grid.last(); i += CHAIN_THREADS) {
        const float logit = produced(grid.logits + i);
        ends[0] = max(ends[0], logit < INFINITY ? place(logit, i) : BAD);  // and NaN
        if (logit > -INFINITY) ends[1] = max(ends[1], ~place(logit, i));
    }
    grid.reduce<Most>(ends);
    if (not_numbers(ends[0])) {
        if (blockIdx.x == 0 && t == 0) report_none(job.sample, draw, ends[0]);
        return;
    }
    const Wide least = ~ends[1];
    Left left{{false, false, 0.0, 0.0, 0.0, 1.0}, least, ends[0], 1, 0, ~Wide(0),
              static_cast<const uint32_t *>(job.sheltered)};
    Surprise surprise{};
    double known = 0.0;
    for (int at = 0; at < shared.chain.step_count; at++) {
        const int step = shared.chain.steps[at];
        if (needs_order(step) && !grid.sorted) {
            if (narrow(grid, left, least, step, known)) {
                clear_bins(grid.scratch);
                if (blockIdx.x == 0) finish_in_block(job, grid, left, surprise, draw, at, known);
                return;
            }
            sort_vocabulary(grid);
            clear_bins(grid.scratch);
        }
        take_step(grid, left, surprise, draw, step, 0.0);
    }
    grid.sorted = nullptr;
    const int id = draw_id(grid, left, uniform_bits(draw.seed, draw.index, draw.attempt, 0));
    if (blockIdx.x == 0 && t == 0) finish(job, draw, shared.chain, surprise, id);
}

}  // namespace exl

extern "C" int exl_chain(const ExlChainJob *job, int dependent, void *stream) {
    if (!job) return EXL_BAD_ARGUMENT;
    const ExlSample &sample = job->sample;
    if (!sample.logits || !sample.draw || !sample.token || !sample.position || !sample.ring || !job->chain ||
        !job->sheltered || !job->scratch || sample.vocab < 1 || sample.vocab > EXL_MAX_VOCAB || sample.ring_slots < 1 ||
        sample.ring_slots & (sample.ring_slots - 1) || job->blocks < 1 || job->blocks > EXL_CHAIN_BLOCKS)
        return EXL_BAD_ARGUMENT;
    return exl::launch(exl::sample_chain, job->blocks, exl::CHAIN_THREADS, 0, dependent,
                       static_cast<cudaStream_t>(stream), *job);
}
