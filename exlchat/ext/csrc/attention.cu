// Decode attention: what the kernels accept, and which of them a job is for.
#include "attention.cuh"
#include "kv_format.cuh"

namespace exl {

static bool attention_ok(const ExlAttention &job) {
    const bool pointers = job.qkv && job.position && job.page_table && job.keys && job.values && job.out &&
                          job.partial && job.tickets && (job.turns || job.rotary_dim == 0) &&
                          (!scaled(job.key_format) || (job.key_scales && job.value_scales));
    return pointers && job.heads > 0 && job.kv_heads > 0 && job.heads % job.kv_heads == 0 && job.rotary_dim >= 0 &&
           job.rotary_dim <= job.head_dim && job.rotary_dim % 2 == 0 && job.window >= 0 && job.splits > 0 &&
           job.splits <= MOST_SPLITS && job.page_stride > 0 && job.page_stride % 256 == 0 && job.head_stride > 0 &&
           job.head_stride % 256 == 0 && job.rows > 0 && job.rows <= EXL_WIDE_ROWS && job.least >= 0 && job.table_stride >= 0 &&
           (job.rows == 1 || job.out_stride >= job.heads * job.head_dim);
}

}  // namespace exl

extern "C" int exl_attention(const ExlAttention *job, int dependent, void *stream) {
    if (!job || !exl::attention_ok(*job)) return EXL_BAD_ARGUMENT;
    const cudaStream_t s = static_cast<cudaStream_t>(stream);
    switch (exl::kind_of(job->key_format, job->value_format)) {
        case exl::KIND_FP16: return exl::attention_of<EXL_CACHE_HALF, EXL_CACHE_HALF>(*job, dependent, s);
        case exl::KIND_FP8: return exl::attention_of<EXL_CACHE_FLOAT8, EXL_CACHE_FLOAT8>(*job, dependent, s);
        case exl::KIND_Q8: return exl::attention_of<EXL_CACHE_CODES8, EXL_CACHE_CODES8>(*job, dependent, s);
        case exl::KIND_Q6: return exl::attention_of<EXL_CACHE_CODES8, EXL_CACHE_CODES4>(*job, dependent, s);
        case exl::KIND_Q4: return exl::attention_of<EXL_CACHE_CODES4, EXL_CACHE_CODES4>(*job, dependent, s);
        default: return EXL_BAD_ARGUMENT;
    }
}
