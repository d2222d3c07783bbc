// Decode attention: a block takes all query heads of one key-value head and a range of the cached tokens.
//
// Tiles of 64 tokens come to shared memory ahead of their use; each of the four warps takes 16 tokens of a tile through
// the tensor cores, with the query heads as the 16 rows of the products, and keeps a running softmax of its own
// (Dao 2023, arXiv 2307.08691). The warps are merged in the block, and the last block of a head merges the ranges.
#include "device.cuh"
#include "exlchat.h"
#include "launch.cuh"

namespace exl {

constexpr int ATTENTION_WARPS = 4;
constexpr int ATTENTION_THREADS = ATTENTION_WARPS * LANES;
constexpr int TOKENS = 16 * ATTENTION_WARPS;  // of a tile
constexpr int LEAST = 256;                    // tokens of a block: below, merging blocks costs more than it saves
constexpr int HEADS = 16;
constexpr float EMPTY = -1e30f;

// Rows of a tile are 16 bytes longer than a head, so that 8 rows of one column fall on different banks.
template <int DIM> struct Tile {
    half row[TOKENS][DIM + 8];
};
template <int DIM, int AHEAD> struct AttentionMemory {
    Tile<DIM> keys[AHEAD], values[AHEAD];
    half query[HEADS][DIM + 8];
    half key[DIM], value[DIM];
};
template <int DIM> struct Merge {
    float part[ATTENTION_WARPS][HEADS][DIM + 2];
};

// A head turned to its position, by one warp: halves rotated as in Llama.
template <int DIM> __device__ __forceinline__ void turn(half *out, const half *in, const float2 *turns, int lane) {
    for (int i = lane; i < DIM / 2; i += LANES) {
        const float a = __half2float(produced(in + i)), b = __half2float(produced(in + i + DIM / 2));
        const float2 t = __ldg(turns + i);
        out[i] = __float2half_rn(a * t.x - b * t.y);
        out[i + DIM / 2] = __float2half_rn(b * t.x + a * t.y);
    }
}

template <int DIM>
__device__ __forceinline__ void fetch(Tile<DIM> &tile, const half *rows, int first, int capacity) {
    for (int i = threadIdx.x; i < TOKENS * (DIM / 8); i += ATTENTION_THREADS) {
        const int row = i / (DIM / 8), part = i % (DIM / 8) * 8;
        copy16(&tile.row[row][part], rows + (size_t)min(first + row, capacity - 1) * DIM + part);
    }
}

// Sum over i of part i's value d, weighted by its softmax; parts are DIM + 2 floats: values, best, sum.
template <int DIM, class Part> __device__ __forceinline__ float merged(Part part, int count, int d, float &best, float &sum) {
    best = EMPTY, sum = 0.f;
    float mixed = 0.f;
    for (int i = 0; i < count; i++) best = fmaxf(best, part(i, DIM));
    for (int i = 0; i < count; i++) {
        const float weight = exp2f(part(i, DIM) - best);
        sum += part(i, DIM + 1) * weight;
        mixed += part(i, d) * weight;
    }
    return mixed;
}

// AHEAD: tiles under way, as many as shared memory holds.
template <int DIM, int AHEAD>
__global__ void __launch_bounds__(ATTENTION_THREADS) attention(const __grid_constant__ ExlAttention job) {
    extern __shared__ __align__(16) uint8_t raw[];
    auto &memory = *reinterpret_cast<AttentionMemory<DIM, AHEAD> *>(raw);
    auto &merge = *reinterpret_cast<Merge<DIM> *>(raw);
    __shared__ int last;
    let_next_start();
    const int t = threadIdx.x, warp = t / LANES, lane = t % LANES, kv = blockIdx.x, split = blockIdx.y;
    const int heads = job.heads / job.kv_heads;
    half *keys = static_cast<half *>(job.keys) + (size_t)kv * job.capacity * DIM;
    half *values = static_cast<half *>(job.values) + (size_t)kv * job.capacity * DIM;
    wait_for_previous();
    // The first range begins at 0 whatever the length, so its first tile need not wait for it.
    if (split == 0) fetch(memory.keys[0], keys, 0, job.capacity), fetch(memory.values[0], values, 0, job.capacity);
    const int cached = produced(static_cast<const int *>(job.position)), length = cached + 1;
    const int each = max((length + job.splits - 1) / job.splits, LEAST) + TOKENS - 1 & ~(TOKENS - 1);
    const int active = (length + each - 1) / each, begin = split * each, end = min(begin + each, length);
    if (split >= active) return;
    const int tiles = (end - begin + TOKENS - 1) / TOKENS;
    const bool newest = end == length;
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        if (i < tiles && (i > 0 || split > 0)) {
            fetch(memory.keys[i], keys, begin + i * TOKENS, job.capacity);
            fetch(memory.values[i], values, begin + i * TOKENS, job.capacity);
        }
        end_of_copies();
    }

