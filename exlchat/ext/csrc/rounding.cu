// The converter's steps that go row by row: every column is a thread of its own, which holds what it hands on.
#include "device.cuh"
#include "exlchat.h"
#include "launch.cuh"

namespace exl {

constexpr int ROUNDING_THREADS = 128;
// Rows that a thread holds in registers at once; those of before wait in local memory.
constexpr int ROUNDING_ROWS = 32;

inline __device__ float rounded(float code, float scale, int halved) {
    return halved ? __half2float(__float2half_rn(code * scale)) : code * scale;
}

// coupling [size][size] goes to shared memory; of it the part above the diagonal is read.
inline __device__ void load_coupling(float *shared, const void *coupling, int size) {
    for (int at = threadIdx.x; at < size * size; at += ROUNDING_THREADS)
        shared[at] = static_cast<const float *>(coupling)[at];
    __syncthreads();
}

__global__ void __launch_bounds__(ROUNDING_THREADS) hand_on(ExlHandOn job) {
    EXL_SHARED_MEMORY(memory);
    float *upper = reinterpret_cast<float *>(memory);
    load_coupling(upper, job.upper, job.size);
    const int64_t all = (int64_t)job.batch * job.candidates * job.columns;
    const int64_t at = (int64_t)blockIdx.x * ROUNDING_THREADS + threadIdx.x;
    if (at >= all) return;
    const int column = at % job.columns, number = at / ((int64_t)job.candidates * job.columns);
    const float *rows = static_cast<const float *>(job.rows) + (int64_t)number * job.columns + column;
    const int64_t stride = (int64_t)job.batch * job.columns;
    const float scale = static_cast<const float *>(job.scale)[at], half = static_cast<const float *>(job.half)[number];
    float errors[EXL_MOST_ROUNDED_ROWS], total = 0.f;
    for (int first = 0; first < job.size; first += ROUNDING_ROWS) {
        float wanted[ROUNDING_ROWS];
#pragma unroll
        for (int row = 0; row < ROUNDING_ROWS; row++) wanted[row] = rows[(first + row) * stride];
        for (int before = 0; before < first; before++) {
            const float error = errors[before], *u = upper + before * job.size + first;
#pragma unroll
            for (int row = 0; row < ROUNDING_ROWS; row++) wanted[row] -= u[row] * error;
        }
#pragma unroll
        for (int row = 0; row < ROUNDING_ROWS; row++) {
            const float *u = upper + (first + row) * job.size + first;
            const float code = fminf(fmaxf(rintf(wanted[row] / scale), -half), half - 1.f);
            const float error = (wanted[row] - rounded(code, scale, job.halved)) / u[row];
            errors[first + row] = error, total += error * error;
#pragma unroll
            for (int below = row + 1; below < ROUNDING_ROWS; below++) wanted[below] -= u[below] * error;
            if (job.codes) static_cast<float *>(job.codes)[(first + row) * all + at] = code;
            if (job.errors) static_cast<float *>(job.errors)[(first + row) * all + at] = error;
        }
    }
    static_cast<float *>(job.losses)[at] = total;
}

__global__ void __launch_bounds__(ROUNDING_THREADS) improve(ExlImprove job) {
    EXL_SHARED_MEMORY(memory);
    float *curve = reinterpret_cast<float *>(memory);
    load_coupling(curve, job.curve, job.size);
    const int column = blockIdx.x * ROUNDING_THREADS + threadIdx.x;
    if (column >= job.columns) return;
    float *codes = static_cast<float *>(job.codes) + column;
    const float *gradient = static_cast<const float *>(job.gradient) + column;
    const float scale = static_cast<const float *>(job.scale)[column];
    float changes[EXL_MOST_ROUNDED_ROWS];
    for (int first = 0; first < job.size; first += ROUNDING_ROWS) {
        float slope[ROUNDING_ROWS];
#pragma unroll
        for (int row = 0; row < ROUNDING_ROWS; row++) slope[row] = gradient[(int64_t)(first + row) * job.columns];
        for (int before = 0; before < first; before++) {
            const float change = changes[before], *c = curve + before * job.size + first;
#pragma unroll
            for (int row = 0; row < ROUNDING_ROWS; row++) slope[row] += c[row] * change;
        }
#pragma unroll
        for (int row = 0; row < ROUNDING_ROWS; row++) {
            const float *c = curve + (first + row) * job.size + first;
            float &held = codes[(int64_t)(first + row) * job.columns];
            const float old = held, best = rintf(old - slope[row] / (c[row] * scale));
            const float code = fminf(fmaxf(best, -job.half), job.half - 1.f);
            const float change = rounded(code, scale, 1) - rounded(old, scale, 1);
            changes[first + row] = change, held = code;
#pragma unroll
            for (int below = row + 1; below < ROUNDING_ROWS; below++) slope[below] += c[below] * change;
        }
    }
}

inline bool is_size(int size) { return size >= ROUNDING_ROWS && size <= EXL_MOST_ROUNDED_ROWS && size % ROUNDING_ROWS == 0; }

inline int blocks_for(int64_t threads) { return (int)((threads + ROUNDING_THREADS - 1) / ROUNDING_THREADS); }

}  // namespace exl

extern "C" int exl_hand_on(const ExlHandOn *job, int dependent, void *stream) {
    if (!job || !job->rows || !job->upper || !job->scale || !job->half || !job->losses) return EXL_BAD_ARGUMENT;
    if (!exl::is_size(job->size) || job->batch < 1 || job->candidates < 1 || job->columns < 1) return EXL_BAD_ARGUMENT;
    const int64_t all = (int64_t)job->batch * job->candidates * job->columns;
    return exl::launch(exl::hand_on, exl::blocks_for(all), exl::ROUNDING_THREADS, job->size * job->size * 4, dependent,
                       static_cast<cudaStream_t>(stream), *job);
}

extern "C" int exl_improve(const ExlImprove *job, int dependent, void *stream) {
    if (!job || !job->codes || !job->gradient || !job->curve || !job->scale) return EXL_BAD_ARGUMENT;
    if (!exl::is_size(job->size) || job->columns < 1) return EXL_BAD_ARGUMENT;
    return exl::launch(exl::improve, exl::blocks_for(job->columns), exl::ROUNDING_THREADS, job->size * job->size * 4,
                       dependent, static_cast<cudaStream_t>(stream), *job);
}
