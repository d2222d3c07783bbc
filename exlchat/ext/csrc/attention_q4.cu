// Attention over keys and values in 4 bits.
#include "attention_kernel.cuh"

namespace exl {

int attention_q4(const ExlAttention &job, int dependent, cudaStream_t stream) {
    switch (job.head_dim) {
        case 64: return launch_attention<4, 4, 64>(job, dependent, stream);
        case 96: return launch_attention<4, 4, 96>(job, dependent, stream);
        case 128: return launch_attention<4, 4, 128>(job, dependent, stream);
        case 256: return launch_attention<4, 4, 256>(job, dependent, stream);
        default: return EXL_BAD_ARGUMENT;
    }
}

}  // namespace exl
