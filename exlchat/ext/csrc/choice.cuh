// The choice of a token's experts from their logits, by one block: of the kernel that made them, or of every one that needs it.
#pragma once
#include "device.cuh"
#include "exlchat.h"

namespace exl {

inline bool choice_ok(int experts, int slots) {
    return experts >= 1 && experts <= EXL_MAX_EXPERTS && slots >= 1 && slots <= EXL_MAX_CHOSEN && slots <= experts;
}

// What it is made with, and what it comes to. Places behind the last expert hold 0, which no key is.
struct __align__(16) Choice {
    uint32_t keys[EXL_MAX_EXPERTS];
    float weights[EXL_MAX_CHOSEN], sums[32];
    int chosen[EXL_MAX_CHOSEN];
};

// By all threads of a block. Every expert has a place of its own, so that no choice can be none or twice the same, not even of NaN.
template <int THREADS> struct Chooser {
    static constexpr int EACH = (EXL_MAX_EXPERTS + THREADS - 1) / THREADS;  // logits of a thread
    int experts;
    float logit[EACH];

    __device__ __forceinline__ Chooser(const float *logits, int experts) : experts(experts) {
#pragma unroll
        for (int i = 0; i < EACH; i++) logit[i] = number(i) < experts ? produced(logits + number(i)) : 0.f;
    }
    __device__ __forceinline__ static int number(int i) { return i * THREADS + threadIdx.x; }

    // How many experts come before one, as far as a thread of `crew` neighbours counts them. Of four at a time, all below it
    // count where they equal it, none above.
    __device__ __forceinline__ int before(const Choice &c, int expert, int crew) const {
        const int number = threadIdx.x % crew;
        const uint32_t key = c.keys[expert];
        int found = 0;
#pragma unroll 2
        for (int quad = number; quad < (experts + 3) / 4; quad += crew) {
            const uint4 other = reinterpret_cast<const uint4 *>(c.keys)[quad];
            const uint32_t least = quad < expert / 4 ? key - 1 : key;
            found += (other.x > least) + (other.y > least) + (other.z > least) + (other.w > least);
        }
        if (number == 0)
            for (int other = expert / 4 * 4; other < expert; other++) found += c.keys[other] == key;
        return found;
    }
    // `chosen`, the best first, and their logits.
    __device__ __forceinline__ void choose(Choice &c, int slots) const {
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (number(i) < EXL_MAX_EXPERTS) c.keys[number(i)] = number(i) < experts ? max(ordered(logit[i]), 1u) : 0;
        // Neighbours that count for the same expert: as many as there are threads for each.
        int crew = LANES;
        while (crew > 1 && crew * experts > THREADS) crew /= 2;
        __syncthreads();
#pragma unroll 1
        for (int first = 0; first < experts; first += THREADS / crew) {
            const int expert = first + threadIdx.x / crew;
            int place = before(c, min(expert, experts - 1), crew);
#pragma unroll 1
            for (int d = crew / 2; d; d /= 2) place += __shfl_xor_sync(~0u, place, d);
            if (expert < experts && threadIdx.x % crew == 0 && place < slots) c.chosen[place] = expert;
        }
        __syncthreads();
    }
    // What `ordered` made a key of, but for NaN, which stays one.
    __device__ __forceinline__ static float logit_of(const Choice &c, int slot) {
        const uint32_t key = c.keys[c.chosen[slot]];
        return __uint_as_float(key >> 31 ? key ^ 1u << 31 : ~key);
    }
    // `weights` of those chosen, behind a barrier.
    __device__ __forceinline__ void weigh(Choice &c, int slots, bool renormalised) const {
        const int t = threadIdx.x;
        const float best = logit_of(c, 0);
        float sum = 0.f;
        if (!renormalised) {
#pragma unroll
            for (int i = 0; i < EACH; i++)
                if (number(i) < experts) sum += expf(logit[i] - best);
            sum = warp_sum(sum);
            if (t % LANES == 0) c.sums[t / LANES] = sum;
            __syncthreads();
            sum = 0.f;
#pragma unroll
            for (int i = 0; i < THREADS / LANES; i++) sum += c.sums[i];
        }
        if (t < LANES) {
            const float weight = t < slots ? expf(logit_of(c, t) - best) : 0.f;
            if (renormalised) sum = warp_sum(weight);
            if (t < slots) c.weights[t] = weight / sum;
        }
        __syncthreads();
    }
};

}  // namespace exl
