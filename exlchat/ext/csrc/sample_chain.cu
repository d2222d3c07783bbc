// The sampler for every chain of steps, as one kernel whose blocks wait for each other.
//
// Steps that need no order (temperatures, bounds of probability) are taken by the whole grid over the vocabulary as it
// lies there. At the first that needs one, few tokens that are left, or a beginning of the order that surely holds what
// top-k or top-p will leave, go to one block, which sorts them and takes all steps that follow (`sample_few.cuh`).
// Where too many are left the grid sorts the vocabulary, and goes on. Everything that a thread keeps of the
// distribution (`Left`) is the same in all threads of a team.
//
// No kernel may start beside this one before all its blocks run, for it would take their place: it lets none start.
#include "launch.cuh"
#include "sample_few.cuh"

namespace exl {

constexpr double DEEPEST = 40.0;  // nats below the best, over which bins are spread

// What the grid knows of its distribution, and has not to sum again.
struct Known {
    Measure found;
    bool mass, spread;  // whether the sums of weights, and the others, still hold

    __device__ __forceinline__ const Measure &of(GridTeam &team, const Left &left, bool weighs) {
        if (!(weighs ? mass : spread)) found = measure(team, left), mass = spread = true;
        return found;
    }
};

__device__ __forceinline__ void heat(GridTeam &team, Left &left, Known &known) {
    const ExlChain &chain = team.shared.chain;
    double temperature = chain.temperature;
    if (chain.dynatemp_high > 0.0) {
        const Measure &found = known.of(team, left, true);
        temperature = dynamic_temperature(chain, found.entropy(), found.count);
    }
    left.curve.heat(temperature);
    known.mass = false;
    known.found.first /= temperature, known.found.second /= temperature * temperature;
}

__device__ __noinline__ void take_step(GridTeam &team, Left &left, Known &known, int step) {
    const ExlChain &chain = team.shared.chain;
    const ExlDraw &draw = team.shared.draw;
    bool removes = true;
    switch (step) {
    case EXL_SMOOTHING: left.curve.smooth_by(chain, left.best()); break;
    case EXL_TEMPERATURE:
        heat(team, left, known);
        removes = false;
        break;
    case EXL_TOP_N_SIGMA:
        keep_above<true>(team, left, -chain.top_n_sigma * known.of(team, left, false).deviation());
        break;
    case EXL_TOP_K: top_k(team, left, chain.top_k); break;
    case EXL_TOP_P: top_p(team, left, chain.top_p); break;
    case EXL_TOP_A: keep_above<false>(team, left, chain.top_a / known.of(team, left, true).mass); break;
    case EXL_MIN_P: keep_above<false>(team, left, chain.min_p); break;
    case EXL_TFS: tail_free(team, left, chain.tfs); break;
    case EXL_TYPICAL: typical(team, left, chain.typical); break;
    case EXL_EPSILON: keep_above<false>(team, left, chain.epsilon * known.of(team, left, true).mass); break;
    case EXL_ETA: {
        const Measure &found = known.of(team, left, true);
        keep_above<false>(team, left, eta_bound(chain, found.entropy()) * found.mass);
        break;
    }
    case EXL_MIROSTAT: {
        keep_above<false>(team, left, exp2(-draw.mu) * known.of(team, left, true).mass);
        known.mass = known.spread = false;
        const double mass = known.of(team, left, true).mass;
        if (threadIdx.x == 0) team.shared.surprise = {true, left.curve, left.best(), mass};
        removes = false;
        break;
    }
    case EXL_XTC:
        removes = xtc_happens(chain, draw);
        if (removes) exclude_top(team, left, chain.xtc_threshold);
        break;
    }
    if (removes) known.mass = known.spread = false;
}

__device__ __forceinline__ bool needs_order(int step) {
    return step == EXL_TOP_K || step == EXL_TOP_P || step == EXL_TFS || step == EXL_TYPICAL;
}

// Reports a token, and moves Mirostat's mu by its surprise. One thread, the first of a block.
__device__ __noinline__ void finish(const ExlChainJob &job, const ChainShared &shared, int id) {
    const ExlDraw &draw = shared.draw;
    const Surprise &surprise = shared.surprise;
    if (surprise.taken) {
        const double logit = produced(static_cast<const float *>(job.sample.logits) + id);
        const double bits = (log(surprise.mass) - (surprise.curve.at(logit) - surprise.best)) * M_LOG2E;
        job.sample.draw->mu = draw.mu - shared.chain.mirostat_eta * (bits - shared.chain.mirostat_tau);
    }
    report(job.sample, draw, id, EXL_DRAWN);
}

// Of what the blocks bring, the block in which `uniform` falls, and what it is above the lower blocks. All blocks find
// the same, for each sums up all. The first warp.
__device__ __forceinline__ void find_block(GridTeam &team, const double *parts, double uniform) {
    constexpr int EACH_BLOCKS = EXL_CHAIN_BLOCKS / LANES;
    const int lane = threadIdx.x;
    double brought[EACH_BLOCKS], sum = 0.0;
#pragma unroll
    for (int i = 0; i < EACH_BLOCKS; i++) {
        const int block = lane * EACH_BLOCKS + i;
        brought[i] = block < team.blocks ? produced(parts + block * VALUES) : 0.0;
        sum += brought[i];
    }
    double through = sum;
#pragma unroll
    for (int d = 1; d < LANES; d *= 2) {
        const double other = __shfl_up_sync(~0u, through, d);
        if (lane >= d) through += other;
    }
    const double target = uniform * __shfl_sync(~0u, through, LANES - 1);
    double below = __shfl_up_sync(~0u, through, 1), above = 0.0;
    if (lane == 0) below = 0.0;
    int owner = -1;
#pragma unroll
    for (int i = 0; i < EACH_BLOCKS; i++) {
        if (brought[i] > 0.0 && below <= target) owner = lane * EACH_BLOCKS + i, above = target - below;
        below += brought[i];
    }
    const uint32_t with = __ballot_sync(~0u, owner >= 0);
    if (with == 0 || lane != 31 - __clz(with)) return;
    team.shared.all[0] = owner;
    reinterpret_cast<double *>(team.shared.all)[1] = above;
}

// Draws in the order of ids, and reports: the block that has the token.
__device__ __noinline__ void draw_by_grid(const ExlChainJob &job, GridTeam &team, const Left &given, double uniform) {
    const Left left = given;
    const double best = left.best();
    const auto weight_of_id = [&](int i) {
        const Wide found = i < team.last() ? team.place_at(i) : 0;
        return i < team.last() && left.holds(found) ? weight_at(left.logit(found) - best) : 0.0;
    };
    double v[1] = {0.0};
    for (int i = team.first() + threadIdx.x; i < team.last(); i += CHAIN_THREADS) v[0] += weight_of_id(i);
    const double *parts = team.bring<Add>(v);
    if (threadIdx.x < LANES) find_block(team, parts, uniform);
    __syncthreads();
    if ((int)team.shared.all[0] != blockIdx.x) return;
    const double target = reinterpret_cast<const double *>(team.shared.all)[1];
    double below = 0.0;
    int first = 0, last = 0;  // ~ the first above the target, and the last that weighs anything
#pragma unroll 1
    for (int from = team.first(); from < team.last(); from += CHAIN_THREADS) {
        const int i = from + threadIdx.x;
        double before[1] = {weight_of_id(i)}, of_round[1];
        const double weight = before[0];
        block_below(team.shared, before, of_round);
        if (weight > 0.0 && below + before[0] + weight > target) first = max(first, EXL_MAX_VOCAB - i);
        if (weight > 0.0) last = max(last, i);
        below += of_round[0];
    }
    int ends[2] = {first, last};
    warp_all<Most>(ends);
    __syncthreads();
    if (threadIdx.x % LANES == 0)
        team.shared.warps[threadIdx.x / LANES][0] = ends[0], team.shared.warps[threadIdx.x / LANES][1] = ends[1];
    __syncthreads();
    if (threadIdx.x) return;
    for (int warp = 0; warp < CHAIN_WARPS; warp++)
        first = max(first, (int)team.shared.warps[warp][0]), last = max(last, (int)team.shared.warps[warp][1]);
    finish(job, team.shared, first ? EXL_MAX_VOCAB - first : last);
}

// How far below the best, over bins.
struct Bins {
    double best, scale;

