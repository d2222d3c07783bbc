// What the sampler is made of: ordered bits, fixed-point weights, sums over a block, Philox.
//
// Weights are integers, so that sums are exact and the same in every order: 2^(40 - octaves below the best logit),
// rounded. 2^19 tokens of the largest weight still fit into 64 bits; under 2^-41 of the best is nothing.
#pragma once
#include "device.cuh"
#include "exlchat.h"

namespace exl {

using Wide = unsigned long long;  // 64 bits by the name that atomics know

constexpr int SAMPLE_THREADS = 512;
constexpr int SAMPLE_WARPS = SAMPLE_THREADS / LANES;
constexpr int IDS = 4;                         // of a thread
constexpr int PIECE = IDS * LANES;             // ids of a warp, one behind the other
constexpr int CHUNK = IDS * SAMPLE_THREADS;    // ids of a block
constexpr int MAX_CHUNKS = EXL_MAX_VOCAB / CHUNK;
constexpr int MAX_PIECES = EXL_MAX_VOCAB / PIECE;
constexpr int BINS = 2 * SAMPLE_THREADS;
constexpr int CANDIDATES = 2048;
constexpr float OCTAVES = 41.f;         // from the best to the least logit with a weight
constexpr float ONE = 1099511627776.f;  // 2^40
constexpr Wide BAD = ~Wide(0);

// What a chunk of ids says of itself: the largest `place`, and ~ the smallest ordered bits of a finite logit.
struct __align__(16) ChunkBest {
    Wide best;
    uint32_t least, unused;
};

// The largest place of some logits, or BAD, and ~ the smallest of those above -inf; 0 where there are none.
struct __align__(16) Ends {
    Wide best, least;
};

// Global memory of one sampler. What is added to is zero before the first step, and left so by every step; the rest is
// written by every step before it is read.
struct SampleScratch {
    Wide mass[BINS];       // added to
    uint32_t count[BINS];  // added to
    uint32_t candidate_count, unused[3];  // added to
    ChunkBest best[MAX_CHUNKS];
    Wide piece_mass[MAX_PIECES];
    Wide candidates[CANDIDATES];
};
static_assert(sizeof(SampleScratch) == EXL_SAMPLE_SCRATCH_BYTES, "also in exlchat/ext/functions.py");

__device__ __forceinline__ float unordered(uint32_t key) {
    return __uint_as_float(key >> 31 ? key ^ 1u << 31 : ~key);
}

// An id's place in the order of sampling: larger logits first, of equal ones the lower id. No two are alike.
__device__ __forceinline__ Wide place(float logit, int id) { return (Wide)ordered(logit) << 32 | (uint32_t)~id; }
__device__ __forceinline__ float logit_of(Wide place) { return unordered(place >> 32); }
__device__ __forceinline__ int id_of(Wide place) { return ~(uint32_t)place; }

// How logits become octaves below the best, weights and bins; each falls or rises with the logit, never both.
struct Scale {
    float best, octaves_per_logit, bins_per_octave;

