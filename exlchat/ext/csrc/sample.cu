// The sampler: temperature, top-k, top-p, min-p and the draw, exactly, in four dependent kernels.
//
// All three steps that remove tokens keep a beginning of one order (`place`), so one place decides them all:
//   sample_best    of each chunk of ids: the best logit, the least, and whether all are numbers
//   sample_weigh   weights and counts by bins of the distance from the best
//   sample_cut     the bins in which top-k and top-p end; the tokens there become candidates, and what lies before is
//                  summed up by pieces of 128 ids
//   sample_draw    one block: the last place that is kept, found among the candidates, and the draw by the inverse of
//                  the cumulative weights in id order
// Everything summed is an integer, so nothing depends on which block or thread comes first. (One block at the end costs
// less than a ticket and a fence: an empty dependent kernel takes about half a microsecond on an H200.)
//
// Edges: each of these kernels lets the next one start when it has itself waited. So before it waits a kernel may read
// what the kernel before the previous one has written, and all but the first may read the logits.
#include "launch.cuh"
#include "sample_cut.cuh"

namespace exl {

// The id of a thread's logit i: a warp has a piece of its block's chunk, and neighbours load neighbours.
__device__ __forceinline__ int spread_id(int block, int i) {
    return block * CHUNK + threadIdx.x / LANES * PIECE + i * LANES + threadIdx.x % LANES;
}

__device__ __forceinline__ void find_best(const ExlSample &job, int block) {
    __shared__ ChunkBest warps[SAMPLE_WARPS];
    wait_for_previous();
    let_next_start();
    const int t = threadIdx.x;
    float logit[IDS];
#pragma unroll
    for (int i = 0; i < IDS; i++) logit[i] = logit_at(job, spread_id(block, i));
    ChunkBest mine{0, 0, 0};
#pragma unroll
    for (int i = 0; i < IDS; i++) {
        const int id = spread_id(block, i);
        if (logit[i] > -INFINITY) mine.least = max(mine.least, ~ordered(logit[i]));
        if (id < job.vocab) mine.best = max(mine.best, logit[i] < INFINITY ? place(logit[i], id) : BAD);  // and NaN
    }
    mine.best = warp_max(mine.best), mine.least = warp_max(mine.least);
    if (t % LANES == 0) warps[t / LANES] = mine;
    __syncthreads();
    if (t >= LANES) return;
    mine = warps[t % SAMPLE_WARPS];
    mine.best = warp_max(mine.best), mine.least = warp_max(mine.least);
    if (t == 0) scratch_of(job).best[block] = mine;
}

// Of all chunks. (Every warp for itself would read the same few lines too often: 4 us in a vocabulary of 256k.)
__device__ __forceinline__ ChunkBest best_of_all(const ExlSample &job) {
    constexpr int WARPS = MAX_CHUNKS / LANES;
    __shared__ ChunkBest warps[WARPS];
    const int t = threadIdx.x;
    ChunkBest all{0, 0, 0};
    if (t < MAX_CHUNKS) {
        if (t < chunks_of(job)) all = produced(&scratch_of(job).best[t]);
        all.best = warp_max(all.best), all.least = warp_max(all.least);
        if (t % LANES == 0) warps[t / LANES] = all;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < WARPS; i++) all.best = max(all.best, warps[i].best), all.least = max(all.least, warps[i].least);
    return all;
}

// Of a block of `weigh`.
struct Weights {
    uint32_t low[BINS], high[BINS];
};

__device__ __forceinline__ void weigh(const ExlSample &job, int block, Weights &sums) {
    // A block's weights sum to 2^51 at most, so the high words have room for the count, from bit 20 on.
    constexpr uint32_t COUNTED = 1u << 20;
    uint32_t(&low)[BINS] = sums.low, (&high)[BINS] = sums.high;
    const int t = threadIdx.x;
    SampleScratch &scratch = scratch_of(job);
    const ExlDraw draw = draw_of(job);
    const bool needed = is_cut(draw) && !draw.greedy;
    float logit[IDS];
    if (needed) {
#pragma unroll
        for (int i = 0; i < IDS; i++) logit[i] = logit_at(job, spread_id(block, i));
        for (int bin = t; bin < BINS; bin += SAMPLE_THREADS) low[bin] = high[bin] = 0;
    }
    wait_for_previous();
    let_next_start();
    if (!needed) return;
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

__device__ __forceinline__ void cut_off(const ExlSample &job, int block) {
    __shared__ Cut cut;
    __shared__ int found, at;
    const int t = threadIdx.x;
    SampleScratch &scratch = scratch_of(job);
    const ExlDraw draw = draw_of(job);
    if (draw.greedy) {
        wait_for_previous();
        let_next_start();
        return;
    }
    float logit[IDS];
#pragma unroll
    for (int i = 0; i < IDS; i++) logit[i] = logit_at(job, spread_id(block, i));
    const ChunkBest best = best_of_all(job);
    const Scale scale = scale_of(draw, best.best, best.least);
    if (t == 0) found = 0;
    wait_for_previous();
    let_next_start();
    if (not_numbers(best.best)) return;
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
    surely_kept = warp_total(surely_kept);
    if (t % LANES == 0) scratch.piece_mass[(block * SAMPLE_THREADS + t) / LANES] = surely_kept;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < IDS; i++)
        if (slot[i] >= 0 && at + slot[i] < CANDIDATES) scratch.candidates[at + slot[i]] = place(logit[i], spread_id(block, i));
}

// Sums up what is kept of every piece, finds the one in which the draw falls, and draws there.
__device__ void draw_token(const Candidates &from, const ExlDraw &draw, Finish &finish, Wide end, Wide uniform) {
    constexpr int PIECES = MAX_PIECES / SAMPLE_THREADS;  // of a thread
    const int t = threadIdx.x;
    for (int i = t; i < from.count(); i += SAMPLE_THREADS) {
        const Wide found = from.at(i);
        const float logit = logit_of(found);
        if (!found || found < end || from.scale.octaves(logit) > draw.deepest) continue;
        const int piece = id_of(found) / PIECE;
        add_mass(&finish.low[piece], &finish.high[piece], from.weight(logit), 0);
    }
    __syncthreads();
    Wide mass[PIECES], sum = 0;
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        const int piece = t * PIECES + i;
        mass[i] = (Wide)finish.high[piece] << 32 | finish.low[piece];
        sum += mass[i];
    }
    Sum all;
    Wide below = block_sum_below({sum, 0}, all).mass;
    const Wide target = __umul64hi(uniform, all.mass);
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        if (below <= target && target < below + mass[i]) finish.chosen = t * PIECES + i, finish.before = {below, 0};
        below += mass[i];
    }
    __syncthreads();
    if (t >= LANES) return;
    Wide weight[IDS];
    sum = 0;
    const int first = finish.chosen * PIECE + IDS * t;