    __device__ __forceinline__ int of(const Left &left, Wide found) const {
        return (int)fmin((best - left.logit(found)) * scale, BINS - 1.0);
    }
};

// The last bin that is wanted, and how many tokens lie in the bins up to it: those that top-k or top-p can reach, or all.
// Weights are integers, cut and not rounded: bins that reach the target by them surely do. `mass`: of all, for top-p.
__device__ __noinline__ int last_bin(GridTeam &team, const Left &given, const Bins &bins, int step, double &mass,
                                     uint32_t &listed) {
    ChainShared &shared = team.shared;
    ChainScratch &scratch = team.scratch;
    const Left left = given;
    const int t = threadIdx.x;
    const bool weighs = step == EXL_TOP_P;
    for (int bin = t; bin < BINS; bin += CHAIN_THREADS)
        shared.bins.low[bin] = shared.bins.high[bin] = shared.bins.count[bin] = 0;
    if (t == 0) shared.bins.last = BINS - 1, shared.bins.listed = ~0u;
    __syncthreads();
    double v[1] = {0.0};
#pragma unroll 1
    for (int i = team.first() + t; i < team.last(); i += CHAIN_THREADS) {
        const Wide found = team.place_at(i);
        if (!left.holds(found)) continue;
        const int bin = bins.of(left, found);
        atomicAdd(&shared.bins.count[bin], 1);
        if (!weighs) continue;
        const double weight = weight_at(left.logit(found) - bins.best);
        v[0] += weight;
        add_mass(&shared.bins.low[bin], &shared.bins.high[bin], (Wide)(weight * ONE), 0);
    }
    __syncthreads();
    for (int bin = t; bin < BINS; bin += CHAIN_THREADS)
        if (shared.bins.count[bin]) {
            atomicAdd(&scratch.count[bin], shared.bins.count[bin]);
            if (weighs) atomicAdd(&scratch.mass[bin], (Wide)shared.bins.high[bin] << 32 | shared.bins.low[bin]);
        }
    team.reduce<Add>(v);  // and all wait for each other
    mass = v[0];
    Sum mine[2], all;
#pragma unroll
    for (int i = 0; i < 2; i++) mine[i] = {produced(&scratch.mass[2 * t + i]), produced(&scratch.count[2 * t + i])};
    Sum before = block_sum_below(mine[0] + mine[1], all);
    const double target = shared.chain.top_p * mass * ONE + 1.0;
    const uint32_t wanted = step == EXL_TOP_K ? min((uint32_t)shared.chain.top_k, all.count) : all.count;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const Sum after = before + mine[i];
        const bool was = weighs ? (double)before.mass >= target : before.count >= wanted;
        const bool is = weighs ? (double)after.mass >= target : after.count >= wanted;
        if (is && !was) shared.bins.last = 2 * t + i, shared.bins.listed = after.count;
        before = after;
    }
    __syncthreads();
    listed = min(shared.bins.listed, all.count);
    const int last = shared.bins.last;
    __syncthreads();
    return last;
}

