#include "gemv_launch.cuh"

namespace exl {
template int launch_rows<4, 2, 2>(const ExlGemv &, const Way &, int, cudaStream_t);
template int launch_rows<4, 1, 2>(const ExlGemv &, const Way &, int, cudaStream_t);
}
