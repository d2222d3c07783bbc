// Decode attention: a block takes up to 8 query heads of one key-value head and a range of the cached tokens.
//
// Each warp walks over pieces of 16 tokens of its own, keys and values by turns, through a ring in shared memory that
// is filled ahead without any barrier between warps, and keeps a running softmax (Dao 2023, arXiv 2307.08691). The
// tokens before this one were stored by earlier steps, so the rings are filled before the previous kernel has ended.
// The new token comes from registers, as a part of its own. Warps are merged in the block; the last block of a head to
// arrive merges the ranges, in their order.
//
// Several tokens at once: the same pieces of work as for each alone. Those of one sequence see each other, so they are stored
// by a kernel before this one, and what that may write is not asked for before it has ended. A block that has several pieces
// of work asks for the first pieces of the next one before it merges its warps.
#pragma once
#include "attention_math.cuh"

#include <new>
#include <type_traits>

namespace exl {

constexpr int MOST_WARPS = 8, AT_ONCE = 8;  // of a block; ranges whose parts are read together
// Beside a block of this size the next product's first block fits, which asks for its weights meanwhile.
constexpr int MOST_SHARED = 112 * 1024;

// Blocks that read different queries.
__host__ __device__ __forceinline__ int columns_of(const ExlAttention &job) {
    return job.kv_heads * ((job.heads / job.kv_heads + HEADS - 1) / HEADS);
}

template <int KEY, int VALUE, int DIM, int ROWS> struct Attention {
    static constexpr bool SEVERAL = ROWS > 1;
    using K = KeyPiece<KEY, DIM>;
    using V = ValuePiece<VALUE, DIM>;
    static constexpr int SLOT = K::SIZE > V::SIZE ? K::SIZE : V::SIZE;
    // Enough for two pieces of keys and values, all that a warp has up to 256 tokens, to be asked for before the
    // previous kernel ends. Odd, so that keys free a slot for keys.
    static constexpr int FIT = 22 * 1024 / SLOT, SLOTS = FIT < 3 ? 3 : (FIT > 7 ? 7 : (FIT - 1) / 2 * 2 + 1);
    static constexpr int RING = SLOT * SLOTS;
    static constexpr int RECORD = HEADS * (DIM + 2);  // floats of a range in `partial`: mixtures, then best and sum
    static constexpr bool TURNED = turned(KEY);

    // So that the rings behind it are aligned as the cache is in memory, or copies to them take longer: where they began 80
    // bytes behind a multiple of 128, a step of 8 rows behind 1,024 tokens took 2.77 instead of 2.65 ms, a pass of 32 rows 4.29
    // instead of 4.02 (one H200).
    struct __align__(128) Common {
        half query[HEADS][DIM + 8];
        float key[DIM], value[DIM];
        uint16_t places[HEADS * DIM];
        WorkItem items[2];  // of several tokens, by turns: what the block has and what it has next
    };
    struct Part {
        float mixed[HEADS][DIM];
        float best[HEADS], sum[HEADS];
    };
    static_assert(RING >= (int)sizeof(Part), "a warp's part lies where its ring was");
    static constexpr int ROOM = (MOST_SHARED - (int)sizeof(Common) - 16) / RING, WARPS = ROOM < MOST_WARPS ? ROOM : MOST_WARPS;
    // Behind a part, the slots that the next piece of work may fill while the warps are merged.
    static constexpr int FIRST = SLOTS / 2 * 2, BEHIND = ((int)sizeof(Part) + SLOT - 1) / SLOT * SLOT;
    static constexpr int EARLY = (RING - BEHIND) / SLOT < FIRST ? (RING - BEHIND) / SLOT : FIRST - 1;

    const ExlAttention &job;
    Common &common;
    uint8_t *rings;
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES, warps = blockDim.x / LANES;
    // Of several tokens in shared memory: there are no registers for it.
    const std::conditional_t<SEVERAL, const WorkItem &, const WorkItem> work;

    // first_slot: where the ring begins.
    __device__ __forceinline__ Attention(const ExlAttention &job, const WorkItem &work, uint8_t *shared,
                                         int first_slot = 0)
        : job(job), common(*reinterpret_cast<Common *>(shared)), rings(shared + sizeof(Common)), work(work),
          wanted(work.begin + warp), to_fill(first_slot), first_slot(first_slot) {}

    __device__ __forceinline__ Part &part(int w) const { return *reinterpret_cast<Part *>(rings + w * RING); }
    // Where blocks of the same heads meet.
    __device__ __forceinline__ int meeting() const { return work.token * columns_of(job) + work.column; }
    __device__ __forceinline__ float *record(int split) const {
        return static_cast<float *>(job.partial) + ((size_t)meeting() * job.splits + split) * RECORD;
    }
    __device__ __forceinline__ int row_of(unsigned at) const { return cache_row(job, work.token, work.kv, at); }

    // Before the previous kernel has ended: where results go, and the first pieces. The new tokens before this one are not
    // there yet.
    int wanted, row, to_fill, first_slot, asked = 0;
    __device__ __forceinline__ void start() {
        bring_places();
        if constexpr (SEVERAL) {
            ask_first(work.cached - (follow_each_other(job) ? work.token : 0));
        } else {
#pragma unroll 1
            for (int i = 0; i < SLOTS / 2; i++) ask_keys(), ask_values();
        }
    }
    __device__ __forceinline__ void bring_places() {
        if (job.scatter)
            for (int i = threadIdx.x; i < work.heads * DIM / 8; i += blockDim.x)
                copy16(common.places + i * 8, static_cast<const uint16_t *>(job.scatter) + work.first_head * DIM + i * 8);
    }
    // The first pieces of tokens before `end`, so many as far as they were not asked for.
    __device__ __forceinline__ void ask_first(int end, int most = FIRST) {
#pragma unroll 1
        for (; asked < most && (wanted >= work.end || min(wanted * UNIT + UNIT, work.cached) <= end); asked++) {
            if (asked % 2 == 0) ask_keys();
            else ask_values();
        }
    }
    static __device__ __forceinline__ int after(int slot) { return slot == SLOT * (SLOTS - 1) ? 0 : slot + SLOT; }
    __device__ __forceinline__ void ask_keys() {
        if (wanted < work.end) {
            row = row_of(wanted * UNIT);
            fetch<K>(rings + warp * RING + to_fill, job.keys, job.key_scales, row, work.cached - wanted * UNIT, lane);
        }
        to_fill = after(to_fill);
        end_of_copies();
    }
    __device__ __forceinline__ void ask_values() {
        if (wanted < work.end)
            fetch<V>(rings + warp * RING + to_fill, job.values, job.value_scales, row, work.cached - wanted * UNIT,
                     lane);
        wanted += warps;
        to_fill = after(to_fill);
        end_of_copies();
    }

    // The new token's heads, a warp each, into shared memory: queries in the order of the keys' product. The last warp brings
    // the value, which it asks for first.
    __device__ __forceinline__ void prepare(const Turns<DIM> &turns) {
        const half *qkv = heads_of<DIM>(job, work.token);
        const float factor = query_factor(job);
        const bool brings = work.newest() && warp == warps - 1;
        float value[SHARE<DIM>] = {};
        if (brings) read_new<KEY, DIM>(value, job, qkv, work.kv, true, turns, lane);
        for (int g = warp; g < work.heads + work.newest(); g += warps) {
            float x[SHARE<DIM>];
            if (g < work.heads) {
                read_head<DIM>(x, qkv + (size_t)(work.first_head + g) * DIM, job.query_norm, job.eps, turns, lane);
                if constexpr (TURNED) hadamard<DIM>(x, lane);
            } else {
                read_new<KEY, DIM>(x, job, qkv, work.kv, false, turns, lane);
            }
#pragma unroll
            for (int i = 0; i < SHARE<DIM>; i++) {
                const int d = i * LANES + lane;
                if (d >= DIM) continue;
                if (g < work.heads) common.query[g][query_place<KEY, DIM>(d)] = __float2half_rn(x[i] * factor);
                else common.key[d] = x[i];
            }
        }
        if (!brings) return;
#pragma unroll
        for (int i = 0; i < SHARE<DIM>; i++)
            if (i * LANES + lane < DIM) common.value[i * LANES + lane] = value[i];
    }

    // What comes next, as far as the block has more, found while the first pieces of this are under way, by the warp that has
    // least to prepare; L2 fetches what it begins with.
    __device__ __forceinline__ void look_ahead() {
        if (warp < warps - 1 || work.left == 0) return;
        WorkItem next = work;
        if (work.split + 1 < work.active) {
            next.number++, next.left--, next.split++, next.done++;
            next.take_range(Shares(job, work.cached, warps));
        } else {
            next = WorkItems<ROWS>(job, columns_of(job)).at(work.number + 1, work.left - 1);
        }
        if (lane == 0) common.items[&work == common.items] = next;
        if (next.done > 1) return;
        const char *turns = static_cast<const char *>(job.turns) + (size_t)next.cached * job.rotary_dim * 4;
        if (lane * 32 < job.rotary_dim) ask_for_l2(turns + lane * 128);
        if (lane == 0) ask_for_l2(static_cast<const int *>(job.page_table) + (size_t)next.token * job.table_stride);
    }

    // All pieces of this warp; its part is left in shared memory.
    __device__ __forceinline__ void walk() {
        int lane = this->lane;
        // Or addresses that depend on it are found before the first piece of work, and kept where there are no registers for it.
        if constexpr (SEVERAL) asm volatile("" : "+r"(lane));
        uint32_t query[DIM / 8];
#pragma unroll
        for (int i = 0; i < DIM / 16; i++) {
            const half *share = common.query[lane / 4] + lane % 4 * (DIM / 4);
            const uint2 two = lane / 4 < work.heads ? reinterpret_cast<const uint2 *>(share)[i] : uint2{0, 0};
            query[2 * i] = two.x, query[2 * i + 1] = two.y;
        }
        float mixed[DIM / 16][4] = {}, best[2] = {EMPTY, EMPTY}, sum[2] = {};
        int slot = first_slot;
        const auto oldest = [&]() {  // the slot of the one before it is free then
            wait_for_copies<SLOTS - 2>();
            __syncwarp();
            const uint8_t *piece = rings + warp * RING + slot;
            slot = after(slot);
            return piece;
        };
#pragma unroll 1
        for (int unit = work.begin + warp; unit < work.end; unit += warps) {
            float score[4] = {};
            uint32_t weights[2];
            const uint8_t *keys = oldest();
            ask_keys();
            multiply_keys<KEY, DIM>(keys, query, score, lane);
            soften(job, work, unit, score, weights, mixed, best, sum, lane);
            const uint8_t *values = oldest();
            ask_values();
            add_values<VALUE, DIM>(values, weights, mixed, lane);
        }
        wait_for_copies<0>();
        __syncwarp();
#pragma unroll
        for (int e = 0; e < 2; e++) {
#pragma unroll
            for (int step = 4; step < LANES; step *= 2) sum[e] += __shfl_xor_sync(~0u, sum[e], step);
            if (lane < 4) part(warp).best[lane * 2 + e] = best[e], part(warp).sum[lane * 2 + e] = sum[e];
            if (lane % 4 * 2 + e >= work.heads) continue;
#pragma unroll
            for (int m = 0; m < DIM / 16; m++)
                *reinterpret_cast<float2 *>(
                    &part(warp).mixed[lane % 4 * 2 + e][mixed_place<VALUE, DIM>(m, 0, lane)]) =
                    float2{mixed[m][e], mixed[m][2 + e]};
        }
    }

    // The new token into the cache, by the warps that have no head to merge.
    __device__ __forceinline__ void store_newest() {
        const int merging = warps > work.heads ? work.heads : 0, others = warps - merging, mine = warp - merging;
        if ((SEVERAL && follow_each_other(job)) || !work.newest() || work.from > 0 || mine < 0) return;
        store_token<KEY, VALUE, DIM>(job, row_of(work.cached), common.key, common.value, mine, others, lane);
    }

    // The warps' parts and the new token: the finished head, or this range's record. A lane weighs each warp.
    __device__ __forceinline__ void merge_warps(int g) {
        float x[SHARE<DIM>] = {}, product = EMPTY;
        const bool used = lane < work.used(warps);
        const float best = used ? part(lane).best[g] : EMPTY, sum = used ? part(lane).sum[g] : 0.f;
        if (work.newest()) {
            product = 0.f;
#pragma unroll
            for (int i = 0; i < SHARE<DIM>; i++) {
                const int d = i * LANES + lane;
                if (d >= DIM) continue;
                product += __half2float(common.query[g][query_place<KEY, DIM>(d)]) * common.key[d];
                x[i] = common.value[d];
            }
            product = warp_sum(product);
            if (job.softcap > 0.f) product = capped(job, product);
        }
        float top = fmaxf(best, product), total = 0.f;
#pragma unroll
        for (int step = 1; step < MOST_WARPS; step *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
        top = __shfl_sync(~0u, top, 0);
        if (job.sinks && work.newest()) {
            const float sink = __ldg(static_cast<const float *>(job.sinks) + work.first_head + g) * LOG2_E;
            top = fmaxf(top, sink);
            total = power_of_two(sink - top);
        }
        const float weight = power_of_two(best - top), of_token = power_of_two(product - top);
        float sums = weight * sum;
#pragma unroll
        for (int step = 1; step < MOST_WARPS; step *= 2) sums += __shfl_xor_sync(~0u, sums, step);
        total += __shfl_sync(~0u, sums, 0) + of_token;
#pragma unroll
        for (int i = 0; i < SHARE<DIM>; i++) x[i] *= of_token;
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            const float of_warp = __shfl_sync(~0u, weight, w);
#pragma unroll
            for (int i = 0; i < SHARE<DIM>; i++)
                x[i] += w < work.used(warps) && i * LANES + lane < DIM ? of_warp * part(w).mixed[g][i * LANES + lane] : 0.f;
        }
        if (work.active == 1) {
            write_head<DIM, TURNED>(job, x, total, work.token, work.first_head + g, common.places + g * DIM, lane);
        } else {
            float *to = record(work.split);
#pragma unroll
            for (int i = 0; i < SHARE<DIM>; i++)
                if (i * LANES + lane < DIM) to[g * DIM + i * LANES + lane] = x[i];
            if (lane == 0) *reinterpret_cast<float2 *>(to + HEADS * DIM + g * 2) = float2{top, total};
        }
    }

    // The records of all ranges, in the last block. All threads read: four elements of a head each, from every
    // `shares`th range.
    __device__ __forceinline__ void merge_ranges() {
        const int items = work.heads * (DIM / 4), shares = min(max((int)blockDim.x / items, 1), warps);
        for (int i = threadIdx.x; i < items * shares; i += blockDim.x) {
            const int share = i / items, g = i % items / (DIM / 4), d = i % (DIM / 4) * 4;
            float4 mix = {};
            float top = EMPTY, total = 0.f;
            for (int first = share; first < work.active; first += AT_ONCE * shares) {
                float4 values[AT_ONCE];
                float2 stats[AT_ONCE];
                float better = top;
#pragma unroll
                for (int n = 0; n < AT_ONCE; n++) {
                    const float *from = record(min(first + n * shares, work.active - 1));
                    values[n] = __ldcg(reinterpret_cast<const float4 *>(from + g * DIM + d));
                    stats[n] = __ldcg(reinterpret_cast<const float2 *>(from + HEADS * DIM + g * 2));
                    if (first + n * shares >= work.active) stats[n].x = EMPTY;
                    better = fmaxf(better, stats[n].x);
                }
                const float keep = power_of_two(top - better);
                top = better, total *= keep;
                mix = float4{mix.x * keep, mix.y * keep, mix.z * keep, mix.w * keep};
#pragma unroll
                for (int n = 0; n < AT_ONCE; n++) {
                    const float weight = power_of_two(stats[n].x - top);
                    total += weight * stats[n].y;
                    mix.x += weight * values[n].x, mix.y += weight * values[n].y;
                    mix.z += weight * values[n].z, mix.w += weight * values[n].w;
                }
            }
            *reinterpret_cast<float4 *>(&part(share).mixed[g][d]) = mix;
            if (d == 0) part(share).best[g] = top, part(share).sum[g] = total;
        }
        __syncthreads();
        for (int g = warp; g < work.heads; g += warps) {
            float x[SHARE<DIM>] = {}, top = EMPTY, total = 0.f;
            for (int share = 0; share < shares; share++) top = fmaxf(top, part(share).best[g]);
            for (int share = 0; share < shares; share++) {
                const float weight = power_of_two(part(share).best[g] - top);
                total += weight * part(share).sum[g];
#pragma unroll
                for (int i = 0; i < SHARE<DIM>; i++)
                    if (i * LANES + lane < DIM) x[i] += weight * part(share).mixed[g][i * LANES + lane];
            }
            write_head<DIM, TURNED>(job, x, total, work.token, work.first_head + g, common.places + g * DIM, lane);
        }
    }
};

// The warps of a block have walked: what they have come to. goes_on: whether the block takes another range of the head.
template <class Attention> __device__ __forceinline__ void merge(Attention &block, bool &last, bool goes_on) {
    const ExlAttention &job = block.job;
    __syncthreads();
    block.store_newest();
    for (int g = block.warp; g < block.work.heads; g += block.warps) block.merge_warps(g);
    if (block.work.active == 1 || goes_on) return;
    __syncthreads();
    if (threadIdx.x == 0)
        last = arrive(static_cast<unsigned *>(job.tickets) + block.meeting(), block.work.done, block.work.active);
    __syncthreads();
    if (last) block.merge_ranges();
}

// ROWS: 1, or at most those of a step or of a wide pass. There few warps have more registers (168 instead of 128: 5 % less
// time with halves), which in the step keep the next product's block out: one row of an 8B took 2.14 ms instead of 1.53.
template <int KEY, int VALUE, int DIM, int ROWS>
__global__ void
__launch_bounds__((ROWS > EXL_MAX_ROWS ? Attention<KEY, VALUE, DIM, ROWS>::WARPS : MOST_WARPS) * LANES, DIM > 128 ? 1 : 2)
    attention(const __grid_constant__ ExlAttention job) {
    EXL_ALIGNED_SHARED_MEMORY(shared, 128);
    __shared__ bool last;
    let_next_start();
    using A = Attention<KEY, VALUE, DIM, ROWS>;
    if constexpr (ROWS == 1) {
        const WorkItem work = only_item(job, columns_of(job));
        A block(job, work, shared);
        if (work.split >= work.active) return wait_for_previous();  // it only keeps its place
        block.start();
        const Turns<DIM> turns(job, work.cached, block.lane);
        wait_for_previous();
        block.prepare(turns);
        __syncthreads();
        block.walk();
        merge(block, last, false);
    } else {
        const WorkItem first = WorkItems<ROWS>(job, columns_of(job)).first();
        if (first.left < 0) return wait_for_previous();
        WorkItem *const items = reinterpret_cast<typename A::Common *>(shared)->items;
        if (threadIdx.x % LANES == 0) items[0] = first;  // by every warp for itself
        __syncwarp();
        A block(job, items[0], shared);
        Turns<DIM> turns(job, first.cached, block.lane);
        block.start();
        wait_for_previous();
#pragma unroll 1
        while (true) {
            block.ask_first(block.work.cached);
            if (block.work.done == 1) block.prepare(turns);
            block.look_ahead();
            __syncthreads();
            block.walk();
            const WorkItem &item = items[&block.work == items];
            const bool more = block.work.left > 0;
            A next(job, more ? item : block.work, shared, A::BEHIND % A::RING);
            const bool goes_on = next.work.done > 1 && more;
            if (more) next.ask_first(next.work.cached, A::EARLY);
            merge(block, last, goes_on);
            if (!more) return;
            __syncthreads();
            new (&block) A(next);
            if (!goes_on) {
                turns = Turns<DIM>(job, block.work.cached, block.lane);
                block.bring_places();
            }
        }
    }
}

}  // namespace exl
