// The small ends of a decode step.
#include "device.cuh"
#include "exlchat.h"
#include "launch.cuh"

namespace exl {

__global__ void embed(const half *table, const int64_t *token, float *hidden, int width) {
    let_next_start();
    wait_for_previous();
    const size_t row = (size_t)produced(token) * width;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < width; i += gridDim.x * blockDim.x)
        hidden[i] = __half2float(table[row + i]);
}

}  // namespace exl

extern "C" int exl_embed(const void *table, const void *token, void *hidden, int width, int dependent, void *stream) {
    if (!table || !token || !hidden || width < 1) return EXL_BAD_ARGUMENT;
    return exl::launch(exl::embed, (width + 255) / 256, 256, 0, dependent, static_cast<cudaStream_t>(stream),
                       static_cast<const half *>(table), static_cast<const int64_t *>(token),
                       static_cast<float *>(hidden), width);
}
