// The residual stream and what it leaves for the next product: the sum of squares that a norm needs, and copies times
// the norm's weights in the order in which the next matrices are stored.
#pragma once
#include "device.cuh"
#include "exlchat.h"

namespace exl {

// Of one column: where its copies go and by what they are multiplied; not converted, so that nobody waits for it here.
struct ResidualConstants {
    half weight[EXL_MAX_MATRICES];
    int place[EXL_MAX_MATRICES];

    __device__ __forceinline__ ResidualConstants() {}
    __device__ __forceinline__ ResidualConstants(const ExlResidual &residual, int at) {
#pragma unroll
        for (int i = 0; i < EXL_MAX_MATRICES; i++) {
            const ExlNormCopy &copy = residual.copies[i];
            if (!copy.values) continue;
            weight[i] = __ldg(static_cast<const half *>(copy.weight) + at);
            place[i] = __ldg(copy.scatter + at);
        }
    }
};

// One column of a row, by one thread; 16 neighbours, lanes 0 to 15 or 16 to 31, hold the 16 columns of a tile. The square
// is rounded before it is added, in every kernel: no compiler may make one operation of both.
__device__ __forceinline__ void put_residual(const ExlResidual &residual, const ResidualConstants &constants, int row,
                                             int at, float value, int lane) {
    residual.hidden[row * residual.columns + at] = value;
#pragma unroll
    for (int i = 0; i < EXL_MAX_MATRICES; i++) {
        const ExlNormCopy &copy = residual.copies[i];
        if (copy.values) copy.values[row * copy.stored + constants.place[i]] = value * __half2float(constants.weight[i]);
    }
    float square = __fmul_rn(value, value);
    const uint32_t tile = lane < 16 ? 0x0000ffffu : 0xffff0000u;
#pragma unroll
    for (int d = 8; d; d /= 2) square += __shfl_xor_sync(tile, square, d);
    if (at % 16 == 0) residual.squares[row * (residual.columns / 16) + at / 16] = square;
}

}  // namespace exl
