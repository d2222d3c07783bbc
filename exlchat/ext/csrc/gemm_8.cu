#include "gemm.cuh"

namespace exl {
template int launch_gemm<8>(const ExlGemm &, const GemmUnits &, const GemmShape &, cudaStream_t);
template int gemm_clusters<8>(int, int);
}
