// The launch of a kind of cache, each in a file of its own so that they compile side by side.
#pragma once
#include <cuda_runtime.h>
#include "exlchat.h"

namespace exl {

constexpr int MOST_SPLITS = 64;

template <int KEY, int VALUE>
int attention_of(const ExlAttention &job, int dependent, cudaStream_t stream);

}  // namespace exl
