// Attention over keys and values in 8 bits.
#include "attention_launch.cuh"

namespace exl {
template int attention_of<EXL_CACHE_CODES8, EXL_CACHE_CODES8>(const ExlAttention &, int, cudaStream_t);
}
