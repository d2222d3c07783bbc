// The kernel of gemv.cuh for one row of x times matrices that are chosen on the device.
//
// A kernel of its own, so that the ordinary one's instructions stay as they are. The blocks of all slots are one grid,
// those of a slot neighbours; or, where there are more than the card has at once, those of the same columns of all slots,
// so that tokens with the same expert find its weights in L2. A block learns its expert, or finds it by its token's logits,
// when the previous kernel has ended, and only then asks for weights; the expert's pointers take the places of the job's in
// shared memory, and the rest is the ordinary product. x is read while the expert is looked up, since it is the same for all
// of a token's slots: it goes to shared memory in the order of the features, and from there all warps take the rows in the
// expert's order.
#pragma once
#include "choice.cuh"
#include "experts.cuh"
#include "gemv_launch.cuh"

namespace exl {

struct ExpertProduct {
    Product product;
    const ExlExpert *table;
    const int *chosen;
    const float *logits;
    ExlChoice choice;
    float limit;
    int experts, slots, blocks;  // blocks: of a slot
    int across;                  // whether neighbours are of other slots
    int gathered, features, x_slots, x_stride;
    int features_at, choice_at;  // half [features], and a Choice, in bytes from the beginning of shared memory
};

// What the block reads and writes; by one thread. A division takes its time.
__device__ __forceinline__ void take_slot(Product &job, const ExpertProduct &all, int slot) {
    const int row = all.x_slots == 1 ? slot : (all.x_slots == all.slots ? 0 : slot / all.x_slots);
    job.x = static_cast<const char *>(all.product.x) + (size_t)row * all.x_stride * (job.x_kind == EXL_X_HALF ? 2 : 4);
    job.squares = all.product.squares + (size_t)row * (job.width / 16);
    job.y = static_cast<char *>(all.product.y) + (size_t)slot * job.y_stride * (job.y_kind == EXL_Y_FLOAT ? 4 : 2);
}
// The job of the block becomes that of its expert; by one thread.
__device__ __forceinline__ void take_expert(Product &job, const ExlExpert *from) {
    const ulonglong2 *pairs = reinterpret_cast<const ulonglong2 *>(from);
    static_assert(sizeof(ExlExpert) == 4 * sizeof(ulonglong2), "words, scales, biases, gather and scatter");
    const ulonglong2 words = __ldg(pairs), scales = __ldg(pairs + 1), bias = __ldg(pairs + 2), order = __ldg(pairs + 3);
    job.words[0] = reinterpret_cast<const uint32_t *>(words.x), job.words[1] = reinterpret_cast<const uint32_t *>(words.y);
    job.scales[0] = reinterpret_cast<const uint32_t *>(scales.x);
    job.scales[1] = reinterpret_cast<const uint32_t *>(scales.y);
    job.bias[0] = reinterpret_cast<const half *>(bias.x), job.bias[1] = reinterpret_cast<const half *>(bias.y);
    job.scatter = reinterpret_cast<const uint16_t *>(order.y);
}

// x of the slot, in the order of its features; by all threads. What is done meanwhile waits for memory, too.
template <class Meanwhile>
__device__ __forceinline__ void bring_features(const Product &job, int features, half *to, const Meanwhile &meanwhile) {
    constexpr int AT_ONCE = 8;
    const half *x = static_cast<const half *>(job.x);
    const int octets = features / 8, rest = features % 8;
#pragma unroll 1
    for (int base = 0; base < octets; base += THREADS * AT_ONCE) {
        uint4 v[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            const int i = base + k * THREADS + threadIdx.x;
            if (i < octets) v[k] = produced(reinterpret_cast<const uint4 *>(x) + i);
        }
        if (base == 0) meanwhile();
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            const int i = base + k * THREADS + threadIdx.x;
            if (i < octets) reinterpret_cast<uint4 *>(to)[i] = v[k];
        }
    }
    if (octets == 0) meanwhile();
    if (threadIdx.x < rest) to[octets * 8 + threadIdx.x] = produced(x + octets * 8 + threadIdx.x);
}
// The same of what a residual left.
template <class Meanwhile>
__device__ __forceinline__ void bring_normed(const Product &job, int features, half *to, float *parts, const Meanwhile &meanwhile) {
    constexpr int AT_ONCE = 8;
    const int quads = features / 4;
    const Squares<1, float> squares(job, parts);
    Factors factors;
#pragma unroll 1
    for (int base = 0; base < quads; base += THREADS * AT_ONCE) {
        Quad<float> v[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            const int i = base + k * THREADS + threadIdx.x;
            if (i < quads) v[k].ask(job.x, i);
        }
        if (base == 0) meanwhile(), factors = squares.factors(job);
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            const int i = base + k * THREADS + threadIdx.x;
            if (i < quads) reinterpret_cast<uint2 *>(to)[i] = v[k].halves(factors);
        }
    }
}

