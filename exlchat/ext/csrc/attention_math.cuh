// The steps of decode attention that do not depend on how the cache is stored: which tokens a warp takes, heads turned
// to their positions, the running softmax.
#pragma once
#include "attention.cuh"
#include "attention_cache.cuh"

namespace exl {

constexpr int HEADS = 8;
// So many pieces a warp take a block hardly longer than one: a range costs several us whatever is in it. Eight tokens
// behind 1,024 took a step of an 8B 4.22 ms with shorter ranges and take 3.72, one token 1.63 and 1.62.
constexpr int PIECES = 2;
constexpr float EMPTY = -1e30f;
constexpr float LOG2_E = 1.4426950408889634f;

// Whether several tokens are of one sequence, and not of one each.
__host__ __device__ __forceinline__ bool follow_each_other(const ExlAttention &job) { return job.table_stride == 0; }

// Row of the cache that holds token `at` of the sequence of a new token.
__device__ __forceinline__ int cache_row(const ExlAttention &job, int token, int kv, unsigned at) {
    const int *table = static_cast<const int *>(job.page_table) + (size_t)token * job.table_stride;
    return __ldg(table + at / PAGE) * job.page_stride + kv * job.head_stride + (int)(at % PAGE);
}

// Queries, keys and values of a new token.
template <int DIM> __device__ __forceinline__ const half *heads_of(const ExlAttention &job, int token) {
    return static_cast<const half *>(job.qkv) + (size_t)token * (job.heads + 2 * job.kv_heads) * DIM;
}

// Of numbers below 2^20, exactly: half of one is more than the quotient of floats is off by. A division of integers takes four
// times the instructions.
__device__ __forceinline__ int divided(int number, int by) { return (int)__fdividef(number + 0.5f, (float)by); }

// The cached tokens that a new one sees, in pieces, and how many ranges blocks make of them, even to one piece. From three
// on they are a multiple of four: 8 heads of 4 or 8 tokens are then nearly as many for each of 132 multiprocessors (an 8B's
// step behind 2,048 tokens, 8 rows: 3.17 -> 3.03 ms, one: 1.64 -> 1.63).
struct Shares {
    int visible_from;  // tokens
    int begin, units;  // pieces: the first, and how many
    int active;        // ranges

    __device__ __forceinline__ Shares(const ExlAttention &job, int cached, int warps) {
        visible_from = job.window > 0 ? max(cached + 1 - job.window, 0) : 0;
        begin = visible_from / UNIT;
        units = visible_from < cached ? (cached + UNIT - 1) / UNIT - begin : 0;
        const int full = PIECES * warps;
        active = divided(units + full - 1, full);
        if (active > 2) active = (active + 3) & ~3;
        if (job.least > 0) active = min(active, units * UNIT / job.least);
        active = max(min(active, job.splits), 1);
    }
};

// A piece of work: queries of a new token, which has so many before it, and which range of them.
struct WorkItem {
    int column, token, split, cached;
    int active;            // ranges of the head
    int done;              // of those by this block, with this one
    int number, left;      // among all pieces of work; those that the block has behind this one
    int visible_from;      // tokens
    int begin, end;        // pieces of this range
    int kv, from;          // `heads` of key-value head kv, from `from` on among those that it has
    int heads, first_head;

