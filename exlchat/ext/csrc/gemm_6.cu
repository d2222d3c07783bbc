#include "gemm.cuh"

namespace exl {
template int launch_gemm<6>(const ExlGemm &, const GemmUnits &, const GemmShape &, cudaStream_t);
}
