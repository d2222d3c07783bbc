// x on its way to the tensor cores. Of one row every warp brings its own part to shared memory and waits for nobody; several
// rows are brought by all warps of a block together.
#pragma once
#include "gemv.cuh"

namespace exl {

// What a warp, or of several rows the block, takes of x.
struct Range {
    int row, rows, at;
};
template <int ROWS> constexpr int CREW = ROWS == 1 ? LANES : THREADS;  // threads that bring a range
template <int ROWS> __device__ __forceinline__ int number_in_crew() { return threadIdx.x % CREW<ROWS>; }

// 1 / root mean square of the vectors that the rows of x are made from. For all threads of the block, each of which reads
// a part: if every warp read all of it, a thousand of them would stand in line at the same few lines of L2, 2,000 clocks
// long.
template <int ROWS> struct Squares {
    float mine[ROWS];

    // Nothing is added up as long as there is one for each thread: to add is to wait for it, and x is not asked for yet.
    __device__ __forceinline__ Squares(const Product &job) {
        const int each = job.width / 16, t = threadIdx.x;
#pragma unroll
        for (int row = 0; row < ROWS; row++)
            mine[row] = t < each && row < job.rows ? produced(job.squares + row * each + t) : 0.f;
#pragma unroll 1
        for (int i = t + THREADS; i < each; i += THREADS) {
#pragma unroll
            for (int row = 0; row < ROWS; row++)
                if (row < job.rows) mine[row] += produced(job.squares + row * each + i);
        }
    }
    // Of row number `lane`, or of the only one.
    __device__ __forceinline__ float factor(const Product &job, float *parts) const {
        const int lane = threadIdx.x % LANES;
#pragma unroll
        for (int row = 0; row < ROWS; row++) {
            const float sum = warp_sum(mine[row]);
            if (lane == 0) parts[row * WARPS + threadIdx.x / LANES] = sum;
        }
        __syncthreads();
        const float *of_row = parts + lane % ROWS * WARPS;
        float all = 0.f;
#pragma unroll
        for (int i = 0; i < WARPS; i++) all += of_row[i];
        return rsqrtf(__fmaf_rn(all, 1.f / job.width, job.eps));
    }
};

// Which row of x, and which part of it, a thread brings; its parts of all rows are as far apart as there are threads at it.
template <int ROWS> struct Place {
    int row = 0, part, parts, step = 0, rest = CREW<ROWS>;

    __device__ __forceinline__ Place(int parts) : part(number_in_crew<ROWS>()), parts(parts) {
        if constexpr (ROWS > 1) {
            step = CREW<ROWS> / max(parts, 1), rest = CREW<ROWS> - step * parts, row = part / max(parts, 1);
            part -= row * parts;
        }
    }
    __device__ __forceinline__ void go_on() {
        row += step, part += rest;
        if (ROWS > 1 && part >= parts) part -= parts, row++;
    }
};

__device__ __forceinline__ uint2 scaled(const float4 &v, float factor) {
    const half2 h[2] = {__floats2half2_rn(v.x * factor, v.y * factor), __floats2half2_rn(v.z * factor, v.w * factor)};
    return reinterpret_cast<const uint2 &>(h);
}

// A range of all rows of x; zeros behind the stored inputs, where the last piece reaches beyond them. A ring that was
// not started before is when x has been asked for.
template <int ROWS, int DEPTH>
__device__ __forceinline__ void stage_normed(const Product &job, const Range &range, half *x, float *parts,
                                             Ring<DEPTH> &ring) {
    constexpr int AT_ONCE = ROWS == 1 ? 6 : 2 * ROWS, STEP = CREW<ROWS>;
    const int number = number_in_crew<ROWS>(), quads = range.rows / 4, stored = (job.stored - range.row) / 4;
    const int all = ROWS == 1 ? quads : quads * job.rows;
    const float *source = static_cast<const float *>(job.x) + range.row;
    const Squares<ROWS> squares(job);
    float factor = 0.f;
    Place<ROWS> place(quads), placed = place;
    // Warps without rows come to the barrier too.
#pragma unroll 1
    for (int base = 0; base == 0 || base < all; base += STEP * AT_ONCE) {
        float4 v[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            v[k] = {0.f, 0.f, 0.f, 0.f};
            if (base + k * STEP + number < all && place.part < stored)
                v[k] = produced(reinterpret_cast<const float4 *>(source + (size_t)place.row * job.stored) + place.part);
            place.go_on();
        }
        if (base == 0 && !job.early) ring.start();
        if (base == 0) factor = squares.factor(job, parts);
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            const float mine = ROWS == 1 ? factor : __shfl_sync(~0u, factor, placed.row % ROWS);
            if (base + k * STEP + number < all)
                reinterpret_cast<uint2 *>(x + placed.row * job.x_stride)[placed.part] = scaled(v[k], mine);
            placed.go_on();
        }
    }
}

// Not by asynchronous copies: those of the ring, asked for before, would have to be waited for as well.
template <int ROWS, int DEPTH>
__device__ __forceinline__ void stage_halves(const Product &job, const Range &range, half *x, Ring<DEPTH> &ring) {
    constexpr int AT_ONCE = ROWS == 8 ? 16 : 8, STEP = CREW<ROWS>;
    const int number = number_in_crew<ROWS>(), octets = range.rows / 8, stored = (job.stored - range.row) / 8;
    const int all = ROWS == 1 ? octets : octets * job.rows;
    const half *source = static_cast<const half *>(job.x) + range.row;
    Place<ROWS> place(octets), placed = place;
#pragma unroll 1
    for (int base = 0; base == 0 || base < all; base += STEP * AT_ONCE) {
        uint4 v[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            v[k] = {0, 0, 0, 0};
            if (base + k * STEP + number < all && place.part < stored)
                v[k] = produced(reinterpret_cast<const uint4 *>(source + (size_t)place.row * job.stored) + place.part);
            place.go_on();
        }
        if (base == 0 && !job.early) ring.start();
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            if (base + k * STEP + number < all)
                reinterpret_cast<uint4 *>(x + placed.row * job.x_stride)[placed.part] = v[k];
            placed.go_on();
        }
    }
}

// What a lane loads of x for the tensor cores: its part of the 16 rows of a column, or its row, of which the last stands in
// for those that are not there.
template <int ROWS> __device__ __forceinline__ const half *lanes_x(const Product &job, const half *x) {
    const int r = threadIdx.x % LANES / 4, q = threadIdx.x % 4;
    return x + q * 8 + (ROWS == 1 ? r / 2 * 32 + r % 2 * 4 : min(r % ROWS, job.rows - 1) * job.x_stride);
}

// Sums of 32 rows of a range of x, by products with ones, even and odd 16 apart. Of one row by the warp whose range it is, in
// whole pieces; of several by all warps. Loads come before stores, which the compiler does not move them past.
template <int ROWS>
__device__ __forceinline__ void sum_blocks(const Product &job, const Range &range, const half *x, float *sums) {
    constexpr uint32_t ONES = 0x3c003c00u;
    constexpr int AT_ONCE = 4;  // a piece has four blocks
    x = lanes_x<ROWS>(job, x);
    const int r = threadIdx.x % LANES / 4, q = threadIdx.x % 4, blocks = range.rows / 32;
    if constexpr (ROWS == 1) {
#pragma unroll 1
        for (int base = 0; base < blocks; base += 4 * AT_ONCE) {
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
        for (int base = threadIdx.x / LANES * AT_ONCE; base < blocks; base += WARPS * AT_ONCE) {
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
