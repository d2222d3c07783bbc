// The head of a model whose output weights are halves (GPTQ files, tied embeddings), for 1 to 8 rows.
//
// A warp takes 16 outputs at a time. Their weights go from memory to the tensor cores' first operand as they are, 8
// inputs of an output a lane, and the rows of x stand in the eight columns of the second: what a row comes to does not
// depend on how many there are. The next weights are asked for before those at hand are multiplied, the first of all
// before the previous kernel ends.
#include <cuda_runtime.h>

#include "device.cuh"
#include "exlchat.h"
#include "launch.cuh"
#include "residual.cuh"

namespace exl {

constexpr int HEAD_WARPS = 8, HEAD_THREADS = HEAD_WARPS * LANES;
constexpr int HEAD_INPUTS = 32;  // of a block
constexpr int HEAD_BATCH = 4;    // blocks that are asked for together

// 64 bytes beyond a multiple of 128 keep the rows of x on different banks.
__host__ __device__ inline int head_stride(int width) { return (width + 63) / 64 * 64 + 32; }

struct HeadWeights {
    uint4 low[HEAD_BATCH], high[HEAD_BATCH];

    // Of outputs r and r + 8 of a tile, blocks `first` and on.
    __device__ __forceinline__ void ask(const ExlHead &job, int tile, int first, int lane) {
        const half *weight = static_cast<const half *>(job.weight);
        const int output = tile * 16 + lane / 4, last = job.outputs - 1;
        const half *a = weight + (size_t)min(output, last) * job.width + lane % 4 * 8;
        const half *b = weight + (size_t)min(output + 8, last) * job.width + lane % 4 * 8;
#pragma unroll
        for (int i = 0; i < HEAD_BATCH; i++) {
            const int block = min(first + i, job.width / HEAD_INPUTS - 1) * HEAD_INPUTS;
            low[i] = __ldcs(reinterpret_cast<const uint4 *>(a + block));
            high[i] = __ldcs(reinterpret_cast<const uint4 *>(b + block));
        }
    }
};

// Rows of x that are halves already.
__device__ __forceinline__ void stage_halves(const ExlHead &job, half *x) {
    const int octets = job.width / 8, stride = head_stride(job.width);
#pragma unroll 1
    for (int row = 0; row < job.rows; row++) {
        const uint4 *from = reinterpret_cast<const uint4 *>(static_cast<const half *>(job.x) + (size_t)row * job.width);
        uint4 *to = reinterpret_cast<uint4 *>(x + row * stride);
#pragma unroll 2
        for (int i = threadIdx.x; i < octets; i += HEAD_THREADS) to[i] = produced(from + i);
    }
    __syncthreads();
}

// Rows of x as a residual leaves them, as halves, into shared memory.
template <class Sums> __device__ __forceinline__ void stage_normed(const ExlHead &job, half *x, Sums (*parts)[HEAD_WARPS]) {
    const int t = threadIdx.x, quads = job.width / 4, each = job.width / 16, stride = head_stride(job.width);
#pragma unroll 1
    for (int row = 0; row < job.rows; row++) {
        Sums mine = {};
        for (int i = t; i < each; i += HEAD_THREADS)
            mine = mine + produced(reinterpret_cast<const Sums *>(job.squares) + row * each + i);
        mine = sum_of_warp(mine);
        if (t % LANES == 0) parts[row][t / LANES] = mine;
    }
    __syncthreads();
#pragma unroll 1
    for (int row = 0; row < job.rows; row++) {
        Sums all = {};
#pragma unroll
        for (int i = 0; i < HEAD_WARPS; i++) all = all + parts[row][i];
        const Factors factors(all, job.x_kind, job.width, job.eps);
        const Quad<Sums> *from = static_cast<const Quad<Sums> *>(job.x) + (size_t)row * quads;
        uint2 *to = reinterpret_cast<uint2 *>(x + row * stride);
#pragma unroll 2
        for (int i = t; i < quads; i += HEAD_THREADS) {
            Quad<Sums> v;
            v.ask(from, i);
            to[i] = v.halves(factors);
        }
    }
    __syncthreads();
}

__global__ void __launch_bounds__(HEAD_THREADS, 2) head(const __grid_constant__ ExlHead job) {
    EXL_SHARED_MEMORY(shared);
    __shared__ JoinSums parts[EXL_MAX_ROWS][HEAD_WARPS];
    half *x = reinterpret_cast<half *>(shared);
    let_next_start();
    const int lane = threadIdx.x % LANES, r = lane / 4, q = lane % 4, step = gridDim.x * HEAD_WARPS;
    const int tiles = (job.outputs + 15) / 16, blocks = job.width / HEAD_INPUTS;
    int tile = blockIdx.x * HEAD_WARPS + threadIdx.x / LANES;
    HeadWeights now;
    if (tile < tiles) now.ask(job, tile, 0, lane);
    wait_for_previous();
    if (job.x_kind == EXL_X_HALF) stage_halves(job, x);
    else if (job.x_kind == EXL_X_NORM) stage_normed(job, x, reinterpret_cast<float(*)[HEAD_WARPS]>(parts));
    else stage_normed(job, x, parts);
    // The last row stands in for those that are not there.
    const half *mine = x + min(r, job.rows - 1) * head_stride(job.width) + q * 8;
#pragma unroll 1
    for (; tile < tiles; tile += step) {
        float even[4] = {}, odd[4] = {};
#pragma unroll 1
        for (int block = 0; block < blocks; block += HEAD_BATCH) {
            HeadWeights next;
            if (block + HEAD_BATCH < blocks) next.ask(job, tile, block + HEAD_BATCH, lane);
            else next.ask(job, min(tile + step, tiles - 1), 0, lane);
#pragma unroll
            for (int i = 0; i < HEAD_BATCH; i++) {
                if (block + i >= blocks) break;
                const uint4 b = *reinterpret_cast<const uint4 *>(mine + (block + i) * HEAD_INPUTS);
                const uint4 &low = now.low[i], &high = now.high[i];
                mma(even, low.x, high.x, low.y, high.y, b.x, b.y);
                mma(odd, low.z, high.z, low.w, high.w, b.z, b.w);
            }
            now = next;
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int output = tile * 16 + r + i / 2 * 8, row = q * 2 + i % 2;
            if (output < job.outputs && row < job.rows) job.y[(size_t)row * job.y_stride + output] = even[i] + odd[i];
        }
    }
}

static bool head_ok(const ExlHead &job) {
    const auto aligned = [](const void *p) { return p && reinterpret_cast<uintptr_t>(p) % 16 == 0; };
    const bool pointers = job.y && aligned(job.x) && aligned(job.weight);
    if (job.x_kind < EXL_X_HALF || job.x_kind > EXL_X_JOIN) return false;
    if (job.x_kind != EXL_X_HALF && !(job.x_kind == EXL_X_NORM ? job.squares != nullptr : aligned(job.squares))) return false;
    return pointers && job.width >= HEAD_INPUTS && job.width % HEAD_INPUTS == 0 && job.outputs > 0 && job.rows > 0 &&
           job.rows <= EXL_MAX_ROWS && job.y_stride >= job.outputs;
}

}  // namespace exl

