// x on its way to the tensor cores. Of one row every warp brings its own part to shared memory and waits for nobody; several
// rows are brought by all warps of a block together.
#pragma once
#include <type_traits>

#include "gemv.cuh"
#include "residual.cuh"

namespace exl {

// What a warp, or of several rows the block, takes of x.
struct Range {
    int row, rows, at;
};
// Threads that bring a range; where HELPERS warps stand in for one of the plan, there are so many times as many.
template <int ROWS, int HELPERS = 1> constexpr int CREW = ROWS == 1 ? LANES : HELPERS * THREADS;

// The rows of x that a block needs, from the first to the last of its warps; each lane brings those of warp number
// lane % WARPS. By whole warps.
__device__ __forceinline__ Range rows_of_all(const Product &job, int2 rows) {
    int first = rows.y ? rows.x : job.stored, end = rows.x + rows.y;
#pragma unroll
    for (int d = WARPS / 2; d; d /= 2)
        first = min(first, __shfl_xor_sync(~0u, first, d)), end = max(end, __shfl_xor_sync(~0u, end, d));
    return {first, max(end - first, 0), 0};
}

// Sums of squares of the vectors that the rows of x are made from: floats, or JoinSums. For all threads of the block, each of
// which reads a part: if every warp read all of it, a thousand of them would stand in line at the same few lines of L2, 2,000
// clocks long. Of a larger block the first THREADS do, so that sums are the same.
template <int ROWS, class Sums> struct Squares {
    // For JoinSums of several rows there are no registers beside x: they are added up before x is asked for, a row by a warp.
    static constexpr bool BEFORE_X = ROWS > 1 && std::is_same_v<Sums, JoinSums>;
    Sums *parts;  // [ROWS][WARPS]
    Sums mine[BEFORE_X ? 1 : ROWS];

    // Nothing is added up as long as there is one for each thread: to add is to wait for it, and x is not asked for yet.
    __device__ __forceinline__ Squares(const Product &job, void *parts) : parts(static_cast<Sums *>(parts)) {
        const Sums *squares = reinterpret_cast<const Sums *>(job.squares);
        const int each = job.width / 16, t = threadIdx.x, end = t < THREADS ? each : 0;
        if constexpr (BEFORE_X) {
            if (t / LANES < job.rows) add_row(squares + t / LANES * each, each);
        } else {
#pragma unroll
            for (int row = 0; row < ROWS; row++)
                mine[row] = t < end && row < job.rows ? produced(squares + row * each + t) : Sums{};
#pragma unroll 1
            for (int i = t + THREADS; i < end; i += THREADS) {
#pragma unroll
                for (int row = 0; row < ROWS; row++)
                    if (row < job.rows) mine[row] = mine[row] + produced(squares + row * each + i);
            }
        }
    }
    // A row by one warp, as all warps add up a row.
    __device__ __forceinline__ void add_row(const Sums *row, int each) {
        const int lane = threadIdx.x % LANES;
        Sums of_warp[WARPS];
#pragma unroll
        for (int i = 0; i < WARPS; i++) of_warp[i] = i * LANES + lane < each ? produced(row + i * LANES + lane) : Sums{};
#pragma unroll 1
        for (int first = THREADS + lane; first < each; first += THREADS) {
#pragma unroll
            for (int i = 0; i < WARPS; i++)
                if (first + i * LANES < each) of_warp[i] = of_warp[i] + produced(row + first + i * LANES);
        }
#pragma unroll
        for (int i = 0; i < WARPS; i++) put(threadIdx.x / LANES, i, of_warp[i]);
    }
    __device__ __forceinline__ void put(int row, int warp, const Sums &mine) const {
        const Sums sum = sum_of_warp(mine);
        if (threadIdx.x % LANES == 0) parts[row * WARPS + warp] = sum;
    }
    // Of row number `lane`, or of the only one.
    __device__ __forceinline__ Factors factors(const Product &job) const {
        if constexpr (!BEFORE_X) {
            if (threadIdx.x < THREADS) {
#pragma unroll
                for (int row = 0; row < ROWS; row++) put(row, threadIdx.x / LANES, mine[row]);
            }
        }
        __syncthreads();
        const Sums *of_row = parts + threadIdx.x % LANES % ROWS * WARPS;
        Sums all = {};
#pragma unroll
        for (int i = 0; i < WARPS; i++) all = all + of_row[i];
        return Factors(all, job.x_kind, job.width, job.eps);
    }
};

// Which row of x a thread brings, and the first of its parts, STEP from each other: of several rows each is brought by as many
// warps. Where a thread goes from row to row instead, so that none is idle with three or five rows, it divides and asks for a
// factor at each part, and eight rows spill registers.
template <int ROWS, int THREADS_AT_IT = CREW<ROWS>> struct Place {
    static constexpr int STEP = THREADS_AT_IT / ROWS;
    int row, part;

    __device__ __forceinline__ Place() : row(threadIdx.x % THREADS_AT_IT / STEP), part(threadIdx.x % STEP) {}
};

// A range of all rows of x; zeros behind the stored inputs, where the last piece reaches beyond them. A ring that was
// not started before is when x has been asked for.
template <int ROWS, class Sums, int THREADS_AT_IT, int DEPTH>
__device__ __forceinline__ void stage_normed(const Product &job, const Range &range, half *x, void *parts, Ring<DEPTH> &ring) {
    constexpr bool JOINS = std::is_same_v<Sums, JoinSums>;
    constexpr int AT_ONCE = ROWS == 1 ? (JOINS ? 4 : 6) : (JOINS ? ROWS : 2 * ROWS), STEP = Place<ROWS, THREADS_AT_IT>::STEP;
    const Place<ROWS, THREADS_AT_IT> place;
    const int quads = place.row < job.rows ? range.rows / 4 : 0, stored = min((job.stored - range.row) / 4, quads);
    const float *source = static_cast<const float *>(job.x) + ((size_t)place.row * job.stored + range.row) * (JOINS ? 2 : 1);
    uint2 *to = reinterpret_cast<uint2 *>(x + place.row * job.x_stride);
    const Squares<ROWS, Sums> squares(job, parts);
    Factors of_row;
    // Warps without rows come to the barrier too.
#pragma unroll 1
    for (int base = 0; base == 0 || base < quads; base += STEP * AT_ONCE) {
        Quad<Sums> v[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            const int part = base + k * STEP + place.part;
            v[k] = {};
            if (part < stored) v[k].ask(source, part);
        }
        if (base == 0) {
            if (!job.early) ring.start();
            of_row = squares.factors(job);
            // Every block finds the same.
            if (JOINS && threadIdx.x < job.rows) job.scale[threadIdx.x] = of_row.scale;
            if (ROWS > 1) of_row.factor = __shfl_sync(~0u, of_row.factor, place.row);
            if (ROWS > 1 && JOINS) of_row.scale = __shfl_sync(~0u, of_row.scale, place.row);
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            const int part = base + k * STEP + place.part;
            if (part < quads) to[part] = v[k].halves(of_row);
        }
    }
}

// Of one row not by asynchronous copies: those of the ring, asked for before, would have to be waited for as well.
template <int ROWS, int THREADS_AT_IT, int DEPTH>
__device__ __forceinline__ void stage_halves(const Product &job, const Range &range, half *x, Ring<DEPTH> &ring) {
    constexpr int AT_ONCE = 8, STEP = Place<ROWS, THREADS_AT_IT>::STEP;
    const Place<ROWS, THREADS_AT_IT> place;
    const int octets = place.row < job.rows ? range.rows / 8 : 0, stored = min((job.stored - range.row) / 8, octets);
    const uint4 *source = reinterpret_cast<const uint4 *>(static_cast<const half *>(job.x) + (size_t)place.row * job.stored + range.row);
    uint4 *to = reinterpret_cast<uint4 *>(x + place.row * job.x_stride);
#pragma unroll 1
    for (int base = 0; base == 0 || base < octets; base += STEP * AT_ONCE) {
        uint4 v[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            const int part = base + k * STEP + place.part;
            v[k] = {0, 0, 0, 0};
            if (part < stored) v[k] = produced(source + part);
        }
        if (base == 0 && !job.early) ring.start();
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            const int part = base + k * STEP + place.part;
            if (part < octets) to[part] = v[k];
        }
    }
}
// Several rows are more than registers hold; where the ring was started before, it is waited for as well.
template <int ROWS, int THREADS_AT_IT, int DEPTH>
__device__ __forceinline__ void copy_halves(const Product &job, const Range &range, half *x, Ring<DEPTH> &ring) {
    using Place = Place<ROWS, THREADS_AT_IT>;
    const Place place;
    const int octets = place.row < job.rows ? range.rows / 8 : 0, stored = (job.stored - range.row) / 8;
    const half *source = static_cast<const half *>(job.x) + (size_t)place.row * job.stored + range.row;
    half *to = x + place.row * job.x_stride;
#pragma unroll 1
    for (int part = place.part; part < octets; part += Place::STEP) {
        if (part < stored) copy16(to + part * 8, source + part * 8);
        else *reinterpret_cast<uint4 *>(to + part * 8) = uint4{0, 0, 0, 0};
    }
    end_of_copies();
    if (job.early) {
        wait_for_copies<0>();
    } else {
        ring.start();
        wait_for_copies<DEPTH - 1>();
    }
}

