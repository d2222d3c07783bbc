// Stands in for csrc/device.cuh where kernels run on the CPU, in tests alone.
//
// A block is a thread of the host, a thread of the card is a fiber in it. Fibers change only where the card's threads
// wait for each other, so shared memory is `static thread_local`. x86-64 and g++.
#pragma once
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <type_traits>
#include <vector>

#define __device__
#define __host__
#define __global__ static
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __shared__ static thread_local
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)

struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(16) ulonglong2 {
    unsigned long long x, y;
};
struct alignas(8) uint2 {
    uint32_t x, y;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
struct alignas(8) int2 {
    int x, y;
};
struct alignas(8) float2 {
    float x, y;
};
struct Place {
    unsigned x, y;
};
struct dim3 {
    unsigned x, y;
    dim3(unsigned x, unsigned y = 1) : x(x), y(y) {}
};
inline thread_local Place threadIdx, blockIdx, gridDim, blockDim;

namespace emulated {

constexpr size_t STACK = 32768;

struct Copy {
    void *to;
    const void *from;
    int group;
};
struct Fiber {
    void *stack_top;
    char *stack = static_cast<char *>(malloc(STACK));
    bool ended;
    int group;                 // of copies, that is not ended yet
    std::vector<Copy> copies;  // under way, the oldest first
};

struct Block {
    std::vector<Fiber> fibers;
    void *scheduler = nullptr;
    int current = 0, alive = 0, arrived = 0, warp_alive[32] = {}, warp_arrived[32] = {};
    unsigned turn = 0, warp_turn[32] = {};
    unsigned long long lanes[32][2][32];
    unsigned slot[1024] = {};
    int came = 0;                   // to the cluster
    unsigned cluster_turn[1024];
    std::function<void()> body;
};
inline thread_local Block *block;

extern "C" void emulated_switch(void **from, void *to);
asm(R"(
.text
.weak emulated_switch
.hidden emulated_switch
emulated_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");

__attribute__((noinline)) inline void pause() {
    Block &b = *block;
    emulated_switch(&b.fibers[b.current].stack_top, b.scheduler);
}

// Ends a thread of the card; the launch says so when all have ended.
struct OutOfPatience {};
inline std::atomic<bool> gave_up;

inline void start() {
    try {
        block->body();
    } catch (OutOfPatience) {
        gave_up = true;
    }
    Block &b = *block;
    b.fibers[b.current].ended = true;
    b.alive--, b.warp_alive[b.current / 32]--;
    if (b.alive && b.arrived == b.alive) b.arrived = 0, b.turn++;
    const int warp = b.current / 32;
    if (b.warp_alive[warp] && b.warp_arrived[warp] == b.warp_alive[warp]) b.warp_arrived[warp] = 0, b.warp_turn[warp]++;
    pause();
}

// As much as the largest card has. What a launch did not ask for, and what nobody has written yet, is no number.
constexpr int MOST_SHARED = 232448;
alignas(1024) inline thread_local uint8_t shared_memory[MOST_SHARED];
inline std::atomic<uint8_t *> shared_of[16];    // of the blocks that run beside each other
inline int cluster = 2;                            // blocks that stand side by side
inline std::atomic<unsigned> came_to_cluster[16];  // blocks of each, however often

inline void run_block(int index, dim3 grid, int threads, const std::function<void()> &body) {
    memset(shared_memory, 0xff, MOST_SHARED);
    static Block places[16];  // stacks are kept for the next kernel
    Block &own = places[index % 16];
    block = &own;
    own.body = body;
    if (own.fibers.size() < threads) own.fibers.resize(threads);
    own.alive = threads, own.arrived = own.came = 0;
    memset(own.cluster_turn, 0, sizeof(own.cluster_turn));
    shared_of[index % 16] = shared_memory;
    for (int warp = 0; warp < 32; warp++) own.warp_alive[warp] = own.warp_arrived[warp] = 0;
    for (int t = 0; t < threads; t++) {
        Fiber &fiber = own.fibers[t];
        fiber.ended = false, fiber.group = 0, fiber.copies.clear();
        own.warp_alive[t / 32]++;
        void **top = reinterpret_cast<void **>(((uintptr_t)fiber.stack + STACK) & ~(uintptr_t)63);
        *--top = nullptr;
        *--top = reinterpret_cast<void *>(&start);
        top -= 6;
        fiber.stack_top = top;
    }
    blockIdx = {index % grid.x, index / grid.x}, gridDim = {grid.x, grid.y}, blockDim.x = threads;
    while (own.alive)
        for (int t = 0; t < threads; t++) {
            if (own.fibers[t].ended) continue;
            own.current = t, threadIdx.x = t;
            emulated_switch(&own.scheduler, own.fibers[t].stack_top);
        }
}

inline int missing = -1, patience = 300000;  // a block that does not come; milliseconds that others wait for it
extern "C" __attribute__((used)) inline void emulated_missing(int block, int milliseconds) {
    missing = block, patience = milliseconds;
}

// Few blocks run beside each other, as they must where they wait for each other; many one after the other.
inline void run_grid(dim3 grid, int threads, const std::function<void()> &body) {
    const int blocks = grid.x * grid.y;
    if (blocks > 16) {
        for (int i = 0; i < blocks; i++) run_block(i, grid, threads, body);
        return;
    }
    for (auto &came : came_to_cluster) came = 0;
    for (auto &memory : shared_of) memory = nullptr;
    std::vector<std::thread> running;
    for (int i = 0; i < blocks; i++)
        if (i != missing) running.emplace_back([=] { run_block(i, grid, threads, body); });
    for (std::thread &thread : running) thread.join();
}

inline void wait_for_warp() {
    Block &b = *block;
    const int warp = b.current / 32;
    const unsigned turn = b.warp_turn[warp];
    if (++b.warp_arrived[warp] == b.warp_alive[warp]) {
        b.warp_arrived[warp] = 0, b.warp_turn[warp]++;
        return;
    }
    while (b.warp_turn[warp] == turn) pause();
}

// What every lane brings; two slots, so that a lane may be one exchange ahead.
template <class T> inline unsigned long long (&exchange(T value))[32] {
    Block &b = *block;
    unsigned long long bits = 0;
    memcpy(&bits, &value, sizeof(T));
    const int warp = b.current / 32;
    auto &lanes = b.lanes[warp][b.slot[b.current]++ % 2];
    lanes[b.current % 32] = bits;
    wait_for_warp();
    return lanes;
}
template <class T> inline T as(unsigned long long bits) {
    T value;
    memcpy(&value, &bits, sizeof(T));
    return value;
}

// With EMULATED_DELAYS some warps come late behind a barrier, others each time: what is read without one is wrong then.
inline void come_late() {
#ifdef EMULATED_DELAYS
    static thread_local unsigned long long dice = 88172645463325252ull;
    static thread_local unsigned late = 0, turn = ~0u;
    Block &b = *block;
    if (turn != b.turn) {
        turn = b.turn, late = 0;
        for (int warp = 0; warp < 16; warp++) {
            dice ^= dice << 13, dice ^= dice >> 7, dice ^= dice << 17;
            late |= unsigned((dice >> 20) % EMULATED_DELAYS == 0) << warp;
        }
    }
    if (late >> (b.current / 32) & 1)
        for (int i = 0; i < 150; i++) pause();
#endif
}

}  // namespace emulated

inline void __syncthreads() {
    emulated::Block &b = *emulated::block;
    const unsigned turn = b.turn;
    if (++b.arrived == b.alive) b.arrived = 0, b.turn++;
    else
        while (b.turn == turn) emulated::pause();
    emulated::come_late();
}
inline void __syncwarp() { emulated::wait_for_warp(); }
template <class T> inline T __shfl_xor_sync(unsigned, T value, int mask) {
    const int lane = threadIdx.x % 32;
    return emulated::as<T>(emulated::exchange(value)[lane ^ mask]);
}
template <class T> inline T __shfl_up_sync(unsigned, T value, int by) {
    const int lane = threadIdx.x % 32;
    return emulated::as<T>(emulated::exchange(value)[lane >= by ? lane - by : lane]);
}
template <class T> inline T __shfl_down_sync(unsigned, T value, int by) {
    const int lane = threadIdx.x % 32;
    return emulated::as<T>(emulated::exchange(value)[lane + by < 32 ? lane + by : lane]);
}
template <class T> inline T __shfl_sync(unsigned, T value, int from) {
    return emulated::as<T>(emulated::exchange(value)[from]);
}
inline bool __any_sync(unsigned, bool value) {
    auto &lanes = emulated::exchange((int)value);
    bool found = false;
    for (int i = 0; i < 32; i++) found |= lanes[i] != 0;
    return found;
}
inline uint32_t __ballot_sync(unsigned, bool value) {
    auto &lanes = emulated::exchange((int)value);
    uint32_t found = 0;
    for (int i = 0; i < 32; i++) found |= (uint32_t)(lanes[i] != 0) << i;
    return found;
}
inline uint32_t __match_any_sync(unsigned, int value) {
    auto &lanes = emulated::exchange(value);
    uint32_t found = 0;
    for (int i = 0; i < 32; i++) found |= (uint32_t)(emulated::as<int>(lanes[i]) == value) << i;
    return found;
}

template <class T, class U> inline T atomicAdd(T *p, U value) { return __atomic_fetch_add(p, (T)value, __ATOMIC_SEQ_CST); }
template <class T, class U> inline T atomicOr(T *p, U value) { return __atomic_fetch_or(p, (T)value, __ATOMIC_SEQ_CST); }
template <class T, class U> inline T atomicMax(T *p, U value) {
    T before = __atomic_load_n(p, __ATOMIC_SEQ_CST);
    while (before < (T)value && !__atomic_compare_exchange_n(p, &before, (T)value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {}
    return before;
}
template <class A, class B> inline std::common_type_t<A, B> max(A a, B b) { return a > b ? a : b; }
template <class A, class B> inline std::common_type_t<A, B> min(A a, B b) { return a < b ? a : b; }
inline uint32_t __float_as_uint(float v) {
    uint32_t bits;
    memcpy(&bits, &v, sizeof(v));
    return bits;
}
inline float __uint_as_float(uint32_t v) { return emulated::as<float>(v); }
inline unsigned long long __float2ull_rn(float v) { return (unsigned long long)nearbyintf(v); }
inline int __clz(uint32_t v) { return v ? __builtin_clz(v) : 32; }
inline int __clzll(unsigned long long v) { return v ? __builtin_clzll(v) : 64; }
inline int __popc(uint32_t v) { return __builtin_popcount(v); }
inline int __ffs(uint32_t v) { return __builtin_ffs(v); }
template <class T> inline T __ldg(const T *p) { return *p; }
template <class T> inline T __ldcg(const T *p) { return *p; }
inline uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t choice) {
    const uint64_t both = (uint64_t)high << 32 | low;
    uint32_t found = 0;
    for (int i = 0; i < 4; i++) found |= (uint32_t)(both >> (choice >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    return found;
}
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float a) { return expf(a); }
inline float __frcp_rn(float a) { return 1.f / a; }
inline float rsqrtf(float a) { return 1.f / sqrtf(a); }
inline int __float2int_rn(float v) { return (int)nearbyintf(v); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}

namespace exl {

constexpr int LANES = 32;

inline void ask_for_l2(const void *) {}

#define EXL_ALIGNED_SHARED_MEMORY(name, bytes) uint8_t *const name = emulated::shared_memory
#define EXL_SHARED_MEMORY(name) EXL_ALIGNED_SHARED_MEMORY(name, 16)

template <class T> inline T __ldcs(const T *p) { return *p; }
template <class T> inline T produced(const T *p) {
    T value;
    asm volatile("" ::: "memory");
    memcpy(&value, p, sizeof(T));
    return value;
}
inline uint32_t ordered(float logit) {
    const uint32_t bits = __float_as_uint(logit + 0.f);
    return bits ^ (bits >> 31 ? ~0u : 1u << 31);
}
inline void send_word(uint64_t *to, uint64_t word) { __atomic_store_n(to, word, __ATOMIC_SEQ_CST); }
template <class T> inline T look(const T *at) {
    emulated::pause();  // or the others of the block would never send what they have
    return __atomic_load_n(at, __ATOMIC_SEQ_CST);
}
inline unsigned long long nanoseconds() { return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1); }
inline void tell_host(unsigned long long *slot, unsigned long long word) { *slot = word; }
inline bool arrive(unsigned *ticket, int blocks) {
    const bool last = __atomic_add_fetch(ticket, 1, __ATOMIC_SEQ_CST) == (unsigned)blocks;
    if (last) __atomic_store_n(ticket, 0, __ATOMIC_SEQ_CST);
    return last;
}
inline bool arrive(unsigned *ticket, int done, int parts) {
    const bool last = __atomic_add_fetch(ticket, done, __ATOMIC_SEQ_CST) == (unsigned)parts;
    if (last) __atomic_store_n(ticket, 0, __ATOMIC_SEQ_CST);
    return last;
}
class Patience {
    std::chrono::steady_clock::time_point begun = std::chrono::steady_clock::now();

  public:
    void look_again() {
        std::this_thread::yield();
        if (std::chrono::steady_clock::now() - begun > std::chrono::milliseconds(emulated::patience)) throw emulated::OutOfPatience();
    }
};
inline void meet(unsigned *word, int block, int blocks) {
    const unsigned part = block == 0 ? (1u << 31) - (blocks - 1) : 1;
    const unsigned before = __atomic_fetch_add(word, part, __ATOMIC_SEQ_CST);
    for (Patience patience; (__atomic_load_n(word, __ATOMIC_SEQ_CST) ^ before) >> 31 == 0;) patience.look_again();
}
inline unsigned acquired(const unsigned *word) { return __atomic_load_n(word, __ATOMIC_SEQ_CST); }
inline void release(unsigned *word, unsigned value) { __atomic_store_n(word, value, __ATOMIC_SEQ_CST); }
inline void let_next_start() {}
inline void wait_for_previous() {}

inline uint32_t picked(uint32_t word, uint32_t mask, uint32_t bits) { return (word & mask) | bits; }
inline float power_of_two(float x) { return exp2f(x); }
constexpr bool COPIES_GO_ON = true;
// Copies come as late as they may: when they are waited for.
inline emulated::Fiber &this_fiber() { return emulated::block->fibers[emulated::block->current]; }
inline void copy16(void *to, const void *from) { this_fiber().copies.push_back({to, from, this_fiber().group}); }
inline void copy16_if(bool wanted, void *to, const void *from) {
    if (wanted) copy16(to, from);
}
template <class T> inline void load_if(bool wanted, T &value, const void *from) {
    if (wanted) memcpy(&value, from, sizeof(value));
}
inline void load8_if(bool wanted, uint2 &value, const void *from) { load_if(wanted, value, from); }
inline void load16_if(bool wanted, uint4 &value, const void *from) { load_if(wanted, value, from); }
inline void end_of_copies() { this_fiber().group++; }
template <int PENDING> inline void wait_for_copies() {
    emulated::Fiber &fiber = this_fiber();
    auto copy = fiber.copies.begin();
    for (; copy != fiber.copies.end() && copy->group < fiber.group - PENDING; copy++) memcpy(copy->to, copy->from, 16);
    fiber.copies.erase(fiber.copies.begin(), copy);
}
inline float warp_sum(float v) {
    for (int d = 16; d; d /= 2) v += __shfl_xor_sync(~0u, v, d);
    return v;
}

}  // namespace exl

#include "cuda_fp16.h"
