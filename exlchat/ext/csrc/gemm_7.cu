#include "gemm.cuh"

namespace exl {
template int launch_gemm<7>(const ExlGemm &, const GemmUnits &, const GemmShape &, cudaStream_t);
}
