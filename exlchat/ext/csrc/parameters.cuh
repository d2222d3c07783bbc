// A kernel's parameters in shared memory.
#pragma once
#include "device.cuh"

namespace exl {

// By all threads of WARPS warps, this one of this warp and lane. Who reads parameters where they are waits for one line of them after the other; here each warp
// asks for a line.
template <int WARPS, class T> __device__ __forceinline__ void copy_parameters(T &to, const T &from, int warp, int lane) {
    constexpr int EACH = 8, ALL = sizeof(T) / 8;
    static_assert(sizeof(T) % 8 == 0, "");
    if (lane < EACH) {
#pragma unroll 1
        for (int i = warp * EACH + lane; i < ALL; i += WARPS * EACH)
            reinterpret_cast<uint2 *>(&to)[i] = reinterpret_cast<const uint2 *>(&from)[i];
    }
}

}  // namespace exl