#pragma unroll
    for (int i = 0; i < IDS; i++) {
        const float logit = logit_at(from.job, first + i), octaves = from.scale.octaves(logit);
        const bool kept = from.bin(logit) < finish.cut.first || place(logit, first + i) >= end;
        weight[i] = kept && octaves <= draw.deepest ? weight_of(octaves) : 0;
        sum += weight[i];
    }
    below = finish.before.mass + warp_sum_through({sum, 0}).mass - sum;
#pragma unroll
    for (int i = 0; i < IDS; i++) {
        if (below <= target && target < below + weight[i]) report(from.job, draw, first + i, EXL_DRAWN);
        below += weight[i];
    }
}

__device__ __forceinline__ void draw_and_report(const ExlSample &job, Finish &finish) {
    let_next_start();
    const int t = threadIdx.x;
    SampleScratch &scratch = scratch_of(job);
    const ExlDraw draw = draw_of(job);
    const ChunkBest best = best_of_all(job);
    const bool no_numbers = not_numbers(best.best);
    if (draw.greedy || no_numbers) {
        wait_for_previous();
        if (t == 0) {
            if (no_numbers) report_none(job, draw, best.best);
            else report(job, draw, id_of(best.best), EXL_DRAWN);
        }
        return;
    }
    const Wide uniform = uniform_bits(draw.seed, draw.index, draw.attempt, 0);
    const Scale scale = scale_of(draw, best.best, best.least);
    Sum edge[3];
    find_cut(scratch, draw, finish.cut, edge);
    finish.below[2 * t] = edge[0].mass, finish.below[2 * t + 1] = edge[1].mass;
    if (t == SAMPLE_THREADS - 1) finish.below[BINS] = edge[2].mass;
    wait_for_previous();
    const Candidates from{job, finish, scale, (int)produced(&scratch.candidate_count)};
    Wide piece_mass[MAX_PIECES / SAMPLE_THREADS];
#pragma unroll
    for (int i = 0; i < MAX_PIECES / SAMPLE_THREADS; i++) {
        const int piece = i * SAMPLE_THREADS + t;
        piece_mass[i] = piece < chunks_of(job) * (CHUNK / PIECE) ? produced(&scratch.piece_mass[piece]) : 0;
    }
    for (int i = t; i < min(from.listed, CANDIDATES); i += SAMPLE_THREADS)
        finish.candidates[i] = produced(&scratch.candidates[i]);
    __syncthreads();
    if (is_cut(draw)) {  // all have been read, and the next step finds zeros
        for (int bin = t; bin < BINS; bin += SAMPLE_THREADS) scratch.mass[bin] = 0, scratch.count[bin] = 0;
        if (t == 0) scratch.candidate_count = 0;
    }
    const Wide end = end_of_kept(from, draw, finish);
#pragma unroll
    for (int i = 0; i < MAX_PIECES / SAMPLE_THREADS; i++) {
        const int piece = i * SAMPLE_THREADS + t;
        finish.low[piece] = (uint32_t)piece_mass[i], finish.high[piece] = (uint32_t)(piece_mass[i] >> 32);
    }
    __syncthreads();
    draw_token(from, draw, finish, end, uniform);
}

