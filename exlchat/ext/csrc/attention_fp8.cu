// Attention over keys and values in floats of 8 bits.
#include "attention_launch.cuh"

namespace exl {
template int attention_of<EXL_CACHE_FLOAT8, EXL_CACHE_FLOAT8>(const ExlAttention &, int, cudaStream_t);
}
