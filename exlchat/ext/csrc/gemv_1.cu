#include "gemv_launch.cuh"

namespace exl {
template int launch_one<4>(const ExlGemv &, int, cudaStream_t);
}
