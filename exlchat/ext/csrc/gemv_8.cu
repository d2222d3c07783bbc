#include "gemv_launch.cuh"

namespace exl {
template int launch_gemv<8, 4>(const ExlGemv &, int, cudaStream_t);
}
