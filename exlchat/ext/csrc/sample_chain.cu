// The sampler for every chain of steps, as one kernel whose blocks wait for each other.
//
// Steps that need no order (temperatures, bounds of probability) are taken by the whole grid over the vocabulary as it
// lies there. At the first that needs one, few tokens that are left, or a beginning of the order that surely holds what
// top-k or top-p will leave, go to one block, which sorts them and takes all steps that follow (`sample_few.cuh`).
// Where too many are left the grid sorts the vocabulary, and goes on.
//
// No kernel may start beside this one before all its blocks run, for it would take their place: it lets none start.
#include "launch.cuh"
#include "sample_few.cuh"

namespace exl {

constexpr double DEEPEST = 40.0;  // nats below the best, over which bins are spread

// Sums of what is left: of weights, or the others; taken again where they do not hold.
__device__ __forceinline__ const Measure &known_of(GridTeam team, bool weighs) {
    const Known &known = team.shared.known;
    if (!(weighs ? known.mass : known.spread)) measure(team);
    return known.found;
}

__device__ __forceinline__ void heat(GridTeam team) {
    const ExlChain &chain = team.shared.chain;
    const bool dynamic = chain.dynatemp_high > 0.0;
    if (dynamic) known_of(team, true);
    team.change([&] {
        Known &known = team.shared.known;
        const double temperature =
            dynamic ? dynamic_temperature(chain, known.found.entropy(), known.found.count) : chain.temperature;
        team.shared.left.curve.heat(temperature);
        known.heat(temperature);
    });
}

__device__ __forceinline__ void steer(GridTeam team) {
    keep_above<false>(team, exp2(-team.shared.draw.mu) * known_of(team, true).mass);
    measure(team);
    team.change([&] {
        const Left &left = team.shared.left;
        team.shared.surprise = {true, left.curve, left.best(), team.shared.known.found.mass};
    });
}

__device__ __noinline__ void take_step(GridTeam team, int step) {
    const ExlChain &chain = team.shared.chain;
    switch (step) {
    case EXL_SMOOTHING:
        team.change([&] {
            team.shared.left.curve.smooth_by(chain, team.shared.left.best());
            team.shared.known.forget();
        });
        return;
    case EXL_TEMPERATURE: heat(team); return;
    case EXL_MIROSTAT: steer(team); return;
    case EXL_TOP_N_SIGMA: keep_above<true>(team, -chain.top_n_sigma * known_of(team, false).deviation()); break;
    case EXL_TOP_K: top_k(team, chain.top_k); break;
    case EXL_TOP_P: top_p(team, chain.top_p); break;
    case EXL_TOP_A: keep_above<false>(team, chain.top_a / known_of(team, true).mass); break;
    case EXL_MIN_P: keep_above<false>(team, chain.min_p); break;
    case EXL_TFS: tail_free(team, chain.tfs); break;
    case EXL_TYPICAL: typical(team, chain.typical); break;
    case EXL_EPSILON: keep_above<false>(team, chain.epsilon * known_of(team, true).mass); break;
    case EXL_ETA: {
        const Measure &found = known_of(team, true);
        keep_above<false>(team, eta_bound(chain, found.entropy()) * found.mass);
        break;
    }
    case EXL_XTC:
        if (!xtc_happens(chain, team.shared.draw)) return;
        exclude_top(team, chain.xtc_threshold);
        break;
    }
    team.change([&] { team.shared.known.forget(); });
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
__device__ __forceinline__ void find_block(GridTeam team, const double *parts, double uniform) {
    constexpr int EACH_BLOCKS = EXL_CHAIN_BLOCKS / LANES;
    const int lane = threadIdx.x;
    double brought[EACH_BLOCKS], sum = 0.0;
#pragma unroll
    for (int i = 0; i < EACH_BLOCKS; i++) {
        const int block = lane * EACH_BLOCKS + i;
        brought[i] = block < team.blocks() ? produced(parts + block * VALUES) : 0.0;
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
__device__ __noinline__ void draw_by_grid(const ExlChainJob &job, GridTeam team, double uniform) {
    const Left left = team.shared.left;
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
    if ((int)team.shared.all[0] != team.block()) return;
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
struct Reach {
    int last;
    uint32_t listed;
    double mass;  // of all, for top-p
};
// Weights are integers, cut and not rounded: bins that reach the target by them surely do.
__device__ __noinline__ Reach last_bin(GridTeam team, Bins bins, int step) {
    ChainShared &shared = team.shared;
    ChainScratch &scratch = team.scratch();
    const Left left = shared.left;
    const int t = threadIdx.x;
    const bool weighs = step == EXL_TOP_P;
    for (int bin = t; bin < BINS; bin += CHAIN_THREADS)
        shared.bins.low[bin] = shared.bins.high[bin] = shared.bins.count[bin] = 0;
    if (t == 0) shared.bins.last = BINS - 1, shared.bins.listed = ~0u;
    __syncthreads();
    double v[1] = {0.0};
    team.each([&](int, Wide found) {
        if (!left.holds(found)) return;
        const int bin = bins.of(left, found);
        atomicAdd(&shared.bins.count[bin], 1);
        if (!weighs) return;
        const double weight = weight_at(left.logit(found) - bins.best);
        v[0] += weight;
        add_mass(&shared.bins.low[bin], &shared.bins.high[bin], (Wide)(weight * ONE), 0);
    });
    __syncthreads();
    for (int bin = t; bin < BINS; bin += CHAIN_THREADS)
        if (shared.bins.count[bin]) {
            atomicAdd(&scratch.count[bin], shared.bins.count[bin]);
            if (weighs) atomicAdd(&scratch.mass[bin], (Wide)shared.bins.high[bin] << 32 | shared.bins.low[bin]);
        }
    team.reduce<Add>(v);  // and all wait for each other
    Sum mine[2], all;
#pragma unroll
    for (int i = 0; i < 2; i++) mine[i] = {produced(&scratch.mass[2 * t + i]), produced(&scratch.count[2 * t + i])};
    Sum before = block_sum_below(mine[0] + mine[1], all);
    const double target = shared.chain.top_p * v[0] * ONE + 1.0;
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
    const Reach reach{shared.bins.last, min(shared.bins.listed, all.count), v[0]};
    __syncthreads();
    return reach;
}

// Puts the tokens of the bins up to `last` into the list that one block takes. Whether this block is the last to do so.
__device__ __noinline__ bool gather(GridTeam team, Bins bins, int last) {
    const Left left = team.shared.left;
    ChainScratch &scratch = team.scratch();
    const int lane = threadIdx.x % LANES;
#pragma unroll 1
    for (int from = team.first(); from < team.last(); from += CHAIN_THREADS) {
        const int i = from + threadIdx.x;
        const Wide found = i < team.last() ? team.place_at(i) : 0;
        const bool wanted = i < team.last() && left.holds(found) && (last == BINS - 1 || bins.of(left, found) <= last);
        const uint32_t with = __ballot_sync(~0u, wanted);
        uint32_t at = 0;
        if (with && lane == 0) at = atomicAdd(&scratch.listed, __popc(with));
        at = __shfl_sync(~0u, at, 0) + __popc(with & ((1u << lane) - 1));
        if (wanted && at < LIST) scratch.list[at] = found;
    }
    __syncthreads();
    if (threadIdx.x == 0) team.shared.goes_on = arrive(&scratch.ticket, team.blocks());
    __syncthreads();
    return team.shared.goes_on;
}

// For the next step.
__device__ __forceinline__ void clear_bins(ChainScratch &scratch) {
    for (int bin = threadIdx.x; bin < BINS; bin += CHAIN_THREADS) scratch.mass[bin] = scratch.count[bin] = 0;
}

// The last block to gather takes the steps from `at` on, and draws. All others have read what it clears. `known`: see
// `Few::top_p`.
__device__ __noinline__ void finish_in_block(const ExlChainJob &job, GridTeam team, int at, double known) {
    ChainShared &shared = team.shared;
    ChainScratch &scratch = team.scratch();
    const Left &left = shared.left;
    const int t = threadIdx.x;
    int count = produced(&scratch.listed);
    Wide found = produced(&scratch.list[t]);  // there or not: both loads are under way at once
#pragma unroll 1
    for (int i = t; i < count; i += CHAIN_THREADS) {
        if (i > t) found = produced(&scratch.list[i]);
        shared.few.places[i] = found;
    }
    clear_bins(scratch);
    __syncthreads();
    if (t == 0) scratch.listed = 0;
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

// Every block looks at what all pieces say of themselves, so none waits for another here.
__device__ __forceinline__ Ends ends_of_all(GridTeam team, int vocab, const Ends *pieces) {
    const int count = (vocab + EXL_ADJUST_IDS - 1) / EXL_ADJUST_IDS, lane = threadIdx.x % LANES;
    Ends all{0, 0};
    for (int i = threadIdx.x; i < count; i += CHAIN_THREADS) {
        const uint4 found = produced(reinterpret_cast<const uint4 *>(pieces + i));
        all.best = max(all.best, (Wide)found.y << 32 | found.x);
        all.least = max(all.least, (Wide)found.w << 32 | found.z);
    }
    all = warp_max(all);
    if (lane == 0) {
        Wide *warp = team.shared.warps[threadIdx.x / LANES];
        warp[0] = all.best, warp[1] = all.least;
    }
    __syncthreads();  // and of the chain and the draw, which some threads brought
    const Wide *warp = team.shared.warps[lane % CHAIN_WARPS];
    all = warp_max(Ends{warp[0], warp[1]});
    __syncthreads();
    return all;
}

// What a block's threads share. One thread; the others see it behind the next wait.
__device__ __forceinline__ void begin(ChainShared &shared, const ExlChainJob &job, int block) {
    const int vocab = job.sample.vocab, stretch = (vocab + job.blocks - 1) / job.blocks;
    const int first = min(block * stretch, vocab);
    shared.draw = draw_of(job.sample);
    shared.surprise.taken = false;
    shared.known.forget();
    shared.grid = {static_cast<ChainScratch *>(job.scratch), static_cast<const float *>(job.sample.logits), nullptr,
                   vocab, job.blocks, block, first, min(first + stretch, vocab), 0};
}

__device__ __forceinline__ void take_chain(const ExlChainJob &job, int block) {
    __shared__ ChainShared shared;
    const int t = threadIdx.x;
    for (int i = t; i < sizeof(ExlChain) / 8; i += CHAIN_THREADS)
        reinterpret_cast<Wide *>(&shared.chain)[i] = produced(reinterpret_cast<const Wide *>(job.chain) + i);
    wait_for_previous();
    const GridTeam team{shared};
    if (t == 0) begin(shared, job, block);
    const Ends ends = ends_of_all(team, job.sample.vocab, static_cast<const Ends *>(job.ends));
    if (not_numbers(ends.best)) {
        if (block == 0 && t == 0) report_none(job.sample, shared.draw, ends.best);
        return;
    }
    team.change([&] {
        shared.left = {{false, false, 0.0, 0.0, 0.0, 1.0}, ~ends.least, ends.best, 1, 0, ~Wide(0),
                       static_cast<const uint32_t *>(job.sheltered)};
    });
    for (int at = 0; at < shared.chain.step_count; at++) {
        const int step = shared.chain.steps[at];
        if (needs_order(step) && !shared.grid.sorted) {
            const Left &left = shared.left;
            const double best = left.best(), range = best - left.logit(left.low);
            const Bins bins{best, BINS / fmin(fmax(range, 1e-9), DEEPEST)};
            const Reach reach = last_bin(team, bins, step);
            if (reach.listed <= LIST) {
                if (gather(team, bins, reach.last)) finish_in_block(job, team, at, reach.mass);
                return;
            }
            sort_vocabulary(team);
            if (block == 0) clear_bins(team.scratch());
        }
        take_step(team, step);
    }
    team.change([&] { shared.grid.sorted = nullptr; });
    draw_by_grid(job, team, uniform_of(shared.draw, 0));
}

__global__ void __launch_bounds__(CHAIN_THREADS) sample_chain(const __grid_constant__ ExlChainJob job) {
    take_chain(job, blockIdx.x);
}

// Of many rows each by a block, which waits for no other.
__global__ void __launch_bounds__(CHAIN_THREADS) sample_chain_rows(const __grid_constant__ ExlDrawRows rows) {
    if (static_cast<const int *>(rows.kinds)[blockIdx.x] != EXL_ROW_CHAIN) return;
    ExlChainJob job = static_cast<const ExlRowDraw *>(rows.draws)[blockIdx.x].chain;
    job.blocks = 1;
    take_chain(job, 0);
}

}  // namespace exl

extern "C" int exl_chain(const ExlChainJob *job, int dependent, void *stream) {
    if (!job) return EXL_BAD_ARGUMENT;
    const ExlSample &sample = job->sample;
    if (!sample.logits || !sample.draw || !sample.token || !sample.position || !sample.ring || !job->chain ||
        !job->sheltered || !job->ends || !job->scratch || sample.vocab < 1 || sample.vocab > EXL_MAX_VOCAB || sample.ring_slots < 1 ||
        sample.ring_slots & (sample.ring_slots - 1) || job->blocks < 1 || job->blocks > EXL_CHAIN_BLOCKS)
        return EXL_BAD_ARGUMENT;
    return exl::launch(exl::sample_chain, job->blocks, exl::CHAIN_THREADS, 0, dependent,
                       static_cast<cudaStream_t>(stream), *job);
}

extern "C" int exl_chain_rows(const ExlDrawRows *rows, int dependent, void *stream) {
    if (!rows || !rows->draws || !rows->kinds || rows->count < 1 || rows->count > EXL_WIDE_ROWS)
        return EXL_BAD_ARGUMENT;
    return exl::launch(exl::sample_chain_rows, rows->count, exl::CHAIN_THREADS, 0, dependent,
                       static_cast<cudaStream_t>(stream), *rows);
}