    __device__ __forceinline__ void take_range(const Shares &shares) {
        const int each = divided(shares.units, active), rest = shares.units - each * active;
        visible_from = shares.visible_from;
        begin = shares.begin + split * each + min(split, rest), end = begin + each + (split < rest);
    }
    __device__ __forceinline__ void take_heads(const ExlAttention &job) {
        const int group = divided(job.heads, job.kv_heads), tiles = (group + HEADS - 1) / HEADS;
        kv = divided(column, tiles), from = (column - kv * tiles) * HEADS;
        heads = min(group - from, HEADS), first_head = kv * group + from;
    }
    __device__ __forceinline__ bool newest() const { return split == 0; }  // it has the new token
    __device__ __forceinline__ int used(int warps) const { return min(warps, end - begin); }  // warps that have pieces
};

// Of one token a block has one.
__device__ __forceinline__ WorkItem only_item(const ExlAttention &job, int columns) {
    const int cached = produced(static_cast<const int *>(job.position));
    const Shares shares(job, cached, blockDim.x / LANES);
    const int split = divided(blockIdx.x, columns);
    WorkItem work = {(int)blockIdx.x - split * columns, 0, split, cached, shares.active, 1};
    work.take_range(shares), work.take_heads(job);
    return work;
}

// The pieces of work of several tokens, ranges of a head one behind the other. All blocks have as many of them, to one more or
// less, and those that stand side by side: of the head that it has already a block does another range without preparing its
// queries again and without meeting anybody (eight rows behind 2,048 tokens: a step of an 8B 3.57 -> 3.04 ms on an H200, and
// with what attention_kernel.cuh says of alignment).
template <int ROWS> class WorkItems {
    static constexpr int EACH = (ROWS + LANES - 1) / LANES, OF = ROWS < LANES ? ROWS : LANES;  // lanes that have tokens
    const ExlAttention &job;
    int rows, columns, total = 0;
    int cached[EACH], active[EACH], through[EACH];  // of a lane's tokens; through: pieces up to and of each

  public:
    // By whole warps. All positions are asked for at once, for they are what everything else waits for.
    __device__ __forceinline__ WorkItems(const ExlAttention &job, int columns) : job(job), rows(job.rows), columns(columns) {
        const int *positions = static_cast<const int *>(job.position);
        const int lane = threadIdx.x % LANES;
#pragma unroll
        for (int i = 0; i < EACH; i++)
            cached[i] = i * LANES + lane < rows ? produced(positions + i * LANES + lane) : 0;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            if (i * LANES >= rows) break;
            active[i] = i * LANES + lane < rows ? Shares(job, cached[i], blockDim.x / LANES).active : 0;
            through[i] = active[i] * columns;
#pragma unroll
            for (int d = 1; d < OF; d *= 2) {
                const int others = __shfl_up_sync(~0u, through[i], d);
                if (lane >= d) through[i] += others;
            }
            through[i] += total;
            total = __shfl_sync(~0u, through[i], OF - 1);
        }
    }
    // The first one of this block; where it has none `left` is negative. The first blocks, which begin before the others, have
    // one more.
    __device__ __forceinline__ WorkItem first() const {
        const int block = blockIdx.x, blocks = gridDim.x, each = divided(total, blocks), rest = total - each * blocks;
        return at(block * each + min(block, rest), each + (block < rest) - 1);
    }
    __device__ __forceinline__ WorkItem at(int number, int left) const {
        WorkItem work = {0, rows, 0, 0, 1, 1, number, left};
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            if (i * LANES >= rows || work.token < rows) break;
            const int lane = __popc(__ballot_sync(~0u, through[i] <= number && threadIdx.x % LANES < OF));
            if (lane == OF) continue;
            work.token = i * LANES + lane, work.cached = __shfl_sync(~0u, cached[i], lane);
            work.active = __shfl_sync(~0u, active[i], lane);
            const int of_token = number - __shfl_sync(~0u, through[i], lane) + work.active * columns;
            work.column = divided(of_token, work.active), work.split = of_token - work.column * work.active;
        }
        work.take_range(Shares(job, work.cached, blockDim.x / LANES)), work.take_heads(job);
        return work;
    }
};

