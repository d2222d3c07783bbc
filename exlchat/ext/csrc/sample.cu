// The sampler: temperature, top-k, top-p, min-p and the draw, exactly, in three dependent kernels.
//
// All three steps that remove tokens keep a beginning of one order (`place`), so one place decides them all:
//   sample_best    the best logit, the least, and whether all are numbers
//   sample_weigh   weights and counts by bins of the distance from the best
//   sample_choose  which bin top-k and top-p end in; the tokens of that bin go to the last block to get here, which
//                  finds the last kept place among them, sums what is kept by chunks of ids, and draws by the inverse
//                  of the cumulative weights in id order
// Everything summed is an integer, so nothing depends on which block or thread comes first.
#include "sample.cuh"

#include "launch.cuh"

namespace exl {

__device__ __forceinline__ float logit_at(const ExlSample &job, int id) {
    return id < job.vocab ? produced(static_cast<const float *>(job.logits) + id) : -INFINITY;
}
__device__ __forceinline__ SampleScratch &scratch_of(const ExlSample &job) {
    return *static_cast<SampleScratch *>(job.scratch);
}
__device__ __forceinline__ bool is_cut(const ExlDraw &draw) { return draw.top_k > 0 || draw.top_p < 1.0; }

// Lets its successor start only when the logits are there, so that both successors may read them before they wait.
__global__ void __launch_bounds__(SAMPLE_THREADS) sample_best(const __grid_constant__ ExlSample job) {
    __shared__ Wide bests[SAMPLE_WARPS];
    __shared__ uint32_t leasts[SAMPLE_WARPS];
    wait_for_previous();
    let_next_start();
    const int t = threadIdx.x, warp = t / LANES;
    Wide best = 0;
    uint32_t least = 0;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int id = blockIdx.x * CHUNK + i * SAMPLE_THREADS + t;
        const float logit = logit_at(job, id);
        if (logit > -INFINITY) least = max(least, ~ordered(logit));
        if (id < job.vocab) best = max(best, logit < INFINITY ? place(logit, id) : BAD);  // false for NaN too
    }
    best = warp_max(best), least = warp_max(least);
    if (t % LANES == 0) bests[warp] = best, leasts[warp] = least;
    __syncthreads();
    if (warp > 0) return;
    best = warp_max(t < SAMPLE_WARPS ? bests[t] : Wide(0)), least = warp_max(t < SAMPLE_WARPS ? leasts[t] : 0u);
    if (t == 0) {
        atomicMax(&scratch_of(job).best, best);
        atomicMax(&scratch_of(job).least, least);
    }
}

// A step without numbers: some logit is NaN or +inf, or all are -inf. 0 is what a block finds that comes after the one
// that has reported this and ended the step.
__device__ __forceinline__ bool not_numbers(Wide best) {
    return best == BAD || best == 0 || logit_of(best) == -INFINITY;
}

__global__ void __launch_bounds__(SAMPLE_THREADS) sample_weigh(const __grid_constant__ ExlSample job) {
    // A block's weights sum to 2^50 at most, so the high words have room for the count, from bit 20 on.
    constexpr uint32_t COUNTED = 1u << 20;
    __shared__ uint32_t low[BINS], high[BINS];
    let_next_start();
    const int t = threadIdx.x;
    SampleScratch &scratch = scratch_of(job);
    const ExlDraw draw = *job.draw;
    if (draw.greedy || !is_cut(draw)) {
        wait_for_previous();
        return;
    }
    float logit[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        logit[i] = logit_at(job, blockIdx.x * CHUNK + i * SAMPLE_THREADS + t);
        low[t + i * SAMPLE_THREADS] = high[t + i * SAMPLE_THREADS] = 0;
    }
    __syncthreads();
    wait_for_previous();
    const Wide best = produced(&scratch.best);
    if (not_numbers(best)) return;
    const Scale scale = scale_of(draw, best, produced(&scratch.least));
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float octaves = scale.octaves(logit[i]);
        const Wide weight = weight_of(octaves);
        if (weight == 0) continue;
        const int bin = scale.bin(octaves);
        add_mass(&low[bin], &high[bin], weight, COUNTED);
    }
    __syncthreads();
#pragma unroll
    for (int bin = t; bin < BINS; bin += SAMPLE_THREADS) {
        if (high[bin] < COUNTED) continue;
        atomicAdd(&scratch.mass[bin], (Wide)(high[bin] % COUNTED) << 32 | low[bin]);
        atomicAdd(&scratch.count[bin], high[bin] / COUNTED);
    }
}

