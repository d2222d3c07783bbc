// How one vector is stored: the elements, their transform, their rounding and their way back. The definition is
// kv_formats.py.
#pragma once
#include "device.cuh"
#include "exlchat.h"

namespace exl {

constexpr int PAGE = 256;  // tokens
constexpr int GROUP = 32;  // elements of a scale

__host__ __device__ constexpr int power_of_two_in(int n, int most) { return (n & -n) < most ? (n & -n) : most; }

// Bits of an element. All formats but halves are of turned vectors; codes have scales.
__host__ __device__ constexpr int width_of(int format) {
    return format == EXL_CACHE_HALF ? 16 : format == EXL_CACHE_CODES4 ? 4 : 8;
}
__host__ __device__ constexpr bool turned(int format) { return format != EXL_CACHE_HALF; }
__host__ __device__ constexpr bool scaled(int format) {
    return format == EXL_CACHE_CODES8 || format == EXL_CACHE_CODES4;
}

// The kinds of cache there are: a format for keys and one for values.
enum Kind { NO_KIND, KIND_FP16, KIND_FP8, KIND_Q8, KIND_Q6, KIND_Q4 };
inline Kind kind_of(int key, int value) {
    if (key == EXL_CACHE_CODES8 && value == EXL_CACHE_CODES4) return KIND_Q6;
    if (key != value) return NO_KIND;
    switch (key) {
        case EXL_CACHE_HALF: return KIND_FP16;
        case EXL_CACHE_FLOAT8: return KIND_FP8;
        case EXL_CACHE_CODES8: return KIND_Q8;
        case EXL_CACHE_CODES4: return KIND_Q4;
        default: return NO_KIND;
    }
}

// PTX has conversions of 8-bit floats for sm_90 since CUDA 11.8 and for sm_89 since 12.1.
#if __CUDA_ARCH__ >= 900 || (__CUDA_ARCH__ >= 890 && __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1201)
#define EXL_CONVERTS_FLOAT8 1
#else
#define EXL_CONVERTS_FLOAT8 0
#endif

// 8-bit floats (sign, 4 bits of exponent, 3 of mantissa) 2i and 2i + 1 of a word. Their bits, put into a half where its
// exponent and mantissa meet, are a 256th of the value: the exponents' biases are 7 and 15.
__device__ __forceinline__ half2 float8_pair(uint32_t word, int i) {
    uint32_t v;
#if EXL_CONVERTS_FLOAT8
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(v) : "h"((uint16_t)(i ? word >> 16 : word)));
    return reinterpret_cast<const half2 &>(v);
#else
    const uint32_t high = __byte_perm(word, 0, i ? 0x3424 : 0x1404);  // a byte in the upper half of each half
    v = (high & 0x80008000) | (high >> 1 & 0x3f803f80);
    return __hmul2(reinterpret_cast<const half2 &>(v), __float2half2_rn(256.f));
#endif
}

// The nearest 8-bit floats, halves to even, at most 448: of `low` in the low byte, of `high` in the next.
__device__ __forceinline__ uint32_t float8_of(float low, float high) {
#if EXL_CONVERTS_FLOAT8
    uint16_t both;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(high), "f"(low));
    return both;
#else
    const auto one = [](float x) {
        const float size = fminf(fabsf(x), 448.f);
        const uint32_t bits = __float_as_uint(size);
        // Below 2^-6 a step is 2^-9; above, the mantissa loses 20 bits and the exponent's bias goes from 127 to 7.
        const uint32_t code = size < 0.015625f ? (uint32_t)__float2int_rn(size * 512.f)
                                               : ((bits + 0x7ffff + (bits >> 20 & 1)) >> 20) - (120 << 3);
        return code | (__float_as_uint(x) >> 24 & 0x80);
    };
    return one(low) | one(high) << 8;
#endif
}

