// The planes of a tile -> A operands of the tensor cores. exlchat/ext/layout.py says where each bit stands.
#pragma once
#include "device.cuh"

namespace exl {

// The four halves of a 16 x 16 operand hold 1024 + code: OR-ing a code of up to 10 bits into 0x6400 makes that number.
// Where a code has at most 6 bits, columns r + 8 (a1 and a3) hold 1024 + 16 * code instead, which saves two shifts;
// their scale is divided by 16.
template <int BITS> struct Codes {
    static constexpr int ZERO = 1 << (BITS - 1);
    static constexpr int UPPER = BITS == 8 ? 1 : 16;
};

// The words of one tile that belong to one lane; p points at the tile.
template <int BITS> __device__ __forceinline__ void load_tile(uint32_t *w, const uint32_t *p, int lane) {
    if constexpr (BITS == 4 || BITS == 5 || BITS == 6 || BITS == 8) {
        const uint4 v = stream_load4(p + lane * 4);
        w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
        if constexpr (BITS == 8) {
            const uint4 u = stream_load4(p + 128 + lane * 4);
            w[4] = u.x, w[5] = u.y, w[6] = u.z, w[7] = u.w;
        } else if constexpr (BITS == 6) {
            const uint2 u = stream_load2(p + 128 + lane * 2);
            w[4] = u.x, w[5] = u.y;
        } else if constexpr (BITS == 5) {
            w[4] = stream_load1(p + 128 + lane);
        }
    } else {
        const uint2 v = stream_load2(p + lane * 2);
        w[0] = v.x, w[1] = v.y;
        if constexpr (BITS == 3) w[2] = stream_load1(p + 64 + lane);
    }
}

// x shifted left by N, or right where N is negative.
template <int N> __device__ __forceinline__ uint32_t shifted(uint32_t x) {
    if constexpr (N >= 0) return x << N;
    else return x >> -N;
}

// (x & mask) | y
__device__ __forceinline__ uint32_t merge(uint32_t x, uint32_t mask, uint32_t y) {
    uint32_t r;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(r) : "r"(x), "r"(mask), "r"(y));
    return r;
}

// Operand number J (0 to 3) of a tile: rows 16 J to 16 J + 15 in the fragment order of the layout.
template <int BITS, int J> __device__ __forceinline__ void operand(uint32_t (&a)[4], const uint32_t *w) {
    constexpr uint32_t ONE = 0x00010001u, MAGIC = 0x64006400u;
#pragma unroll
    for (int b = 0; b < 2; b++) {
        uint32_t low = MAGIC, high = MAGIC;
        if constexpr (BITS >= 4) {
            const uint32_t u = b ? w[J] >> 8 : w[J];
            low = merge(u, 15 * ONE, MAGIC);
            if constexpr (BITS == 8) {
                const uint32_t t = b ? w[4 + J] >> 8 : w[4 + J];
                low = merge(t << 4, 240 * ONE, low);
                high = merge(t, 240 * ONE, merge(u >> 4, 15 * ONE, MAGIC));
            } else {
                high = merge(u, 240 * ONE, MAGIC);
            }
        }
        if constexpr (BITS == 6 || BITS == 3 || BITS == 2) {
            constexpr int BASE = BITS == 6 ? 4 : 0, N = (J & 1) * 2;
            const uint32_t v = w[(BITS == 6 ? 4 : 0) + (J >> 1)];
            // Codes number N and N + 1 stand at bits 0, 2, 8, 10.
            constexpr int AT0 = N / 2 * 8, AT1 = N / 2 * 8 + 2;
            const uint32_t t = b ? shifted<BASE - AT1>(v) : shifted<BASE - AT0>(v);
            low = merge(t, (3u << BASE) * ONE, low);
            high = merge(t, (48u << BASE) * ONE, high);
        }
        if constexpr (BITS == 5 || BITS == 3) {
            constexpr int BASE = BITS == 5 ? 4 : 2, N = J * 2;
            const uint32_t v = w[BITS == 5 ? 4 : 2];
            // Codes number N and N + 1 stand at bits 0 to 3 and 8 to 11.
            constexpr int AT0 = N / 4 * 8 + N % 4, AT1 = N / 4 * 8 + N % 4 + 1;
            const uint32_t t = b ? shifted<BASE - AT1>(v) : shifted<BASE - AT0>(v);
            low = merge(t, (1u << BASE) * ONE, low);
            high = merge(t, (16u << BASE) * ONE, high);
        }
        a[b * 2] = low, a[b * 2 + 1] = high;
    }
}

// Scales of columns r and r + 8 from a byte of two indices: fp16((index + 1)^2 * maximum), as the format rounds it.
__device__ __forceinline__ float2 scale_pair(uint32_t byte, half maximum) {
    const uint32_t bits = merge(byte << 12, 15u << 16, merge(byte, 15u, 0x64006400u));
    const half2 step = __hsub2(reinterpret_cast<const half2 &>(bits), __float2half2_rn(1023.f));
    return __half22float2(__hmul2(__hmul2(step, step), __half2half2(maximum)));
}

}  // namespace exl
