// Stands in for csrc/launch.cuh: runs a kernel on the CPU, and returns when it has ended.
#pragma once
#include "device.cuh"

using cudaStream_t = void *;

namespace emulated {

constexpr int TOO_MUCH = 1, FAILED = 719;  // cudaErrorInvalidValue, cudaErrorLaunchFailure
inline int card[3] = {MOST_SHARED, 132, 9};  // bytes of shared memory of a block, multiprocessors, compute capability

// What the kernels find: see cuda_runtime.h.
extern "C" __attribute__((used)) inline void emulated_card(int shared, int processors, int capability) {
    card[0] = shared, card[1] = processors, card[2] = capability;
}

}  // namespace emulated

namespace exl {

inline int places_to_keep(int, int &, int = 1) { return 0; }

template <class... Parameters>
inline int launch(void (*kernel)(Parameters...), dim3 grid, int threads, int shared, int, cudaStream_t, const auto &...job) {
    if (shared > emulated::card[0]) return emulated::TOO_MUCH;
    emulated::run_grid(grid, threads, [&] { kernel(static_cast<Parameters>(job)...); });
    return emulated::gave_up.exchange(false) ? emulated::FAILED : 0;
}

template <class... Parameters>
inline int launch_clusters(int blocks, void (*kernel)(Parameters...), dim3 grid, int threads, int shared, int, cudaStream_t,
                           const auto &...job) {
    if (shared > emulated::card[0] || grid.x % blocks || (blocks > 1 && grid.x > 16)) return emulated::TOO_MUCH;
    emulated::cluster = blocks;
    emulated::run_grid(grid, threads, [&] { kernel(static_cast<Parameters>(job)...); });
    return emulated::gave_up.exchange(false) ? emulated::FAILED : 0;
}
template <class... Parameters> inline int clusters_at_once(void (*)(Parameters...), int cluster, int, int) {
    return emulated::card[2] < 9 ? 0 : emulated::card[1] / cluster;
}

}  // namespace exl
