// Activations between the products of an MLP.
#pragma once
#include "device.cuh"
#include "exlchat.h"

namespace exl {

__device__ __forceinline__ float activated(int activation, float x) {
    if (activation == EXL_SILU) return __fdividef(x, 1.f + __expf(-x));
    if (activation == EXL_GELU_TANH) return 0.5f * x * (1.f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
    return 0.5f * x * (1.f + erff(0.7071067811865476f * x));
}

inline bool is_activation(int activation) { return activation >= EXL_SILU && activation <= EXL_GELU_ERF; }

}  // namespace exl
