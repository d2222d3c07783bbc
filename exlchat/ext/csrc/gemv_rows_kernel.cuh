// The kernel of gemv.cuh for 2 to 8 rows of x: of each row what the kernel for one row makes of it, to the last bit.
//
// What several rows cost is x: eight rows of 14,336 inputs are 229 KB, which every multiprocessor brings through L2 and has
// to find room for. So BLOCKS neighbours, two where the card has clusters, share their work: each multiplies the columns of
// both for its half of the plan's warps, and needs the inputs of those warps alone, once for all of them. In the end each
// gives the other what its half of the warps has come to for the other's columns.
//
// HELPERS: warps of the block that stand in for one of the plan, two of four and eight rows. They take so many registers that
// a block is alone on its multiprocessor, where two warps a scheduler left it idle half of the time: one H200, the step of an
// 8B with 128 tokens cached, eight rows 2.60 -> 2.51 ms.
#pragma once
#include "gemv_kernel.cuh"
#include "gemv_rows.cuh"

namespace exl {

// Which warp of which block of the plan a warp stands in for.
template <int BLOCKS> struct Part {
    static constexpr int EACH = WARPS / BLOCKS;  // warps of a plan's block whose work one block does
    int rank, turn, warp;                        // of this block among its neighbours; of the other's block; of the plan's warp
    const int32_t *own, *plan;                   // what the block writes, and what the warp multiplies

    __device__ __forceinline__ Part(const Product &job, int warp)
        : rank(blockIdx.x % BLOCKS), turn(warp % WARPS / EACH), warp(rank * EACH + warp % EACH),
          own(job.plan + (size_t)blockIdx.x * job.plan_ints), plan(own + (turn - rank) * job.plan_ints) {}

    // First row of x that the warp needs, and how many.
    __device__ __forceinline__ int2 rows() const { return __ldg(reinterpret_cast<const int2 *>(plan + HEADER_INTS) + warp * 2); }
};

// Sums stand as float [BLOCKS][columns][EACH][ROWS * 16]: of each neighbour's columns, by warps of its plan.
template <int ROWS, int HELPERS, int BLOCKS> struct RowsTotal {
    static constexpr int EACH = Part<BLOCKS>::EACH, TILE = 16 * ROWS;
    const Smem &s;
    int rank;

    __device__ __forceinline__ const float *sums_of(int block, int number, int place) const {
        return s.sums + (block * s.job->columns + number) * EACH * TILE + place;
    }
    __device__ __forceinline__ float operator()(int number, int column, int row) const {
        const int place = sum_place(column, row);
        const float *own = sums_of(rank, number, place);
        const float first = sum_of<WARPS / 2>(own, TILE);
        if constexpr (BLOCKS == 1) return first + sum_of<WARPS / 2>(own + WARPS / 2 * TILE, TILE);
        return first + s.received[number * TILE + place];
    }
    // By all threads of the block: to the neighbour what it lacks, and from it what this block does.
    __device__ __forceinline__ void exchange() const {
        for (int i = threadIdx.x; i < s.job->columns * TILE; i += HELPERS * THREADS)
            s.gift->give(s.received + i, 1 - rank, sum_of<EACH>(sums_of(1 - rank, i / TILE, i % TILE), TILE));
        s.gift->wait();
    }
};

// What falls to a thread of `tiles` column tiles that the block writes: a column of a tile, of one row or of every `step`th.
template <int HELPERS> struct Writer {
    static constexpr int GROUPS = HELPERS * THREADS / 16;
    int number, row = 0, step = 1;
    bool any;

    __device__ __forceinline__ Writer(int tiles, int rows) : number(threadIdx.x / 16) {
        if (tiles > 0 && tiles < GROUPS) step = GROUPS / tiles, row = number / tiles, number -= row * tiles;
        any = number < tiles && row < min(step, rows);
    }
};

template <bool DEFERS, int HELPERS, class Total>
__device__ __forceinline__ void write_all(const Total &total, const Writer<HELPERS> &writer, Output output, int mine, Ahead &ahead) {
    const Smem &s = total.s;
    const Product &job = *s.job;
    int number = writer.number, row = writer.row;
#pragma unroll 1
    while (true) {
        write_result<DEFERS>(job, total, output, mine, row, ahead);
        row += writer.step;
        if (row >= job.rows) {
            number += writer.GROUPS, row = writer.row;
            if (number >= mine) return;
            output = Output(s, number, threadIdx.x % 16);
            ask_constants<DEFERS>(job, output, ahead);
        }
        ahead.hidden = ask_stream<DEFERS>(job, output, row, true).joined();
    }
}

// What a block begins with; the job, what it writes, and every warp's own list come to shared memory. False where no neighbour has
// anything to do.
template <int ROWS, int HELPERS, int BLOCKS>
__device__ __forceinline__ bool begin_part(const Product &job, const Part<BLOCKS> &part, const Smem &s) {
    const Listed<HELPERS> listed(job, part.plan, part.warp, s);
    const Tiles own(part.own);
    int tiles = own.count();
    if constexpr (BLOCKS > 1) tiles += Tiles(part.own + (1 - 2 * part.rank) * job.plan_ints).count();
    make_ready<ROWS, HELPERS>(job, s);
    if (tiles == 0) return false;
    listed.keep();
    if (threadIdx.x == 0) own.keep(s);
    if (BLOCKS > 1 && threadIdx.x == 0) s.gift->expect(job.columns * 16 * ROWS * (int)sizeof(float));
    __syncthreads();
    return true;
}

template <int ROWS, int HELPERS, int DEPTH, int BLOCKS, bool DEFERS>
__global__ void __launch_bounds__(HELPERS *THREADS, 2 / HELPERS) gemv_rows(const __grid_constant__ Product parameters) {
    if constexpr (BLOCKS == 1 || CLUSTERS) {
        EXL_ALIGNED_SHARED_MEMORY(memory, 128);
        char *base = reinterpret_cast<char *>(memory);
        let_next_start();
        const int t = threadIdx.x, warp = t / LANES;
        const Part<BLOCKS> part(parameters, warp);
        const Smem s(base, parameters);
        const int2 of_warp = part.rows(), of_lane = Part<BLOCKS>(parameters, t % WARPS).rows();
        if (!begin_part<ROWS, HELPERS>(parameters, part, s)) {  // they only keep their places
            wait_for_previous();
            return;
        }
        const Range range = rows_of_all(parameters, of_lane);
        const int first_row = of_warp.x - range.row;
        if constexpr (BLOCKS > 1) pass_by_cluster();  // the neighbour may give from now on
        const Product &job = *s.job;
        const Segment *list = s.lists + warp * job.segments;
        Ring<DEPTH> ring(job, list, base);
        // Where x is there already, it comes first.
        if (job.early) ring.start();
        const int mine = s.count(0) + (job.y_kind == EXL_Y_GATED ? 0 : s.count(1) + s.count(2));
        const Writer<HELPERS> writer(mine, job.rows);
        const Output first(s, writer.any ? writer.number : 0, t % 16);
        Ahead ahead;
        if (writer.any) ask_constants<DEFERS>(job, first, ahead);
        const int column_floats = Part<BLOCKS>::EACH * 16 * ROWS;
        prepare_exchange(s);
        wait_for_previous();
        ask_tag(s);
        Stream<DEFERS> stream = ask_stream<DEFERS>(job, first, writer.row, DEFERS && writer.any);
        stage<ROWS, DEFERS, HELPERS>(job, range, s.x, s.squares, ring);
        if (!DEFERS) stream = ask_stream<DEFERS>(job, first, writer.row, writer.any);
        ahead.hidden = stream.joined();
        __syncthreads();
        sum_blocks<ROWS, CREW<ROWS, HELPERS>>(job, range, s.x, s.x_sums);
        __syncthreads();
        float *sums = s.sums + (part.turn * job.columns * Part<BLOCKS>::EACH + part.warp % Part<BLOCKS>::EACH) * 16 * ROWS;
        multiply_rows<ROWS>(list, ring, lanes_x<ROWS>(job, s.x + first_row), s.x_sums + first_row / 32 * ROWS, sums, column_floats);
        __syncthreads();
        const RowsTotal<ROWS, HELPERS, BLOCKS> total = {s, part.rank};
        if constexpr (BLOCKS > 1) {
            wait_for_cluster();
            total.exchange();
        }
        if (job.exchange) {
#pragma unroll 1
            for (int i = t; i < mine * 16 * job.rows; i += HELPERS * THREADS)
                send_result(job, total, Output(s, i / 16 % mine, i % 16), i / 16 / mine);
        }
        if (writer.any) write_all<DEFERS>(total, writer, first, mine, ahead);
    }
}

}  // namespace exl
