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
constexpr int ADJUST_THREADS = 256;
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

__global__ void __launch_bounds__(BACK_THREADS) look_back(const __grid_constant__ ExlAdjust job) {
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
    for (int at = blockIdx.x * BACK_THREADS + threadIdx.x; at < length; at += gridDim.x * BACK_THREADS) {
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
        bool goes_on = dry_here;
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

__global__ void __launch_bounds__(ADJUST_THREADS) adjust(const __grid_constant__ ExlAdjust job) {
    const int id = blockIdx.x * ADJUST_THREADS + threadIdx.x;
    const ExlChain &chain = chain_of(job);
    const bool penalties = produced(&chain.penalties), biased = produced(&chain.biased);
    const bool repeats = produced(&chain.dry_on) || produced(&chain.ngram), barred = produced(&chain.barred);
    wait_for_previous();
    let_next_start();
    if (id >= job.vocab) return;
    const float logit = produced(static_cast<const float *>(job.logits) + id);
    const ExlDraw draw = draw_of(job.draw);
    if (logit > -INFINITY && logit < INFINITY) *static_cast<uint32_t *>(job.numbers) = draw.sequence + 1;
    double x = logit;
    bool out = false;
    uint32_t *newest = static_cast<uint32_t *>(job.newest) + id, *repeated = static_cast<uint32_t *>(job.repeated) + id;
    const uint32_t use = penalties ? produced(newest) : 0, repetition = repeats ? produced(repeated) : 0;
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
    if (biased) x += produced(static_cast<const float *>(job.bias) + id);
    if (barred) out |= draw.index < produced(static_cast<const uint32_t *>(job.barred_until) + id);
    const int words = (job.vocab + 31) / 32;
    if (produced(static_cast<const uint32_t *>(job.mask) + words)) out |= !has_bit(job.mask, id);
    float adjusted = logit;  // what is no number stays so, for the draw to say it
    if (out && logit < INFINITY) adjusted = -INFINITY;
    else if (logit > -INFINITY && logit < INFINITY) adjusted = (float)fmin(fmax(x, -(double)FLT_MAX), (double)FLT_MAX);
    static_cast<float *>(job.adjusted)[id] = adjusted;
}

}  // namespace exl

extern "C" int exl_adjust(const ExlAdjust *job, int dependent, void *stream) {
    if (!job || !job->logits || !job->adjusted || !job->draw || !job->chain || !job->position || !job->context ||
        !job->bias || !job->barred_until || !job->mask || !job->breakers || !job->counted || !job->newest ||
        !job->repeated || !job->numbers || job->vocab < 1 || job->vocab > EXL_MAX_VOCAB || job->room < 1 ||
        job->blocks < 1)
        return EXL_BAD_ARGUMENT;
    const int blocks = (job->vocab + exl::ADJUST_THREADS - 1) / exl::ADJUST_THREADS;
    const cudaStream_t s = static_cast<cudaStream_t>(stream);
    const int error = exl::launch(exl::look_back, job->blocks, exl::BACK_THREADS, 0, dependent, s, *job);
    return error ? error : exl::launch(exl::adjust, blocks, exl::ADJUST_THREADS, 0, dependent, s, *job);
}
