// The pages of a cache read and written for a prompt.
//
// Four lanes share a turned vector: of each 32 elements, which is what has one scale, a lane has eight neighbours. So it
// reads and writes whole words, and keeps a quarter of the vector in registers, where most of the transform needs no
// other lane. The sums are those of hadamard() in the same order, so what is stored has the same bits.
#include <type_traits>
#include "kv_format.cuh"
#include "launch.cuh"

namespace exl {

constexpr int PAGES_THREADS = 256;
constexpr int SHARERS = 4;  // lanes of a turned vector
constexpr int EACH = 8;     // neighbours that a lane moves at once

// Lanes of a vector.
__host__ __device__ constexpr int sharers(int format, int dim) { return turned(format) ? SHARERS : dim / EACH; }

// Keys or values: where they are stored and where they are plain.
struct Side {
    uint8_t *rows;
    half *scales, *plain;
    int64_t head, token;  // steps of the plain vectors
};

__device__ __forceinline__ Side side_of(const ExlPages &job, bool values) {
    if (values)
        return {static_cast<uint8_t *>(job.values), static_cast<half *>(job.value_scales),
                static_cast<half *>(job.plain_values), job.values_head, job.values_token};
    return {static_cast<uint8_t *>(job.keys), static_cast<half *>(job.key_scales), static_cast<half *>(job.plain_keys),
            job.keys_head, job.keys_token};
}

// What a thread moves: EACH elements from `part * EACH` on, of vectors in the cache's row `row`.
struct Place {
    bool wanted;  // false behind the last token, whose row the others take as well
    int part;
    size_t row;
    int64_t plain;  // element at which the plain vector begins
};

template <int FORMAT, int DIM> __device__ __forceinline__ Place place_of(const ExlPages &job, const Side &side) {
    constexpr unsigned LANES_EACH = sharers(FORMAT, DIM);
    const unsigned index = blockIdx.x * PAGES_THREADS + threadIdx.x, head = blockIdx.y;
    const int wanted = index / LANES_EACH, t = min(wanted, job.tokens - 1), token = job.first + t;
    const int page = __ldg(static_cast<const int *>(job.page_table) + token / PAGE);
    const size_t row = (size_t)page * job.page_stride + (size_t)head * job.head_stride + token % PAGE;
    return {wanted < job.tokens, (int)(index % LANES_EACH), row, head * side.head + t * side.token};
}

template <int DIM> __device__ __forceinline__ void hadamard_shared(float (&x)[DIM / GROUP][EACH], int part) {
    constexpr int SIZE = power_of_two_in(DIM, 256), RUNS = DIM / GROUP;
    const auto cross = [](float &low, float &high) {
        const float sum = low + high;
        high = low - high, low = sum;
    };
#pragma unroll
    for (int r = 0; r < RUNS; r++) {
#pragma unroll
        for (int step = 1; step < EACH; step *= 2)
#pragma unroll
            for (int e = 0; e < EACH; e++)
                if ((e & step) == 0) cross(x[r][e], x[r][e + step]);
#pragma unroll
        for (int step = 1; step < SHARERS; step *= 2)
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                const float other = __shfl_xor_sync(~0u, x[r][e], step);
                x[r][e] = part & step ? other - x[r][e] : other + x[r][e];
            }
    }
#pragma unroll
    for (int step = 1; step < SIZE / GROUP; step *= 2)
#pragma unroll
        for (int r = 0; r < RUNS; r++)
#pragma unroll
            for (int e = 0; e < EACH; e++)
                if ((r & step) == 0) cross(x[r][e], x[r + step][e]);
    const float norm = rsqrtf(SIZE);
#pragma unroll
    for (int r = 0; r < RUNS; r++)
#pragma unroll
        for (int e = 0; e < EACH; e++) x[r][e] *= norm;
}

// EACH stored elements, which are 4 or 8 bytes.
template <int FORMAT> using Stored = std::conditional_t<width_of(FORMAT) == 4, uint, uint2>;

template <int FORMAT> __device__ __forceinline__ void decode(float (&x)[EACH], Stored<FORMAT> stored, half scale) {
    constexpr int PAIRS = 16 / width_of(FORMAT), WORDS = sizeof(stored) / 4;
#pragma unroll
    for (int i = 0; i < EACH / 2; i++) {
        half2 v = pair<FORMAT>(reinterpret_cast<const uint32_t *>(&stored)[i / PAIRS % WORDS], i % PAIRS);
        if constexpr (scaled(FORMAT)) v = __hmul2(v, __half2half2(scale));
        const float2 two = __half22float2(v);
        if (PAIRS == 4) x[i] = two.x, x[i + 4] = two.y;
        else x[2 * i] = two.x, x[2 * i + 1] = two.y;
    }
}