// Where a cut falls: bins before `first` stay whole, those after `last` go; `top_k_bin` is the one that top-k divides.
struct Cut {
    int top_k_bin, first, last;
    uint32_t top_k_rest;          // tokens that top-k leaves of its bin
    Wide least_kept, most_kept;  // bounds of the weight that top-k leaves

    __device__ __forceinline__ bool open(int bin) const { return bin >= first && bin <= last || bin == top_k_bin; }
};

__device__ __forceinline__ Wide top_p_target(double top_p, Wide mass) {
    return min((Wide)ceil(top_p * (double)mass), mass);  // a token stays if what is before it is below this
}

// From the bins' sums to the cut; `below` becomes what each bin has before it, and the sum of all behind them.
__device__ __forceinline__ void find_cut(const SampleScratch &scratch, const ExlDraw &draw, Cut &cut, Wide *below) {
    const int t = threadIdx.x;
    Sum bins[2], all;
#pragma unroll
    for (int i = 0; i < 2; i++) bins[i] = {produced(&scratch.mass[2 * t + i]), produced(&scratch.count[2 * t + i])};
    const Sum first = block_sum_below(bins[0] + bins[1], all);
    const Sum edge[3] = {first, first + bins[0], first + bins[0] + bins[1]};
    below[2 * t] = edge[0].mass, below[2 * t + 1] = edge[1].mass;
    const uint32_t top_k = draw.top_k;
    if (t == 0) {
        below[BINS] = all.mass;
        if (top_k == 0 || top_k >= all.count)
            cut.top_k_bin = BINS, cut.top_k_rest = 0, cut.least_kept = cut.most_kept = all.mass;
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
        if (top_k > 0 && top_k < all.count && edge[i].count < top_k && top_k <= edge[i + 1].count) {
            cut.top_k_bin = 2 * t + i, cut.top_k_rest = top_k - edge[i].count;
            cut.least_kept = edge[i].mass, cut.most_kept = edge[i + 1].mass;
        }
    __syncthreads();
    if (draw.top_p >= 1.0) {
        if (t == 0) cut.first = cut.last = cut.top_k_bin;
    } else {
        // At least 1: the best token alone always stays.
        const Wide least = max(top_p_target(draw.top_p, cut.least_kept), (Wide)1);
        const Wide most = max(top_p_target(draw.top_p, cut.most_kept), (Wide)1);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (edge[i].mass < least && least <= edge[i + 1].mass) cut.first = 2 * t + i;
            if (edge[i].mass < most && most <= edge[i + 1].mass) cut.last = 2 * t + i;
        }
    }
    __syncthreads();
}

// Memory of the last block. A place is 0 where there is no candidate: -inf has no weight.
struct Finish {
    Wide candidates[CANDIDATES];
    Wide below[BINS + 1];
    Wide chunks[MAX_CHUNKS];
    uint32_t low[SAMPLE_THREADS], high[SAMPLE_THREADS], count[SAMPLE_THREADS];
    Wide least, most;
    int digit;
    Sum before, digit_sum;
    int chunk;
    Wide rest;
};

// The places that the last block looks through: the list, or if that was too short for them all logits again.
struct Candidates {
    const ExlSample &job;
    const Finish &finish;
    const Scale &scale;
    const Cut &cut;
    int listed;

    __device__ __forceinline__ bool list_fits() const { return listed <= CANDIDATES; }
    __device__ __forceinline__ int count() const { return list_fits() ? listed : job.vocab; }
    // Of bin `wanted`, or with -1 of all open bins; 0 for others.
    __device__ __forceinline__ Wide at(int i, int wanted) const {
        Wide found;
        if (list_fits()) {
            found = finish.candidates[i];
        } else {
            const float logit = logit_at(job, i);
            if (weight(logit) == 0) return 0;
            found = place(logit, i);
        }
        const int bin = scale.bin(scale.octaves(logit_of(found)));
        return (wanted < 0 ? cut.open(bin) : bin == wanted) ? found : 0;
    }
    __device__ __forceinline__ Wide weight(float logit) const { return weight_of(scale.octaves(logit)); }
};

