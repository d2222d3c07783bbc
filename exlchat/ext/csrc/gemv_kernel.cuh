// The kernel of gemv.cuh for one row of x: from the plan to what is written.
#pragma once
#include "activation.cuh"
#include "cluster.cuh"
#include "gemv_row.cuh"
#include "gemv_x.cuh"
#include "parameters.cuh"
#include "peers.cuh"
#include "residual.cuh"

namespace exl {

// Shared memory of a block.
struct Smem {
    Product *job;
    int *counts;
    Segment *lists;
    half *x;
    float *x_sums, *sums, *received, *squares;
    Gift *gift;
    ExchangeInBlock *exchange;

    __device__ __forceinline__ Smem(char *base, const Product &job)
        : job(reinterpret_cast<Product *>(base)), counts(reinterpret_cast<int *>(base + job.counts)),
          lists(reinterpret_cast<Segment *>(base + job.lists)), x(reinterpret_cast<half *>(base + job.x_at)),
          x_sums(reinterpret_cast<float *>(base + job.x_sums)), sums(reinterpret_cast<float *>(base + job.sums)),
          received(reinterpret_cast<float *>(base + job.received)), squares(reinterpret_cast<float *>(base + job.squares_at)),
          gift(reinterpret_cast<Gift *>(base + job.gift)),
          exchange(reinterpret_cast<ExchangeInBlock *>(base + job.exchange)) {}

    // First column tile and number of column tiles of a matrix.
    __device__ __forceinline__ int first(int matrix) const { return counts[matrix * 2]; }
    __device__ __forceinline__ int count(int matrix) const { return counts[matrix * 2 + 1]; }
};

__device__ __forceinline__ half bias_of(const Product &job, int matrix, int at) {
    return job.bias[matrix] ? __ldg(job.bias[matrix] + at) : __ushort_as_half(0);
}

// Where an output of the block stands.
struct Output {
    int matrix, number, column, at, to;  // number: of its tile in the block; at: its column in the matrix; to: in y

    __device__ __forceinline__ Output(const Smem &s, int number, int column) : matrix(0), number(number), column(column) {
        int before = 0, left = number;
#pragma unroll 1
        while (matrix < EXL_MAX_MATRICES - 1 && left >= s.count(matrix))
            left -= s.count(matrix), before += s.job->column_tiles[matrix++];
        at = (s.first(matrix) + left) * 16 + column;
        to = before * 16 + at;
    }
};

template <int COUNT> __device__ __forceinline__ float sum_of(const float *values, int apart) {
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < COUNT; i++) sum += values[i * apart];
    return sum;
}

// What the warps of a block have added up for a column of its tile `number`, of one row.
struct RowTotal {
    const Smem &s;

    __device__ __forceinline__ float operator()(int number, int column, int = 0) const {
        const float *sums = s.sums + number * WARPS * 16 + column;
        return sum_of<WARPS / 2>(sums, 16) + sum_of<WARPS / 2>(sums + WARPS / 2 * 16, 16);
    }
};

// What a thread's first output needs from memory beside the sums. Constants are asked for before the previous kernel
// ends, the residual before the weights are multiplied: at the end nobody waits for memory. Nothing is converted until
// it is needed, which would be to wait for it.
struct Ahead {
    ResidualConstants constants;
    float hidden;
    half bias, other;  // the bias of the second matrix, or the weight of a norm behind the product
    int place;
};

__device__ __forceinline__ int word_of(const ExlResidual &residual, int row, int at) {
    return residual.word + row * (int)residual.columns + at;
}

// What is added in a block of sums over cards: before the previous kernel ends, and behind it.
__device__ __forceinline__ void prepare_exchange(const Smem &s) {
    if (s.job->exchange) s.exchange->copy(s.job->residual.peers);
}
__device__ __forceinline__ void ask_tag(const Smem &s) {
    if (s.job->exchange && threadIdx.x == 0) s.exchange->tag = tag_of(*s.job->residual.peers, s.job->residual.exchange);
}

