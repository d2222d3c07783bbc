// Products of packed matrices with 9 rows of x and more, on tensor cores: float16 weights times float16 x, float sums.
//
// A block has a group of 16 column tiles and up to 64 rows of x, and goes through its pieces (128 input rows) one by
// one. Four warps do nothing but bring codes, scales and x to shared memory, three or five pieces ahead; eight multiply,
// two column tiles each. Every code becomes its weight once, rounded as the format says, for all rows of x.
//
// What this shape comes from: instructions bind it sooner than memory does. Where sixteen warps multiplied half a piece
// each and all of them brought a share, a layer of an 8B took 1.3 times (16 rows) and 1.4 times (64 rows) as long.
// Codes that were loaded to registers ahead made the compiler wait for all loads, the newest too: 1.2 times as long.
//
// Work is counted in units: a piece of a group of columns for a pass of rows. Where there are few groups, the blocks of a
// cluster share one, and add their sums in shared memory. Else blocks take equal runs of units, one block a
// multiprocessor, so a run may begin and end within a group. Who has the first piece of a group adds to its sums
// those of the blocks behind it, in their order: the same result every run. It has them at the end of its run, and they
// have left theirs at the beginning of their own, so that hardly anybody waits.
#pragma once
#include "cluster.cuh"
#include "gemm_bring.cuh"
#include "gemm_weights.cuh"
#include "parameters.cuh"

