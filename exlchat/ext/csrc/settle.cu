// Between two products, a block for each row: what attention, MLP or experts give joins the residual, and the products
// behind get it normed, in halves, in the order in which they are stored.
//
// They are few rows, so everything is waiting for memory: the constants are asked for before the previous kernel ends, and
// what it has written at once when it has. Half the threads of a multiprocessor with half its registers, so that a block
// of the product before and one of the product behind fit beside it.
#include "device.cuh"
#include "exlchat.h"
#include "launch.cuh"

namespace exl {

constexpr int MOST_WIDTH = EXL_SETTLE_WIDTH, MOST_SLOTS = EXL_SETTLE_SLOTS;

struct __align__(8) Halves4 {
    half2 pairs[2];
};

__device__ __forceinline__ float4 floats_of(const Halves4 &h) {
    const float2 low = __half22float2(h.pairs[0]), high = __half22float2(h.pairs[1]);
    return {low.x, low.y, high.x, high.y};
}
__device__ __forceinline__ float4 floats_of(const float4 &v) { return v; }
__device__ __forceinline__ Halves4 halves_of(const float4 &v) {
    return {{__floats2half2_rn(v.x, v.y), __floats2half2_rn(v.z, v.w)}};
}

__device__ __forceinline__ float4 operator+(const float4 &a, const float4 &b) {
    return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}
__device__ __forceinline__ float4 operator*(const float4 &a, const float4 &b) {
    return {a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w};
}
__device__ __forceinline__ float4 operator*(float a, const float4 &b) { return {a * b.x, a * b.y, a * b.z, a * b.w}; }
__device__ __forceinline__ float sum_of(const float4 &v) { return (v.x + v.y) + (v.z + v.w); }
// Rounded step by step, so that no compiler makes another number of it for one row than for several.
__device__ __forceinline__ float squares_of(const float4 &v) {
    return __fmaf_rn(v.x, v.x, __fmul_rn(v.y, v.y)) + __fmaf_rn(v.z, v.z, __fmul_rn(v.w, v.w));
}
__device__ __forceinline__ float4 fma4(const float4 &a, const float4 &b, const float4 &c) {
    return {__fmaf_rn(a.x, b.x, c.x), __fmaf_rn(a.y, b.y, c.y), __fmaf_rn(a.z, b.z, c.z), __fmaf_rn(a.w, b.w, c.w)};
}
__device__ __forceinline__ float4 fma4(float a, const float4 &b, const float4 &c) { return fma4(float4{a, a, a, a}, b, c); }

template <int THREADS> __device__ __forceinline__ float block_sum(float v, float (&parts)[THREADS / LANES]) {
    const int lane = threadIdx.x % LANES;
    v = warp_sum(v);
    if (lane == 0) parts[threadIdx.x / LANES] = v;
    __syncthreads();
    return warp_sum(lane < THREADS / LANES ? parts[lane] : 0.f);
}

// A row over the threads of the block: four neighbours each, then four behind those of all threads, and so on. Where there
// is only ONE, its number is known and takes no registers: with it at run time each of two a layer took 0.3 us longer.
template <int THREADS, int CHUNKS, bool ONE> struct Settle {
    // There are no registers for everything that is constant: a bias, the scatters of further copies, and in wide rows
    // what comes last, wait in L2.
    static constexpr bool HELD = CHUNKS <= 2;
    static constexpr int AT_ONCE = CHUNKS == 1 ? 4 : (CHUNKS == 2 ? 2 : 1);  // slots whose rows are asked for together

    const ExlSettle &job;
    float4 hidden[CHUNKS], sum[CHUNKS];
    Halves4 post[CHUNKS], weight[CHUNKS];
    ushort4 places[CHUNKS];

    __device__ __forceinline__ Settle(const ExlSettle &job) : job(job) {}

    __device__ __forceinline__ static int number() { return ONE ? 0 : blockIdx.x; }

    __device__ __forceinline__ float4 *stream() const {
        return reinterpret_cast<float4 *>(job.hidden + (size_t)number() * job.width);
    }

    static __device__ __forceinline__ int at(int chunk) { return (chunk * THREADS + threadIdx.x) * 4; }
    __device__ __forceinline__ bool inside(int chunk) const { return at(chunk) < job.width; }

    template <class T> __device__ __forceinline__ T constant(const void *from, int chunk) const {
        T value = {};
        if (from && inside(chunk)) {
            const uint2 words = __ldg(static_cast<const uint2 *>(from) + at(chunk) / 4);
            value = reinterpret_cast<const T &>(words);
        }
        return value;
    }
    __device__ __forceinline__ void ask_for(const void *from, int chunk) const {
        if (from && inside(chunk))
            asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const uint2 *>(from) + at(chunk) / 4));
    }
    __device__ __forceinline__ void ask_constants() {
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            post[c] = constant<Halves4>(job.post_norm, c);
            if constexpr (HELD) {
                weight[c] = constant<Halves4>(job.norm, c);
                places[c] = constant<ushort4>(job.copies[0].scatter, c);
            } else {
                ask_for(job.norm, c), ask_for(job.copies[0].scatter, c);
            }
            ask_for(job.norm_bias, c);
#pragma unroll
            for (int i = 1; i < EXL_MAX_MATRICES; i++) ask_for(job.copies[i].scatter, c);
        }
    }

    // The row's slots of a source; lane n holds the factor of slot n.
    template <class T> __device__ __forceinline__ void add_slots(const void *slots, int count, float factors) {
        const T *mine = static_cast<const T *>(slots) + (size_t)number() * count * job.width / 4;
#pragma unroll 1
        for (int first = 0; first < count; first += AT_ONCE) {
            T row[AT_ONCE][CHUNKS];
#pragma unroll
            for (int n = 0; n < AT_ONCE; n++)
#pragma unroll
                for (int c = 0; c < CHUNKS; c++) {
                    row[n][c] = T{};
                    if (first + n < count && inside(c))
                        row[n][c] = produced(mine + ((first + n) * job.width + at(c)) / 4);
                }
#pragma unroll
            for (int n = 0; n < AT_ONCE; n++) {
                const float factor = __shfl_sync(~0u, factors, first + n);
#pragma unroll
                for (int c = 0; c < CHUNKS; c++)
                    if (first + n < count) sum[c] = fma4(factor, floats_of(row[n][c]), sum[c]);
            }
        }
    }
    __device__ __forceinline__ void add_source(const void *slots, int floats, int count, float factors) {
        if (floats) add_slots<float4>(slots, count, factors);
        else add_slots<Halves4>(slots, count, factors);
    }
    // What has been produced: the residual, and the sum of what joins it.
    __device__ __forceinline__ void read() {
        const int lane = threadIdx.x % LANES;
        const float slot = job.weights && lane < job.slots ? produced(job.weights + number() * job.slots + lane) : 1.f;
        const float gate = job.gate ? produced(job.gate + number() * job.gate_stride) : 0.f;
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            sum[c] = hidden[c] = {0.f, 0.f, 0.f, 0.f};
            if (inside(c)) hidden[c] = produced(stream() + at(c) / 4);
        }
        if (job.y) add_source(job.y, job.y_floats, job.slots, slot);
        if (job.added) add_source(job.added, job.added_floats, 1, job.gate ? __fdividef(1.f, 1.f + __expf(-gate)) : 1.f);
    }

    __device__ __forceinline__ void join(float (&parts)[THREADS / LANES]) {
        if (!job.y && !job.added) return;
        float factor = job.multiplier;
        if (job.post_norm) {
            float squares = 0.f;
#pragma unroll
            for (int c = 0; c < CHUNKS; c++) squares += squares_of(sum[c]);
            factor *= rsqrtf(block_sum<THREADS>(squares, parts) / job.width + job.post_eps);
#pragma unroll
            for (int c = 0; c < CHUNKS; c++) sum[c] = sum[c] * floats_of(post[c]);
        }
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            hidden[c] = fma4(factor, sum[c], hidden[c]);
            if (inside(c)) stream()[at(c) / 4] = hidden[c];
        }
    }

    __device__ __forceinline__ void normalize(float (&parts)[THREADS / LANES], float (&more)[THREADS / LANES]) {
        if (job.norm_kind == EXL_NORM_NONE) return;
        Halves4 bias[CHUNKS];
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            if constexpr (!HELD) weight[c] = constant<Halves4>(job.norm, c);
            bias[c] = constant<Halves4>(job.norm_bias, c);
        }
        if (job.norm_kind == EXL_NORM_LAYER) {
            float all = 0.f;
#pragma unroll
            for (int c = 0; c < CHUNKS; c++) all += sum_of(hidden[c]);
            const float mean = block_sum<THREADS>(all, more) / job.width;
#pragma unroll
            for (int c = 0; c < CHUNKS; c++)
                if (inside(c)) hidden[c] = hidden[c] + float4{-mean, -mean, -mean, -mean};
        }
        float squares = 0.f;
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) squares += squares_of(hidden[c]);
        const float scale = rsqrtf(block_sum<THREADS>(squares, parts) / job.width + job.eps);
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) hidden[c] = fma4(scale * hidden[c], floats_of(weight[c]), floats_of(bias[c]));
    }

    __device__ __forceinline__ void write() const {
#pragma unroll
        for (int i = 0; i < EXL_MAX_MATRICES; i++) {
            const ExlSettleCopy &copy = job.copies[i];
            if (!copy.x) continue;
            half *x = static_cast<half *>(copy.x) + number() * copy.stored;
#pragma unroll
            for (int c = 0; c < CHUNKS; c++) {
                if (!inside(c)) continue;
                const Halves4 h = halves_of(hidden[c]);
                if (!copy.scatter) {
                    reinterpret_cast<Halves4 *>(x)[at(c) / 4] = h;
                    continue;
                }
                ushort4 to;
                if (HELD && i == 0) to = places[c];
                else to = constant<ushort4>(copy.scatter, c);
                x[to.x] = __low2half(h.pairs[0]), x[to.y] = __high2half(h.pairs[0]);
                x[to.z] = __low2half(h.pairs[1]), x[to.w] = __high2half(h.pairs[1]);
            }
        }
    }
};