template <bool DEFERS, class Total>
__device__ __forceinline__ void write_result(const Product &job, const Total &total, const Output &o, int mine, int row,
                                             const Ahead &ahead) {
    const float sum = total(o.number, o.column, row) + __half2float(ahead.bias);
    if (job.y_kind == EXL_Y_GATED || job.y_kind == EXL_Y_ACTIVATED) {
        float value = activated(job.activation, sum);
        if (job.y_kind == EXL_Y_GATED) value *= total(o.number + mine, o.column, row) + __half2float(ahead.other);
        static_cast<half *>(job.y)[(size_t)row * job.y_stride + ahead.place] = __float2half_rn(value);
    } else if (job.y_kind == EXL_Y_HALF) {
        static_cast<half *>(job.y)[(size_t)row * job.y_stride + o.to] = __float2half_rn(sum);
    } else if (job.y_kind == EXL_Y_FLOAT) {
        static_cast<float *>(job.y)[(size_t)row * job.y_stride + o.to] = sum;
    } else {
        float added = sum;
        if (job.exchange) {
            const Exchange exchange(total.s.exchange->peers, total.s.exchange->tag);
            added = exchange.sum(word_of(job.residual, row, o.to), sum);
        }
        put_residual<DEFERS>(job.residual, ahead.constants, ahead.other, row, o.to, ahead.hidden, added, threadIdx.x % LANES);
    }
}

// What is added goes to the other cards, all of a block before it waits for theirs.
template <class Total>
__device__ __forceinline__ void send_result(const Product &job, const Total &total, const Output &o, int row) {
    const Exchange exchange(total.s.exchange->peers, total.s.exchange->tag);
    const float sum = total(o.number, o.column, row) + __half2float(bias_of(job, o.matrix, o.at));
    exchange.send_all(word_of(job.residual, row, o.to), __float_as_uint(sum));
}

template <bool DEFERS> __device__ __forceinline__ void ask_constants(const Product &job, const Output &o, Ahead &ahead) {
    ahead.bias = bias_of(job, o.matrix, o.at);
    if (job.y_kind == EXL_Y_ADD) {
        ahead.constants = ResidualConstants(job.residual, o.to);
        if (DEFERS) ahead.other = __ldg(static_cast<const half *>(job.residual.post_norm) + o.to);
    }
    if (job.y_kind == EXL_Y_GATED) ahead.other = bias_of(job, 1, o.at);
    else if (job.y_kind != EXL_Y_ACTIVATED) return;
    ahead.place = job.scatter ? __ldg(job.scatter + o.to) : o.to;
}
template <bool DEFERS> __device__ __forceinline__ Stream<DEFERS> ask_stream(const Product &job, const Output &o, int row, bool any) {
    Stream<DEFERS> stream;
    if (any && job.y_kind == EXL_Y_ADD) stream.ask(job.residual, row, o.to);
    return stream;
}

// What a block begins with. A kernel that does not run beside the one before (plain edges, most of eight rows) makes everybody
// wait for all of this: so a thread asks for all that it reads of the plan at once, and does what there is to do before any of it
// is there.

// The column tiles of a block: of each matrix the first and how many.
struct Tiles {
    int4 two, third;

    __device__ __forceinline__ explicit Tiles(const int32_t *plan)
        : two(__ldg(reinterpret_cast<const int4 *>(plan))), third(__ldg(reinterpret_cast<const int4 *>(plan) + 1)) {}
    __device__ __forceinline__ int count() const { return two.y + two.w + third.y; }
    __device__ __forceinline__ void keep(const Smem &s) const {
        reinterpret_cast<int4 *>(s.counts)[0] = two, reinterpret_cast<int4 *>(s.counts)[1] = third;
    }
};

// The segments of warp `number` of a plan, for the warp that takes them; or for HELPERS, each of which has every HELPERSth column,
// since a column's sums are added up in order.
template <int HELPERS = 1> struct Listed {
    const int4 *from;
    int4 *to, first;
    int segments, lane;

    __device__ __forceinline__ Listed(const Product &job, const int32_t *plan, int number, const Smem &s)
        : from(reinterpret_cast<const int4 *>(plan + HEADER_INTS + WARPS * WARP_INTS) + number * job.segments),
          to(reinterpret_cast<int4 *>(s.lists) + threadIdx.x / LANES * job.segments), segments(job.segments),
          lane(threadIdx.x % LANES) {
        if (lane < segments) first = __ldg(from + lane);
    }
    __device__ __forceinline__ void keep() const {
        if constexpr (HELPERS > 1) return keep_columns(threadIdx.x / THREADS);
        if (lane < segments) to[lane] = first;
#pragma unroll 1
        for (int i = lane + LANES; i < segments; i += LANES) to[i] = __ldg(from + i);
    }
    // Those of columns `which`, `which` + HELPERS and so on, and one of nothing behind them.
    __device__ __forceinline__ void keep_columns(int which) const {
        int kept = 0;
#pragma unroll 1
        for (int base = 0; base < segments; base += LANES) {
            int4 raw = first;
            if (base > 0) raw = base + lane < segments ? __ldg(from + base + lane) : int4{0, 0, 0, 0};
            const Segment &segment = reinterpret_cast<const Segment &>(raw);
            const bool takes = base + lane < segments && segment.pieces() && segment.column() % HELPERS == which;
            const uint32_t taken = __ballot_sync(~0u, takes);
            if (takes) to[kept + __popc(taken & ((1u << lane) - 1))] = raw;
            kept += __popc(taken);
        }
        if (lane == 0) to[kept] = {0, 0, 0, 0};
    }
};

