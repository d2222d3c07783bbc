// What looks back, and what is said of single tokens: from the logits to adjusted ones, in two dependent kernels.
//
//   look_back   one thread a position of the context: what its token, or the one behind it, has to be charged with
//   adjust      one thread a token of the vocabulary: charges it, and leaves the counters at zero for the next step
// Counters are integers, so nothing depends on which thread comes first. Arithmetic is in doubles, rounded once.
//
// Edges as in sample.cu: each lets the next one start when it has itself waited.
#include <float.h>

#include "launch.cuh"
#include "sample.cuh"

namespace exl {

constexpr int BACK_THREADS = 256;
constexpr int BACK_BLOCKS = 16;  // of each of many rows
constexpr int ADJUST_THREADS = EXL_ADJUST_IDS;
constexpr uint32_t NEVER = 1u << 31;  // of `repeated`: the token would complete an n-gram

__device__ __forceinline__ bool has_bit(const void *words, int id) {
    return produced(static_cast<const uint32_t *>(words) + id / 32) >> (id % 32) & 1;
}
__device__ __forceinline__ const ExlChain &chain_of(const ExlAdjust &job) { return *job.chain; }

// How a use so many tokens back counts: this over `whole`; 0 where it does not.
struct Decay {
    int range, over;

    __device__ __forceinline__ Decay(const ExlChain &chain, int length)
        : range(produced(&chain.penalty_range)), over(produced(&chain.penalty_decay)) {
        if (range == 0) range = length, over = 0;
    }
    __device__ __forceinline__ int whole() const { return max(over, 1); }
    __device__ __forceinline__ int weight(int back) const {
        if (back >= range + over) return 0;
        return back <= range ? whole() : over - (back - range);
    }
};

// Block `block` of `blocks`.
__device__ __forceinline__ void charge(const ExlAdjust &job, int block, int blocks) {
    wait_for_previous();
    let_next_start();
    const ExlChain &chain = chain_of(job);
    const bool penalties = produced(&chain.penalties), dry = produced(&chain.dry_on);
    const int ngram = produced(&chain.ngram);
    if (!penalties && !dry && ngram == 0) return;
    const int length = min(produced(static_cast<const int *>(job.position)) + 1, job.room);
    const int *context = static_cast<const int *>(job.context);
    const int last = length - 1, newest = produced(context + last), dry_range = produced(&chain.dry_range);
    const Decay decay(chain, length);
    const int dry_first = dry_range ? max(length - dry_range, 0) : 0;
    const bool dry_here = dry && (unsigned)newest < job.vocab && !has_bit(job.breakers, newest);
    for (int at = block * BACK_THREADS + threadIdx.x; at < length; at += blocks * BACK_THREADS) {
        const int token = produced(context + at);
        const bool is_known = (unsigned)token < job.vocab;
        const int weight = penalties && is_known ? decay.weight(last - at) : 0;
        if (weight) {
            atomicAdd(static_cast<Wide *>(job.counted) + token, (Wide)weight);
            atomicMax(static_cast<uint32_t *>(job.newest) + token, at + 1);
        }
        uint32_t *repeated = static_cast<uint32_t *>(job.repeated);
        if (token != newest || at == last) continue;
        const int following = produced(context + at + 1);
        if ((unsigned)following >= job.vocab) continue;
        // The longest passage that ends here and at the end: `same` tokens, of which the first `unbroken` hold no breaker.
        const int most = max(dry_here && at >= dry_first ? EXL_DRY_MOST : 0, ngram - 1);
        int same = 0, unbroken = 0;
        bool goes_on = dry_here && !has_bit(job.breakers, following);  // a passage is never lengthened by a breaker
        for (; same < most && same <= at; same++) {
            const int earlier = produced(context + at - same);
            if (earlier != produced(context + last - same)) break;
            goes_on = goes_on && at - same >= dry_first && unbroken < EXL_DRY_MOST && (unsigned)earlier < job.vocab &&
                      !has_bit(job.breakers, earlier);
            unbroken += goes_on;
            if (!goes_on && same + 1 >= ngram - 1) {
                same++;
                break;
            }
        }
        if (unbroken) atomicMax(repeated + following, unbroken);
        if (ngram && same >= ngram - 1) atomicOr(repeated + following, NEVER);
    }
}

// What has to be looked at; no kernel writes it, so it is read before the wait.
struct Asked {
    bool penalties, repeats, biased, barred, masked;

