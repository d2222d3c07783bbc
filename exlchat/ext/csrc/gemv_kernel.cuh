// The kernel of gemv.cuh and its launch; a .cu for each number of rows, because each takes a while to compile.
#pragma once
#include "gemv.cuh"
#include "launch.cuh"
#include "residual.cuh"

namespace exl {

// 1 / root mean square of the vector that x is made from; every warp adds up a part. For all threads of the block.
__device__ __forceinline__ float norm_factor(const ExlGemv &job, float *squares) {
    float sum = 0.f;
    for (int i = threadIdx.x; i < job.width / 16; i += THREADS) sum += produced(job.squares + i);
    sum = warp_sum(sum);
    if (threadIdx.x % LANES == 0) squares[threadIdx.x / LANES] = sum;
    __syncthreads();
    sum = 0.f;
#pragma unroll
    for (int i = 0; i < WARPS; i++) sum += squares[i];
    return rsqrtf(sum * (1.f / job.width) + job.eps);
}

struct Eight {
    uint4 halves;
    float sum;
};

__device__ __forceinline__ Eight scaled(const float4 &a, const float4 &b, float factor) {
    const half2 h[4] = {__floats2half2_rn(a.x * factor, a.y * factor), __floats2half2_rn(a.z * factor, a.w * factor),
                        __floats2half2_rn(b.x * factor, b.y * factor), __floats2half2_rn(b.z * factor, b.w * factor)};
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < 4; i++) sum += __low2float(h[i]) + __high2float(h[i]);
    return {reinterpret_cast<const uint4 &>(h), sum};
}

__device__ __forceinline__ Eight summed(const uint4 &v) {
    const half2 *h = reinterpret_cast<const half2 *>(&v);
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < 4; i++) sum += __low2float(h[i]) + __high2float(h[i]);
    return {v, sum};
}

// Eight numbers and what four neighbouring threads have of a block of 32 in all, to shared memory.
template <int ROWS>
__device__ __forceinline__ void put_x(half *x, float *sums, int i, bool real, Eight v) {
    v.sum += __shfl_xor_sync(~0u, v.sum, 1);
    v.sum += __shfl_xor_sync(~0u, v.sum, 2);
    if (!real) return;
    *reinterpret_cast<uint4 *>(x + i * 8) = v.halves;
    if (i % 4 == 0) sums[i / 4 * ROWS] = v.sum;
}

template <int ROWS>
__device__ __forceinline__ void stage_normed(const ExlGemv &job, half *x, float *sums, float *squares) {
    constexpr int AT_ONCE = 2;
    const int t = threadIdx.x, octets = job.matrix[0].stored / 8;
    const float4 *source = static_cast<const float4 *>(job.x);
    float factor = 0.f;
    for (int base = 0; base < octets; base += THREADS * AT_ONCE) {
        float4 v[AT_ONCE][2];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            const int i = base + k * THREADS + t;
            v[k][0] = v[k][1] = {0.f, 0.f, 0.f, 0.f};
            if (i < octets) v[k][0] = produced(source + 2 * i), v[k][1] = produced(source + 2 * i + 1);
        }
        if (base == 0) factor = norm_factor(job, squares);
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            const int i = base + k * THREADS + t;
            if (base + k * THREADS < octets) put_x<ROWS>(x, sums, i, i < octets, scaled(v[k][0], v[k][1], factor));
        }
    }
}

template <int ROWS>
__device__ __forceinline__ void stage_halves(const ExlGemv &job, const GemvShape &shape, half *x, float *sums) {
    constexpr int AT_ONCE = 4;
    const int t = threadIdx.x, octets = job.matrix[0].stored / 8;
    for (int row = 0; row < job.rows; row++, x += shape.x_stride, sums++) {
        const uint4 *source = static_cast<const uint4 *>(job.x) + (size_t)row * octets;
        for (int base = 0; base < octets; base += THREADS * AT_ONCE) {
            uint4 v[AT_ONCE];
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++) {
                const int i = base + k * THREADS + t;
                v[k] = {0, 0, 0, 0};
                if (i < octets) v[k] = produced(source + i);
            }
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++) {
                const int i = base + k * THREADS + t;
                if (base + k * THREADS < octets) put_x<ROWS>(x, sums, i, i < octets, summed(v[k]));
            }
        }
    }
}