extern "C" int exl_head(const ExlHead *job, int dependent, void *stream) {
    if (!job || !exl::head_ok(*job)) return EXL_BAD_ARGUMENT;
    int device = 0, processors = 0, room = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&room, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (error != cudaSuccess) return error;
    // Beside x the block has the sums of its warps.
    const int sums = EXL_MAX_ROWS * exl::HEAD_WARPS * (int)sizeof(exl::JoinSums);
    const int of_row = exl::head_stride(job->width) * 2, fit = (room - sums) / of_row;
    if (fit < 1) return EXL_BAD_ARGUMENT;
    const int passes = (job->rows + fit - 1) / fit;
    for (int done = 0, left = passes; left > 0; left--) {
        ExlHead part = *job;
        part.rows = (job->rows - done) / left;
        const bool joins = job->x_kind >= EXL_X_JOIN_NORM;
        const size_t of_x = (size_t)done * job->width * (joins ? 8 : job->x_kind == EXL_X_NORM ? 4 : 2);
        part.x = static_cast<const char *>(job->x) + of_x;
        if (job->x_kind != EXL_X_HALF) part.squares = job->squares + (size_t)done * (job->width / 16) * (joins ? 4 : 1);
        part.y = job->y + (size_t)done * job->y_stride;
        const int code = exl::launch(exl::head, 2 * processors, exl::HEAD_THREADS, part.rows * of_row, dependent,
                                     static_cast<cudaStream_t>(stream), part);
        if (code) return code;
        done += part.rows;
    }
    return 0;
}
