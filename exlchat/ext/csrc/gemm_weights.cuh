// Codes -> weights in halves, as operands of the tensor cores.
#pragma once
#include "tiles.cuh"

namespace exl {

// 1024 / FACTOR as a half, the lowest bit of which counts 1 / FACTOR.
template <int FACTOR>
constexpr uint32_t SHIFTED_MAGIC = SHIFTED_MAGIC<FACTOR / 2> - 0x400u;
template <> constexpr uint32_t SHIFTED_MAGIC<1> = 0x6400u;

// What makes weights of codes: ((1024 + LOWER * code) / LOWER - low) * scale for column r, and the same with UPPER and high
// for column r + 8.
template <int BITS, bool PLAIN> struct Step {
    using C = Codes<BITS>;
    half2 scale;
    uint32_t low, high;

    __device__ __forceinline__ Step() {}
    // p: the scales of a column tile in a piece, in which there are `count`; n: which.
    __device__ __forceinline__ Step(const char *p, int r, int n, int count) {
        uint32_t zero_low = C::ZERO, zero_high = C::ZERO;
        if constexpr (PLAIN) {
            static_assert(BITS == 4, "");
            scale = reinterpret_cast<const half2 *>(p)[n * 8 + r];
            const uint32_t zeros = reinterpret_cast<const uint8_t *>(p)[32 * count + r * count + n];
            zero_low = (zeros & 15u) + 1, zero_high = (zeros >> 4) + 1;
        } else {
            const uint32_t byte = reinterpret_cast<const uint8_t *>(p)[r * count + n];
            scale = indexed_halves(byte, reinterpret_cast<const half *>(p + 8 * count)[n]);
        }
        low = (SHIFTED_MAGIC<C::LOWER> + C::LOWER * zero_low) * 0x00010001u;
        high = (SHIFTED_MAGIC<C::UPPER> + C::UPPER * zero_high) * 0x00010001u;
    }
    template <int FACTOR> static __device__ __forceinline__ half2 centred(half2 v, uint32_t subtract) {
        const half2 s = reinterpret_cast<const half2 &>(subtract);
        if constexpr (FACTOR == 1) return __hsub2(v, s);
        else return __hfma2(v, __float2half2_rn(1.f / FACTOR), __hneg2(s));
    }
    // Operand number J of a tile.
    template <int J> __device__ __forceinline__ void weights(uint32_t (&a)[4], const uint32_t *w) const {
        operand<BITS, J>(a, w);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            half2 &v = reinterpret_cast<half2 &>(a[i]);
            if (i % 2 == 0) v = __hmul2(centred<C::LOWER>(v, low), __low2half2(scale));
            else v = __hmul2(centred<C::UPPER>(v, high), __high2half2(scale));
        }
    }
};

}  // namespace exl
