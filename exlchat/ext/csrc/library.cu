#include "exlchat.h"

#include <cuda_runtime.h>

extern "C" int exl_abi_version(void) { return EXL_ABI_VERSION; }

extern "C" const char *exl_error_text(int code) {
    if (code == EXL_BAD_ARGUMENT) return "an argument is out of range";
    return cudaGetErrorString(static_cast<cudaError_t>(code));
}

extern "C" int exl_cuda_version(void) { return CUDART_VERSION; }

__global__ void nothing() {}

// Asking for a kernel's attributes loads its code without running anything.
extern "C" int exl_card_status(void) {
    cudaFuncAttributes attributes;
    const cudaError_t status = cudaFuncGetAttributes(&attributes, nothing);
    cudaGetLastError();
    return status;
}
