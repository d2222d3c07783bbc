// Attention of a prompt's new tokens over the cached ones and each other, in halves, and their keys and values into the
// cache. How many there are is read on the card, so that one graph serves any place in any sequence.
//
// A block takes up to 128 queries of one key-value head, those of neighbouring tokens, a warp 16 of them, and a range of
// what they see: pieces of keys and values by turns through shared memory, with a running softmax (Dao 2023, arXiv
// 2307.08691). New keys and values are read where the product left them and older ones in their pages, which are asked for
// before the previous kernel has ended. Where several blocks share what queries see, a second kernel merges their parts, in
// their order.
#include "attention_cache.cuh"
#include "attention_math.cuh"
#include "launch.cuh"

namespace exl {

constexpr int QUERY_WARPS = 8, QUERIES = QUERY_WARPS * 16, QUERY_THREADS = QUERY_WARPS * LANES;
constexpr int LEAST_TOKENS = 256;  // of a range: a shorter one costs more to merge than it saves

// Tokens that come to shared memory together. A row there is 16 bytes longer than a head: eight of them are read at once
// and begin on different banks.
template <int DIM> struct PromptPiece {
    static constexpr int TOKENS = DIM > 128 ? 32 : 64, STRIDE = DIM + 8, SIZE = TOKENS * STRIDE;
    static constexpr int SHARED = 4 * SIZE * (int)sizeof(half);  // two of keys and two of values
};

// Queries `tile * QUERIES` and on of a key-value head, `group` of each token, and what they see.
struct TileShare {
    int start, tokens;        // before all new tokens, and new ones
    int first, last;          // new tokens of the tile; none where first >= tokens
    int begin, end;           // pieces
    int each, active;         // pieces of a block, and blocks that share them

