// Decode attention: a block takes up to 8 query heads of one key-value head and a range of the cached tokens.
//
// Each warp walks over pieces of 16 tokens of its own, keys and values by turns, through a ring in shared memory that is
// filled ahead without any barrier between warps, and keeps a running softmax (Dao 2023, arXiv 2307.08691). The tokens
// before this one were stored by earlier steps, so the rings are filled before the previous kernel has ended. The new
// token comes from registers, as a part of its own. Warps are merged in the block; the last block of a head to arrive
// merges the ranges, in their order.
#pragma once
#include "attention.cuh"
#include "attention_cache.cuh"
#include "launch.cuh"

namespace exl {

constexpr int HEADS = 8;
constexpr int MOST_WARPS = 8;
constexpr int ALONE = 4;  // up to so many pieces a warp one block is faster than merging several
constexpr int LEAST = 2;  // pieces a warp that a range has otherwise
constexpr int MOST_SHARED = 112 * 1024;  // so that the next kernel's blocks fit beside these
constexpr float EMPTY = -1e30f;
constexpr float LOG2_E = 1.4426950408889634f;

template <int K_BITS, int V_BITS, int DIM> struct Attention {
    using K = KeyPiece<K_BITS, DIM>;
    using V = ValuePiece<V_BITS, DIM>;
    static constexpr int SLOT = K::SIZE > V::SIZE ? K::SIZE : V::SIZE;
    // Some 64 KB under way on an SM hide its memory's latency; a slot is always being read.
    static constexpr int SLOTS = SLOT >= 4096 ? 3 : (SLOT >= 2048 ? 5 : 8);
    static constexpr int RING = SLOT * SLOTS;
    static constexpr bool TURNED = K_BITS < 16;
    static_assert(RING >= HEADS * (DIM + 2) * (int)sizeof(float), "a warp's part lies where its ring was");

    struct Common {
        half query[HEADS][DIM + 8];
        float key[DIM], value[DIM];
        uint16_t places[HEADS * DIM];
        float weight[HEADS][MOST_SPLITS];
    };
    struct Part {
        float mixed[HEADS][DIM];
        float best[HEADS], sum[HEADS];
    };
};

// What all warps of a block know.
struct Range {
    int cached, visible_from;  // tokens
    int unit, end;             // pieces of this warp: from unit to end in steps of all warps
    int active;                // blocks that share the head
};

__device__ __forceinline__ Range range_of(const ExlAttention &job, int warp, int warps) {
    Range r;
    r.cached = produced(static_cast<const int *>(job.position));
    r.visible_from = job.window > 0 ? max(r.cached + 1 - job.window, 0) : 0;
    const int begin = r.visible_from / UNIT, end = (r.cached + UNIT - 1) / UNIT, units = max(end - begin, 0);
    int each = (units + job.splits - 1) / job.splits;
    each = units <= ALONE * warps ? units : max((each + warps - 1) / warps, LEAST) * warps;
    r.active = max((units + each - 1) / max(each, 1), 1);
    r.unit = begin + blockIdx.y * each + warp;
    r.end = min(begin + (int)(blockIdx.y + 1) * each, end);
    return r;
}

// The turns and the norm's weights for a lane's share of a head, read before the head itself is there.
template <int DIM> struct Turns {
    float2 turn[SHARE<DIM>];
    int partner[SHARE<DIM>];

    __device__ __forceinline__ Turns(const ExlAttention &job, int position, int lane) {
        const int pairs = job.rotary_dim / 2;
        const float2 *turns = static_cast<const float2 *>(job.turns) + (size_t)position * pairs;
#pragma unroll
        for (int i = 0; i < SHARE<DIM>; i++) {
            const int d = i * LANES + lane;
            turn[i] = d < 2 * pairs ? turns[d < pairs ? d : d - pairs] : float2{1.f, 0.f};
            partner[i] = d < pairs ? d + pairs : (d < 2 * pairs ? d - pairs : d);
            if (d < pairs) turn[i].y = -turn[i].y;
        }
    }
};

// A head as the product left it -> normed where the model does so, and turned to its position.
template <int DIM>
__device__ __forceinline__ void read_head(float (&x)[SHARE<DIM>], const half *in, const void *norm, float eps,
                                          const Turns<DIM> &turns, int lane) {
    float other[SHARE<DIM>], squares = 0.f;
#pragma unroll
    for (int i = 0; i < SHARE<DIM>; i++) {
        const int d = i * LANES + lane;
        x[i] = d < DIM ? __half2float(produced(in + d)) : 0.f;
        other[i] = d < DIM ? __half2float(produced(in + turns.partner[i])) : 0.f;
        squares += x[i] * x[i];
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
    for (int i = 0; i < SHARE<DIM>; i++) x[i] = x[i] * turns.turn[i].x + other[i] * turns.turn[i].y;
}

// A product of query and key as the logarithm to base 2 of its weight.
__device__ __forceinline__ float logit(const ExlAttention &job, float product) {
    const float scaled = product * job.scale;
    return (job.softcap > 0.f ? job.softcap * tanhf(scaled / job.softcap) : scaled) * LOG2_E;
}

// Scores of a piece -> weights against the best so far, which the mixture and the sum follow.
template <int TILES>
__device__ __forceinline__ void soften(const ExlAttention &job, const Range &range, int unit, float (&score)[2][4],
                                       uint32_t (&weights)[2], float (&mixed)[TILES][4], float &best, float &sum,
                                       int lane) {
    bool seen[2][2];
    float top = best;
#pragma unroll
    for (int t = 0; t < 2; t++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int token = unit * UNIT + t * 8 + lane % 4 * 2 + e;
            seen[t][e] = token >= range.visible_from && token < range.cached;
            score[t][e] = seen[t][e] ? logit(job, score[t][e]) : EMPTY;
            top = fmaxf(top, score[t][e]);
        }
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
    if (__any_sync(~0u, top > best)) {
        const float keep = exp2f(best - top);
        best = top, sum *= keep;
        // Statistics lie with head lane / 4, the mixture with heads lane % 4 * 2 and the next.
        const float even = __shfl_sync(~0u, keep, lane % 4 * 8), odd = __shfl_sync(~0u, keep, lane % 4 * 8 + 4);
#pragma unroll
        for (int m = 0; m < TILES; m++) mixed[m][0] *= even, mixed[m][1] *= odd, mixed[m][2] *= even, mixed[m][3] *= odd;
    }
#pragma unroll
    for (int t = 0; t < 2; t++) {
        const float low = seen[t][0] ? exp2f(score[t][0] - best) : 0.f;
        const float high = seen[t][1] ? exp2f(score[t][1] - best) : 0.f;
        sum += low + high;
        weights[t] = bits_of(__floats2half2_rn(low, high));
    }
}

// A finished head: turned back, divided by its sum, to the places where the next product reads it.
template <int DIM, bool TURNED>
__device__ __forceinline__ void write_head(const ExlAttention &job, float (&x)[SHARE<DIM>], float sum, int head,
                                           const uint16_t *places, int lane) {
    if constexpr (TURNED) hadamard<DIM>(x, lane);
    const float inverse = 1.f / sum;
#pragma unroll
    for (int i = 0; i < SHARE<DIM>; i++) {
        const int d = i * LANES + lane;
        if (d < DIM)
            static_cast<half *>(job.out)[job.scatter ? places[d] : head * DIM + d] = __float2half_rn(x[i] * inverse);
    }
}

template <int K_BITS, int V_BITS, int DIM>
__global__ void __launch_bounds__(MOST_WARPS *LANES, DIM > 128 ? 1 : 2)
    attention(const __grid_constant__ ExlAttention job) {
    using A = Attention<K_BITS, V_BITS, DIM>;
    extern __shared__ __align__(16) uint8_t raw[];
    auto &common = *reinterpret_cast<typename A::Common *>(raw);
    __shared__ int last;
    let_next_start();
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES, warps = blockDim.x / LANES;
    uint8_t *rings = raw + sizeof(typename A::Common), *ring = rings + warp * A::RING;
    const auto part_of = [&](int w) -> typename A::Part & {
        return *reinterpret_cast<typename A::Part *>(rings + w * A::RING);
    };
    const int group = job.heads / job.kv_heads, tiles = (group + HEADS - 1) / HEADS;
    const int kv = blockIdx.x / tiles, from = blockIdx.x % tiles * HEADS, heads = min(group - from, HEADS);
    const int first_head = kv * group + from;
    const Range range = range_of(job, warp, warps);
    if (blockIdx.y >= range.active) return;
    const bool newest = blockIdx.y == 0;

    const auto row_of = [&](int token) {
        const int page = __ldg(static_cast<const int *>(job.page_table) + token / PAGE);
        return page * job.page_stride + kv * job.head_stride + token % PAGE;
    };
    const int pieces = range.unit < range.end ? 2 * ((range.end - range.unit + warps - 1) / warps) : 0;
    int filled = 0;  // pieces asked for; the groups of copies beyond them are empty
    const auto fill = [&]() {
        if (filled < pieces) {
            const int token = (range.unit + filled / 2 * warps) * UNIT, valid = min(range.cached - token, UNIT);
            uint8_t *slot = ring + filled % A::SLOTS * A::SLOT;
            if (filled % 2 == 0) fetch<typename A::K>(slot, job.keys, job.key_scales, row_of(token), valid, lane);
            else fetch<typename A::V>(slot, job.values, job.value_scales, row_of(token), valid, lane);
        }
        filled++;
        end_of_copies();
    };
    if (job.scatter)
        for (int i = threadIdx.x; i < heads * DIM / 8; i += blockDim.x)
            copy16(common.places + i * 8, static_cast<const uint16_t *>(job.scatter) + first_head * DIM + i * 8);
    for (int i = 0; i < A::SLOTS - 1; i++) fill();
    const Turns<DIM> turns(job, range.cached, lane);

    wait_for_previous();
    const half *qkv = static_cast<const half *>(job.qkv);
    for (int g = warp; g < heads + 2 * newest; g += warps) {
        float x[SHARE<DIM>];
        if (g <= heads) {
            const int head = g < heads ? first_head + g : job.heads + kv;
            read_head<DIM>(x, qkv + (size_t)head * DIM, g < heads ? job.query_norm : job.key_norm, job.eps, turns, lane);
        } else {
            const half *value = qkv + (size_t)(job.heads + job.kv_heads + kv) * DIM;
#pragma unroll
            for (int i = 0; i < SHARE<DIM>; i++)
                x[i] = i * LANES + lane < DIM ? __half2float(produced(value + i * LANES + lane)) : 0.f;
        }
        if constexpr (A::TURNED) hadamard<DIM>(x, lane);
#pragma unroll
        for (int i = 0; i < SHARE<DIM>; i++) {
            const int d = i * LANES + lane;
            if (d >= DIM) continue;
            if (g < heads) common.query[g][query_place<K_BITS, DIM>(d)] = __float2half_rn(x[i]);
            else (g == heads ? common.key : common.value)[d] = x[i];
        }
    }
    __syncthreads();
    if (newest && from == 0) {
        if (warp == warps - 1) store<K_BITS, DIM>(job.keys, job.key_scales, row_of(range.cached), common.key, lane);
        if (warp == max(warps - 2, 0))
            store<V_BITS, DIM>(job.values, job.value_scales, row_of(range.cached), common.value, lane);
    }
    uint32_t query[DIM / 8];
#pragma unroll
    for (int i = 0; i < DIM / 8; i++) {
        const half *share = common.query[lane / 4] + lane % 4 * (DIM / 4);
        query[i] = lane / 4 < heads ? reinterpret_cast<const uint32_t *>(share)[i] : 0;
    }

    float mixed[DIM / 16][4] = {}, best = EMPTY, sum = 0.f;
    int slot = 0;
    const auto next = [&]() {  // the oldest piece; the slot of the one before it is free again
        wait_for_copies<A::SLOTS - 2>();
        __syncwarp();
        fill();
        const uint8_t *piece = ring + slot * A::SLOT;
        slot = slot == A::SLOTS - 1 ? 0 : slot + 1;
        return piece;
    };
    for (int unit = range.unit; unit < range.end; unit += warps) {
        float score[2][4] = {};
        uint32_t weights[2];
        multiply_keys<K_BITS, DIM>(next(), query, score, lane);
        soften(job, range, unit, score, weights, mixed, best, sum, lane);
        add_values<V_BITS, DIM>(next(), weights, mixed, lane);
    }
    wait_for_copies<0>();
    __syncwarp();

    auto &mine = part_of(warp);
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    if (lane % 4 == 0) mine.best[lane / 4] = best, mine.sum[lane / 4] = sum;
#pragma unroll
    for (int e = 0; e < 2; e++)
        if (lane % 4 * 2 + e < heads)
#pragma unroll
            for (int m = 0; m < DIM / 16; m++)
                *reinterpret_cast<float2 *>(&mine.mixed[lane % 4 * 2 + e][mixed_place<V_BITS, DIM>(m, 0, lane)]) =
                    float2{mixed[m][e], mixed[m][2 + e]};
    __syncthreads();

    const int used = min((int)warps, max(range.end - (range.unit - warp), 0));  // warps that had pieces
    float *partial = static_cast<float *>(job.partial) + (size_t)blockIdx.x * job.splits * HEADS * (DIM + 2);
    for (int g = warp; g < heads; g += warps) {
        float product = 0.f, x[SHARE<DIM>] = {}, total = 0.f, top = EMPTY;
        if (newest) {
#pragma unroll
            for (int i = 0; i < SHARE<DIM>; i++) {
                const int d = i * LANES + lane;
                if (d < DIM) product += __half2float(common.query[g][query_place<K_BITS, DIM>(d)]) * common.key[d];
            }
            product = logit(job, warp_sum(product));
            top = product;
        }
        for (int w = 0; w < used; w++) top = fmaxf(top, part_of(w).best[g]);
        for (int w = 0; w < used + newest; w++) {
            const auto &part = part_of(w);
            const float weight = exp2f((w < used ? part.best[g] : product) - top);
            total += weight * (w < used ? part.sum[g] : 1.f);
            const float *values = w < used ? part.mixed[g] : common.value;
#pragma unroll
            for (int i = 0; i < SHARE<DIM>; i++)
                if (i * LANES + lane < DIM) x[i] += weight * values[i * LANES + lane];
        }
        if (range.active == 1) {
            write_head<DIM, A::TURNED>(job, x, total, first_head + g, common.places + g * DIM, lane);
        } else {
            float *to = partial + (size_t)blockIdx.y * HEADS * (DIM + 2);
#pragma unroll
            for (int i = 0; i < SHARE<DIM>; i++)
                if (i * LANES + lane < DIM) to[g * DIM + i * LANES + lane] = x[i];
            if (lane == 0) *reinterpret_cast<float2 *>(to + HEADS * DIM + g * 2) = float2{top, total};
        }
    }
    if (range.active == 1) return;

    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)  // counts to the last and begins again at 0
        last = atomicInc(static_cast<unsigned *>(job.tickets) + blockIdx.x, range.active - 1) == range.active - 1;
    __syncthreads();
    if (!last) return;
    __threadfence();
    const auto record = [&](int split) { return partial + (size_t)split * HEADS * (DIM + 2); };
    for (int g = warp; g < heads; g += warps) {
        float2 stats[MOST_SPLITS / LANES];
        float top = EMPTY, total = 0.f;
#pragma unroll
        for (int i = 0; i < MOST_SPLITS / LANES; i++) {
            const int split = i * LANES + lane;
            stats[i] = float2{EMPTY, 0.f};
            if (split < range.active)
                stats[i] = __ldcg(reinterpret_cast<const float2 *>(record(split) + HEADS * DIM + g * 2));
            top = fmaxf(top, stats[i].x);
        }
#pragma unroll
        for (int step = 16; step; step /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
#pragma unroll
        for (int i = 0; i < MOST_SPLITS / LANES; i++) {
            const float weight = exp2f(stats[i].x - top);
            total += weight * stats[i].y;
            common.weight[g][i * LANES + lane] = weight;
        }
        total = warp_sum(total);
        if (lane == 0) part_of(0).sum[g] = total;
    }
    __syncthreads();
    // All threads read: a quarter of a row each, of every `shares`th range.
    const int items = heads * (DIM / 4), shares = min(max((int)blockDim.x / items, 1), warps);
    for (int i = threadIdx.x; i < items * shares; i += blockDim.x) {
        const int share = i / items, g = i % items / (DIM / 4), d = i % (DIM / 4) * 4;
        float4 mix = {};
#pragma unroll 8
        for (int split = share; split < range.active; split += shares) {
            const float4 v = __ldcg(reinterpret_cast<const float4 *>(record(split) + g * DIM + d));
            const float weight = common.weight[g][split];
            mix.x += weight * v.x, mix.y += weight * v.y, mix.z += weight * v.z, mix.w += weight * v.w;
        }
        *reinterpret_cast<float4 *>(&part_of(share).mixed[g][d]) = mix;
    }
    __syncthreads();
    for (int g = warp; g < heads; g += warps) {
        float x[SHARE<DIM>] = {};
        for (int share = 0; share < shares; share++)
#pragma unroll
            for (int i = 0; i < SHARE<DIM>; i++)
                if (i * LANES + lane < DIM) x[i] += part_of(share).mixed[g][i * LANES + lane];
        write_head<DIM, A::TURNED>(job, x, part_of(0).sum[g], first_head + g, common.places + g * DIM, lane);
    }
}

// As many warps as the card has shared memory for.
template <int K_BITS, int V_BITS, int DIM>
int launch_attention(const ExlAttention &job, int dependent, cudaStream_t stream) {
    using A = Attention<K_BITS, V_BITS, DIM>;
    int device = 0, most = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (error != cudaSuccess) return error;
    const int fixed = sizeof(typename A::Common), room = (most < MOST_SHARED ? most : MOST_SHARED) - fixed - 16;
    const int warps = room / A::RING < MOST_WARPS ? room / A::RING : MOST_WARPS;
    const int group = job.heads / job.kv_heads;
    const dim3 grid(job.kv_heads * ((group + HEADS - 1) / HEADS), job.splits);
    return launch(attention<K_BITS, V_BITS, DIM>, grid, warps * LANES, fixed + warps * A::RING, dependent, stream, job);
}

}  // namespace exl