    const half *qkv = static_cast<const half *>(job.qkv);
    const float2 *turns = static_cast<const float2 *>(job.turns) + (size_t)cached * (DIM / 2);
    for (int g = warp; g < HEADS; g += ATTENTION_WARPS) {
        if (g < heads) turn<DIM>(memory.query[g], qkv + (size_t)(kv * heads + g) * DIM, turns, lane);
        else for (int i = lane; i < DIM; i += LANES) memory.query[g][i] = __float2half(0.f);
    }
    if (newest && warp == ATTENTION_WARPS - 1) {
        turn<DIM>(memory.key, qkv + (size_t)(job.heads + kv) * DIM, turns, lane);
        for (int i = lane; i < DIM; i += LANES)
            memory.value[i] = produced(qkv + (size_t)(job.heads + job.kv_heads + kv) * DIM + i);
    }
    __syncthreads();
    if (newest && t < DIM / 8) {
        reinterpret_cast<uint4 *>(keys + (size_t)cached * DIM)[t] = reinterpret_cast<uint4 *>(memory.key)[t];
        reinterpret_cast<uint4 *>(values + (size_t)cached * DIM)[t] = reinterpret_cast<uint4 *>(memory.value)[t];
    }
    uint32_t query[DIM / 16][4];
#pragma unroll
    for (int k = 0; k < DIM / 16; k++) load_blocks(query[k], &memory.query[lane % 16][k * 16 + lane / 16 * 8]);

    const float to_log2 = job.scale * 1.4426950408889634f;
    float mixed[DIM / 8][4] = {}, best[2] = {EMPTY, EMPTY}, sum[2] = {0.f, 0.f};
    for (int i = 0; i < tiles; i++) {
        wait_for_copies<AHEAD - 1>();
        __syncthreads();
        Tile<DIM> &k_tile = memory.keys[i % AHEAD], &v_tile = memory.values[i % AHEAD];
        const int first = begin + i * TOKENS;
        if (first + TOKENS > cached) {  // the newest token, and zeros for what is not there yet
            for (int n = t; n < TOKENS * (DIM / 8); n += ATTENTION_THREADS) {
                const int row = n / (DIM / 8), part = n % (DIM / 8) * 8;
                if (first + row == cached) {
                    *reinterpret_cast<uint4 *>(&k_tile.row[row][part]) = *reinterpret_cast<uint4 *>(memory.key + part);
                    *reinterpret_cast<uint4 *>(&v_tile.row[row][part]) = *reinterpret_cast<uint4 *>(memory.value + part);
                } else if (first + row > cached) {
                    *reinterpret_cast<uint4 *>(&v_tile.row[row][part]) = uint4{0, 0, 0, 0};
                }
            }
            __syncthreads();
        }
        const int mine = warp * 16;
        float score[2][4] = {};
#pragma unroll
        for (int k = 0; k < DIM / 16; k++) {
            uint32_t b[4];
            load_blocks(b, &k_tile.row[mine + lane % 8 + lane / 16 * 8][k * 16 + lane / 8 % 2 * 8]);
            mma(score[0], query[k][0], query[k][1], query[k][2], query[k][3], b[0], b[1]);
            mma(score[1], query[k][0], query[k][1], query[k][2], query[k][3], b[2], b[3]);
        }
        float top[2] = {best[0], best[1]};
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const bool real = first + mine + j * 8 + lane % 4 * 2 + e % 2 < end;
                score[j][e] = real ? score[j][e] * to_log2 : EMPTY;
                top[e / 2] = fmaxf(top[e / 2], score[j][e]);
            }
        float keep[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 1));
            top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 2));
            keep[r] = exp2f(best[r] - top[r]);
            best[r] = top[r];
            sum[r] *= keep[r];
        }
        uint32_t weights[4];
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                // A range can end inside a tile: nothing real, nothing counted.
                const float low = score[j][2 * r] > EMPTY ? exp2f(score[j][2 * r] - best[r]) : 0.f;
                const float high = score[j][2 * r + 1] > EMPTY ? exp2f(score[j][2 * r + 1] - best[r]) : 0.f;
                const half2 packed = __floats2half2_rn(low, high);
                sum[r] += low + high;
                weights[j * 2 + r] = reinterpret_cast<const uint32_t &>(packed);
            }