// The last place of `bin` that stays, where a token stays while what the bin has before it is under `target`: tokens
// if `by_count`, else weight. `kept` becomes the weight that stays. Digit by digit from the range of the places down.
__device__ Wide last_kept(const Candidates &from, Finish &finish, int bin, bool by_count, Wide target,
                              Wide &kept) {
    const int t = threadIdx.x;
    __syncthreads();
    if (t == 0) finish.least = ~Wide(0), finish.most = 0, finish.before = {0, 0};
    __syncthreads();
    Wide least = ~Wide(0), most = 0;
    for (int i = t; i < from.count(); i += SAMPLE_THREADS) {
        const Wide found = from.at(i, bin);
        if (found) least = min(least, found), most = max(most, found);
    }
    least = ~warp_max(~least), most = warp_max(most);
    if (t % LANES == 0 && most) atomicMin(&finish.least, least), atomicMax(&finish.most, most);
    __syncthreads();
    Wide lowest = finish.least, span = finish.most - finish.least;
    while (true) {
        const int bits = 64 - __clzll(span), shift = max(bits - 9, 0);
        finish.low[t] = finish.high[t] = finish.count[t] = 0;
        __syncthreads();
        for (int i = t; i < from.count(); i += SAMPLE_THREADS) {
            const Wide found = from.at(i, bin);
            if (found < lowest || found - lowest > span) continue;
            const int digit = (found - lowest) >> shift;
            add_mass(&finish.low[digit], &finish.high[digit], from.weight(logit_of(found)), 0);
            atomicAdd(&finish.count[digit], 1);
        }
        __syncthreads();
        const int digit = SAMPLE_THREADS - 1 - t;  // the largest places come first
        const Sum mine{(Wide)finish.high[digit] << 32 | finish.low[digit], finish.count[digit]};
        Sum all;
        const Sum before = finish.before + block_sum_below(mine, all), through = before + mine;
        const Wide from_here = by_count ? before.count : before.mass, to_here = by_count ? through.count : through.mass;
        __syncthreads();
        if (from_here < target && target <= to_here) finish.digit = digit, finish.before = before, finish.digit_sum = mine;
        __syncthreads();
        lowest += (Wide)finish.digit << shift, span = (Wide(1) << shift) - 1;
        if (shift == 0 || finish.digit_sum.count == 1) break;
    }
    kept = finish.before.mass + finish.digit_sum.mass;
    return lowest;
}

// The place at which what stays ends: of top-k and top-p, the nearer.
__device__ Wide end_of_kept(const Candidates &from, const ExlDraw &draw, Finish &finish) {
    const Cut &cut = from.cut;
    Wide end = 0, kept = cut.most_kept;
    if (cut.top_k_bin < BINS) {
        end = last_kept(from, finish, cut.top_k_bin, true, cut.top_k_rest, kept);
        kept += finish.below[cut.top_k_bin];
    }
    if (draw.top_p >= 1.0) return end;
    const Wide target = max(top_p_target(draw.top_p, kept), (Wide)1);
    __syncthreads();
    for (int bin = threadIdx.x; bin < BINS; bin += SAMPLE_THREADS)
        if (finish.below[bin] < target && target <= finish.below[bin + 1]) finish.chunk = bin;
    __syncthreads();
    const int bin = finish.chunk;
    return last_kept(from, finish, bin, false, target - finish.below[bin], kept);
}

// Leaves the scratch as the next step expects it, and reports. By all threads of one block.
__device__ __forceinline__ void end_step(const ExlSample &job, bool weighed) {
    SampleScratch &scratch = scratch_of(job);
    const int t = threadIdx.x;
    if (weighed)
        for (int bin = t; bin < BINS; bin += SAMPLE_THREADS) scratch.mass[bin] = 0, scratch.count[bin] = 0;
    if (t == 0) scratch.best = 0, scratch.least = 0, scratch.ticket = 0, scratch.candidate_count = 0;
}
__device__ __forceinline__ void report(const ExlSample &job, const ExlDraw &draw, int token, int status) {
    const uint32_t sequence = draw.sequence + 1;
    tell_host(static_cast<Wide *>(job.ring) + sequence % job.ring_slots,
              (Wide)sequence << 32 | (uint32_t)status << 24 | (uint32_t)token);
    *static_cast<int64_t *>(job.token) = token;
    *static_cast<int *>(job.position) += 1;
    job.draw->index = draw.index + 1;
    job.draw->sequence = sequence;
}

// Sums up what is kept of every chunk of ids, finds the chunk in which the draw falls, and draws there.
__device__ void draw_token(const Candidates &from, const ExlDraw &draw, Finish &finish, Wide end) {
    const int t = threadIdx.x, chunks = gridDim.x;
    const ExlSample &job = from.job;
    for (int i = t; i < from.count(); i += SAMPLE_THREADS) {
        const Wide found = from.at(i, -1);
        if (!found || found < end || from.scale.octaves(logit_of(found)) > draw.deepest) continue;
        atomicAdd(&finish.chunks[id_of(found) / CHUNK], (Wide)from.weight(logit_of(found)));
    }
    __syncthreads();
    Sum all;
    const Sum mine{t < chunks ? finish.chunks[t] : 0, 0}, before = block_sum_below(mine, all);
    const Wide target = __umul64hi(uniform_bits(draw.seed, draw.index), all.mass);
    if (before.mass <= target && target < before.mass + mine.mass) finish.chunk = t, finish.rest = target - before.mass;
    __syncthreads();
    Wide weight[2];
    const int first = finish.chunk * CHUNK + 2 * t;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float logit = logit_at(job, first + i), octaves = from.scale.octaves(logit);
        weight[i] = place(logit, first + i) >= end && octaves <= draw.deepest ? weight_of(octaves) : 0;
    }
    const Wide below = block_sum_below({weight[0] + weight[1], 0}, all).mass, rest = finish.rest;
    if (below <= rest && rest < below + weight[0] + weight[1])
        report(job, draw, first + (rest >= below + weight[0]), EXL_DRAWN);
}

