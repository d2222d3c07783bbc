#include "gemv_kernel.cuh"

namespace exl {
template int launch_gemv<1, 4>(const ExlGemv &, int, cudaStream_t);
}
