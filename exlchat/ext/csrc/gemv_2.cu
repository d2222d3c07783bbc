#include "gemv_launch.cuh"

namespace exl {
template int launch_rows<2, 4>(const ExlGemv &, const Way &, int, cudaStream_t);
template int launch_rows<2, 3>(const ExlGemv &, const Way &, int, cudaStream_t);
template int launch_rows<2, 2>(const ExlGemv &, const Way &, int, cudaStream_t);
}