    __device__ __forceinline__ TileShare(const ExlPromptAttention &job, int tile, int piece) {
        const int group = job.heads / job.kv_heads;
        const int2 place = produced(static_cast<const int2 *>(job.place));
        start = place.x, tokens = place.y;
        first = tile * QUERIES / group, last = min((tile * QUERIES + QUERIES - 1) / group, tokens - 1);
        begin = job.window > 0 ? max(start + first + 1 - job.window, 0) / piece : 0;
        end = (start + last + piece) / piece;
        const int pieces = end - begin;
        each = max((pieces + job.splits - 1) / job.splits, LEAST_TOKENS / piece);
        active = first < tokens ? (pieces + each - 1) / each : 0;
    }
};

// What a block leaves of QUERIES rows: mixtures, then best and sum of each.
template <int DIM> __device__ __forceinline__ float *part_of(const ExlPromptAttention &job, int columns, int column, int split) {
    return static_cast<float *>(job.partial) + ((size_t)split * columns + column) * (QUERIES * (DIM + 2));
}
__host__ __device__ __forceinline__ int tiles_of(const ExlPromptAttention &job) {
    return (job.rows * (job.heads / job.kv_heads) + QUERIES - 1) / QUERIES;
}
// A sink joins the softmax without a value.
__device__ __forceinline__ void add_sink(const ExlPromptAttention &job, int head, float &keep, float best, float &sum) {
    const float sink = __ldg(static_cast<const float *>(job.sinks) + head) * LOG2_E, top = fmaxf(best, sink);
    keep = power_of_two(best - top), sum = sum * keep + power_of_two(sink - top);
}

template <int DIM> __global__ void __launch_bounds__(QUERY_THREADS, 1)
    prompt_attention(const __grid_constant__ ExlPromptAttention job) {
    using P = PromptPiece<DIM>;
    constexpr int STEPS = DIM / 16, COLUMNS = P::TOKENS / 8;
    EXL_SHARED_MEMORY(shared);
    let_next_start();
    const int columns = tiles_of(job) * job.kv_heads, column = blockIdx.x % columns, split = blockIdx.x / columns;
    const int kv = column % job.kv_heads, tile = column / job.kv_heads, group = job.heads / job.kv_heads;
    const TileShare share(job, tile, P::TOKENS);
    if (split >= share.active) return wait_for_previous();
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    const int begin = share.begin + split * share.each, end = min(begin + share.each, share.end);
    const int all = job.heads + 2 * job.kv_heads;
    const half *rows = static_cast<const half *>(job.qkv);
    half *cached_keys = static_cast<half *>(job.keys), *cached_values = static_cast<half *>(job.values);
    half *pieces = reinterpret_cast<half *>(shared);
    const auto cache_row_of = [&](int token) {
        const int page = __ldg(static_cast<const int *>(job.page_table) + token / PAGE);
        return (size_t)page * job.page_stride + (size_t)kv * job.head_stride + token % PAGE;
    };
    const auto place_of = [&](int piece, bool values) { return pieces + ((piece - begin) % 2 * 2 + values) * P::SIZE; };
    const auto ask = [&](int piece, bool values) {
        if (piece < end) {
            const int from = piece * P::TOKENS, seen = share.start + share.last + 1;
            const half *stored = (values ? cached_values : cached_keys) + cache_row_of(from) * DIM;
            const half *fresh = rows + (size_t)(job.heads + (values ? job.kv_heads : 0) + kv) * DIM;
            half *to = place_of(piece, values);
            for (int i = threadIdx.x; i < P::TOKENS * (DIM / 8); i += QUERY_THREADS) {
                const int row = i / (DIM / 8), part = i % (DIM / 8) * 8, token = from + row;
                const half *vector = token < share.start ? stored + row * DIM
                                                         : fresh + (size_t)(min(token, seen - 1) - share.start) * all * DIM;
                copy16_of(to + row * P::STRIDE + part, vector + part, token < seen ? 16 : 0);
            }
        }
        end_of_copies();
    };
    const bool early = (begin + 1) * P::TOKENS <= share.start;
    if (early) ask(begin, false), ask(begin, true);
    wait_for_previous();
    if (!early) ask(begin, false), ask(begin, true);

    // New keys and values into their pages, a token by the first block of the first tile that has it.
    if (split == 0) {
        const int from = (tile * QUERIES + group - 1) / group, count = share.last - from + 1;
        for (int i = threadIdx.x; i < count * 2 * (DIM / 8); i += QUERY_THREADS) {
            const int token = from + i / (2 * (DIM / 8)), part = i % (DIM / 8) * 8;
            const bool value = i / (DIM / 8) % 2;
            const half *vector = rows + ((size_t)token * all + job.heads + (value ? job.kv_heads : 0) + kv) * DIM;
            half *to = (value ? cached_values : cached_keys) + cache_row_of(share.start + token) * DIM;
            *reinterpret_cast<uint4 *>(to + part) = produced(reinterpret_cast<const uint4 *>(vector + part));
        }
    }

    // A lane has two queries: of this warp's 16 the ones at lane / 4 and 8 further.
    const int query = tile * QUERIES + warp * 16 + lane / 4;
    int token[2], head[2], high[2];  // high: the last position that each sees
    uint32_t q[STEPS][4];
#pragma unroll
    for (int e = 0; e < 2; e++) {
        token[e] = min((query + 8 * e) / group, share.tokens - 1), head[e] = kv * group + (query + 8 * e) % group;
        high[e] = share.start + token[e];
        const half *from = rows + ((size_t)token[e] * all + head[e]) * DIM + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            q[i][e] = produced(reinterpret_cast<const uint32_t *>(from + i * 16));
            q[i][2 + e] = produced(reinterpret_cast<const uint32_t *>(from + i * 16 + 8));
        }
    }
    const int warp_first = tile * QUERIES + warp * 16;
    const bool works = warp_first / group < share.tokens;
    const int lowest = share.start + warp_first / group;
    const int highest = share.start + min((warp_first + 15) / group, share.tokens - 1);
    const float factor = query_factor(job);
    float mixed[DIM / 8][4] = {}, best[2] = {EMPTY, EMPTY}, sum[2] = {};
    uint32_t b[4];
#pragma unroll 1
    for (int piece = begin; piece < end; piece++) {
        const int from = piece * P::TOKENS;
        const bool seen = works && from <= highest;
        ask(piece + 1, false);
        wait_for_copies<2>();
        __syncthreads();
        uint32_t weights[COLUMNS][2];
        if (seen) {
            float score[COLUMNS][4] = {};
            const half *keys = place_of(piece, false) + (lane / 16 * 8 + lane % 8) * P::STRIDE + lane / 8 % 2 * 8;
#pragma unroll
            for (int i = 0; i < STEPS; i++)
#pragma unroll
                for (int j = 0; j < COLUMNS; j += 2) {
                    load_blocks(b, keys + j * 8 * P::STRIDE + i * 16);
                    mma(score[j], q[i][0], q[i][1], q[i][2], q[i][3], b[0], b[1]);
                    mma(score[j + 1], q[i][0], q[i][1], q[i][2], q[i][3], b[2], b[3]);
                }
            const bool edge = from + P::TOKENS > lowest + 1 || (job.window > 0 && from + job.window <= highest);
            float top[2] = {best[0], best[1]};
#pragma unroll
            for (int j = 0; j < COLUMNS; j++)
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    float &s = score[j][c];
                    s *= factor;
                    if (job.softcap > 0.f) s = capped(job, s);
                    if (edge) {
                        const int at = from + j * 8 + lane % 4 * 2 + c % 2, last = high[c / 2];
                        if (at > last || (job.window > 0 && at + job.window <= last)) s = EMPTY;
                    }
                    top[c / 2] = fmaxf(top[c / 2], s);
                }
#pragma unroll
            for (int e = 0; e < 2; e++) {
                top[e] = fmaxf(top[e], __shfl_xor_sync(~0u, top[e], 1));
                top[e] = fmaxf(top[e], __shfl_xor_sync(~0u, top[e], 2));
            }
            if (__any_sync(~0u, top[0] > best[0] || top[1] > best[1])) {
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const float keep = power_of_two(best[e] - top[e]);
                    best[e] = top[e], sum[e] *= keep;
#pragma unroll
                    for (int m = 0; m < DIM / 8; m++) mixed[m][2 * e] *= keep, mixed[m][2 * e + 1] *= keep;
                }
            }
            // A query may see nothing of the pieces so far: nothing weighs anything then.
            const float against[2] = {best[0] == EMPTY ? 0.f : best[0], best[1] == EMPTY ? 0.f : best[1]};
#pragma unroll
            for (int j = 0; j < COLUMNS; j++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const float even = power_of_two(score[j][2 * e] - against[e]);
                    const float odd = power_of_two(score[j][2 * e + 1] - against[e]);
                    sum[e] += even + odd;
                    weights[j][e] = bits_of(__floats2half2_rn(even, odd));
                }
        }
        ask(piece + 1, true);
        wait_for_copies<2>();
        __syncthreads();
        if (seen) {
            const half *values = place_of(piece, true) + (lane / 8 % 2 * 8 + lane % 8) * P::STRIDE + lane / 16 * 8;
#pragma unroll
            for (int k = 0; k < COLUMNS; k += 2)
#pragma unroll
                for (int m = 0; m < DIM / 8; m += 2) {
                    load_blocks_turned(b, values + k * 8 * P::STRIDE + m * 8);
                    mma(mixed[m], weights[k][0], weights[k][1], weights[k + 1][0], weights[k + 1][1], b[0], b[1]);
                    mma(mixed[m + 1], weights[k][0], weights[k][1], weights[k + 1][0], weights[k + 1][1], b[2], b[3]);
                }
        }
    }
    wait_for_copies<0>();
    if (!works) return;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        sum[e] += __shfl_xor_sync(~0u, sum[e], 1);
        sum[e] += __shfl_xor_sync(~0u, sum[e], 2);
        const int row = query + 8 * e;
        if (row / group >= share.tokens) continue;
        if (share.active > 1) {
            float *part = part_of<DIM>(job, columns, column, split);
            const int at = row - tile * QUERIES;
#pragma unroll
            for (int m = 0; m < DIM / 8; m++)
                *reinterpret_cast<float2 *>(part + at * DIM + m * 8 + lane % 4 * 2) =
                    float2{mixed[m][2 * e], mixed[m][2 * e + 1]};
            if (lane % 4 == 0) *reinterpret_cast<float2 *>(part + QUERIES * DIM + at * 2) = float2{best[e], sum[e]};
            continue;
        }
        float keep = 1.f;
        if (job.sinks) add_sink(job, head[e], keep, best[e], sum[e]);
        const float scale = __fdividef(keep, sum[e]);
        half *out = static_cast<half *>(job.out) + ((size_t)token[e] * job.heads + head[e]) * DIM + lane % 4 * 2;
