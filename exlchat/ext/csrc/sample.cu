// The sampler: temperature, top-k, top-p, min-p and the draw, exactly, in four dependent kernels.
//
// All three steps that remove tokens keep a beginning of one order (`place`), so one place decides them all:
//   sample_best    of each chunk of ids: the best logit, the least, and whether all are numbers
//   sample_weigh   weights and counts by bins of the distance from the best
//   sample_cut     the bins in which top-k and top-p end; the tokens there become candidates, and what lies before is
//                  summed up by chunks
//   sample_draw    one block: the last place that is kept, found among the candidates, and the draw by the inverse of
//                  the cumulative weights in id order
// Everything summed is an integer, so nothing depends on which block or thread comes first. (One block at the end costs
// less than a ticket and a fence: an empty dependent kernel takes about half a microsecond on an H200.)
//
// Edges: each of these kernels lets the next one start when it has itself waited. So before it waits a kernel may read
// what the kernel before the previous one has written, and all but the first may read the logits.
#include "sample.cuh"

#include "launch.cuh"

namespace exl {

__device__ __forceinline__ float logit_at(const ExlSample &job, int id) {
    return id < job.vocab ? produced(static_cast<const float *>(job.logits) + id) : -INFINITY;
}
__device__ __forceinline__ SampleScratch &scratch_of(const ExlSample &job) {
    return *static_cast<SampleScratch *>(job.scratch);
}
__device__ __forceinline__ int chunks_of(const ExlSample &job) { return (job.vocab + CHUNK - 1) / CHUNK; }
__device__ __forceinline__ ExlDraw draw_of(const ExlSample &job) {
    ExlDraw draw;
    static_assert(sizeof(draw) % sizeof(uint4) == 0, "");
#pragma unroll
    for (int i = 0; i < sizeof(draw) / sizeof(uint4); i++)
        reinterpret_cast<uint4 *>(&draw)[i] = produced(reinterpret_cast<const uint4 *>(job.draw) + i);
    return draw;
}
__device__ __forceinline__ bool is_cut(const ExlDraw &draw) { return draw.top_k > 0 || draw.top_p < 1.0; }

// The id of a thread's logit i, of a block's chunk: neighbours load neighbours.
__device__ __forceinline__ int spread_id(int i) { return blockIdx.x * CHUNK + i * SAMPLE_THREADS + threadIdx.x; }

__global__ void __launch_bounds__(SAMPLE_THREADS) sample_best(const __grid_constant__ ExlSample job) {
    __shared__ ChunkBest warps[SAMPLE_WARPS];
    wait_for_previous();
    let_next_start();
    const int t = threadIdx.x;
    float logit[IDS];
#pragma unroll
    for (int i = 0; i < IDS; i++) logit[i] = logit_at(job, spread_id(i));
    ChunkBest mine{0, 0, 0};
#pragma unroll
    for (int i = 0; i < IDS; i++) {
        const int id = spread_id(i);
        if (logit[i] > -INFINITY) mine.least = max(mine.least, ~ordered(logit[i]));
        if (id < job.vocab) mine.best = max(mine.best, logit[i] < INFINITY ? place(logit[i], id) : BAD);  // and NaN
    }
    mine.best = warp_max(mine.best), mine.least = warp_max(mine.least);
    if (t % LANES == 0) warps[t / LANES] = mine;
    __syncthreads();
    if (t >= LANES) return;
    mine = warps[t % SAMPLE_WARPS];
    mine.best = warp_max(mine.best), mine.least = warp_max(mine.least);
    if (t == 0) scratch_of(job).best[blockIdx.x] = mine;
}

// Of all chunks; every warp for itself.
__device__ __forceinline__ ChunkBest best_of_all(const ExlSample &job) {
    ChunkBest mine{0, 0, 0};
#pragma unroll
    for (int i = 0; i < MAX_CHUNKS / LANES; i++) {
        const int chunk = i * LANES + threadIdx.x % LANES;
        if (chunk >= chunks_of(job)) continue;
        const ChunkBest found = produced(&scratch_of(job).best[chunk]);
        mine.best = max(mine.best, found.best), mine.least = max(mine.least, found.least);
    }
    return {warp_max(mine.best), warp_max(mine.least), 0};
}

// Some logit is NaN or +inf, or all are -inf.
__device__ __forceinline__ bool not_numbers(Wide best) { return best == BAD || logit_of(best) == -INFINITY; }

__global__ void __launch_bounds__(SAMPLE_THREADS) sample_weigh(const __grid_constant__ ExlSample job) {
    // A block's weights sum to 2^51 at most, so the high words have room for the count, from bit 20 on.
    constexpr uint32_t COUNTED = 1u << 20;
    __shared__ uint32_t low[BINS], high[BINS];
    const int t = threadIdx.x;
    SampleScratch &scratch = scratch_of(job);
    const ExlDraw draw = draw_of(job);
    float logit[IDS];
    if (is_cut(draw)) {
#pragma unroll
        for (int i = 0; i < IDS; i++) logit[i] = logit_at(job, spread_id(i));
        for (int bin = t; bin < BINS; bin += SAMPLE_THREADS) low[bin] = high[bin] = 0;
        __syncthreads();
    }
    wait_for_previous();
    let_next_start();
    if (draw.greedy || !is_cut(draw)) return;
    const ChunkBest best = best_of_all(job);
    if (not_numbers(best.best)) return;
    const Scale scale = scale_of(draw, best.best, best.least);
#pragma unroll
    for (int i = 0; i < IDS; i++) {
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

__global__ void __launch_bounds__(SAMPLE_THREADS) sample_cut(const __grid_constant__ ExlSample job) {
    __shared__ Cut cut;
    __shared__ int found, at;
    const int t = threadIdx.x;
    SampleScratch &scratch = scratch_of(job);
    const ExlDraw draw = draw_of(job);
    float logit[IDS];
#pragma unroll
    for (int i = 0; i < IDS; i++) logit[i] = logit_at(job, spread_id(i));
    const ChunkBest best = best_of_all(job);
    const Scale scale = scale_of(draw, best.best, best.least);
    if (t == 0) found = 0;
    wait_for_previous();
    let_next_start();
    if (draw.greedy || not_numbers(best.best)) return;
    Sum edge[3];
    find_cut(scratch, draw, cut, edge);

    Wide surely_kept = 0;
    int slot[IDS];
#pragma unroll
    for (int i = 0; i < IDS; i++) {
        const float octaves = scale.octaves(logit[i]);
        const Wide weight = weight_of(octaves);
        const int bin = scale.bin(octaves);
        if (bin < cut.first && octaves <= draw.deepest) surely_kept += weight;
        slot[i] = weight > 0 && cut.open(bin) ? atomicAdd(&found, 1) : -1;
    }
    __syncthreads();
    if (t == 0 && found) at = atomicAdd(&scratch.candidate_count, found);
    Sum all;
    block_sum_below({surely_kept, 0}, all);
    if (t == 0) scratch.chunk_mass[blockIdx.x] = all.mass;
#pragma unroll
    for (int i = 0; i < IDS; i++)
        if (slot[i] >= 0 && at + slot[i] < CANDIDATES) scratch.candidates[at + slot[i]] = place(logit[i], spread_id(i));
}

// Shared memory of the last kernel.
struct Finish {
    Wide candidates[CANDIDATES];
    Wide below[BINS + 1];
    Cut cut;
    Wide least[SAMPLE_WARPS], most[SAMPLE_WARPS];
    uint32_t low[SAMPLE_THREADS], high[SAMPLE_THREADS], count[SAMPLE_THREADS];
    int chosen;       // digit, bin or chunk
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

// The place at which the open bins end: of top-k and top-p, the nearer. Without open bins none of theirs stays.
__device__ Wide end_of_kept(const Candidates &from, const ExlDraw &draw, Finish &finish) {
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

__device__ __forceinline__ void report(const ExlSample &job, const ExlDraw &draw, int token, int status) {
    const uint32_t sequence = draw.sequence + 1;
    tell_host(static_cast<Wide *>(job.ring) + sequence % job.ring_slots,
              (Wide)sequence << 32 | (uint32_t)status << 24 | (uint32_t)token);
    *static_cast<int64_t *>(job.token) = token;
    *static_cast<int *>(job.position) = produced(static_cast<const int *>(job.position)) + 1;
    job.draw->index = draw.index + 1;
    job.draw->sequence = sequence;
}

// Sums up what is kept of every chunk of ids, finds the chunk in which the draw falls, and draws there.
__device__ void draw_token(const Candidates &from, const ExlDraw &draw, Finish &finish, Wide chunk_mass, Wide end,
                           Wide uniform) {
    const int t = threadIdx.x;
    finish.low[t] = (uint32_t)chunk_mass, finish.high[t] = (uint32_t)(chunk_mass >> 32);
    __syncthreads();
    for (int i = t; i < from.count(); i += SAMPLE_THREADS) {
        const Wide found = from.at(i);
        const float logit = logit_of(found);
        if (found < end || !found || from.scale.octaves(logit) > draw.deepest) continue;
        const int chunk = id_of(found) / CHUNK;
        add_mass(&finish.low[chunk], &finish.high[chunk], from.weight(logit), 0);
    }
    __syncthreads();
    Sum all;
    const Sum mine{(Wide)finish.high[t] << 32 | finish.low[t], 0}, before = block_sum_below(mine, all);
    const Wide target = __umul64hi(uniform, all.mass);
    if (before.mass <= target && target < before.mass + mine.mass) finish.chosen = t, finish.before = before;
    __syncthreads();
    Wide weight[IDS], sum = 0;
    const int first = finish.chosen * CHUNK + IDS * t;
#pragma unroll
    for (int i = 0; i < IDS; i++) {
        const float logit = logit_at(from.job, first + i), octaves = from.scale.octaves(logit);
        const bool kept = from.bin(logit) < finish.cut.first || place(logit, first + i) >= end;
        weight[i] = kept && octaves <= draw.deepest ? weight_of(octaves) : 0;
        sum += weight[i];
    }
    Wide below = finish.before.mass + block_sum_below({sum, 0}, all).mass;
#pragma unroll
    for (int i = 0; i < IDS; i++) {
        if (below <= target && target < below + weight[i]) report(from.job, draw, first + i, EXL_DRAWN);
        below += weight[i];
    }
}

__global__ void __launch_bounds__(SAMPLE_THREADS) sample_draw(const __grid_constant__ ExlSample job) {
    __shared__ Finish finish;
    let_next_start();
    const int t = threadIdx.x;
    SampleScratch &scratch = scratch_of(job);
    const ExlDraw draw = draw_of(job);
    const ChunkBest best = best_of_all(job);
    const bool no_numbers = not_numbers(best.best);
    if (draw.greedy || no_numbers) {
        wait_for_previous();
        if (t == 0) report(job, draw, no_numbers ? 0 : id_of(best.best), no_numbers ? EXL_NOT_NUMBERS : EXL_DRAWN);
        return;
    }
    const Wide uniform = uniform_bits(draw.seed, draw.index);
    const Scale scale = scale_of(draw, best.best, best.least);
    Sum edge[3];
    find_cut(scratch, draw, finish.cut, edge);
    finish.below[2 * t] = edge[0].mass, finish.below[2 * t + 1] = edge[1].mass;
    if (t == SAMPLE_THREADS - 1) finish.below[BINS] = edge[2].mass;
    wait_for_previous();
    const Wide chunk_mass = t < chunks_of(job) ? produced(&scratch.chunk_mass[t]) : 0;
    const Candidates from{job, finish, scale, (int)produced(&scratch.candidate_count)};
    for (int i = t; i < min(from.listed, CANDIDATES); i += SAMPLE_THREADS)
        finish.candidates[i] = produced(&scratch.candidates[i]);
    __syncthreads();
    if (is_cut(draw)) {  // all have been read, and the next step finds zeros
        for (int bin = t; bin < BINS; bin += SAMPLE_THREADS) scratch.mass[bin] = 0, scratch.count[bin] = 0;
        if (t == 0) scratch.candidate_count = 0;
    }
    draw_token(from, draw, finish, chunk_mass, end_of_kept(from, draw, finish), uniform);
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
    if (error == 0) error = exl::launch(exl::sample_cut, chunks, exl::SAMPLE_THREADS, 0, dependent, s, *job);
    if (error == 0) error = exl::launch(exl::sample_draw, 1, exl::SAMPLE_THREADS, 0, dependent, s, *job);
    return error;
}
