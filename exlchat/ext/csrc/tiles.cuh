// The codes of a tile -> A operands of the tensor cores. exlchat/ext/layout.py says where each bit stands.
#pragma once
#include "device.cuh"

namespace exl {

// Four registers of a 16 x 16 operand hold two halves each, 1024 + LOWER * code (a0 and a2, column r) or
// 1024 + UPPER * code (a1 and a3, column r + 8): OR-ing up to 10 bits into 0x6400 makes that number. A code stays where in
// the number it happens to stand, which saves shifts, and whoever uses it divides.
template <int BITS> struct Codes {
    static constexpr int ZERO = 1 << (BITS - 1);
    static constexpr int LOWER = BITS == 2 ? 16 : (BITS == 3 ? 64 : 1);
    static constexpr int UPPER = BITS == 2 ? 64 : (BITS == 3 ? 8 : (BITS == 5 ? 32 : (BITS == 8 ? 1 : 16)));
};

// The words of one tile that belong to one lane; p points at the tile, in shared or global memory.
template <int BITS> __device__ __forceinline__ void load_tile(uint32_t *w, const uint32_t *p, int lane) {
    if constexpr (BITS == 4 || BITS == 5 || BITS == 6 || BITS == 8) {
        const uint4 v = reinterpret_cast<const uint4 *>(p)[lane];
        w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
        if constexpr (BITS == 8) {
            const uint4 u = reinterpret_cast<const uint4 *>(p + 128)[lane];
            w[4] = u.x, w[5] = u.y, w[6] = u.z, w[7] = u.w;
        } else if constexpr (BITS == 6) {
            const uint2 u = reinterpret_cast<const uint2 *>(p + 128)[lane];
            w[4] = u.x, w[5] = u.y;
        } else if constexpr (BITS == 5) {
            w[4] = p[128 + lane];
        }
    } else {
        const uint2 v = reinterpret_cast<const uint2 *>(p)[lane];
        w[0] = v.x, w[1] = v.y;
        if constexpr (BITS == 3) w[2] = p[64 + lane];
    }
}

// x shifted left by N, or right where N is negative.
template <int N> __device__ __forceinline__ uint32_t shifted(uint32_t x) {
    if constexpr (N >= 0) return x << N;
    else return x >> -N;
}

// (x & mask) | y, in both halves.
__device__ __forceinline__ uint32_t merge(uint32_t x, uint32_t mask, uint32_t y) {
    return picked(x, mask * 0x00010001u, y);
}
constexpr uint32_t MAGIC = 0x64006400u;

// Registers 2 b and 2 b + 1 of operand J, N being 2 J + b: of columns r and r + 8.
template <int N> __device__ __forceinline__ void pair_of_2(uint32_t &low, uint32_t &high, const uint32_t *w) {
    const uint32_t right = N & 2 ? w[N / 4] >> 8 : w[N / 4], v = N & 1 ? right << 4 : right;
    low = merge(v, 3 << 4, MAGIC), high = merge(v, 3 << 6, MAGIC);
}
template <int N> __device__ __forceinline__ void pair_of_3(uint32_t &low, uint32_t &high, const uint32_t *w) {
    constexpr int LOW_WORD = N < 6 ? N / 3 : 2, LOW = N < 6 ? N % 3 : N - 5;
    low = merge(shifted<LOW == 0 ? 6 : (LOW == 1 ? 0 : -7)>(w[LOW_WORD]), 7 << 6, MAGIC);
    if constexpr (N < 7) {
        high = merge(shifted<N == 6 ? 3 : (N % 2 ? -7 : 0)>(w[N < 6 ? N / 2 : 2]), 7 << 3, MAGIC);
    } else {  // the bit that every word has left
        high = merge((w[0] >> 7) << 1, 1 << 3, MAGIC);
        high = merge((w[1] >> 7) << 2, 1 << 4, high);
        high = merge((w[2] >> 7) << 3, 1 << 5, high);
    }
}
template <int N> __device__ __forceinline__ void pair_of_4(uint32_t &low, uint32_t &high, const uint32_t *w) {
    const uint32_t v = N & 1 ? w[N / 2] >> 8 : w[N / 2];
    low = merge(v, 15, MAGIC), high = merge(v, 15 << 4, MAGIC);
}
template <int N> __device__ __forceinline__ void pair_of_5(uint32_t &low, uint32_t &high, const uint32_t *w) {
    if constexpr (N < 5) low = merge(w[N], 31, MAGIC), high = merge(w[N], 31 << 5, MAGIC);
    else low = merge(w[N - 5] >> 10, 31, MAGIC);
    if constexpr (N == 5 || N == 6) high = merge(w[N - 2] >> 6, 31 << 5, MAGIC);
    if constexpr (N == 7) {  // the bit that every word has left
        high = merge(w[0] >> 10, 1 << 5, MAGIC);
        high = merge((w[1] >> 10) << 1, 1 << 6, high);
        high = merge((w[2] >> 10) << 2, 1 << 7, high);
        high = merge((w[3] >> 6) << 4, 1 << 8, high);
        high = merge((w[4] >> 6) << 5, 1 << 9, high);
    }
}
template <int N> __device__ __forceinline__ void pair_of_6(uint32_t &low, uint32_t &high, const uint32_t *w) {
    if constexpr (N < 6) {
        low = merge(w[N], 63, MAGIC), high = merge(w[N] >> 6, 63 << 4, MAGIC);
    } else {  // the four bits that three words have left
        constexpr int AT = N == 6 ? 0 : 3;
        const uint32_t v = w[AT + 1] >> 6;
        low = merge(v << 2, 3 << 4, merge(w[AT + 2] >> 6, 15, MAGIC));
        high = merge(v << 4, 3 << 4, merge(w[AT], 15 << 6, MAGIC));
    }
}
template <int N> __device__ __forceinline__ void pair_of_8(uint32_t &low, uint32_t &high, const uint32_t *w) {
    low = __byte_perm(w[N], MAGIC, 0x5250), high = __byte_perm(w[N], MAGIC, 0x5351);
}
template <int BITS, int N> __device__ __forceinline__ void pair_of(uint32_t &low, uint32_t &high, const uint32_t *w) {
    if constexpr (BITS == 2) pair_of_2<N>(low, high, w);
    else if constexpr (BITS == 3) pair_of_3<N>(low, high, w);
    else if constexpr (BITS == 4) pair_of_4<N>(low, high, w);
    else if constexpr (BITS == 5) pair_of_5<N>(low, high, w);
    else if constexpr (BITS == 6) pair_of_6<N>(low, high, w);
    else pair_of_8<N>(low, high, w);
}

// Operand number J (0 to 3) of a tile: rows 16 J to 16 J + 15 in the fragment order of the layout.
template <int BITS, int J> __device__ __forceinline__ void operand(uint32_t (&a)[4], const uint32_t *w) {
    pair_of<BITS, 2 * J>(a[0], a[1], w);
    pair_of<BITS, 2 * J + 1>(a[2], a[3], w);
}

// The same with 1024 + low code + 16 * high code in a1 and a3, for 4 bits: with one operation of five less. What a0 and a2
// give is then subtracted from what these give.
template <int BITS, int J> __device__ __forceinline__ void row_operand(uint32_t (&a)[4], const uint32_t *w) {
    if constexpr (BITS == 4) {
        a[0] = merge(w[J], 15, MAGIC), a[1] = merge(w[J], 255, MAGIC);
        a[3] = __byte_perm(w[J], MAGIC, 0x5351);
        a[2] = merge(a[3], 15, MAGIC);
    } else {
        operand<BITS, J>(a, w);
    }
}

// Scales of columns r and r + 8 from a byte of two indices: fp16((index + 1)^2 * maximum), as the format rounds it.
__device__ __forceinline__ half2 indexed_halves(uint32_t byte, half maximum) {
    const uint32_t bits = picked(byte << 12, 15u << 16, picked(byte, 15u, MAGIC));
    const half2 step = __hsub2(reinterpret_cast<const half2 &>(bits), __float2half2_rn(1023.f));
    return __hmul2(__hmul2(step, step), __half2half2(maximum));
}
__device__ __forceinline__ float2 indexed_scale(uint32_t byte, half maximum) {
    return __half22float2(indexed_halves(byte, maximum));
}

// One scale of columns r and r + 8, and what is to be added to 1024 + LOWER * code and to 1024 + UPPER * code before they
// are multiplied with it. Loaded first, converted when it is needed.
template <int BITS, bool PLAIN> struct OneScale {
    half2 values;  // of both columns; or the maximum
    uint32_t byte;

    __device__ __forceinline__ OneScale() {}
    // Where the pair of scales or the maximum stands, and the byte of zeros or indices.
    __device__ __forceinline__ OneScale(const char *value, const char *byte)
        : byte(*reinterpret_cast<const uint8_t *>(byte)) {
        if constexpr (PLAIN) values = *reinterpret_cast<const half2 *>(value);
        else values = __half2half2(*reinterpret_cast<const half *>(value));
    }
    // Weights of nothing.
    __device__ __forceinline__ void clear() { values = __float2half2_rn(0.f); }
    __device__ __forceinline__ float2 scale() const {
        if constexpr (PLAIN) return __half22float2(values);
        else return indexed_scale(byte, __low2half(values));
    }
    __device__ __forceinline__ float2 offset() const {
        if constexpr (PLAIN)
            return {-(1025.f + (byte & 15u)), -(1024.f + Codes<BITS>::UPPER) - Codes<BITS>::UPPER * (float)(byte >> 4)};
        else return {-(1024.f + Codes<BITS>::LOWER * Codes<BITS>::ZERO), -(1024.f + Codes<BITS>::UPPER * Codes<BITS>::ZERO)};
    }
};

}  // namespace exl