#pragma unroll
        for (int m = 0; m < DIM / 8; m++)
            *reinterpret_cast<half2 *>(out + m * 8) =
                __floats2half2_rn(mixed[m][2 * e] * scale, mixed[m][2 * e + 1] * scale);
    }
}

// A head of a token, a warp each: the parts that several blocks have left.
template <int DIM> __global__ void __launch_bounds__(QUERY_THREADS)
    merge_prompt_parts(const __grid_constant__ ExlPromptAttention job) {
    let_next_start();
    const int lane = threadIdx.x % LANES, number = blockIdx.x * QUERY_WARPS + threadIdx.x / LANES;
    const int token = number / job.heads, head = number % job.heads, group = job.heads / job.kv_heads;
    const int kv = head / group, row = token * group + head % group, tile = row / QUERIES, at = row % QUERIES;
    const TileShare share(job, tile, PromptPiece<DIM>::TOKENS);
    wait_for_previous();
    if (token >= share.tokens || share.active == 1) return;
    const int columns = tiles_of(job) * job.kv_heads, column = tile * job.kv_heads + kv;
    float2 own = {EMPTY, 0.f};
    if (lane < share.active)
        own = produced(reinterpret_cast<const float2 *>(part_of<DIM>(job, columns, column, lane) + QUERIES * DIM + at * 2));
    float best = own.x;
#pragma unroll
    for (int step = 1; step < LANES; step *= 2) best = fmaxf(best, __shfl_xor_sync(~0u, best, step));
    const float weight = power_of_two(own.x - best);
    float sum = warp_sum(weight * own.y), keep = 1.f;
    if (job.sinks) add_sink(job, head, keep, best, sum);
    constexpr int ROUNDS = (DIM + LANES * 4 - 1) / (LANES * 4);
    float4 mixed[ROUNDS] = {};
#pragma unroll 4
    for (int split = 0; split < share.active; split++) {
        const float *part = part_of<DIM>(job, columns, column, split) + at * DIM;
        const float by = __shfl_sync(~0u, weight, split);
#pragma unroll
        for (int i = 0; i < ROUNDS; i++) {
            const int d = (i * LANES + lane) * 4;
            if (d >= DIM) continue;
            const float4 v = produced(reinterpret_cast<const float4 *>(part + d));
            mixed[i].x += by * v.x, mixed[i].y += by * v.y, mixed[i].z += by * v.z, mixed[i].w += by * v.w;
        }
    }
    const float scale = __fdividef(keep, sum);
    half *out = static_cast<half *>(job.out) + ((size_t)token * job.heads + head) * DIM;
#pragma unroll
    for (int i = 0; i < ROUNDS; i++) {
        const int d = (i * LANES + lane) * 4;
        if (d >= DIM) continue;
        const half2 two[2] = {__floats2half2_rn(mixed[i].x * scale, mixed[i].y * scale),
                              __floats2half2_rn(mixed[i].z * scale, mixed[i].w * scale)};
        *reinterpret_cast<uint2 *>(out + d) = reinterpret_cast<const uint2 &>(two);
    }
}

