// Stands in for csrc/wgmma.cuh where kernels run on the CPU; with -DEXL_WGMMA=0 kernels do without, as on older cards.
#pragma once
#include "cuda_fp16.h"

#ifndef EXL_WGMMA
#define EXL_WGMMA 1
#endif

namespace exl {

inline void before_products() {}
inline void end_of_products() {}
template <int PENDING> inline void wait_for_products() {}
inline void show_to_products() {}
template <class T> inline void hold(T &) {}
inline uint64_t described(const char *b) { return (uintptr_t)b / 16; }

// c += a b with a 16 x 16 of this warp, b 16 x 8 N in shared memory; each element is summed in one order.
template <int N> inline void wgmma(float (&c)[N][4], const uint32_t (&a)[4], uint64_t b) {
    unsigned long long upper[32], lower[32];  // rows 0 to 7, and 8 to 15
    const auto bring = [](auto &lanes, uint32_t first, uint32_t second) {
        memcpy(lanes, emulated::exchange(first | (unsigned long long)second << 32), sizeof(lanes));
    };
    bring(upper, a[0], a[2]), bring(lower, a[1], a[3]);
    const int lane = threadIdx.x % 32;
    for (int n = 0; n < N; n++)
        for (int i = 0; i < 4; i++) {
            const auto &row = i < 2 ? upper : lower;
            const int column = n * 8 + lane % 4 * 2 + i % 2;
            float sum = 0;
            for (int k = 0; k < 16; k++) {
                uintptr_t at = b * 16 + column / 8 * 1024 + column % 8 * 128 + k * 2;
                at ^= (at >> 7 & 7) << 4;
                const unsigned long long x = *reinterpret_cast<const uint16_t *>(at);
                sum += half_at(row[lane / 4 * 4 + k % 8 / 2] >> k / 8 * 32, k % 2) * half_at(x, 0);
            }
            c[n][i] += sum;
        }
}

}  // namespace exl
