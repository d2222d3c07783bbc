#include "gemv_launch.cuh"

namespace exl {
template int launch_rows<2, 1, 4>(const ExlGemv &, const Way &, int, cudaStream_t);
template int launch_rows<2, 1, 3>(const ExlGemv &, const Way &, int, cudaStream_t);
template int launch_rows<2, 1, 2>(const ExlGemv &, const Way &, int, cudaStream_t);
}