// Two elements of a word as halves, codes around zero. 0x6400 is 1024 with a unit in the last place of 1, so a code put
// into its low bits is 1024 + code, and into its next four 1024 + 16 code. 8 bits: elements 2i and 2i + 1; 4 bits: i and
// i + 4.
template <int FORMAT> __device__ __forceinline__ half2 pair(uint32_t word, int i) {
    if constexpr (FORMAT == EXL_CACHE_HALF) {
        return reinterpret_cast<const half2 &>(word);
    } else if constexpr (FORMAT == EXL_CACHE_FLOAT8) {
        return float8_pair(word, i);
    } else if constexpr (FORMAT == EXL_CACHE_CODES8) {
        const uint32_t v = __byte_perm(word, 0x64646464, i ? 0x4342 : 0x4140);
        return __hsub2(reinterpret_cast<const half2 &>(v), __float2half2_rn(1024 + 128));
    } else {
        const uint32_t nibbles = i < 2 ? word : word >> 8;
        const uint32_t v = picked(nibbles, i % 2 ? 0x00f000f0 : 0x000f000f, 0x64006400);
        const half2 h = reinterpret_cast<const half2 &>(v);
        if (i % 2) return __hfma2(h, __float2half2_rn(1.f / 16), __float2half2_rn(-64 - 8));
        return __hsub2(h, __float2half2_rn(1024 + 8));
    }
}
// A head's vector in a warp's registers: x[i] is element lane + 32 i.
template <int DIM> constexpr int SHARE = (DIM + LANES - 1) / LANES;

// The normalised Walsh-Hadamard transform over the largest power of two that divides a head; its own inverse.
template <int DIM> __device__ __forceinline__ void hadamard(float (&x)[SHARE<DIM>], int lane) {
    constexpr int SIZE = power_of_two_in(DIM, 256);
    static_assert(DIM % LANES == 0, "");
#pragma unroll
    for (int step = 1; step < LANES; step *= 2)
#pragma unroll
        for (int i = 0; i < SHARE<DIM>; i++) {
            const float other = __shfl_xor_sync(~0u, x[i], step);
            x[i] = lane & step ? other - x[i] : other + x[i];
        }
#pragma unroll
    for (int step = 1; step < SIZE / LANES; step *= 2)
#pragma unroll
        for (int i = 0; i < SHARE<DIM>; i++)
            if ((i & step) == 0) {
                const float low = x[i], high = x[i + step];
                x[i] = low + high, x[i + step] = low - high;
            }
    const float norm = rsqrtf(SIZE);
#pragma unroll
    for (int i = 0; i < SHARE<DIM>; i++) x[i] *= norm;
}

// How a group of 32 turned elements is rounded to codes around `middle`.
struct Steps {
    half scale;
    float inverse;
};
// high and low: the largest element and the largest of their negatives.
__device__ __forceinline__ Steps steps_of(float high, float low, int middle) {
    const float step = fmaxf(__fdiv_rn(fmaxf(high, low), middle), __fdiv_rn(fminf(high, low), middle - 1));
    const half rounded = __float2half_rn(high > low ? -step : step);
    const float s = __half2float(rounded);
    return {rounded, s == 0.f ? 0.f : __frcp_rn(s)};
}
__device__ __forceinline__ int code_of(float value, float inverse, int middle) {
    return min(max(__float2int_rn(value * inverse) + middle, 0), 2 * middle - 1);
}
__device__ __forceinline__ float in_half_range(float x) { return fminf(fmaxf(x, -65504.f), 65504.f); }

// A warp stores 32 turned elements, one a lane, as codes with their scale.
__device__ __forceinline__ void store_group(uint8_t *codes, half *scale, float x, int bits, int lane) {
    const int middle = 1 << (bits - 1);
    const float value = in_half_range(x);
    float high = value, low = -value;
#pragma unroll
    for (int lanes = 1; lanes < GROUP; lanes *= 2) {
        high = fmaxf(high, __shfl_xor_sync(~0u, high, lanes));
        low = fmaxf(low, __shfl_xor_sync(~0u, low, lanes));
    }
    const Steps steps = steps_of(high, low, middle);
    const int code = code_of(value, steps.inverse, middle);
    const int next = __shfl_down_sync(~0u, code, 1);
    if (lane == 0) *scale = steps.scale;
    if (bits == 8) codes[lane] = code;
    else if (lane % 2 == 0) codes[lane / 2] = code | next << 4;
}

}  // namespace exl
