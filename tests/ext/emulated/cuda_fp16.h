// Stands in for CUDA's header of this name where kernels run on the CPU: halves, and the tensor cores that take them.
#pragma once
#include "device.cuh"

using half = _Float16;
struct alignas(4) half2 {
    half x, y;
};

inline float __half2float(half v) { return (float)v; }
inline half __float2half_rn(float v) { return (half)v; }
inline uint16_t __half_as_ushort(half value) {
    uint16_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}
inline half __ushort_as_half(uint16_t bits) { return emulated::as<half>(bits); }
inline half2 __half2half2(half v) { return {v, v}; }
inline half2 __halves2half2(half a, half b) { return {a, b}; }
inline half2 __floats2half2_rn(float a, float b) { return {(half)a, (half)b}; }
inline float2 __half22float2(half2 v) { return {(float)v.x, (float)v.y}; }
inline half __low2half(half2 v) { return v.x; }
inline half __high2half(half2 v) { return v.y; }
inline half2 __low2half2(half2 v) { return {v.x, v.x}; }
inline half2 __high2half2(half2 v) { return {v.y, v.y}; }
inline half2 __hneg2(half2 v) { return {-v.x, -v.y}; }
inline half2 __float2half2_rn(float v) { return {(half)v, (half)v}; }
inline half2 __hmul2(half2 a, half2 b) { return {(half)((float)a.x * (float)b.x), (half)((float)a.y * (float)b.y)}; }
inline half2 __hsub2(half2 a, half2 b) { return {(half)((float)a.x - (float)b.x), (half)((float)a.y - (float)b.y)}; }
inline half2 __hfma2(half2 a, half2 b, half2 c) {
    return {(half)fma((double)a.x, (double)b.x, (double)c.x), (half)fma((double)a.y, (double)b.y, (double)c.y)};
}

namespace exl {

// Element e (0 or 1) of a register that holds two halves.
inline float half_at(unsigned long long word, int e) {
    static const std::vector<float> values = [] {
        std::vector<float> made(65536);
        for (int bits = 0; bits < 65536; bits++) made[bits] = (float)emulated::as<half>(bits);
        return made;
    }();
    return values[word >> 16 * e & 0xffff];
}

// c += a b with a 16 x 16, b 16 x 8. Each element is summed in one order, whatever the others are.
inline void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    unsigned long long upper[32], lower[32], b[32];  // of a: rows 0 to 7, and 8 to 15
    const auto bring = [](auto &lanes, uint32_t first, uint32_t second) {
        memcpy(lanes, emulated::exchange(first | (unsigned long long)second << 32), sizeof(lanes));
    };
    bring(upper, a0, a2), bring(lower, a1, a3), bring(b, b0, b1);
    const int lane = threadIdx.x % 32;
    for (int i = 0; i < 4; i++) {
        const auto &a = i < 2 ? upper : lower;
        const int row = lane / 4, column = lane % 4 * 2 + i % 2;
        float sum = 0;
        for (int k = 0; k < 16; k++) {
            const int from = k % 8 / 2, word = k / 8 * 32;
            sum += half_at(a[row * 4 + from] >> word, k % 2) * half_at(b[column * 4 + from] >> word, k % 2);
        }
        c[i] += sum;
    }
}

inline uint32_t turned_block(uint32_t v) {
    const auto &lanes = emulated::exchange(v);
    const int row = threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
    const auto of = [&](int r, int c) { return (uint32_t)(lanes[r * 4 + c / 2] >> c % 2 * 16 & 0xffff); };
    return of(column, row) | of(column + 1, row) << 16;
}

// Four blocks, of which lane i gives a row's address, and has of each row lane / 4, columns lane % 4 * 2 and the next.
inline void load_blocks(uint32_t (&r)[4], const half *row) {
    unsigned long long rows[32];
    memcpy(rows, emulated::exchange(row), sizeof(rows));
    const int lane = threadIdx.x % 32;
    for (int i = 0; i < 4; i++) memcpy(&r[i], reinterpret_cast<const half *>(rows[i * 8 + lane / 4]) + lane % 4 * 2, 4);
}
inline void load_blocks_turned(uint32_t (&r)[4], const half *row) {
    load_blocks(r, row);
    for (int i = 0; i < 4; i++) r[i] = turned_block(r[i]);
}

}  // namespace exl