// A range of x, as stage_halves brings it, from the features; by all threads. The ring starts when the order has been asked for.
template <int DEPTH>
__device__ __forceinline__ void stage_gathered(const Product &job, const Range &range, const uint16_t *gather,
                                               const half *features, half *x, Ring<DEPTH> &ring) {
    constexpr int AT_ONCE = 4;
    const int octets = range.rows / 8, stored = (job.stored - range.row) / 8;
    const uint4 *source = reinterpret_cast<const uint4 *>(gather + range.row);
#pragma unroll 1
    for (int base = 0; base == 0 || base < octets; base += THREADS * AT_ONCE) {
        uint4 from[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            const int i = base + k * THREADS + threadIdx.x;
            from[k] = {~0u, ~0u, ~0u, ~0u};
            if (i < min(octets, stored)) from[k] = __ldg(source + i);
        }
        if (base == 0) ring.start();
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            const int i = base + k * THREADS + threadIdx.x;
            if (i >= octets) continue;
            const uint32_t pairs[4] = {from[k].x, from[k].y, from[k].z, from[k].w};
            uint32_t values[4];
#pragma unroll
            for (int n = 0; n < 4; n++) {
                const uint32_t low = pairs[n] & 0xffff, high = pairs[n] >> 16;
                values[n] = low == 0xffff ? 0 : __half_as_ushort(features[low]);
                if (high != 0xffff) values[n] |= (uint32_t)__half_as_ushort(features[high]) << 16;
            }
            reinterpret_cast<uint4 *>(x)[i] = {values[0], values[1], values[2], values[3]};
        }
    }
}

__device__ __forceinline__ void write_of_expert(const Smem &s, const Output &o, int mine, float limit, const Ahead &ahead) {
    const Product &job = *s.job;
    const RowTotal total = {s};
    const float sum = total(o.number, o.column) + __half2float(ahead.bias);
    if (job.y_kind == EXL_Y_FLOAT) {
        static_cast<float *>(job.y)[o.to] = sum;
        return;
    }
    const float up = total(o.number + mine, o.column) + __half2float(ahead.other);
    static_cast<half *>(job.y)[ahead.place] = __float2half_rn(gated(job.activation, limit, sum, up));
}

template <int DEPTH>
__global__ void __launch_bounds__(THREADS, 2) gemv_experts(const __grid_constant__ ExpertProduct parameters) {
    EXL_ALIGNED_SHARED_MEMORY(memory, 128);
    char *base = reinterpret_cast<char *>(memory);
    const int t = threadIdx.x, warp = t / LANES;
    const int slot = parameters.across ? blockIdx.x : blockIdx.y, block = parameters.across ? blockIdx.y : blockIdx.x;
    const int32_t *plan = parameters.product.plan + (size_t)block * parameters.product.plan_ints;
    const Smem s(base, parameters.product);
    const int2 of_lane = __ldg(reinterpret_cast<const int2 *>(plan + HEADER_INTS) + t % WARPS * 2);
    if (slot >= parameters.slots || !begin_block(parameters.product, plan, s)) {  // it only keeps its place
        wait_for_previous();
        let_next_start();
        return;
    }
    const Product &job = *s.job;
    const Segment *list = s.lists + warp * job.segments;
    if (t == 0) take_slot(*s.job, parameters, slot);
    const int token = parameters.logits ? slot / parameters.choice.slots : 0;
    __syncthreads();
    // Since the step before, all weights have gone through L2, and the table has gone out of it.
    const int line = (blockIdx.y * gridDim.x + blockIdx.x) * (128 / (int)sizeof(ExlExpert));
    if (t == 0 && line < parameters.experts) ask_for_l2(parameters.table + line);
    wait_for_previous();
    // Not before: what comes next reads the logits before this one ends (gemv_expert_sum.cu).
    let_next_start();
    half *features = reinterpret_cast<half *>(base + parameters.features_at);
    Choice &choice = *reinterpret_cast<Choice *>(base + parameters.choice_at);
    int expert = parameters.logits ? 0 : produced(parameters.chosen + slot);
    const Chooser<THREADS> chooser(parameters.logits + (size_t)token * parameters.choice.stride,
                                   parameters.logits ? parameters.choice.experts : 0);
    const auto take = [&] {
        if (parameters.logits) {
            chooser.choose(choice, parameters.choice.slots);
            expert = choice.chosen[slot - token * parameters.choice.slots];
        }
        if (t == 0) take_expert(*s.job, parameters.table + expert);
    };
    if (job.x_kind == EXL_X_NORM) bring_normed(job, parameters.features, features, s.squares, take);
    else if (parameters.gathered) bring_features(job, parameters.features, features, take);
    else take();
    const uint16_t *gather = parameters.gathered ? parameters.table[expert].gather : nullptr;
    __syncthreads();
    Ring<DEPTH> ring(job, list, base);
    const Range range = rows_of_all(job, of_lane);
    const int first_row = __shfl_sync(~0u, of_lane.y ? of_lane.x - range.row : 0, warp);
    if (parameters.gathered) stage_gathered(job, range, gather, features, s.x, ring);
    else stage_halves<1, THREADS>(job, range, s.x, ring);
    const int mine = s.count(0), outputs = mine * 16;
    const bool any = t < outputs;
    const Output of_thread(s, any ? t / 16 : 0, t % 16);
    Ahead ahead;
    if (any) ask_constants<false>(job, of_thread, ahead);
    __syncthreads();
    sum_blocks<1, THREADS>(job, range, s.x, s.x_sums);
    __syncthreads();
    multiply_row(list, ring, lanes_x<1>(job, s.x + first_row), s.x_sums + first_row / 32, s.sums + warp * 16);
    __syncthreads();
    if (any) write_of_expert(s, of_thread, mine, parameters.limit, ahead);
#pragma unroll 1
    for (int i = t + THREADS; i < outputs; i += THREADS) {
        const Output o(s, i / 16, i % 16);
        ask_constants<false>(job, o, ahead);
        write_of_expert(s, o, mine, parameters.limit, ahead);
    }
}

}  // namespace exl
