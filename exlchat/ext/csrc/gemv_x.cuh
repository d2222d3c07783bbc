// x on its way to the tensor cores: every warp brings its own part to shared memory.
#pragma once
#include "gemv.cuh"

namespace exl {

// What a warp takes of x.
struct Range {
    int row, rows, at;
};

// 1 / root mean square of the vectors that the rows of x are made from. For all threads of the block, each of which reads
// a part: if every warp read all of it, a thousand of them would stand in line at the same few lines of L2, 2,000 clocks
// long.
template <int ROWS> struct Squares {
    float mine[ROWS] = {};

    __device__ __forceinline__ Squares(const Product &job) {
#pragma unroll
        for (int row = 0; row < ROWS; row++) {
            if (ROWS > 1 && row >= job.rows) break;
            const float *squares = job.squares + row * (job.width / 16);
#pragma unroll 1
            for (int i = threadIdx.x; i < job.width / 16; i += THREADS) mine[row] += produced(squares + i);
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

// Which row of x, and which of its octets, a warp brings as number i.
template <int ROWS> struct Place {
    int row, octet;

    __device__ __forceinline__ Place(int i, int octets)
        : row(ROWS == 1 ? 0 : (unsigned)i / max(octets, 1)), octet(i - row * octets) {}
};

__device__ __forceinline__ uint4 scaled(const float4 &a, const float4 &b, float factor) {
    const half2 h[4] = {__floats2half2_rn(a.x * factor, a.y * factor), __floats2half2_rn(a.z * factor, a.w * factor),
                        __floats2half2_rn(b.x * factor, b.y * factor), __floats2half2_rn(b.z * factor, b.w * factor)};
    return reinterpret_cast<const uint4 &>(h);
}

// A warp's part of all rows of x; zeros behind the stored inputs, where the last piece reaches beyond them. A ring that was
// not started before is when x has been asked for.
template <int ROWS, int DEPTH>
__device__ __forceinline__ void stage_normed(const Product &job, const Range &range, half *x, float *parts,
                                             Ring<DEPTH> &ring) {
    constexpr int AT_ONCE = ROWS == 1 ? 3 : 6;
    const int lane = threadIdx.x % LANES, octets = range.rows / 8, stored = (job.stored - range.row) / 8;
    const int all = ROWS == 1 ? octets : octets * job.rows;
    const float *source = static_cast<const float *>(job.x) + range.row;
    const Squares<ROWS> squares(job);
    float factor = 0.f;
    // Warps without rows come to the barrier too.
#pragma unroll 1
    for (int base = 0; base == 0 || base < all; base += LANES * AT_ONCE) {
        float4 v[AT_ONCE][2];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            const int i = base + k * LANES + lane;
            const Place<ROWS> place(i, octets);
            const float4 *from = reinterpret_cast<const float4 *>(source + (size_t)place.row * job.stored);
            v[k][0] = v[k][1] = {0.f, 0.f, 0.f, 0.f};
            if (i < all && place.octet < stored)
                v[k][0] = produced(from + 2 * place.octet), v[k][1] = produced(from + 2 * place.octet + 1);
        }
        if (base == 0 && !job.early) ring.start();
        if (base == 0) factor = squares.factor(job, parts);
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            const int i = base + k * LANES + lane;
            const Place<ROWS> place(i, octets);
            const float mine = ROWS == 1 ? factor : __shfl_sync(~0u, factor, place.row % ROWS);
            if (i < all) reinterpret_cast<uint4 *>(x + place.row * job.x_stride)[place.octet] = scaled(v[k][0], v[k][1], mine);
        }
    }
}

// Not by asynchronous copies: those of the ring, asked for before, would have to be waited for as well.
template <int ROWS, int DEPTH>
__device__ __forceinline__ void stage_halves(const Product &job, const Range &range, half *x, Ring<DEPTH> &ring) {
    constexpr int AT_ONCE = 8;
    const int lane = threadIdx.x % LANES, octets = range.rows / 8, stored = (job.stored - range.row) / 8;
    const int all = ROWS == 1 ? octets : octets * job.rows;
    const half *source = static_cast<const half *>(job.x) + range.row;
#pragma unroll 1
    for (int base = 0; base == 0 || base < all; base += LANES * AT_ONCE) {
        uint4 v[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            const int i = base + k * LANES + lane;
            const Place<ROWS> place(i, octets);
            v[k] = {0, 0, 0, 0};
            if (i < all && place.octet < stored)
                v[k] = produced(reinterpret_cast<const uint4 *>(source + (size_t)place.row * job.stored) + place.octet);
        }
        if (base == 0 && !job.early) ring.start();
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            const int i = base + k * LANES + lane;
            const Place<ROWS> place(i, octets);
            if (i < all) reinterpret_cast<uint4 *>(x + place.row * job.x_stride)[place.octet] = v[k];
        }
    }
}

// What a lane loads of x for the tensor cores: its part of the 16 rows of a column, or its row, of which the last stands in
// for those that are not there.
template <int ROWS> __device__ __forceinline__ const half *lanes_x(const Product &job, const half *x) {
    const int r = threadIdx.x % LANES / 4, q = threadIdx.x % 4;
    return x + q * 8 + (ROWS == 1 ? r / 2 * 32 + r % 2 * 4 : min(r % ROWS, job.rows - 1) * job.x_stride);
}

// Sums of 32 rows of x, by products with ones, even and odd 16 apart; a warp has whole pieces of it.
template <int ROWS>
__device__ __forceinline__ void sum_blocks(const Product &job, const Range &range, const half *x, float *sums) {
    constexpr uint32_t ONES = 0x3c003c00u;
    x = lanes_x<ROWS>(job, x);
    const int r = threadIdx.x % LANES / 4, q = threadIdx.x % 4, blocks = range.rows / 32;
    if constexpr (ROWS == 1) {
#pragma unroll 2
        for (int i = 0; i < blocks; i += 4) {
            const uint2 b = *reinterpret_cast<const uint2 *>(x + i * 32);
            float c[4] = {};
            mma(c, ONES, ONES, ONES, ONES, b.x, b.y);
            if (r == 0 && i + q < blocks) sums[i + q] = c[0] + c[1];
        }
    } else {
#pragma unroll 4
        for (int i = 0; i < blocks; i++) {
            const uint4 b = *reinterpret_cast<const uint4 *>(x + i * 32);
            float even[4] = {}, odd[4] = {};
            mma(even, ONES, ONES, ONES, ONES, b.x, b.y);
            mma(odd, ONES, ONES, ONES, ONES, b.z, b.w);
            if (r == 0 && q * 2 < ROWS)
                *reinterpret_cast<float2 *>(sums + i * ROWS + q * 2) = {even[0] + odd[0], even[1] + odd[1]};
        }
    }
}

}  // namespace exl
