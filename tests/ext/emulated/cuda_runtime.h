// Stands in for CUDA's header of this name where kernels run on the CPU: a card that tests describe.
#pragma once
#include "launch.cuh"

using cudaError_t = int;
constexpr cudaError_t cudaSuccess = 0;
enum cudaDeviceAttr {
    cudaDevAttrMaxSharedMemoryPerBlockOptin,
    cudaDevAttrMultiProcessorCount,
    cudaDevAttrComputeCapabilityMajor,
    cudaDevAttrMaxSharedMemoryPerMultiprocessor,
};

constexpr cudaError_t cudaErrorPeerAccessAlreadyEnabled = 704;
struct cudaFuncAttributes {};
inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *, const auto &) { return cudaSuccess; }
inline cudaError_t cudaDeviceCanAccessPeer(int *can, int, int) { return *can = 0; }
inline cudaError_t cudaDeviceEnablePeerAccess(int, int) { return cudaSuccess; }
inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }

inline cudaError_t cudaGetDevice(int *device) { return *device = 0; }
inline cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int) {
    *value = attribute == cudaDevAttrMaxSharedMemoryPerMultiprocessor ? emulated::card[0] + 1024 : emulated::card[attribute];
    return cudaSuccess;
}
