// Clusters without a card: blocks are threads of the machine, and each finds its neighbours' shared memory.
#pragma once
#include "device.cuh"

namespace exl {

constexpr bool CLUSTERS = true;
inline void come_to_cluster() {
    emulated::Block &b = *emulated::block;
    if (++b.came == b.alive) b.came = 0, emulated::came_to_cluster[blockIdx.x / emulated::cluster]++;
}
inline void pass_by_cluster() { come_to_cluster(); }
inline void wait_for_cluster() {
    emulated::Block &b = *emulated::block;
    const unsigned turn = ++b.cluster_turn[b.current];
    while (emulated::came_to_cluster[blockIdx.x / emulated::cluster] < emulated::cluster * turn) {
        if (b.current == 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
        emulated::pause();
    }
}
inline uint8_t *at_neighbour(const void *own, int rank) {
    uint8_t *memory = emulated::shared_of[blockIdx.x / emulated::cluster * emulated::cluster + rank];
    if (!memory) abort();  // it may not have begun
    return memory + (static_cast<const uint8_t *>(own) - emulated::shared_memory);
}
struct Gift {
    int64_t left;

    void expect(int bytes) { __atomic_store_n(&left, bytes, __ATOMIC_SEQ_CST); }
    void give(float *own, int rank, float value) {
        memcpy(at_neighbour(own, rank), &value, sizeof(value));
        Gift *other = reinterpret_cast<Gift *>(at_neighbour(this, rank));
        __atomic_sub_fetch(&other->left, sizeof(value), __ATOMIC_SEQ_CST);
    }
    void wait() {
        while (__atomic_load_n(&left, __ATOMIC_SEQ_CST)) emulated::pause();
    }
};
inline float4 of_neighbour(const float4 *own, int rank) {
    float4 value;
    memcpy(&value, at_neighbour(own, rank), sizeof(value));
    return value;
}

}  // namespace exl
