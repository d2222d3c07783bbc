// What products of chosen experts have in common, quantized or not.
#pragma once
#include "gemv_kernel.cuh"

namespace exl {

// activation(gate) * up. The clamps let NaN through.
__device__ __forceinline__ float gated(int activation, float limit, float gate, float up) {
    if (activation != EXL_SWIGLU_OAI) return activated(activation, gate) * up;
    gate = gate > limit ? limit : gate;
    up = up > limit ? limit : up < -limit ? -limit : up;
    return __fdividef(gate, 1.f + __expf(-1.702f * gate)) * (up + 1.f);
}

// What both kinds of job have: their outputs, and the rows of x.
template <class Job> inline bool slots_ok(const Job &job) {
    if (!job.x || !job.y || job.slots < 1 || job.slots > EXL_MAX_SLOTS) return false;
    if (reinterpret_cast<uintptr_t>(job.x) % 16 || job.x_slots < 1 || job.slots % job.x_slots) return false;
    if (job.x_stride < 0 || (job.x_slots < job.slots && job.x_stride % 8)) return false;
    if (job.y_kind == EXL_Y_FLOAT) return job.matrices == 1;
    const bool known = is_activation(job.activation) || job.activation == EXL_SWIGLU_OAI;
    return job.y_kind == EXL_Y_GATED && job.matrices == 2 && known;
}

}  // namespace exl