    __device__ __forceinline__ Asked(const ExlAdjust &job)
        : penalties(produced(&job.chain->penalties)),
          repeats(produced(&job.chain->dry_on) | produced(&job.chain->ngram)), biased(produced(&job.chain->biased)),
          barred(produced(&job.chain->barred)),
          masked(produced(static_cast<const uint32_t *>(job.mask) + (job.vocab + 31) / 32)) {}
};

// What a token's logit becomes; its counters are left at zero.
__device__ __forceinline__ float adjusted_logit(const ExlAdjust &job, const Asked &asked, const ExlDraw &draw, int id,
                                                float logit) {
    const ExlChain &chain = chain_of(job);
    double x = logit;
    bool out = false;
    uint32_t *newest = static_cast<uint32_t *>(job.newest) + id, *repeated = static_cast<uint32_t *>(job.repeated) + id;
    const uint32_t use = asked.penalties ? produced(newest) : 0, repetition = asked.repeats ? produced(repeated) : 0;
    if (use) {
        Wide *counted = static_cast<Wide *>(job.counted) + id;
        const int length = min(produced(static_cast<const int *>(job.position)) + 1, job.room);
        const Decay decay(chain, length);
        const double whole = decay.whole(), weight = decay.weight(length - (int)use) / whole;
        const double factor = produced(&chain.repetition) + (1.0 - produced(&chain.repetition)) * (1.0 - weight);
        x = x > 0.0 ? x / factor : x * factor;
        x -= produced(&chain.presence) * weight;
        x -= produced(&chain.frequency) * ((double)produced(counted) / whole);
        *counted = 0, *newest = 0;
    }
    if (repetition) {
        if (repetition & NEVER) out = true;
        else x -= produced(&chain.dry[repetition - 1]);
        *repeated = 0;
    }
    if (asked.biased) x += produced(static_cast<const float *>(job.bias) + id);
    if (asked.barred) out |= draw.index < produced(static_cast<const uint32_t *>(job.barred_until) + id);
    if (asked.masked) out |= !has_bit(job.mask, id);
    if (out && logit < INFINITY) return -INFINITY;
    if (logit > -INFINITY && logit < INFINITY) return (float)fmin(fmax(x, -(double)FLT_MAX), (double)FLT_MAX);
    return logit;  // what is no number stays so, for the draw to say it
}

__device__ __forceinline__ void adjust_chunk(const ExlAdjust &job, int block) {
    __shared__ Ends warps[ADJUST_THREADS / LANES];
    const int id = block * ADJUST_THREADS + threadIdx.x;
    const Asked asked(job);
    wait_for_previous();
    let_next_start();
    const bool has = id < job.vocab;
    float adjusted = 0.f;
    if (has) {
        const float logit = produced(static_cast<const float *>(job.logits) + id);
        const ExlDraw draw = draw_of(job.draw);
        if (logit > -INFINITY && logit < INFINITY) *static_cast<uint32_t *>(job.numbers) = draw.sequence + 1;
        adjusted = adjusted_logit(job, asked, draw, id, logit);
        static_cast<float *>(job.adjusted)[id] = adjusted;
    }
    const Ends of_warp = warp_ends(adjusted, id, has);
    if (threadIdx.x % LANES == 0) warps[threadIdx.x / LANES] = of_warp;
    __syncthreads();
    if (threadIdx.x) return;
    Ends all{0, 0};
#pragma unroll
    for (const Ends &one : warps) all = {max(all.best, one.best), max(all.least, one.least)};
    static_cast<Ends *>(job.ends)[block] = all;
}

__global__ void __launch_bounds__(BACK_THREADS) look_back(const __grid_constant__ ExlAdjust job) {
    charge(job, blockIdx.x, gridDim.x);
}
__global__ void __launch_bounds__(ADJUST_THREADS) adjust(const __grid_constant__ ExlAdjust job) {
    adjust_chunk(job, blockIdx.x);
}

// The same of many rows, each with so many blocks.
__device__ __forceinline__ const ExlAdjust *adjust_of(const ExlDrawRows &rows, int row) {
    const int kind = static_cast<const int *>(rows.kinds)[row];
    if (kind != EXL_ROW_ADJUSTED && kind != EXL_ROW_CHAIN) return nullptr;
    return &static_cast<const ExlRowDraw *>(rows.draws)[row].adjust;
}
__global__ void __launch_bounds__(BACK_THREADS) look_back_rows(const __grid_constant__ ExlDrawRows rows) {
    const ExlAdjust *from = adjust_of(rows, blockIdx.x / rows.chunks);
    if (!from) return;
    const ExlAdjust job = *from;
    charge(job, blockIdx.x % rows.chunks, rows.chunks);
}
__global__ void __launch_bounds__(ADJUST_THREADS) adjust_rows(const __grid_constant__ ExlDrawRows rows) {
    const ExlAdjust *from = adjust_of(rows, blockIdx.x / rows.chunks);
    if (!from) return;
    const ExlAdjust job = *from;
    adjust_chunk(job, blockIdx.x % rows.chunks);
}

}  // namespace exl

extern "C" int exl_adjust(const ExlAdjust *job, int dependent, void *stream) {
    if (!job || !job->logits || !job->adjusted || !job->draw || !job->chain || !job->position || !job->context ||
        !job->bias || !job->barred_until || !job->mask || !job->breakers || !job->counted || !job->newest ||
        !job->repeated || !job->numbers || !job->ends || job->vocab < 1 || job->vocab > EXL_MAX_VOCAB || job->room < 1 ||
        job->blocks < 1)
        return EXL_BAD_ARGUMENT;
    const int blocks = (job->vocab + exl::ADJUST_THREADS - 1) / exl::ADJUST_THREADS;
    const cudaStream_t s = static_cast<cudaStream_t>(stream);
    const int error = exl::launch(exl::look_back, job->blocks, exl::BACK_THREADS, 0, dependent, s, *job);
    return error ? error : exl::launch(exl::adjust, blocks, exl::ADJUST_THREADS, 0, dependent, s, *job);
}

extern "C" int exl_adjust_rows(const ExlDrawRows *rows, int dependent, void *stream) {
    if (!rows || !rows->draws || !rows->kinds || rows->count < 1 || rows->count > EXL_WIDE_ROWS || rows->vocab < 1 ||
        rows->vocab > EXL_MAX_VOCAB)
        return EXL_BAD_ARGUMENT;
    ExlDrawRows job = *rows;
    const cudaStream_t s = static_cast<cudaStream_t>(stream);
    job.chunks = exl::BACK_BLOCKS;
    const int error = exl::launch(exl::look_back_rows, job.chunks * job.count, exl::BACK_THREADS, 0, dependent, s, job);
    job.chunks = (job.vocab + exl::ADJUST_THREADS - 1) / exl::ADJUST_THREADS;
    return error ? error
                 : exl::launch(exl::adjust_rows, job.chunks * job.count, exl::ADJUST_THREADS, 0, dependent, s, job);
}