namespace exl {

// Where a block leaves the sums of a group that began before its run; `tile` of 8 rows and of the first or second column
// tile of every warp.
__device__ __forceinline__ float4 *partial(const ExlGemm &job, int block, int tiles, int tile) {
    return static_cast<float4 *>(job.partial) + ((size_t)block * tiles + tile) * MULTIPLY_THREADS + threadIdx.x;
}
// Whether a warp has left them: the same warp of another block takes them.
__device__ __forceinline__ unsigned *arrived(const ExlGemm &job, int block) {
    return static_cast<unsigned *>(job.arrived) + block * MULTIPLIERS + threadIdx.x / LANES;
}

// Sums of two rows of x, of eight columns: two columns of a row.
__device__ __forceinline__ uint32_t turned_sums(float even, float odd) {
    const half2 both = __floats2half2_rn(even, odd);
    return turned_block(reinterpret_cast<const uint32_t &>(both));
}

// 16 columns (of number `tile` of the matrix) by 8 rows of y.
__device__ __forceinline__ void store_tile(const ExlGemm &job, int matrix, int tile, int row, float4 c) {
    const ExlMatrix &m = job.matrix[matrix];
    if (tile >= m.column_tiles) return;
    const int lane = threadIdx.x % LANES;
    if (m.bias) {
        const half *bias = static_cast<const half *>(m.bias) + tile * 16 + lane / 4;
        const float low = __half2float(bias[0]), high = __half2float(bias[8]);
        c.x += low, c.y += low, c.z += high, c.w += high;
    }
    const uint32_t low = turned_sums(c.x, c.y), high = turned_sums(c.z, c.w);
    int column = tile * 16 + lane % 4 * 2;
    for (int i = 0; i < matrix; i++) column += job.matrix[i].column_tiles * 16;
    row += lane / 4;
    if (row >= job.rows) return;
    half *y = static_cast<half *>(job.y) + (size_t)row * job.y_stride + column;
    *reinterpret_cast<uint32_t *>(y) = low;
    *reinterpret_cast<uint32_t *>(y + 8) = high;
}

// Two column tiles of a warp by rows of x: of each tile of 8 rows columns r and r + 8, x rows 2 q and 2 q + 1.
template <int TILES> using GemmSums = float[WARP_TILES][TILES][4];

// 32 rows of a piece, number BLOCK, of x as it lies in the slot; the products go on when this returns.
template <int BITS, bool PLAIN, int TILES, int BLOCK>
__device__ __forceinline__ void multiply_32(GemmSums<TILES> &sums, const uint32_t (&w)[WARP_TILES][BITS], uint64_t x,
                                            const Step<BITS, PLAIN> (&steps)[WARP_TILES]) {
    constexpr int J = BLOCK % 2 * 2;
    uint32_t a[WARP_TILES][2][4];
#pragma unroll
    for (int i = 0; i < WARP_TILES; i++) {
        steps[i].template weights<J>(a[i][0], w[i]);
        steps[i].template weights<J + 1>(a[i][1], w[i]);
        hold(a[i][0]), hold(a[i][1]);
    }
    before_products();
#pragma unroll
    for (int j = 0; j < 2; j++) {
        constexpr int HALF = TILES * 8 * X_BYTES / 2;
        const uint64_t b = x + (BLOCK / 2 * HALF + (J + j) * 32) / 16;
#pragma unroll
        for (int i = 0; i < WARP_TILES; i++) wgmma(sums[i], a[i][j], b);
    }
    end_of_products();
    // What the products before the last read may be made anew.
    wait_for_products<1>();
}
// 32 rows of a piece, number BLOCK. x points to what the lane has of them.
template <int BITS, bool PLAIN, int TILES, int BLOCK>
__device__ __forceinline__ void multiply_32(GemmSums<TILES> &sums, const uint32_t (&w)[WARP_TILES][BITS], const char *x,
                                            const Step<BITS, PLAIN> (&steps)[WARP_TILES]) {
    constexpr int J = BLOCK % 2 * 2;
    uint32_t a[WARP_TILES][2][4];
#pragma unroll
    for (int i = 0; i < WARP_TILES; i++) {
        steps[i].template weights<J>(a[i][0], w[i]);
        steps[i].template weights<J + 1>(a[i][1], w[i]);
    }
#pragma unroll
    for (int n = 0; n < TILES; n++) {
        const uint4 b = *reinterpret_cast<const uint4 *>(x + BLOCK / 2 * 128 + n * 8 * X_BYTES);
#pragma unroll
        for (int i = 0; i < WARP_TILES; i++) mma(sums[i][n], a[i][0][0], a[i][0][1], a[i][0][2], a[i][0][3], b.x, b.y);
#pragma unroll
        for (int i = 0; i < WARP_TILES; i++) mma(sums[i][n], a[i][1][0], a[i][1][1], a[i][1][2], a[i][1][3], b.z, b.w);
    }
}

// `count` pieces of one kind.
template <int BITS, bool PLAIN, int TILES>
__device__ __forceinline__ void multiply_run(GemmSums<TILES> &sums, Slots &slots, const GemmShape &shape, int shift,
                                             int count) {
    const int lane = threadIdx.x % LANES, first = threadIdx.x / LANES * WARP_TILES;
    const int codes_at = TILES * 8 * X_BYTES + first * shape.code_bytes;
    const int scales_at = TILES * 8 * X_BYTES + GROUP_TILES * shape.code_bytes + first * shape.scale_bytes;
#pragma unroll 1
    for (; count > 0; count--) {
        if (shape.stages == 1) __syncthreads();
        __syncthreads();
        const char *slot = slots.next(), *scales = slot + scales_at;
        const uint32_t *codes = reinterpret_cast<const uint32_t *>(slot + codes_at);
        uint32_t w[2][WARP_TILES][BITS];
#pragma unroll
        for (int i = 0; i < WARP_TILES; i++) {
            load_tile<BITS>(w[0][i], codes + i * (shape.code_bytes / 4), lane);
            load_tile<BITS>(w[1][i], codes + i * (shape.code_bytes / 4) + BITS * LANES, lane);
        }
        Step<BITS, PLAIN> steps[WARP_TILES];
        const auto scaled_by = [&](int n) {
#pragma unroll
            for (int i = 0; i < WARP_TILES; i++)
                steps[i] = {scales + i * shape.scale_bytes, lane / 4, n >> shift, 4 >> shift};
        };
        const auto multiply = [&](auto even_x, auto odd_x) {
            scaled_by(0);
            multiply_32<BITS, PLAIN, TILES, 0>(sums, w[0], even_x, steps);
            if (shift == 0) scaled_by(1);
            multiply_32<BITS, PLAIN, TILES, 1>(sums, w[0], odd_x, steps);
            if (shift < 2) scaled_by(2);
            multiply_32<BITS, PLAIN, TILES, 2>(sums, w[1], even_x, steps);
            if (shift == 0) scaled_by(3);
            multiply_32<BITS, PLAIN, TILES, 3>(sums, w[1], odd_x, steps);
        };
        if constexpr (BY_GROUPS<TILES>) {
            const uint64_t x = described(slot);
            multiply(x, x);
            if (!shape.template going_on<TILES>()) wait_for_products<0>();
        } else {
            multiply(slot + x_place<TILES>(lane / 4, lane % 4), slot + x_place<TILES>(lane / 4, lane % 4 + 4));
        }
    }
}

// How many rows a scale has is known to the compiler where registers suffice: branches between products keep it from moving
// what each waits for.
constexpr int MOST_KNOWN_TILES = 7;
template <int BITS, bool PLAIN, int TILES>
__device__ __forceinline__ void multiply_width(GemmSums<TILES> &sums, Slots &slots, const GemmShape &shape,
                                               int rows_per_scale, int count) {
    const int shift = rows_per_scale == 128 ? 2 : rows_per_scale == 64;
    if constexpr (TILES > MOST_KNOWN_TILES) multiply_run<BITS, PLAIN, TILES>(sums, slots, shape, shift, count);
    else if (shift == 2) multiply_run<BITS, PLAIN, TILES>(sums, slots, shape, 2, count);
    else if (shift == 1) multiply_run<BITS, PLAIN, TILES>(sums, slots, shape, 1, count);
    else multiply_run<BITS, PLAIN, TILES>(sums, slots, shape, 0, count);
}

template <int TILES>
__device__ __forceinline__ void multiply_part(GemmSums<TILES> &sums, const ExlMatrix &m, const GemmShape &shape,
                                              const GemmPart &part, Slots &slots) {
    int piece = part.piece;
    for (int i = 0; piece < part.end; i++) {
        const ExlSection &section = m.sections[i];
        const int count = min(part.end, section.piece + section.pieces) - piece;
        if (count <= 0) continue;
#define EXL_RUN(BITS, PLAIN) multiply_width<BITS, PLAIN, TILES>(sums, slots, shape, section.rows_per_scale, count)
        if (section.plain) EXL_RUN(4, true);
        else if (section.bits == 4) EXL_RUN(4, false);
        else if (section.bits == 5) EXL_RUN(5, false);
        else if (section.bits == 6) EXL_RUN(6, false);
        else if (section.bits == 8) EXL_RUN(8, false);
        else if (section.bits == 3) EXL_RUN(3, false);
        else EXL_RUN(2, false);
#undef EXL_RUN
        piece += count;
    }
    if constexpr (BY_GROUPS<TILES>) {
        wait_for_products<0>();
#pragma unroll
        for (int i = 0; i < WARP_TILES; i++) hold(sums[i]);
    }
}

// A warp's sums for the block that has the first piece of the group.
template <int TILES> __device__ __forceinline__ void leave(const ExlGemm &job, const GemmSums<TILES> &sums) {
#pragma unroll
    for (int i = 0; i < WARP_TILES; i++)
#pragma unroll
        for (int n = 0; n < TILES; n++)
            *partial(job, blockIdx.x, WARP_TILES * TILES, i * TILES + n) =
                float4{sums[i][n][0], sums[i][n][1], sums[i][n][2], sums[i][n][3]};
    __syncwarp();
    if (threadIdx.x % LANES == 0) release(arrived(job, blockIdx.x), 1);
}

// Adds what the same warp of the blocks behind this one, up to the last, has left.
template <int TILES> __device__ __forceinline__ void add_left(const ExlGemm &job, GemmSums<TILES> &sums, int last) {
    constexpr int AT_ONCE = WARP_TILES * TILES < 8 ? 8 / (WARP_TILES * TILES) : 1;  // more take registers that spill
    for (int first = blockIdx.x + 1; first <= last; first += LANES) {
        const int mine = first + threadIdx.x % LANES, end = min(last + 1, first + LANES);
        if (mine < end)
            for (Patience patience; acquired(arrived(job, mine)) == 0;) patience.look_again();
        __syncwarp();
#pragma unroll 1
        for (int block = first; block < end; block += AT_ONCE) {
            float4 left[AT_ONCE][WARP_TILES * TILES];
#pragma unroll
            for (int b = 0; b < AT_ONCE; b++)
#pragma unroll
                for (int n = 0; n < WARP_TILES * TILES; n++)
                    if (block + b < end) left[b][n] = __ldcg(partial(job, block + b, WARP_TILES * TILES, n));
#pragma unroll
            for (int b = 0; b < AT_ONCE; b++)
#pragma unroll
                for (int n = 0; n < WARP_TILES * TILES; n++) {
                    if (block + b >= end) break;
                    float(&sum)[4] = sums[n / TILES][n % TILES];
                    sum[0] += left[b][n].x, sum[1] += left[b][n].y, sum[2] += left[b][n].z, sum[3] += left[b][n].w;
                }
        }
        __syncwarp();
        if (mine < end) *arrived(job, mine) = 0;
    }
}

// Where the blocks of a cluster share a group's pieces, each leaves its sums in its shared memory, where the slots were,
// and makes y of a part of all.
template <int TILES> __device__ __forceinline__ void leave_in_cluster(float4 *own, const GemmSums<TILES> &sums) {
#pragma unroll
    for (int i = 0; i < WARP_TILES; i++)
#pragma unroll
        for (int n = 0; n < TILES; n++)
            own[((threadIdx.x / LANES * WARP_TILES + i) * TILES + n) * LANES + threadIdx.x % LANES] =
                float4{sums[i][n][0], sums[i][n][1], sums[i][n][2], sums[i][n][3]};
}
template <int TILES>
__device__ __forceinline__ void add_in_cluster(const ExlGemm &job, const GemmUnits &units, const GemmPart &part,
                                               const float4 *own) {
    constexpr int ALL = GROUP_TILES * TILES;
    const int rank = blockIdx.x % units.cluster, last = ALL * (rank + 1) / units.cluster;
    come_to_cluster();
    wait_for_cluster();
#pragma unroll 1
    for (int at = ALL * rank / units.cluster + threadIdx.x / LANES; at < last; at += MULTIPLIERS + BRINGERS) {
        float4 left[MOST_CLUSTER], sum = {};
#pragma unroll
        for (int b = 0; b < MOST_CLUSTER; b++)
            if (b < units.cluster) left[b] = of_neighbour(own + at * LANES + threadIdx.x % LANES, b);
#pragma unroll
        for (int b = 0; b < MOST_CLUSTER; b++)
            if (b < units.cluster) sum.x += left[b].x, sum.y += left[b].y, sum.z += left[b].z, sum.w += left[b].w;
        store_tile(job, part.matrix, part.group * GROUP_TILES + at / TILES, (part.pass * TILES + at % TILES) * 8, sum);
    }
    come_to_cluster();  // with all that was asked of others there: until then they must not end
    wait_for_cluster();
}

// TILES: of 8 rows, in a pass.
template <int TILES>
__global__ void __launch_bounds__(MULTIPLY_THREADS + BRING_THREADS, 1)
    gemm(const __grid_constant__ ExlGemm parameters, const __grid_constant__ GemmUnits units,
         const __grid_constant__ GemmShape shape) {
    EXL_ALIGNED_SHARED_MEMORY(slot_memory, SLOT_ALIGNMENT);
    char *shared = reinterpret_cast<char *>(slot_memory);
    let_next_start();
    const ExlGemm &job = KEEPS_JOB ? *reinterpret_cast<const ExlGemm *>(shared + shape.job_at()) : parameters;
    if constexpr (KEEPS_JOB) {
        copy_parameters<MULTIPLIERS + BRINGERS>(*reinterpret_cast<ExlGemm *>(shared + shape.job_at()), parameters,
                                                threadIdx.x / LANES, threadIdx.x % LANES);
        __syncthreads();
    }
    const int2 run = units.run(job, blockIdx.x);
    int unit = run.x;
    const int last = run.y;
    float4 *left = reinterpret_cast<float4 *>(shared);
    if (threadIdx.x >= MULTIPLY_THREADS) {
        Bringer<TILES> bringer(job, shape, shared);
        const GemmPart first(job, units, unit, last);
        while (unit < last) {
            const GemmPart part(job, units, unit, last);
            unit += part.end - part.piece;
            bringer.bring(part);
        }
        bringer.end();
        if (units.cluster == 1) return;
        __syncthreads();
        add_in_cluster<TILES>(job, units, first, left);
        return;
    }
    Slots slots(shared, shape);
    while (unit < last) {
        const GemmPart part(job, units, unit, last);
        const int last_block = units.block_of(unit - part.piece + part.pieces - 1);
        unit += part.end - part.piece;
        GemmSums<TILES> sums = {};
        multiply_part<TILES>(sums, job.matrix[part.matrix], shape, part, slots);
        if (units.cluster > 1) {
            __syncthreads();
            leave_in_cluster<TILES>(left, sums);
            add_in_cluster<TILES>(job, units, part, left);
            return;
        }
        if (part.piece > 0) {
            leave<TILES>(job, sums);
            continue;
        }
        add_left<TILES>(job, sums, last_block);
        const int tile = part.group * GROUP_TILES + threadIdx.x / LANES * WARP_TILES;
#pragma unroll
        for (int i = 0; i < WARP_TILES; i++)
#pragma unroll
            for (int n = 0; n < TILES; n++)
                store_tile(job, part.matrix, tile + i, (part.pass * TILES + n) * 8,
                           {sums[i][n][0], sums[i][n][1], sums[i][n][2], sums[i][n][3]});
    }
}

template <int TILES>
int launch_gemm(const ExlGemm &job, const GemmUnits &units, const GemmShape &shape, cudaStream_t stream) {
    return launch_clusters(units.cluster, gemm<TILES>, units.blocks, MULTIPLY_THREADS + BRING_THREADS,
                           shape.bytes(), 1, stream, job, units, shape);
}

// Clusters of `size` blocks with so much shared memory that the card runs beside each other.
template <int TILES> int gemm_clusters(int size, int shared_bytes) {
    return clusters_at_once(gemm<TILES>, size, MULTIPLY_THREADS + BRING_THREADS, shared_bytes);
}

}  // namespace exl
