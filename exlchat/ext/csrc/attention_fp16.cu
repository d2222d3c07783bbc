// Attention over keys and values in halves.
#include "attention_kernel.cuh"

namespace exl {

int attention_fp16(const ExlAttention &job, int dependent, cudaStream_t stream) {
    constexpr int K = EXL_CACHE_HALF, V = EXL_CACHE_HALF;
    switch (job.head_dim) {
        case 64: return launch_attention<K, V, 64>(job, dependent, stream);
        case 80: return launch_attention<K, V, 80>(job, dependent, stream);
        case 96: return launch_attention<K, V, 96>(job, dependent, stream);
        case 128: return launch_attention<K, V, 128>(job, dependent, stream);
        case 256: return launch_attention<K, V, 256>(job, dependent, stream);
        default: return EXL_BAD_ARGUMENT;
    }
}

}  // namespace exl