template <int THREADS, int CHUNKS, bool ONE>
__global__ void __launch_bounds__(THREADS, 1024 / THREADS) settle(const __grid_constant__ ExlSettle job) {
    __shared__ float parts[3][THREADS / LANES];
    let_next_start();
    if (blockIdx.x >= (ONE ? 1 : job.rows)) {  // it only keeps its place
        wait_for_previous();
        return;
    }
    Settle<THREADS, CHUNKS, ONE> row(job);
    row.ask_constants();
    wait_for_previous();
    row.read();
    row.join(parts[0]);
    row.normalize(parts[1], parts[2]);
    row.write();
}

static bool whole(const void *p, int bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; }

static bool settle_ok(const ExlSettle &job) {
    if (!job.hidden || !whole(job.hidden, 16) || job.width < 16 || job.width % 16 || job.width > MOST_WIDTH) return false;
    if (job.rows < 1 || job.rows > EXL_MAX_ROWS || job.gate_stride < 0) return false;
    if (job.y && (job.slots < 1 || job.slots > MOST_SLOTS)) return false;
    if (!whole(job.y, job.y_floats ? 16 : 8) || !whole(job.added, job.added_floats ? 16 : 8)) return false;
    if (job.norm_kind < EXL_NORM_NONE || job.norm_kind > EXL_NORM_LAYER) return false;
    if (job.norm_kind != EXL_NORM_NONE && !job.norm) return false;
    if (!whole(job.post_norm, 8) || !whole(job.norm, 8) || !whole(job.norm_bias, 8)) return false;
    for (const ExlSettleCopy &copy : job.copies)
        if (copy.x && (copy.stored < job.width || (!copy.scatter && copy.stored % 4) ||
                       !whole(copy.scatter ? static_cast<const void *>(copy.scatter) : copy.x, 8)))
            return false;
    return true;
}