template <int ROWS, bool DEFERS, int HELPERS = 1, int DEPTH>
__device__ __forceinline__ void stage(const Product &job, const Range &range, half *x, float *parts, Ring<DEPTH> &ring) {
    if (job.x_kind != EXL_X_HALF) {
        stage_normed<ROWS, std::conditional_t<DEFERS, JoinSums, float>, CREW<ROWS, HELPERS>>(job, range, x, parts, ring);
    } else if constexpr (ROWS == 1 || !COPIES_GO_ON) {
        stage_halves<ROWS, CREW<ROWS, HELPERS>>(job, range, x, ring);
    } else {
        copy_halves<ROWS, CREW<ROWS, HELPERS>>(job, range, x, ring);
    }
}

// What a lane loads of x for the tensor cores: its part of the 16 rows of a column, or its row, of which the last stands in
// for those that are not there.
template <int ROWS> __device__ __forceinline__ const half *lanes_x(const Product &job, const half *x) {
    const int r = threadIdx.x % LANES / 4, q = threadIdx.x % 4;
    return x + q * 8 + (ROWS == 1 ? r / 2 * 32 + r % 2 * 4 : min(r % ROWS, job.rows - 1) * job.x_stride);
}

// Sums of 32 rows of a range of x, by products with ones, even and odd 16 apart; by those who bring it. Of one row in whole
// pieces. Loads come before stores, which the compiler does not move them past.
template <int ROWS, int THREADS_AT_IT = CREW<ROWS>>
__device__ __forceinline__ void sum_blocks(const Product &job, const Range &range, const half *x, float *sums) {
    constexpr uint32_t ONES = 0x3c003c00u;
    constexpr int AT_ONCE = 4;  // a piece has four blocks
    x = lanes_x<ROWS>(job, x);
    const int r = threadIdx.x % LANES / 4, q = threadIdx.x % 4, blocks = range.rows / 32;
    if constexpr (ROWS == 1) {
#pragma unroll 1
        for (int base = threadIdx.x % THREADS_AT_IT / LANES * 4 * AT_ONCE; base < blocks; base += THREADS_AT_IT / LANES * 4 * AT_ONCE) {
            uint2 b[AT_ONCE] = {};
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++)
                if (base + 4 * k < blocks) b[k] = *reinterpret_cast<const uint2 *>(x + (base + 4 * k) * 32);
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++) {
                float c[4] = {};
                mma(c, ONES, ONES, ONES, ONES, b[k].x, b[k].y);
                if (r == 0 && base + 4 * k < blocks) sums[base + 4 * k + q] = c[0] + c[1];
            }
        }
    } else {
#pragma unroll 1
        for (int base = threadIdx.x / LANES * AT_ONCE; base < blocks; base += THREADS_AT_IT / LANES * AT_ONCE) {
            uint4 b[AT_ONCE];
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++) b[k] = *reinterpret_cast<const uint4 *>(x + min(base + k, blocks - 1) * 32);
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++) {
                float even[4] = {}, odd[4] = {};
                mma(even, ONES, ONES, ONES, ONES, b[k].x, b[k].y);
                mma(odd, ONES, ONES, ONES, ONES, b[k].z, b[k].w);
                if (r == 0 && q * 2 < ROWS && base + k < blocks)
                    *reinterpret_cast<float2 *>(sums + (base + k) * ROWS + q * 2) = {even[0] + odd[0], even[1] + odd[1]};
            }
        }
    }
}

}  // namespace exl