template <int DIM> int launch_prompt_attention(const ExlPromptAttention &job, int dependent, cudaStream_t stream) {
    const int blocks = tiles_of(job) * job.kv_heads * job.splits;
    const int code = launch(prompt_attention<DIM>, blocks, QUERY_THREADS, PromptPiece<DIM>::SHARED, dependent, stream, job);
    if (code || job.splits == 1) return code;
    const int merging = (job.rows * job.heads + QUERY_WARPS - 1) / QUERY_WARPS;
    return launch(merge_prompt_parts<DIM>, merging, QUERY_THREADS, 0, dependent, stream, job);
}

static bool prompt_attention_ok(const ExlPromptAttention &job) {
    const bool pointers = job.qkv && job.place && job.page_table && job.keys && job.values && job.out && job.partial;
    return pointers && job.heads > 0 && job.kv_heads > 0 && job.heads % job.kv_heads == 0 && job.window >= 0 &&
           job.splits > 0 && job.splits <= LANES && job.page_stride > 0 && job.page_stride % PAGE == 0 &&
           job.head_stride > 0 && job.head_stride % PAGE == 0 && job.rows > 0 && job.rows <= EXL_GEMM_MAX_ROWS;
}

}  // namespace exl

extern "C" int exl_prompt_attention(const ExlPromptAttention *job, int dependent, void *stream) {
    if (!job || !exl::prompt_attention_ok(*job)) return EXL_BAD_ARGUMENT;
    const cudaStream_t s = static_cast<cudaStream_t>(stream);
    switch (job->head_dim) {
        case 64: return exl::launch_prompt_attention<64>(*job, dependent, s);
        case 80: return exl::launch_prompt_attention<80>(*job, dependent, s);
        case 96: return exl::launch_prompt_attention<96>(*job, dependent, s);
        case 128: return exl::launch_prompt_attention<128>(*job, dependent, s);
        case 256: return exl::launch_prompt_attention<256>(*job, dependent, s);
        default: return EXL_BAD_ARGUMENT;
    }
}