__global__ void __launch_bounds__(SAMPLE_THREADS) sample_best(const __grid_constant__ ExlSample job) {
    find_best(job, blockIdx.x);
}
__global__ void __launch_bounds__(SAMPLE_THREADS) sample_weigh(const __grid_constant__ ExlSample job) {
    __shared__ Weights sums;
    weigh(job, blockIdx.x, sums);
}
__global__ void __launch_bounds__(SAMPLE_THREADS) sample_cut(const __grid_constant__ ExlSample job) {
    cut_off(job, blockIdx.x);
}
__global__ void __launch_bounds__(SAMPLE_THREADS) sample_draw(const __grid_constant__ ExlSample job) {
    __shared__ Finish finish;
    draw_and_report(job, finish);
}

// The same of many rows, each with so many blocks.
__device__ __forceinline__ bool draws(const ExlDrawRows &rows, int row) {
    return static_cast<const int *>(rows.kinds)[row] <= EXL_ROW_ADJUSTED;
}
__device__ __forceinline__ ExlSample sample_of(const ExlDrawRows &rows, int row) {
    const ExlRowDraw &from = static_cast<const ExlRowDraw *>(rows.draws)[row];
    return static_cast<const int *>(rows.kinds)[row] == EXL_ROW_PLAIN ? from.plain : from.chain.sample;
}
__global__ void __launch_bounds__(SAMPLE_THREADS) sample_best_rows(const __grid_constant__ ExlDrawRows rows) {
    const int row = blockIdx.x / rows.chunks;
    if (draws(rows, row)) find_best(sample_of(rows, row), blockIdx.x % rows.chunks);
}
__global__ void __launch_bounds__(SAMPLE_THREADS) sample_weigh_rows(const __grid_constant__ ExlDrawRows rows) {
    __shared__ Weights sums;
    const int row = blockIdx.x / rows.chunks;
    if (draws(rows, row)) weigh(sample_of(rows, row), blockIdx.x % rows.chunks, sums);
}
__global__ void __launch_bounds__(SAMPLE_THREADS) sample_cut_rows(const __grid_constant__ ExlDrawRows rows) {
    const int row = blockIdx.x / rows.chunks;
    if (draws(rows, row)) cut_off(sample_of(rows, row), blockIdx.x % rows.chunks);
}
__global__ void __launch_bounds__(SAMPLE_THREADS) sample_draw_rows(const __grid_constant__ ExlDrawRows rows) {
    __shared__ Finish finish;
    if (draws(rows, blockIdx.x)) draw_and_report(sample_of(rows, blockIdx.x), finish);
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

extern "C" int exl_sample_rows(const ExlDrawRows *rows, int dependent, void *stream) {
    if (!rows || !rows->draws || !rows->kinds || rows->count < 1 || rows->count > EXL_WIDE_ROWS || rows->vocab < 1 ||
        rows->vocab > EXL_MAX_VOCAB)
        return EXL_BAD_ARGUMENT;
    ExlDrawRows job = *rows;
    job.chunks = (job.vocab + exl::CHUNK - 1) / exl::CHUNK;
    const int blocks = job.chunks * job.count;
    const cudaStream_t s = static_cast<cudaStream_t>(stream);
    int error = exl::launch(exl::sample_best_rows, blocks, exl::SAMPLE_THREADS, 0, dependent, s, job);
    if (error == 0) error = exl::launch(exl::sample_weigh_rows, blocks, exl::SAMPLE_THREADS, 0, dependent, s, job);
    if (error == 0) error = exl::launch(exl::sample_cut_rows, blocks, exl::SAMPLE_THREADS, 0, dependent, s, job);
    if (error == 0) error = exl::launch(exl::sample_draw_rows, job.count, exl::SAMPLE_THREADS, 0, dependent, s, job);
    return error;
}
