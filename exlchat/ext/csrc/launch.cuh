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
    if (error == cudaSuccess && shared_bytes > 47 * 1024)  // of 48, with up to one that the kernel itself declares
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    return error;
}

// dependent: the kernel may start while its predecessor runs (sm_90 and later; before that it is not asked for).
// cluster: blocks that stand side by side and run at the same time.
template <class... Parameters, class... Arguments>
inline int launch_clusters(int cluster, void (*kernel)(Parameters...), dim3 grid, int threads, int shared_bytes,
                           int dependent, cudaStream_t stream, const Arguments &...arguments) {
    cudaError_t error = prepare(kernel, shared_bytes);
    int device = 0, major = 0;
    if (error == cudaSuccess) error = cudaGetDevice(&device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (error != cudaSuccess) return error;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid, config.blockDim = threads, config.dynamicSmemBytes = shared_bytes, config.stream = stream;
    cudaLaunchAttribute attributes[2] = {};
    config.attrs = attributes;
    if (dependent && major >= 9) {
        attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (cluster > 1) {
        attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
        attributes[config.numAttrs++].val.clusterDim = {(unsigned)cluster, 1, 1};
    }
    return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}
template <class... Parameters, class... Arguments>
inline int launch(void (*kernel)(Parameters...), dim3 grid, int threads, int shared_bytes, int dependent,
                  cudaStream_t stream, const Arguments &...arguments) {
    return launch_clusters(1, kernel, grid, threads, shared_bytes, dependent, stream, arguments...);
}

// How many clusters of so many blocks the card runs beside each other; 0 where it has none.
template <class... Parameters>
inline int clusters_at_once(void (*kernel)(Parameters...), int cluster, int threads, int shared_bytes) {
    int device = 0, major = 0, count = 0;
    if (cudaGetDevice(&device) != cudaSuccess || prepare(kernel, shared_bytes) != cudaSuccess) return 0;
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess || major < 9) return 0;
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension, attribute.val.clusterDim = {(unsigned)cluster, 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = cluster, config.blockDim = threads, config.dynamicSmemBytes = shared_bytes;
    config.attrs = &attribute, config.numAttrs = 1;
    return cudaOccupancyMaxActiveClusters(&count, kernel, &config) == cudaSuccess ? count : 0;
}

// Makes of a small kernel's blocks one for every multiprocessor, if it has fewer and the next kernel may start early:
// a multiprocessor left empty would get two of that one's blocks. Of several rows each has so many blocks.
inline cudaError_t places_to_keep(int dependent, int &blocks, int rows = 1) {
    if (!dependent) return cudaSuccess;
    int device = 0, processors = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    if (blocks * rows < processors) blocks = (processors + rows - 1) / rows;
    return error;
}

}  // namespace exl