// Where the next kernel's blocks start early, a multiprocessor left empty would get two of them, and that product would
// take twice as long; so a block goes to each.
template <int THREADS, int CHUNKS> int launch_settle(const ExlSettle &job, int dependent, cudaStream_t stream) {
    int blocks = job.rows;
    if (const cudaError_t error = places_to_keep(dependent, blocks)) return error;
    return job.rows == 1 ? launch(settle<THREADS, CHUNKS, true>, blocks, THREADS, 0, dependent, stream, job)
                         : launch(settle<THREADS, CHUNKS, false>, blocks, THREADS, 0, dependent, stream, job);
}

}  // namespace exl

extern "C" int exl_settle(const ExlSettle *job, int dependent, void *stream) {
    if (!job || !exl::settle_ok(*job)) return EXL_BAD_ARGUMENT;
    const cudaStream_t s = static_cast<cudaStream_t>(stream);
    switch ((job->width + 2047) / 2048) {
        case 1: return exl::launch_settle<512, 1>(*job, dependent, s);
        case 2: return exl::launch_settle<512, 2>(*job, dependent, s);
        case 3: return exl::launch_settle<512, 3>(*job, dependent, s);
        case 4: return exl::launch_settle<512, 4>(*job, dependent, s);
        case 5:
        case 6: return exl::launch_settle<1024, 3>(*job, dependent, s);
        default: return exl::launch_settle<1024, 4>(*job, dependent, s);
    }
}
