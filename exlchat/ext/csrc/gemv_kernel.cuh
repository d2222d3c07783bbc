// The kernel of gemv.cuh and its launch; one .cu a number of rows, because each takes half a minute to compile.
#pragma once
#include "gemv.cuh"
#include "launch.cuh"

namespace exl {

struct Smem {
    half *x;
    float *sums;
    half *maxima, *natural;
    float *partial;
};

__device__ __forceinline__ Smem smem_of(const GemvShape &shape) {
    extern __shared__ __align__(16) uint8_t base[];
    return {reinterpret_cast<half *>(base), reinterpret_cast<float *>(base + shape.sums),
            reinterpret_cast<half *>(base + shape.maxima), reinterpret_cast<half *>(base + shape.natural),
            reinterpret_cast<float *>(base + shape.partial)};
}

// What can be fetched before the previous kernel ends: the norm's weights wait where x will stand.
__device__ __forceinline__ void fetch_norm(const ExlGemv &job, int features, half *out) {
    if (job.x_kind != EXL_X_NORM) return;
    for (int i = threadIdx.x; i < features / 4; i += THREADS)
        reinterpret_cast<uint2 *>(out)[i] = __ldg(static_cast<const uint2 *>(job.norm) + i);
}

// One row of x in the order of the features: as it is, or divided by its root mean square.
__device__ __forceinline__ void natural_order(const ExlGemv &job, int features, half *out) {
    const int t = threadIdx.x;
    if (job.x_kind == EXL_X_HALF) {
        const uint4 *x = static_cast<const uint4 *>(job.x);
        for (int i = t; i < features / 8; i += THREADS) reinterpret_cast<uint4 *>(out)[i] = produced(x + i);
        return;
    }
    constexpr int KEPT = 4;  // of 1024 features each; the others are read again
    __shared__ float squares[WARPS];
    const float4 *x = static_cast<const float4 *>(job.x);
    float4 kept[KEPT];
    float sum = 0.f;
#pragma unroll
    for (int k = 0; k < KEPT; k++) {
        const int i = t + k * THREADS;
        kept[k] = i < features / 4 ? produced(x + i) : float4{0.f, 0.f, 0.f, 0.f};
        sum += kept[k].x * kept[k].x + kept[k].y * kept[k].y + kept[k].z * kept[k].z + kept[k].w * kept[k].w;
    }
    for (int i = t + KEPT * THREADS; i < features / 4; i += THREADS) {
        const float4 v = produced(x + i);
        sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    sum = warp_sum(sum);
    if (t % LANES == 0) squares[t / LANES] = sum;
    __syncthreads();
    sum = 0.f;
#pragma unroll
    for (int i = 0; i < WARPS; i++) sum += squares[i];
    const float scale = rsqrtf(sum / features + job.eps);
    auto put = [&](int i, const float4 &v) {
        uint2 &n = reinterpret_cast<uint2 *>(out)[i];
        const float2 n0 = __half22float2(reinterpret_cast<const half2 &>(n.x));
        const float2 n1 = __half22float2(reinterpret_cast<const half2 &>(n.y));
        const half2 low = __floats2half2_rn(v.x * scale * n0.x, v.y * scale * n0.y);
        const half2 high = __floats2half2_rn(v.z * scale * n1.x, v.w * scale * n1.y);
        n = {reinterpret_cast<const uint32_t &>(low), reinterpret_cast<const uint32_t &>(high)};
    };
#pragma unroll
    for (int k = 0; k < KEPT; k++)
        if (t + k * THREADS < features / 4) put(t + k * THREADS, kept[k]);
    for (int i = t + KEPT * THREADS; i < features / 4; i += THREADS) put(i, produced(x + i));
}

// Stored order in shared memory, and the sums over 32 rows: 8 rows of W a thread and step. The first steps' features
// were asked for before the previous kernel ended.
constexpr int EARLY = 2;

template <int ROWS>
__device__ __forceinline__ void gather_x(const ExlGemv &job, const ExlMatrix &m, const GemvShape &shape, const Smem &s,
                                         int first, int last, const uint4 (&early)[EARLY]) {
    const int octets = (last - first) * 16, sums_stride = (last - first) * 4;
    auto octet_of = [&](int i, const uint4 &from) {
        const int row = ROWS == 1 ? 0 : i / octets, octet = ROWS == 1 ? i : i % octets;
        const uint16_t *feature = reinterpret_cast<const uint16_t *>(&from);
        const half *source = ROWS == 1 ? s.natural : static_cast<const half *>(job.x) +
                                                         (size_t)min(row, job.rows - 1) * m.features;
        __align__(16) half v[8];
        float sum = 0.f;
#pragma unroll
        for (int k = 0; k < 8; k++) {
            half value = __float2half(0.f);
            if (feature[k] != NO_FEATURE) value = ROWS == 1 ? source[feature[k]] : produced(source + feature[k]);
            v[k] = value;
            sum += __half2float(value);
        }
        *reinterpret_cast<uint4 *>(s.x + row * shape.x_stride + octet * 8) = *reinterpret_cast<uint4 *>(v);
        // The last round may leave half a warp idle, but never part of four neighbours.
        const uint32_t four = 15u << (threadIdx.x & 28);
        sum += __shfl_xor_sync(four, sum, 1);
        sum += __shfl_xor_sync(four, sum, 2);
        if (octet % 4 == 0) s.sums[row * sums_stride + octet / 4] = sum;
    };
    const uint4 *gather = reinterpret_cast<const uint4 *>(m.gather) + first * 16;
    int i = threadIdx.x;
    if (ROWS == 1) {
#pragma unroll
        for (int k = 0; k < EARLY; k++, i += THREADS)
            if (i < octets) octet_of(i, early[k]);
    }
    for (; i < octets * ROWS; i += THREADS) octet_of(i, __ldg(gather + (ROWS == 1 ? i : i % octets)));
}

// Pieces that a warp has asked for, and their scales.
struct Flight {
    uint32_t words[MAX_WORDS], scales[MAX_STAGES];
};

// Asks for the first pieces, at most `left` of them.
template <int BITS, int EVERY>
__device__ __forceinline__ void ask(Requests<BITS, EVERY> &requests, Flight &flight, int left, int lane) {
#pragma unroll
    for (int i = 0; i < Piece<BITS>::STAGES; i++)
        if (i < left) requests.next(flight.words + i * Piece<BITS>::REGISTERS, flight.scales[i], lane);
}

// The computing side of a warp's stream.
template <int BITS, int EVERY, int ROWS> struct Sums {
    static constexpr int SUBS = PIECE_ROWS / EVERY;
    const half *x0, *x, *maxima0, *maxima;
    const float *sums0, *sums;
    float *slot;
    float sum[4] = {0.f, 0.f, 0.f, 0.f};
    int left, pieces, sums_stride, slot_stride, lane;

    __device__ __forceinline__ Sums(const ExlMatrix &m, const GemvShape &shape, const Smem &s, const Run &run, int first,
                                    int last) {
        lane = threadIdx.x % LANES;
        const int warp = threadIdx.x / LANES, row = ROWS == 1 ? 0 : lane >> 2, offset = run.piece - first;
        const int in_section = run.piece - m.sections[run.section].tile / 2;
        sums_stride = (last - first) * 4;
        x = x0 = s.x + row * shape.x_stride + offset * PIECE_ROWS + (lane & 3) * 8;
        sums = sums0 = s.sums + (ROWS == 1 ? 0 : (lane & 3) * 2 * sums_stride) + offset * 4;
        maxima = maxima0 = s.maxima + m.sections[run.section].scale + in_section * SUBS;
        slot = s.partial + (warp + run.section) * 16 * ROWS;
        slot_stride = shape.slots * 16 * ROWS;
        left = pieces = run.pieces;
    }
    __device__ __forceinline__ void add(const uint32_t *words, uint32_t scales) {
        piece<BITS, EVERY, ROWS>(sum, words, scales, x, sums, sums_stride, maxima);
        x += PIECE_ROWS, sums += 4, maxima += SUBS;
        if (--left == 0) {
            store_partial<ROWS>(slot, sum, lane);
            slot += slot_stride;
            left = pieces, x = x0, sums = sums0, maxima = maxima0;
            sum[0] = sum[1] = sum[2] = sum[3] = 0.f;
        }
    }
};

// A warp's stream of one run through all column tiles. `asked`: its first pieces are on their way already.
template <int BITS, int EVERY, int ROWS>
__device__ __forceinline__ void stream(const ExlMatrix &m, const GemvShape &shape, const Smem &s, const Run &run,
                                       int column, int columns, int first, int last, bool asked, Flight &flight) {
    constexpr int STAGES = Piece<BITS>::STAGES;
    const int lane = threadIdx.x % LANES, total = run.pieces * columns;
    Requests<BITS, EVERY> requests(m, run, column, lane);
    if (asked) requests.skip(min(STAGES, total));
    else ask(requests, flight, total, lane);
    Sums<BITS, EVERY, ROWS> sums(m, shape, s, run, first, last);
    for (int base = 0; base < total; base += STAGES) {
#pragma unroll
        for (int i = 0; i < STAGES; i++) {
            if (base + i >= total) break;
            uint32_t *words = flight.words + i * Piece<BITS>::REGISTERS;
            sums.add(words, flight.scales[i]);
            if (base + i + STAGES < total) requests.next(words, flight.scales[i], lane);
        }
    }
}

// Calls F<bits, rows per scale> for a section.
#define EXL_WIDTH(BITS, F)                                       \
    case BITS:                                                   \
        if (section.rows_per_scale == 128) F(BITS, 128);         \
        else if (section.rows_per_scale == 64) F(BITS, 64);      \
        else F(BITS, 32);                                        \
        break;
#define EXL_FOR_SECTION(F)                                                                                \
    switch (section.bits) {                                                                               \
        EXL_WIDTH(8, F) EXL_WIDTH(6, F) EXL_WIDTH(5, F) EXL_WIDTH(4, F) EXL_WIDTH(3, F) EXL_WIDTH(2, F)   \
    }

template <int BITS, int EVERY>
__device__ __forceinline__ void ask_run(const ExlMatrix &m, const Run &run, int column, int columns, Flight &flight) {
    const int lane = threadIdx.x % LANES;
    Requests<BITS, EVERY> requests(m, run, column, lane);
    ask(requests, flight, run.pieces * columns, lane);
}

__device__ __forceinline__ void ask_any(const ExlMatrix &m, const Run &run, int column, int columns, Flight &flight) {
    const ExlSection &section = m.sections[run.section];
#define EXL_ASK(BITS, EVERY) ask_run<BITS, EVERY>(m, run, column, columns, flight)
    EXL_FOR_SECTION(EXL_ASK)
#undef EXL_ASK
}

template <int ROWS>
__device__ __forceinline__ void stream_any(const ExlMatrix &m, const GemvShape &shape, const Smem &s, const Run &run,
                                           int column, int columns, int first, int last, bool asked, Flight &flight) {
    const ExlSection &section = m.sections[run.section];
#define EXL_STREAM(BITS, EVERY) stream<BITS, EVERY, ROWS>(m, shape, s, run, column, columns, first, last, asked, flight)
    EXL_FOR_SECTION(EXL_STREAM)
#undef EXL_STREAM
}
#undef EXL_FOR_SECTION
#undef EXL_WIDTH

// Column tiles of one matrix that a block works on.
struct Part {
    int matrix, column, columns;
};

template <int ROWS>
__device__ __forceinline__ void write_result(const ExlGemv &job, const GemvShape &shape, const Smem &s, const Part &part,
                                             int second_partial) {
    const ExlMatrix &m = job.matrix[part.matrix];
    int before = 0, stride = 0;
    for (int i = 0; i < job.matrices; i++) {
        if (i < part.matrix) before += job.matrix[i].column_tiles * 16;
        stride += job.matrix[i].column_tiles * 16;
    }
    auto total = [&](const ExlMatrix &matrix, int offset, int tile, int column, int row) {
        const float *p = s.partial + offset + ((size_t)tile * shape.slots * 16 + column) * ROWS + row;
        float sum = 0.f;
        for (int i = 0; i < WARPS + matrix.section_count - 1; i++) sum += p[i * 16 * ROWS];
        if (matrix.bias) sum += __half2float(static_cast<const half *>(matrix.bias)[(part.column + tile) * 16 + column]);
        return sum;
    };
    for (int i = threadIdx.x; i < part.columns * 16 * ROWS; i += THREADS) {
        const int column = i % 16, tile = i / 16 % part.columns, row = i / 16 / part.columns;
        if (row >= job.rows) break;
        const float sum = total(m, 0, tile, column, row);
        const int at = (part.column + tile) * 16 + column;
        if (job.y_kind == EXL_Y_GATED) {
            const float up = total(job.matrix[1], second_partial, tile, column, row);
            static_cast<half *>(job.y)[(size_t)row * (stride / 2) + at] = __float2half_rn(sum / (1.f + __expf(-sum)) * up);
            continue;
        }
        const size_t to = (size_t)row * stride + before + at;
        if (job.y_kind == EXL_Y_HALF) static_cast<half *>(job.y)[to] = __float2half_rn(sum);
        else if (job.y_kind == EXL_Y_FLOAT) static_cast<float *>(job.y)[to] = sum;
        else {
            float *y = static_cast<float *>(job.y) + to;
            *y = produced(y) + sum;
        }
    }
}

template <int ROWS>
__device__ __forceinline__ void part_of_job(const ExlGemv &job, const GemvShape &shape, const Smem &s, const Part &part,
                                            bool &waited, bool same_x) {
    const ExlMatrix &m = job.matrix[part.matrix];
    const int t = threadIdx.x, warp = t / LANES, pieces = m.tiles / 2, slab = ROWS == 1 ? pieces : SLAB_PIECES;
    for (int first = 0; first < pieces; first += slab) {
        const int last = min(first + slab, pieces);
        Flight flight;
        Run run = {0, 0, 0};
        int section = 0;
        for (; section < m.section_count; section++) {
            run = share(m, section, first, last, warp);
            if (run.pieces > 0) break;
        }
        if (run.pieces > 0) ask_any(m, run, part.column, part.columns, flight);
        if (first == 0) {
            for (int i = t; i < part.columns * shape.slots * 16 * ROWS; i += THREADS) s.partial[i] = 0.f;
            for (int i = t; i < m.scales; i += THREADS) s.maxima[i] = static_cast<const half *>(m.scale_max)[i];
        }
        uint4 early[EARLY];
#pragma unroll
        for (int k = 0; k < EARLY; k++)
            if (ROWS == 1 && t + k * THREADS < pieces * 16)
                early[k] = __ldg(reinterpret_cast<const uint4 *>(m.gather) + t + k * THREADS);
        if (!waited) {
            if (ROWS == 1) fetch_norm(job, m.features, s.natural);
            wait_for_previous();
            waited = true;
            if (ROWS == 1) {
                __syncthreads();
                natural_order(job, m.features, s.natural);
            }
        }
        __syncthreads();
        if (!same_x) gather_x<ROWS>(job, m, shape, s, first, last, early);
        __syncthreads();
        bool asked = true;
        for (; section < m.section_count; section++) {
            if (!asked) run = share(m, section, first, last, warp);
            if (run.pieces > 0) stream_any<ROWS>(m, shape, s, run, part.column, part.columns, first, last, asked, flight);
            asked = false;
        }
        __syncthreads();
    }
}

template <int ROWS>
__global__ void __launch_bounds__(THREADS, ROWS == 1 ? 2 : 1) gemv(const __grid_constant__ ExlGemv job,
                                                                  const __grid_constant__ GemvShape shape) {
    let_next_start();
    Smem s = smem_of(shape);
    const bool gated = job.y_kind == EXL_Y_GATED;
    int tiles = 0;
    for (int i = 0; i < (gated ? 1 : job.matrices); i++) tiles += job.matrix[i].column_tiles;
    const int each = tiles / gridDim.x, rest = tiles % gridDim.x, block = blockIdx.x;
    int unit = block * each + min(block, rest);
    const int end = unit + each + (block < rest);
    bool waited = false;
    const uint16_t *staged = nullptr;
    while (unit < end) {
        Part part = {0, unit, 0};
        int left = job.matrix[0].column_tiles;
        while (!gated && part.column >= left) {
            part.column -= left;
            left = job.matrix[++part.matrix].column_tiles;
        }
        part.columns = min(min(end - unit, left - part.column), shape.columns);
        const uint16_t *gather = job.matrix[part.matrix].gather;
        bool same_x = ROWS == 1 && gather == staged;
        part_of_job<ROWS>(job, shape, s, part, waited, same_x);
        staged = gather;
        const int second = part.columns * shape.slots * 16 * ROWS;
        if (gated) {
            Smem upper = s;
            upper.partial += second;
            Part up = {1, part.column, part.columns};
            same_x = ROWS == 1 && job.matrix[1].gather == staged;
            part_of_job<ROWS>(job, shape, upper, up, waited, same_x);
            staged = job.matrix[1].gather;
        }
        write_result<ROWS>(job, shape, s, part, second);
        __syncthreads();
        unit += part.columns;
    }
    if (!waited) wait_for_previous();
}

inline int align16(int bytes) { return (bytes + 15) / 16 * 16; }

template <int ROWS> GemvShape shape_of(const ExlGemv &job, int blocks, int tiles) {
    int slab = 0, scales = 0, slots = 0, features = 0;
    for (int i = 0; i < job.matrices; i++) {
        const ExlMatrix &m = job.matrix[i];
        const int pieces = m.tiles / 2, all = ROWS == 1 || pieces < SLAB_PIECES ? pieces : SLAB_PIECES;
        slab = slab > all ? slab : all;
        scales = scales > m.scales ? scales : m.scales;
        slots = slots > m.section_count ? slots : m.section_count;
        features = m.features;
    }
    GemvShape g = {};
    g.slots = slots + WARPS - 1;
    // 16 bytes beyond a multiple of 128 keep the 8 rows of a fragment on different banks.
    g.x_stride = slab * PIECE_ROWS + 8;
    g.sums = align16(g.x_stride * 2 * ROWS);
    g.maxima = g.sums + align16(slab * 4 * 4 * ROWS);
    g.natural = g.maxima + align16(scales * 2);
    g.partial = g.natural + (ROWS == 1 ? align16(features * 2) : 0);
    const int most = (tiles + blocks - 1) / blocks, gated = job.y_kind == EXL_Y_GATED ? 2 : 1;
    const int at_once = ROWS == 1 ? 32 : 8;
    g.columns = most < at_once ? most : at_once;
    g.bytes = g.partial + g.columns * gated * g.slots * 16 * ROWS * 4;
    return g;
}

template <int ROWS> int launch_gemv(const ExlGemv &job, int dependent, cudaStream_t stream) {
    int device = 0, processors = 0, tiles = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    if (error != cudaSuccess) return error;
    for (int i = 0; i < (job.y_kind == EXL_Y_GATED ? 1 : job.matrices); i++) tiles += job.matrix[i].column_tiles;
    // Two blocks an SM. One block with room for the next kernel's beside it was slower: 8 warps cannot hide the latency.
    const int resident = processors * (ROWS == 1 ? 2 : 1), blocks = tiles < resident ? tiles : resident;
    const GemvShape shape = shape_of<ROWS>(job, blocks, tiles);
    return launch(gemv<ROWS>, blocks, THREADS, shape.bytes, dependent, stream, job, shape);
}

}  // namespace exl