#pragma unroll
        for (int d = 0; d < DIM / 16; d++) {
            uint32_t b[4];
            load_blocks_turned(b, &v_tile.row[mine + lane % 16][d * 16 + lane / 16 * 8]);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float(&m)[4] = mixed[d * 2 + h];
                m[0] *= keep[0], m[1] *= keep[0], m[2] *= keep[1], m[3] *= keep[1];
                mma(m, weights[0], weights[1], weights[2], weights[3], b[h * 2], b[h * 2 + 1]);
            }
        }
        __syncthreads();
        if (i + AHEAD < tiles) {
            fetch(k_tile, keys, first + AHEAD * TOKENS, job.capacity);
            fetch(v_tile, values, first + AHEAD * TOKENS, job.capacity);
        }
        end_of_copies();
    }

    wait_for_copies<0>();
    __syncthreads();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
        sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
        float *part = merge.part[warp][lane / 4 + r * 8];
#pragma unroll
        for (int d = 0; d < DIM / 8; d++)
            part[d * 8 + lane % 4 * 2] = mixed[d][r * 2], part[d * 8 + lane % 4 * 2 + 1] = mixed[d][r * 2 + 1];
        if (lane % 4 == 0) part[DIM] = best[r], part[DIM + 1] = sum[r];
    }
    __syncthreads();
    half *out = static_cast<half *>(job.out) + (size_t)kv * heads * DIM;
    float *partial = static_cast<float *>(job.partial) + (size_t)kv * job.splits * heads * (DIM + 2);
    float all_best, all_sum;
    for (int i = t; i < heads * DIM; i += ATTENTION_THREADS) {
        const int g = i / DIM, d = i % DIM;
        const float value = merged<DIM>([&](int w, int e) { return merge.part[w][g][e]; }, ATTENTION_WARPS, d, all_best, all_sum);
        if (active == 1) {
            out[i] = __float2half_rn(value / all_sum);
        } else {
            float *p = partial + ((size_t)split * heads + g) * (DIM + 2);
            p[d] = value;
            if (d == 0) p[DIM] = all_best, p[DIM + 1] = all_sum;
        }
    }
    if (active == 1) return;
    __threadfence();
    __syncthreads();
    if (t == 0) {
        int *ticket = static_cast<int *>(job.tickets) + kv;
        last = atomicAdd(ticket, 1) == active - 1;
        if (last) *ticket = 0;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    for (int i = t; i < heads * DIM; i += ATTENTION_THREADS) {
        const int g = i / DIM, d = i % DIM;
        const float value = merged<DIM>(
            [&](int n, int e) { return __ldcg(partial + ((size_t)n * heads + g) * (DIM + 2) + e); }, active, d, all_best,
            all_sum);
        out[i] = __float2half_rn(value / all_sum);
    }
}

template <int DIM, int AHEAD> constexpr int bytes() {
    return sizeof(AttentionMemory<DIM, AHEAD>) > sizeof(Merge<DIM>) ? sizeof(AttentionMemory<DIM, AHEAD>)
                                                                    : sizeof(Merge<DIM>);
}

template <int DIM, int AHEAD> static int start(const ExlAttention &job, int dependent, cudaStream_t stream) {
    const dim3 grid(job.kv_heads, job.splits);
    return launch(attention<DIM, AHEAD>, grid, ATTENTION_THREADS, bytes<DIM, AHEAD>(), dependent, stream, job);
}

template <int DIM> static int launch_attention(const ExlAttention &job, int dependent, cudaStream_t stream) {
    int device = 0, most = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (error != cudaSuccess) return error;
    if (bytes<DIM, 3>() <= most) return start<DIM, 3>(job, dependent, stream);
    if (bytes<DIM, 2>() <= most) return start<DIM, 2>(job, dependent, stream);
    return start<DIM, 1>(job, dependent, stream);
}

static bool attention_ok(const ExlAttention &job) {
    return job.qkv && job.turns && job.position && job.keys && job.values && job.out && job.partial && job.tickets &&
           job.heads > 0 && job.kv_heads > 0 && job.heads % job.kv_heads == 0 && job.heads / job.kv_heads <= HEADS &&
           job.capacity > 0 && job.splits > 0;
}

}  // namespace exl

extern "C" int exl_attention(const ExlAttention *job, int dependent, void *stream) {
    if (!job || !exl::attention_ok(*job)) return EXL_BAD_ARGUMENT;
    const cudaStream_t s = static_cast<cudaStream_t>(stream);
    switch (job->head_dim) {
        case 64: return exl::launch_attention<64>(*job, dependent, s);
        case 80: return exl::launch_attention<80>(*job, dependent, s);
        case 96: return exl::launch_attention<96>(*job, dependent, s);
        case 128: return exl::launch_attention<128>(*job, dependent, s);
        case 256: return exl::launch_attention<256>(*job, dependent, s);
        default: return EXL_BAD_ARGUMENT;
    }
}
