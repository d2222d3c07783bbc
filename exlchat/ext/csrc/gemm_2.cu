#include "gemm.cuh"

namespace exl {
template int launch_gemm<2>(const ExlGemm &, const GemmUnits &, const GemmShape &, cudaStream_t);
}