__global__ void __launch_bounds__(SAMPLE_THREADS) sample_choose(const __grid_constant__ ExlSample job) {
    __shared__ Finish finish;
    __shared__ Cut cut;
    __shared__ int found, at;
    __shared__ bool last;
    let_next_start();
    const int t = threadIdx.x;
    SampleScratch &scratch = scratch_of(job);
    const ExlDraw draw = *job.draw;
    float logit[2];
#pragma unroll
    for (int i = 0; i < 2; i++) logit[i] = logit_at(job, blockIdx.x * CHUNK + i * SAMPLE_THREADS + t);
    wait_for_previous();
    const Wide best = produced(&scratch.best);
    if (draw.greedy || not_numbers(best)) {
        if (blockIdx.x > 0) return;
        __syncthreads();
        end_step(job, false);
        if (t == 0) report(job, draw, not_numbers(best) ? 0 : id_of(best), not_numbers(best) ? EXL_NOT_NUMBERS : EXL_DRAWN);
        return;
    }
    const Scale scale = scale_of(draw, best, produced(&scratch.least));
    if (t == 0) found = 0;
    if (is_cut(draw)) find_cut(scratch, draw, cut, finish.below);
    else if (t == 0) cut = {BINS, BINS, BINS, 0, 0, 0};
    __syncthreads();

    Wide surely_kept = 0;
    bool open[2];
    int slot[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float octaves = scale.octaves(logit[i]);
        const Wide weight = weight_of(octaves);
        const int bin = scale.bin(octaves);
        if (bin < cut.first && octaves <= draw.deepest) surely_kept += weight;
        open[i] = weight > 0 && cut.open(bin);
        if (open[i]) slot[i] = atomicAdd(&found, 1);
    }
    Sum all;
    block_sum_below({surely_kept, 0}, all);
    if (t == 0) {
        scratch.chunk_mass[blockIdx.x] = all.mass;
        if (found) at = atomicAdd(&scratch.candidate_count, found);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; i++)
        if (open[i] && at + slot[i] < CANDIDATES)
            scratch.candidates[at + slot[i]] = place(logit[i], blockIdx.x * CHUNK + i * SAMPLE_THREADS + t);
    __threadfence();
    __syncthreads();
    if (t == 0) last = atomicAdd(&scratch.ticket, 1) == gridDim.x - 1;
    __syncthreads();
    if (!last) return;
    __threadfence();

    const Candidates from{job, finish, scale, cut, (int)__ldcg(&scratch.candidate_count)};
    if (t < gridDim.x) finish.chunks[t] = __ldcg(&scratch.chunk_mass[t]);
    if (from.list_fits())
        for (int i = t; i < from.listed; i += SAMPLE_THREADS) finish.candidates[i] = __ldcg(&scratch.candidates[i]);
    __syncthreads();
    const Wide end = is_cut(draw) ? end_of_kept(from, draw, finish) : 0;
    __syncthreads();
    end_step(job, is_cut(draw));
    draw_token(from, draw, finish, end);
}

}  // namespace exl

extern "C" int exl_sample(const ExlSample *job, int dependent, void *stream) {
    if (!job || !job->logits || !job->draw || !job->token || !job->position || !job->ring || !job->scratch ||
        job->vocab < 1 || job->vocab > EXL_MAX_VOCAB || job->ring_slots < 1 || job->ring_slots & (job->ring_slots - 1))
        return EXL_BAD_ARGUMENT;
    const int chunks = (job->vocab + exl::CHUNK - 1) / exl::CHUNK;
    const cudaStream_t s = static_cast<cudaStream_t>(stream);
    int error = exl::launch(exl::sample_best, chunks, exl::SAMPLE_THREADS, 0, dependent, s, *job);
    if (error == 0) error = exl::launch(exl::sample_weigh, chunks, exl::SAMPLE_THREADS, 0, dependent, s, *job);
    if (error == 0) error = exl::launch(exl::sample_choose, chunks, exl::SAMPLE_THREADS, 0, dependent, s, *job);
    return error;
}