    __device__ __forceinline__ float octaves(float logit) const { return (best - logit) * octaves_per_logit; }
    __device__ __forceinline__ int bin(float octaves) const { return min((int)(octaves * bins_per_octave), BINS - 1); }
};
__device__ __forceinline__ Wide weight_of(float octaves) { return __float2ull_rn(exp2f(-octaves) * ONE); }

// The bins share out the octaves that are there: a flat distribution gets narrow ones.
__device__ __forceinline__ Scale scale_of(const ExlDraw &draw, Wide best, uint32_t least) {
    Scale scale{logit_of(best), draw.octaves_per_logit, 0.f};
    scale.bins_per_octave = BINS / fminf(fmaxf(scale.octaves(unordered(~least)), 1e-6f), OCTAVES);
    return scale;
}

// A sum of weights, and how many there are.
struct Sum {
    Wide mass;
    uint32_t count;
};
__device__ __forceinline__ Sum operator+(Sum a, Sum b) { return {a.mass + b.mass, a.count + b.count}; }

template <class T> __device__ __forceinline__ T warp_max(T v) {
#pragma unroll
    for (int d = 16; d; d /= 2) v = max(v, __shfl_xor_sync(~0u, v, d));
    return v;
}
__device__ __forceinline__ uint32_t warp_most(uint32_t v) {
#if __CUDA_ARCH__ >= 800
    return __reduce_max_sync(~0u, v);
#else
    return warp_max(v);
#endif
}
// Of the logits of a warp, whose ids follow each other; lanes without one have `has` false.
__device__ __forceinline__ Ends warp_ends(float logit, int id, bool has) {
    const int first = id - (int)(threadIdx.x % LANES);
    const uint32_t key = !has ? 0 : logit < INFINITY ? ordered(logit) : ~0u;  // BAD: and NaN
    const uint32_t under = has && logit > -INFINITY ? ~ordered(logit) : 0;
    const uint32_t best = warp_most(key), least = warp_most(under);
    const int best_id = first + __ffs(__ballot_sync(~0u, key == best)) - 1;
    const int least_id = first + 31 - __clz(__ballot_sync(~0u, under == least));
    return {best == ~0u ? BAD : (Wide)best << 32 | (uint32_t)~best_id, least ? (Wide)least << 32 | (uint32_t)least_id : 0};
}
__device__ __forceinline__ Ends warp_max(Ends v) { return {warp_max(v.best), warp_max(v.least)}; }
__device__ __forceinline__ Wide warp_total(Wide v) {
#pragma unroll
    for (int d = 16; d; d /= 2) v += __shfl_xor_sync(~0u, v, d);
    return v;
}
__device__ __forceinline__ Sum warp_sum_through(Sum through) {
    const int lane = threadIdx.x % LANES;
#pragma unroll
    for (int d = 1; d < LANES; d *= 2) {
        const Sum other{__shfl_up_sync(~0u, through.mass, d), __shfl_up_sync(~0u, through.count, d)};
        if (lane >= d) through = through + other;
    }
    return through;
}

// The sum over all lower threads; `all` becomes the sum over the block.
__device__ __forceinline__ Sum block_sum_below(Sum mine, Sum &all) {
    __shared__ Sum warps[SAMPLE_WARPS];
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    const Sum through = warp_sum_through(mine);
    __syncthreads();  // an earlier call may still be read
    if (lane == LANES - 1) warps[warp] = through;
    __syncthreads();
    Sum below{0, 0};
    all = below;
#pragma unroll
    for (int i = 0; i < SAMPLE_WARPS; i++) {
        if (i == warp) below = all;
        all = all + warps[i];
    }
    return {below.mass + through.mass - mine.mass, below.count + through.count - mine.count};
}

// Two words in shared memory as one sum of 64 bits: shared memory adds 32 at once, and 64 only by trying again.
__device__ __forceinline__ void add_mass(uint32_t *low, uint32_t *high, Wide mass, uint32_t also_high) {
    const uint32_t part = (uint32_t)mass;
    const bool carry = atomicAdd(low, part) > ~part;
    atomicAdd(high, (uint32_t)(mass >> 32) + carry + also_high);
}

// The first 64 bits of Philox4x32-10 (Salmon et al. 2011, doi 10.1145/2063384.2063405), first word high, cut to 53.
__device__ __forceinline__ Wide uniform_bits(Wide seed, Wide index, uint32_t attempt, uint32_t coin) {
    uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);
    uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32), c2 = attempt, c3 = coin;
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const Wide a = (Wide)0xD2511F53u * c0, b = (Wide)0xCD9E8D57u * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ key0, c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ key1, c3 = (uint32_t)a;
        key0 += 0x9E3779B9u, key1 += 0xBB67AE85u;
    }
    return ((Wide)c0 << 32 | c1) & ~Wide(0x7FF);
}

__device__ __forceinline__ float logit_at(const ExlSample &job, int id) {
    return id < job.vocab ? produced(static_cast<const float *>(job.logits) + id) : -INFINITY;
}
__device__ __forceinline__ SampleScratch &scratch_of(const ExlSample &job) {
    return *static_cast<SampleScratch *>(job.scratch);
}
__device__ __forceinline__ int chunks_of(const ExlSample &job) { return (job.vocab + CHUNK - 1) / CHUNK; }
__device__ __forceinline__ ExlDraw draw_of(const ExlDraw *from) {
    ExlDraw draw;
    static_assert(sizeof(draw) % sizeof(uint4) == 0, "");
#pragma unroll
    for (int i = 0; i < sizeof(draw) / sizeof(uint4); i++)
        reinterpret_cast<uint4 *>(&draw)[i] = produced(reinterpret_cast<const uint4 *>(from) + i);
    return draw;
}
__device__ __forceinline__ ExlDraw draw_of(const ExlSample &job) { return draw_of(job.draw); }
__device__ __forceinline__ bool is_cut(const ExlDraw &draw) { return draw.top_k > 0 || draw.top_p < 1.0; }

// Ends the step: the token goes to the next step, into the context, and to the host.
__device__ __forceinline__ void report(const ExlSample &job, const ExlDraw &draw, int token, int status) {
    const uint32_t sequence = draw.sequence + 1;
    tell_host(static_cast<Wide *>(job.ring) + sequence % job.ring_slots,
              (Wide)sequence << 32 | (uint32_t)status << 24 | (uint32_t)token);
    const int position = produced(static_cast<const int *>(job.position)) + 1;
    *static_cast<int64_t *>(job.token) = token;
    *static_cast<int *>(job.position) = position;
    if (job.context && position < job.room) static_cast<int *>(job.context)[position] = token;
    job.draw->index = draw.index + 1;
    job.draw->sequence = sequence;
}

// Some logit is NaN or +inf, or all are -inf.
__device__ __forceinline__ bool not_numbers(Wide best) { return best == BAD || logit_of(best) == -INFINITY; }

// Which of the two, and no token.
__device__ __forceinline__ void report_none(const ExlSample &job, const ExlDraw &draw, Wide best) {
    const bool were_numbers = job.numbers && produced(static_cast<const uint32_t *>(job.numbers)) == draw.sequence + 1;
    report(job, draw, 0, best != BAD && were_numbers ? EXL_NOTHING_ALLOWED : EXL_NOT_NUMBERS);
}

}  // namespace exl
