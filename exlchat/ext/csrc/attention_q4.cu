// Attention over keys and values in 4 bits.
#include "attention_launch.cuh"

namespace exl {
template int attention_of<EXL_CACHE_CODES4, EXL_CACHE_CODES4>(const ExlAttention &, int, cudaStream_t);
}
