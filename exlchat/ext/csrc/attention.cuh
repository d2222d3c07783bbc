// One start function a kind of cache, each in a file of its own so that they compile side by side.
#pragma once
#include <cuda_runtime.h>
#include "exlchat.h"

namespace exl {

constexpr int MOST_SPLITS = 64;

int attention_fp16(const ExlAttention &job, int dependent, cudaStream_t stream);
int attention_fp8(const ExlAttention &job, int dependent, cudaStream_t stream);
int attention_q8(const ExlAttention &job, int dependent, cudaStream_t stream);
int attention_q6(const ExlAttention &job, int dependent, cudaStream_t stream);
int attention_q4(const ExlAttention &job, int dependent, cudaStream_t stream);

}  // namespace exl