// Zeros behind x, which need not wait for it.
template <int ROWS>
__device__ __forceinline__ void stage_tail(const ExlGemv &job, const GemvShape &shape, half *x, float *sums) {
    const int t = threadIdx.x, stored = job.matrix[0].stored;
    for (int i = t; i < job.rows * (TAIL / 8); i += THREADS)
        *reinterpret_cast<uint4 *>(x + i / (TAIL / 8) * shape.x_stride + stored + i % (TAIL / 8) * 8) = {0, 0, 0, 0};
    if (t < TAIL / 32 * ROWS) sums[stored / 32 * ROWS + t] = 0.f;
}

// Shared memory of a block.
struct Smem {
    half *x;
    float *sums, *whole, *ends;
    float *squares;

    __device__ __forceinline__ Smem(char *base, const GemvShape &shape)
        : x(reinterpret_cast<half *>(base + shape.x)), sums(reinterpret_cast<float *>(base + shape.sums)),
          whole(reinterpret_cast<float *>(base + shape.whole)), ends(reinterpret_cast<float *>(base + shape.ends)),
          squares(reinterpret_cast<float *>(base + shape.squares)) {}
};

// others: which warps went on with the column.
template <int ROWS>
__device__ __forceinline__ float total(const Smem &s, int number, uint32_t others, int column, int row) {
    float sum = s.whole[(number * 16 + column) * ROWS + row];
    for (; others; others &= others - 1) sum += s.ends[((__ffs(others) - 1) * 16 + column) * ROWS + row];
    return sum;
}

__device__ __forceinline__ float bias_of(const ExlMatrix &m, int at) {
    return m.bias ? __half2float(__ldg(static_cast<const half *>(m.bias) + at)) : 0.f;
}

