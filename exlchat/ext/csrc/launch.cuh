// How every kernel of the step is launched.
#pragma once
#include <cuda_runtime.h>
#include <stdint.h>

namespace exl {

// The same split of an SM's memory between L1 and shared memory for all kernels: where it differs from one kernel to
// the next, the SMs drain and reconfigure (exllamav3 reports about 4 us a launch; not measured on its own here).
template <class Kernel> inline cudaError_t prepare(Kernel kernel, int shared_bytes) {
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                             cudaSharedmemCarveoutMaxShared);
    if (error == cudaSuccess && shared_bytes > 48 * 1024)
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    return error;
}

// dependent: the kernel may start while its predecessor runs (sm_90 and later).
template <class... Parameters, class... Arguments>
inline int launch(void (*kernel)(Parameters...), dim3 grid, int threads, int shared_bytes, int dependent,
                  cudaStream_t stream, const Arguments &...arguments) {
    const cudaError_t error = prepare(kernel, shared_bytes);
    if (error != cudaSuccess) return error;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid, config.blockDim = threads, config.dynamicSmemBytes = shared_bytes, config.stream = stream;
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attribute, config.numAttrs = dependent ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

}  // namespace exl