// The codes of one lane's share of a group, and the scale of the whole.
template <int FORMAT> __device__ __forceinline__ Stored<FORMAT> encode(const float (&x)[EACH], half &scale) {
    Stored<FORMAT> stored = {};
    uint32_t *words = reinterpret_cast<uint32_t *>(&stored);
    if constexpr (scaled(FORMAT)) {
        constexpr int BITS = width_of(FORMAT), MIDDLE = 1 << (BITS - 1);
        float high = in_half_range(x[0]), low = -high;
#pragma unroll
        for (int e = 1; e < EACH; e++) high = fmaxf(high, in_half_range(x[e])), low = fmaxf(low, -in_half_range(x[e]));
#pragma unroll
        for (int lanes = 1; lanes < SHARERS; lanes *= 2) {
            high = fmaxf(high, __shfl_xor_sync(~0u, high, lanes));
            low = fmaxf(low, __shfl_xor_sync(~0u, low, lanes));
        }
        const Steps steps = steps_of(high, low, MIDDLE);
        scale = steps.scale;
#pragma unroll
        for (int e = 0; e < EACH; e++)
            words[e * BITS / 32] |= (uint32_t)code_of(in_half_range(x[e]), steps.inverse, MIDDLE) << e * BITS % 32;
    } else {
#pragma unroll
        for (int e = 0; e < EACH; e += 2) words[e / 4] |= float8_of(x[e], x[e + 1]) << e % 4 * 8;
    }
    return stored;
}

template <int FORMAT, int DIM> __device__ __forceinline__ void read_vectors(const ExlPages &job, const Side &side) {
    const Place at = place_of<FORMAT, DIM>(job, side);
    uint4 *plain = reinterpret_cast<uint4 *>(side.plain + at.plain) + at.part;
    if constexpr (!turned(FORMAT)) {
        const uint4 words = reinterpret_cast<const uint4 *>(side.rows + at.row * (DIM * 2))[at.part];
        if (at.wanted) *plain = words;
    } else {
        constexpr int RUNS = DIM / GROUP;
        const auto *row = reinterpret_cast<const Stored<FORMAT> *>(side.rows + at.row * (DIM * width_of(FORMAT) / 8));
        float x[RUNS][EACH];
        Stored<FORMAT> stored[RUNS];
        half scale[RUNS] = {};
#pragma unroll
        for (int r = 0; r < RUNS; r++) {
            stored[r] = row[r * SHARERS + at.part];
            if constexpr (scaled(FORMAT)) scale[r] = side.scales[at.row * RUNS + r];
        }
#pragma unroll
        for (int r = 0; r < RUNS; r++) decode<FORMAT>(x[r], stored[r], scale[r]);
        hadamard_shared<DIM>(x, at.part);
#pragma unroll
        for (int r = 0; r < RUNS; r++) {
            half2 out[EACH / 2];
#pragma unroll
            for (int i = 0; i < EACH / 2; i++) out[i] = __floats2half2_rn(x[r][2 * i], x[r][2 * i + 1]);
            if (at.wanted) plain[r * SHARERS] = reinterpret_cast<const uint4 &>(out);
        }
    }
}

template <int FORMAT, int DIM> __device__ __forceinline__ void write_vectors(const ExlPages &job, const Side &side) {
    const Place at = place_of<FORMAT, DIM>(job, side);
    const uint4 *plain = reinterpret_cast<const uint4 *>(side.plain + at.plain) + at.part;
    if constexpr (!turned(FORMAT)) {
        if (at.wanted) reinterpret_cast<uint4 *>(side.rows + at.row * (DIM * 2))[at.part] = *plain;
    } else {
        constexpr int RUNS = DIM / GROUP;
        auto *row = reinterpret_cast<Stored<FORMAT> *>(side.rows + at.row * (DIM * width_of(FORMAT) / 8));
        float x[RUNS][EACH];
#pragma unroll
        for (int r = 0; r < RUNS; r++) {
            const uint4 words = plain[r * SHARERS];
#pragma unroll
            for (int i = 0; i < EACH / 2; i++) {
                const float2 two = __half22float2(reinterpret_cast<const half2 *>(&words)[i]);
                x[r][2 * i] = two.x, x[r][2 * i + 1] = two.y;
            }
        }
        hadamard_shared<DIM>(x, at.part);
#pragma unroll
        for (int r = 0; r < RUNS; r++) {
            half scale;
            const Stored<FORMAT> stored = encode<FORMAT>(x[r], scale);
            if (at.wanted) row[r * SHARERS + at.part] = stored;
            if constexpr (scaled(FORMAT))
                if (at.wanted && at.part == 0) side.scales[at.row * RUNS + r] = scale;
        }
    }
}