__device__ __forceinline__ float activated(int activation, float x) {
    if (activation == EXL_SILU) return x / (1.f + __expf(-x));
    return 0.5f * x * (1.f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
}

// Where an output of the block stands.
struct Output {
    int matrix, number, column, at, to;  // number: of its tile in the block; at: its column in the matrix; to: in y

    __device__ __forceinline__ Output(const Local &local, int number, int column)
        : matrix(0), number(number), column(column) {
        int before = 0, left = number;
        while (matrix < EXL_MAX_MATRICES - 1 && left >= local.count(matrix))
            left -= local.count(matrix), before += local.job.matrix[matrix++].column_tiles;
        at = (local.first(matrix) + left) * 16 + column;
        to = before * 16 + at;
    }
};

// What a thread's first output needs from memory beside the sums. Constants are asked for before the previous kernel
// ends, the residual before the weights are multiplied: at the end nobody waits for memory.
struct Ahead {
    ResidualConstants constants;
    float hidden, bias, up_bias;
    int place;
    uint32_t others, up_others;
};

template <int ROWS>
__device__ __forceinline__ void write_result(const ExlGemv &job, const Output &o, int mine, int row, const Smem &s,
                                             const Ahead &ahead) {
    const float sum = total<ROWS>(s, o.number, ahead.others, o.column, row) + ahead.bias;
    if (job.y_kind == EXL_Y_GATED) {
        const float up = total<ROWS>(s, o.number + mine, ahead.up_others, o.column, row) + ahead.up_bias;
        const half value = __float2half_rn(activated(job.activation, sum) * up);
        static_cast<half *>(job.y)[(size_t)row * job.y_stride + ahead.place] = value;
    } else if (job.y_kind == EXL_Y_HALF) {
        static_cast<half *>(job.y)[(size_t)row * job.y_stride + o.to] = __float2half_rn(sum);
    } else if (job.y_kind == EXL_Y_FLOAT) {
        static_cast<float *>(job.y)[(size_t)row * job.y_stride + o.to] = sum;
    } else {
        put_residual(job.residual, ahead.constants, o.to, ahead.hidden + sum, threadIdx.x % LANES);
    }
}

__device__ __forceinline__ void ask_constants(const Local &local, const Output &o, int mine, Ahead &ahead) {
    const ExlGemv &job = local.job;
    ahead.bias = bias_of(job.matrix[o.matrix], o.at);
    ahead.others = local.others(o.number);
    if (job.y_kind == EXL_Y_ADD) ahead.constants = ResidualConstants(job.residual, o.to);
    if (job.y_kind != EXL_Y_GATED) return;
    ahead.up_bias = bias_of(job.matrix[1], o.at);
    ahead.up_others = local.others(o.number + mine);
    ahead.place = job.scatter ? __ldg(job.scatter + o.at) : o.at;
}
__device__ __forceinline__ void ask_hidden(const ExlGemv &job, const Output &o, Ahead &ahead) {
    if (job.y_kind == EXL_Y_ADD) ahead.hidden = produced(job.residual.hidden + o.to);
}

template <int ROWS, int DEPTH>
__device__ __forceinline__ void multiply_run(const Local &local, Ring<DEPTH> &ring, Place at, int pieces, int x_stride,
                                             const Smem &s) {
    const int lane = ring.lane, warp = threadIdx.x / LANES, r = lane >> 2, q = lane & 3;
    const half *x = s.x + (ROWS == 1 ? 0 : min(r, local.job.rows - 1) * x_stride) + q * 8;
    const float *sums = s.sums + (ROWS == 1 ? 0 : q * 2);
    bool goes_on = at.piece > 0;
    while (pieces > 0) {
        const ExlMatrix &m = local.job.matrix[at.matrix];
        int in_column = min(pieces, m.pieces - at.piece);
        pieces -= in_column;
        Sum<ROWS> sum;
        while (in_column > 0) {
            const ExlSection &section = m.sections[at.section];
            const int before = at.piece - section.piece, count = min(in_column, section.pieces - before);
            if (count > 0) {
                const int row = section.row + before * PIECE_ROWS;
                const half *x_part = x + row;
                const float *sums_part = sums + row / 32 * ROWS;
#define EXL_RUN(BITS, EVERY, PLAIN) run<BITS, EVERY, PLAIN, ROWS, DEPTH>(count, ring, sum, x_part, sums_part)
                EXL_FOR_SECTION(EXL_RUN)
#undef EXL_RUN
                at.piece += count, in_column -= count;
            }
            at.section++;
        }
        const int number = local.number(at.matrix, at.column);
        store_sum<ROWS>(goes_on ? s.ends + warp * 16 * ROWS : s.whole + number * 16 * ROWS, sum, lane);
        if (pieces == 0) break;
        goes_on = false;
        at.piece = at.section = 0;
        local.next_column(at.matrix, at.column);
    }
}

// The job and the block's plan, by all threads.
__device__ __forceinline__ void copy_job(Local &local, const ExlGemv &job) {
    const int t = threadIdx.x;
    const int32_t *plan = job.plan + blockIdx.x * PLAN_INTS;
    for (int i = t; i < PLAN_INTS; i += THREADS) local.plan[i] = __ldg(plan + i);
    for (int i = t; i < (int)(sizeof(ExlGemv) / 8); i += THREADS)
        reinterpret_cast<uint2 *>(&local.job)[i] = reinterpret_cast<const uint2 *>(&job)[i];
    __syncthreads();
}

template <int ROWS, int DEPTH>
__global__ void __launch_bounds__(THREADS, ROWS == 1 ? 2 : 1) gemv(const __grid_constant__ ExlGemv parameters,
                                                                  const __grid_constant__ GemvShape shape) {
    extern __shared__ __align__(128) char base[];
    let_next_start();
    Local &local = *reinterpret_cast<Local *>(base);
    const int32_t *plan = parameters.plan + blockIdx.x * PLAN_INTS;
    if (__ldg(plan + 1) + __ldg(plan + 3) + __ldg(plan + 5) == 0) {  // it only keeps its place
        wait_for_previous();
        return;
    }
    Ring<DEPTH> ring(local, parameters, shape, base);
    copy_job(local, parameters);
    ring.finish_start();
    const ExlGemv &job = local.job;
    const int t = threadIdx.x;
    const int *start = local.plan + 8 + t / LANES * WARP_INTS;
    const Place at = {start[0], start[1], start[2], start[3]};
    const Smem s(base, shape);
    stage_tail<ROWS>(job, shape, s.x, s.sums);
    const int mine = local.count(0) + (job.y_kind == EXL_Y_GATED ? 0 : local.count(1) + local.count(2));
    const int outputs = mine * 16 * job.rows;
    const bool any = t < outputs;
    const Output first(local, any ? t / 16 % mine : 0, t % 16);
    const int first_row = any && ROWS > 1 ? t / 16 / mine : 0;
    Ahead ahead;
    if (any) ask_constants(local, first, mine, ahead);
    wait_for_previous();
    if (ROWS == 1 && job.x_kind == EXL_X_NORM) stage_normed<ROWS>(job, s.x, s.sums, s.squares);
    else stage_halves<ROWS>(job, shape, s.x, s.sums);
    if (any) ask_hidden(job, first, ahead);
    __syncthreads();
    multiply_run<ROWS, DEPTH>(local, ring, at, start[4], shape.x_stride, s);
    __syncthreads();
    if (any) write_result<ROWS>(job, first, mine, first_row, s, ahead);
    for (int i = t + THREADS; i < outputs; i += THREADS) {
        const Output o(local, i / 16 % mine, i % 16);
        ask_constants(local, o, mine, ahead);
        ask_hidden(job, o, ahead);
        write_result<ROWS>(job, o, mine, ROWS > 1 ? i / 16 / mine : 0, s, ahead);
    }
}

inline int align16(int bytes) { return (bytes + 15) / 16 * 16; }

// rows: how many of x are staged.
template <int ROWS> GemvShape shape_of(const ExlGemv &job, int rows, int depth) {
    const int stored = job.matrix[0].stored;
    GemvShape g = {};
    int scales = 0;
    for (int i = 0; i < job.matrices; i++)
        for (int n = 0; n < job.matrix[i].section_count; n++) {
            const ExlSection &section = job.matrix[i].sections[n];
            g.scales = g.scales > section.piece_words * 4 ? g.scales : section.piece_words * 4;
            scales = scales > section.scale_words * 4 ? scales : section.scale_words * 4;
        }
    g.slot = (g.scales + scales + 127) / 128 * 128;
    g.rings = (sizeof(Local) + 127) / 128 * 128;
    g.x = g.rings + WARPS * depth * g.slot;
    // 64 bytes beyond a multiple of 128 keep the 8 rows of a fragment on different banks.
    g.x_stride = (stored + TAIL + 63) / 64 * 64 + 32;
    g.sums = g.x + g.x_stride * 2 * rows;
    g.whole = g.sums + align16((stored + TAIL) / 32 * 4 * ROWS);
    g.ends = g.whole + job.columns * 16 * ROWS * 4;
    g.squares = g.ends + WARPS * 16 * ROWS * 4;
    g.bytes = g.squares + align16(WARPS * 4);
    return g;
}

template <int ROWS, int DEPTH> int launch_rows(const ExlGemv &job, int dependent, cudaStream_t stream) {
    const GemvShape shape = shape_of<ROWS>(job, job.rows, DEPTH);
    return launch(gemv<ROWS, DEPTH>, job.blocks, THREADS, shape.bytes, dependent, stream, job, shape);
}

// The deepest ring that leaves room; several rows go as many at a time as fit. EXL_BAD_ARGUMENT, and nothing launched,
// where not even one does.
template <int ROWS, int DEPTH> int launch_gemv(const ExlGemv &job, int dependent, cudaStream_t stream) {
    int device = 0, most = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (error != cudaSuccess) return error;
    int fit = job.rows;
    while (fit > 0 && shape_of<ROWS>(job, fit, DEPTH).bytes > most) fit--;
    if (fit == 0) {
        if constexpr (DEPTH > (ROWS == 1 ? 1 : 2)) return launch_gemv<ROWS, DEPTH / 2>(job, dependent, stream);
        return EXL_BAD_ARGUMENT;
    }
    const int times = (job.rows + fit - 1) / fit;
    for (int done = 0, left = times; left > 0; left--) {
        ExlGemv part = job;
        part.rows = (job.rows - done) / left;
        part.x = static_cast<const half *>(job.x) + (size_t)done * job.matrix[0].stored;
        const size_t offset = (size_t)done * job.y_stride * (job.y_kind == EXL_Y_FLOAT ? 4 : 2);
        part.y = job.y ? static_cast<char *>(job.y) + offset : nullptr;
        const int code = launch_rows<ROWS, DEPTH>(part, dependent, stream);
        if (code) return code;
        done += part.rows;
    }
    return 0;
}

}  // namespace exl