// The turns of a lane's share of a head, read before the head itself is there; nobody waits for them before that.
template <int DIM> struct Turns {
    float2 turn[SHARE<DIM>];
    int partner[SHARE<DIM>];

    __device__ __forceinline__ Turns(const ExlAttention &job, int position, int lane) {
        const int pairs = job.rotary_dim / 2;
        const float2 *turns = static_cast<const float2 *>(job.turns) + (size_t)position * pairs;
#pragma unroll
        for (int i = 0; i < SHARE<DIM>; i++) {
            const int d = i * LANES + lane;
            const bool turned = d < 2 * pairs, first = job.interleaved ? d % 2 == 0 : d < pairs;
            const int step = job.interleaved ? 1 : pairs;
            partner[i] = turned ? (first ? d + step : d - step) : d;
            turn[i] = float2{1.f, 0.f};
            if (turned) turn[i] = produced(turns + (job.interleaved ? d / 2 : min(d, partner[i])));
        }
    }
};

// A head as the product left it -> normed where the model does so, and turned to its position. Rounded step by step, so
// that it is the same in every kernel.
template <int DIM>
__device__ __forceinline__ void read_head(float (&x)[SHARE<DIM>], const half *in, const void *norm, float eps,
                                          const Turns<DIM> &turns, int lane) {
    float other[SHARE<DIM>], squares = 0.f;
#pragma unroll
    for (int i = 0; i < SHARE<DIM>; i++) {
        const int d = i * LANES + lane;
        x[i] = d < DIM ? __half2float(produced(in + d)) : 0.f;
        other[i] = d < DIM ? __half2float(produced(in + turns.partner[i])) : 0.f;
        squares = __fmaf_rn(x[i], x[i], squares);
    }
    if (norm) {
        const half *weight = static_cast<const half *>(norm);
        const float scale = rsqrtf(warp_sum(squares) / DIM + eps);
#pragma unroll
        for (int i = 0; i < SHARE<DIM>; i++) {
            const int d = i * LANES + lane;
            if (d < DIM) {
                x[i] *= scale * __half2float(weight[d]);
                other[i] *= scale * __half2float(weight[turns.partner[i]]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < SHARE<DIM>; i++) {
        const bool first = turns.partner[i] > i * LANES + lane;
        const float sine = first ? -turns.turn[i].y : turns.turn[i].y;
        x[i] = __fmaf_rn(x[i], turns.turn[i].x, __fmul_rn(other[i], sine));
    }
}

// A new token's key, or its value, as it is stored but not rounded. qkv: the token's.
template <int KEY, int DIM>
__device__ __forceinline__ void read_new(float (&x)[SHARE<DIM>], const ExlAttention &job, const half *qkv, int kv,
                                         bool value, const Turns<DIM> &turns, int lane) {
    const half *in = qkv + (size_t)(job.heads + (value ? job.kv_heads : 0) + kv) * DIM;
    if (!value) {
        read_head<DIM>(x, in, job.key_norm, job.eps, turns, lane);
    } else {
#pragma unroll
        for (int i = 0; i < SHARE<DIM>; i++)
            x[i] = i * LANES + lane < DIM ? __half2float(produced(in + i * LANES + lane)) : 0.f;
    }
    if constexpr (turned(KEY)) hadamard<DIM>(x, lane);
}

// Into row `at` of the cache, by several warps, of which this is number `mine` of `others`. key, value: float [DIM].
template <int KEY, int VALUE, int DIM>
__device__ __forceinline__ void store_token(const ExlAttention &job, size_t at, const float *key, const float *value,
                                            int mine, int others, int lane) {
    if constexpr (!turned(KEY)) {
        for (int d = mine * LANES + lane; d < DIM; d += others * LANES) {
            static_cast<half *>(job.keys)[at * DIM + d] = __float2half_rn(key[d]);
            static_cast<half *>(job.values)[at * DIM + d] = __float2half_rn(value[d]);
        }
    } else if constexpr (KEY == EXL_CACHE_FLOAT8) {
        for (int d = mine * LANES + lane; d < DIM; d += others * LANES) {
            static_cast<uint8_t *>(job.keys)[at * DIM + d] = float8_of(key[d], 0.f);
            static_cast<uint8_t *>(job.values)[at * DIM + d] = float8_of(value[d], 0.f);
        }
    } else {
        constexpr int GROUPS = DIM / GROUP;
#pragma unroll 1
        for (int i = mine; i < 2 * GROUPS; i += others) {
            const bool of_key = i < GROUPS;
            const int g = of_key ? i : i - GROUPS, bits = width_of(of_key ? KEY : VALUE);
            const float x = (of_key ? key : value)[g * GROUP + lane];
            uint8_t *codes = static_cast<uint8_t *>(of_key ? job.keys : job.values);
            half *scales = static_cast<half *>(of_key ? job.key_scales : job.value_scales);
            store_group(codes + (at * DIM + g * GROUP) * bits / 8, scales + at * GROUPS + g, x, bits, lane);
        }
    }
}

// Queries are multiplied by this, so that a product is the logarithm to base 2 of its weight or, with a softcap, what
// the hyperbolic tangent is taken of.
template <class Job> __device__ __forceinline__ float query_factor(const Job &job) {
    return job.softcap > 0.f ? job.scale / job.softcap : job.scale * LOG2_E;
}
template <class Job> __device__ __forceinline__ float capped(const Job &job, float x) {
    const float tangent = 1.f - __fdividef(2.f, power_of_two(fminf(2.f * LOG2_E * x, 100.f)) + 1.f);
    return job.softcap * LOG2_E * tangent;
}

// Scores of a piece -> weights against the best so far, which the mixture and the sum follow. Of both heads of a lane.
template <int TILES>
__device__ __forceinline__ void soften(const ExlAttention &job, const WorkItem &work, int unit, float (&score)[4],
                                       uint32_t (&weights)[2], float (&mixed)[TILES][4], float (&best)[2],
                                       float (&sum)[2], int lane) {
    const int token = unit * UNIT;
    if (job.softcap > 0.f)
#pragma unroll
        for (int i = 0; i < 4; i++) score[i] = capped(job, score[i]);
    if (token < work.visible_from || token + UNIT > work.cached)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int t = token + i / 2 * 8 + lane / 4;
            if (t < work.visible_from || t >= work.cached) score[i] = EMPTY;
        }
    float top[2] = {fmaxf(best[0], fmaxf(score[0], score[2])), fmaxf(best[1], fmaxf(score[1], score[3]))};
#pragma unroll
    for (int step = 4; step < LANES; step *= 2)
#pragma unroll
        for (int e = 0; e < 2; e++) top[e] = fmaxf(top[e], __shfl_xor_sync(~0u, top[e], step));
    if (__any_sync(~0u, top[0] > best[0] || top[1] > best[1])) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const float keep = power_of_two(best[e] - top[e]);
            best[e] = top[e], sum[e] *= keep;
#pragma unroll
            for (int m = 0; m < TILES; m++) mixed[m][e] *= keep, mixed[m][2 + e] *= keep;
        }
    }
    // Every piece has a token that is seen, so `best` is a score and the others vanish.
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float even = power_of_two(score[2 * r] - best[0]), odd = power_of_two(score[2 * r + 1] - best[1]);
        sum[0] += even, sum[1] += odd;
        weights[r] = turned_block(bits_of(__floats2half2_rn(even, odd)));
    }
}

// A finished head: turned back, divided by its sum, to the places where the next product reads it.
template <int DIM, bool TURNED>
__device__ __forceinline__ void write_head(const ExlAttention &job, float (&x)[SHARE<DIM>], float sum, int token,
                                           int head, const uint16_t *places, int lane) {
    if constexpr (TURNED) hadamard<DIM>(x, lane);
    const float inverse = __fdividef(1.f, sum);
    half *out = static_cast<half *>(job.out) + (size_t)token * job.out_stride;
#pragma unroll
    for (int i = 0; i < SHARE<DIM>; i++) {
        const int d = i * LANES + lane;
        if (d < DIM) out[job.scatter ? places[d] : head * DIM + d] = __float2half_rn(x[i] * inverse);
    }
}

}  // namespace exl