// The job to shared memory, and sums of nothing.
template <int ROWS, int HELPERS = 1> __device__ __forceinline__ void make_ready(const Product &job, const Smem &s) {
    const int t = threadIdx.x;
    copy_parameters<HELPERS * WARPS>(*s.job, job, t / LANES, t % LANES);
#pragma unroll 1
    for (int i = t; i < job.columns * WARPS * 4 * ROWS; i += HELPERS * THREADS) reinterpret_cast<float4 *>(s.sums)[i] = {0.f, 0.f, 0.f, 0.f};
}

// All of that for one row of x. False for a block that has nothing to do.
__device__ __forceinline__ bool begin_block(const Product &job, const int32_t *plan, const Smem &s) {
    const Listed<> listed(job, plan, threadIdx.x / LANES, s);
    const Tiles tiles(plan);
    make_ready<1>(job, s);
    if (tiles.count() == 0) return false;
    listed.keep();
    if (threadIdx.x == 0) tiles.keep(s);
    __syncthreads();
    return true;
}

template <int DEPTH, bool DEFERS> __global__ void __launch_bounds__(THREADS, 2) gemv(const __grid_constant__ Product parameters) {
    EXL_ALIGNED_SHARED_MEMORY(memory, 128);
    char *base = reinterpret_cast<char *>(memory);
    let_next_start();
    const int t = threadIdx.x, warp = t / LANES;
    const int32_t *plan = parameters.plan + (size_t)blockIdx.x * parameters.plan_ints;
    const int4 of_x = __ldg(reinterpret_cast<const int4 *>(plan + HEADER_INTS) + warp);
    const Smem s(base, parameters);
    if (!begin_block(parameters, plan, s)) {  // it only keeps its place
        wait_for_previous();
        return;
    }
    const Product &job = *s.job;
    const Segment *list = s.lists + warp * job.segments;
    Ring<DEPTH> ring(job, list, base);
    // Where x is there already, it comes first.
    if (job.early) ring.start();
    const int mine = s.count(0) + (job.y_kind == EXL_Y_GATED ? 0 : s.count(1) + s.count(2));
    const bool any = t < mine * 16;
    const Output first(s, any ? t / 16 : 0, t % 16);
    Ahead ahead;
    if (any) ask_constants<DEFERS>(job, first, ahead);
    const Range range = {of_x.x, of_x.y, of_x.z};
    half *x = s.x + range.at;
    float *x_sums = s.x_sums + range.at / 32;
    prepare_exchange(s);
    __syncthreads();
    wait_for_previous();
    ask_tag(s);
    // What is joined is asked for before x, so that it is there when x is.
    Stream<DEFERS> stream = ask_stream<DEFERS>(job, first, 0, DEFERS && any);
    stage<1, DEFERS>(job, range, x, s.squares, ring);
    if (!DEFERS) stream = ask_stream<DEFERS>(job, first, 0, any);
    ahead.hidden = stream.joined();
    __syncwarp();
    sum_blocks<1>(job, range, x, x_sums);
    __syncwarp();
    multiply_row(list, ring, lanes_x<1>(job, x), x_sums, s.sums + warp * 16);
    __syncthreads();
    const RowTotal total = {s};
    if (job.exchange) {
#pragma unroll 1
        for (int i = t; i < mine * 16; i += THREADS) send_result(job, total, Output(s, i / 16, i % 16), 0);
    }
    if (any) write_result<DEFERS>(job, total, first, mine, 0, ahead);
#pragma unroll 1
    for (int i = t + THREADS; i < mine * 16; i += THREADS) {
        const Output o(s, i / 16, i % 16);
        ask_constants<DEFERS>(job, o, ahead);
        ahead.hidden = ask_stream<DEFERS>(job, o, 0, true).joined();
        write_result<DEFERS>(job, total, o, mine, 0, ahead);
    }
}

}  // namespace exl