// Puts the tokens of the bins up to `last` into the list that one block takes. Whether this block is the last to do so.
__device__ __noinline__ bool gather(GridTeam &team, const Left &given, const Bins &bins, int last) {
    const Left left = given;
    const int lane = threadIdx.x % LANES;
#pragma unroll 1
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
    __syncthreads();
    if (threadIdx.x == 0) team.shared.goes_on = arrive(&team.scratch.ticket, team.blocks);
    __syncthreads();
    return team.shared.goes_on;
}

// For the next step.
__device__ __forceinline__ void clear_bins(ChainScratch &scratch) {
    for (int bin = threadIdx.x; bin < BINS; bin += CHAIN_THREADS) scratch.mass[bin] = scratch.count[bin] = 0;
}

// The last block to gather takes the steps from `at` on, and draws. All others have read what it clears. `known`: see
// `Few::top_p`.
__device__ __noinline__ void finish_in_block(const ExlChainJob &job, GridTeam &grid, const Left &left, int at,
                                             double known) {
    ChainShared &shared = grid.shared;
    const int t = threadIdx.x;
    int count = produced(&grid.scratch.listed);
#pragma unroll 1
    for (int i = t; i < count; i += CHAIN_THREADS) shared.few.places[i] = produced(&grid.scratch.list[i]);
    clear_bins(grid.scratch);
    __syncthreads();
    if (t == 0) grid.scratch.listed = 0;
    sort_places(shared, count);
    if (shared.chain.steps[at] == EXL_TOP_K) count = min(count, shared.chain.top_k), at++;
    if (t >= FEW) return;
#pragma unroll 1
    for (int i = t; i < count; i += FEW) {
        const Wide found = shared.few.places[i];
        shared.few.sums[i] = left.logit(found);
        shared.few.ids[i] = id_of(found);
    }
    __syncthreads();
    FewLeft few{left.curve, count};
    int id = -1;
    if (count > FEW) id = take_few<LIST / FEW>(shared, left.sheltered, few, at, known);
    if (id < 0) id = take_few<1>(shared, left.sheltered, few, at, known);
    if (t == 0) finish(job, shared, id);
}

__global__ void __launch_bounds__(CHAIN_THREADS) sample_chain(const __grid_constant__ ExlChainJob job) {
    __shared__ ChainShared shared;
    const int t = threadIdx.x;
    for (int i = t; i < sizeof(ExlChain) / 8; i += CHAIN_THREADS)
        reinterpret_cast<Wide *>(&shared.chain)[i] = produced(reinterpret_cast<const Wide *>(job.chain) + i);
    wait_for_previous();
    if (t == 0) shared.draw = draw_of(job.sample), shared.surprise.taken = false;
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
        if (blockIdx.x == 0 && t == 0) report_none(job.sample, shared.draw, ends[0]);
        return;
    }
    Left left{{false, false, 0.0, 0.0, 0.0, 1.0}, ~ends[1], ends[0], 1, 0, ~Wide(0),
              static_cast<const uint32_t *>(job.sheltered)};
    Known known{};
    for (int at = 0; at < shared.chain.step_count; at++) {
        const int step = shared.chain.steps[at];
        if (needs_order(step) && !grid.sorted) {
            const double best = left.best(), range = best - left.logit(left.low);
            const Bins bins{best, BINS / fmin(fmax(range, 1e-9), DEEPEST)};
            double mass;
            uint32_t listed;
            const int last = last_bin(grid, left, bins, step, mass, listed);
            if (listed <= LIST) {
                if (gather(grid, left, bins, last)) finish_in_block(job, grid, left, at, mass);
                return;
            }
            sort_vocabulary(grid);
            if (blockIdx.x == 0) clear_bins(grid.scratch);
        }
        take_step(grid, left, known, step);
    }
    grid.sorted = nullptr;
    draw_by_grid(job, grid, left, uniform_of(shared.draw, 0));
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
