// The residual stream and what it leaves for the next product: the sums of squares that norms need, and copies times
// the norm's weights in the order in which the next matrices are stored.
//
// A norm behind a product needs the root mean square of all that the product gives, for which all blocks would have to
// wait for each other. Instead the next product, which waits anyway, finds it: until then the stream is two vectors.
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
            weight[i] = copy.weight ? __ldg(static_cast<const half *>(copy.weight) + at) : __ushort_as_half(0x3c00);
            place[i] = __ldg(copy.scatter + at);
        }
    }
};

// Of 16 columns, where a norm behind what is added is still to come: squares of the stream without it, that times what is
// added and weighted, squares of this, and of what is added itself.
struct __align__(16) JoinSums {
    float hidden, both, delta, added;

    __device__ __forceinline__ JoinSums operator+(const JoinSums &o) const {
        return {hidden + o.hidden, both + o.both, delta + o.delta, added + o.added};
    }
};

__device__ __forceinline__ float sum_of_warp(float v) { return warp_sum(v); }
__device__ __forceinline__ JoinSums sum_of_warp(const JoinSums &v) {
    return {warp_sum(v.hidden), warp_sum(v.both), warp_sum(v.delta), warp_sum(v.added)};
}

// 16 neighbours, lanes 0 to 15 or 16 to 31, hold the 16 columns of a tile.
__device__ __forceinline__ float tile_sum(float value, int lane) {
    const uint32_t tile = lane < 16 ? 0x0000ffffu : 0xffff0000u;
#pragma unroll
    for (int d = 8; d; d /= 2) value += __shfl_xor_sync(tile, value, d);
    return value;
}

// The stream at a column, before anything is added.
template <bool DEFERS> struct Stream {
    float hidden = 0.f, delta = 0.f, scale = 0.f;

    __device__ __forceinline__ void ask(const ExlResidual &residual, int row, int at) {
        hidden = produced(residual.hidden + row * residual.columns + at);
        if constexpr (DEFERS)
            delta = produced(residual.delta + row * residual.columns + at), scale = produced(residual.scale + row);
    }
    __device__ __forceinline__ float joined() const { return DEFERS ? __fmaf_rn(scale, delta, hidden) : hidden; }
};

// One column of a row, by one thread; neighbours as of tile_sum. `stream`: what is there before. Squares are rounded before
// they are added, in every kernel: no compiler may make one operation of both.
__device__ __forceinline__ void put_deferred(const ExlResidual &residual, const ResidualConstants &constants, half post_norm,
                                             int row, int at, float stream, float added, int lane) {
    const float delta = __fmul_rn(__fmul_rn(residual.multiplier, __half2float(post_norm)), added);
    residual.hidden[row * residual.columns + at] = stream, residual.delta[row * residual.columns + at] = delta;
#pragma unroll
    for (int i = 0; i < EXL_MAX_MATRICES; i++) {
        const ExlNormCopy &copy = residual.copies[i];
        if (!copy.values) continue;
        const float weight = __half2float(constants.weight[i]);
        reinterpret_cast<float2 *>(copy.values)[row * copy.stored + constants.place[i]] = {stream * weight, delta * weight};
    }
    const JoinSums sums = {tile_sum(__fmul_rn(stream, stream), lane), tile_sum(__fmul_rn(stream, delta), lane),
                           tile_sum(__fmul_rn(delta, delta), lane), tile_sum(__fmul_rn(added, added), lane)};
    if (at % 16 == 0) reinterpret_cast<JoinSums *>(residual.squares)[row * (residual.columns / 16) + at / 16] = sums;
}

template <bool DEFERS>
__device__ __forceinline__ void put_residual(const ExlResidual &residual, const ResidualConstants &constants, half post_norm,
                                             int row, int at, float stream, float added, int lane) {
    if constexpr (DEFERS) return put_deferred(residual, constants, post_norm, row, at, stream, added, lane);
    const float value = __fmaf_rn(residual.multiplier, added, stream);
    residual.hidden[row * residual.columns + at] = value;
#pragma unroll
    for (int i = 0; i < EXL_MAX_MATRICES; i++) {
        const ExlNormCopy &copy = residual.copies[i];
        if (copy.values) copy.values[row * copy.stored + constants.place[i]] = value * __half2float(constants.weight[i]);
    }
    const float square = tile_sum(__fmul_rn(value, value), lane);
    if (at % 16 == 0) residual.squares[row * (residual.columns / 16) + at / 16] = square;
}

// 1 over the root mean square of a vector.
__device__ __forceinline__ float over_rms(float squares, int width, float eps) {
    return rsqrtf(__fmaf_rn(squares, 1.f / width, eps));
}

// What a reader of x takes it times: x = (v + d * scale) * factor.
struct Factors {
    float factor = 1.f, scale = 0.f;

    __device__ __forceinline__ Factors() {}
    __device__ __forceinline__ Factors(float squares, int, int width, float eps) : factor(over_rms(squares, width, eps)) {}
    __device__ __forceinline__ Factors(const JoinSums &all, int x_kind, int width, float eps)
        : scale(over_rms(all.added, width, eps)) {
        const float squares = __fmaf_rn(scale, __fmaf_rn(scale, all.delta, 2.f * all.both), all.hidden);
        if (x_kind == EXL_X_JOIN_NORM) factor = over_rms(fmaxf(squares, 0.f), width, eps);
    }
};

// Four numbers of x, as a residual leaves them: each one number, or two.
template <class Sums> struct Quad;
template <> struct Quad<float> {
    float4 v = {0.f, 0.f, 0.f, 0.f};

    __device__ __forceinline__ void ask(const void *row, int part) { v = produced(static_cast<const float4 *>(row) + part); }
    __device__ __forceinline__ uint2 halves(const Factors &f) const {
        const half2 h[2] = {__floats2half2_rn(v.x * f.factor, v.y * f.factor), __floats2half2_rn(v.z * f.factor, v.w * f.factor)};
        return reinterpret_cast<const uint2 &>(h);
    }
};
template <> struct Quad<JoinSums> {
    Quad<float> first, second;  // v and d of two numbers each

    __device__ __forceinline__ void ask(const void *row, int part) { first.ask(row, part * 2), second.ask(row, part * 2 + 1); }
    __device__ __forceinline__ uint2 halves(const Factors &f) const {
        const float4 &a = first.v, &b = second.v;
        const Quad<float> joined = {{__fmaf_rn(f.scale, a.y, a.x), __fmaf_rn(f.scale, a.w, a.z), __fmaf_rn(f.scale, b.y, b.x),
                                     __fmaf_rn(f.scale, b.w, b.z)}};
        return joined.halves(f);
    }
};

}  // namespace exl
