// Attention over keys and values in halves.
#include "attention_launch.cuh"

namespace exl {
template int attention_of<EXL_CACHE_HALF, EXL_CACHE_HALF>(const ExlAttention &, int, cudaStream_t);
}
