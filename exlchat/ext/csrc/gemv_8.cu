#include "gemv_launch.cuh"

namespace exl {
template int launch_rows<8, 2, 2>(const ExlGemv &, const Way &, int, cudaStream_t);
template int launch_rows<8, 1, 2>(const ExlGemv &, const Way &, int, cudaStream_t);
}
