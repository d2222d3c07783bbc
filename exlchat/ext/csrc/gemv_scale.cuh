// Scales of a piece, and what products of codes that the tensor cores have made add to the sums of a column.
#pragma once
#include "gemv.cuh"

namespace exl {

// A lane's scale of a piece: where it stands in the piece's scales, in bytes.
struct ScalePlace {
    int value, byte;

    template <bool PLAIN> __device__ __forceinline__ static ScalePlace of_block(int group, int lane, int block) {
        const int r = lane >> 2, g = block >> group, count = 4 >> group;
        if constexpr (PLAIN) return {(g * 8 + r) * 4, 32 * count + r * count + g};
        else return {8 * count + 2 * g, r * count + g};
    }
};

// What 32 rows of x add to the sums of columns r and r + 8: `low` and `both` are products of x with 1024 + the codes as
// row_operand makes them, s is the sum of x. Rounded step by step, so that no compiler makes another number of it in
// another kernel.
template <int BITS>
__device__ __forceinline__ void add_block(float &low_sum, float &high_sum, float2 scale, float2 offset, float low,
                                          float both, float s) {
    const float lower = __fmaf_rn(offset.x, s, low);
    const float upper = BITS == 4 ? __fmaf_rn(offset.y + 1024.f, s, both - low) : __fmaf_rn(offset.y, s, both);
    low_sum = __fmaf_rn(scale.x * (1.f / Codes<BITS>::LOWER), lower, low_sum);
    high_sum = __fmaf_rn(scale.y * (1.f / Codes<BITS>::UPPER), upper, high_sum);
}

// Where a row of a column stands among the sums of a warp and a column tile: columns side by side, and turned about so that
// neither those who add to two rows of eight columns each nor those who read whole rows get in each other's way.
__device__ __forceinline__ int sum_place(int column, int row) {
    return (row ^ (row >> 2 & 1)) * 16 + (column ^ (row >> 1 & 1) * 8);
}

// What a lane loads of x for the tensor cores begins so far behind its row's part: where one row's blocks stand side by side,
// its own.
template <int ROWS> __device__ __forceinline__ int blocks_of_x() {
    const int r = threadIdx.x % LANES / 4;
    return ROWS == 1 ? r / 2 * 32 + r % 2 * 4 : 0;
}

}  // namespace exl