template <int FORMAT, int DIM, bool WRITES>
__device__ __forceinline__ void move_vectors(const ExlPages &job, const Side &side) {
    if constexpr (WRITES) write_vectors<FORMAT, DIM>(job, side);
    else read_vectors<FORMAT, DIM>(job, side);
}

// Grid: vectors of a head, heads, keys and values.
template <int KEY, int VALUE, int DIM, bool WRITES>
__global__ void __launch_bounds__(PAGES_THREADS) move_pages(const __grid_constant__ ExlPages job) {
    const bool values = blockIdx.z;
    const Side side = side_of(job, values);
    if constexpr (KEY == VALUE) move_vectors<KEY, DIM, WRITES>(job, side);
    else if (values) move_vectors<VALUE, DIM, WRITES>(job, side);
    else move_vectors<KEY, DIM, WRITES>(job, side);
}

template <int KEY, int VALUE, int DIM, bool WRITES> int launch_pages(const ExlPages &job, cudaStream_t stream) {
    static_assert(sharers(KEY, DIM) == sharers(VALUE, DIM), "one grid for both");
    const int64_t blocks = ((int64_t)job.tokens * sharers(KEY, DIM) + PAGES_THREADS - 1) / PAGES_THREADS;
    return launch(move_pages<KEY, VALUE, DIM, WRITES>, dim3((unsigned)blocks, job.kv_heads, 2), PAGES_THREADS, 0, 0,
                  stream, job);
}

template <int KEY, int VALUE, bool WRITES> int launch_kind(const ExlPages &job, cudaStream_t stream) {
    switch (job.head_dim) {
        case 64: return launch_pages<KEY, VALUE, 64, WRITES>(job, stream);
        case 80:
            if constexpr (!turned(KEY)) return launch_pages<KEY, VALUE, 80, WRITES>(job, stream);
            else return EXL_BAD_ARGUMENT;
        case 96: return launch_pages<KEY, VALUE, 96, WRITES>(job, stream);
        case 128: return launch_pages<KEY, VALUE, 128, WRITES>(job, stream);
        case 256: return launch_pages<KEY, VALUE, 256, WRITES>(job, stream);
        default: return EXL_BAD_ARGUMENT;
    }
}

static bool pages_ok(const ExlPages &job) {
    const auto whole = [](const void *pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; };
    const bool pointers = job.page_table && job.keys && job.values && job.plain_keys && job.plain_values &&
                          whole(job.plain_keys) && whole(job.plain_values) &&
                          (!scaled(job.key_format) || (job.key_scales && job.value_scales));
    return pointers && job.keys_head % EACH == 0 && job.keys_token % EACH == 0 && job.values_head % EACH == 0 &&
           job.values_token % EACH == 0 && job.kv_heads > 0 && job.kv_heads < 65536 && job.first >= 0 &&
           job.tokens > 0 && job.tokens < 1 << 26 && job.page_stride > 0 && job.page_stride % PAGE == 0 &&
           job.head_stride > 0 && job.head_stride % PAGE == 0;
}

template <bool WRITES> int run_pages(const ExlPages *job, cudaStream_t stream) {
    if (!job || !pages_ok(*job)) return EXL_BAD_ARGUMENT;
    constexpr int EIGHT = EXL_CACHE_CODES8, FOUR = EXL_CACHE_CODES4;
    switch (kind_of(job->key_format, job->value_format)) {
        case KIND_FP16: return launch_kind<EXL_CACHE_HALF, EXL_CACHE_HALF, WRITES>(*job, stream);
        case KIND_FP8: return launch_kind<EXL_CACHE_FLOAT8, EXL_CACHE_FLOAT8, WRITES>(*job, stream);
        case KIND_Q8: return launch_kind<EIGHT, EIGHT, WRITES>(*job, stream);
        case KIND_Q6: return launch_kind<EIGHT, FOUR, WRITES>(*job, stream);
        case KIND_Q4: return launch_kind<FOUR, FOUR, WRITES>(*job, stream);
        default: return EXL_BAD_ARGUMENT;
    }
}

}  // namespace exl

extern "C" int exl_read_pages(const ExlPages *job, void *stream) {
    return exl::run_pages<false>(job, static_cast<cudaStream_t>(stream));
}

extern "C" int exl_write_pages(const ExlPages *job, void *stream) {
    return exl::run_pages<true>(job, static_cast<cudaStream_t>(stream));
}
